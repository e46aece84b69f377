r"""Runs benchmarks one after the other and collects their figures.

    python -m benchmarks.run --list
    python -m benchmarks.run all --results=FOLDER
    python -m benchmarks.run execution 'local_step --jit' --results=FOLDER

Each argument is a benchmark's name, with flags of its own if it is quoted;
`all` are those that need none. Each runs as a process of its own (nothing of
one is left for the next) and writes FOLDER/NAME.json; FOLDER/tables.md has the
commands and the tables of all, one run after the other. Where one fails, the
others still run, and the exit code is 1.
"""

from tff_asr import launch

launch.begin(__name__)

import ast
from collections.abc import Sequence
import os
import shlex
import subprocess
import sys

from absl import flags

from tff_asr import checks

_LIST = flags.DEFINE_boolean('list', False, 'Say what there is, and end.')
_RESULTS = flags.DEFINE_string('results', None, 'Folder for the figures.')

# In the order in which they run. `conversion` needs a folder of speech.
NAMES = (
    'local_step',
    'jit',
    'input_pipeline',
    'reader',
    'batches',
    'aggregation',
    'noise',
    'start_up',
    'growth',
    'execution',
    'scaling',
    'dp_sgd',
    'audit_power',
    'full_size',
    'conversion',
    'kills',
    'soak',
)
NEED_FLAGS = ('conversion',)
ALL = 'all'
TABLES = 'tables.md'


def main(argv: Sequence[str]) -> None:
  if _LIST.value:
    for name in NAMES:
      print(f'{name:16} {summary(name)}')
    return
  jobs = parse(argv[1:])
  folder = _RESULTS.value
  if not folder:
    raise ValueError('--results is needed: a folder for the figures.')
  checks.output_folders(results=folder)
  os.makedirs(folder, exist_ok=True)
  failed = []
  for name, own_flags in jobs:
    table = _run(name, own_flags, os.path.join(folder, f'{name}.json'))
    if table is None:
      failed.append(name)
      continue
    _append(
        os.path.join(folder, TABLES), section(name, own_flags, table)
    )
  if failed:
    raise ValueError(f'failed: {", ".join(failed)}; what each said is above.')


def parse(arguments: Sequence[str], /) -> list[tuple[str, list[str]]]:
  """Arguments to names of benchmarks, each with its own flags.

  Raises:
    ValueError: An unknown name, or one given twice: they share a file.
  """
  jobs = [
      (name, own_flags) for name, *own_flags in map(shlex.split, arguments)
  ]
  if jobs == [(ALL, [])]:
    jobs = [(name, []) for name in NAMES if name not in NEED_FLAGS]
  for name, _ in jobs:
    if name not in NAMES:
      raise ValueError(
          f'no benchmark is called {name!r}; there are {", ".join(NAMES)}.'
      )
    if sum(name == other for other, _ in jobs) > 1:
      raise ValueError(f'{name} is given twice: both would write {name}.json.')
  return jobs


def summary(name: str, /) -> str:
  """The first line of a benchmark's docstring, without loading it."""
  path = os.path.join(os.path.dirname(__file__), f'{name}.py')
  with open(path, encoding='utf-8') as file:
    return ast.get_docstring(ast.parse(file.read())).splitlines()[0]


def section(name: str, own_flags: Sequence[str], output: str) -> str:
  """A benchmark's part of the tables: its command, and its tables.

  Args:
    name: The benchmark.
    own_flags: What it was given.
    output: What it printed; lines before its first table's title are left out.
  """
  lines = output.strip().splitlines()
  rows = [number for number, line in enumerate(lines) if line.startswith('|')]
  # The title stands above the first row, with an empty line between.
  first = max(rows[0] - 2, 0) if rows else 0
  command = shlex.join(['python', '-m', f'benchmarks.{name}', *own_flags])
  return '\n'.join(
      [f'## {name}', '', f'    {command}', '', *lines[first:], '', '']
  )


def _run(
    name: str, own_flags: Sequence[str], json_path: str
) -> str | None:
  """Output of a benchmark; None if it failed."""
  print(f'{name}: {summary(name)}', flush=True)
  done = subprocess.run(
      [
          sys.executable,
          '-m',
          f'benchmarks.{name}',
          *own_flags,
          f'--json={json_path}',
      ],
      check=False,
      stdout=subprocess.PIPE,
      text=True,
  )
  print(done.stdout, flush=True)
  return None if done.returncode else done.stdout


def _append(path: str, text: str) -> None:
  with open(path, 'a', encoding='utf-8') as file:
    file.write(text)


if __name__ == '__main__':
  launch.run(
      main,
      after_interrupt='what has ended is in the folder.',
      arguments=None if '--list' in sys.argv else "NAME (or 'all')",
  )
