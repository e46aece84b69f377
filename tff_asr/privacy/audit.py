"""Epsilon as canaries measure it: an estimate, and a bound with a confidence.

A canary contributes a random direction. Directions of a high-dimensional space
are nearly orthogonal, so each canary is a separate experiment, and one run
holds hundreds of them. A coin decides for each whether it may join or is held
out. A canary's score in a round is its inner product with the release, in
standard deviations of the score of a direction that never joined.

`estimate` fits the scores of canaries that could join (Andrew et al. 2023,
https://arxiv.org/abs/2302.03098). It is not a bound: it is near the exact
epsilon at full participation, and lower under sampling or with few rounds.
`lower_bound` guesses which canaries could join and refutes every epsilon that
allows fewer right guesses, at a confidence (Steinke, Nasr, Jagielski 2023,
https://arxiv.org/abs/2305.08846, Theorem 5.2). It is far below epsilon: m
canaries cannot show more than about log(m / log(1 / (1 - confidence))).
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy import special
from scipy import stats

from tff_asr import checks
from tff_asr.privacy import accounting

_MAX_EPSILON = 1e9
_NUM_BOOTSTRAPS = 200
# The fewest coins that are guessed.
_MIN_GUESSES = 10


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
  """A lower bound on epsilon, which one run shows.

  Attributes:
    epsilon: The run is not (epsilon, delta)-DP for any smaller one; 0: nothing
      is shown.
    confidence: That is wrong for at most 1 - confidence of runs.
    delta: The delta of this epsilon.
    num_canaries: Coins that there were to guess, m.
    num_guesses: Coins that were guessed, r.
    num_correct: Guesses that were right, v.
  """

  epsilon: float
  confidence: float
  delta: float
  num_canaries: int
  num_guesses: int
  num_correct: int


class CanaryGuesses(NamedTuple):
  """How many coins there were, and were guessed.

  Attributes:
    num_canaries: Coins that there are, m.
    num_guesses: Coins that were guessed, r, in [0, m].
    num_correct: Guesses that were right, v, in [0, r].
  """

  num_canaries: int
  num_guesses: int
  num_correct: int


def scores(
    inner: np.ndarray, *, norms: np.ndarray, mean_squares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the scores of canaries; N(0, 1) for those that never joined.

  With released layers A_h of d_h elements, m_h = |A_h|^2 / d_h, and c_h = n_h
  u_h of a canary, its score is sum(<c_h, A_h> / m_h) over its standard
  deviation, sqrt(sum(n_h^2 / m_h)). That is also the score's mean for a canary
  that joined.

  Args:
    inner: <u_h, A_h> of unit directions u_h, float64 [..., H].
    norms: n_h, the norms of a canary's layers in a sum (after clipping),
      float64 [..., H].
    mean_squares: m_h, float64 [..., H]. Layers of zeros do not count.

  Returns:
    float64 [...]: scores, and their means had the canary joined; 0 where all
    layers are zeros.
  """
  with np.errstate(divide='ignore'):
    weights = np.where(mean_squares > 0, norms / mean_squares, 0.0)
  total = np.sum(inner * weights, axis=-1)
  means = np.broadcast_to(
      np.sqrt(np.sum(norms * weights, axis=-1)), total.shape
  )
  return np.divide(total, means, where=means > 0, out=total), means


def likelihood_ratios(
    round_scores: np.ndarray,
    means: np.ndarray,
    *,
    sampling: accounting.Sampling,
    covariance: np.ndarray,
    places: np.ndarray,
) -> np.ndarray:
  """Returns log P(scores | may join) / P(scores | held out) of each canary.

  For min_sep and cyclic cohorts that do not take their whole group, rounds
  count as if each were the only one: a guess like any other, if not the best.

  Args:
    round_scores: Scores by round, as `scores` returns them, float64 [T, K].
    means: The scores' means had the canary joined the round, float64 [T, K].
    sampling: How cohorts are drawn, as it is stated.
    covariance: Covariance of the noise of rounds, float64 [T, T].
    places: The canaries' places in the population, int [K].

  Returns:
    float64 [K].
  """
  prob = sampling.sampling_prob
  if sampling.min_sep is None:
    joined = means * round_scores - means**2 / 2
    if prob == 1:
      return joined.sum(axis=0)
    # The canary joined with probability q: a mixture of two Gaussians.
    each = np.logaddexp(math.log1p(-prob), math.log(prob) + joined)
    return each.sum(axis=0)
  separation = sampling.min_sep
  # Scores have unit variance, so their covariance is the correlation.
  scale = np.sqrt(np.diag(covariance))
  inverse = np.linalg.inv(covariance / np.outer(scale, scale))
  rounds = np.arange(len(round_scores))[:, None]
  here = np.where((rounds - places) % separation == 0, means, 0.0)
  linear = here * (inverse @ round_scores)
  if sampling.kind == 'min_sep':
    # A round takes cohort_size of a canary's group.
    members = -((places % separation - sampling.population) // separation)
    prob = sampling.cohort_size / members
  whole = (linear - here * (inverse @ here) / 2).sum(axis=0)
  alone = linear - here**2 * np.diag(inverse)[:, None] / 2
  with np.errstate(divide='ignore'):
    each = np.logaddexp(np.log1p(-prob), np.log(prob) + alone)
  each = np.where(here != 0, each, 0.0)
  return np.where(prob == 1, whole, each.sum(axis=0))


def p_value(guesses: CanaryGuesses, *, epsilon: float, delta: float) -> float:
  """Bounds the probability of the right guesses under (epsilon, delta)-DP.

  Args:
    guesses: Guesses of an adversary.
    epsilon: At least 0; infinity gives 1.
    delta: In [0, 1].
  """
  num_canaries, num_guesses, num_correct = guesses
  if not 0 <= num_correct <= num_guesses <= num_canaries:
    raise ValueError(
        f'num_correct must be at most num_guesses, and that at most '
        f'num_canaries, found {num_correct}, {num_guesses}, {num_canaries}.'
    )
  fewer = np.arange(1, num_correct + 1)
  survival = stats.binom.sf(
      num_correct - 1 - np.append(0, fewer),
      num_guesses,
      special.expit(epsilon),
  )
  excess = np.max((survival[1:] - survival[0]) / fewer, initial=0.0)
  return float(min(1.0, survival[0] + 2 * num_canaries * delta * excess))


def epsilon_bound(
    guesses: CanaryGuesses, *, delta: float, confidence: float
) -> float:
  """Returns the largest epsilon that these guesses refute, at least 0.

  Args:
    guesses: Their number chosen without looking at the coins.
    delta: In (0, 1).
    confidence: In (0, 1).
  """
  checks.in_range(0, 1, confidence=confidence)

  def excess(epsilon: float) -> float:
    return p_value(guesses, epsilon=epsilon, delta=delta) - (1 - confidence)

  if excess(0.0) >= 0:
    # Not even epsilon 0 is refuted.
    return 0.0
  # At this epsilon all guesses of any adversary are right.
  return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-9))


