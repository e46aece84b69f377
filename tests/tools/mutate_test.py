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


class HangTest(cases.TestCase):

  def test_a_test_that_hangs_ends_and_is_named(self):
    test = pathlib.Path(self.path('hang_test.py'))
    test.write_text(
        'import threading\n\n'
        'def test_ok(): pass\n\n'
        'def test_hang(): threading.Event().wait()\n'
    )
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
    self.assertEqual(
        mutate.first_failure(finished.stdout), 'hang_test.py::test_hang'
    )
    # Where it hung.
    self.assertIn('line 5, in test_hang', finished.stdout)
