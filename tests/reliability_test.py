"""The faults in docs/reliability.md, and the tests that the page names."""

import re

from absl.testing import absltest

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


def _rows() -> dict[str, re.Match[str]]:
  """The rows of the table by fault, without its head."""
  text = experiment_files.read('docs/reliability.md')
  lines = text.split('\n## Faults\n')[1].split('\n## ')[0].splitlines()
  rows = [row for row in map(_ROW.match, lines) if row is not None]
  return {row['fault']: row for row in rows if row['fault'] != 'fault'}


class FaultsTest(absltest.TestCase):

  def test_the_table_has_every_fault_and_what_its_user_sees(self):
    rows = _rows()
    self.assertContainsSubset(_FAULTS, rows)
    for fault, row in rows.items():
      self.assertRegex(row['seen'], r'\w', fault)

  def test_every_row_names_a_file_of_tests(self):
    for fault, row in _rows().items():
      self.assertRegex(row['tests'], r'^`\w+_test`', fault)

  def test_every_test_that_the_page_names_is_in_the_file_named_last(self):
    path = None
    for name in _NAME.finditer(experiment_files.read('docs/reliability.md')):
      if name['file']:
        (path,) = (experiment_files.ROOT / 'tests').rglob(f'{name["file"]}.py')
      else:
        text = path.read_text(encoding='utf-8')
        self.assertIn(f'def {name["test"]}(', text, path.name)
