from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from tff_asr.metrics import bootstrap


class DifferenceTest(parameterized.TestCase):

  def test_estimate_by_hand(self):
    # 3 + 1 errors against 5 + 3, of 10 + 10 words: -4 / 20.
    interval = bootstrap.difference([3, 1], [5, 3], [10, 10])
    self.assertAlmostEqual(interval.estimate, -0.2)

  def test_equal_gaps_leave_no_doubt(self):
    # Every resample of speakers has the same rate: -2 / 10.
    interval = bootstrap.difference([1, 2, 3], [3, 4, 5], [10, 10, 10])
    self.assertAlmostEqual(interval.low, -0.2)
    self.assertAlmostEqual(interval.high, -0.2)

  def test_interval_is_that_of_the_normal_limit(self):
    # With many speakers of equal words the mean gap is nearly normal. The
    # tolerance is five times the Monte Carlo error of the quantiles.
    generator = np.random.default_rng(0)
    gaps = generator.normal(size=400)
    interval = bootstrap.difference(
        gaps, np.zeros(400), np.ones(400), num_samples=20_000
    )
    half = 1.96 * gaps.std() / np.sqrt(400)
    self.assertAlmostEqual(interval.low, gaps.mean() - half, delta=0.005)
    self.assertAlmostEqual(interval.high, gaps.mean() + half, delta=0.005)

  def test_pairing_removes_what_speakers_have_in_common(self):
    hard = np.random.default_rng(0).integers(0, 50, size=30)
    paired = bootstrap.difference(hard + 1, hard, np.full(30, 100))
    self.assertAlmostEqual(paired.high - paired.low, 0.0)

  def test_less_confidence_is_narrower(self):
    arguments = [1, 5, 2, 9], [2, 2, 2, 2], [10, 12, 9, 11]
    wide = bootstrap.difference(*arguments)
    narrow = bootstrap.difference(*arguments, confidence=0.5)
    self.assertGreater(narrow.low, wide.low)
    self.assertLess(narrow.high, wide.high)

  def test_equal_calls_give_equal_results(self):
    gaps = np.random.default_rng(0).normal(size=20)
    arguments = gaps, np.zeros(20), np.ones(20)
    first = bootstrap.difference(*arguments)
    self.assertEqual(first, bootstrap.difference(*arguments))
    self.assertNotEqual(first, bootstrap.difference(*arguments, seed=2))

  @parameterized.parameters(1, 7, 1000)
  def test_how_many_are_drawn_at_once_changes_nothing(self, at_once):
    gaps = np.random.default_rng(0).normal(size=20)
    arguments = gaps, np.zeros(20), np.arange(1, 21)
    expected = bootstrap.difference(*arguments, num_samples=999)
    with mock.patch.object(bootstrap, '_MAX_DRAWN', 20 * at_once):
      found = bootstrap.difference(*arguments, num_samples=999)
    self.assertEqual(found, expected)

  def test_rate_by_hand(self):
    # 6 of 20 words wrong; either speaker may be drawn twice.
    interval = bootstrap.rate([1, 5], [10, 10])
    self.assertAlmostEqual(interval.estimate, 0.3)
    self.assertAlmostEqual(interval.low, 0.1)
    self.assertAlmostEqual(interval.high, 0.5)
    self.assertEqual(bootstrap.rate([2], [8]), (0.25, 0.25, 0.25))

  def test_rate_takes_the_options_of_the_difference(self):
    arguments = [1, 5, 2, 9], [10, 12, 9, 11]
    options = dict(confidence=0.5, num_samples=100, seed=3)
    self.assertEqual(
        bootstrap.rate(*arguments, **options),
        bootstrap.difference(
            arguments[0], [0, 0, 0, 0], arguments[1], **options
        ),
    )
    with self.assertRaisesRegex(ValueError, 'at least one word'):
      bootstrap.rate([1], [0])

  @parameterized.parameters(
      (([1], [1, 2], [3, 4]), {}, 'found 1, 2, 2'),
      (([1], [1], [0]), {}, 'at least one word'),
      (([1], [1], [1]), {'confidence': 2}, 'confidence'),
      (([1], [1], [1]), {'num_samples': 0}, 'num_samples'),
  )
  def test_bad_arguments_are_named(self, arguments, options, message):
    with self.assertRaisesRegex(ValueError, message):
      bootstrap.difference(*arguments, **options)


if __name__ == '__main__':
  absltest.main()
