"""Client loop: the clients of a block, one after another, into one sum.

Threads of this process (`multi_device`) and Ray actors (`ray_worker`) both run
their blocks through `run_block`. While one client trains, the next one's data
are read (`prefetch`).
"""

from collections.abc import Callable, Hashable, Sequence
import itertools
import threading
import time
from typing import NamedTuple, Protocol

import tensorflow as tf

from tff_asr.execution import compiler
from tff_asr.execution import graph
from tff_asr.execution import prefetch


class ClientInterval(NamedTuple):
  """Time and place of one client's work.

  Attributes:
    position: the client's place in the cohort.
    device: the logical device, such as '/device:CPU:1'.
    start_sec: when its work was started, on the clock of `time.monotonic`.
    end_sec: when its function returned (a GPU may still be computing).
    waited_sec: how much of that time its worker waited for the client's data.
  """

  position: int
  device: str
  start_sec: float
  end_sec: float
  waited_sec: float


class Monitor(Protocol):
  """Records of a round's clients, kept by whoever runs the round."""

  def begin(self, position: int, device: str) -> None:
    """Records that a client begins; raises Stopped if the round has ended."""

  def fail(self, position: int, error: Exception, device: str) -> None:
    """Records that a client failed; raises Stopped if that ends the round."""

  def end(self, interval: ClientInterval) -> None:
    """Records that a client is done, or left out."""


_numbers = itertools.count()


class ClientFunctions:
  """Loaded `compiler.ClientPrograms`, for several threads of a process.

  Attributes:
    zero: returns the empty accumulator.
    merge: adds two accumulators.
    merge_ordered: adds the leaves of two accumulators that are not exact.
  """

  def __init__(self, programs: compiler.ClientPrograms):
    self._programs = programs
    self._read = programs.read and programs.read.program.load()
    self._number = next(_numbers)
    self._work = {0: programs.work.load()}
    self._lock = threading.Lock()
    self.zero = programs.zero.load()
    self.merge = programs.merge.load()
    self.merge_ordered = lambda *unused: []
    if programs.merge_ordered is not None:
      self.merge_ordered = programs.merge_ordered.load()

  def split(
      self, accumulator: Sequence[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns an accumulator's exact leaves and the others."""
    parts = [], []
    for leaf, is_exact in zip(accumulator, self._programs.is_exact):
      parts[not is_exact].append(leaf)
    return parts

  def join(
      self, exact: Sequence[tf.Tensor], ordered: Sequence[tf.Tensor]
  ) -> list[tf.Tensor]:
    """The accumulator that `split` split."""
    parts = iter(exact), iter(ordered)
    return [next(parts[not is_exact]) for is_exact in self._programs.is_exact]

  def build_reader(
      self,
      get_client: Callable[[Hashable], Sequence[tf.Tensor]],
      *,
      num_threads: int,
  ) -> prefetch.Reader:
    """Returns a reader of clients' data, which the caller closes.

    Args:
      get_client: the flat values of a client by its key.
      num_threads: how many clients are read at once.
    """
    return prefetch.Reader(
        self._read,
        elements=self._programs.read.elements if self._read else (),
        get_client=get_client,
        num_threads=num_threads,
        computation=self._number,
    )

  def get_work(self, worker: int) -> graph.Function:
    """The client function for a worker: its own if it has variables."""
    with self._lock:
      if not self._work[0].has_variables:
        worker = 0
      if worker not in self._work:
        self._work[worker] = self._programs.work.load()
      return self._work[worker]


def run_block(
    positions: Sequence[int],
    *,
    functions: ClientFunctions,
    worker: int,
    device: str,
    zero: Sequence[tf.Tensor],
    broadcast: Sequence[tf.Tensor],
    get_client: Callable[[int], Sequence[tf.Tensor]],
    reader: prefetch.Reader,
    get_upcoming: Callable[[], Sequence[int]],
    monitor: Monitor,
) -> Sequence[tf.Tensor]:
  """Trains clients one after another.

  Args:
    positions: the clients' places in the cohort, in order of training.
    functions: of the computation.
    worker: number of the worker among those that share `functions`.
    device: the logical device that this runs on, for records.
    zero: the accumulator to begin with.
    broadcast: the broadcast values, on this device.
    get_client: a client's flat values by its position.
    reader: reads clients by their positions.
    get_upcoming: positions of clients that may come after this block.
    monitor: records each client.

  Returns:
    The accumulator with the clients' updates.

  Raises:
    scheduler.Stopped: by `monitor`, which ends the round.
  """
  accumulator = zero
  del zero  # A large model's sum is freed as soon as there is the next.
  for index, position in enumerate(positions):
    monitor.begin(position, device)
    start_sec = ready_sec = time.monotonic()
    try:
      work = functions.get_work(worker)
      datasets = reader.take(position)
      for following in positions[index + 1 : index + 2] or get_upcoming():
        reader.start(following)
      ready_sec = time.monotonic()
      accumulator = work(
          *accumulator, *get_client(position), *broadcast, *datasets
      )
    except Exception as error:  # pylint: disable=broad-exception-caught
      monitor.fail(position, error, device)
    monitor.end(
        ClientInterval(
            position,
            device,
            start_sec,
            time.monotonic(),
            ready_sec - start_sec,
        )
    )
  return accumulator
