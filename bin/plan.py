r"""Plans private training: cohort, rounds, noise, and what to expect of it.

Prints a row for each cohort and number of rounds: the smallest noise for the
target epsilon (by PLD), its norm and the updates' over the clip, the run's
signal to noise, hours, and the share of what the same training without privacy
would gain; then a sentence. No private data are read: people and utterances are
flags. The updates are measured on public people, best a dev set, as the seed
model was trained on others; --gin_file names the planned run's configuration,
without which a client takes one averaged step and is clipped by layer.

Example:
  python bin/plan.py --num_people=12000 --num_utterances=20 --epsilon=4.94 \
      --run=quickstart_runs/seed --public_dir=quickstart_data/shards/dev
  python bin/plan.py --num_people=12000 --epsilon=1 --share=0.5 \
      --num_parameters=628448 --signal=0.14
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

from tff_asr import config
from tff_asr.programs import update_signal
from tff_asr.reports import run_plans

_NUM_PEOPLE = flags.DEFINE_list(
    'num_people', None, 'Private people, a public number, or several. Required.'
)
_EPSILON = flags.DEFINE_float('epsilon', None, 'Epsilon at most. Required.')
_DELTA = flags.DEFINE_float('delta', None, 'By default 1 / (10 num_people).')
_UTTERANCES = flags.DEFINE_integer(
    'num_utterances', None, 'Utterances a person, for --run.', lower_bound=1
)
_RUN = flags.DEFINE_string('run', None, 'Folder of the seed run.')
_PUBLIC_DIR = flags.DEFINE_string(
    'public_dir', None, 'Shards of public people, for --run.'
)
_GIN_FILE = flags.DEFINE_multi_string('gin_file', [], 'Of the planned run.')
_GIN_PARAM = flags.DEFINE_multi_string('gin_param', [], 'Override of it.')
_PARAMETERS = flags.DEFINE_integer(
    'num_parameters', None, 'Trained parameters; else those of --run.'
)
_SIGNAL = flags.DEFINE_float(
    'signal', None, 'Norm of the mean clipped update over C; else measured.'
)
_SPEED = flags.DEFINE_float(
    'clients_per_second', None, 'Client updates; by default measured.'
)
_MAX_HOURS = flags.DEFINE_float('max_hours', None, 'Longest training.')
_COHORT_SIZES = flags.DEFINE_list(
    'cohort_sizes', [], 'By default 300, 1,000 and so on, and everyone.'
)
_ROUNDS = flags.DEFINE_list('rounds', [], 'By default 20, 40 and 100.')
_SHARE = flags.DEFINE_float(
    'share', None, 'Say how many people this share of the gain needs.'
)
_FORMAT = flags.DEFINE_enum('format', 'text', ['text', 'json'], 'Output.')
flags.mark_flags_as_required(['num_people', 'epsilon'])
for name in ('num_parameters', 'signal'):
  flags.mark_flags_as_mutual_exclusive(['run', name])


def main(_) -> None:
  update = None
  if _GIN_FILE.value:
    update = config.bind(
        update_signal.ClientUpdate,
        gin_files=_GIN_FILE.value, gin_params=_GIN_PARAM.value,
    )()
  print(run_plans.plan(
      num_people=_integers(_NUM_PEOPLE), epsilon=_EPSILON.value,
      delta=_DELTA.value, cohort_sizes=_integers(_COHORT_SIZES),
      rounds=_integers(_ROUNDS), share=_SHARE.value, signal=_SIGNAL.value,
      num_parameters=_PARAMETERS.value, num_utterances=_UTTERANCES.value,
      run=_RUN.value, public_dir=_PUBLIC_DIR.value, update=update,
      clients_per_sec=_SPEED.value, max_hours=_MAX_HOURS.value,
      output_format=_FORMAT.value,
  ))


def _integers(flag: flags.FlagHolder) -> list[int]:
  """The numbers of a list."""
  if not all(text.strip().isdecimal() and int(text) for text in flag.value):
    raise ValueError(
        f'--{flag.name} must be integers of at least 1, found '
        f'{",".join(flag.value)}.'
    )
  return [*map(int, flag.value)]


if __name__ == '__main__':
  launch.run(main)
