"""A decoded utterance: its text, and its words with frames and confidences.

  S: output frames. V: vocabulary with blank.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special


class Word(NamedTuple):
  """A decoded word, emitted in the frames [start, end).

  Attributes:
    text: The word.
    start: The first frame.
    end: The frame after the last.
    confidence: In [0, 1]. Of greedy decoding, the geometric mean of its tokens'
      probabilities in the frames that emit them; of a beam search, the
      probability, among the texts that were kept, of those with this word at
      this time. Both rank words; neither is calibrated.
  """

  text: str
  start: int
  end: int
  confidence: float


class Hypothesis(NamedTuple):
  """A decoded utterance.

  Attributes:
    text: The text, without spaces at its ends; may be empty.
    words: Its words, in order.
    score: Natural log of its score: of greedy decoding, the log probability of
      the best path; of a beam search, what the search maximises.
  """

  text: str
  words: list[Word]
  score: float


Decode = Callable[[np.ndarray], list[Hypothesis]]
"""Decodes logits float32 [S, V] of one utterance (S may be 0), best first."""


def log_softmax(logits: np.ndarray) -> np.ndarray:
  """Returns log probabilities float64 [S, V] of logits [S, V]."""
  return special.log_softmax(logits.astype(np.float64), axis=-1)
