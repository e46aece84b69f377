"""Strategies of correlated noise: Toeplitz matrices that noise is divided by.

Instead of the rounds' sums x, the mechanism makes C x + w private, w white
noise, C lower triangular with a diagonal of ones; what is released is x +
C^-1 w (Denisov et al. 2022, https://arxiv.org/abs/2202.08312). C^-1 takes back
in later rounds some of what earlier ones added, so the sum of all rounds, which
a model follows, has far less noise. C is a Toeplitz matrix with positive
coefficients that do not increase:

  BLT      buffered linear Toeplitz (https://arxiv.org/abs/2404.16706,
           https://arxiv.org/abs/2408.08868), with d buffers: c_0 = 1, c_i = sum
           over j of output_scale_j buf_decay_j^(i - 1) for i >= 1
  banded   c_0 = 1, c_i = output_scale_i up to the number of bands, then 0
           (https://arxiv.org/abs/2306.08153)

    >>> blt = optimize(num_rounds=100, min_sep=10)
    >>> blt.num_buffers
    3

docs/proofs.md ("Strategies of correlated noise") has their sensitivity and how
they are found.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Optional

import attrs
import dp_accounting
import numpy as np
from scipy import optimize as scipy_optimize
from scipy import signal

from tff_asr import checks

# Scales and decays are multiples of 2^-30: noise is computed with these
# integers, and the sensitivity is that of the rounded values.
FRACTION_BITS = 30
_ONE = 2**FRACTION_BITS
# The charge for rounding and the bound on buffers hold for this many rounds of
# a sequence (`ledger.Charges`).
MAX_ROUNDS = 2**14
_ERRORS = ('rms', 'max')
_MAX_BUFFERS = 8
_MAX_BANDS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toeplitz:
  """A BLT or banded strategy.

  Attributes:
    output_scale: In multiples of 2^-30, positive. A BLT's sum to at most 2^30;
      those of a banded strategy do not increase and are at most 2^30.
    buf_decay: In multiples of 2^-30, in [0, 2^30], one for each buffer; empty
      if the strategy is banded.
  """

  output_scale: tuple[int, ...]
  buf_decay: tuple[int, ...]

  def __post_init__(self):
    for name in ('output_scale', 'buf_decay'):
      # The dataclass is frozen; states give arrays, and JSON gives lists.
      object.__setattr__(
          self, name, tuple(int(value) for value in getattr(self, name))
      )
    scales, decays = self.output_scale, self.buf_decay
    if decays:
      most, holds = _MAX_BUFFERS, (
          len(scales) == len(decays)
          and sum(scales) <= _ONE
          and 0 <= min(decays) <= max(decays) <= _ONE
      )
    else:
      most, holds = _MAX_BANDS - 1, all(
          following <= scale
          for scale, following in zip((_ONE, *scales), scales)
      )
    if not (1 <= len(scales) <= most and min(scales) > 0 and holds):
      raise ValueError(
          f'a strategy has 1 to {most} positive scales, of sum at most '
          f'2^{FRACTION_BITS} with as many decays of at most that (BLT), or '
          f'not increasing from 2^{FRACTION_BITS} (banded), found {self}.'
      )

  @property
  def num_buffers(self) -> int:
    return len(self.output_scale)

  @property
  def num_bands(self) -> Optional[int]:
    """Rounds of C x that a round's sum affects; None for BLT: all later."""
    return None if self.buf_decay else len(self.output_scale) + 1

  def coefficients(self, num_rounds: int) -> np.ndarray:
    """The first column of C, float64 [num_rounds]."""
    scales, decays = (
        np.array(values, np.float64) / _ONE
        for values in (self.output_scale, self.buf_decay)
    )
    if not self.buf_decay:
      column = np.zeros(max(num_rounds, len(scales) + 1))
      column[: len(scales) + 1] = [1.0, *scales]
      return column[:num_rounds]
    # 0^0 is 1: a buffer with decay 0 acts in one round only.
    powers = decays ** np.arange(num_rounds - 1)[:, None]
    return np.concatenate([[1.0], powers @ scales])[:num_rounds]

  def inverse_coefficients(self, num_rounds: int) -> np.ndarray:
    """The first column of C^-1, float64 [num_rounds]."""
    one = np.zeros(num_rounds)
    one[0] = 1
    # C^-1 as the impulse response of the inverse filter.
    return signal.lfilter(*self._fraction[::-1], one)

  # Cached: the accounting asks for it in every round.
  @functools.lru_cache(maxsize=1024)
  def sensitivity(self, num_rounds: int, *, min_sep: int) -> float:
    """Returns the norm by which a client may move C x, in clips.

    Args:
      num_rounds: Rounds that there are, at most `MAX_ROUNDS`; 0 gives 0.
      min_sep: b, rounds from one participation to the next, at least 1.

    Raises:
      ValueError: There are more rounds.
    """
    checks.positive_int(min_sep=min_sep)
    check_num_rounds(num_rounds)
    return math.sqrt(
        _squared_sensitivity(self.coefficients(num_rounds), min_sep)
    )

  def covariance(self, num_rounds: int) -> np.ndarray:
    """Covariance of the rounds' noise C^-1 w over w's variance.

    Returns:
      float64 [num_rounds, num_rounds].
    """
    column = self.inverse_coefficients(num_rounds)
    places = np.subtract.outer(np.arange(num_rounds), np.arange(num_rounds))
    mixing = np.where(places >= 0, column[places], 0.0)
    return mixing @ mixing.T

  def largest_buffer(self) -> float:
    """The largest standard deviation of noise or a buffer, over that of w.

    Buffers of a banded strategy are the noise itself. With BLT, buffer j is x /
    (1 - decay_j x) of the noise, so x times the product of the other (1 -
    decay_k x), over C's numerator, of w.
    """
    numerator, _ = self._fraction
    norms = [np.linalg.norm(self.inverse_coefficients(MAX_ROUNDS))]
    if not self.buf_decay:
      return float(norms[0])
    one = np.zeros(MAX_ROUNDS)
    one[0] = 1
    decays = np.array(self.buf_decay) / _ONE
    for place in range(self.num_buffers):
      others = np.atleast_1d(np.poly(np.delete(decays, place)))
      norms.append(np.linalg.norm(signal.lfilter(others, numerator, one)))
    return float(max(norms))

  @property
  def _fraction(self) -> tuple[np.ndarray, np.ndarray]:
    """Numerator and denominator of C(x), by powers of x."""
    if not self.buf_decay:
      return np.array([_ONE, *self.output_scale]) / _ONE, np.ones(1)
    decays = np.array(self.buf_decay) / _ONE
    denominator = np.poly(decays)
    numerator = denominator.copy()
    for place, scale in enumerate(self.output_scale):
      others = np.poly(np.delete(decays, place))
      numerator[1:] += scale / _ONE * others
    return numerator, denominator


