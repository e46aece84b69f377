"""Each fault of the table in docs/reliability.md has the tests it names."""

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
_FILE = re.compile(r'`(\w+_test)`')
_TEST = re.compile(r'`(test_\w+)`')


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

  def test_every_row_names_tests_that_exist(self):
    for fault, row in _rows().items():
      self.assertNotEmpty(_FILE.findall(row['tests']), fault)
      for part in row['tests'].split(';'):
        (name,) = _FILE.findall(part)
        (path,) = (experiment_files.ROOT / 'tests').rglob(f'{name}.py')
        text = path.read_text(encoding='utf-8')
        for test in _TEST.findall(part):
          is_there = f'def {test}(' in text
          self.assertTrue(is_there, f'{fault}: {path.name} has no {test}')


if __name__ == '__main__':
  absltest.main()
