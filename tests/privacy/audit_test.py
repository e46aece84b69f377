"""Tests of tff_asr.privacy.audit."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import optimize
import scipy.stats

from tff_asr.privacy import accounting
from tff_asr.privacy import audit

_DELTA = 1e-5


def _exact(noise_multiplier: float, delta: float = _DELTA) -> float:
  """Epsilon of a Gaussian, exact to PLD's grid."""
  rounds = accounting.RoundGroup(
      sampling=accounting.Sampling(kind='full', cohort_size=1, population=1),
      noise_multiplier=noise_multiplier,
  )
  return accounting.epsilon([rounds], delta=delta, accountant='pld')


def _unit(generator, count: int, size: int) -> np.ndarray:
  """Random directions, [count, size]."""
  drawn = generator.standard_normal((count, size))
  return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def _scores(
    released: list[np.ndarray],
    directions: list[np.ndarray],
    *,
    norms: tuple[float, ...],
) -> tuple[np.ndarray, np.ndarray]:
  """Scores of unit directions [K, D] of layers, clipped to the norms."""
  pairs = [*zip(directions, released, strict=True)]
  return audit.scores(
      np.stack([rows @ layer for rows, layer in pairs], axis=-1),
      norms=np.array(norms),
      mean_squares=np.array([np.mean(layer**2) for layer in released]),
  )


class GaussianEpsilonTest(parameterized.TestCase):

  @parameterized.parameters(0.3, 0.7, 1.0, 3.0, 10.0)
  def test_it_is_that_of_the_gaussian_mechanism(self, noise_multiplier):
    found = audit.gaussian_epsilon(1 / noise_multiplier, delta=_DELTA)
    self.assertAlmostEqual(found / _exact(noise_multiplier), 1, delta=2e-3)

  def test_epsilon_is_0_without_a_shift_and_large_without_noise(self):
    self.assertEqual(audit.gaussian_epsilon(0.0, delta=_DELTA), 0)
    self.assertEqual(audit.gaussian_epsilon(1e-6, delta=_DELTA), 0)
    # Half of the shift's square, and some deviations more.
    found = audit.gaussian_epsilon(5e3, delta=_DELTA)
    self.assertBetween(found, 1.25e7, 1.26e7)

  def test_an_estimate_s_interval_is_that_of_the_mean(self):
    # Mean 1, deviation 1 / sqrt(.9) of ten: the margin is 1.96 / 3.
    found = audit.estimate_epsilon(np.array([0.0, 2.0] * 5), delta=_DELTA)
    self.assertEqual(found.mean, 1)
    for epsilon, shift in (
        (found.epsilon, 1.0),
        (found.low, 1 - 1.96 / 3),
        (found.high, 1 + 1.96 / 3),
    ):
      self.assertAlmostEqual(
          epsilon, audit.gaussian_epsilon(shift, delta=_DELTA)
      )
    # An interval that has 0 in it begins there.
    found = audit.estimate_epsilon(np.arange(-4.0, 5), delta=_DELTA)
    self.assertEqual(found.low, 0)


class ScoresTest(absltest.TestCase):

  def test_by_hand(self):
    # Layers (3, 4) and (2): mean squares 12.5 and 4. The canary (.5, 0), (2):
    # (1.5 / 12.5 + 4 / 4) / sqrt(.25 / 12.5 + 4 / 4), that root had it joined.
    found, means = _scores(
        [np.array([3.0, 4.0]), np.array([2.0])],
        [np.array([[1.0, 0.0]]), np.array([[1.0]])],
        norms=(0.5, 2.0),
    )
    np.testing.assert_allclose(found, [1.12 / math.sqrt(1.02)])
    np.testing.assert_allclose(means, [math.sqrt(1.02)])

  def test_only_canaries_that_never_joined_score_standard_normal(
      self,
  ):
    # With layers of different sizes, scales and canary norms.
    generator = np.random.default_rng(0)
    sizes, scales, norms = (1000, 3000), (0.05, 30.0), (0.03, 20.0)
    canaries = [_unit(generator, 2000, size) for size in sizes]
    released = [
        norm * directions[0] + scale * generator.standard_normal(size)
        for directions, size, scale, norm in zip(canaries, sizes, scales, norms)
    ]
    found, means = _scores(released, canaries, norms=norms)
    # Seeded; a new one would fail 1 time in 1,000.
    self.assertGreater(scipy.stats.kstest(found[1:], 'norm').pvalue, 1e-3)
    np.testing.assert_allclose(means, math.hypot(0.6, 2 / 3), rtol=0.05)
    self.assertLess(abs(found[0] - means[0]), 4)

  def test_layers_of_zeros_do_not_count_and_zeros_score_zero(self):
    zeros, ones = np.zeros(2), np.ones(3)
    canaries = [np.ones([4, 2]), np.ones([4, 3])]
    np.testing.assert_allclose(
        _scores([zeros, ones], canaries, norms=(0.5, 0.5)),
        _scores([ones], canaries[1:], norms=(0.5,)),
    )
    np.testing.assert_array_equal(
        _scores([zeros, zeros], [canaries[0]] * 2, norms=(0.5, 0.5)),
        np.zeros([2, 4]),
    )


