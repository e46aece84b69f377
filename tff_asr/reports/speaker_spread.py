"""How word error rates spread over the speakers of an evaluation."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_WORST_SHARE = 0.1
_KINDS = ('substitutions', 'deletions', 'insertions')


class Speaker(NamedTuple):
  """A speaker's word error rate, and the words it is of."""

  rate: float
  words: int


def num_wrong(counts: Mapping[str, int]) -> int:
  """A speaker's wrong words, from the counts that an evaluation wrote."""
  return sum(counts[kind] for kind in _KINDS)


def by_rate(speakers: Mapping[str, Mapping[str, int]]) -> list[Speaker]:
  """The speakers with words, the best understood first.

  Args:
    speakers: By name, the counts that an evaluation wrote.
  """
  return sorted(
      Speaker(num_wrong(counts) / counts['words'], counts['words'])
      for counts in speakers.values()
      if counts['words']
  )


def worst_tenth(speakers: Sequence[Speaker]) -> float:
  """WER over all words of the tenth of speakers that are worst understood.

  Args:
    speakers: Best first; at least one. A tenth is one speaker at least.
  """
  count = max(1, round(_WORST_SHARE * len(speakers)))
  worst = speakers[-count:]
  return sum(s.rate * s.words for s in worst) / sum(s.words for s in worst)
