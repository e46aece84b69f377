"""Epsilon as canaries measure it: an estimate, and a bound with a confidence.

A canary contributes a random direction. Directions of a high-dimensional space
are nearly orthogonal, so each canary is a separate experiment, and one run
holds hundreds of them. A coin decides for each whether it may join or is held
out. A canary's score in a round is its inner product with the release, in
standard deviations of the score of a direction that never joined.

`estimate` fits the scores of canaries that could join (Andrew et al. 2023,
https://arxiv.org/abs/2302.03098). It is not a bound: it is near the exact
epsilon at full participation, and lower under sampling or with few rounds.
`epsilon_lower_bound` guesses which canaries could join and refutes every
epsilon that allows fewer right guesses, at a confidence (Steinke, Nasr,
Jagielski 2023, https://arxiv.org/abs/2305.08846, Theorem 5.2). It is far below
epsilon: m canaries cannot show more than about
log(m / log(1 / (1 - confidence))).
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy import special
from scipy import stats

from tff_asr.privacy import accounting

# Of the bound: it is above the run's epsilon in at most 5 % of audits.
CONFIDENCE = 0.95

# The fewest coins that are guessed.
_MIN_GUESSES = 10


class Estimate(NamedTuple):
  """An estimate of epsilon.

  Attributes:
    epsilon: The estimate.
    low: Epsilon at the lower end of the mean's 95 % interval.
    high: Epsilon at its upper end.
    mean: The mean of the canaries' scores.
  """

  epsilon: float
  low: float
  high: float
  mean: float


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
  # A layer of zeros divides by 0; its weight is replaced.
  with np.errstate(divide='ignore'):
    weights = np.where(mean_squares > 0, norms / mean_squares, 0.0)
  total = np.sum(inner * weights, axis=-1)
  means = np.broadcast_to(
      np.sqrt(np.sum(norms * weights, axis=-1)), total.shape
  )
  # The mean is also the deviation, so this has unit variance.
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

  Rounds count as if each were the only one that the canary could join. Under
  correlated noise that is a guess like any other, if not the best.

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
  separation = sampling.min_sep or 1
  rounds = np.arange(len(round_scores))[:, None]
  # A canary can only join rounds of its own sampling group.
  here = np.where((rounds - places) % separation == 0, means, 0.0)
  if sampling.kind == 'min_sep':
    # A round takes cohort_size of a canary's sampling group.
    members = -((places % separation - sampling.population) // separation)
    prob = sampling.cohort_size / members
  # Scores have unit variance, so their covariance is the correlation.
  scale = np.sqrt(np.diag(covariance))
  inverse = np.linalg.inv(covariance / np.outer(scale, scale))
  joined = here * (inverse @ round_scores)
  joined -= here**2 * np.diag(inverse)[:, None] / 2
  # log(0) where the whole group joins: only `joined` is left of the mixture.
  with np.errstate(divide='ignore'):
    each = np.logaddexp(np.log1p(-prob), np.log(prob) + joined)
  return each.sum(axis=0)


def p_value(guesses: CanaryGuesses, *, epsilon: float, delta: float) -> float:
  """Bounds the probability of the right guesses under (epsilon, delta)-DP.

  Args:
    guesses: Guesses of an adversary.
    epsilon: At least 0; infinity gives 1.
    delta: In [0, 1].
  """
  num_canaries, num_guesses, num_correct = guesses
  fewer = np.arange(1, num_correct + 1)
  # P[at least v - i right], i = 0 first.
  survival = stats.binom.sf(
      num_correct - 1 - np.append(0, fewer),
      num_guesses,
      special.expit(epsilon),
  )
  # Delta lets an adversary be right where privacy fails outright.
  excess = np.max((survival[1:] - survival[0]) / fewer, initial=0.0)
  return float(min(1.0, survival[0] + 2 * num_canaries * delta * excess))


def refuted_epsilon(
    guesses: CanaryGuesses, *, delta: float, confidence: float
) -> float:
  """Returns the largest epsilon that these guesses refute, at least 0.

  Args:
    guesses: Their number chosen without looking at the coins.
    delta: In (0, 1).
    confidence: In (0, 1).
  """

  def excess(epsilon: float) -> float:
    return p_value(guesses, epsilon=epsilon, delta=delta) - (1 - confidence)

  if excess(0.0) >= 0:
    # Not even epsilon 0 is refuted.
    return 0.0
  # At this epsilon all guesses of any adversary are right.
  return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-9))


def epsilon_lower_bound(
    ratios: np.ndarray,
    included: np.ndarray,
    *,
    delta: float,
) -> tuple[float, CanaryGuesses]:
  """Bounds epsilon by guessing which canaries could join.

  An adversary who sees the releases guesses the coins that it is surest of, and
  abstains from the others. If the run is (epsilon, delta)-DP for adding or
  removing a canary (or for replacing it by zeros), then of r guesses on m coins
  v or more are right with a probability of at most

      f(v) + 2 m delta max_i (f(v - i) - f(v)) / i,    1 <= i <= v,

      f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v].

  Every epsilon for which that is below 1 - `CONFIDENCE` is refuted. The
  adversary ranks coins by the likelihood ratio of a canary's scores in all
  rounds. The number of guessed coins is one of a few, each tested at an equal
  part of the level. Each canary's score also contains the other canaries.

  Args:
    ratios: Ratios that `likelihood_ratios` returned, float64 [m]: high for
      those that joined.
    included: The coins, bool [m]: independent, each true with probability 1/2.
    delta: In (0, 1).

  Returns:
    The bound, 0 if nothing is refuted, and the guesses that gave it.
  """
  found = _guesses(ratios, included)
  # Bonferroni: each way to guess is tested at an equal part of the level.
  level = (1 - CONFIDENCE) / len(found)
  bounds = [
      refuted_epsilon(guesses, delta=delta, confidence=1 - level)
      for guesses in found
  ]
  best = int(np.argmax(bounds))
  return bounds[best], found[best]


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
  # The numbers of guesses are fixed before the coins are looked at.
  k = len(ins) // 2
  while k >= _MIN_GUESSES:
    right = int(ins[-k:].sum())
    both = right + int((~ins[:k]).sum())
    found += [
        CanaryGuesses(len(ins), k, right), CanaryGuesses(len(ins), 2 * k, both)
    ]
    k //= 2
  return found


def estimate_epsilon(member_scores: np.ndarray, *, delta: float) -> Estimate:
  """Estimates epsilon from the scores of canaries that could join.

  Their mean m is taken for the shift of a Gaussian of deviation 1, and epsilon
  at delta is that of telling N(m, 1) from N(0, 1). The paper also fits the
  deviation; it is 1 if all canaries join equally often. Unlike in the paper,
  the released vectors of all rounds are added before scoring (for a canary that
  joins every round, the sum is a sufficient statistic), and layers are weighted
  by the inverse of their mean square, because noise and clips differ from layer
  to layer. For one layer and one round the score is the paper's cosine.

  Args:
    member_scores: Finite scores, float [K].
    delta: In (0, 1).
  """
  mean = float(np.mean(member_scores))
  # Epsilon grows with the mean, so the mean's interval gives that of epsilon.
  margin = 1.96 * np.std(member_scores, ddof=1) / math.sqrt(len(member_scores))
  at = lambda shift: gaussian_epsilon(max(0.0, shift), delta=delta)
  # A sum that loses canaries is as telling as one that gains them.
  shift = abs(mean)
  return Estimate(at(shift), at(shift - margin), at(shift + margin), mean)


def gaussian_epsilon(shift: float, *, delta: float) -> float:
  """Returns epsilon at delta of telling N(shift, 1) from N(0, 1).

  Args:
    shift: At least 0.
    delta: In (0, 1).
  """
  accounting.check_delta(delta)

  def excess(epsilon: float) -> float:
    above = special.log_ndtr(shift / 2 - epsilon / shift)
    other = special.log_ndtr(-shift / 2 - epsilon / shift)
    # In logarithms, since e^epsilon alone overflows.
    return math.exp(above) - math.exp(epsilon + other) - delta

  # At epsilon 0: the total variation distance.
  if shift == 0 or excess(0.0) <= 0:
    return 0.0
  # A Gaussian's tail: the log ratio exceeds this with probability below delta.
  highest = shift**2 / 2 + shift * math.sqrt(-2 * math.log(delta))
  return float(optimize.brentq(excess, 0.0, highest))
