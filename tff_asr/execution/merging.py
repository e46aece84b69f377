"""The order in which the partial sums of a round are merged.

A tree over block numbers: up to `FAN_IN` neighbours are merged from left to
right to one sum, and these sums are again, until one is left. The tree depends
on the number of blocks only, not on who merges or which block was ready first,
so every execution context adds in the same order and gets the same bits. Up to
`FAN_IN` blocks it is a plain fold from the left.

Memory: merged in block order, one sum a level is held, so 4 for 1,000 blocks.
"""

from collections.abc import Callable, Iterator
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
  merges = {step.number: step for step in plan(num_blocks)}

  def get_sum(number: int) -> Any:
    if number < num_blocks:
      return next(partials)
    first, *others = merges[number].parts
    total = get_sum(first)
    for part in others:
      total = merge(total, get_sum(part))
    return total

  return get_sum(num_blocks + len(merges) - 1 if merges else 0)
