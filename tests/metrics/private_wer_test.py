"""Tests of tff_asr.metrics.private_wer."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.metrics import person_errors
from tff_asr.metrics import private_wer

_VECTORS = private_wer.PersonVectors(max_words=100, min_words=5, num_bins=10)


def _encode(errors: int, words: int, vectors=_VECTORS) -> np.ndarray:
  counts = person_errors.PersonErrors(
      *(tf.constant(each, tf.int64) for each in (errors, words, 0, 0))
  )
  return vectors.encode(counts).numpy()


def _people(
    generator: np.random.Generator, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Errors and words of people whose rates differ."""
  words = generator.integers(20, 300, count)
  return generator.binomial(words, generator.beta(2, 4, count)), words


def _sum(errors: np.ndarray, words: np.ndarray) -> np.ndarray:
  """The sum of people's vectors: a NumPy twin of `encode`."""
  rate = np.minimum(errors / words, 1)
  weight = np.minimum(words, 100) / 100
  bins = np.minimum(errors * 10 // words, 9)
  return np.concatenate([
      [math.sqrt(0.4) * rate @ weight, math.sqrt(0.1) * weight.sum()],
      math.sqrt(0.5) * np.bincount(bins, minlength=11),
  ])


class EncodeTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # A rate of 1/4 in bin 2; over W words as at W.
      ('a_quarter', 30, 120, 0.25, 1.0, 2),
      # Half of W.
      ('few_words', 10, 50, 0.2, 0.5, 2),
      # More errors than words count as a rate of 1, which the last bin holds.
      ('insertions', 300, 100, 1.0, 1.0, 9),
      ('all_wrong', 80, 80, 1.0, 0.8, 9),
      ('none_wrong', 0, 200, 0.0, 1.0, 0),
      # The end of a bin belongs to the next one: 3/10 in float64 is below .3.
      ('at_an_end', 3, 10, 0.3, 0.1, 3),
      # Too few words: the bin after the last.
      ('four_words', 2, 4, 0.0, 0.0, 10),
      ('no_words', 3, 0, 0.0, 0.0, 10),
  )
  def test_by_hand(self, errors, words, rate, weight, rate_bin):
    expected = np.zeros(13)
    expected[0] = math.sqrt(0.4) * rate * weight
    expected[1] = math.sqrt(0.1) * weight
    expected[2 + rate_bin] = math.sqrt(0.5)
    np.testing.assert_allclose(
        _encode(errors, words), expected, rtol=1e-6, atol=1e-7
    )

  def test_no_person_has_a_norm_above_1(self):
    generator = np.random.default_rng(1)
    for _ in range(30):
      vectors = private_wer.PersonVectors(
          max_words=int(generator.integers(5, 200)),
          num_bins=int(generator.integers(1, 30)),
      )
      vector = _encode(*generator.integers(0, 400, 2), vectors)
      self.assertLen(vector, vectors.size)
      self.assertLessEqual(np.linalg.norm(vector.astype(float)), 1 + 1e-7)
    # Someone reaches it: the noise is not for more than is needed.
    self.assertAlmostEqual(np.linalg.norm(_encode(100, 100)), 1.0, places=6)

  def test_bad_settings_are_named(self):
    for name in ('max_words', 'min_words', 'num_bins'):
      with self.assertRaisesRegex(ValueError, name):
        private_wer.PersonVectors(**{name: 0})
    with self.assertRaisesRegex(ValueError, 'min_words 9 must be at most'):
      private_wer.PersonVectors(min_words=9, max_words=8)


