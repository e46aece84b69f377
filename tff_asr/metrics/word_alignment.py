"""Which words were heard as which, from jiwer's alignment.

The alignment is the one whose errors `word_errors` counts.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jiwer

EQUAL = 'equal'
SUBSTITUTED = 'substituted'
DELETED = 'deleted'
INSERTED = 'inserted'

_KINDS = {
    'equal': EQUAL,
    'substitute': SUBSTITUTED,
    'delete': DELETED,
    'insert': INSERTED,
}


class Pair(NamedTuple):
  """A word of the reference beside what was heard of it.

  Attributes:
    kind: EQUAL, SUBSTITUTED, DELETED or INSERTED.
    reference: The word that was said; empty if INSERTED.
    heard: The word that was heard; empty if DELETED.
  """

  kind: str
  reference: str
  heard: str


def align(reference: str, hypothesis: str) -> list[Pair]:
  """Aligns the words of an utterance with those heard.

  Words are split at white space. An empty reference makes every word heard an
  insertion.

  Args:
    reference: What was said.
    hypothesis: What was heard.

  Returns:
    A pair for each word of either, in order; those not INSERTED spell the
    reference, those not DELETED the hypothesis.
  """
  said, heard = reference.split(), hypothesis.split()
  if not said:
    return [Pair(INSERTED, '', word) for word in heard]
  # jiwer itself splits at spaces only.
  output = jiwer.process_words(' '.join(said), ' '.join(heard))
  return [
      pair
      for chunk in output.alignments[0]
      for pair in _pairs(
          _KINDS[chunk.type],
          said[chunk.ref_start_idx : chunk.ref_end_idx],
          heard[chunk.hyp_start_idx : chunk.hyp_end_idx],
      )
  ]


def _pairs(kind: str, said: list[str], heard: list[str]) -> Iterator[Pair]:
  """The pairs of one stretch of one kind."""
  if kind == DELETED:
    heard = [''] * len(said)
  elif kind == INSERTED:
    said = [''] * len(heard)
  for pair in zip(said, heard, strict=True):
    yield Pair(kind, *pair)
