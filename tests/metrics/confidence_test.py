"""Tests of tff_asr.metrics.confidence."""

import math

from absl.testing import parameterized
import numpy as np

from tff_asr.metrics import confidence


class BootstrapTest(parameterized.TestCase):

  def test_by_hand(self):
    # 3 + 1 errors against 5 + 3, of 10 + 10 words: -4 / 20, as in every
    # resample of the speakers.
    np.testing.assert_allclose(
        confidence.difference([3, 1], [5, 3], [10, 10]), [-0.2, -0.2, -0.2]
    )
    # 6 of 20 words wrong; either speaker may be drawn twice.
    np.testing.assert_allclose(
        confidence.rate([1, 5], [10, 10]), [0.3, 0.1, 0.5]
    )
    self.assertEqual(confidence.rate([2], [8]), (0.25, 0.25, 0.25))

  def test_interval_is_that_of_the_normal_limit(self):
    # With many speakers of equal words the mean gap is nearly normal. The
    # tolerance is five times the Monte Carlo error of the quantiles.
    gaps = np.random.default_rng(0).normal(size=400)
    interval = confidence.difference(
        gaps, np.zeros(400), np.ones(400)
    )
    self.assertEqual(interval, confidence.rate(gaps, np.ones(400)))
    half = 1.96 * gaps.std() / np.sqrt(400)
    self.assertAlmostEqual(interval.low, gaps.mean() - half, delta=0.005)
    self.assertAlmostEqual(interval.high, gaps.mean() + half, delta=0.005)

  def test_pairing_removes_the_variance_between_speakers(self):
    hard = np.random.default_rng(0).integers(0, 50, size=30)
    paired = confidence.difference(hard + 1, hard, np.full(30, 100))
    self.assertAlmostEqual(paired.high - paired.low, 0.0)

  @parameterized.parameters(
      (([1], [1, 2], [3, 4]), 'found 1, 2, 2'),
      (([1], [1], [0]), 'at least one word'),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      confidence.difference(*arguments)


class ShareOfGainTest(parameterized.TestCase):

  def test_by_hand(self):
    # Speakers gain 1 of 4 and 3 of 4 errors: 4 of 8 together. A resample has
    # one of them twice or both.
    found = confidence.share_of_gain(
        [9, 7], baseline_errors=[10, 10], best_errors=[6, 6], words=[20, 20]
    )
    self.assertEqual(found, (0.5, 0.25, 0.75))
    # Its ratio is resampled as a whole: 1 of 2 and 6 of 12 are both half.
    found = confidence.share_of_gain(
        [9, 4], baseline_errors=[10, 10], best_errors=[8, -2], words=[20, 99]
    )
    self.assertEqual(found, (0.5, 0.5, 0.5))

  def test_worse_than_the_baseline_and_better_than_the_best(self):
    share = lambda errors: confidence.share_of_gain(
        errors, baseline_errors=[10, 10], best_errors=[6, 6], words=[20, 20]
    )
    self.assertEqual(share([12, 12]), (-0.5, -0.5, -0.5))
    self.assertEqual(share([4, 4]), (1.5, 1.5, 1.5))

  @parameterized.parameters(
      ([10, 10],), ([11, 11],),  # No gain, and a loss.
      ([4, 12],),  # A gain of 2 of 40 words, of 1 speaker in 2.
      ([4, 10],),  # Some resamples have no gain at all.
  )
  def test_no_share_if_the_whole_gain_may_be_0(self, best):
    self.assertIsNone(confidence.share_of_gain(
        [9, 9], baseline_errors=[10, 10], best_errors=best, words=[20, 20]
    ))

  def test_interval_is_that_of_the_delta_method(self):
    # Many speakers: the ratio of sums is nearly normal, with the variance of
    # part - share whole. The tolerance is a tenth of the width.
    generator = np.random.default_rng(0)
    whole = generator.normal(4, 2, size=400)
    part = 0.4 * whole + generator.normal(size=400)
    found = confidence.share_of_gain(
        20 - part,
        baseline_errors=np.full(400, 20.0),
        best_errors=20 - whole,
        words=np.full(400, 50),
    )
    share = part.sum() / whole.sum()
    half = 1.96 * np.std(part - share * whole) / np.sqrt(400) / whole.mean()
    self.assertAlmostEqual(found.estimate, share)
    self.assertAlmostEqual(found.low, share - half, delta=half / 5)
    self.assertAlmostEqual(found.high, share + half, delta=half / 5)

  def test_resamples_without_a_gain_widen_the_interval(self):
    # One of 6 speakers has all of the gain: a resample has none with the
    # probability (5 / 6)^6. Of 4 in 6: (1 / 3)^6 = .001, which is left.
    share = lambda best: confidence.share_of_gain(
        [9] * 6, baseline_errors=[10] * 6, best_errors=best, words=[20] * 6
    )
    self.assertIsNone(share([4, 10, 10, 10, 10, 10]))
    found = share([4, 4, 4, 4, 10, 10])
    self.assertAlmostEqual(found.estimate, 6 / 24)
    self.assertBetween(found.low, 6 / 37, 6 / 35)  # All have a gain of 6.
    self.assertGreaterEqual(found.high, 6 / 13)
    self.assertLess(found.high, math.inf)

  @parameterized.parameters(
      ([1], [1, 2], 'found 1, 2, 2, 2'), ([1, 2], [0, 0], 'at least one word'),
  )
  def test_bad_arguments_are_named(self, errors, words, message):
    with self.assertRaisesRegex(ValueError, message):
      confidence.share_of_gain(
          errors, baseline_errors=[1, 2], best_errors=[0, 0], words=words
      )


class ContrastTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # d = 20 / 20; residuals -1 and 1; variance 2 / 1 * 2 / 400 = .01;
      # Student's quantile of one degree of freedom: 12.706.
      ('plain', [9, 11], [10, 10], 0.0, 1.0, 0.1),
      ('seeds_add_their_variance', [9, 11], [10, 10], 0.03, 1.0, 0.2),
      # d = 12 / 40; residuals 6 - 3 and 6 - 9; variance 2 * 18 / 1600.
      (
          'long_speakers_count_more',
          [6, 6],
          [10, 30],
          0.0,
          0.3,
          math.sqrt(36) / 40,
      ),
      ('sure', [1, 2], [10, 20], 0.0, 0.1, 0.0),
  )
  def test_by_hand(self, errors, words, seed_variance, estimate, deviation):
    found = confidence.linear_contrast(errors, words, seed_variance=seed_variance)
    half = 12.706 * deviation
    np.testing.assert_allclose(
        found, (estimate, estimate - half, estimate + half), rtol=1e-4
    )

  def test_intervals_cover_the_truth_in_95_of_100_cases(self):
    generator = np.random.default_rng(1)
    num_covering, num_trials = 0, 2000
    for _ in range(num_trials):
      seeds = generator.normal(0, 0.02)
      words = generator.integers(50, 90, 10)
      gaps = words * (generator.normal(0.1, 0.03, 10) + seeds)
      found = confidence.linear_contrast(gaps, words, seed_variance=0.02**2)
      num_covering += found.low <= 0.1 <= found.high
    # Student's quantile is for the speakers alone: too wide, if anything.
    self.assertBetween(num_covering / num_trials, 0.94, 0.985)

  @parameterized.parameters(
      ([1], [10], 'at least two'),
      ([1, 2], [10], 'found 2 and 1 of 10 words'),
      ([1, 2], [0, 0], 'of 0 words'),
  )
  def test_bad_arguments(self, errors, words, message):
    with self.assertRaisesRegex(ValueError, message):
      confidence.linear_contrast(errors, words)

  def test_variances_are_pooled_by_degrees_of_freedom(self):
    # Squares 2 and 8 of one and two degrees; a sample of one says nothing.
    self.assertAlmostEqual(
        confidence.pooled_variance([[1, 3], [5], [0, 2, 4]]), 10 / 3
    )
    self.assertEqual(confidence.pooled_variance([[5], []]), 0.0)
