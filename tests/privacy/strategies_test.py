"""Tests of tff_asr.privacy.strategies."""

import itertools
import math

from absl.testing import parameterized
import numpy as np

from tff_asr.privacy import strategies

_HALF = strategies.Toeplitz(output_scale=(2**29,), buf_decay=(2**29,))


def _matrix(column):
  return np.array([
      [column[i - j] if i >= j else 0.0 for j in range(len(column))]
      for i in range(len(column))
  ])


def _error(strategy, num_rounds, *, kind='rms'):
  """Standard deviation of the noise on prefix sums, over that of w."""
  inverse = strategy.inverse_coefficients(num_rounds)
  return math.sqrt(strategies._squared_error(inverse, kind))


class BltTest(parameterized.TestCase):

  def test_coefficients_by_hand(self):
    # 1 + (x / 2) / (1 - x / 2) = 1 / (1 - x / 2), so the inverse is 1 - x / 2.
    np.testing.assert_allclose(
        _HALF.coefficients(5), [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]
    )
    np.testing.assert_allclose(
        _HALF.inverse_coefficients(5), [1, -1 / 2, 0, 0, 0], atol=1e-12
    )
    # Prefix sums of noise 1, -1/2: variances 1, 1.25, 1.5.
    self.assertAlmostEqual(_error(_HALF, 3, kind='max'), math.sqrt(1.5))
    self.assertAlmostEqual(_error(_HALF, 3), math.sqrt(1.25))
    # Rounds 0 and 2 of 4: (1, .5, 1.25, .625).
    self.assertAlmostEqual(
        _HALF.sensitivity(4, min_sep=2),
        math.sqrt(1 + 0.25 + 1.5625 + 0.390625),
    )
    self.assertEqual(_HALF.sensitivity(0, min_sep=2), 0)
    # The noise is 1, -1/2; the buffer 1, 1/2, 1/4, .. of it, so w alone.
    self.assertAlmostEqual(_HALF.largest_buffer(), math.sqrt(1.25))

  def test_banded_by_hand(self):
    banded = strategies.Toeplitz(output_scale=(2**29,), buf_decay=())
    self.assertEqual((banded.num_bands, banded.num_buffers), (2, 1))
    np.testing.assert_allclose(banded.coefficients(4), [1, 1 / 2, 0, 0])
    np.testing.assert_allclose(banded.coefficients(1), [1])
    np.testing.assert_allclose(
        banded.inverse_coefficients(4), [1, -1 / 2, 1 / 4, -1 / 8]
    )
    # Columns 0 and 2 have no row in common.
    self.assertAlmostEqual(
        banded.sensitivity(4, min_sep=2), math.sqrt(2.5)
    )
    # Of the noise itself: 1 + 1 / 4 + 1 / 16 + ..
    self.assertAlmostEqual(banded.largest_buffer(), math.sqrt(4 / 3))
    self.assertIsNone(_HALF.num_bands)

  @parameterized.parameters(1, 2, 3, 5)
  def test_sensitivity_is_that_of_the_worst_participation(self, separation):
    # All patterns of 10 rounds, updates of one direction.
    blt = strategies.optimize(num_rounds=10, min_sep=3, num_buffers=2)
    matrix = _matrix(blt.coefficients(10))
    worst = 0.0
    for pattern in itertools.product((0, 1), repeat=10):
      places = np.flatnonzero(pattern)
      if len(places) and np.all(np.diff(places) >= separation):
        worst = max(worst, np.linalg.norm(matrix @ pattern))
    self.assertAlmostEqual(
        blt.sensitivity(10, min_sep=separation), worst
    )

  def test_covariance_and_error_are_those_of_the_inverse_matrix(self):
    blt = strategies.optimize(num_rounds=30, min_sep=10)
    inverse = np.linalg.inv(_matrix(blt.coefficients(30)))
    np.testing.assert_allclose(
        blt.covariance(30), inverse @ inverse.T, atol=1e-9
    )
    prefixes = np.cumsum(inverse, axis=0)
    variances = np.square(prefixes).sum(axis=1)
    self.assertAlmostEqual(_error(blt, 30), math.sqrt(variances.mean()))
    self.assertAlmostEqual(
        _error(blt, 30, kind='max'), math.sqrt(variances.max())
    )

  @parameterized.parameters(
      dict(output_scale=(), buf_decay=()),
      dict(output_scale=(1, 2), buf_decay=(1,)),
      dict(output_scale=(0,), buf_decay=(1,)),
      # Coefficients may neither increase nor be negative.
      dict(output_scale=(2**30 + 1,), buf_decay=(1,)),
      dict(output_scale=(2**29, 2**29 + 1), buf_decay=(1, 2)),
      dict(output_scale=(1,), buf_decay=(2**30 + 1,)),
      dict(output_scale=(1,), buf_decay=(-1,)),
      dict(output_scale=(1, 2), buf_decay=()),
      dict(output_scale=(2**30 + 1,), buf_decay=()),
      dict(output_scale=(1,) * 64, buf_decay=()),
  )
  def test_no_strategy_without_the_theorem_s_conditions(self, **values):
    with self.assertRaisesRegex(ValueError, 'a strategy has'):
      strategies.Toeplitz(**values)

  def test_a_sequence_does_not_outlast_what_is_charged(self):
    with self.assertRaisesRegex(ValueError, 'at most 16,384 rounds'):
      _HALF.sensitivity(2**14 + 1, min_sep=5)


