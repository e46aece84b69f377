"""Confidence of sums of word error rates of few speakers and random seeds.

For speakers i with w_i words, and g_i errors that are added with the weights of
their systems, the sum is d = sum(g_i) / sum(w_i), a ratio estimator whose
variance over S speakers is (Cochran 1977, "Sampling Techniques", 6.3)

    S / (S - 1) sum((g_i - d w_i)^2) / sum(w_i)^2.

Another random seed would change each system, too: that variance is added. The
interval is Student's, of S - 1 degrees of freedom: a percentile bootstrap of
ten speakers is too narrow (`bootstrap` is for many).
"""

from collections.abc import Sequence
import math

import numpy as np
from scipy import stats

from tff_asr import checks
from tff_asr.metrics import bootstrap


def interval(
    errors: Sequence[float],
    words: Sequence[float],
    *,
    seed_variance: float = 0.0,
    confidence: float = 0.95,
) -> bootstrap.Interval:
  """The sum and its confidence interval.

  Args:
    errors: Word errors of each speaker, times the weights of their systems.
    words: Words of each speaker's references.
    seed_variance: Of the sum, as a WER squared, over random seeds.
    confidence: In (0, 1).

  Raises:
    ValueError: The sequences differ in length, there are fewer than two
      speakers or no words, or the variance is negative.
  """
  checks.in_range(0, 1, confidence=confidence)
  checks.non_negative(seed_variance=seed_variance)
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
  width = stats.t.ppf((1 + confidence) / 2, num_speakers - 1) * math.sqrt(
      variance + seed_variance
  )
  return bootstrap.Interval(estimate, estimate - width, estimate + width)
