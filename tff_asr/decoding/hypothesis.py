"""A decoded utterance: its text, and its words with their frames.

  S: output frames. V: vocabulary with blank.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Word(NamedTuple):
  """A decoded word, emitted in the frames [start, end)."""

  text: str
  start: int
  end: int


class Hypothesis(NamedTuple):
  """A decoded utterance.

  Attributes:
    text: The text, without spaces at its ends; may be empty.
    words: Its words, in order.
  """

  text: str
  words: list[Word]


Decode = Callable[[np.ndarray], Hypothesis]
"""Decodes logits float32 [S, V] of one utterance; S may be 0."""
