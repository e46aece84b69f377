"""Worker of a round: a process that trains clients into one running sum.

This process (`multi_device`) and Ray actors (`ray_worker`) both train through a
`RoundWorker`. It has one thread or more for each device. Each thread trains one
client at a time and adds it to its sum on the device, over all its blocks.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from tff_asr.execution import compiler
from tff_asr.execution import graph
from tff_asr.execution import reduction


class Monitor(Protocol):
  """Records of a round's clients, kept by whoever runs the round."""

  def begin(self, position: int, device: str) -> None:
    """Records that a client begins; raises Stopped if the round has ended."""

  def fail(self, position: int, error: Exception, device: str) -> None:
    """Records that a client failed; raises Stopped if that ends the round."""

  def end(self, position: int) -> None:
    """Records that a client is done, or left out."""


class ClientFunctions:
  """Loaded `compiler.ClientPrograms`, for several threads of a process.

  Attributes:
    programs: what was loaded.
    work: trains a client and adds its result to the accumulator.
    zero: returns the empty accumulator.
  """

  def __init__(self, programs: compiler.ClientPrograms):
    self.programs = programs
    self.work = programs.work.load()
    self.zero = programs.zero.load()


class RoundWorker:
  """One process in one round: copies of the broadcast, and a running sum.

  A thread of it is named by its number. Threads share `devices` evenly.

  Attributes:
    devices: the device of each thread.
  """

  def __init__(
      self,
      functions: ClientFunctions,
      *,
      devices: Sequence[str],
      clients_per_device: int,
      broadcast: Sequence[tf.Tensor],
      get_client: Callable[[int], Sequence[tf.Tensor]],
      all_reduce: bool,
  ):
    """Copies the broadcast to the devices.

    Args:
      functions: of the computation.
      devices: logical devices; the sum is handed over on the first.
      clients_per_device: how many clients train at once on each.
      broadcast: the broadcast values.
      get_client: a client's flat values by its position.
      all_reduce: see `reduction.add_devices`.
    """
    self.devices = tuple(devices) * clients_per_device
    self._functions = functions
    self._all_reduce = all_reduce
    self._get_client = get_client
    self._broadcast = {}
    self._ordered_zero = {}
    for device in devices:
      with tf.device(device):
        self._broadcast[device] = [_copy(tensor) for tensor in broadcast]
        _, self._ordered_zero[device] = functions.programs.split(
            functions.zero()
        )
    # Each thread's sum; none while a block is in work.
    self._sums = [[] for _ in self.devices]

  def train(
      self,
      thread: int,
      positions: Sequence[int],
      *,
      monitor: Monitor,
  ) -> Sequence[tf.Tensor]:
    """Trains clients one after another, and adds them to the thread's sum.

    Args:
      thread: number of the calling thread.
      positions: the clients' places in the cohort, in order of training.
      monitor: records each client.

    Returns:
      These clients' sums that depend on the order of addition.

    Raises:
      scheduler.Stopped: by `monitor`, which ends the round.
    """
    device = self.devices[thread]
    functions, programs = self._functions, self._functions.programs
    with tf.device(device):
      # Nothing else keeps a sum alive of which there is the next.
      accumulator = programs.join(
          self._sums[thread] or programs.split(
              programs.as_variables(functions.zero())
          )[0],
          self._ordered_zero[device],
      )
      self._sums[thread] = []
      for position in positions:
        monitor.begin(position, device)
        try:
          accumulator = functions.work(
              *accumulator,
              *self._get_client(position),
              *self._broadcast[device],
          )
        except Exception as error:  # pylint: disable=broad-exception-caught
          monitor.fail(position, error, device)
        monitor.end(position)
      self._sums[thread], ordered = programs.split(accumulator)
      return ordered

  def hand_over(self) -> list[tf.Tensor]:
    """Returns the running sum of all threads, and begins a new one.

    No thread may be at work on a block.
    """
    sums = {}
    for thread, device in enumerate(self.devices):
      own, self._sums[thread] = self._sums[thread], []
      if not own:
        continue
      with tf.device(device):
        for index, leaf in enumerate(own):
          if leaf.dtype == tf.resource:
            own[index] = graph.read_variable(leaf, tf.int64)
        if device in sums:
          for index in range(len(own)):
            sums[device][index] += own[index]
            own[index] = None
        else:
          sums[device] = own
    if not sums:  # There are no exact leaves.
      return []
    return reduction.add_devices(sums, all_reduce=self._all_reduce)


def _copy(tensor: tf.Tensor) -> tf.Tensor:
  """Copies a tensor here; integers, strings and datasets stay put."""
  if tensor.dtype.is_floating or tensor.dtype.is_complex:
    return tf.identity(tensor)
  return tensor
