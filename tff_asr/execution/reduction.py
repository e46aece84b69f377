"""The order in which the partial sums of a round are merged.

A tree over block numbers: up to `FAN_IN` neighbours are merged from left to
right to one sum, and these sums are again, until one is left. The tree depends
on the number of blocks only, not on who merges or which block was ready first,
so every execution context adds in the same order and gets the same bits. Up to
`FAN_IN` blocks it is a plain fold from the left.

Memory: merged in block order, one sum a level is held, so 4 for 1,000 blocks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# Larger trees are flatter: fewer sums held on the way, and more merges that
# wait for each other once the last block is ready.
FAN_IN = 8


class Merge(NamedTuple):
  """A sum of earlier sums.

  Attributes:
    number: of this sum; blocks have the numbers below.
    parts: numbers of the sums it is made of, from left to right.
  """

  number: int
  parts: tuple[int, ...]


def plan(num_blocks: int) -> list[Merge]:
  """Returns the merges of a round, each after its parts; the last is the total.

  Args:
    num_blocks: at least 0. There is nothing to merge below 2.
  """
  merges = []
  level = list(range(num_blocks))
  while len(level) > 1:
    above = []
    for start in range(0, len(level), FAN_IN):
      parts = tuple(level[start : start + FAN_IN])
      if len(parts) > 1:
        merges.append(Merge(num_blocks + len(merges), parts))
        above.append(merges[-1].number)
      else:
        above.append(parts[0])
    level = above
  return merges


def merge_in_order(
    partials: Iterator[Any],
    *,
    num_blocks: int,
    merge: Callable[[Any, Any], Any],
) -> Any:
  """Returns the total of partial sums that come in block order.

  Args:
    partials: one sum a block; each is asked for once the last one is merged as
      far as it can be.
    num_blocks: how many there are, at least 1.
    merge: two sums to their sum.
  """
  parts = {step.number: step.parts for step in plan(num_blocks)}
  total = num_blocks + len(parts) - 1 if parts else 0
  return _get_sum(total, parts, partials, merge)


# No closure that calls itself: it would hold the sums until garbage is
# collected, rounds later.
def _get_sum(
    number: int,
    parts: Mapping[int, Sequence[int]],
    partials: Iterator[Any],
    merge: Callable[[Any, Any], Any],
) -> Any:
  """The sum of a number: a block's own, or that of its parts."""
  if number not in parts:
    return next(partials)
  first, *others = parts[number]
  total = _get_sum(first, parts, partials, merge)
  for part in others:
    total = merge(total, _get_sum(part, parts, partials, merge))
  return total
