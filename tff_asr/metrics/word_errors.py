"""Word errors and their rates, from jiwer's alignment."""

from collections.abc import Iterable
from typing import NamedTuple

import jiwer


class WordErrors(NamedTuple):
  """Counts over any number of utterances; add them with `+`.

  Attributes:
    substitutions: Words of the reference heard as another.
    deletions: Words of the reference not heard.
    insertions: Words heard that the reference does not have.
    words: Words of the references.
  """

  substitutions: int = 0
  deletions: int = 0
  insertions: int = 0
  words: int = 0

  def __add__(self, other: 'WordErrors') -> 'WordErrors':
    return WordErrors(*(a + b for a, b in zip(self, other)))

  @property
  def errors(self) -> int:
    return self.substitutions + self.deletions + self.insertions

  @property
  def rate(self) -> float:
    """Word error rate: errors per word of the references.

    NaN without words. May exceed 1, since insertions have no bound.
    """
    return self.errors / self.words if self.words else float('nan')


def align(reference: str, hypothesis: str) -> WordErrors:
  """Counts the word errors of one utterance; words are split at white space.

  An empty reference makes every word of the hypothesis an insertion.
  """
  reference_words, hypothesis_words = reference.split(), hypothesis.split()
  if not reference_words:
    return WordErrors(insertions=len(hypothesis_words))
  # jiwer itself splits at spaces only.
  counts = jiwer.process_words(
      ' '.join(reference_words), ' '.join(hypothesis_words)
  )
  return WordErrors(
      substitutions=counts.substitutions,
      deletions=counts.deletions,
      insertions=counts.insertions,
      words=counts.hits + counts.substitutions + counts.deletions,
  )


def total(errors: Iterable[WordErrors]) -> WordErrors:
  """Sums word errors."""
  return sum(errors, WordErrors())
