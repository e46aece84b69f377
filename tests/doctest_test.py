"""Runs the examples in the library's docstrings, and Python of the pages."""

import ast
import contextlib
import doctest
import importlib
import re
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from tools import layers


# Pages whose Python another test runs.
_RUN_ELSEWHERE = {
    'README.md': 'tests/bin/trained_programs_test.py',
    'docs/extending.md': 'tests/bin/examples_test.py',
}
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _python_of_pages() -> dict[str, list[str]]:
  """Blocks of Python of README, CONTRIBUTING and docs, by page."""
  found = {}
  for path in [*layers.ROOT.glob('*.md'), *layers.ROOT.glob('docs/*.md')]:
    blocks = re.findall(
        '```python\n(.*?)```', path.read_text(encoding='utf-8'), re.DOTALL
    )
    if blocks:
      found[path.relative_to(layers.ROOT).as_posix()] = blocks
  return found


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
      failed, tried = doctest.testmod(module, optionflags=_OPTIONS)
    self.assertGreater(tried, 0)
    self.assertEqual(failed, 0)

  def test_python_of_pages_runs_here_or_in_a_test_that_names_the_page(self):
    pages = _python_of_pages()
    self.assertContainsSubset(_RUN_ELSEWHERE, pages)
    runner = doctest.DocTestRunner(optionflags=_OPTIONS)
    for page, blocks in pages.items():
      if page in _RUN_ELSEWHERE:
        test = (layers.ROOT / _RUN_ELSEWHERE[page]).read_text('utf-8')
        self.assertIn(page.removeprefix('docs/'), test)
        # Examples with their output run here on every page.
        blocks = [block for block in blocks if '>>> ' in block]
      for block in blocks:
        examples = doctest.DocTestParser().get_doctest(
            block, {}, page, page, 0
        )
        self.assertNotEmpty(examples.examples, page)
        self.assertEqual(runner.run(examples).failed, 0, page)


if __name__ == '__main__':
  absltest.main()
