"""Confidence intervals of word error rates, by resampling speakers.

Utterances of one speaker are not independent, so speakers are drawn, with
replacement, and with each speaker all of its utterances (Bisani and Ney 2004,
"Bootstrap estimates for confidence intervals in ASR performance evaluation").
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_asr import checks


# Speakers drawn at once: more take more memory, and give the same.
_MAX_DRAWN = 2**22


class Interval(NamedTuple):
  """An estimate with its confidence interval."""

  estimate: float
  low: float
  high: float


def rate(
    errors: Sequence[float],
    words: Sequence[float],
    *,
    confidence: float = 0.95,
    num_samples: int = 10_000,
    seed: int = 1,
) -> Interval:
  """Bootstrap of a word error rate.

  Args:
    errors: Word errors of each speaker.
    words: Words of each speaker's references.
    confidence: In (0, 1).
    num_samples: Resamples.
    seed: Of the resamples: equal calls give equal results.

  Returns:
    WER with its percentile interval. Of one speaker, who is all that can be
    drawn, both ends are the estimate: that is no certainty.

  Raises:
    ValueError: As `difference`.
  """
  return difference(
      errors,
      np.zeros(len(errors)),
      words,
      confidence=confidence,
      num_samples=num_samples,
      seed=seed,
  )


def difference(
    errors: Sequence[float],
    baseline_errors: Sequence[float],
    words: Sequence[float],
    *,
    confidence: float = 0.95,
    num_samples: int = 10_000,
    seed: int = 1,
) -> Interval:
  """Paired bootstrap of the difference of two word error rates.

  Args:
    errors: Word errors of each speaker.
    baseline_errors: The other system's, of the same speakers in the same order.
    words: Words of each speaker's references.
    confidence: In (0, 1).
    num_samples: Resamples.
    seed: Of the resamples: equal calls give equal results.

  Returns:
    WER minus baseline WER, with its percentile interval; below zero the first
    system is better.

  Raises:
    ValueError: The sequences differ in length, or there are no words.
  """
  checks.in_range(0, 1, confidence=confidence)
  checks.positive_int(num_samples=num_samples)
  if not len(errors) == len(baseline_errors) == len(words):
    raise ValueError(
        'errors, baseline_errors and words must have an entry for each '
        f'speaker, found {len(errors)}, {len(baseline_errors)}, {len(words)}.'
    )
  words = np.asarray(words, np.float64)
  gaps = np.asarray(errors, np.float64) - np.asarray(baseline_errors)
  if not words.sum() > 0:
    raise ValueError('words must have a speaker with at least one word.')
  generator = np.random.default_rng(seed)
  totals, sums = np.empty(num_samples), np.empty(num_samples)
  at_once = max(1, _MAX_DRAWN // len(words))
  for start in range(0, num_samples, at_once):
    part = slice(start, min(start + at_once, num_samples))
    drawn = generator.integers(
        len(words), size=(part.stop - part.start, len(words))
    )
    totals[part] = words[drawn].sum(axis=1)
    sums[part] = gaps[drawn].sum(axis=1)
  # A resample of speakers without words has no rate; it says nothing.
  rates = sums[totals > 0] / totals[totals > 0]
  tail = 50 * (1 - confidence)
  low, high = np.percentile(rates, [tail, 100 - tail])
  return Interval(float(gaps.sum() / words.sum()), float(low), float(high))
