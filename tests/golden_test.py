"""Each experiment's whole configuration, against a text file in tests/golden.

That is what gin binds, and the defaults of the code where it binds nothing.
Whoever changes a gin file or a default sees in the diff of the golden files
what becomes of every experiment. To write them anew after an intended change:

    TFF_ASR_WRITE_GOLDENS=1 .venv/bin/python -m pytest tests/golden_test.py
"""

import difflib
import os

from absl.testing import absltest
from absl.testing import parameterized

from tests import experiments
from tff_asr import config

# BUILD data: //tests:golden_files
# BUILD tags: external local

_FOLDER = experiments.ROOT / 'tests' / 'golden' / 'experiments'
_WRITE = 'TFF_ASR_WRITE_GOLDENS'


def _difference(found: str, golden: str) -> str:
  """A line-by-line difference; empty if there is none."""
  return ''.join(
      difflib.unified_diff(
          golden.splitlines(keepends=True),
          found.splitlines(keepends=True),
          fromfile='golden',
          tofile='now',
      )
  )


class GoldenTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (experiments.name(path), path) for path in experiments.experiments()
  )
  def test_configuration_is_the_golden_one(self, path):
    experiments.bind_complete(path)
    found = config.text()
    found += f'\n# Defaults of the code:\n{experiments.defaults(found)}'
    golden = _FOLDER / f'{experiments.name(path)}.gin'
    if os.environ.get(_WRITE):
      golden.parent.mkdir(parents=True, exist_ok=True)
      golden.write_text(found, encoding='utf-8')
      self.skipTest(f'{golden.name} written, as {_WRITE} is set.')
    self.assertTrue(golden.exists(), f'{golden} is missing: set {_WRITE}=1.')
    difference = _difference(found, golden.read_text(encoding='utf-8'))
    if difference:
      self.fail(
          f'{path} configures something else than {golden.name}; if that is '
          f'intended, set {_WRITE}=1 and run this test once.\n{difference}'
      )

  def test_every_golden_file_is_of_an_experiment(self):
    self.assertCountEqual(
        [path.stem for path in _FOLDER.glob('*')],
        [experiments.name(path) for path in experiments.experiments()],
    )

  def test_a_difference_names_the_lines(self):
    difference = _difference('A = 1\nB = 3\n', 'A = 1\nB = 2\n')
    self.assertIn('\n-B = 2\n+B = 3\n', difference)
    self.assertNotIn('+A', difference)


if __name__ == '__main__':
  absltest.main()
