r"""Federated training with differential privacy, end to end, on two CPU cores.

Makes a corpus and runs the programs that a user would run:

  1. data_tools.synthetic_population  generated speech: a few public speakers,
     12,000 private ones, and others for dev and test
  2. bin/train_central.py    a seed model, on the public speakers
  3. bin/train_central.py    the control: the seed trained further, on the same
  4. bin/train_federated.py  the private speakers, federatedly, with
     differential privacy for each
  5. bin/evaluate.py         all models, on the test speakers

Prints their word error rates, the guarantee and some transcripts. Existing
folders are kept: delete one to make it again.

Example:
  bin/quickstart
  bin/quickstart --twin        # also the same without privacy
  bin/quickstart --small       # shorter: too few speakers for privacy
  bin/quickstart --source=corpora/LibriSpeech/dev-clean
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from collections.abc import Mapping
import os
import subprocess
import sys
import time
import types

from absl import flags

from tff_asr import checks
from tff_asr.metrics import confidence
from tff_asr.privacy import privacy_report
from tff_asr.reports import tables
from tff_asr.storage import run_dir

_SOURCE = flags.DEFINE_string(
    'source',
    None,
    "Folder of speech in LibriSpeech's layout (a split: SPEAKER/CHAPTER/*.flac "
    'and *.trans.txt) or of AN4; by default speech is generated.',
)
_SMALL = flags.DEFINE_bool(
    'small', False, 'Generate fewer speakers: less time, and no privacy.'
)
_TWIN = flags.DEFINE_bool(
    'twin', False, 'Train without privacy, too: no clipping, no noise.'
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', 'quickstart_data', 'Where the corpus and its shards go.'
)
_RUNS_DIR = flags.DEFINE_string(
    'runs_dir', 'quickstart_runs', 'Where the trained models go.'
)

_BIN = os.path.dirname(os.path.abspath(__file__))
_PARTS = ('public', 'private', 'dev', 'test')
_RUNS = {
    'seed': 'seed (public speakers)',
    'control': 'control (seed trained on)',
    'federated_dp': 'federated + DP',
    'federated': 'federated, no DP',
}
# The same noise on the mean as in gin/experiments/quickstart_federated_dp.gin,
# from fewer speakers, who are too few for a guarantee.
_SMALL_CORPUS = ('--num_private_speakers=600', '--num_test_speakers=40')
_SMALL_SETTINGS = {
    'seed': {'NUM_STEPS': 200, 'DECAY_START': 100, 'DECAY_STEPS': 30,
             'EVALUATE_EVERY': 200},
    'control': {'NUM_STEPS': 60, 'EVALUATE_EVERY': 60},
    'federated': {'COHORT_SIZE': 60},
    'federated_dp': {
        'COHORT_SIZE': 60, 'NOISE_MULTIPLIER': 0.048, 'TARGET_EPSILON': None,
    },
}
# Split of a real corpus, which has few speakers, and none of dev and test.
_PARTITION = '--partition=public=40%,private=rest,dev=10%,test=15%'
_NUM_ROUNDS, _NUM_LOCAL_STEPS, _MAX_COHORT_SIZE = 80, 2, 6
# (noise norm) / C of .16, the larger one of the paper, at 6 clients a round.
_SOURCE_NOISE = 0.0012
# Two clients train at once: a core each takes less time than both for each.
_ONE_THREAD = {'TF_NUM_INTRAOP_THREADS': '1'}
# What a program that was interrupted may take to end.
_ENDING_SEC = 10
_NUM_TRANSCRIPTS = 3


def main(_) -> None:
  started = time.monotonic()
  checks.output_folders(data_dir=_DATA_DIR.value, runs_dir=_RUNS_DIR.value)
  shards = _make_shards()
  names = [run for run in _RUNS if run != 'federated' or _TWIN.value]
  for run in names:
    _train(run, shards)
  folders = {run: os.path.join(_RUNS_DIR.value, run) for run in names}
  _say('Evaluating all models on the test speakers, who trained none of them.')
  _run(
      os.path.join(_BIN, 'evaluate.py'),
      *_gin(
          'quickstart_evaluate',
          TEST_DIR=shards['test'],
          RUNS=list(folders.values()),
      ),
  )
  rows = dict(zip(names, tables.parse(
      [f'{_RUNS[run]}={folder}' for run, folder in folders.items()]
  )))
  print(f'\n{tables.markdown(tables.overview(list(rows.values())))}\n')
  _print_findings(rows)
  print(f'\n{(time.monotonic() - started) / 60:.1f} minutes in all. Next:')
  # The script is there in a working copy only.
  is_copy = os.path.exists(os.path.join(_BIN, 'quickstart'))
  command = '  .venv/bin/python bin/{}.py' if is_copy else '  tff-asr {}'
  both = f'{folders["seed"]} {folders["federated_dp"]}'
  print(command.format('report'), both, '--output_dir=report')
  print(command.format('demo'), both)
  print(command.format('transcribe'), f'--run={folders["federated_dp"]} FILE')
  print(f'{_RUNS_DIR.value} also holds metrics, the privacy report, and'
        ' hypotheses in test.json.')


def _print_findings(rows: Mapping[str, tables.Row]) -> None:
  """Prints transcripts, and the gain of DP over the control and its cost."""
  private, control = rows['federated_dp'], rows['control']
  print('\n'.join(_transcripts(rows)))
  gain = confidence.difference(
      private.errors, control.errors, list(private.words.values())
  )
  ahead = 'is ahead of' if gain.high < 0 else (
      'is behind' if gain.low > 0 else 'cannot be distinguished from'
  )
  print(
      f'\nFederated + DP {ahead} the control: {tables.interval(gain)} points of'
      f' WER (95 % over {len(private.words)} test speakers).'
  )
  privacy = private.first.privacy
  shown = {
      name: privacy_report.format_epsilon(float(privacy[f'epsilon_{name}']))
      for name in ('pld', 'rdp')
      if privacy[f'epsilon_{name}'] is not None
  }
  accounts = ', '.join(f'{v} by {k.upper()}' for k, v in shown.items())
  print(
      f'Each of {private.first.rounds["population"]:,} private speakers:'
      f' epsilon {accounts} at delta {privacy["delta"]:g}.'
      f' {privacy["verdict"]}'
  )


def _transcripts(rows: Mapping[str, tables.Row]) -> list[str]:
  """Lines: references and hypotheses of speakers spread over the test set."""
  decoded = {
      run: rows[run].first.evaluation['hypotheses']
      for run in ('seed', 'federated_dp')
  }
  step = max(1, len(decoded['seed']) // _NUM_TRANSCRIPTS)
  lines = []
  for number in range(0, step * _NUM_TRANSCRIPTS, step):
    if number < len(decoded['seed']):
      lines.append(f'reference       {decoded["seed"][number]["reference"]}')
      lines += [
          f'{_RUNS[run].split(" (")[0]:15} {texts[number]["text"]}'
          for run, texts in decoded.items()
      ]
  return lines


def _make_shards() -> dict[str, str]:
  """Makes the shards; returns the folders of public, private, dev and test."""
  folder = os.path.join(_DATA_DIR.value, 'shards')
  source = _SOURCE.value
  if source is None:
    _say('Generating speech.')
    _run('-m', 'data_tools.synthetic_population', f'--output_dir={folder}',
         *(_SMALL_CORPUS if _SMALL.value else ()))
    return {part: os.path.join(folder, part) for part in _PARTS}
  source = os.path.abspath(source)
  if not os.path.isdir(source):
    raise ValueError(f'--source {source} is not a folder.')
  _say(f'Writing shards of {source}.')
  tool, parent, split = 'an4', source, 'train'
  if not os.path.exists(os.path.join(source, 'etc', 'an4_train.fileids')):
    tool, (parent, split) = 'librispeech', os.path.split(source)
  _run('-m', f'data_tools.{tool}', f'--source_dir={parent}',
       f'--output_dir={folder}', f'--splits={split}', _PARTITION)
  return {part: os.path.join(folder, f'{split}.{part}') for part in _PARTS}


def _train(run: str, shards: Mapping[str, str]) -> None:
  """Trains one of the runs, unless it is there."""
  output_dir = os.path.join(_RUNS_DIR.value, run)
  if os.path.exists(os.path.join(output_dir, run_dir.RESULTS)):
    _say(f'{_RUNS[run]}: {output_dir} is there.')
    return
  _say(f'{_RUNS[run]}: training.')
  settings = {'DEV_DIR': shards['dev']}
  if run != 'seed':
    settings['INIT_FROM_RUN'] = os.path.join(_RUNS_DIR.value, 'seed')
  program = 'train_central.py'
  if run in ('seed', 'control'):
    settings['TRAIN_DIR'] = shards['public']
  else:
    program = 'train_federated.py'
    settings['PRIVATE_DIR'] = shards['private']
  if _SOURCE.value is not None:
    settings |= _source_settings(run, shards)
  elif _SMALL.value:
    settings |= _SMALL_SETTINGS[run]
  _run(
      os.path.join(_BIN, program),
      f'--output_dir={output_dir}',
      *_gin(f'quickstart_{run}', **settings),
      environment={} if run in ('seed', 'control') else _ONE_THREAD,
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


def _run(
    *arguments: str, environment: Mapping[str, str] = types.MappingProxyType({})
) -> None:
  """Runs a program of this project in this Python, and stops if it fails."""
  program = subprocess.Popen(
      [sys.executable, *arguments], env={**os.environ, **environment}
  )
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
