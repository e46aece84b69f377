r"""Federated training with differential privacy, end to end, on two CPU cores.

Makes a corpus and runs the programs that a user would run:

  1. data_tools.synthetic_population  generated speech: a few public speakers,
     12,000 private ones, and others for dev and test
  2. data_tools.ngram        a language model of the public transcripts
  3. bin/train_central.py    a seed model, on the public speakers
  4. bin/train_central.py    the control: the seed trained further, on the same
  5. bin/train_federated.py  the private speakers, federatedly, with
     differential privacy for each
  6. bin/evaluate.py         all models, on the test speakers

Prints their error rates, the guarantee and some transcripts. A trial step says
at the start how long it takes. Existing folders are kept: delete one to make it
again.

Example:
  bin/quickstart
  bin/quickstart --twin           # also the same without privacy
  bin/quickstart --small          # two minutes: too few speakers for privacy
  bin/quickstart --full           # half an hour more: cohorts three times as
                                  # large, at equal epsilon
  bin/quickstart --real           # recorded speech: AN4, fetched
  bin/quickstart --real=an4       # the same, from a folder or an archive
  bin/quickstart --source=corpora/LibriSpeech/dev-clean
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from collections.abc import Mapping, Sequence
import http.client
import os
import shutil
import subprocess
import sys
import textwrap
import time
import urllib.request

from absl import flags

from tff_asr import checks
from tff_asr import files
from tff_asr.models import conv
from tff_asr.models import ctc
from tff_asr.programs import trial
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import summary
from tff_asr.reports import tables
from tff_asr.storage import run_dir
from tff_asr.text import tokenizer


class _OptionalText(flags.Flag):
  """A text flag that may stand without a value, like a boolean one."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.boolean = True


_SMALL = flags.DEFINE_bool(
    'small', False, 'Generate fewer speakers: two minutes, no privacy.'
)
_FULL = flags.DEFINE_bool(
    'full',
    False,
    'Train with cohorts three times as large, at the same epsilon, which takes '
    'three times as long. Data and seed are those of a default run.',
)
_TWIN = flags.DEFINE_bool(
    'twin', False, 'Train without privacy, too: no clipping, no noise.'
)
_REAL = flags.DEFINE_flag(
    _OptionalText(
        flags.ArgumentParser(),
        flags.ArgumentSerializer(),
        'real',
        None,
        'Recorded speech: fetches CMU AN4 (64 MB); --real=PATH: its folder '
        "(etc/, wav/) or archive. A head on Whisper's encoder is trained. NOT "
        'PRIVATE: it has 74 speakers.',
    )
)
_SOURCE = flags.DEFINE_string(
    'source',
    None,
    "Folder of speech in LibriSpeech's layout (a split: SPEAKER/CHAPTER/*.flac "
    'and *.trans.txt) or of AN4; by default speech is generated.',
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', 'quickstart_data', 'Where the corpus and its shards go.'
)
_RUNS_DIR = flags.DEFINE_string(
    'runs_dir', 'quickstart_runs', 'Where the trained models go.'
)

