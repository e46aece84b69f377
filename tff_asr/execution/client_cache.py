"""The data of the clients read last, kept in memory for the next rounds.

In a simulation clients come again: a small corpus is read once and then comes
out of memory. What is kept is a client's datasets by its values (its id, as a
rule), which determine them for a computation: `client_datasets` separates
nothing else. All computations of a process share its memory, `IN_PROCESS`.
"""

import collections
from collections.abc import Hashable, Sequence
import itertools
import threading

import tensorflow as tf

MAX_BYTES = 2**29


class KeptClients:
  """Clients' datasets, the latest up to a number of bytes; thread-safe."""

  def __init__(self, max_bytes: int = MAX_BYTES):
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._kept = collections.OrderedDict()
    self._lock = threading.Lock()

  def part(self) -> 'Part':
    """A new computation's own clients."""
    return Part(self)

  def clear(self) -> None:
    """Keeps nothing of what was read so far."""
    with self._lock:
      self._kept.clear()
      self._num_bytes = 0

  def get(self, key: Hashable | None) -> list[tf.Tensor] | None:
    """The datasets, variants, kept under a key; None: there are none."""
    with self._lock:
      if key not in self._kept:
        return None
      self._kept.move_to_end(key)
      datasets, _ = self._kept[key]
      return datasets

  def put(
      self, key: Hashable | None, datasets: list[tf.Tensor], num_bytes: int
  ) -> None:
    """Keeps a client's datasets, unless it has no key or they are too large.

    Args:
      key: `key_of` the client's values.
      datasets: Variants.
      num_bytes: That their elements take.
    """
    if key is None or num_bytes > self._max_bytes:
      return
    with self._lock:
      if key in self._kept:  # Read by two at once.
        return
      self._kept[key] = datasets, num_bytes
      self._num_bytes += num_bytes
      while self._num_bytes > self._max_bytes:
        _, (_, freed) = self._kept.popitem(last=False)
        self._num_bytes -= freed


class Part:
  """Some of the clients kept, whose keys are nobody else's."""

  _counter = itertools.count()

  def __init__(self, whole: KeptClients):
    self._whole = whole
    self._number = next(self._counter)

  def get(self, key: Hashable | None) -> list[tf.Tensor] | None:
    """As `KeptClients.get`."""
    return self._whole.get(self._own(key))

  def put(
      self, key: Hashable | None, datasets: list[tf.Tensor], num_bytes: int
  ) -> None:
    """As `KeptClients.put`."""
    self._whole.put(self._own(key), datasets, num_bytes)

  def _own(self, key: Hashable | None) -> Hashable | None:
    return None if key is None else (self._number, key)


IN_PROCESS = KeptClients()


def key_of(values: Sequence[tf.Tensor]) -> Hashable | None:
  """A client's values as a key; None where they are not small (data itself)."""
  if any(
      value.dtype in (tf.variant, tf.resource) or value.shape.rank != 0
      for value in values
  ):
    return None
  return tuple((value.dtype.name, value.numpy()) for value in values)
