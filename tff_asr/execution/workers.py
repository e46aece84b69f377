"""What the workers of a round do, and what they share.

A worker is one Python thread on one device. It takes blocks of clients from
the `schedule.Board`, runs the client function on its device, and puts each
block's result back; one merger consumes the results in block order. While it
trains a client, the data of those that come next are read (`read_ahead`).
"""

from collections.abc import Callable, Sequence
import functools
import threading
import time
from typing import Any, NamedTuple

import tensorflow as tf

from tff_asr.execution import worker_threads
from tff_asr.execution import graph
from tff_asr.execution import reduction
from tff_asr.execution import runner
from tff_asr.execution import schedule
from tff_asr.execution import values


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


class DeviceCohort(worker_threads.RoundExecution):
  """What the workers of one round share."""

  def __init__(
      self,
      job: runner.Job,
      *,
      devices: Sequence[str],
      num_workers: int,
      board: schedule.Board,
  ):
    super().__init__(
        clients=job.clients,
        board=board,
        stop=job.stop,
        max_failed=job.max_failed,
        timeout_sec=job.timeout_sec,
    )
    self.num_blocks = len(job.blocks)
    self.functions = job.loaded.clients
    # Of no method of this object, which owns the reader: in such a cycle all
    # tensors of the round would wait for Python's collector.
    self._get_client = functools.partial(
        _flatten, job.loaded.compiled.arguments.client, job.clients
    )
    self._broadcast = job.broadcast
    self._replicas = {device: Replica(device) for device in devices}
    self._num_workers = num_workers
    self._reader = self.functions.build_reader(
        self._get_client, num_threads=num_workers
    )

  def close(self) -> None:
    """Ends what reads ahead; to be called when the workers have ended."""
    self._reader.close(wait=not isinstance(self.failure, worker_threads.HungError))

  def get_broadcast(self, device: str) -> list[tf.Tensor]:
    return self._replicas[device].get_broadcast(self._broadcast)

  def get_zero(self, device: str) -> list[tf.Tensor]:
    with self.functions.zero_lock:
      return self._replicas[device].get_zero(self.functions.zero)

  def run_client(
      self,
      worker: Worker,
      block: schedule.Block,
      index: int,
      accumulator: Sequence[tf.Tensor],
  ) -> Sequence[tf.Tensor]:
    """Adds one client to an accumulator, recorded in the timeline.

    Args:
      worker: where.
      block: the block that the worker is at.
      index: the client's in the block.
      accumulator: empty where nothing is summed.

    Returns:
      The new accumulator, or the old one if the client failed and is left out.
    """
    position = block.positions[index]
    if self.stop.is_set():
      self.board.stop()
    self.board.check_running()
    start_sec = ready_sec = time.monotonic()
    self.begun[position] = start_sec, worker.device
    try:
      work = self.functions.get_work(worker.slot)
      datasets = self._read(block, index)
      ready_sec = time.monotonic()
      outputs = work(
          *accumulator,
          *self._get_client(position),
          *self.get_broadcast(worker.device),
          *datasets,
      )
    except Exception as error:  # pylint: disable=broad-exception-caught
      self.fail(position, error, worker.device)
      outputs = accumulator
    finally:
      del self.begun[position]
    self.timeline.append(
        worker_threads.ClientInterval(
            position,
            worker.device,
            start_sec,
            time.monotonic(),
            ready_sec - start_sec,
        )
    )
    return outputs

  def _read(self, block: schedule.Block, index: int) -> Sequence[tf.Tensor]:
    """A client's datasets; has those of the next ones read meanwhile."""
    datasets = self._reader.take(block.positions[index])
    # Any worker may get the next blocks, so as many are read as there are.
    for following in block.positions[index + 1 : index + 2] or [
        later.positions[0] for later in self.board.upcoming(self._num_workers)
    ]:
      self._reader.start(following)
    return datasets


def work(
    cohort: DeviceCohort,
    worker: Worker,
    train: Callable[[Worker, schedule.Block], Any],
) -> None:
  """A worker thread: trains one block after another until none is left."""
  with tf.device(worker.device):
    while (block := cohort.board.take()) is not None:
      cohort.board.put(block, train(worker, block))


def sum_block(
    cohort: DeviceCohort, worker: Worker, block: schedule.Block
) -> list[tf.Tensor]:
  """The sum of a block's client updates."""
  accumulator = cohort.get_zero(worker.device)
  for index in range(len(block.positions)):
    accumulator = cohort.run_client(worker, block, index, accumulator)
  return accumulator


def map_block(
    cohort: DeviceCohort, worker: Worker, block: schedule.Block
) -> list[tuple[int, list[tf.Tensor]]]:
  """Each client's position and result."""
  return [
      (position, cohort.run_client(worker, block, index, ()))
      for index, position in enumerate(block.positions)
  ]


def merge_blocks(cohort: DeviceCohort, *, device: str) -> list[tf.Tensor]:
  """The sum of all blocks, merged as `reduction` says."""
  if not cohort.num_blocks:
    return cohort.get_zero(device)
  return reduction.merge_in_order(
      cohort.board.results(),
      num_blocks=cohort.num_blocks,
      merge=lambda total, partial: cohort.functions.merge(*total, *partial),
  )


def collect_blocks(cohort: DeviceCohort) -> list[list[tf.Tensor]]:
  """Each client's result, in the order of the cohort."""
  results = [None] * len(cohort.clients)
  for block in cohort.board.results():
    for position, tensors in block:
      results[position] = tensors
  return results


def _flatten(
    layout: values.Layout, clients: Sequence[tuple], position: int
) -> list[tf.Tensor]:
  """A client's values as flat tensors."""
  return layout.flatten(clients[position], name='client value')


def _copy(tensor: tf.Tensor, device: str) -> tf.Tensor:
  """The tensor on a device; integers, strings and datasets stay on the host."""
  if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
    return tensor
  with tf.device(device):
    return tf.identity(tensor)
