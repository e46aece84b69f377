"""Word, character, sentence and token errors, and the alignment of words.

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
  """A word of the reference aligned with a word of the hypothesis.

  Attributes:
    kind: 'equal', 'substitute', 'delete' or 'insert'.
    reference: The word of the reference; empty for 'insert'.
    hypothesis: The word of the hypothesis; empty for 'delete'.
  """

  kind: str
  reference: str
  hypothesis: str


class WordErrors(NamedTuple):
  """Counts over any number of utterances; add them with `+`.

  Attributes:
    substitutions: Words of the references with another word in the hypothesis.
    deletions: Words of the references missing in the hypotheses.
    insertions: Words of the hypotheses missing in the references.
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
    """Returns the number of all errors."""
    return self.substitutions + self.deletions + self.insertions

  @property
  def rate(self) -> float:
    """Returns the word error rate; NaN without words.

    It may exceed 1, since insertions have no bound.
    """
    return self.errors / self.words if self.words else float('nan')


def align(reference: str, hypothesis: str) -> list[Pair]:
  """Aligns the words of a reference and a hypothesis, with fewest errors.

  Words are split at white space.

  Args:
    reference: The transcript; if empty, every word is an insertion.
    hypothesis: The recognised text.

  Returns:
    Pairs in order: without the insertions they are the reference, without the
    deletions the hypothesis.
  """
  references, hypotheses = reference.split(), hypothesis.split()
  # jiwer rejects an empty reference.
  if not references:
    return [Pair('insert', '', word) for word in hypotheses]
  # jiwer itself splits at spaces only.
  output = jiwer.process_words(' '.join(references), ' '.join(hypotheses))
  return [
      Pair(chunk.type, *words)
      for chunk in output.alignments[0]
      # Longest: an insertion has no word of the reference, and so on.
      for words in itertools.zip_longest(
          references[chunk.ref_start_idx : chunk.ref_end_idx],
          hypotheses[chunk.hyp_start_idx : chunk.hyp_end_idx],
          fillvalue='',
      )
  ]


def count(reference: str, hypothesis: str) -> WordErrors:
  """Counts the word errors of one utterance, as `align` finds them."""
  # From the alignment, so that counts and printed pairs agree.
  kinds = [pair.kind for pair in align(reference, hypothesis)]
  return WordErrors(
      substitutions=kinds.count('substitute'),
      deletions=kinds.count('delete'),
      insertions=kinds.count('insert'),
      words=len(kinds) - kinds.count('insert'),
  )


def count_tokens(
    reference: Sequence[int], hypothesis: Sequence[int]
) -> WordErrors:
  """Counts the token errors of one utterance, given ids of tokens."""
  # As words, so that tokens are aligned by the same function.
  join = lambda ids: ' '.join(map(str, ids))
  return count(join(reference), join(hypothesis))


def count_characters(reference: str, hypothesis: str) -> WordErrors:
  """Counts the character errors of one utterance: `words` are characters.

  Characters are code points. The space between two words is one of them, and
  other white space does not count.
  """
  codes = lambda text: [*map(ord, ' '.join(text.split()))]
  return count_tokens(codes(reference), codes(hypothesis))


def count_sentences(reference: str, hypothesis: str) -> WordErrors:
  """Counts the sentence error of one utterance: `words` are sentences.

  An utterance is one sentence, whatever its punctuation. It is wrong if its
  words differ; white space does not count.
  """
  is_wrong = reference.split() != hypothesis.split()
  return WordErrors(substitutions=int(is_wrong), words=1)


def published_rate(
    utterances: Iterable[WordErrors], *, num_fill_rows: int = 0
) -> float:
  """Computes the word error rate as the code of the federated ASR paper does.

  An utterance without words does not count.

  Args:
    utterances: The errors of each utterance; that code has none over 30 s.
    num_fill_rows: Rows that fill batches to a multiple of 8.

  Returns:
    The rate; NaN without words.
  """
  spoken = [errors for errors in utterances if errors.words]
  # Two more than its words: that code splits a target at the spaces around it.
  weighted = sum(errors.rate * (errors.words + 2) for errors in spoken)
  # A row that fills a batch counts for a word without an error.
  weight = sum(errors.words + 2 for errors in spoken) + num_fill_rows
  return weighted / weight if spoken else float('nan')


def total(errors: Iterable[WordErrors]) -> WordErrors:
  """Sums word errors."""
  # An empty start: `sum` begins with the integer 0 otherwise.
  return sum(errors, WordErrors())
