"""Sums over client groups and over devices.

Sums of integers are exact in any order: each thread adds its clients, each
device its threads' sums, and `sum_over_devices` the devices' sums, pairwise.
Sums of floats (measurements, deltas without a clip) depend on the order.
`OrderedSum` adds them in the order of the client groups' numbers, whichever is
ready first, so that their bits depend neither on the number of workers nor on
their speed.
"""

from collections.abc import Callable, Sequence
import threading

import numpy as np
import tensorflow as tf


def add_arrays(*leaves: tf.Tensor | np.ndarray) -> list[np.ndarray]:
  """Adds the leaves of two groups, in a tenth of the time of a TF function.

  Args:
    *leaves: those of the left group, then those of the right one.
  """
  count = len(leaves) // 2
  # As TensorFlow, without warnings of overflows.
  with np.errstate(all='ignore'):
    return [
        np.add(np.asarray(left), np.asarray(right))
        for left, right in zip(leaves[:count], leaves[count:], strict=True)
    ]


class OrderedSum:
  """Adds the client groups' results from left to right by number; thread-safe.

  Results that arrive before their turn wait. The scheduler's `max_ahead` limits
  how many these are.
  """

  def __init__(self, merge: Callable[..., Sequence[tf.Tensor]]):
    """Adds by `merge(*left, *right)`."""
    self._merge = merge
    self._waiting = {}
    self._next = 0
    self._total = ()
    self._lock = threading.Lock()

  def add(
      self, number: int, leaves: Sequence[tf.Tensor | np.ndarray]
  ) -> None:
    """Adds a group's result. It may be added again; the first one counts."""
    with self._lock:
      # A smaller number comes again, from another worker.
      if number >= self._next:
        self._waiting[number] = leaves
      while self._next in self._waiting:
        leaves = self._waiting.pop(self._next)
        self._total = (
            # Added under the lock: the order of additions must be that of the
            # numbers.
            self._merge(*self._total, *leaves) if self._next else leaves
        )
        self._next += 1

  def total(self) -> list[tf.Tensor]:
    """Returns the sum of all groups, on the current device."""
    return list(map(tf.convert_to_tensor, self._total))


def sum_over_devices(sums: dict[str, list[tf.Tensor]]) -> list[tf.Tensor]:
  """Returns the sum of integer leaves, on the first of the devices.

  Args:
    sums: the leaves on each logical device; emptied, to free them early.
  """
  parts = list(sums.items())
  sums.clear()
  while len(parts) > 1:
    # Pairs are independent: on GPUs their additions overlap.
    for index in range(len(parts) // 2):
      device, total = parts[index]
      _, other = parts.pop(index + 1)
      with tf.device(device):
        for leaf in range(len(total)):
          total[leaf] += other[leaf]
          # Freed leaf by leaf: two whole sums would be alive otherwise.
          other[leaf] = None
  return parts[0][1]