class EstimateTest(parameterized.TestCase):

  def test_without_noise_the_figures_are_those_of_the_people(self):
    errors, words = _people(np.random.default_rng(2), 500)
    # NumPy's sum is that of the graph.
    np.testing.assert_allclose(
        sum(_encode(*each).astype(float) for each in zip(errors, words)),
        _sum(errors, words),
        rtol=1e-5,
    )
    found = _VECTORS.estimate(_sum(errors, words), stddev=1e-9, num_people=500)
    weight = np.minimum(words, 100)
    rate = errors / words
    np.testing.assert_allclose(
        found.word_error_rate, 3 * [rate @ weight / weight.sum()], rtol=1e-6
    )
    np.testing.assert_allclose(
        found.histogram, np.histogram(rate, np.arange(11) / 10)[0], atol=1e-6
    )
    self.assertAlmostEqual(found.num_people.estimate, 500, places=3)
    self.assertAlmostEqual(found.num_too_few_words.estimate, 0, places=3)
    for share, each in found.quantiles.items():
      exact = np.quantile(rate, share)
      # A bin is known, and no more.
      self.assertAlmostEqual(each.high - each.low, 0.1)
      self.assertBetween(exact, each.low - 1e-9, each.high + 1e-9)
      self.assertBetween(each.estimate, each.low, each.high)

  def test_quantiles_by_hand(self):
    # Of 10 people 4 in the first bin of two, 6 in the second: the share .2 is
    # in the middle of the first, .7 in the middle of the second.
    histogram = np.array([4.0, 6.0])
    for share, expected in ((0.2, 0.25), (0.4, 0.5), (0.7, 0.75), (1, 1)):
      self.assertAlmostEqual(
          private_wer._quantile(histogram, share), expected
      )
    self.assertTrue(math.isnan(private_wer._quantile(np.zeros(2), 0.5)))

  @parameterized.parameters(
      # Noise of deviation 1 on each of 3 bins, 100 people. T_1 weighs the first
      # bin by 1 - .1 and the others by -.1: the variance is .81 + 2 x .01, and
      # the margin 1.96 sqrt(.83) = 1.786. T_1 = n_1 - 10.
      (0.1, [8.3, 91.7, 0.0], 1.0, (0.0, 2 / 3)),
      (0.1, [8.1, 91.9, 0.0], 1.0, (1 / 3, 2 / 3)),
      # T_2 has the same margin of the share .9; T_2 = n_1 + n_2 - 90.
      (0.9, [0.0, 91.7, 8.3], 1.0, (1 / 3, 1.0)),
      (0.9, [0.0, 91.9, 8.1], 1.0, (1 / 3, 2 / 3)),
      # Where half of the people are drawn, the variance has .5 x 100 x .1 x .9
      # more: 1.96 sqrt(5.33) = 4.525.
      (0.1, [5.6, 94.4, 0.0], 0.5, (0.0, 2 / 3)),
      (0.1, [5.4, 94.6, 0.0], 0.5, (1 / 3, 2 / 3)),
  )
  def test_ends_of_quantiles_by_hand(self, share, noised, prob, expected):
    self.assertEqual(
        private_wer._quantile_interval(
            np.array(noised), share, stddev=1.0, sampling_prob=prob
        ),
        expected,
    )

  def test_95_of_100_intervals_contain_the_exact_figure(self):
    # Of 1,000 draws 922 to 973 are expected of a share of 95 % (4 standard
    # deviations); quantiles' intervals are wider, since they end with a bin.
    generator = np.random.default_rng(3)
    errors, words = _people(generator, 300)
    exact = _sum(errors, words)
    truth = _VECTORS.estimate(exact, stddev=1e-9, num_people=300)
    num_hits, quantile_hits, distances = 0, [], []
    for _ in range(1000):
      found = _VECTORS.estimate(
          exact + generator.normal(0, 8.0, len(exact)),
          stddev=8.0,
          num_people=300,
      )
      wer = found.word_error_rate
      num_hits += wer.low <= truth.word_error_rate.estimate <= wer.high
      quantile_hits.append([
          each.low <= np.quantile(errors / words, share) <= each.high
          for share, each in found.quantiles.items()
      ])
      distances.append(abs(wer.estimate - truth.word_error_rate.estimate))
    self.assertBetween(num_hits, 922, 973)
    self.assertGreater(np.min(np.mean(quantile_hits, axis=0)), 0.94)
    # Known before anything is released: at a rate of 1/2 and W words each.
    self.assertBetween(
        np.quantile(distances, 0.95)
        / _VECTORS.half_width(noise_multiplier=8.0, num_people=300),
        0.8,
        1.2,
    )

  def test_intervals_of_sampled_people_contain_the_draw(self):
    # As above, of people who are drawn with probability .3, and little noise.
    generator = np.random.default_rng(4)
    errors, words = _people(generator, 1000)
    truth = _VECTORS.estimate(
        _sum(errors, words), stddev=1e-9, num_people=1000
    ).word_error_rate.estimate
    num_hits = {0.3: 0, 1.0: 0}
    for _ in range(1000):
      drawn = generator.random(1000) < 0.3
      exact = _sum(errors[drawn], words[drawn])
      for prob in num_hits:
        low, high = _VECTORS.estimate(
            exact + generator.normal(0, 0.5, len(exact)),
            stddev=0.5,
            sampling_prob=prob,
        ).word_error_rate[1:]
        num_hits[prob] += low <= truth <= high
    self.assertBetween(num_hits[0.3], 915, 980)
    # Without the draw, they would be too narrow.
    self.assertLess(num_hits[1.0], 800)

  def test_counts_are_projected_to_the_nearest_ones(self):
    project = private_wer._at_least_0
    np.testing.assert_allclose(
        project(np.array([3.0, -1.0, 2.0]), total=4), [2.5, 0, 1.5]
    )
    np.testing.assert_allclose(
        project(np.array([3.0, 1.0]), total=6), [4, 2]
    )
    np.testing.assert_array_equal(project(np.array([-3.0, 1.0]), total=-2), 0)
    # No other counts of this sum are nearer.
    generator = np.random.default_rng(5)
    for _ in range(50):
      noised = generator.normal(2, 5, 6)
      found = project(noised, total=12)
      self.assertAlmostEqual(found.sum(), 12)
      self.assertGreaterEqual(found.min(), 0)
      other = 12 * generator.dirichlet(np.ones(6))
      self.assertLessEqual(
          np.linalg.norm(found - noised), np.linalg.norm(other - noised)
      )

  @parameterized.parameters(0.0, 4.0, -4.0)
  def test_where_no_words_are_left_any_rate_is_possible(self, words):
    noised = np.zeros(13)
    noised[:2] = 3.0, words
    found = _VECTORS.estimate(noised, stddev=5.0)
    self.assertTrue(math.isnan(found.word_error_rate.estimate))
    self.assertEqual(found.word_error_rate[1:], (0.0, 1.0))
    self.assertEqual(found.num_people.low, 0.0)
    for each in found.quantiles.values():
      self.assertEqual(each[1:], (0.0, 1.0))


if __name__ == '__main__':
  absltest.main()