_BIN = os.path.dirname(os.path.abspath(__file__))
_AN4_URL = 'http://www.speech.cs.cmu.edu/databases/an4/an4_sphere.tar.gz'
_FETCH_TIMEOUT_SEC = 30
# Value of --real without one.
_FETCH = 'true'
_PARTS = ('public', 'private', 'dev', 'test')
_LABELS = {
    'seed': 'seed',
    'control': 'control',
    'federated_dp': 'federated + DP',
    'federated_dp_full': 'federated + DP, 3,000 a round',
    'federated': 'no DP',
}
_TITLES = {
    'seed': 'seed: the public speakers train a model',
    'control': 'control: the same speakers train it further',
    'federated_dp': 'federated + DP: the private speakers train the seed',
    'federated_dp_full': 'the same with 3,000 a round, at the same epsilon',
    'federated': 'no DP: the same without clipping and noise',
}
# Names of experiments in gin/experiments: of a model from scratch, and of a
# head on Whisper's encoder.
_EXPERIMENTS = {
    'scratch': {
        **{run: f'quickstart_{run}' for run in _LABELS},
        'federated_dp': 'quickstart_federated_subspace',
        'federated_dp_full': 'quickstart_federated_subspace',
        'evaluate': 'quickstart_evaluate',
    },
    'real': {
        'seed': 'an4_whisper_seed',
        'control': 'an4_whisper_seed',
        'federated_dp': 'an4_whisper_dp',
        'federated': 'an4_whisper_federated',
        'evaluate': 'an4_whisper_evaluate',
    },
}
_CORPUS = (
    '--voices=clear', '--word_share=0.5', '--num_public_speakers=64',
    '--num_public_utterances=20', '--num_private_utterances=8',
)
# Epsilon 4.94 by PLD, as with 1,000 of 12,000 speakers a round and .8.
_FULL_SETTINGS = {
    'COHORT_SIZE': 3000, 'NOISE_MULTIPLIER': 1.356, 'SUBSPACE_RANK': 192,
    'SERVER_LEARNING_RATE': 0.025,
}
# The same noise on the mean as in gin/experiments/quickstart_federated_dp.gin,
# from fewer speakers, who are too few for a guarantee.
_SMALL_CORPUS = (
    '--num_public_speakers=16', '--num_public_utterances=40',
    '--num_private_speakers=600', '--num_test_speakers=20',
)
_SMALL_SETTINGS = {
    'seed': {'NUM_STEPS': 300, 'DECAY_START': 150, 'DECAY_STEPS': 50,
             'EVALUATE_EVERY': 300},
    'control': {'NUM_STEPS': 60, 'EVALUATE_EVERY': 60},
    'federated': {'COHORT_SIZE': 60},
    'federated_dp': {
        'COHORT_SIZE': 60, 'NOISE_MULTIPLIER': 0.048, 'TARGET_EPSILON': None,
    },
}
# AN4's partition, and its runs: (noise norm) / C of .4, docs/an4.md.
_AN4_PARTITION = '--partition=public=28,private=rest,dev=4,test=10'
_AN4_SETTINGS = {
    'control': {'NUM_STEPS': 150, 'EVALUATE_EVERY': 75, 'LEARNING_RATE': 0.001,
                'DECAY_START': 50, 'DECAY_STEPS': 50},
    'federated_dp': {'NOISE_MULTIPLIER': 0.0064},
}
# Split of a real corpus, which has few speakers, and none of dev and test.
_PARTITION = '--partition=public=40%,private=rest,dev=10%,test=15%'
_NUM_ROUNDS, _NUM_LOCAL_STEPS, _MAX_COHORT_SIZE = 80, 2, 6
# (noise norm) / C of .16, the larger one of the paper, at 6 clients a round.
_SOURCE_NOISE = 0.0012
# What a program that was interrupted may take to end.
_ENDING_SEC = 10
# Exit code of a program that ended by itself after Ctrl-C.
_INTERRUPTED = 130
# Seconds of each phase where the trial step takes _REFERENCE_STEP_SEC, scaled
# from an idle machine on which it took .02 s; of `real`, from processor time.
_REFERENCE_STEP_SEC = 0.03
_REFERENCE_SEC = {
    'scratch': {'speech': 170, 'seed': 80, 'control': 25, 'federated_dp': 590,
                'federated_dp_full': 1770, 'federated': 590, 'evaluate': 72},
    'small': {'speech': 16, 'seed': 25, 'control': 17, 'federated_dp': 38,
              'federated': 38, 'evaluate': 94},
    'real': {'speech': 90, 'seed': 60, 'control': 20, 'federated_dp': 60,
             'federated': 60, 'evaluate': 30},
}


class _Plan:
  """Phases that are to be done, and the time that they take."""

  def __init__(self, phases: Mapping[str, float]):
    """Creates a plan from phases and their estimated seconds, 0 if done."""
    self._left = dict(phases)
    self._total = len(phases)
    # Of the phases that were done now: as estimated, and as they took.
    self._estimated_sec = self._spent_sec = 0.0
    self._started = time.monotonic()

  @property
  def minutes(self) -> float:
    """Minutes since the start."""
    return (time.monotonic() - self._started) / 60

  def whole_minutes(self) -> float:
    """Estimates the minutes of all phases, from those that are done."""
    left = sum(self._left.values()) / 60
    if self._estimated_sec:
      left *= self._spent_sec / self._estimated_sec
    return self.minutes + left

  def begin(self, phase: str, title: str) -> None:
    """Prints the heading of a phase."""
    number = self._total - len(self._left) + 1
    clock = f'minute {self.minutes:.1f} of about {self.whole_minutes():.1f}'
    print(f'\n== {number} of {self._total} ({clock}): {title}', flush=True)
    self._phase, self._began = phase, time.monotonic()

  def end(self) -> None:
    """Ends the phase."""
    if estimate := self._left.pop(self._phase):
      self._estimated_sec += estimate
      self._spent_sec += time.monotonic() - self._began


