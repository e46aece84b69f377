"""Confidence intervals (95 %) of word error rates over speakers and seeds.

`rate`, `difference` and `share_of_gain` resample speakers, because utterances
of one speaker are not independent (Bisani and Ney 2004, "Bootstrap estimates
for confidence intervals in ASR performance evaluation"). `linear_contrast` is
for few speakers, where a percentile bootstrap is too narrow, and can add the
variance over random seeds.

    >>> rate(errors=[1, 2, 0], words=[10, 10, 10]).estimate
    0.1
"""

from collections.abc import Sequence
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
    seed_variance: float = 0.0,
) -> Interval:
  """Estimates a weighted sum of word error rates of few speakers.

  For speakers i with w_i words, and g_i errors that are added with the weights
  of their systems, the sum is d = sum(g_i) / sum(w_i), a ratio estimator. Its
  variance over S speakers is (Cochran 1977, "Sampling Techniques", 6.3)

      S / (S - 1) sum((g_i - d w_i)^2) / sum(w_i)^2.

  The variance over random seeds is added. The interval is Student's, with S - 1
  degrees of freedom.

  Args:
    errors: Word errors of each speaker, times the weights of their systems.
    words: Words of each speaker's references.
    seed_variance: Variance of the sum, as a WER squared, over random seeds.

  Raises:
    ValueError: The sequences differ in length, there are fewer than two
      speakers, or no words.
  """
  if len(errors) != len(words) or len(words) < 2 or not sum(words) > 0:
    raise ValueError(
        'errors and words must have an entry for each of at least two '
        f'speakers, with a word, found {len(errors)} and {len(words)} of '
        f'{sum(words)} words.'
    )
  errors, words = np.asarray(errors, np.float64), np.asarray(words, np.float64)
  num_speakers, num_words = len(words), words.sum()
  estimate = float(errors.sum() / num_words)
  residuals = errors - estimate * words
  variance = (
      num_speakers / (num_speakers - 1) * (residuals @ residuals) / num_words**2
  )
  # Student's, because the variance is estimated from few speakers.
  width = stats.t.ppf((1 + _CONFIDENCE) / 2, num_speakers - 1) * math.sqrt(
      variance + seed_variance
  )
  return Interval(estimate, estimate - width, estimate + width)


def pooled_variance(samples: Sequence[Sequence[float]]) -> float:
  """Returns the variance within samples, pooled by degrees of freedom.

  Args:
    samples: Word error rates of each system over random seeds.

  Returns:
    The variance; 0 if no sample has two values.
  """
  # One value has no spread.
  known = [sample for sample in samples if len(sample) > 1]
  degrees = sum(len(sample) - 1 for sample in known)
  squares = sum((len(sample) - 1) * np.var(sample, ddof=1) for sample in known)
  return float(squares) / degrees if degrees else 0.0
