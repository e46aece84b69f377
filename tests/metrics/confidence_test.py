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
      ('plain', [9, 11], [10, 10], 1.0, 0.1),
      # d = 12 / 40; residuals 6 - 3 and 6 - 9; variance 2 * 18 / 1600.
      (
          'long_speakers_count_more',
          [6, 6],
          [10, 30],
          0.3,
          math.sqrt(36) / 40,
      ),
      ('sure', [1, 2], [10, 20], 0.1, 0.0),
  )
  def test_by_hand(self, errors, words, estimate, deviation):
    found = confidence.linear_contrast(errors, words)
    half = 12.706 * deviation
    np.testing.assert_allclose(
        found, (estimate, estimate - half, estimate + half), rtol=1e-4
    )

  # Of speakers .01 with one degree of freedom, as above. Student's quantiles of
  # 1, 1.6, 2 and very many degrees of freedom.
  @parameterized.parameters(
      ([(0.0, 3)], 0.01, 12.706),
      # (.01 + .03)^2 / (.01^2 / 1 + .03^2 / 1) = 1.6.
      ([(0.03, 1)], 0.04, 5.517),
      # .02^2 / (.01^2 / 1 + .01^2 / 1) = 2, of two variances of .005 and 1/2.
      ([(0.005, 0.5), (0.005, 0.5)], 0.02, 4.303),
      ([(100.0, 1e9)], 100.01, 1.960),
  )
  def test_variances_over_seeds_are_added(self, parts, variance, quantile):
    found = confidence.linear_contrast(
        [9, 11], [10, 10], seed_variances=parts
    )
    half = quantile * math.sqrt(variance)
    np.testing.assert_allclose(found, (1, 1 - half, 1 + half), rtol=5e-4)

  @parameterized.parameters(
      ([1], [10], 'at least two'),
      ([1, 2], [10], 'found 2 and 1 of 10 words'),
      ([1, 2], [0, 0], 'of 0 words'),
  )
  def test_bad_arguments(self, errors, words, message):
    with self.assertRaisesRegex(ValueError, message):
      confidence.linear_contrast(errors, words)


def _study(
    generator: np.random.Generator,
    *,
    num_speakers: int,
    num_seeds: int,
    by_speaker: float,
    shared: float,
    own: float,
    by_both: float,
    num_rows: int = 4,
) -> tuple[dict[tuple[str, int], np.ndarray], np.ndarray]:
  """Errors of runs and words, from effects of known standard deviations.

  The rates of the rows are .1, .12, .14 and so on.
  """
  words = generator.integers(50, 90, num_speakers)
  speakers = generator.normal(0, 0.05, num_speakers)
  rows = generator.normal(0, by_speaker, [num_rows, num_speakers])
  seeds = generator.normal(0, shared, num_seeds)
  return {
      (f'{row}', seed): words * (
          0.1 + 0.02 * row + speakers + rows[row] + seeds[seed]
          + generator.normal(0, own)
          + generator.normal(0, by_both, num_speakers)
      )
      for row in range(num_rows)
      for seed in range(num_seeds)
  }, words


