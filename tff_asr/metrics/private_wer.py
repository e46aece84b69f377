"""Word error rates over people, from a noised sum of one vector a person.

A person with e errors in w words, whose rate r = min(e / w, 1) falls in bin k
of the histogram, contributes

    (sqrt(.4) r v,  sqrt(.1) v,  sqrt(.5) 1[0 = k], sqrt(.5) 1[1 = k], ...)

with v = min(w, W) / W. The norm is at most 1, whatever the person said: that is
the sensitivity of the sum. W (`max_words`) limits the words for which a person
counts and keeps the person's rate; a public number. A person with fewer words
than `min_words` is counted in a bin of its own and nowhere else.

Noise of standard deviation z is added to every element (`privacy.queries`). All
that `PersonVectors.estimate` returns is computed from the noised sum, and so
costs nothing more:

    word_error_rate   R = E / V, sums of r v and v. The interval is Fieller's:
                      all R with (E - R V)^2 <= 1.96^2 var(E - R V).
    quantiles         of the histogram, projected to counts of at least 0. The
                      interval holds the bins at whose ends a test does not
                      tell the share of people below from the quantile's.

Intervals (95 %) contain the noise and, where cohorts were sampled, the draw of
people. They do not contain what W and the limit of 1 on a rate change.

  K: bins of rates.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import NamedTuple, Optional

import numpy as np
from scipy import stats
import tensorflow as tf

from tff_asr import checks
from tff_asr.metrics import confidence
from tff_asr.metrics import person_errors

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)

# Squares sum to 1. At equal noise the variance of R is that of E + R V: errors
# are worth more than words at rates below 1. A public choice.
_ERRORS = math.sqrt(0.4)
_WORDS = math.sqrt(0.1)
_BIN = math.sqrt(0.5)
_TWO_SIDED = float(stats.norm.ppf(0.975))


class PrivateWer(NamedTuple):
  """Noised figures, each with its error bar.

  Attributes:
    word_error_rate: Errors over words, each person's words limited to W. NaN
      if no more words than noise were counted.
    quantiles: By share of people: that share has at most this rate.
    histogram: People in each bin of rates, K of them, at least 0.
    bin_half_width: Half of the 95 % interval of a count in `histogram`, before
      the counts were brought to at least 0.
    num_people: People in the histogram.
    num_too_few_words: People with fewer words than `min_words`.
  """

  word_error_rate: confidence.Interval
  quantiles: Mapping[float, confidence.Interval]
  histogram: tuple[float, ...]
  bin_half_width: float
  num_people: confidence.Interval
  num_too_few_words: confidence.Interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class PersonVectors:
  """How people are made vectors, and what their noised sum says.

  Attributes:
    max_words: W, such as the words that 90 % of people do not exceed.
    min_words: A person with fewer has no rate.
    num_bins: K, of equal width from 0 to 1; the last one holds 1 and above.
  """

  max_words: int = 100
  min_words: int = 5
  num_bins: int = 20

  def __post_init__(self):
    checks.positive_int(
        max_words=self.max_words,
        min_words=self.min_words,
        num_bins=self.num_bins,
    )
    if self.min_words > self.max_words:
      raise ValueError(
          f'min_words {self.min_words} must be at most max_words '
          f'{self.max_words}.'
      )

  @property
  def size(self) -> int:
    """Elements of a vector: errors, words, K bins, too few words."""
    return 3 + self.num_bins

  def encode(self, counts: person_errors.PersonErrors) -> tf.Tensor:
    """Returns a person's vector, float32 [size], of norm at most 1; traceable.
    """
    has_rate = counts.words >= self.min_words
    # Integers, so that no rounding moves a person to another bin.
    words = tf.maximum(counts.words, 1)
    # Insertions may outnumber the words: a rate above 1 would exceed the norm.
    errors = tf.minimum(counts.errors, words)
    rate_bin = tf.minimum(errors * self.num_bins // words, self.num_bins - 1)
    rate = tf.cast(errors, tf.float64) / tf.cast(words, tf.float64)
    weight = (
        tf.cast(tf.minimum(words, self.max_words), tf.float64) / self.max_words
    )
    weight = tf.where(has_rate, weight, 0.0)
    # The last element is the bin of people with too few words.
    chosen = tf.where(has_rate, rate_bin, self.num_bins)
    vector = tf.concat(
        [
            [_ERRORS * rate * weight, _WORDS * weight],
            _BIN * tf.one_hot(chosen, self.num_bins + 1, dtype=tf.float64),
        ],
        axis=0,
    )
    # float64 up to here. This rounding may lift the norm above 1 by some 2^-24;
    # the clip of the query then takes it down.
    return tf.cast(vector, tf.float32)

  def estimate(
      self,
      noised_sum: np.ndarray,
      *,
      stddev: float,
      num_people: Optional[int] = None,
      sampling_prob: float = 1.0,
  ) -> PrivateWer:
    """Computes the figures that a noised sum shows.

    Args:
      noised_sum: float64 [size].
      stddev: Standard deviation of the noise on each element.
      num_people: Public number of people in the sum, where all of them took
        part; None where they were sampled.
      sampling_prob: Probability that a person took part in a round.
    """
    errors, words = noised_sum[0] / _ERRORS, noised_sum[1] / _WORDS
    noised = noised_sum[2:] / _BIN
    bin_stddev = stddev / _BIN
    half_width = _TWO_SIDED * bin_stddev
    counts = _at_least_0(
        noised, total=noised.sum() if num_people is None else num_people
    )
    rates, too_few = noised[: self.num_bins], noised[self.num_bins]
    histogram = counts[: self.num_bins]
    around = lambda value, width: confidence.Interval(
        float(value), float(max(0.0, value - width)), float(value + width)
    )
    return PrivateWer(
        word_error_rate=_ratio(
            errors,
            words,
            stddev=stddev,
            # Not used without words.
            extra_variance=(1 - sampling_prob)
            * self._rate_variance(histogram, errors / words if words else 0),
        ),
        quantiles={
            share: confidence.Interval(
                _quantile(histogram, share),
                *_quantile_interval(
                    rates,
                    share,
                    stddev=bin_stddev,
                    sampling_prob=sampling_prob,
                ),
            )
            for share in QUANTILES
        },
        histogram=tuple(float(count) for count in histogram),
        bin_half_width=half_width,
        # A sum of K bins, each with noise of its own.
        num_people=around(rates.sum(), half_width * math.sqrt(self.num_bins)),
        num_too_few_words=around(too_few, half_width),
    )

  def _rate_variance(self, histogram: np.ndarray, rate: float) -> float:
    """Sum over people of (r - R)^2, from the bins' middles."""
    middles = (np.arange(self.num_bins) + 0.5) / self.num_bins
    return float(histogram @ (middles - np.clip(rate, 0, 1)) ** 2)

  def half_width(self, *, noise_multiplier: float, num_people: float) -> float:
    """Half of the WER's 95 % interval by noise alone, known beforehand.

    At a WER of 50 %, with W words of each person: fewer words make it wider.

    Args:
      noise_multiplier: Standard deviation of the noise on the sum.
      num_people: People expected in the sum.
    """
    return (
        _TWO_SIDED
        * noise_multiplier
        * math.hypot(1 / _ERRORS, 0.5 / _WORDS)
        / num_people
    )


