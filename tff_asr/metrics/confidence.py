"""Confidence intervals (95 %) of word error rates over speakers and seeds.

`rate`, `difference` and `share_of_gain` resample speakers, because utterances
of one speaker are not independent (Bisani and Ney 2004, "Bootstrap estimates
for confidence intervals in ASR performance evaluation"). `linear_contrast` is
for few speakers, where a percentile bootstrap is too narrow (of 10 speakers it
covers the truth in some 90 % of cases), and can add the variance over random
seeds, which `seed_variance` estimates. Counts may also be of characters or
sentences.

    >>> rate(errors=[1, 2, 0], words=[10, 10, 10]).estimate
    0.1
"""

import collections
from collections.abc import Mapping, Sequence
import math
from typing import NamedTuple, Optional

import numpy as np
from scipy import stats

_CONFIDENCE = 0.95
# The ends of the interval vary by about 1 % of its width.
_NUM_RESAMPLES = 10_000
# Percentiles at the ends of an interval.
_TAILS = (50 * (1 - _CONFIDENCE), 50 * (1 + _CONFIDENCE))
# Resamples computed together; bounds memory.
_BATCH_SIZE = 100


class Interval(NamedTuple):
  """An estimate with its confidence interval."""

  estimate: float
  low: float
  high: float


def rate(errors: Sequence[float], words: Sequence[float]) -> Interval:
  """Estimates a word error rate by a bootstrap over speakers.

  Args:
    errors: Word errors of each speaker.
    words: Words of each speaker's references.

  Returns:
    WER with its percentile interval. With a single speaker both ends equal the
    estimate, and say nothing about its accuracy.

  Raises:
    ValueError: As `difference`.
  """
  return difference(errors, np.zeros(len(errors)), words)


def difference(
    errors: Sequence[float],
    baseline_errors: Sequence[float],
    words: Sequence[float],
) -> Interval:
  """Estimates a difference of word error rates by a paired bootstrap.

  Seeded: equal calls give equal results.

  Args:
    errors: Word errors of each speaker.
    baseline_errors: The other system's, of the same speakers in the same order.
    words: Words of each speaker's references.

  Returns:
    WER minus baseline WER, with its percentile interval. Below zero, the first
    system is better than the baseline.

  Raises:
    ValueError: The sequences differ in length, or there are no words.
  """
  errors, baseline_errors, words = _checked(errors, baseline_errors, words)
  gaps = errors - baseline_errors
  sums = _resampled_sums(gaps, words)
  low, high = np.percentile(sums[:, 0] / sums[:, 1], _TAILS)
  return Interval(float(gaps.sum() / words.sum()), float(low), float(high))


def share_of_gain(
    errors: Sequence[float],
    *,
    baseline_errors: Sequence[float],
    best_errors: Sequence[float],
    words: Sequence[float],
) -> Optional[Interval]:
  """Estimates which share of a gain a system has, by a paired bootstrap.

  The share is (WER of the baseline - WER) / (WER of the baseline - WER of the
  best system). In each resample of speakers it is computed as a whole.

      >>> share_of_gain(
      ...     [3, 5], baseline_errors=[4, 6], best_errors=[2, 4], words=[9, 9])
      Interval(estimate=0.5, low=0.5, high=0.5)

  Args:
    errors: Word errors of each speaker.
    baseline_errors: The baseline's, of the same speakers in the same order.
    best_errors: Those of the system whose gain over the baseline is the whole.
    words: Words of each speaker's references.

  Returns:
    The share with its percentile interval: below 0 if the system is worse than
    the baseline, above 1 if it is better than the best. None if the interval of
    the whole gain reaches 0, where there is no share.

  Raises:
    ValueError: As `difference`.
  """
  errors, baseline, best, words = _checked(
      errors, baseline_errors, best_errors, words
  )
  parts, wholes = baseline - errors, baseline - best
  sums = _resampled_sums(parts, words, wholes)
  if np.percentile(sums[:, 2] / sums[:, 1], _TAILS)[0] <= 0:
    return None
  is_gain = sums[:, 2] > 0
  shares = np.divide(
      sums[:, 0], sums[:, 2], out=np.zeros(len(sums)), where=is_gain
  )
  # A resample without a gain could have any share, so it counts at both ends.
  low, high = (
      np.percentile(np.where(is_gain, shares, end), tail, method=method)
      for end, tail, method in zip(
          (-math.inf, math.inf), _TAILS, ('lower', 'higher')
      )
  )
  return Interval(float(parts.sum() / wholes.sum()), float(low), float(high))


