"""Data parallelism: a sum over batches that several devices compute.

Central steps and DP-SGD share it. Each device has a copy of the weights and a
thread. Batches go to the devices in turn, each device adds its own, and
the first one adds the devices' sums:

    >>> total = DataParallelSum(
    ...     lambda factor, batch: factor * tf.reduce_sum(batch),
    ...     merge=tf.add,
    ...     shared_spec=tf.TensorSpec([]),
    ...     batch_spec=tf.TensorSpec([None]),
    ... )
    >>> float(total(tf.constant(2.0), [tf.constant([1.0]), tf.constant([2.0])]))
    6.0

A batch's number decides its device and its place in the sum, so the same
devices give the same bits.
"""

import collections
from collections.abc import Callable, Iterable, Sequence
import concurrent.futures
import contextlib
import functools
import itertools
from typing import Any, Generic, Optional, TypeVar

import tensorflow as tf

# Batches that a device has: one that it computes and one that waits.
_QUEUED = 2

# Nests of tensors.
_Shared = TypeVar('_Shared')
_Batch = TypeVar('_Batch')
_Sum = TypeVar('_Sum')


class DataParallelSum(Generic[_Shared, _Batch, _Sum]):
  """Sums the results of a graph function over batches, on several devices."""

  def __init__(
      self,
      compute: Callable[[_Shared, _Batch], _Sum],
      *,
      merge: Callable[[_Sum, _Sum], _Sum],
      shared_spec: Any,
      batch_spec: Any,
      devices: Optional[Sequence[str]] = None,
  ):
    """Creates the function.

    Args:
      compute: Maps the shared nest of tensors, such as weights, and a batch to
        the nest of tensors to sum. It is traced once.
      merge: Adds two sums.
      shared_spec: Tensor specs of what is shared. They leave no size open that
        could differ, or a resumed run could be traced otherwise and round
        otherwise.
      batch_spec: Tensor specs of a batch.
      devices: Names, each once. None: TensorFlow's default device.
    """
    self._compute = tf.function(
        compute, input_signature=[shared_spec, batch_spec], autograph=False
    )
    self._merge = merge
    self._devices = [None] if devices is None else list(devices)

  def __call__(
      self, shared: _Shared, batches: Iterable[_Batch]
  ) -> Optional[_Sum]:
    """Returns the sum, on the first device; None if there are no batches."""
    sums = {}
    copies = {}
    for device in self._devices:
      with device_scope(device):
        copies[device] = tf.nest.map_structure(tf.identity, shared)

    def add(device: Optional[str], batch: _Batch) -> None:
      with device_scope(device):
        found = self._compute(copies[device], batch)
        before = sums.get(device)
        sums[device] = found if before is None else self._merge(before, found)

    with contextlib.ExitStack() as stack:
      threads = {
          device: stack.enter_context(
              concurrent.futures.ThreadPoolExecutor(1)
          )
          for device in copies
      }
      running = {device: collections.deque() for device in copies}
      # Devices do not wait for each other as long as they have batches.
      for batch, device in zip(batches, itertools.cycle(self._devices)):
        # Bounds the batches in memory: reading them may be faster than
        # training.
        if len(running[device]) == _QUEUED:
          running[device].popleft().result()
        running[device].append(threads[device].submit(add, device, batch))
      for each in itertools.chain(*running.values()):
        each.result()
    if not sums:
      return None
    with device_scope(self._devices[0]):
      # In the order of the devices, not of the threads that ended first.
      return functools.reduce(
          self._merge, [sums[device] for device in copies if device in sums]
      )


def device_scope(
    device: Optional[str]
) -> contextlib.AbstractContextManager[None]:
  """The device's scope; None for TensorFlow's default device."""
  return contextlib.nullcontext() if device is None else tf.device(device)
