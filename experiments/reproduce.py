r"""Lists, prints and runs the federated paper's runs by their names.

docs/recipe.md has the runs; each is a training, perhaps of a seed model that is
another run, and an evaluation.

Examples:
  python -m experiments.reproduce --list='Table 21'
  python -m experiments.reproduce --print='Table 21, deep, uniform'
  python -m experiments.reproduce --run='Table 21, deep, uniform' --scale=tiny

--scale=tiny trains the run and its seed models on a few utterances of generated
speech, in two steps or rounds, with models of one eighteenth of the blocks and
an 48th of the width. It shows that the commands work, not what the paper found.
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from collections.abc import Sequence
import os
import shlex
import subprocess
import sys

from absl import flags

from experiments import published

_LIST = flags.DEFINE_string(
    'list', None, 'Prints the names of the runs that have these words.'
)
_PRINT = flags.DEFINE_string(
    'print', None, 'Prints the commands of the run with these words.'
)
_RUN = flags.DEFINE_string('run', None, 'Runs the commands of such a run.')
_SCALE = flags.DEFINE_enum(
    'scale', 'paper', ['paper', 'tiny'], 'Size of data, model and training.'
)
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', 'runs/tiny', 'With --scale=tiny, gets speech and runs.'
)
flags.mark_flags_as_mutual_exclusive(['list', 'print', 'run'], required=True)

_ROOT = os.path.join(os.path.dirname(published.PAGE), os.pardir)


def main(_) -> None:
  runs = published.read()
  if _LIST.value is not None:
    for run in published.search(runs, _LIST.value):
      print(f'{run.name}  [WER {run.wer}; {run.source}]')
    return
  run = published.find(runs, _PRINT.value or _RUN.value)
  is_tiny = _SCALE.value == 'tiny'
  todo = published.commands(
      runs, run, tiny_dir=_OUTPUT_DIR.value if is_tiny else None
  )
  print(f'{run.name}: WER {run.wer} in the paper; settings: {run.source}')
  if not is_tiny:
    print('Data: docs/recipe.md, "Data". Hours: "Table 22" there.')
  for command in todo:
    print(f'\n{published.shown(command)}', flush=True)
    if _RUN.value:
      _call(command)


def _call(command: Sequence[str]) -> None:
  """Runs a command; raises ValueError if it fails."""
  program = command[0]
  if program.startswith('bin/'):
    program = os.path.join(_ROOT, program)
  process = subprocess.run([sys.executable, program, *command[1:]])
  if process.returncode:
    raise ValueError(
        f'{shlex.join(command[:2])} ended with code {process.returncode}: see '
        'its message above.'
    )


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command continues.')
