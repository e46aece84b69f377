"""The planted bugs apply to the present code; they are not planted here."""

import ast
import pathlib
import subprocess
import sys

from absl.testing import absltest

from tests import cases
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


class FirstFailureTest(cases.TestCase):

  def run_pytest(self, text: str) -> str:
    """The output of pytest on a file with a test that fails."""
    test = pathlib.Path(self.path('some_test.py'))
    test.write_text(text)
    finished = subprocess.run(
        [
            sys.executable, '-m', 'pytest', '-v', '-p', 'no:cacheprovider',
            f'--config-file={layers.ROOT}/pyproject.toml',
            f'--rootdir={self.root}', '--override-ini=timeout=1', test.name,
        ],
        cwd=self.root,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(finished.returncode, 1, finished.stdout)
    return finished.stdout

  def test_a_test_that_hangs_ends_and_is_named(self):
    output = self.run_pytest(
        'import threading\n\n'
        'def test_ok(): pass\n\n'
        'def test_hang(): threading.Event().wait()\n'
    )
    self.assertEqual(
        mutate.first_failure(output), 'some_test.py::test_hang'
    )
    # Where it hung.
    self.assertIn('line 5, in test_hang', output)

  def test_a_test_of_which_only_a_subtest_fails_is_named(self):
    # pytest counts such a test as passed, and names it behind the subtest.
    for arguments in ('', "'a b::c', i=1"):
      output = self.run_pytest(
          'import unittest\n\n'
          'class A(unittest.TestCase):\n'
          '  def test_ok(self): pass\n'
          '  def test_sub(self):\n'
          f'    with self.subTest({arguments}):\n'
          '      self.fail("x.py::y")\n'
      )
      self.assertEqual(
          mutate.first_failure(output), 'some_test.py::A::test_sub'
      )