def _checked(*counts: Sequence[float]) -> list[np.ndarray]:
  """Counts of errors of systems, and of words, as arrays."""
  sizes = list(map(len, counts))
  if len(set(sizes)) > 1:
    raise ValueError(
        'errors, baseline_errors and words must have an entry for each '
        f'speaker, found {", ".join(map(str, sizes))}.'
    )
  arrays = [np.asarray(each, np.float64) for each in counts]
  if not arrays[-1].sum() > 0:
    raise ValueError('words must have a speaker with at least one word.')
  return arrays


def _resampled_sums(
    errors: np.ndarray, words: np.ndarray, *others: np.ndarray
) -> np.ndarray:
  """Sums over speakers, [resamples, arguments], where there are words."""
  # Fixed, so that a report that is written again has the same intervals.
  generator = np.random.default_rng(1)
  counts = np.stack([errors, words, *others], axis=-1)
  sums = []
  for _ in range(_NUM_RESAMPLES // _BATCH_SIZE):
    # Paired: all systems are resampled by the same speakers.
    drawn = generator.integers(len(words), size=(_BATCH_SIZE, len(words)))
    sums.append(counts[drawn].sum(axis=1))
  sums = np.concatenate(sums)
  # A resample of speakers without words has no rate.
  return sums[sums[:, 1] > 0]


def linear_contrast(
    errors: Sequence[float],
    words: Sequence[float],
    *,
    seed_variances: Sequence[tuple[float, float]] = (),
) -> Interval:
  """Estimates a weighted sum of word error rates of few speakers.

  For speakers i with w_i words, and g_i errors that are added with the weights
  of their systems, the sum is d = sum(g_i) / sum(w_i), a ratio estimator. Its
  variance over S speakers is (Cochran 1977, "Sampling Techniques", 6.3)

      S / (S - 1) sum((g_i - d w_i)^2) / sum(w_i)^2.

  Variances over random seeds are added. The interval is Student's, with the
  degrees of freedom of the whole variance (Satterthwaite 1946): S - 1 without
  seeds.

  Args:
    errors: Word errors of each speaker, times the weights of their systems.
    words: Words of each speaker's references.
    seed_variances: Variances of the sum, as a WER squared, over random seeds
      (`SeedVariance.of_sum`), each with its degrees of freedom.

  Raises:
    ValueError: The sequences differ in length, there are fewer than two
      speakers, or no words.
  """
  _check_speakers(errors, words)
  errors, words = np.asarray(errors, np.float64), np.asarray(words, np.float64)
  parts = [(_ratio_variance(errors, words), len(words) - 1), *seed_variances]
  variance = sum(part for part, _ in parts)
  squares = sum(part**2 / degrees for part, degrees in parts if part)
  # Without any variance the interval is a point, whatever the quantile.
  degrees = variance**2 / squares if squares else len(words) - 1
  # Student's, because the variance is estimated from few speakers and seeds.
  width = stats.t.ppf((1 + _CONFIDENCE) / 2, degrees) * math.sqrt(variance)
  estimate = float(errors.sum() / words.sum())
  return Interval(estimate, estimate - width, estimate + width)


def _check_speakers(errors: Sequence[float], words: Sequence[float]) -> None:
  """Raises ValueError for speakers without a variance."""
  if len(errors) != len(words) or len(words) < 2 or not sum(words) > 0:
    raise ValueError(
        'errors and words must have an entry for each of at least two '
        f'speakers, with a word, found {len(errors)} and {len(words)} of '
        f'{sum(words)} words.'
    )


def _ratio_variance(errors: np.ndarray, words: np.ndarray) -> float:
  """Variance over speakers (last axis) of errors over words; summed over runs.
  """
  rates = errors.sum(axis=-1, keepdims=True) / words.sum()
  residuals = errors - rates * words
  num_speakers = len(words)
  return float(
      num_speakers / (num_speakers - 1) * np.sum(residuals**2) / words.sum()**2
  )


class SeedVariance(NamedTuple):
  """How the word error rates of runs vary over random seeds.

  A run's rate is that of its row of a table, plus an effect of its random seed
  that all rows share (such as the seed model that runs start from), plus an
  effect of its own. In a difference of rows with the same seeds the shared
  effects cancel.

  Attributes:
    shared: Variance of the effect that rows share, as a WER squared.
    own: Variance of a run's own effect, as far as it is the same for all
      speakers; what differs by speaker is in the variance over speakers.
    total: Variance of the rates of a row's runs on these speakers.
    shared_degrees: Degrees of freedom of `shared` and `total`.
    own_degrees: Degrees of freedom of `own`.
  """

  shared: float
  own: float
  total: float
  shared_degrees: float
  own_degrees: float

  def of_sum(
      self, weights: Mapping[tuple[str, int], float]
  ) -> list[tuple[float, float]]:
    """Returns the variances of a weighted sum of runs' rates, with degrees.

    Args:
      weights: Row and seed of each run to the weight of its rate.
    """
    by_seed = collections.Counter()
    for (_, seed), weight in weights.items():
      by_seed[seed] += weight
    squares = lambda each: sum(weight**2 for weight in each.values())
    return [
        (self.own * squares(weights), self.own_degrees),
        (self.shared * squares(by_seed), self.shared_degrees),
    ]


def seed_variance(
    errors: Mapping[tuple[str, int], Sequence[float]], words: Sequence[float]
) -> Optional[SeedVariance]:
  """Estimates how word error rates vary over random seeds.

  Rates are fitted by an effect of each row and one of each seed (randomised
  blocks; Montgomery 2017, "Design and Analysis of Experiments", 4.1), and all
  rows' residuals are pooled. The part of their variance that differs from
  speaker to speaker is subtracted, since the variance over speakers has it, too
  (Cameron, Gelbach and Miller 2011, "Robust inference with multiway
  clustering").

  Args:
    errors: Row and seed of each run to the word errors of each speaker.
    words: Words of each speaker's references.

  Returns:
    The variances; None if no row has two seeds.

  Raises:
    ValueError: As `linear_contrast`.
  """
  size = collections.Counter(row for row, _ in errors)
  runs = [run for run in errors if size[run[0]] > 1]
  if not runs:
    return None
  _check_speakers(errors[runs[0]], words)
  words = np.asarray(words, np.float64)
  values = np.array([errors[run] for run in runs], np.float64)
  # Indicators of rows and of seeds, [runs, effects].
  rows, seeds = (
      np.array([[key == run[column] for key in dict.fromkeys(
          each[column] for each in runs)] for run in runs], np.float64)
      for column in (0, 1)
  )

  def fit(effects: np.ndarray) -> Optional[tuple[float, float, float]]:
    """The residuals' variance, that without speakers' part, its degrees."""
    degrees = len(runs) - np.linalg.matrix_rank(effects)
    if not degrees:
      return None
    left = values - effects @ np.linalg.lstsq(effects, values, rcond=None)[0]
    total = float(np.sum((left.sum(axis=1) / words.sum()) ** 2)) / degrees
    by_speaker = _ratio_variance(left, words) / degrees
    both = total**2 + by_speaker**2 / (len(words) - 1)
    net = max(0.0, total - by_speaker)
    # Satterthwaite's, of a difference; 1 where the difference is only rounding.
    return total, net, max(1.0, degrees * net**2 / both) if both else degrees

  total, within, shared_degrees = fit(rows)
  # A single row cannot tell its seeds' effects from its runs' own.
  _, own, own_degrees = (
      fit(np.concatenate([rows, seeds], axis=1))
      or (total, within, shared_degrees)
  )
  return SeedVariance(
      max(0.0, within - own), own, total, shared_degrees, own_degrees
  )
