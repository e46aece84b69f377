"""Tests of tff_asr.privacy.discrete_gaussian."""

import math
from unittest import mock

from absl.testing import parameterized
import numpy as np
from scipy import special
from scipy import stats
import tensorflow as tf

from tff_asr.privacy import discrete_gaussian
from tff_asr.privacy import keys

_KEY = keys.from_seed(3)


def _draw(size, *, client=0, release=0, stddev=3.0, key=_KEY):
  return discrete_gaussian.draw(
      size,
      key=tf.constant(key),
      client=tf.constant(client, tf.int64),
      release=tf.constant(release, tf.int64),
      stddev=stddev,
  ).numpy()


def _p_value(draws: np.ndarray, stddev: float) -> float:
  """Chi-squared test of draws against N_Z(stddev^2), in some 40 cells."""
  most = math.ceil(12 * stddev)
  weights = np.exp(-(np.arange(-most, most + 1) ** 2) / (2 * stddev**2))
  width = max(1, round(stddev / 4))
  cells = np.clip(np.arange(-most, most + 1) // width, -16, 15) + 16
  expected = np.bincount(cells, weights, minlength=32) / weights.sum()
  found = np.bincount(
      np.clip(draws // width, -16, 15) + 16, minlength=32
  )
  return stats.chisquare(found, expected * len(draws)).pvalue


def _probabilities(stddev: float) -> np.ndarray:
  """P(k) of the sampler, for k from -22 s to 22 s."""
  whole = [0, *discrete_gaussian._Table(stddev).borders, 2**512]
  return np.array([(b - a) / 2**512 for a, b in zip(whole, whole[1:])])


def _sum_of(num_clients: int, stddev: float) -> np.ndarray:
  """Probabilities of a sum of clients' noise, around its middle."""
  one = _probabilities(stddev)
  total = np.ones(1)
  for _ in range(num_clients):
    total = np.convolve(total, one)
  return total


def _delta(probabilities: np.ndarray, shift: int, epsilon: float) -> float:
  """Hockey-stick divergence of noise and shifted noise."""
  pad = np.zeros(shift)
  moved = np.concatenate([pad, probabilities])
  still = np.concatenate([probabilities, pad])
  return float(np.maximum(moved - math.exp(epsilon) * still, 0).sum())


def _gaussian_delta(stddev: float, epsilon: float) -> float:
  """The same of the Gaussian mechanism of sensitivity 1."""
  a, b = 1 / (2 * stddev) - epsilon * stddev, -1 / (2 * stddev) - (
      epsilon * stddev
  )
  return special.ndtr(a) - math.exp(epsilon) * special.ndtr(b)


class DiscreteGaussianTest(parameterized.TestCase):

  @parameterized.parameters(2.0, 2.7, 40.0, 1000.25, 4096.0)
  def test_draws_have_the_distribution(self, stddev):
    # Fails by chance with a probability of 1e-4 a case, at other keys.
    draws = _draw(200_000, stddev=stddev)
    self.assertGreater(_p_value(draws, stddev), 1e-4)
    for wrong in (stddev * 2 / 3, stddev * 3 / 2, stddev * 1.05):
      self.assertLess(_p_value(draws, wrong), 1e-9)

  @parameterized.parameters(2.0, 5.5, 300.0)
  def test_probabilities_are_those_of_the_definition(self, stddev):
    most = math.ceil(22 * stddev)
    weights = np.exp(-(np.arange(-most, most + 1) ** 2) / (2 * stddev**2))
    np.testing.assert_allclose(
        _probabilities(stddev),
        weights / weights.sum(),
        rtol=1e-11,
        atol=1e-300,
    )

  @parameterized.parameters(1, 64, 65, 192)
  def test_blocks_do_not_change_draws(self, size):
    arguments = [
        np.asarray(each)
        for each in (keys.from_seed(1), 3, 2**40, 1000.25, size)
    ]
    (expected,) = discrete_gaussian._draw(*arguments)
    with mock.patch.object(discrete_gaussian, '_BLOCK', 64):
      (found,) = discrete_gaussian._draw(*arguments)
    np.testing.assert_array_equal(found, expected)
    self.assertLen(found, size)

  def test_the_first_bits_decide_as_all_do(self):
    table = discrete_gaussian._Table(7.5)
    generator = np.random.default_rng(1)
    words = generator.integers(0, 2**64, 3000, dtype=np.uint64)
    further = generator.integers(0, 2**64, [3000, 7], dtype=np.uint64)
    found, doubtful = table.find(words)
    self.assertEmpty(doubtful)
    for word, more, place in zip(words, further, found):
      self.assertEqual(table.find_exactly(word, more), place)

  def test_at_a_border_of_two_points_further_bits_decide(self):
    table = discrete_gaussian._Table(7.5)
    _, doubtful = table.find(table.first.copy())
    self.assertEqual(doubtful.tolist(), list(range(len(table.first))))
    for place in (100, 165, 200):
      border = table.borders[place]
      words = [
          border >> shift & (2**64 - 1) for shift in range(448, -1, -64)
      ]
      # All bits of the border: above it. One less: below.
      self.assertEqual(
          table.find_exactly(words[0], np.array(words[1:], np.uint64)),
          place + 1,
      )
      words[-1] -= 1
      self.assertEqual(
          table.find_exactly(words[0], np.array(words[1:], np.uint64)), place
      )

  def test_draws_near_a_border_take_further_bits(self):
    # With few first bits most draws are doubtful: the distribution stays.
    class Coarse(discrete_gaussian._Table):

      def find(self, words):
        found, _ = super().find(words)
        return found * 0, np.arange(len(words))

    table = Coarse(3.0)
    with self.subTest('all of them'):
      original = discrete_gaussian._table
      discrete_gaussian._table = lambda stddev: table
      try:
        draws = _draw(20_000)
      finally:
        discrete_gaussian._table = original
      self.assertGreater(_p_value(draws, 3.0), 1e-4)
      # The first 64 bits are those of before.
      np.testing.assert_array_equal(draws, _draw(20_000))

  def test_each_client_release_and_key_has_different_noise(self):
    first = _draw(64)
    np.testing.assert_array_equal(first, _draw(64))
    np.testing.assert_array_equal(first[:10], _draw(10))
    others = (
        _draw(64, client=1),
        _draw(64, client=2**40),
        _draw(64, client=-1),
        _draw(64, release=1),
        _draw(64, key=keys.from_seed(4)),
    )
    for other in others:
      self.assertGreater(np.mean(other != first), 0.5)
      self.assertLess(abs(np.corrcoef(other, first)[0, 1]), 0.5)

  @parameterized.parameters(0.45, 0.6, 0.8)
  def test_a_sum_is_as_close_to_one_noise_as_the_bound_says(self, stddev):
    # At noise so small that float64 shows the difference; two clients.
    most = math.ceil(8 * stddev)
    places = np.arange(-most, most + 1)
    one = np.exp(-(places**2) / (2 * stddev**2))
    both = np.convolve(one / one.sum(), one / one.sum())
    whole = np.arange(-2 * most, 2 * most + 1)
    joint = np.exp(-(whole**2) / (4 * stddev**2))
    middle = slice(most, -most)
    ratios = np.log(both / (joint / joint.sum()))[middle]
    bound = discrete_gaussian._log_factor(stddev**2 / 2)
    self.assertLessEqual(np.abs(ratios).max(), bound)
    self.assertGreater(np.abs(ratios).max(), bound / 5)

  @parameterized.product(num_clients=[1, 2, 5], shift=[1, 3])
  def test_the_privacy_loss_is_at_most_that_of_the_gaussian(
      self, num_clients, shift
  ):
    # One dimension, exactly: delta at each epsilon.
    stddev = 2.5
    noise = _sum_of(num_clients, stddev)
    charged = math.sqrt(
        num_clients * stddev**2 - discrete_gaussian.VARIANCE_OF_ROUNDING
    ) / shift
    for epsilon in (0.01, 0.1, 0.5, 1.0, 2.0):
      found = _delta(noise, shift, epsilon)
      bound = _gaussian_delta(charged, epsilon)
      self.assertLessEqual(found, bound * (1 + 1e-9))
      # Of noise with half the variance it is not.
      self.assertGreater(
          found, _gaussian_delta(math.sqrt(2) * charged + 2, epsilon)
      )

  def test_monte_carlo_of_the_privacy_loss(self):
    # What is drawn, not what should be: 4 clients, sensitivity 2.
    stddev, shift, num = 2.0, 2, 400_000
    total = sum(_draw(num, client=c, stddev=stddev) for c in range(4))
    weights = _sum_of(4, stddev)
    middle = len(weights) // 2
    losses = np.log(
        weights[total + middle] / weights[total + shift + middle]
    )
    charged = math.sqrt(4 * stddev**2 - 4) / shift
    for epsilon in (0.2, 0.5, 1.0):
      samples = np.maximum(1 - np.exp(epsilon - losses), 0)
      error = 5 * samples.std() / math.sqrt(num)
      self.assertLess(samples.mean() - error, _gaussian_delta(charged, epsilon))
      exact = _delta(weights, shift, epsilon)
      self.assertLess(abs(samples.mean() - exact), error)

  def test_charges_grow_as_noise_shrinks(self):
    charge = lambda stddev, clients: discrete_gaussian.sampler_error_epsilon(
        num_draws=1e9, num_elements=1e6, stddev=stddev, num_clients=clients
    )
    # 2 * 1e6 * (4 * 1.05 * exp(-pi^2 4)): a pair of clients.
    self.assertAlmostEqual(
        charge(2.0, 2),
        2e6 * 4.2 * math.exp(-4 * math.pi**2) + 1e9 * 2.0**-86,
        delta=1e-14,
    )
    self.assertGreater(charge(2.0, 1000), charge(2.0, 2))
    self.assertLess(charge(3.0, 1000), 1e-12)

  @parameterized.parameters(
      (dict(stddev=1.9), 'stddev'),
      (dict(stddev=5000.0), 'stddev'),
      (dict(size=0), 'size'),
  )
  def test_bad_arguments(self, arguments, name):
    with self.assertRaisesRegex(ValueError, name):
      _draw(**{'size': 4, **arguments})