def _sampling(kind: str, cohort_size: int) -> accounting.Sampling:
  return accounting.Sampling(
      kind=kind,
      cohort_size=cohort_size,
      population=10,
      min_sep=2 if kind == 'min_sep' else None,
  )


class LikelihoodRatiosTest(absltest.TestCase):

  def ratios(self, sampling, scores, means, covariance=None):
    return audit.likelihood_ratios(
        np.array(scores)[:, None],
        np.array(means)[:, None],
        sampling=sampling,
        covariance=np.eye(len(scores)) if covariance is None else covariance,
        places=np.array([4]),
    )[0]

  def test_against_densities(self):
    normal = scipy.stats.norm.pdf
    scores, means = [1.5, -0.3, 0.4], [0.7, 0.5, 2.0]
    each = [
        normal(score - mean) / normal(score)
        for score, mean in zip(scores, means)
    ]
    for sampling, expected in (
        (_sampling('full', 10), np.prod(each)),
        (_sampling('poisson', 3), np.prod([0.7 + 0.3 * one for one in each])),
        # 4 of the 5 in every other place, in rounds 0 and 2.
        (
            _sampling('min_sep', 4),
            (0.2 + 0.8 * each[0]) * (0.2 + 0.8 * each[2]),
        ),
    ):
      self.assertAlmostEqual(
          self.ratios(sampling, scores, means), math.log(expected)
      )

  def test_correlated_rounds_against_densities(self):
    # Noise variances 4 and 1, covariance -1.2: correlation -.6. All of the
    # group join, so the canary does in round 0, and in no other.
    covariance = np.array([[4.0, -1.2], [-1.2, 1.0]])
    density = scipy.stats.multivariate_normal(cov=[[1, -0.6], [-0.6, 1]]).pdf
    scores, means = np.array([1.5, -0.3]), np.array([0.7, 0.5])
    expected = density(scores - means * [1, 0]) / density(scores)
    self.assertAlmostEqual(
        self.ratios(_sampling('min_sep', 5), scores, means, covariance),
        math.log(expected),
    )


