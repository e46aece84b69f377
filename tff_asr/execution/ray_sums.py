"""Sums of integers as they travel between Ray workers.

    >>> sums = [pack([np.array([n, 2**31 - 1])]) for n in (1, 2)]
    >>> sums[0].num_bytes
    8
    >>> add(sums)
    [array([         3, 4294967294])]

An int64 array travels as int32 if its values fit, which halves what most rounds
send. Integer sums are exact, so the order of addition does not matter.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Not TensorFlow: a Ray task that adds sums starts in a second without it, and
# in fifteen with it.
import numpy as np

_INT32 = np.iinfo(np.int32)


class PackedSum(NamedTuple):
  """A sum of integers.

  Attributes:
    leaves: one array for each leaf.
    is_narrow: for each leaf, whether it is an int64 array stored as int32.
  """

  leaves: list[np.ndarray]
  is_narrow: list[bool]

  @property
  def num_bytes(self) -> int:
    return sum(leaf.nbytes for leaf in self.leaves)


def pack(leaves: Sequence[np.ndarray | np.generic]) -> PackedSum:
  """Stores each int64 array as int32 if all of its values fit."""
  leaves = list(map(np.asarray, leaves))
  is_narrow = [
      leaf.dtype == np.int64 and _fits_int32(leaf) for leaf in leaves
  ]
  return PackedSum(
      [
          leaf.astype(np.int32) if narrow else leaf
          for leaf, narrow in zip(leaves, is_narrow)
      ],
      is_narrow,
  )


def add(sums: Iterable[PackedSum]) -> list[np.ndarray]:
  """Returns the leaves of the total of one sum or more."""
  total = []
  for packed in sums:
    if not total:
      # Copies: arrays from the object store are read-only.
      total = [
          leaf.astype(np.int64 if narrow else leaf.dtype)
          for leaf, narrow in zip(*packed)
      ]
    else:
      # In place: a sum may be as large as the model.
      for leaf, other in zip(total, packed.leaves, strict=True):
        np.add(leaf, other, out=leaf)
  return total


def add_packed(*sums: PackedSum) -> PackedSum:
  """Returns the packed total; Ray runs this as a task."""
  return pack(add(sums))


def _fits_int32(leaf: np.ndarray) -> bool:
  # An empty array has no minimum.
  return leaf.size == 0 or bool(
      leaf.min() >= _INT32.min and leaf.max() <= _INT32.max
  )
