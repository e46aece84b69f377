"""Sums over blocks and devices: in order where it matters, else as they come.

Sums of integers are exact in any order. Those of one process are added device
by device, pairwise, or by all-reduce (NCCL on GPUs). Other sums depend on the
order: measurements, deltas without a clip, and whatever else an aggregator
merges. `OrderedSum` adds them block by block in one order, whoever is first.
"""

from collections.abc import Callable, Sequence
import functools
import itertools
import threading

import tensorflow as tf

# A larger fan-in makes a flatter tree: fewer sums are held on the way, but the
# order is closer to one long chain, whose rounding errors grow.
FAN_IN = 8

_keys = itertools.count(1)


class OrderedSum:
  """The sum of all blocks' leaves, added in a fixed order; thread-safe.

  Up to `FAN_IN` neighbours by number are added from left to right into one sum,
  then these sums in the same way, until one is left. The order depends on the
  number of blocks alone. One sum a level waits: 4 for 1,000 blocks; beyond
  that, blocks that came before their turn.
  """

  def __init__(self, merge: Callable[..., Sequence[tf.Tensor]]):
    """Adds by `merge(*left, *right)`."""
    self._merge = merge
    self._waiting = {}
    self._next = 0
    self._levels = []  # From the lowest: how many were added, and their sum.
    self._lock = threading.Lock()

  def add(self, number: int, leaves: Sequence[tf.Tensor]) -> None:
    """Adds a block's leaves; it may come again, with the same."""
    with self._lock:
      if number >= self._next:
        self._waiting[number] = leaves
      while self._next in self._waiting:
        self._push(0, self._waiting.pop(self._next))
        self._next += 1

  def total(self) -> Sequence[tf.Tensor]:
    """Returns the sum of blocks 0 to the last; call it once, after `add`."""
    level = 0
    while level + 1 < len(self._levels):
      count, part = self._levels[level]
      if count:
        self._levels[level] = 0, None
        self._push(level + 1, part)
      level += 1
    return self._levels.pop()[1]

  def _push(self, level: int, part: Sequence[tf.Tensor]) -> None:
    """Adds a sum to those of its level."""
    if level == len(self._levels):
      self._levels.append((0, None))
    count, total = self._levels[level]
    if count:
      part = self._merge(*total, *part)
    if count + 1 < FAN_IN:
      self._levels[level] = count + 1, part
    else:
      self._levels[level] = 0, None
      self._push(level + 1, part)


def add_devices(
    sums: dict[str, list[tf.Tensor]], *, all_reduce: bool
) -> list[tf.Tensor]:
  """Returns the sum of integer leaves, on the first of the devices.

  Args:
    sums: the leaves on each logical device; emptied, to free what is added.
    all_reduce: whether all devices add at once, by a collective operation
      (NCCL on GPUs, a ring on CPUs); else pairwise.
  """
  if all_reduce and len(sums) > 1:
    return _all_reduce(sums)
  parts = list(sums.items())
  sums.clear()
  while len(parts) > 1:
    # Pairs are independent: on GPUs their additions overlap.
    for place in range(len(parts) // 2):
      device, total = parts[place]
      _, other = parts.pop(place + 1)
      with tf.device(device):
        for index in range(len(total)):
          total[index] += other[index]
          other[index] = None
  return parts[0][1]


def _all_reduce(sums: dict[str, list[tf.Tensor]]) -> list[tf.Tensor]:
  """Adds one leaf after another, on all devices at once."""
  reduce_leaf = _build_all_reduce(tuple(sums))
  parts = list(sums.values())
  sums.clear()
  for index, leaves in enumerate(zip(*parts)):
    # Each device gets the sum; the first one's is kept.
    parts[0][index] = reduce_leaf(*leaves)[0]
    for part in parts[1:]:
      part[index] = None
  return parts[0]


@functools.lru_cache
def _build_all_reduce(
    devices: tuple[str, ...]
) -> Callable[..., list[tf.Tensor]]:
  """A function from the parts of a leaf, one on each device, to its sums."""
  group = next(_keys)
  hint = 'nccl' if all(':GPU:' in device for device in devices) else 'auto'

  def reduce_leaf(*parts):
    instance = next(_keys)  # Each shape and dtype is traced once.
    sums = []
    for device, part in zip(devices, parts):
      with tf.device(device):
        sums.append(
            # The second version, with keys as tensors, did not end here.
            tf.raw_ops.CollectiveReduce(
                input=part,
                group_size=len(devices),
                group_key=group,
                instance_key=instance,
                merge_op='Add',
                final_op='Id',
                subdiv_offsets=[0],
                communication_hint=hint,
            )
        )
    return sums

  return tf.function(reduce_leaf, autograph=False)