class BoundTest(parameterized.TestCase):

  @parameterized.parameters(
      # All of 10 guesses: 2^-10; at epsilon log(3) each is right 3 times in 4.
      (10, 10, 10, 0.0, 0.0, 2**-10),
      (10, 10, 10, math.log(3), 0.0, 0.75**10),
      # 3 of 4 or more at 1/2: 5/16. Of abstentions nothing comes without delta.
      (20, 4, 3, 0.0, 0.0, 5 / 16),
      # f(2) = 1/4, f(1) - f(2) = 1/2, (f(0) - f(2)) / 2 = 3/8:
      # 1/4 + 2 * 5 * .01 / 2.
      (5, 2, 2, 0.0, 0.01, 0.3),
      # f(3) = 1/8, then (3/8, 6/8, 7/8) / (1, 2, 3): 1/8 + 2 * 5 * .01 * 3/8.
      (5, 3, 3, 0.0, 0.01, 0.1625),
      (5, 3, 0, 1.0, 0.01, 1.0),
      (5, 5, 5, math.inf, 0.0, 1.0),
  )
  def test_p_values_by_hand(self, m, r, v, epsilon, delta, expected):
    found = audit.p_value(
        audit.CanaryGuesses(m, r, v), epsilon=epsilon, delta=delta
    )
    self.assertAlmostEqual(found, expected)

  def test_bound_by_hand(self):
    # All of 100 guesses right, p^100 = .05: epsilon = log(p / (1 - p)).
    right = 0.05**0.01
    for confidence, expected in (
        (0.95, math.log(right / (1 - right))), (1 - 2.0**-101, 0.0)
    ):
      found = audit.refuted_epsilon(
          audit.CanaryGuesses(100, 100, 100), delta=1e-12, confidence=confidence
      )
      self.assertAlmostEqual(found, expected, places=5)

  @parameterized.parameters(0.5, 2.0, 4.0)
  def test_randomized_response_is_bounded_rightly_and_nearly_tightly(
      self, epsilon
  ):
    # Each of 2,000 coins is told rightly with the probability that epsilon
    # allows, in 2,000 runs: a bound for each number of right answers.
    m, confidence = 2000, 0.95
    right = scipy.special.expit(epsilon)
    correct, counts = np.unique(
        np.random.default_rng(0).binomial(m, right, 2000), return_counts=True
    )
    bounds = np.array([
        audit.refuted_epsilon(
            audit.CanaryGuesses(
                m, m, int(v)
            ), delta=1e-12, confidence=confidence
        )
        for v in correct
    ])
    wrong = counts[bounds > epsilon].sum() / 2000
    # The level, less the steps of a binomial; sqrt(.05 * .95 / 2000) = .005.
    self.assertBetween(wrong, 0.02, 0.065)
    # A standard deviation of the share of right ones, as epsilon.
    step = 1 / math.sqrt(m * right * (1 - right))
    self.assertAlmostEqual(
        np.average(bounds, weights=counts), epsilon - 1.645 * step,
        delta=0.5 * step,
    )

  def test_a_bound_takes_the_surest_guesses_and_pays_for_the_choice(self):
    # 80 canaries: the 20 highest are in, the others are so at random.
    included = np.random.default_rng(0).random(80) < 0.5
    ratios = np.zeros(80)
    ratios[np.flatnonzero(included)[-20:]] = 1.0
    bound, guesses = audit.epsilon_lower_bound(ratios, included, delta=1e-9)
    self.assertEqual((guesses.num_guesses, guesses.num_correct), (20, 20))
    # 80 gives k = 40, 20, 10: six ways.
    p = audit.p_value(guesses, epsilon=bound, delta=1e-9)
    self.assertAlmostEqual(p, 0.05 / 6)

  def test_releases_unrelated_to_the_coins_give_no_bound(self):
    # A bound above 0 is wrong, and comes in 5 % of runs at most.
    generator = np.random.default_rng(0)
    wrong = sum(
        audit.epsilon_lower_bound(
            generator.standard_normal(100),
            generator.random(100) < 0.5,
            delta=1e-5,
        )[0] > 0
        for _ in range(200)
    )
    self.assertLess(wrong, 0.05 * 200 + 1)


class BareGaussianTest(absltest.TestCase):
  """The whole estimate, on releases of known epsilon."""

  def test_estimates_scatter_around_epsilon_and_show_what_is_broken(self):
    # 300 canaries in 40,000 dimensions, the mean of 4 releases (seeded). Each
    # estimate scatters by (4.3 + 1 / z) / sqrt(300) = .3, the mean by .15.
    noise = optimize.brentq(lambda z: _exact(z) - 5.0, 0.2, 30, xtol=1e-3)
    generator = np.random.default_rng(0)
    canaries = np.float32(_unit(generator, 300, 40_000))
    total = canaries.sum(axis=0)

    def estimate(noise: float, clip: float) -> audit.Estimate:
      drawn = noise * generator.standard_normal(40_000, np.float32)
      scores, _ = _scores([clip * total + drawn], [canaries], norms=(1.0,))
      return audit.estimate_epsilon(scores, delta=_DELTA)

    estimates = [estimate(noise, 1.0) for _ in range(4)]
    mean = np.mean([one.epsilon for one in estimates])
    self.assertAlmostEqual(mean / 5.0, 1, delta=0.2)
    for one in estimates:
      self.assertLess(one.low, one.epsilon)
      self.assertLess(one.epsilon, one.high)
    # A tenth of the noise, or ten times the clip: far above.
    self.assertGreater(estimate(noise / 10, 1.0).low, 3 * 5.0)
    self.assertGreater(estimate(noise, 10.0).low, 3 * 5.0)