def main(_) -> None:
  _check_flags()
  wanted = {'federated_dp_full': _FULL.value, 'federated': _TWIN.value}
  runs = [run for run in _LABELS if wanted.get(run, True)]
  plan = _make_plan(runs)
  plan.begin('speech', 'speech')
  shards = _make_shards()
  plan.end()
  for run in runs:
    plan.begin(run, _TITLES[run])
    _train(run, shards)
    plan.end()
  plan.begin('evaluate', 'test speakers, who trained no model')
  folders = {run: os.path.join(_RUNS_DIR.value, run) for run in runs}
  _evaluate(list(folders.values()), shards)
  plan.end()
  rows = dict(zip(runs, tables.parse(
      list(folders.values()), names=[_LABELS[run] for run in folders]
  )))
  _print_tables(rows)
  _print_end(rows, folders, minutes=plan.minutes)


def _check_flags() -> None:
  """Raises ValueError for flags that cannot be used."""
  checks.output_folders(data_dir=_DATA_DIR.value, runs_dir=_RUNS_DIR.value)
  if _FULL.value and (_SMALL.value or _REAL.value or _SOURCE.value):
    raise ValueError('--full is for generated speech, without --small.')
  if _REAL.value and _SMALL.value:
    raise ValueError('--small is for generated speech, --real is not.')
  if _REAL.value and _SOURCE.value:
    raise ValueError('--real and --source name two corpora: give one.')
  if _REAL.value not in (None, _FETCH) and not os.path.exists(_REAL.value):
    raise ValueError(f'--real={_REAL.value} does not exist.')
  if _SOURCE.value is not None and not os.path.isdir(_SOURCE.value):
    raise ValueError(f'--source {_SOURCE.value} is not a folder.')


def _make_plan(runs: Sequence[str]) -> _Plan:
  """Plans the phases; says how long they take, by a trial step."""
  step_sec = trial.step_sec(
      ctc.build(
          encoder=conv.build(num_blocks=4, dim=96, kernel_size=7),
          tokenizer=tokenizer.for_language('en'),
      ),
      feature_dim=80,
      batch_sec=20.0,
  )
  seconds = _REFERENCE_SEC['small' if _SMALL.value else _kind()]
  slower = step_sec / _REFERENCE_STEP_SEC
  plan = _Plan({
      phase: 0.0 if _is_done(phase) else slower * seconds[phase]
      for phase in ('speech', *runs, 'evaluate')
  })
  print(
      f'This takes about {plan.whole_minutes():.0f} minutes: a trial step of '
      f'training took {step_sec:.2f} s on this machine.'
  )
  return plan


def _is_done(phase: str) -> bool:
  """Returns whether another call has done a phase."""
  if phase == 'speech':
    # The language model is made last, and features after it.
    return os.path.exists(_language_model()) and (
        _kind() == 'scratch' or os.path.exists(_features('test'))
    )
  return os.path.exists(
      os.path.join(_RUNS_DIR.value, phase, run_dir.RESULTS)
  )


def _kind() -> str:
  """Key of `_EXPERIMENTS`."""
  return 'real' if _REAL.value else 'scratch'


def _print_tables(rows: Mapping[str, tables.Row]) -> None:
  """Prints error rates, speakers and transcripts."""
  listed = list(rows.values())
  base = _LABELS['control']
  print(
      f'\n{tables.markdown(summary.overview(listed, baseline=base))}\n\n'
      f'Intervals: 95 %, paired bootstrap over {len(listed[0].words)} test '
      'speakers.\n\n'
      f'WER % of test speakers, and SER %, with LM:\n\n'
      f'{tables.markdown(summary.quartiles(listed))}'
  )
  found = summary.transcripts(rows['seed'], rows['federated_dp'])
  print(
      f'\nWith LM, {found.num_different:,} of {found.num_utterances:,} '
      'transcripts differ. Some of these:'
  )
  for lines in found.shown:
    print('\n' + '\n'.join(lines))