class OptimizeTest(parameterized.TestCase):

  # Sensitivity times error at 2,000 rounds by jax_privacy 2.0.0
  # (buffered_toeplitz.optimize, 3 buffers, no limit to participations).
  @parameterized.parameters(
      (100, 'rms', 21.3740), (100, 'max', 26.9281),
      (342, 'rms', 9.12677), (342, 'max', 10.6808),
      (1000, 'rms', 4.77383), (1000, 'max', 5.22571),
      (2000, 'rms', 3.27366), (2000, 'max', 3.49565),
  )
  def test_is_as_good_as_jax_privacy_s(self, separation, kind, expected):
    blt = strategies.optimize(
        num_rounds=2000, min_sep=separation, error=kind
    )
    found = blt.sensitivity(2000, min_sep=separation) * _error(
        blt, 2000, kind=kind
    )
    self.assertAlmostEqual(found / expected, 1, delta=1e-4)
    # Less than independent noise, and than no strategy of one buffer.
    participations = -(-2000 // separation)
    self.assertLess(found, 0.8 * math.sqrt(participations * 1000))

  # The same by jax_privacy's toeplitz.optimize_banded_toeplitz, for one
  # participation.
  @parameterized.parameters(
      (2, 'rms', 22.4551), (2, 'max', 31.7012),
      (4, 'rms', 16.0325), (4, 'max', 22.5532),
      (10, 'rms', 10.4685), (10, 'max', 14.5616),
      (32, 'rms', 6.48264), (32, 'max', 8.73312),
  )
  def test_bands_are_as_good_as_in_jax_privacy(self, num_bands, kind, expected):
    banded = strategies.optimize_banded(
        num_rounds=2000, num_bands=num_bands, error=kind
    )
    self.assertEqual(banded.num_bands, num_bands)
    found = banded.sensitivity(2000, min_sep=2000) * _error(
        banded, 2000, kind=kind
    )
    self.assertAlmostEqual(found / expected, 1, delta=1e-4)

  @parameterized.parameters(1, 65, 21)
  def test_impossible_bands_are_refused(self, num_bands):
    with self.assertRaisesRegex(ValueError, 'num_bands'):
      strategies.optimize_banded(num_rounds=20, num_bands=num_bands)

  @parameterized.parameters(
      (dict(num_rounds=1), 'num_rounds'),
      (dict(num_rounds=2**14 + 1), 'num_rounds'),
      (dict(min_sep=0), 'min_sep'),
      (dict(num_buffers=9), 'num_buffers'),
      (dict(error='mean'), 'error'),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    settings = dict(num_rounds=20, min_sep=5) | arguments
    with self.assertRaisesRegex(ValueError, message):
      strategies.optimize(**settings)
