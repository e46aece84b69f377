"""The order in which those sums of a round are merged that depend on it.

Sums of integers do not (`compiler`); measurements, sums of deltas without a
clip, and whatever else an aggregator merges may.

The order is a tree over block numbers. Up to `FAN_IN` neighbours are merged
from left to right into one sum, then these sums in the same way, until one is
left. The tree depends only on the number of blocks, not on which worker merges
or which block is ready first. So every execution context adds in the same order
and gets the same bits. Up to `FAN_IN` blocks it is a plain fold from the left.

Memory: if blocks arrive in order, one sum a level waits: 4 for 1,000 blocks. On
Ray whole accumulators wait, with their sums of integers.
"""

from typing import NamedTuple

# A larger fan-in makes a flatter tree: fewer sums are held on the way, but more
# merges wait for each other once the last block is ready.
FAN_IN = 8


class Merge(NamedTuple):
  """The sum of two earlier sums.

  Attributes:
    number: of this sum; blocks have the numbers below.
    parts: numbers of the left and the right sum.
  """

  number: int
  parts: tuple[int, int]


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
      total, *others = level[start : start + FAN_IN]
      for other in others:
        merges.append(Merge(num_blocks + len(merges), (total, other)))
        total = merges[-1].number
      above.append(total)
    level = above
  return merges
