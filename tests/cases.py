"""Test cases with a folder of their own."""

import functools
import os
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