def _ratio(
    errors: float, words: float, *, stddev: float, extra_variance: float
) -> confidence.Interval:
  """E / V with Fieller's interval, within [0, 1]."""
  error_variance = _TWO_SIDED**2 * ((stddev / _ERRORS) ** 2 + extra_variance)
  word_variance = _TWO_SIDED**2 * (stddev / _WORDS) ** 2
  # (E - R V)^2 <= variance is a R^2 - 2 E V R + c <= 0.
  a = words**2 - word_variance
  if words <= 0 or a <= 0:
    # The words cannot be told from noise: any rate is possible.
    return confidence.Interval(math.nan, 0.0, 1.0)
  c = errors**2 - error_variance
  middle = errors * words / a
  # For a > 0 there are real roots; rounding alone makes this negative.
  root = math.sqrt(max(0.0, middle**2 - c / a))
  limit = lambda rate: float(np.clip(rate, 0, 1))
  return confidence.Interval(
      limit(errors / words), limit(middle - root), limit(middle + root)
  )


def _at_least_0(counts: np.ndarray, *, total: float) -> np.ndarray:
  """The nearest counts of at least 0 with this sum (0 if it is negative).

  Setting negative counts to 0 would add people to the empty bins at the ends.
  """
  # Euclidean projection to a simplex (Duchi et al. 2008, figure 1).
  total = max(0.0, total)
  descending = np.sort(counts)[::-1]
  excess = (np.cumsum(descending) - total) / np.arange(1, len(counts) + 1)
  # The largest number of counts that stay above 0.
  num_positive = np.flatnonzero(descending > excess)
  if not len(num_positive):
    return np.zeros_like(counts)
  return np.maximum(counts - excess[num_positive[-1]], 0.0)


def _quantile(histogram: np.ndarray, share: float) -> float:
  """The rate that a share of people do not exceed; linear within a bin."""
  below = np.concatenate([[0.0], np.cumsum(histogram)])
  if not below[-1]:
    return math.nan
  target = share * below[-1]
  k = int(np.clip(
      np.searchsorted(below, target, side='left') - 1, 0, len(histogram) - 1
  ))
  inside = (target - below[k]) / histogram[k] if histogram[k] else 0.0
  return float((k + np.clip(inside, 0, 1)) / len(histogram))


def _quantile_interval(
    noised: np.ndarray, share: float, *, stddev: float, sampling_prob: float
) -> tuple[float, float]:
  """Ends of bins between which the quantile lies; see the module's docstring.

  At the end of bin k, T_k = sum_{i <= k} n_i - p sum n_i has the sign of the
  share below minus p. The interval leaves out bins at the bottom as long as T
  is significantly negative, and at the top as long as it is positive.
  """
  num_bins = len(noised)
  num_below = np.arange(1, num_bins)
  difference = np.cumsum(noised)[:-1] - share * noised.sum()
  # T weighs the noise of the bins up to k by 1 - p, that of the others by -p.
  variance = stddev**2 * (
      num_below * (1 - share) ** 2 + (num_bins - num_below) * share**2
  )
  variance += (1 - sampling_prob) * (
      max(0.0, noised.sum()) * share * (1 - share)
  )
  margin = _TWO_SIDED * np.sqrt(variance)
  is_below, is_above = difference < -margin, difference > margin
  low = _run_length(is_below)
  high = num_bins - _run_length(is_above[::-1])
  return low / num_bins, high / num_bins


def _run_length(flags: Sequence[bool]) -> int:
  """Number of true flags before the first false one."""
  # argmin of true flags alone would be 0.
  return int(np.argmin(np.append(flags, False)))
