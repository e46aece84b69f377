"""What the workers of a round do, and what they share.

A worker is one Python thread on one device. It takes blocks of clients from
the `schedule.Board`, runs the client function on its device, and puts each
block's result back; one merger consumes the results in block order.
"""

from collections.abc import Callable, Iterator, Sequence
import threading
import time
from typing import Any, NamedTuple

import tensorflow as tf

from tff_asr.execution import form
from tff_asr.execution import graph
from tff_asr.execution import schedule


class ClientInterval(NamedTuple):
  """When and where one client's work ran.

  Attributes:
    position: the client's place in the cohort.
    device: the logical device, such as '/device:CPU:1'.
    start_sec: when its work was started, on the clock of `time.monotonic`.
    end_sec: when its function returned (a GPU may still be computing).
  """

  position: int
  device: str
  start_sec: float
  end_sec: float


class Loaded:
  """The loaded functions of one computation."""

  def __init__(self, compiled: form.Compiled):
    self.compiled = compiled
    self.lock = threading.Lock()
    if isinstance(compiled, form.Local):
      self.run = compiled.run.load()
      return
    self.prepare = compiled.prepare.load()
    if isinstance(compiled, form.Round):
      self.zero = compiled.zero.load()
      self.merge = compiled.merge.load()
      self.finish = compiled.finish.load()
    self._work = {0: compiled.work.load()}
    self._work_lock = threading.Lock()
    self.zero_lock = threading.Lock()

  def get_work(self, slot: int) -> graph.Function:
    """The client function for a worker: its own if it has variables."""
    with self._work_lock:
      if not self._work[0].has_variables:
        slot = 0
      if slot not in self._work:
        self._work[slot] = self.compiled.work.load()
      return self._work[slot]


class Replica:
  """What the clients of one device share in a round."""

  def __init__(self, device: str):
    self._device = device
    self._lock = threading.Lock()
    self._broadcast = None
    self._zero = None

  def get_broadcast(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The broadcast on this device, copied at the first call."""
    with self._lock:
      if self._broadcast is None:
        self._broadcast = [_copy(tensor, self._device) for tensor in tensors]
      return self._broadcast

  def get_zero(self, zero: graph.Function) -> list[tf.Tensor]:
    """The empty accumulator on this device, made at the first call."""
    with self._lock:
      if self._zero is None:
        with tf.device(self._device):
          self._zero = zero()
      return self._zero


class Worker(NamedTuple):
  """One thread's place: its device, and its number among all workers."""

  device: str
  slot: int


class Cohort:
  """What the workers of one round share."""

  def __init__(
      self,
      *,
      loaded: Loaded,
      clients: Sequence[tuple],
      replicas: dict[str, Replica],
      broadcast: Sequence[tf.Tensor],
      board: schedule.Board,
      stop: threading.Event,
  ):
    self.loaded = loaded
    self.clients = clients
    self.replicas = replicas
    self.broadcast = broadcast
    self.board = board
    self.stop = stop
    self.timeline = []
    self.errors = {}  # Position to the error and its device.
    self.failure = None  # An error outside any client's work.

  def get_broadcast(self, device: str) -> list[tf.Tensor]:
    return self.replicas[device].get_broadcast(self.broadcast)

  def get_zero(self, device: str) -> list[tf.Tensor]:
    with self.loaded.zero_lock:
      return self.replicas[device].get_zero(self.loaded.zero)

  def run_client(
      self, worker: Worker, position: int, accumulator: Sequence[tf.Tensor]
  ) -> list[tf.Tensor]:
    """`work(accumulator, client, broadcast)`, recorded in the timeline."""
    if self.stop.is_set():
      self.board.stop()
    self.board.check_running()
    try:
      work = self.loaded.get_work(worker.slot)
      start_sec = time.monotonic()
      tensors = self.loaded.compiled.arguments.client.flatten(
          self.clients[position], name='client value'
      )
      outputs = work(
          *accumulator, *tensors, *self.get_broadcast(worker.device)
      )
    except Exception as error:
      self.errors[position] = (error, worker.device)
      self.board.stop()
      raise schedule.Stopped() from error
    self.timeline.append(
        ClientInterval(position, worker.device, start_sec, time.monotonic())
    )
    return outputs


def work(
    cohort: Cohort,
    worker: Worker,
    train: Callable[[Worker, schedule.Block], Any],
) -> None:
  """A worker thread: trains one block after another until none is left."""
  try:
    with tf.device(worker.device):
      while (block := cohort.board.take()) is not None:
        cohort.board.put(block, train(worker, block))
  except schedule.Stopped:
    pass
  except Exception as error:  # pylint: disable=broad-exception-caught
    # Whoever waits for this worker's block would wait forever.
    cohort.failure = error
    cohort.board.stop()


def sum_block(
    cohort: Cohort, worker: Worker, block: schedule.Block
) -> list[tf.Tensor]:
  """The sum of a block's client updates."""
  accumulator = cohort.get_zero(worker.device)
  for position in block.positions:
    accumulator = cohort.run_client(worker, position, accumulator)
  return accumulator


def map_block(
    cohort: Cohort, worker: Worker, block: schedule.Block
) -> list[tuple[int, list[tf.Tensor]]]:
  """Each client's position and result."""
  return [
      (position, cohort.run_client(worker, position, ()))
      for position in block.positions
  ]


def merge_blocks(
    loaded: Loaded, cohort: Cohort, partials: Iterator[Any], *, device: str
) -> list[tf.Tensor]:
  """The sum of all blocks, merged in their order."""
  total = None
  for partial in partials:
    total = partial if total is None else loaded.merge(*total, *partial)
    del partial
  return cohort.get_zero(device) if total is None else total


def collect_blocks(
    num_clients: int, partials: Iterator[Any]
) -> list[list[tf.Tensor]]:
  """Each client's result, in the order of the cohort."""
  results = [None] * num_clients
  for block in partials:
    for position, tensors in block:
      results[position] = tensors
  return results


def _copy(tensor: tf.Tensor, device: str) -> tf.Tensor:
  """The tensor on a device; integers, strings and datasets stay on the host."""
  if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
    return tensor
  with tf.device(device):
    return tf.identity(tensor)