def check_num_rounds(num_rounds: int) -> None:
  """Raises ValueError for more rounds than one sequence may have."""
  if num_rounds > MAX_ROUNDS:
    raise ValueError(
        f'correlated noise takes at most {MAX_ROUNDS:,} rounds, found '
        f'{num_rounds:,}: end the run, and start another from its model.'
    )


@attrs.frozen(slots=False)  # TensorFlow traces its __init__.
class CorrelatedGaussianDpEvent(dp_accounting.DpEvent):
  """A round of x + C^-1 w, w Gaussian of z clips on each element.

  Rounds are not charged one by one: T rounds together cost one Gaussian of z
  over the strategy's sensitivity (`accounting.compose`). No accountant takes
  this event, so that it cannot be charged as T Gaussians.

  Attributes:
    noise_multiplier: z.
    min_sep: Rounds between participations that the strategy is made for and the
      cohorts must keep.
    output_scale: As in `Toeplitz`.
    buf_decay: As in `Toeplitz`.
  """

  noise_multiplier: float
  min_sep: int
  output_scale: Sequence[int] = attrs.field(
      eq=attrs.cmp_using(eq=np.array_equal)
  )
  buf_decay: Sequence[int] = attrs.field(
      eq=attrs.cmp_using(eq=np.array_equal)
  )

  @property
  def strategy(self) -> Toeplitz:
    return Toeplitz(output_scale=self.output_scale, buf_decay=self.buf_decay)