def _print_end(
    rows: Mapping[str, tables.Row],
    folders: Mapping[str, str],
    *,
    minutes: float,
) -> None:
  """Prints what was found in a few lines, then the next commands."""
  private = rows['federated_dp']
  gains = [
      (run, summary.gain(private, rows[run], runs_lib.WER_WITH_LM))
      for run in ('control', 'seed')
  ]
  print('\nWith LM, DP is ' + ',\nand '.join(
      summary.verdict(gain, f'the {run}') for run, gain in gains
  ))
  for line in tables.shares_of_gain(list(rows.values())):
    print(textwrap.fill(line, 100))
  privacy = private.first.privacy
  population = private.first.rounds['population']
  print(
      f'Each of {population:,} private speakers: epsilon '
      f'{summary.accounts(private)} at delta {privacy["delta"]:g}'
      f'{"" if privacy["private"] else ", NOT PRIVATE"}'
  )
  print('; '.join(
      f'{title}: {tables.COLUMNS[title](private)}' for title in tables.NOISE
  ))
  report = os.path.join(folders['federated_dp'], run_dir.PRIVACY_REPORT)
  print(f'This took {minutes:.1f} minutes. Privacy report: {report}\n\nNext:')
  # A working copy has the script and its own environment.
  is_copy = os.path.exists(os.path.join(_BIN, 'quickstart'))
  command = '  python bin/{}.py' if is_copy else '  tff-asr {}'
  both = f'{folders["seed"]} {folders["federated_dp"]}'
  if is_copy:
    print('  source .venv/bin/activate')
  print(command.format('report'), both, '--output_dir=report')
  print(command.format('demo'), both)
  print(
      command.format('transcribe'),
      f'--run={folders["federated_dp"]} --lm={_language_model()} FILE',
  )
  if _SMALL.value:
    print('Commands of README.md that train the private speakers then need:')
    settings = _SMALL_SETTINGS['federated_dp'].items()
    lines = [f'  --gin_param="{name} = {value}"' for name, value in settings]
    print(' \\\n'.join(lines))


def _language_model() -> str:
  """Path of the language model of the public transcripts."""
  return os.path.join(_DATA_DIR.value, 'public.arpa')


def _evaluate(runs: Sequence[str], shards: Mapping[str, str]) -> None:
  """Decodes the test speakers, greedily and with the language model."""
  _run(
      os.path.join(_BIN, 'evaluate.py'),
      *_gin(
          _EXPERIMENTS[_kind()]['evaluate'],
          TEST_DIR=shards['test'],
          DEV_DIR=shards['dev'],
          RUNS=list(runs),
          LANGUAGE_MODEL=_language_model(),
      ),
  )


def _make_shards() -> dict[str, str]:
  """Makes all data; returns the folders of public, private, dev and test."""
  shards = _make_audio()
  model = _language_model()
  if not os.path.exists(model):
    _run('-m', 'data_tools.ngram', f'--input={shards["public"]}',
         f'--output={model}')
  return shards if _kind() == 'scratch' else _embed(shards)


def _make_audio() -> dict[str, str]:
  """Makes the shards of audio."""
  folder = os.path.join(_DATA_DIR.value, 'shards')
  if _REAL.value:
    return _split_corpus('an4', _find_an4(), 'train', folder, _AN4_PARTITION)
  source = _SOURCE.value
  if source is None:
    _run('-m', 'data_tools.synthetic_population', f'--output_dir={folder}',
         *_CORPUS, *(_SMALL_CORPUS if _SMALL.value else ()))
    return {part: os.path.join(folder, part) for part in _PARTS}
  source = os.path.abspath(source)
  tool, parent, split = 'an4', source, 'train'
  if not os.path.exists(os.path.join(source, 'etc', 'an4_train.fileids')):
    tool, (parent, split) = 'librispeech', os.path.split(source)
  return _split_corpus(tool, parent, split, folder, _PARTITION)


def _split_corpus(
    tool: str, source: str, split: str, folder: str, partition: str
) -> dict[str, str]:
  """Writes a corpus of real speech as shards of four parts."""
  _run('-m', f'data_tools.{tool}', f'--source_dir={source}',
       f'--output_dir={folder}', f'--splits={split}', partition)
  return {part: os.path.join(folder, f'{split}.{part}') for part in _PARTS}


def _find_an4() -> str:
  """The folder or archive of AN4, fetched if the flag names none."""
  if _REAL.value != _FETCH:
    return _REAL.value
  path = os.path.join(_DATA_DIR.value, os.path.basename(_AN4_URL))
  if not os.path.exists(path):
    print(f'Fetching {_AN4_URL} (64 MB).', flush=True)
    os.makedirs(_DATA_DIR.value, exist_ok=True)
    try:
      with urllib.request.urlopen(
          _AN4_URL, timeout=_FETCH_TIMEOUT_SEC
      ) as response, files.replacing(path) as f:
        shutil.copyfileobj(response, f)
    except (OSError, http.client.HTTPException) as e:
      raise ValueError(
          f'{_AN4_URL} cannot be fetched ({e}): get AN4 elsewhere and give '
          '--real=FOLDER, or run without --real.'
      ) from e
  return path


