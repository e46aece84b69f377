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
