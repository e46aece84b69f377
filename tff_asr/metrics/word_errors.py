"""Word and token errors, their rates and the alignment they are counted in.

    >>> errors = count('the cat sat', 'the cat sad down')
    >>> errors
    WordErrors(substitutions=1, deletions=0, insertions=1, words=3)
    >>> round(errors.rate, 3)
    0.667

The alignment is jiwer's, with fewest errors.
"""

from collections.abc import Iterable, Sequence
import itertools
from typing import NamedTuple

import jiwer


class Pair(NamedTuple):
  """A word of the reference beside the word that was heard.

  Attributes:
    kind: 'equal', 'substitute', 'delete' or 'insert'.
    reference: The word that was said; empty for 'insert'.
    heard: The word that was heard; empty for 'delete'.
  """

  kind: str
  reference: str
  heard: str


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


def align(reference: str, hypothesis: str) -> list[Pair]:
  """Aligns the words of an utterance with those heard, with fewest errors.

  Words are split at white space.

  Args:
    reference: What was said; if empty, every word heard is an insertion.
    hypothesis: What was heard.

  Returns:
    A pair for each word of either, in order. All but the insertions spell the
    reference, all but the deletions the hypothesis.
  """
  said, heard = reference.split(), hypothesis.split()
  if not said:
    return [Pair('insert', '', word) for word in heard]
  # jiwer itself splits at spaces only.
  output = jiwer.process_words(' '.join(said), ' '.join(heard))
  return [
      Pair(chunk.type, *words)
      for chunk in output.alignments[0]
      for words in itertools.zip_longest(
          said[chunk.ref_start_idx : chunk.ref_end_idx],
          heard[chunk.hyp_start_idx : chunk.hyp_end_idx],
          fillvalue='',
      )
  ]


def count(reference: str, hypothesis: str) -> WordErrors:
  """Counts the word errors of one utterance, as `align` finds them."""
  kinds = [pair.kind for pair in align(reference, hypothesis)]
  return WordErrors(
      substitutions=kinds.count('substitute'),
      deletions=kinds.count('delete'),
      insertions=kinds.count('insert'),
      words=len(kinds) - kinds.count('insert'),
  )


def count_tokens(reference: Sequence[int], heard: Sequence[int]) -> WordErrors:
  """Counts the errors of one utterance by token, of their ids."""
  spell = lambda ids: ' '.join(map(str, ids))
  return count(spell(reference), spell(heard))


def published_rate(
    utterances: Iterable[WordErrors], *, num_fill_rows: int = 0
) -> float:
  """The word error rate as the code of the federated ASR paper counts it.

  It weighs an utterance's own rate not by its words but by two more, which its
  split at spaces makes of the spaces around a target. A row that fills a batch
  counts for a word without an error. An utterance without words does not count.

  Args:
    utterances: The errors of each; that code has none over 30 s.
    num_fill_rows: Rows that fill batches to a multiple of 8.

  Returns:
    The rate; NaN without words.
  """
  heard = [errors for errors in utterances if errors.words]
  weighted = sum(errors.rate * (errors.words + 2) for errors in heard)
  weight = sum(errors.words + 2 for errors in heard) + num_fill_rows
  return weighted / weight if heard else float('nan')


def total(errors: Iterable[WordErrors]) -> WordErrors:
  """Sums word errors."""
  return sum(errors, WordErrors())
