import json
import os
import tempfile

from absl.testing import absltest

from tff_asr.metrics import confidence
from tff_asr.reports import comparison


class ComparisonTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._root = self.enterContext(tempfile.TemporaryDirectory())

  def _run(self, name: str, errors: dict[str, int], *, epsilon=None) -> str:
    """A run's folder with ten words a speaker and these substitutions."""
    folder = os.path.join(self._root, name)
    os.makedirs(folder)
    results = {'seconds': 10.0}
    if epsilon is not None:
      results['privacy'] = {'epsilon': epsilon}
    speakers = {
        speaker: {
            'substitutions': count, 'deletions': 0, 'insertions': 0, 'words': 10
        }
        for speaker, count in errors.items()
    }
    rate = sum(errors.values()) / (10 * len(errors))
    test = {'word_error_rate': rate, 'speakers': speakers}
    for file, content in (('results.json', results), ('test.json', test)):
      with open(os.path.join(folder, file), 'w', encoding='utf-8') as f:
        json.dump(content, f)
    return folder

  def test_rows_by_hand(self):
    rows = comparison.compare({
        'seed': [self._run('seed', {'a': 8, 'b': 6})],
        'two seeds': [
            self._run('x', {'a': 4, 'b': 2}, epsilon=3.5),
            self._run('y', {'a': 6, 'b': 4}, epsilon='inf'),
        ],
    })
    seed, pair = rows
    self.assertAlmostEqual(seed.word_error_rate, 0.7)
    self.assertIsNone(seed.difference)
    self.assertIsNone(seed.spread)
    self.assertIsNone(seed.epsilon)
    # Speakers' mean errors are 5 and 3: 8 of 20 words.
    self.assertAlmostEqual(pair.word_error_rate, 0.4)
    # Rates .3 and .5: standard deviation .1 sqrt(2).
    self.assertAlmostEqual(pair.spread, 0.2 / 2**0.5)
    # Both speakers gain three words of ten: no doubt.
    self.assertAlmostEqual(pair.difference.estimate, -0.3)
    self.assertAlmostEqual(pair.difference.low, -0.3)
    self.assertEqual(pair.epsilon, float('inf'))

  def test_table_has_a_line_a_row(self):
    rows = comparison.compare({
        'seed': [self._run('seed', {'a': 8, 'b': 6})],
        'dp': [self._run('dp', {'a': 5, 'b': 3}, epsilon=12345.6)],
    })
    lines = comparison.to_markdown(rows).splitlines()
    self.assertLen(lines, 4)
    self.assertLen(set(map(len, lines)), 1)
    cells = [cell.strip() for cell in lines[3].strip('|').split('|')]
    self.assertEqual(
        cells, ['dp', '40.0', '-30.0 (-30.0 to -30.0)', '1.23e+04', '10']
    )

  def test_contrast_by_hand(self):
    seed = (self._run('seed', {'a': 8, 'b': 6}),)
    pair = (self._run('x', {'a': 4, 'b': 2}), self._run('y', {'a': 6, 'b': 4}))
    # The pair's mean errors are 5 and 3, minus twice 8 and 6: -11 and -9.
    terms = [comparison.Term(pair, 1, 0.01), comparison.Term(seed, -2, 0.005)]
    self.assertEqual(
        comparison.contrast(terms),
        confidence.contrast([-11, -9], [10, 10], seed_variance=0.01 + 4 * 0.005),
    )
    other = (self._run('other', {'b': 8}),)
    with self.assertRaisesRegex(ValueError, 'other was evaluated on other'):
      comparison.contrast([comparison.Term(seed, 1), comparison.Term(other, 1)])

  def test_other_speakers_are_refused(self):
    groups = {
        'seed': [self._run('seed', {'a': 8})],
        'other': [self._run('other', {'b': 8})],
    }
    with self.assertRaisesRegex(ValueError, 'other and seed were evaluated'):
      comparison.compare(groups)

  def test_a_run_without_evaluation_is_named(self):
    os.makedirs(os.path.join(self._root, 'empty'))
    with self.assertRaisesRegex(ValueError, 'empty has no test.json'):
      comparison.compare({'x': [os.path.join(self._root, 'empty')]})

  def test_a_row_without_runs_is_named(self):
    with self.assertRaisesRegex(ValueError, 'nothing has no run'):
      comparison.compare({'nothing': []})


if __name__ == '__main__':
  absltest.main()
