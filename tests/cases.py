"""Test cases with a temporary folder each, and listings of folders."""

import functools
import hashlib
import os
import pathlib
import tempfile

from absl.testing import parameterized


class TestCase(parameterized.TestCase):
  """A test with a folder, which is there from its first use to the end."""

  @functools.cached_property
  def root(self) -> str:
    return self.enterContext(tempfile.TemporaryDirectory())

  def path(self, *names: str) -> str:
    """A place in the folder."""
    return os.path.join(self.root, *names)


def digests(folder: str | os.PathLike[str]) -> dict[str, str]:
  """SHA-256 of a folder's files by name."""
  return {
      path.name: hashlib.sha256(path.read_bytes()).hexdigest()
      for path in pathlib.Path(folder).iterdir()
  }
