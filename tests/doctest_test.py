"""Runs the examples in the library's docstrings."""

import ast
import contextlib
import doctest
import importlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from tools import layers


def _modules_with_examples() -> list[str]:
  """Names of the modules of tff_asr with an example in a docstring."""
  found = []
  for path in sorted((layers.ROOT / 'tff_asr').rglob('*.py')):
    documented = [
        ast.get_docstring(node) or ''
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        if isinstance(
            node,
            (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
        )
    ]
    if any('>>> ' in text for text in documented):
      name = path.relative_to(layers.ROOT).with_suffix('')
      found.append('.'.join(name.parts))
  return found


class DoctestTest(parameterized.TestCase):

  @parameterized.parameters(_modules_with_examples())
  def test_examples_run_and_print_what_they_say(self, name):
    module = importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
      failed, tried = doctest.testmod(
          module,
          optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
      )
    self.assertGreater(tried, 0)
    self.assertEqual(failed, 0)


if __name__ == '__main__':
  absltest.main()
