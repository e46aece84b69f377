"""Word error rates of people before and after a change of the model.

    >>> before, after = [3, 1, 0, 2], [1, 1, 1, 2]
    >>> found = summarize(before, after, words=[10, 10, 10, 10])
    >>> found.rate_before, found.rate_after
    (0.15, 0.125)
    >>> found.share_better, found.share_worse
    (0.25, 0.25)

A mean hides the people for whom a model fails, and those who lose by a change:
deciles and the worst tenth show the first, and `share_worse` shows the second.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_asr.metrics import confidence

_DECILES = tuple(range(10, 100, 10))
_WORST_SHARE = 0.1


class Gains(NamedTuple):
  """Word error rates of people before and after a change.

  Attributes:
    num_people: Number of people with words.
    num_words: Words of their references.
    rate_before: WER over all words.
    rate_after: The same, after the change.
    difference: After less before, with its 95 % interval over people.
    mean_before: Mean of the people's WER.
    mean_after: The same, after the change.
    deciles_before: First to ninth decile of the people's WER.
    deciles_after: The same, after the change.
    worst_tenth_before: WER over the words of the tenth with the highest WER.
    worst_tenth_after: The same, after the change: maybe of other people.
    share_better: Share of people with fewer errors after the change.
    share_worse: Share with more.
  """

  num_people: int
  num_words: int
  rate_before: float
  rate_after: float
  difference: confidence.Interval
  mean_before: float
  mean_after: float
  deciles_before: list[float]
  deciles_after: list[float]
  worst_tenth_before: float
  worst_tenth_after: float
  share_better: float
  share_worse: float


def summarize(
    before: Sequence[int], after: Sequence[int], *, words: Sequence[int]
) -> Gains:
  """Summarizes the word errors of people.

  Args:
    before: Errors of each person before the change.
    after: Errors after it, of the same people in the same order.
    words: Words of each person's references. People without words do not count.

  Raises:
    ValueError: As `confidence.difference`.
  """
  # Before people without words are left out: they, too, may be drawn.
  difference = confidence.difference(after, before, words)
  before, after, words = (
      np.asarray(counts, np.int64)[np.asarray(words) > 0]
      for counts in (before, after, words)
  )
  # Of rates of people, each of whom counts once, whatever they said.
  deciles = lambda errors: np.percentile(errors / words, _DECILES).tolist()
  return Gains(
      num_people=len(words),
      num_words=int(words.sum()),
      rate_before=float(before.sum() / words.sum()),
      rate_after=float(after.sum() / words.sum()),
      difference=difference,
      mean_before=float(np.mean(before / words)),
      mean_after=float(np.mean(after / words)),
      deciles_before=deciles(before),
      deciles_after=deciles(after),
      worst_tenth_before=worst_tenth(before, words),
      worst_tenth_after=worst_tenth(after, words),
      share_better=float(np.mean(after < before)),
      share_worse=float(np.mean(after > before)),
  )


def worst_tenth(errors: Sequence[int], words: Sequence[int]) -> float:
  """Returns the WER over all words of the tenth of people with highest WER.

  Args:
    errors: Errors of each person, at least one.
    words: Words of each person's references, above zero. A tenth is at least
      one person.
  """
  errors, words = np.asarray(errors), np.asarray(words)
  # Of fewer than ten people, the worst one.
  count = max(1, round(_WORST_SHARE * len(words)))
  worst = np.argsort(errors / words, kind='stable')[-count:]
  return float(errors[worst].sum() / words[worst].sum())