@functools.cache
def optimize(
    *,
    num_rounds: int,
    min_sep: int,
    num_buffers: int = 3,
    error: str = 'rms',
) -> Toeplitz:
  """Returns the BLT of the least error of prefix sums at equal privacy.

  Args:
    num_rounds: n, rounds that it is optimised for, in [2, `MAX_ROUNDS`]. Fewer
      or more are equally private.
    min_sep: b, at least 1; a client takes part ceil(n / b) times.
    num_buffers: d, in [1, 8]; 2 to 4 are within some percent of any number.
    error: 'rms' (over prefixes) or 'max'.

  Raises:
    ValueError: An argument is out of its range.
  """
  checks.positive_int(num_rounds=num_rounds, min_sep=min_sep)
  checks.in_range(2, MAX_ROUNDS, num_rounds=num_rounds)
  checks.in_range(1, _MAX_BUFFERS, num_buffers=num_buffers)
  checks.one_of(_ERRORS, error=error)

  def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
    # Complex-step derivatives: exact to rounding, since no difference is taken.
    # Row i has a step of i times 1e-30 in parameter i - 1, the first has none.
    steps = np.vstack([np.zeros(len(parameters)), np.eye(len(parameters))])
    found = _log_loss(
        parameters + 1e-30j * steps,
        num_rounds=num_rounds,
        min_sep=min_sep,
        error=error,
    )
    return float(found[0].real), found[1:].imag * 1e30

  # From 1 / n to 1 / 2 in equal ratios; the last gap is that to 1.
  ratio = math.log(num_rounds / 2) / max(1, 2 * num_buffers - 1) + 0.1
  start = np.log(np.append(np.full(2 * num_buffers - 1, ratio), 0.7))
  found = scipy_optimize.minimize(
      loss, start, jac=True, method='L-BFGS-B', bounds=[(-12, 4)] * len(start),
      options={'maxiter': 400, 'ftol': 1e-10, 'gtol': 1e-7},
  )
  decays, inverse_decays = _decays(found.x)
  scales = _scales(decays, inverse_decays)
  # Rounded down, the conditions of `Toeplitz` stay true.
  return Toeplitz(
      # At least one step, since scales must be positive.
      output_scale=tuple(max(1, math.floor(scale * _ONE)) for scale in scales),
      buf_decay=tuple(math.floor(decay * _ONE) for decay in decays),
  )


