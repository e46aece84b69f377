"""Trains the clients of one process in one round, into running sums.

This process (`multi_device`) and Ray workers (`ray_worker`) both train through
a `ClientTrainer`. One or more threads share each device. Each thread trains one
client at a time and adds it to its own sum on the device.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from tff_asr.execution import compiler
from tff_asr.execution import graph
from tff_asr.execution import reduction


class ClientMonitor(Protocol):
  """Callbacks for the start, failure and end of each client's work."""

  def begin(self, position: int, device: str) -> None:
    """Records that a client begins; raises RoundStopped after the round."""

  def fail(self, position: int, error: Exception, device: str) -> None:
    """Records that a client failed; raises RoundStopped to end the round."""

  def end(self, position: int) -> None:
    """Records that a client is done, or left out."""


class LoadedClientPrograms(NamedTuple):
  """`compiler.ClientPrograms` in this process, for any number of threads.

  Attributes:
    programs: what was loaded.
    work: trains a client and adds its result to the accumulator.
    zero: returns the empty accumulator.
  """

  programs: compiler.ClientPrograms
  work: graph.LoadedProgram
  zero: graph.LoadedProgram


def load_programs(programs: compiler.ClientPrograms) -> LoadedClientPrograms:
  """Loads the programs into this process."""
  return LoadedClientPrograms(
      programs, work=programs.work.load(), zero=programs.zero.load()
  )


class ClientTrainer:
  """The broadcast on each device, and a running sum for each thread.

  Threads are named by their number, from 0.

  Attributes:
    devices: the device of each thread.
  """

  def __init__(
      self,
      loaded: LoadedClientPrograms,
      *,
      devices: Sequence[str],
      clients_per_device: int,
      broadcast: Sequence[tf.Tensor],
      get_client: Callable[[int], Sequence[tf.Tensor]],
  ):
    """Copies the broadcast to the devices.

    Args:
      loaded: the computation's programs.
      devices: logical devices; `flush` returns the sum on the first.
      clients_per_device: how many clients train at once on each.
      broadcast: the broadcast values.
      get_client: returns a client's flat values by its position.
    """
    # Consecutive threads are on different devices, so a small cohort uses all.
    self.devices = tuple(devices) * clients_per_device
    self._loaded = loaded
    self._get_client = get_client
    self._broadcast = {}
    self._ordered_zero = {}
    for device in devices:
      with tf.device(device):
        self._broadcast[device] = [_copy(tensor) for tensor in broadcast]
        # Made once: it is the start of each group, and is not changed in place.
        _, self._ordered_zero[device] = loaded.programs.split(loaded.zero())
    # By thread; empty until it has trained a client, and while it trains.
    self._sums = [[] for _ in self.devices]

  def train(
      self,
      thread: int,
      positions: Sequence[int],
      *,
      monitor: ClientMonitor,
  ) -> Sequence[tf.Tensor]:
    """Trains clients one after another, and adds them to the thread's sum.

    Args:
      thread: number of the calling thread.
      positions: the clients' positions in the cohort, in order of training.
      monitor: called for each client.

    Returns:
      The sums of these clients that depend on the order of addition.

    Raises:
      scheduler.RoundStopped: by `monitor`, which ends the round.
    """
    device = self.devices[thread]
    programs = self._loaded.programs
    with tf.device(device):
      # Exact leaves continue over all client groups; the others start from
      # zero for each group, because the driver adds the groups' in order.
      accumulator = programs.join(
          self._sums[thread] or programs.split(
              programs.as_variables(self._loaded.zero())
          )[0],
          self._ordered_zero[device],
      )
      # Holds no second reference to a sum that is replaced by the next one.
      self._sums[thread] = []
      for position in positions:
        monitor.begin(position, device)
        try:
          accumulator = self._loaded.work(
              *accumulator,
              *self._get_client(position),
              *self._broadcast[device],
          )
        # The accumulator is unchanged if a client fails: `work` adds last.
        except Exception as error:  # pylint: disable=broad-exception-caught
          monitor.fail(position, error, device)
        monitor.end(position)
      self._sums[thread], ordered = programs.split(accumulator)
      return ordered

  def flush(self) -> list[tf.Tensor]:
    """Returns the sum of all threads, and begins an empty one.

    Call it while no thread trains.
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
        # Threads of a device add here; only one sum of it goes further.
        if device in sums:
          for index in range(len(own)):
            sums[device][index] += own[index]
            own[index] = None  # Frees it.
        else:
          sums[device] = own
    if not sums:  # All leaves depend on the order.
      return []
    return reduction.sum_over_devices(sums)


def _copy(tensor: tf.Tensor) -> tf.Tensor:
  """Copies a tensor to this device; integers, strings and datasets stay."""
  # Shapes, seeds and round numbers are read on the host, where they are.
  if tensor.dtype.is_floating or tensor.dtype.is_complex:
    return tf.identity(tensor)
  return tensor
