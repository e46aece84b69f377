r"""Plans private training: cohort, rounds, noise, and what to expect of it.

Prints a row for each cohort and number of rounds: the smallest noise for the
target epsilon (by PLD), its norm and the updates' over the clip, the run's
signal to noise, hours, and the share of what the same training without privacy
would gain. The last line says what to expect; --share=0.5 also says how many
people half of the gain would need. No private data are read: the number of
people and of their utterances are flags.

The updates are measured on public people whom the seed model --run was not
trained on, best on a dev set (--dev_dir; else --public_dir). A client takes one
averaged step and is clipped by layer; --gin_file takes all of that from the
configuration of the planned run. Or give --signal and --num_parameters.

Example:
  python bin/plan.py --num_people=12000 --num_utterances=20 --epsilon=4.94 \
      --run=quickstart_runs/seed --dev_dir=quickstart_data/shards/dev
  python bin/plan.py --num_people=12000 --epsilon=1 --share=0.5 \
      --num_parameters=628448 --signal=0.22
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from collections.abc import Sequence
import json

from absl import flags

from tff_asr import config
from tff_asr.data import client_data
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import planning
from tff_asr.programs import update_signal
from tff_asr.recognition import model_spec
from tff_asr.reports import tables

_NUM_PEOPLE = flags.DEFINE_integer(
    'num_people', None, 'Private people, a public number. Required.'
)
_EPSILON = flags.DEFINE_float('epsilon', None, 'Epsilon at most. Required.')
_DELTA = flags.DEFINE_float('delta', None, 'By default 1 / (10 num_people).')
_NUM_UTTERANCES = flags.DEFINE_integer(
    'num_utterances', None, 'Utterances a person; with --run.', lower_bound=1
)
_RUN = flags.DEFINE_string('run', None, 'Folder of the seed run.')
_DEV_DIR = flags.DEFINE_string(
    'dev_dir', None, 'Shards of public people whom the seed has not seen.'
)
_PUBLIC_DIR = flags.DEFINE_string(
    'public_dir', None, 'Shards of public people that it was trained on.'
)
_GIN_FILE = flags.DEFINE_multi_string(
    'gin_file', [], "The planned run's configuration, for a client's update."
)
_GIN_PARAM = flags.DEFINE_multi_string('gin_param', [], 'Override of it.')
_NUM_PARAMETERS = flags.DEFINE_integer(
    'num_parameters', None, 'Trained parameters; without --run.'
)
_SIGNAL = flags.DEFINE_float(
    'signal', None, 'Norm of the mean clipped update over C; without --run.'
)
_CLIENTS_PER_SECOND = flags.DEFINE_float(
    'clients_per_second', None, 'Client updates; by default measured.'
)
_MAX_HOURS = flags.DEFINE_float('max_hours', None, 'Longest training.')
_COHORT_SIZES = flags.DEFINE_list(
    'cohort_sizes', [], 'By default 300, 1,000 and so on, and everyone.'
)
_ROUNDS = flags.DEFINE_list('rounds', [], 'By default 10, 20, 40 and 100.')
_SHARE = flags.DEFINE_float(
    'share', None, 'Also print how many people this share of the gain needs.'
)
_FORMAT = flags.DEFINE_enum('format', 'text', ['text', 'json'], 'Output.')
flags.mark_flags_as_required(['num_people', 'epsilon'])
flags.mark_flags_as_mutual_exclusive(['dev_dir', 'public_dir'])
for name in ('num_parameters', 'signal'):
  flags.mark_flags_as_mutual_exclusive(['run', name])


def main(_) -> None:
  signal = None
  num_parameters, strength = _NUM_PARAMETERS.value, _SIGNAL.value
  clients_per_sec = _CLIENTS_PER_SECOND.value
  if _RUN.value:
    signal, num_parameters = _measure()
    strength = signal.law.signal(_NUM_UTTERANCES.value)
    clients_per_sec = clients_per_sec or signal.clients_per_sec(
        _NUM_UTTERANCES.value
    )
  elif strength is None or num_parameters is None:
    raise ValueError(
        'give --run, --num_utterances and --dev_dir to measure the signal, or '
        '--signal and --num_parameters.'
    )
  goal = planning.Goal(
      num_people=_NUM_PEOPLE.value,
      num_parameters=num_parameters,
      signal=strength,
      signal_error=signal.law.relative_error if signal else 0.0,
      epsilon=_EPSILON.value,
      delta=_DELTA.value,
      clients_per_sec=clients_per_sec,
      max_hours=_MAX_HOURS.value,
  )
  plan = goal.plan(
      cohort_sizes=_integers('cohort_sizes', _COHORT_SIZES.value),
      rounds=_integers('rounds', _ROUNDS.value),
      share=_SHARE.value,
  )
  if _FORMAT.value == 'json':
    print(json.dumps(plan.fields, indent=1))
    return
  if signal:
    print(f'{tables.markdown(signal.table())}\n')
  print(f'{tables.markdown(plan.table())}\n\n{plan.words}')


def _measure() -> tuple[update_signal.Signal, int]:
  """Measures public people; the signal and the number of parameters."""
  shards = _DEV_DIR.value or _PUBLIC_DIR.value
  if not shards or _NUM_UTTERANCES.value is None:
    raise ValueError(
        '--run needs public people, --dev_dir or --public_dir, and '
        '--num_utterances.'
    )
  if _GIN_FILE.value:
    update = config.bind(
        update_signal.ClientUpdate,
        gin_files=_GIN_FILE.value,
        gin_params=_GIN_PARAM.value,
    )()
  else:
    update = update_signal.one_step(*model_spec.read(_RUN.value))
  signal = update_signal.measure(
      update,
      weights=update.read_weights(_RUN.value),
      client_data=client_data.load(shards),
  )
  return signal, weights_lib.num_parameters(update.trained)


def _integers(name: str, texts: Sequence[str]) -> list[int]:
  """The numbers of a flag."""
  if not all(text.strip().isdecimal() and int(text) for text in texts):
    raise ValueError(
        f'--{name} must be integers of at least 1, found {",".join(texts)}.'
    )
  return [int(text) for text in texts]


if __name__ == '__main__':
  launch.run(main)