def lower_bound(
    ratios: np.ndarray,
    included: np.ndarray,
    *,
    delta: float,
    confidence: float = 0.95,
) -> Bound:
  """Bounds epsilon by guessing which canaries could join.

  An adversary who sees the releases guesses the coins that it is surest of, and
  abstains from the others. If the run is (epsilon, delta)-DP for adding or
  removing a canary (or for replacing it by zeros), then of r guesses on m coins
  v or more are right with a probability of at most

      f(v) + 2 m delta max_i (f(v - i) - f(v)) / i,    1 <= i <= v,

      f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v].

  Every epsilon for which that is below 1 - confidence is refuted. The adversary
  ranks coins by the likelihood ratio of a canary's scores in all rounds. The
  number of guessed coins is one of a few, each tested at an equal part of the
  level. Each canary's score also contains the other canaries.

  Args:
    ratios: Ratios that `likelihood_ratios` returned, float64 [m]: high for
      those that joined.
    included: The coins, bool [m]: independent, each true with probability 1/2.
    delta: In (0, 1).
    confidence: In (0, 1).
  """
  found = _guesses(ratios, included)
  # Bonferroni: each way to guess is tested at an equal part of the level.
  level = (1 - confidence) / len(found)
  bounds = [
      Bound(
          epsilon=epsilon_bound(
              guesses, delta=delta, confidence=1 - level
          ),
          confidence=confidence,
          delta=delta,
          **guesses._asdict(),
      )
      for guesses in found
  ]
  return max(bounds, key=lambda bound: bound.epsilon)


def _guesses(ratios: np.ndarray, included: np.ndarray) -> list[CanaryGuesses]:
  """The result of each way to guess.

  The k highest ratios are guessed to be in, and either the k lowest out or none
  out; k is half of the canaries, a quarter, and so on. Under sampling the
  lowest ratios carry little information.
  """
  # Stable, so that equal ratios give the same guesses on every machine.
  order = np.argsort(ratios, kind='stable')
  ins = np.asarray(included, bool)[order]
  found = []
  k = len(ins) // 2
  while k >= _MIN_GUESSES:
    right = int(ins[-k:].sum())
    both = right + int((~ins[:k]).sum())
    found += [
        CanaryGuesses(len(ins), k, right), CanaryGuesses(len(ins), 2 * k, both)
    ]
    k //= 2
  return found


def estimate(member_scores: np.ndarray, *, delta: float) -> Estimate:
  """Estimates epsilon from the scores of canaries that could join.

  They are fitted by N(m, s^2), and epsilon at delta is that of telling it from
  N(0, 1). If all canaries join equally often, s is 1. An s within three
  standard errors of 1 is set to 1, since epsilon depends on s more than K
  canaries can show (2 % in s are 40 % at epsilon 1). Unlike in the paper, the
  released vectors of all rounds are added before scoring (for a canary that
  joins every round, the sum is a sufficient statistic), and layers are weighted
  by the inverse of their mean square, because noise and clips differ from layer
  to layer. For one layer and one round the score is the paper's cosine.

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
  # Seeded: the same scores give the same interval.
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
  # 1 / sqrt(2 K) is the standard error of s.
  if abs(found - 1) <= 3 / math.sqrt(2 * len(values)):
    return 1.0
  # Equal scores have deviation 0, which would be divided by.
  return max(found, 1e-12)


def _one_way(mean: float, stddev: float, delta: float) -> float:
  """The smallest epsilon with P(S) - e^epsilon Q(S) <= delta for all S."""
  log_delta = math.log(delta)

  def excess(epsilon: float) -> float:
    return _log_divergence(mean, stddev, epsilon) - log_delta

  if excess(0.0) <= 0:
    return 0.0
  # Bracketed by doubling, since epsilon has no upper bound.
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
  # P and Q have equal deviations, so the log ratio is linear.
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
  # Mirrored into the lower tail, where log_ndtr keeps its digits.
  if first > 0:
    first, last = -last, -first
  upper, lower = special.log_ndtr(last), special.log_ndtr(first)
  return float(upper + np.log1p(-np.exp(lower - upper)))
