"""Measured epsilon: how well canaries differ from directions that never joined.

Andrew et al. 2023, https://arxiv.org/abs/2302.03098: a canary contributes a
random direction; directions of a high-dimensional space are nearly orthogonal,
so each canary is an experiment of its own and one run holds hundreds of them. A
canary's score is its inner product with what was released, in standard
deviations of the score of a direction that never joined, which is N(0, 1).
Scores of those that joined are fitted by N(m, s^2), and epsilon at delta is
that of telling the two normal distributions apart. For canaries that all join
alike s is 1; an s within three standard errors of 1 is taken for 1, since
epsilon hangs on s more than K canaries tell of it (2 % in s are 40 % at
epsilon 1).

Differences from the paper:
- The released vectors of all rounds are added before scoring. For a canary that
  joins every round, the sum holds all there is to know.
- Layers may be weighted by the inverse of their mean square, because noise and
  clips differ from layer to layer.
For one layer and one round the score is the paper's cosine.

The result is an estimate, not a bound. At full participation it comes out near
the exact epsilon. Under sampling or with few rounds it is lower, because this
adversary is weaker than the accounting's. An estimate above the accounted
epsilon shows that something is broken.
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
from scipy import special

from tff_asr import checks
from tff_asr.privacy import accounting

_MAX_EPSILON = 1e9
_NUM_BOOTSTRAPS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """An estimate of epsilon.

  Attributes:
    epsilon: The estimate.
    low: 2.5 % of bootstraps over canaries are below this.
    high: 2.5 % of bootstraps are above this.
    mean: m, the mean of the canaries' scores.
    stddev: s, their standard deviation; 1 if it does not clearly differ.
    num_canaries: Number of canaries.
    delta: The delta of this epsilon.
  """

  epsilon: float
  low: float
  high: float
  mean: float
  stddev: float
  num_canaries: int
  delta: float


def scores(
    released: Sequence[np.ndarray],
    canaries: Sequence[np.ndarray],
    *,
    weigh_layers: bool,
) -> np.ndarray:
  """Returns the scores of canaries; N(0, 1) for those that never joined.

  With released layers A_h of d_h elements and m_h = |A_h|^2 / d_h, the score of
  c is sum(w_h <c_h, A_h>) / sqrt(sum(w_h^2 |c_h|^2 m_h)). Weights w_h = 1 / m_h
  tell most while all layers are clipped. Weights of 1 show a layer that is not
  clipped, and so is far larger than the others.

  Args:
    released: Layers of the sum of what was released, float [d_h] each.
    canaries: The same layers for K canaries as they count in a sum (after
      clipping), float [K, d_h] each.
    weigh_layers: Whether w_h is 1 / m_h; else it is 1.

  Returns:
    float64 [K]. Layers of zeros do not count.
  """
  total = squares = 0.0
  for layer, directions in zip(released, canaries, strict=True):
    mean_square = float(np.mean(np.square(layer, dtype=np.float64)))
    if mean_square > 0:
      inner = directions @ layer.astype(directions.dtype)
      weight = 1 / mean_square if weigh_layers else 1.0
      total = total + weight * inner.astype(np.float64)
      squares = squares + weight**2 * mean_square * (
          np.einsum('kd,kd->k', directions, directions).astype(np.float64)
      )
  if np.ndim(total) == 0:
    raise ValueError(
        'nothing but zeros was released: there is nothing to score.'
    )
  return total / np.sqrt(squares)


def estimate(member_scores: np.ndarray, *, delta: float) -> Estimate:
  """Estimates epsilon from the scores of canaries that could join.

  Args:
    member_scores: float [K], K at least 10.
    delta: In (0, 1).

  Raises:
    ValueError: There are too few scores, or one is not finite.
  """
  accounting.check_delta(delta)
  values = np.asarray(member_scores, np.float64)
  if values.ndim != 1 or len(values) < 10:
    raise ValueError(
        f'at least 10 canaries are needed, found {values.shape} scores.'
    )
  if not np.all(np.isfinite(values)):
    raise ValueError('a score is not finite.')
  generator = np.random.default_rng(len(values))
  bootstraps = []
  for _ in range(_NUM_BOOTSTRAPS):
    drawn = generator.choice(values, len(values))
    bootstraps.append(
        gaussian_epsilon(
            mean=drawn.mean(), stddev=_stddev(drawn), delta=delta
        )
    )
  low, high = np.quantile(bootstraps, [0.025, 0.975], method='nearest')
  mean, stddev = float(values.mean()), _stddev(values)
  return Estimate(
      epsilon=gaussian_epsilon(mean=mean, stddev=stddev, delta=delta),
      low=float(low),
      high=float(high),
      mean=mean,
      stddev=stddev,
      num_canaries=len(values),
      delta=delta,
  )


def gaussian_epsilon(*, mean: float, stddev: float, delta: float) -> float:
  """Epsilon at delta of telling N(mean, stddev^2) from N(0, 1), either way.

  The smallest epsilon of at least 0 with P(S) <= e^epsilon Q(S) + delta for all
  sets S, and the same with P and Q exchanged; capped at 1e9.

  Args:
    mean: Any finite number.
    stddev: Positive.
    delta: In (0, 1).
  """
  checks.finite(mean=mean)
  checks.positive(stddev=stddev)
  accounting.check_delta(delta)
  return max(
      _one_way(mean, stddev, delta),
      # The same two, seen from the other: (x - mean) / stddev.
      _one_way(-mean / stddev, 1 / stddev, delta),
  )


def _stddev(values: np.ndarray) -> float:
  """s: 1 unless it is clearly another; never 0."""
  found = float(values.std(ddof=1))
  if abs(found - 1) <= 3 / math.sqrt(2 * len(values)):
    return 1.0
  return max(found, 1e-12)


def _one_way(mean: float, stddev: float, delta: float) -> float:
  """The smallest epsilon with P(S) - e^epsilon Q(S) <= delta for all S."""
  log_delta = math.log(delta)

  def excess(epsilon: float) -> float:
    return _log_divergence(mean, stddev, epsilon) - log_delta

  if excess(0.0) <= 0:
    return 0.0
  low, high = 0.0, 1.0
  while excess(high) > 0:
    low, high = high, 2 * high
    if high > _MAX_EPSILON:
      return _MAX_EPSILON
  while high - low > 1e-9 * high:
    middle = (low + high) / 2
    low, high = (middle, high) if excess(middle) > 0 else (low, middle)
  return high


def _log_divergence(mean: float, stddev: float, epsilon: float) -> float:
  """log of P(S) - e^epsilon Q(S), S where log P - log Q exceeds epsilon."""
  # log P - log Q - epsilon = a x^2 + b x + c.
  a = (1 - stddev**-2) / 2
  b = mean / stddev**2
  c = -((mean / stddev) ** 2) / 2 - math.log(stddev) - epsilon
  if abs(a) < 1e-12:
    if b == 0:
      return -math.inf if c <= 0 else 0.0
    edge = -c / b
    if b > 0:
      p, q = _log_above(edge, mean, stddev), _log_above(edge, 0.0, 1.0)
    else:
      p, q = _log_above(-edge, -mean, stddev), _log_above(-edge, 0.0, 1.0)
  else:
    discriminant = b**2 - 4 * a * c
    if discriminant <= 0:
      # a > 0 would mean P > Q everywhere, which only rounding can say.
      return -math.inf
    # Without cancellation: one root by the sum, the other by the product.
    half = -(b + math.copysign(math.sqrt(discriminant), b)) / 2
    roots = sorted((half / a, c / half if half else 0.0))
    if a > 0:  # outside the roots
      p, q = (
          np.logaddexp(
              _log_above(-roots[0], -m, s), _log_above(roots[1], m, s)
          )
          for m, s in ((mean, stddev), (0.0, 1.0))
      )
    else:  # between them
      p, q = (
          _log_between(roots[0], roots[1], m, s)
          for m, s in ((mean, stddev), (0.0, 1.0))
      )
  q = q + epsilon
  if q >= p:
    return -math.inf
  return float(p + np.log1p(-np.exp(q - p)))


def _log_above(edge: float, mean: float, stddev: float) -> float:
  """log of the probability of more than `edge`."""
  return float(special.log_ndtr((mean - edge) / stddev))


def _log_between(
    low: float, high: float, mean: float, stddev: float
) -> float:
  """log of the probability of an interval, taken in the nearer tail."""
  first, last = (low - mean) / stddev, (high - mean) / stddev
  if first > 0:
    first, last = -last, -first
  upper, lower = special.log_ndtr(last), special.log_ndtr(first)
  return float(upper + np.log1p(-np.exp(lower - upper)))
