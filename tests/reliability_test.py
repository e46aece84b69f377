"""Faults and attacks in the pages, and the tests that the pages name."""

import re

from absl.testing import parameterized

from tests import experiment_files

# What the table must hold.
_FAULTS = (
    'full disk',
    'read-only folder',
    'flipped byte in a checkpoint',
    'truncated shard',
    'index of another corpus',
    'vanished Ray worker',
    'NaN client',
    'client with one sample of audio',
    'empty cohort',
)
_ROW = re.compile(
    r'^\| (?P<fault>[^|]+) \| (?P<seen>[^|]+) \| (?P<tests>.+) \|$'
)
# The name of a file of tests, or of a test of the file named last.
_NAME = re.compile(r'`(?:(?P<file>\w+_test)|(?P<test>test_\w+))`')


# The pages, their sections with a table, and what it must hold.
_TABLES = (
    ('docs/reliability.md', 'Faults', _FAULTS),
    ('docs/attacks.md', 'Attacks that were tried', ()),
)


def _rows(page: str, section: str) -> dict[str, re.Match[str]]:
  """The rows of a table by their first cells, without head and captions."""
  text = experiment_files.read(page)
  lines = text.split(f'\n## {section}\n')[1].split('\n## ')[0].splitlines()
  rows = [row for row in map(_ROW.match, lines) if row is not None]
  return {
      row['fault']: row for row in rows if row['tests'] not in ('test', '|')
  }


@parameterized.parameters(*_TABLES)
class FaultsTest(parameterized.TestCase):

  def test_the_table_has_every_fault_and_what_comes_of_it(
      self, page, section, faults
  ):
    rows = _rows(page, section)
    self.assertGreaterEqual(len(rows), 20)
    self.assertContainsSubset(faults, rows)
    for fault, row in rows.items():
      self.assertRegex(row['seen'], r'\w', fault)

  def test_every_row_names_a_file_of_tests(self, page, section, _):
    for fault, row in _rows(page, section).items():
      self.assertRegex(row['tests'], r'^`\w+_test`', fault)

  def test_every_test_that_the_page_names_is_in_the_file_named_last(
      self, page, *_
  ):
    paths = []
    for name in _NAME.finditer(experiment_files.read(page)):
      if name['file']:
        tests = experiment_files.ROOT / 'tests'
        paths = list(tests.rglob(f'{name["file"]}.py'))
        self.assertNotEmpty(paths, name['file'])
      else:
        self.assertTrue(
            any(f'def {name["test"]}(' in path.read_text() for path in paths),
            name['test'],
        )
