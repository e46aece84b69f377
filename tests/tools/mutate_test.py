"""The planted bugs are kept in step with the code, without planting them."""

import ast

from absl.testing import absltest

from tools import layers
from tools import mutate


class MutantsTest(absltest.TestCase):

  def test_each_applies_and_parses(self):
    mutants = list(mutate.load())
    self.assertLen({mutant.name for mutant in mutants}, len(mutants))
    for mutant in mutants:
      original = (layers.ROOT / mutant.path).read_text('utf-8')
      with self.subTest(mutant.patch.name):
        planted = mutant.apply(layers.ROOT)
        self.assertNotEqual(
            ast.dump(ast.parse(planted)), ast.dump(ast.parse(original))
        )

  def test_each_names_tests_that_exist(self):
    for mutant in mutate.load():
      for test in mutant.tests:
        path, *names = test.split('::')
        text = (layers.ROOT / path).read_text('utf-8')
        for name in names:
          # Parameterized cases have a number behind the name.
          stem = name.rstrip('0123456789')
          self.assertRegex(
              text, rf'(class|def) ({name}|{stem})\b', mutant.patch.name
          )
