r"""The main job, end to end, on generated or real speech.

Makes a small corpus (or reads one), splits its speakers into public, private,
dev and test, and runs the programs that a user would run:

  1. bin/train_central.py    a seed model, on the public speakers
  2. bin/train_central.py    the control: the seed trained on, on the same
  3. bin/train_federated.py  the private speakers, federatedly
  4. bin/train_federated.py  the same with differential privacy
  5. bin/evaluate.py         all four on the test speakers, whom none heard

What is there already is kept: delete a folder to make it anew.

Example:
  bin/quickstart
  bin/quickstart --source=corpora/LibriSpeech/dev-clean
"""

from tff_asr import launch

launch.begin(__name__)

import os
import subprocess
import sys
import time

from absl import flags

from tff_asr import checks
from tff_asr.reports import tables
from tff_asr.storage import run_dir

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
_RUNS = {
    'seed': 'seed (public speakers)',
    'control': 'control (seed trained on)',
    'federated': 'federated',
    'federated_dp': 'federated + DP',
}
_NUM_ROUNDS = 80
_NUM_LOCAL_STEPS = 2
_GENERATED = ('--num_speakers=180', '--num_dev_speakers=8')
_GENERATED_PARTITION = '--partition=public=40,private=rest'
# What a program that was interrupted may take to end.
_ENDING_SEC = 10
# Of a real corpus, which has no dev and test speakers of its own.
_PARTITION = '--partition=public=40%,private=rest,dev=10%,test=15%'


def main(_) -> None:
  started = time.monotonic()
  checks.output_folders(data_dir=_DATA_DIR.value, runs_dir=_RUNS_DIR.value)
  shards = _make_shards()
  for run in _RUNS:
    _train(run, shards)
  folders = [os.path.join(_RUNS_DIR.value, run) for run in _RUNS]
  _say('Evaluating all models on the test speakers, whom none of them heard.')
  _run(
      os.path.join(_BIN, 'evaluate.py'),
      *_gin('quickstart_evaluate', TEST_DIR=shards['test'], RUNS=folders),
  )
  rows = tables.parse(
      [f'{label}={folder}' for label, folder in zip(_RUNS.values(), folders)]
  )
  print(f'\n{tables.markdown(tables.overview(rows))}\n')
  print(f'Corpus and shards: {_DATA_DIR.value}')
  print(
      'Models, metrics, privacy statement, hypotheses (test.json): '
      f'{_RUNS_DIR.value}'
  )
  print(f'{(time.monotonic() - started) / 60:.1f} minutes in all.')


def _make_shards() -> dict[str, str]:
  """Makes the shards; returns the folders of public, private, dev and test."""
  folder = os.path.join(_DATA_DIR.value, 'shards')
  source = _SOURCE.value
  if source is None:
    speech = os.path.join(_DATA_DIR.value, 'speech')
    _say('Generating speech and writing shards.')
    _run('-m', 'data_tools.synthetic_speech', f'--output_dir={speech}',
         *_GENERATED)
    # These speakers' ids are nobody's of LibriVox.
    name = '--namespace=synthetic speech'
    _convert('librispeech', speech, folder, 'train', name, _GENERATED_PARTITION)
    _convert('librispeech', speech, folder, 'dev,test', name)
    names = ('train.public', 'train.private', 'dev', 'test')
  else:
    source = os.path.abspath(source)
    if not os.path.isdir(source):
      raise ValueError(f'--source {source} is not a folder.')
    _say(f'Writing shards of {source}.')
    if os.path.exists(os.path.join(source, 'etc', 'an4_train.fileids')):
      split = 'train'
      _convert('an4', source, folder, split, _PARTITION)
    else:
      parent, split = os.path.split(source)
      _convert('librispeech', parent, folder, split, _PARTITION)
    names = [f'{split}.{part}' for part in ('public', 'private', 'dev', 'test')]
  parts = ('public', 'private', 'dev', 'test')
  return {
      part: os.path.join(folder, name) for part, name in zip(parts, names)
  }


def _convert(
    tool: str, source: str, folder: str, splits: str, *options: str
) -> None:
  """Runs a converter of data_tools."""
  _run('-m', f'data_tools.{tool}', f'--source_dir={source}',
       f'--output_dir={folder}', f'--splits={splits}', *options)


def _train(run: str, shards: dict[str, str]) -> None:
  """Trains one of the runs, unless it is there."""
  output_dir = os.path.join(_RUNS_DIR.value, run)
  if os.path.exists(os.path.join(output_dir, run_dir.RESULTS)):
    _say(f'{_RUNS[run]}: {output_dir} is there.')
    return
  _say(f'{_RUNS[run]}: training.')
  seed = os.path.join(_RUNS_DIR.value, 'seed')
  settings = {'DEV_DIR': shards['dev']}
  cohort_size = min(6, max(1, _num_clients(shards['private']) // 2))
  if run in ('seed', 'control'):
    program = 'train_central.py'
    settings['TRAIN_DIR'] = shards['public']
    if run == 'control':
      settings['INIT_FROM_RUN'] = seed
      settings['NUM_STEPS'] = _NUM_ROUNDS * cohort_size * _NUM_LOCAL_STEPS
  else:
    program = 'train_federated.py'
    settings |= {
        'PRIVATE_DIR': shards['private'],
        'INIT_FROM_RUN': seed,
        'NUM_ROUNDS': _NUM_ROUNDS,
        'NUM_LOCAL_STEPS': _NUM_LOCAL_STEPS,
        'COHORT_SIZE': cohort_size,
    }
  _run(
      os.path.join(_BIN, program),
      f'--output_dir={output_dir}',
      *_gin(f'quickstart_{run}', **settings),
  )


def _num_clients(shards: str) -> int:
  """Number of speakers in a folder of shards."""
  with open(os.path.join(shards, 'clients.tsv'), encoding='utf-8') as f:
    return sum(1 for _ in f) - 1


def _gin(experiment: str, **settings) -> list[str]:
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
      program.wait(_ENDING_SEC)
    except subprocess.TimeoutExpired:
      program.terminate()
      program.wait()
    raise
  if status:
    sys.exit(status)


def _say(text: str) -> None:
  """A heading between the programs' own lines."""
  print(f'\n== {text}', flush=True)


if __name__ == '__main__':
  launch.run(main)
