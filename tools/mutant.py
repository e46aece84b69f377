"""A planted bug."""

from typing import NamedTuple


class Mutant(NamedTuple):
  """A bug.

  Attributes:
    name: What is wrong, in words.
    path: The file that it is planted in.
    edits: Pairs of a text that the file has exactly once, and its replacement.
    tests: Test files, or pytest's ids of tests, of the default suite.
  """

  name: str
  path: str
  edits: tuple[tuple[str, str], ...]
  tests: tuple[str, ...]
