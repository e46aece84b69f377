"""Plants the bugs of tools/mutants.py one at a time; the tests must fail.

    .venv/bin/python -m tools.mutate            # all of them, over half an hour
    .venv/bin/python -m tools.mutate 'delta|noise'     # names that match

Works on a copy of the project: each bug is planted, its tests must fail, and
the file is restored. In the end the tests that failed run on the unchanged copy
and must pass, or their failures prove nothing. A bug that survives, tests that
cannot run (a bug that breaks an import proves nothing either) or run out of
time are errors: exit code 1. --write puts the bugs that were caught into the
table of docs/testing.md, and leaves its other rows as they are.
"""

from collections.abc import Mapping, Sequence
import multiprocessing
import os
import pathlib
import re
import shutil
import sys
import tempfile
from typing import NoReturn

# Read by TensorFlow's C++ part when it is loaded.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import pytest
import tensorflow_federated  # pylint: disable=unused-import
import tensorflow_privacy  # pylint: disable=unused-import
import tensorflow_text  # pylint: disable=unused-import

from tools import mutant as mutant_lib
from tools import mutants

_ROOT = pathlib.Path(__file__).parents[1]
_DOCS = _ROOT / 'docs' / 'testing.md'
_COPIED = (
    'benchmarks', 'bin', 'data_tools', 'gin', 'tests', 'tff_asr', 'tools',
    'pyproject.toml',
)
_TIMEOUT_SEC = 1200
_PASSED, _FAILED = 0, 1  # pytest's exit codes.
_FIRST_FAILURE = re.compile(r'^FAILED (\S+)', re.MULTILINE)
_BEGIN, _END = '<!-- mutants -->\n', '<!-- end of mutants -->\n'


def main(argv: Sequence[str]) -> int:
  """Runs the mutants that the arguments choose; returns the exit code."""
  only = [argument for argument in argv if argument != '--write']
  chosen = [
      mutant
      for mutant in mutants.MUTANTS
      if all(re.search(pattern, mutant.name) for pattern in only)
  ]
  if not chosen:
    print(f'error: no mutant has a name like {only}.', file=sys.stderr)
    return 1
  rows, problems, failed = {}, [], set()
  with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder) / 'project'
    _copy_project(copy)
    for number, mutant in enumerate(chosen, 1):
      test, problem = _plant(copy, mutant)
      print(
          f'[{number}/{len(chosen)}] {mutant.name}: {problem or test}',
          flush=True,
      )
      if problem:
        problems.append(f'{mutant.name}: {problem}')
      else:
        rows[mutant.name] = _row(mutant, test)
        failed.add(test)
    code, output = _run(copy, sorted(failed)) if failed else (_PASSED, '')
    if code != _PASSED:
      problems.append(f'the tests fail without any bug, too:\n{output}')
      rows = {}
  print(f'{len(rows)} of {len(chosen)} caught.')
  for problem in problems:
    print(f'error: {problem}', file=sys.stderr)
  if '--write' in argv:
    _write(rows)
  return 1 if problems else 0


def _row(mutant: mutant_lib.Mutant, test: str) -> str:
  """A line of the table."""
  path, _, name = test.partition('::')
  return (
      f'| {mutant.name} | `{mutant.path}` | `{pathlib.Path(path).name}`: '
      f'`{name.rpartition("::")[2]}` |\n'
  )


def _write(rows: Mapping[str, str]) -> None:
  """Puts lines of the table, by the bug's name, into the documentation."""
  text = _DOCS.read_text(encoding='utf-8')
  before, rest = text.split(_BEGIN)
  table, after = rest.split(_END)
  heading, rule, *lines = table.splitlines(keepends=True)
  known = {line.split('|')[1].strip(): line for line in lines} | rows
  ordered = [
      known[mutant.name]
      for mutant in mutants.MUTANTS
      if mutant.name in known
  ]
  table = ''.join([heading, rule, *ordered])
  _DOCS.write_text(f'{before}{_BEGIN}{table}{_END}{after}', encoding='utf-8')


def _copy_project(target: pathlib.Path) -> None:
  """What tests need, without compiled files, which could be stale."""
  target.mkdir()
  for name in _COPIED:
    source = _ROOT / name
    if source.is_dir():
      shutil.copytree(
          source, target / name, ignore=shutil.ignore_patterns('__pycache__')
      )
    else:
      shutil.copy(source, target / name)


def _plant(
    copy: pathlib.Path, mutant: mutant_lib.Mutant
) -> tuple[str, str]:
  """Returns the test that caught a mutant, or what went wrong."""
  path = copy / mutant.path
  original = path.read_text(encoding='utf-8')
  text = original
  for old, new in mutant.edits:
    if text.count(old) != 1:
      return '', f'{mutant.path} has {old!r} {text.count(old)} times, not once'
    text = text.replace(old, new)
  path.write_text(text, encoding='utf-8')
  try:
    code, output = _run(copy, mutant.tests)
  except TimeoutError:
    return '', f'the tests took more than {_TIMEOUT_SEC} s'
  finally:
    path.write_text(original, encoding='utf-8')
  if code == _PASSED:
    return '', f'SURVIVED {" ".join(mutant.tests)}'
  failure = _FIRST_FAILURE.search(output)
  if code != _FAILED or not failure:
    return '', f'the tests could not run:\n{output[-2000:]}'
  return failure[1], ''


def _run(copy: pathlib.Path, tests: Sequence[str]) -> tuple[int, str]:
  """pytest's exit code and output, up to the first failure.

  In a fork of this process, which has loaded the libraries and nothing of the
  project: to load them takes longer than most of the tests.
  """
  with tempfile.TemporaryFile() as output:
    child = multiprocessing.get_context('fork').Process(
        target=_run_pytest, args=(copy, list(tests), output.fileno())
    )
    child.start()
    child.join(_TIMEOUT_SEC)
    if child.is_alive():
      child.kill()
      child.join()
      raise TimeoutError
    output.seek(0)
    return child.exitcode, output.read().decode(errors='replace')


def _run_pytest(
    copy: pathlib.Path, tests: list[str], descriptor: int
) -> NoReturn:
  """Runs tests of a copy of the project, and ends the process."""
  for stream in (1, 2):
    os.dup2(descriptor, stream)
  for name in list(sys.modules):
    if name.split('.')[0] in ('tests', 'tools'):
      del sys.modules[name]
  os.chdir(copy)
  sys.path.insert(0, str(copy))
  os.environ['PYTHONPATH'] = str(copy)
  # A file is changed and restored within its time stamp's resolution.
  sys.dont_write_bytecode = True
  code = pytest.main([
      '-q', '-x', '-m', 'not slow', '--tb=no', '-p', 'no:cacheprovider', *tests,
  ])
  sys.stdout.flush()
  os._exit(int(code))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
