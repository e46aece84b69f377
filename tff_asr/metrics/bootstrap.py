"""Confidence intervals of word error rates, by resampling speakers.

Utterances of one speaker are not independent, so speakers are drawn, with
replacement, and with each speaker all of its utterances (Bisani and Ney 2004,
"Bootstrap estimates for confidence intervals in ASR performance evaluation").
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_asr import checks


class Interval(NamedTuple):
  """An estimate with its confidence interval."""

  estimate: float
  low: float
  high: float


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
  drawn = generator.integers(len(words), size=(num_samples, len(words)))
  # A resample of speakers without words has no rate; it says nothing.
  totals = words[drawn].sum(axis=1)
  rates = gaps[drawn].sum(axis=1)[totals > 0] / totals[totals > 0]
  tail = 50 * (1 - confidence)
  low, high = np.percentile(rates, [tail, 100 - tail])
  return Interval(float(gaps.sum() / words.sum()), float(low), float(high))