class SeedVarianceTest(parameterized.TestCase):

  def test_by_hand(self):
    # Both speakers have equal rates in each run: nothing differs by speaker.
    # Rates by seed: .1, .3 of the first row, .2, .6 of the second; .5 alone.
    rates = {
        ('a', 1): 0.1, ('a', 2): 0.3, ('b', 1): 0.2, ('b', 2): 0.6,
        ('c', 1): 0.5,
    }
    found = confidence.seed_variance(
        {run: [10 * rate, 30 * rate] for run, rate in rates.items()}, [10, 30]
    )
    # Within rows: .02 and .08 of one degree each. Gaps of the seeds are .2 and
    # .4, .3 the mean: residuals of .05 in each of four runs, one degree.
    np.testing.assert_allclose(found, (0.04, 0.01, 0.05, 2, 1))
    # a minus b, each of two seeds: own (1/4) 4 = 1, shared 0.
    weights = {(row, seed): sign / 2 for row, sign in (('a', 1), ('b', -1))
               for seed in (1, 2)}
    np.testing.assert_allclose(found.of_sum(weights), [(0.01, 1), (0, 2)])
    # Seed 1 of the first row, minus seed 2 of the second: nothing is paired.
    np.testing.assert_allclose(
        found.of_sum({('a', 1): 1.0, ('b', 2): -1.0}), [(0.02, 1), (0.08, 2)]
    )

  def test_what_differs_by_speaker_is_left_to_the_speakers(self):
    # Seeds move one speaker up and the other one down: residuals of +-2 and
    # -+2 errors of 10 words each, and no difference of rates at all.
    found = confidence.seed_variance(
        {('a', 1): [1, 9], ('a', 2): [5, 5]}, [10, 10]
    )
    np.testing.assert_allclose(found[:3], 0, atol=1e-15)
    # Of one speaker alone: rates .1 and .3 apart from .2; 2 / (2 - 1) times
    # (2^2 + 2^2) / 20^2 a run, for two runs of one degree, is .08 of .02.
    found = confidence.seed_variance(
        {('a', 1): [1, 5], ('a', 2): [5, 5]}, [10, 10]
    )
    self.assertAlmostEqual(found.total, 0.02)
    self.assertAlmostEqual(found.own, 0.0)

  def test_a_row_alone_has_no_shared_effect(self):
    found = confidence.seed_variance(
        {('a', 1): [1, 3], ('a', 2): [2, 6], ('b', 1): [0, 0]}, [10, 30]
    )
    # Rates .1 and .2.
    np.testing.assert_allclose(found, (0, 0.005, 0.005, 1, 1))

  @parameterized.parameters(({},), ({('a', 1): [1, 2], ('b', 1): [1, 2]},))
  def test_without_two_seeds_nothing_is_known(self, errors):
    self.assertIsNone(confidence.seed_variance(errors, [10, 10]))

  def test_one_speaker_is_too_few(self):
    with self.assertRaisesRegex(ValueError, 'at least two speakers'):
      confidence.seed_variance({('a', 1): [1], ('a', 2): [2]}, [10])

  def test_known_variances_are_found(self):
    # Many speakers, rows and seeds: each within five standard errors.
    errors, words = _study(
        np.random.default_rng(1), num_speakers=400, num_seeds=60, num_rows=40,
        by_speaker=0.03, shared=0.02, own=0.01, by_both=0.1,
    )
    found = confidence.seed_variance(errors, words)
    self.assertAlmostEqual(found.own, 0.01**2, delta=0.1 * 0.01**2)
    self.assertAlmostEqual(found.shared, 0.02**2, delta=0.9 * 0.02**2)
    # By both it is .1^2 / 400, somewhat more for words that differ.
    self.assertAlmostEqual(
        found.total, 0.02**2 + 0.01**2 + 0.1**2 / 400, delta=0.9 * 0.02**2
    )

  def test_equals_a_twin_by_means_of_rows_and_seeds(self):
    errors, words = _study(
        np.random.default_rng(2), num_speakers=7, num_seeds=5,
        by_speaker=0.03, shared=0.02, own=0.03, by_both=0.03,
    )
    # In a table without gaps the fit is a row's mean plus a seed's, less the
    # whole. [rows, seeds, speakers].
    values = np.reshape([*errors.values()], [4, 5, 7])
    means = lambda *axes: values.mean(axis=axes, keepdims=True)
    def twin(left, degrees):
      rates = left.sum(axis=2) / words.sum()
      rest = left - rates[..., np.newaxis] * words
      total = np.sum(rates**2) / degrees
      return total, total - 7 / 6 * np.sum(rest**2) / words.sum()**2 / degrees
    total, within = twin(values - means(1), 4 * 4)
    _, own = twin(values - means(1) - means(0) + means(0, 1), 3 * 4)
    found = confidence.seed_variance(errors, words)
    self.assertGreater(own, 0)
    np.testing.assert_allclose(found[:3], (within - own, own, total))

  # Standard deviations of what differs: by speaker, by seed in all rows, by
  # run, by run and speaker. The standard error of a coverage is 1 %.
  @parameterized.named_parameters(
      ('speakers', 10, 5, 0.03, 0.01, 0.0, 0.0),
      ('seeds', 10, 5, 0.0, 0.01, 0.01, 0.0),
      ('runs_and_speakers', 10, 5, 0.0, 0.01, 0.0, 0.05),
      ('all', 10, 5, 0.02, 0.01, 0.007, 0.03),
      ('folds', 74, 3, 0.04, 0.004, 0.004, 0.06),
  )
  def test_intervals_cover_the_truth_in_95_of_100_cases(
      self, num_speakers, num_seeds, by_speaker, shared, own, by_both
  ):
    generator = np.random.default_rng(3)
    weights = {
        (row, seed): sign / num_seeds
        for row, sign in (('1', 1), ('0', -1))
        for seed in range(num_seeds)
    }
    num_covering, num_trials = 0, 500
    for _ in range(num_trials):
      errors, words = _study(
          generator, num_speakers=num_speakers, num_seeds=num_seeds,
          by_speaker=by_speaker, shared=shared, own=own, by_both=by_both,
      )
      found = confidence.linear_contrast(
          sum(weight * errors[run] for run, weight in weights.items()),
          words,
          seed_variances=confidence.seed_variance(errors, words).of_sum(
              weights
          ),
      )
      num_covering += found.low <= 0.02 <= found.high
    self.assertBetween(num_covering / num_trials, 0.92, 0.98)

  def test_the_speakers_part_is_that_of_a_paired_bootstrap(self):
    # 74 speakers, three seeds that vary by speaker alone; both systems are
    # resampled by the same speakers, with their runs paired by seed.
    errors, words = _study(
        np.random.default_rng(4), num_speakers=74, num_seeds=3,
        by_speaker=0.04, shared=0.0, own=0.0, by_both=0.05,
    )
    gaps = np.mean([errors['1', s] - errors['0', s] for s in range(3)], axis=0)
    found = confidence.linear_contrast(gaps, words)
    twin = confidence.difference(gaps, np.zeros(74), words)
    self.assertEqual(found.estimate, twin.estimate)
    self.assertAlmostEqual(
        (found.high - found.low) / (twin.high - twin.low), 1, delta=0.05
    )
