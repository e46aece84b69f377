"""Planted bugs: each patch in tools/mutants must make its tests fail.

    .venv/bin/python -m tools.mutate            # all of them, over half an hour
    .venv/bin/python -m tools.mutate 'delta|noise'     # names that match

A patch begins with the bug in words, a line "Tests: ID ..." with pytest's ids
of the tests that must fail, and an empty line; a unified diff of one file
follows.

Each bug is planted in a copy of the project, one at a time. In the end the
tests that failed run on the unchanged copy and must pass: otherwise their
failures prove nothing. A test that hangs fails. Errors, with exit code 1: a bug
that survives, tests that cannot run or take too long (a bug that breaks an
import proves nothing either), and a patch that does not apply.
"""

from collections.abc import Iterator, Sequence
import importlib
import multiprocessing
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple, NoReturn

# Read by TensorFlow's C++ part when it is loaded.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import pytest

from tools import layers

# Loaded once: test runs are forks of this process.
_LIBRARIES = ('tensorflow_federated', 'tensorflow_privacy', 'tensorflow_text')
_COPIED = (*layers.FOLDERS, 'docs', 'gin', 'pyproject.toml', 'requirements.txt')
_TIMEOUT_SEC = 1200
_TEST_TIMEOUT_SEC = 120
_HEADER = re.compile(r'(.+)\nTests: (.+)\n\n--- a/(.+)\n\+\+\+ b/\3\n')
_PASSED, _FAILED = 0, 1  # pytest's exit codes.
# A test whose subtest fails has no line of its own. pytest-timeout ends the
# process at once, after the name that -v prints.
_FIRST_FAILURE = re.compile(
    r'^(?:SUB)?FAILED.*? (\S+\.py::\S+)|^(\S+::\S+) \++ Timeout',
    re.MULTILINE,
)


class Mutant(NamedTuple):
  """A bug.

  Attributes:
    name: The bug in words.
    tests: pytest's ids of tests of the default suite.
    path: The file that it is planted in.
    patch: The patch file.
  """

  name: str
  tests: tuple[str, ...]
  path: str
  patch: pathlib.Path

  def apply(self, root: pathlib.Path) -> str:
    """The text of the file with the bug; the file itself stays as it is.

    Up to two lines of context may have changed, and lines may have moved.

    Raises:
      ValueError: The patch does not apply.
    """
    finished = subprocess.run(
        ['patch', '--fuzz=2', '--silent', '--force', '--reject-file=-',
         '--output=-', root / self.path, self.patch],
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
      raise ValueError(
          f'{self.patch.name} does not apply to {self.path}: plant the bug '
          'again.'
      )
    return finished.stdout


def load() -> Iterator[Mutant]:
  """Yields the planted bugs, by file name.

  Raises:
    ValueError: A patch has no name, tests and file.
  """
  for patch in sorted((layers.ROOT / 'tools' / 'mutants').glob('*.patch')):
    header = _HEADER.match(patch.read_text('utf-8'))
    if header is None:
      raise ValueError(
          f'{patch.name} must begin with the bug, "Tests: ID ...", an empty '
          'line, and the diff of one file.'
      )
    yield Mutant(header[1], tuple(header[2].split()), header[3], patch)


def main(patterns: Sequence[str]) -> int:
  """Plants the bugs with names that match all patterns; returns exit code."""
  chosen = [
      mutant
      for mutant in load()
      if all(re.search(pattern, mutant.name) for pattern in patterns)
  ]
  if not chosen:
    print(f'error: no mutant has a name like {patterns}.', file=sys.stderr)
    return 1
  for library in _LIBRARIES:
    importlib.import_module(library)
  problems, failed = [], set()
  with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder) / 'project'
    _copy_project(copy)
    for number, mutant in enumerate(chosen, 1):
      try:
        outcome = _plant(copy, mutant)
        failed.add(outcome)
      except (ValueError, TimeoutError) as error:
        outcome = str(error)
        problems.append(f'{mutant.name}: {error}')
      print(f'[{number}/{len(chosen)}] {mutant.name}: {outcome}', flush=True)
    if failed:
      code, output = _run(copy, sorted(failed))
      if code != _PASSED:
        problems.append(f'the tests fail without any bug, too:\n{output}')
  print(f'{len(chosen) - len(problems)} of {len(chosen)} caught.')
  for problem in problems:
    print(f'error: {problem}', file=sys.stderr)
  return 1 if problems else 0


def _copy_project(target: pathlib.Path) -> None:
  """Copies what tests need, without compiled files, which could be stale."""
  target.mkdir()
  for name in _COPIED:
    source = layers.ROOT / name
    if source.is_dir():
      ignored = shutil.ignore_patterns('__pycache__')
      shutil.copytree(source, target / name, ignore=ignored)
    else:
      shutil.copy(source, target / name)


def _plant(copy: pathlib.Path, mutant: Mutant) -> str:
  """Returns the first test that fails with the bug.

  Raises:
    ValueError: The patch does not apply, its tests pass, or they cannot run.
    TimeoutError: They take too long.
  """
  path = copy / mutant.path
  original = path.read_text('utf-8')
  path.write_text(mutant.apply(copy), 'utf-8')
  try:
    code, output = _run(copy, mutant.tests)
  finally:
    path.write_text(original, 'utf-8')
  if code == _PASSED:
    raise ValueError(f'SURVIVED {" ".join(mutant.tests)}')
  failure = first_failure(output)
  if code != _FAILED or failure is None:
    raise ValueError(f'the tests could not run:\n{output[-2000:]}')
  return failure


def first_failure(output: str) -> str | None:
  """pytest's id of the first test that failed, or hung."""
  found = _FIRST_FAILURE.search(output)
  return found and (found[1] or found[2])


def _run(copy: pathlib.Path, tests: Sequence[str]) -> tuple[int, str]:
  """Returns pytest's exit code and output, up to the first failure.

  Runs in a fork of this process, which has loaded the libraries but no module
  of the project: loading them takes longer than most of the tests.
  """
  with tempfile.TemporaryFile() as output:
    child = multiprocessing.get_context('fork').Process(
        target=_run_pytest, args=(copy, tests, output.fileno())
    )
    child.start()
    child.join(_TIMEOUT_SEC)
    if child.is_alive():
      child.kill()
      child.join()
      raise TimeoutError(f'the tests took more than {_TIMEOUT_SEC} s')
    output.seek(0)
    return child.exitcode, output.read().decode(errors='replace')


def _run_pytest(
    copy: pathlib.Path, tests: Sequence[str], descriptor: int
) -> NoReturn:
  """Runs tests of a copy of the project, and ends the process."""
  for stream in (1, 2):
    os.dup2(descriptor, stream)
  for name in list(sys.modules):
    if name.split('.')[0] in layers.FOLDERS:
      del sys.modules[name]
  os.chdir(copy)
  sys.path.insert(0, str(copy))
  os.environ['PYTHONPATH'] = str(copy)
  # A file is changed and restored within its time stamp's resolution.
  sys.dont_write_bytecode = True
  code = pytest.main([
      '-v', '-x', '-m', 'not slow', '--tb=no', '-p', 'no:cacheprovider',
      '-o', f'timeout={_TEST_TIMEOUT_SEC}', *tests,
  ])
  sys.stdout.flush()
  os._exit(int(code))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
