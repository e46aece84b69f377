"""Tests of benchmarks.private_wer."""

import json

import numpy as np

from benchmarks import private_wer as benchmark
from tests import cases
from tff_asr.metrics import private_wer

_VECTORS = private_wer.PersonVectors(max_words=10)


def _people(count: int) -> np.ndarray:
  """A quarter of ten words is wrong in the mean: 2 or 3 words."""
  return np.array([[2 + k % 2, 10] for k in range(count)])


class PrivateWerTest(cases.TestCase):

  def measure(self, count: int, noise_multiplier: float) -> benchmark.Found:
    return benchmark.measure(
        _people(count),
        vectors=_VECTORS,
        noise_multiplier=noise_multiplier,
        draws=200,
    )

  def test_counts_are_read_from_an_evaluation(self):
    path = self.path('test.json')
    kinds = dict(substitutions=1, deletions=2, insertions=3, words=20)
    with open(path, 'w', encoding='utf-8') as f:
      json.dump({'speakers': {'a': kinds, 'b': kinds | {'words': 7}}}, f)
    np.testing.assert_array_equal(
        benchmark.read_counts(path), [[6, 20], [6, 7]]
    )

  def test_the_error_by_hand(self):
    # N people of weight 1 and rate .25. To first order in noise of variance
    # z^2, (E - R V) / N varies by z sqrt(1 / .4 + .25^2 / .1) / N, which is
    # 10 * 1.768 / 1000 = .01768; 1.96 times that is .0346.
    found = self.measure(1000, 10.0)
    # Of 200 draws, the estimate of this quantile varies by some 7 %.
    self.assertBetween(found.error, 0.0346 * 0.7, 0.0346 * 1.3)
    # .95 +- 4 standard deviations of .0154.
    self.assertBetween(found.covered, 0.88, 1.0)
    # A half of the rates is .2, the other .3.
    self.assertGreater(found.median_covered, 0.88)

  def test_almost_no_noise_is_almost_exact(self):
    found = self.measure(40, 1e-4)
    self.assertLess(found.error, 1e-3)
    # Half of a bin, and the noise.
    self.assertLessEqual(found.median_error, 0.051)

  def test_the_shift_by_hand(self):
    # 5 of 5, 2 of 10, 4 of 20 and, left out, 1 of 4 words: 12 of 39 in all.
    counts = np.array([[5, 5], [2, 10], [4, 20], [1, 4]])
    # Weights 5, 10 and 10: 5 + 2 + 2 of 25 words.
    self.assertAlmostEqual(
        benchmark.shift(counts, _VECTORS), 9 / 25 - 12 / 39
    )
    # A rate above 1 counts as 1: 5 of 15.
    self.assertAlmostEqual(
        benchmark.shift(np.array([[7, 5], [0, 10]]), _VECTORS), 5 / 15 - 7 / 15
    )

  def test_a_row_for_each_number_and_epsilon(self):
    titles, *rows = benchmark.table(
        _people(60),
        numbers=[20, 60],
        epsilons=[1.0, 8.0],
        delta=1e-5,
        vectors=_VECTORS,
        draws=3,
    )
    self.assertEqual(titles[:3], ['people', 'epsilon', 'exact WER %'])
    self.assertEqual(
        [row[:2] for row in rows],
        [['20', '1'], ['60', '1'], ['20', '8'], ['60', '8']],
    )
    # z of epsilon 1 is about 3.7 for a sum: 1.96 * 3.7 * 2.24 / 20 = .8.
    self.assertEqual(rows[0][3], '0.00')
    self.assertGreater(float(rows[0][4]), 25)
    self.assertEqual(rows[0][5:], ['refused', '', '', ''])
    self.assertLess(float(rows[3][4]), 25)
    self.assertNotIn('', rows[3])

  def test_more_people_than_there_are(self):
    with self.assertRaisesRegex(ValueError, 'the evaluation has 60 people'):
      benchmark.table(
          _people(60), numbers=[61], epsilons=[1.0], delta=1e-5,
          vectors=_VECTORS, draws=3,
      )
