"""The tests that docs/reliability.md and docs/attacks.md name exist."""

import re

from absl.testing import parameterized

from tests import experiment_files

# The name of a file of tests, or of a test of the file named last.
_NAME = re.compile(r'`(?:(?P<file>\w+_test)|(?P<test>test_\w+))`')


class NamedTestsTest(parameterized.TestCase):

  @parameterized.parameters('docs/reliability.md', 'docs/attacks.md')
  def test_each_named_test_is_in_the_file_named_last(self, page):
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