def _embed(shards: Mapping[str, str]) -> dict[str, str]:
  """Makes features of Whisper's encoder of each part."""
  features = {part: _features(part) for part in shards}
  for part, audio in shards.items():
    if not os.path.exists(features[part]):
      _run('-m', 'data_tools.embed', '--pretrained=whisper-tiny.en',
           f'--audio_dir={audio}', f'--features_dir={features[part]}')
  return features


def _features(part: str) -> str:
  """Folder of a part's features of Whisper's encoder."""
  return os.path.join(_DATA_DIR.value, 'features', part)


def _train(run: str, shards: Mapping[str, str]) -> None:
  """Trains one of the runs, unless it is there."""
  output_dir = os.path.join(_RUNS_DIR.value, run)
  if _is_done(run):
    print(f'{output_dir} is there.')
    return
  settings = {'DEV_DIR': shards['dev']}
  if run != 'seed':
    settings['INIT_FROM_RUN'] = os.path.join(_RUNS_DIR.value, 'seed')
  is_central = run in ('seed', 'control')
  if is_central:
    settings['TRAIN_DIR'] = shards['public']
  else:
    settings['PRIVATE_DIR'] = shards['private']
  if _REAL.value:
    settings |= _AN4_SETTINGS.get(run, {})
  elif _SOURCE.value is not None:
    settings |= _source_settings(run, shards)
  elif _SMALL.value:
    settings |= _SMALL_SETTINGS[run]
  elif run == 'federated_dp_full':
    settings |= _FULL_SETTINGS
  _run(
      os.path.join(
          _BIN, 'train_central.py' if is_central else 'train_federated.py'
      ),
      f'--output_dir={output_dir}',
      *_gin(_EXPERIMENTS[_kind()][run], **settings),
  )


def _source_settings(run: str, shards: Mapping[str, str]) -> dict[str, object]:
  """Settings for a corpus of few speakers, who have much to say."""
  cohort_size = min(_MAX_COHORT_SIZE, max(1, _num_clients(shards) // 2))
  if run == 'seed':
    return {'NUM_STEPS': 900, 'DECAY_START': 400, 'DECAY_STEPS': 150}
  if run == 'control':
    return {'NUM_STEPS': _NUM_ROUNDS * cohort_size * _NUM_LOCAL_STEPS}
  settings = {
      'NUM_ROUNDS': _NUM_ROUNDS,
      'NUM_LOCAL_STEPS': _NUM_LOCAL_STEPS,
      'MAX_BATCH_SEC': 20.0,
      'COHORT_SIZE': cohort_size,
      'EVALUATE_EVERY': _NUM_ROUNDS // 2,
      'DECAY_START': _NUM_ROUNDS // 2,
      'DECAY_ROUNDS': _NUM_ROUNDS // 4,
  }
  if run == 'federated_dp':
    settings |= {'NOISE_MULTIPLIER': _SOURCE_NOISE, 'TARGET_EPSILON': None}
  return settings


def _num_clients(shards: Mapping[str, str]) -> int:
  """Number of private speakers."""
  path = os.path.join(shards['private'], 'clients.tsv')
  with open(path, encoding='utf-8') as f:
    return sum(1 for _ in f) - 1


def _gin(experiment: str, **settings: object) -> list[str]:
  """Flags for an experiment file with settings."""
  return [f'--gin_file=gin/experiments/{experiment}.gin'] + [
      f'--gin_param={name} = {value!r}' for name, value in settings.items()
  ]


def _run(*arguments: str) -> None:
  """Runs a program of this project in this Python, and stops if it fails."""
  program = subprocess.Popen([sys.executable, *arguments])
  try:
    status = program.wait()
  except KeyboardInterrupt:
    # Ctrl-C went to the program too, which ends by itself; SIGTERM did not.
    try:
      status = program.wait(_ENDING_SEC)
    except subprocess.TimeoutExpired:
      program.terminate()
      status = program.wait()
    if status == _INTERRUPTED:
      # It has said so.
      sys.exit(status)
    raise
  if status:
    sys.exit(status)


if __name__ == '__main__':
  launch.run(main)
