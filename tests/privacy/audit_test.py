"""Tests of tff_asr.privacy.audit."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
import numpy as np
from scipy import optimize
import scipy.stats

from tff_asr.privacy import accounting
from tff_asr.privacy import audit

_DELTA = 1e-5


def _exact(noise_multiplier: float, delta: float = _DELTA) -> float:
  """Epsilon of a Gaussian, exact to PLD's grid."""
  return accounting.epsilon(
      dp_accounting.GaussianDpEvent(noise_multiplier),
      delta=delta,
      accountant='pld',
  )


def _unit(generator, count: int, size: int) -> np.ndarray:
  """Random directions, [count, size]."""
  drawn = generator.standard_normal((count, size))
  return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


class GaussianEpsilonTest(parameterized.TestCase):

  @parameterized.parameters(0.3, 0.7, 1.0, 3.0, 10.0)
  def test_equal_variances_are_the_gaussian_mechanism(self, noise_multiplier):
    found = audit.gaussian_epsilon(
        mean=1 / noise_multiplier, stddev=1.0, delta=_DELTA
    )
    self.assertAlmostEqual(found / _exact(noise_multiplier), 1, delta=2e-3)
    other_way = audit.gaussian_epsilon(
        mean=-1 / noise_multiplier, stddev=1.0, delta=_DELTA
    )
    self.assertAlmostEqual(found, other_way)

  @parameterized.parameters(
      (1.0, 1.3), (1.0, 0.7), (0.0, 2.0), (-2.0, 1.01), (3.0, 0.99)
  )
  def test_unequal_variances_by_numerical_integration(self, mean, stddev):
    delta = 1e-3
    x = np.linspace(-60, 60, 2_000_001)
    p = scipy.stats.norm(mean, stddev).pdf(x)
    q = scipy.stats.norm().pdf(x)
    found = audit.gaussian_epsilon(mean=mean, stddev=stddev, delta=delta)
    step = x[1] - x[0]
    divergences = [
        np.sum(np.maximum(one - math.exp(found) * other, 0)) * step
        for one, other in ((p, q), (q, p))
    ]
    self.assertAlmostEqual(max(divergences) / delta, 1, delta=1e-3)

  def test_none_and_all_of_it(self):
    found = lambda mean, stddev: audit.gaussian_epsilon(
        mean=mean, stddev=stddev, delta=_DELTA
    )
    self.assertEqual(found(0.0, 1.0), 0)
    # Without noise it is endless.
    self.assertEqual(found(1e8, 1.0), 1e9)
    self.assertGreater(found(0.0, 1e-12), 20)

  def test_bad_arguments_are_named(self):
    for function, arguments, message in (
        (audit.gaussian_epsilon, dict(mean=math.nan, stddev=1.0), 'mean'),
        (audit.gaussian_epsilon, dict(mean=0.0, stddev=0.0), 'stddev'),
        (
            audit.estimate,
            dict(member_scores=np.zeros(9)),
            'at least 10 canaries',
        ),
        (
            audit.estimate,
            dict(member_scores=np.full(10, math.nan)),
            'not finite',
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        function(**arguments, delta=0.1)
    with self.assertRaisesRegex(ValueError, 'delta'):
      audit.gaussian_epsilon(mean=0.0, stddev=1.0, delta=1.0)


class ScoresTest(parameterized.TestCase):

  def test_by_hand(self):
    # Layers (3, 4) and (2): mean squares 12.5 and 4. The canary (1, 0), (1):
    # (3 / 12.5 + 2 / 4) / sqrt(1 / 12.5 + 1 / 4).
    released = [np.array([3.0, 4.0]), np.array([2.0])]
    canaries = [np.array([[1.0, 0.0]]), np.array([[1.0]])]
    np.testing.assert_allclose(
        audit.scores(released, canaries, weigh_layers=True),
        [(0.24 + 0.5) / math.sqrt(0.08 + 0.25)],
    )
    # Without weights: (3 + 2) / sqrt(12.5 + 4).
    np.testing.assert_allclose(
        audit.scores(released, canaries, weigh_layers=False),
        [5 / math.sqrt(16.5)],
    )

  def test_a_layer_that_is_not_clipped_shows_without_weights(self):
    # 50 canaries of norm .01 in two layers, noise 10 times as large as they
    # are together in the first, and the second as they sent it.
    generator = np.random.default_rng(0)
    sent = [_unit(generator, 50, 2000) for _ in range(2)]
    released = [
        0.01 * sent[0].sum(axis=0) + 0.1 * generator.standard_normal(2000),
        1e6 * sent[1].sum(axis=0),
    ]
    counted = [0.01 * layer for layer in sent]
    score = lambda weigh_layers: np.mean(
        audit.scores(released, counted, weigh_layers=weigh_layers)
    )
    # sqrt(d / K) of the layer: a canary's own share of the sum of all.
    self.assertAlmostEqual(score(False), math.sqrt(2000 / 50), delta=0.5)
    self.assertLess(score(True), 1)

  @parameterized.parameters(True, False)
  def test_who_never_joined_scores_as_a_standard_normal(self, weigh_layers):
    # With layers of different sizes, scales and canary norms.
    generator = np.random.default_rng(0)
    sizes, scales = (1000, 3000), (0.01, 30.0)
    released = [
        scale * generator.standard_normal(size)
        for size, scale in zip(sizes, scales)
    ]
    canaries = [
        norm * generator.standard_normal((2000, size)) / math.sqrt(size)
        for size, norm in zip(sizes, (0.3, 2.0))
    ]
    found = audit.scores(released, canaries, weigh_layers=weigh_layers)
    # Seeded; a new one would fail 1 time in 1,000.
    self.assertGreater(scipy.stats.kstest(found, 'norm').pvalue, 1e-3)

  def test_zeros_cannot_be_scored_but_layers_of_them_do_not_count(self):
    zeros, ones = np.zeros(2), np.ones(3)
    canaries = [np.ones([4, 2]), np.ones([4, 3])]
    np.testing.assert_allclose(
        audit.scores([zeros, ones], canaries, weigh_layers=True),
        audit.scores([ones], canaries[1:], weigh_layers=True),
    )
    with self.assertRaisesRegex(ValueError, 'nothing but zeros'):
      audit.scores([zeros, zeros], [canaries[0]] * 2, weigh_layers=True)


class BareGaussianTest(absltest.TestCase):
  """The whole estimate, on releases whose epsilon is known."""

  def test_estimates_scatter_around_epsilon_and_show_what_is_broken(self):
    # 300 canaries in 40,000 dimensions, the mean of 4 releases (seeded). Each
    # estimate scatters by (4.3 + 1 / z) / sqrt(300) = .3, the mean by .15.
    noise = optimize.brentq(lambda z: _exact(z) - 5.0, 0.2, 30, xtol=1e-3)
    generator = np.random.default_rng(0)
    canaries = np.float32(_unit(generator, 300, 40_000))
    total = canaries.sum(axis=0)

    def estimate(noise: float, clip: float) -> audit.Estimate:
      drawn = noise * generator.standard_normal(40_000, np.float32)
      scores = audit.scores(
          [clip * total + drawn], [canaries], weigh_layers=True
      )
      return audit.estimate(scores, delta=_DELTA)

    estimates = [estimate(noise, 1.0) for _ in range(4)]
    mean = np.mean([one.epsilon for one in estimates])
    self.assertAlmostEqual(mean / 5.0, 1, delta=0.2)
    for one in estimates:
      self.assertLess(one.low, one.epsilon)
      self.assertLess(one.epsilon, one.high)
    # A tenth of the noise, or ten times the clip: far above.
    self.assertGreater(estimate(noise / 10, 1.0).low, 3 * 5.0)
    self.assertGreater(estimate(noise, 10.0).low, 3 * 5.0)


if __name__ == '__main__':
  absltest.main()
