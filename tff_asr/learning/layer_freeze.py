"""LayerFreeze: which layers private training leaves as they are.

Chauhan et al. 2024, https://arxiv.org/abs/2409.13953. A public warm start adds
up the squared norms of each layer's gradients; the layers with the smallest
scores are frozen. Fewer trained weights get less noise in total, and each
trained layer gets a larger part of the clip. A layer is a weight tensor, as for
clipping.
"""

from collections.abc import Collection, Mapping
import dataclasses
import math
import re
from typing import Optional

import numpy as np

from tff_asr import checks

ORDERS = ('lowest', 'highest', 'random')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerFreeze:
  """Number and choice of the layers to freeze; set either share or number.

  Attributes:
    share: Share of all layers, in [0, 1); their number is rounded down.
    number: Number of layers.
    order: `lowest` scores, as in the paper; `highest` or `random` to compare.
    seed: Seed of the order `random`.
  """

  share: Optional[float] = None
  number: Optional[int] = None
  order: str = 'lowest'
  seed: int = 1

  def __post_init__(self):
    if (self.share is None) == (self.number is None):
      raise ValueError(
          'share or number must be set, not both, found '
          f'{self.share} and {self.number}.'
      )
    if self.share is not None:
      checks.in_range(0, 1, share=self.share)
      if self.share == 1:
        raise ValueError('share must be below 1, found 1: nothing is left.')
    else:
      checks.non_negative_int(number=self.number)
    checks.one_of(ORDERS, order=self.order)
    checks.non_negative_int(seed=self.seed)

  def choose(self, scores: Mapping[str, float]) -> list[str]:
    """The names of the layers to freeze, sorted.

    Args:
      scores: Each layer's score; equal scores go by name.

    Raises:
      ValueError: A score is not a number, or no layer would be left.
    """
    for name, score in scores.items():
      if not math.isfinite(score):
        raise ValueError(f'the score of {name} must be finite, found {score}.')
    number = self.number
    if number is None:
      number = int(self.share * len(scores))
    if number >= len(scores):
      raise ValueError(
          f'number {number} would freeze all of {len(scores)} layers.'
      )
    names = sorted(scores)
    if self.order == 'random':
      np.random.default_rng(self.seed).shuffle(names)
    else:
      sign = -1 if self.order == 'highest' else 1
      names.sort(key=lambda name: sign * scores[name])
    return sorted(names[:number])


def match(patterns: Collection[str], names: Collection[str]) -> list[str]:
  """The layers to freeze, sorted.

  Args:
    patterns: Names of layers, or regular expressions of whole names.
    names: Of all layers.

  Raises:
    ValueError: A pattern is no regular expression or the name of no layer, or
      no layer would be left to train.
  """
  if isinstance(patterns, str):
    raise ValueError(f'frozen must be a list of names, found {patterns!r}.')
  found = set()
  for pattern in patterns:
    try:
      matched = [name for name in names if re.fullmatch(pattern, name)]
    except re.error as error:
      raise ValueError(
          f'frozen: {pattern!r} is no regular expression ({error}).'
      ) from None
    if not matched:
      raise ValueError(
          f'frozen: {pattern!r} is the name of no layer; they are '
          f'{", ".join(sorted(names))}.'
      )
    found.update(matched)
  if len(found) == len(names):
    raise ValueError('frozen names all layers: nothing is left to train.')
  return sorted(found)


def normalized(squares: Mapping[str, float]) -> dict[str, float]:
  """Scores: squared norms over their sum; all 0 if that is 0."""
  total = sum(squares.values())
  return {
      name: value / total if total else 0.0 for name, value in squares.items()
  }