@functools.cache
def optimize_banded(
    *, num_rounds: int, num_bands: int, error: str = 'rms'
) -> Toeplitz:
  """Returns the banded strategy of the least error for its columns' norm.

  That norm is the sensitivity where clients take part at least num_bands rounds
  apart: no two of a client's rounds affect the same round of C x.

  Args:
    num_rounds: As in `optimize`.
    num_bands: In [2, 64], and at most num_rounds.
    error: 'rms' (over prefixes) or 'max'.

  Raises:
    ValueError: An argument is out of its range.
  """
  checks.positive_int(num_rounds=num_rounds, num_bands=num_bands)
  checks.in_range(2, MAX_ROUNDS, num_rounds=num_rounds)
  checks.in_range(2, min(_MAX_BANDS, num_rounds), num_bands=num_bands)
  checks.one_of(_ERRORS, error=error)
  # Of each squared sum of the inverse's coefficients.
  weights = np.ones(num_rounds)
  if error == 'rms':
    weights = np.arange(num_rounds, 0, -1) / num_rounds

  def loss(tail: np.ndarray) -> tuple[float, np.ndarray]:
    column = np.append(1.0, tail)
    sums = signal.lfilter([1.0], column, np.ones(num_rounds))
    # By coefficient i, sums change by -changes, i rounds later.
    changes = signal.lfilter([1.0], column, sums)
    squared_error, norm = weights @ sums**2, column @ column
    slopes = np.array([
        (weights * sums)[i:] @ changes[: num_rounds - i]
        for i in range(1, num_bands)
    ])
    return (
        math.log(squared_error * norm),
        2 * tail / norm - 2 * slopes / squared_error,
    )

  # Those of the square root of the matrix of prefix sums.
  places = np.arange(1, num_bands)
  found = scipy_optimize.minimize(
      loss, np.cumprod((2 * places - 1) / (2 * places)), jac=True,
      method='L-BFGS-B', bounds=[(1e-6, 1.0)] * len(places),
      options={'maxiter': 400, 'ftol': 1e-12, 'gtol': 1e-8},
  )
  # `Toeplitz` needs scales that do not increase; the bounds do not ensure it.
  scales = np.minimum.accumulate(np.minimum(found.x, 1.0))
  return Toeplitz(
      output_scale=tuple(math.floor(scale * _ONE) for scale in scales),
      buf_decay=(),
  )


def _squared_sensitivity(column: np.ndarray, min_sep: int) -> np.ndarray:
  """Squared norm of the sum of a Toeplitz matrix's columns 0, b, 2 b, ..."""
  num_rounds = column.shape[-1]
  min_sep = min(min_sep, max(1, num_rounds))  # Less padding.
  padding = [(0, 0)] * (column.ndim - 1) + [(0, -num_rounds % min_sep)]
  rows = np.pad(column, padding).reshape(
      [*column.shape[:-1], -1, min_sep]
  )
  total = np.cumsum(rows, axis=-2).reshape([*column.shape[:-1], -1])
  # Without the rounds that were only padding.
  return np.square(total[..., :num_rounds]).sum(axis=-1)


def _squared_error(inverse: np.ndarray, kind: str) -> np.ndarray:
  """Variance of prefix sums of noise with these inverse coefficients."""
  squares = np.square(np.cumsum(inverse, axis=-1))
  if kind == 'max':
    return squares.sum(axis=-1)
  num_rounds = inverse.shape[-1]
  return squares @ (np.arange(num_rounds, 0, -1) / num_rounds)


def _decays(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Decays of C and of C^-1, [..., d] each, of parameters [..., 2 d]."""
  logs = np.cumsum(np.exp(parameters[..., ::-1]), axis=-1)[..., ::-1]
  below_one = np.exp(-logs)
  return 1 - below_one[..., ::2], 1 - below_one[..., 1::2]


def _scales(decays: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Scales of the product of (1 - others x) / (1 - decays x), [..., d]."""
  gaps = decays[..., :, None] - decays[..., None, :]
  # The diagonal's zeros become factors of 1.
  gaps = gaps + np.eye(decays.shape[-1])
  return np.prod(decays[..., :, None] - others[..., None, :], axis=-1) / (
      np.prod(gaps, axis=-1)
  )


def _log_loss(
    parameters: np.ndarray, *, num_rounds: int, min_sep: int, error: str
) -> np.ndarray:
  """Logarithm of squared sensitivity times squared error, [...]."""
  decays, inverse_decays = _decays(parameters)
  columns = []
  for these, those in ((decays, inverse_decays), (inverse_decays, decays)):
    powers = np.exp(
        np.log(these)[..., None] * np.arange(num_rounds - 1)
    )
    tail = np.einsum('...d,...dn->...n', _scales(these, those), powers)
    ones = np.ones([*tail.shape[:-1], 1])
    columns.append(np.concatenate([ones, tail], axis=-1))
  column, inverse = columns
  return np.log(_squared_sensitivity(column, min_sep)) + np.log(
      _squared_error(inverse, error)
  )
