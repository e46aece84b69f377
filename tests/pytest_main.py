"""Runs the test file given as an argument under pytest; for Bazel."""

import os
import sys

import pytest


def _is_undeclared(folder: str) -> bool:
  """True if the project is there, but not what Bazel laid out for this test.

  The folder of this file as it is in the working copy (Python puts it first),
  and the working copy, which the virtual environment has on its path: modules
  of theirs would stand in for dependencies that BUILD does not name.
  """
  is_project = any(
      os.path.exists(os.path.join(folder, name))
      for name in ('pytest_main.py', 'tff_asr/checks.py')
  )
  return is_project and not folder.startswith(os.environ['TEST_SRCDIR'])


class _Selection:
  """Tells whether all tests of a file were left out."""

  def __init__(self):
    self.left_out = 0

  def pytest_deselected(self, items: list[pytest.Item]) -> None:
    self.left_out += len(items)


def main() -> int:
  """Runs pytest; returns its exit code, 0 where all tests are slow ones."""
  sys.path[:] = [folder for folder in sys.path if not _is_undeclared(folder)]
  # Bazel leaves it unset, and no other place may be written to.
  os.environ.setdefault('HOME', os.environ['TEST_TMPDIR'])
  selection = _Selection()
  arguments = ['-p', 'no:cacheprovider', '-m', 'not slow', *sys.argv[1:]]
  code = pytest.main(arguments, plugins=[selection])
  if code == pytest.ExitCode.NO_TESTS_COLLECTED and selection.left_out:
    return 0
  return code


if __name__ == '__main__':
  sys.exit(main())
