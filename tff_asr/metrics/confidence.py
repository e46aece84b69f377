"""Confidence intervals (95 %) of word error rates over speakers and seeds.

`rate` and `difference` resample speakers, because utterances of one speaker are
not independent (Bisani and Ney 2004, "Bootstrap estimates for confidence
intervals in ASR performance evaluation"). `linear_contrast` is for few
speakers, where a percentile bootstrap is too narrow, and can add the variance
over random seeds.

    >>> rate(errors=[1, 2, 0], words=[10, 10, 10]).estimate
    0.1
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

_CONFIDENCE = 0.95
# The ends of the interval vary by about 1 % of its width.
_NUM_RESAMPLES = 10_000
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
  if not len(errors) == len(baseline_errors) == len(words):
    raise ValueError(
        'errors, baseline_errors and words must have an entry for each '
        f'speaker, found {len(errors)}, {len(baseline_errors)}, {len(words)}.'
    )
  words = np.asarray(words, np.float64)
  gaps = np.asarray(errors, np.float64) - np.asarray(baseline_errors)
  if not words.sum() > 0:
    raise ValueError('words must have a speaker with at least one word.')
  # Fixed, so that a report that is written again has the same intervals.
  generator = np.random.default_rng(1)
  rates = []
  for _ in range(_NUM_RESAMPLES // _BATCH_SIZE):
    # Paired: both systems are resampled by the same speakers.
    drawn = generator.integers(len(words), size=(_BATCH_SIZE, len(words)))
    # A resample of speakers without words has no rate.
    drawn = drawn[words[drawn].sum(axis=1) > 0]
    rates.extend(gaps[drawn].sum(axis=1) / words[drawn].sum(axis=1))
  tail = 50 * (1 - _CONFIDENCE)
  low, high = np.percentile(rates, [tail, 100 - tail])
  return Interval(float(gaps.sum() / words.sum()), float(low), float(high))


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
