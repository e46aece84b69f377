"""Keeps the planted bugs in step with the code, without planting them."""

import ast
import pathlib

from absl.testing import absltest

from tools import mutants

# Resolved: Bazel runs a link to this file, beside what it depends on only.
_ROOT = pathlib.Path(__file__).resolve().parents[2]


class MutantsTest(absltest.TestCase):

  def test_each_can_be_planted_and_parses(self):
    for mutant in mutants.MUTANTS:
      text = (_ROOT / mutant.path).read_text(encoding='utf-8')
      for old, new in mutant.edits:
        self.assertEqual(text.count(old), 1, f'{mutant.name}: {old!r}')
        self.assertNotEqual(old, new, mutant.name)
        text = text.replace(old, new)
      ast.parse(text)

  def test_each_names_tests_that_exist(self):
    for mutant in mutants.MUTANTS:
      self.assertNotEmpty(mutant.tests, mutant.name)
      for test in mutant.tests:
        path, _, rest = test.partition('::')
        text = (_ROOT / path).read_text(encoding='utf-8')
        for name in filter(None, rest.split('::')):
          self.assertRegex(text, rf'(class|def) {name}\b', mutant.name)

  def test_the_documented_table_has_each_of_them(self):
    documented = (_ROOT / 'docs' / 'testing.md').read_text(encoding='utf-8')
    names = [mutant.name for mutant in mutants.MUTANTS]
    self.assertLen(set(names), len(names))
    rows = [
        line.split('|')[1].strip()
        for line in documented.split('<!-- mutants -->')[1]
        .split('<!-- end of mutants -->')[0]
        .strip()
        .splitlines()[2:]
    ]
    self.assertEqual(rows, names)


if __name__ == '__main__':
  absltest.main()
