"""Scheduler of a round: blocks of clients, and the merges of their sums.

A cohort is cut into blocks of a fixed size. They follow the order of the cohort
or, if each client's cost is known, falling cost (ties in cohort order). Each
free worker takes the next block by number, so the longest blocks start first. A
merge of `reduction.plan` goes before any further block as soon as its parts are
ready. Neither blocks nor merges depend on the number of workers or their speed,
so the result is the same to the bit.

Results may be references to values that live with a worker. If the worker is
lost, its task is dealt again (`retry`). If a value is lost, the tasks that made
it are dealt again (`recompute`).
"""

from collections.abc import Sequence
import heapq
import math
import threading
from typing import Any, NamedTuple

from tff_asr.execution import reduction

# A block may end each worker that takes it (too little memory, a crash in an
# op). Without a limit it would be tried forever.
_MAX_LOSSES = 3


class Block(NamedTuple):
  """Clients that one worker trains one after another into one sum.

  Attributes:
    number: place in the order of dealing and of merging, from 0.
    positions: the clients' positions in the cohort, in order of training.
  """

  number: int
  positions: tuple[int, ...]


Task = Block | reduction.Merge


class Stopped(Exception):  # pylint: disable=g-bad-exception-name
  """The round has ended early; raised in whoever works or waits for it."""


class WorkerLostError(ConnectionError):
  """Workers were lost, and the round cannot go on without them."""


def build_blocks(
    num_clients: int,
    *,
    block_size: int,
    costs: Sequence[float] | None = None,
) -> list[Block]:
  """Returns the blocks of a cohort.

  Args:
    num_clients: size of the cohort.
    block_size: clients a block; the last block may be smaller.
    costs: a finite number of at least 0 for each client, such as seconds of
      audio; None keeps the order of the cohort.

  Raises:
    ValueError: a cost out of range.
  """
  order = list(range(num_clients))
  if costs is not None:
    for position, cost in enumerate(costs):
      if not math.isfinite(cost) or cost < 0:
        raise ValueError(
            f'costs must be finite and at least 0, found {cost!r} for the '
            f'client at position {position}.'
        )
    order.sort(key=lambda position: -costs[position])
  return [
      Block(number, tuple(order[start : start + block_size]))
      for number, start in enumerate(range(0, num_clients, block_size))
  ]


class Scheduler:
  """Deals the tasks of one round; each free worker takes the next.

  Workers call `take` and then one of `put`, `retry` and `recompute`; one thread
  waits for `result`. All methods are thread-safe.
  """

  def __init__(self, blocks: Sequence[Block], *, max_unmerged: int):
    """Deals `blocks` in their order.

    Args:
      blocks: numbered from 0.
      max_unmerged: how many blocks may be in work or wait to be merged, at
        least 2. Each takes the memory of a sum.
    """
    merges = reduction.plan(len(blocks))
    self._tasks = {task.number: task for task in (*blocks, *merges)}
    self._num_blocks = len(blocks)
    self._parents = {part: merge for merge in merges for part in merge.parts}
    self._max_unmerged = max_unmerged
    self._next_block = 0
    self._unmerged = set()
    self._ready = []  # Heap of (blocks after merges, number).
    self._results = {}
    self._losses = {}
    self._stopped = False
    self._changed = threading.Condition()

  def take(self) -> Task | None:
    """Returns the next task, waiting for one; None if all work is done.

    Raises:
      Stopped: `stop` was called before all work was done.
    """
    with self._changed:
      while True:
        # First: who waits for the result stops the round once it is there.
        if self._is_done():
          return None
        self.check_running()
        if self._ready:
          _, number = heapq.heappop(self._ready)
          return self._tasks[number]
        if (
            self._next_block < self._num_blocks
            and len(self._unmerged) < self._max_unmerged
        ):
          self._next_block += 1
          self._unmerged.add(self._next_block - 1)
          return self._tasks[self._next_block - 1]
        self._changed.wait()

  def upcoming(self, count: int) -> list[Block]:
    """The next `count` blocks that were never dealt, or what is left."""
    with self._changed:
      last = min(self._next_block + count, self._num_blocks)
      return [self._tasks[n] for n in range(self._next_block, last)]

  def is_last(self, task: Task) -> bool:
    """Returns True if the task's result is the total."""
    return task.number == len(self._tasks) - 1

  def get_parts(self, merge: reduction.Merge) -> list[Any]:
    """Returns the results that a merge is made of, the left one first."""
    with self._changed:
      return [self._results[part] for part in merge.parts]

  def put(self, task: Task, result: Any) -> None:
    """Hands in a task's result; drops the results that it was made of."""
    with self._changed:
      self._results[task.number] = result
      for part in getattr(task, 'parts', ()):
        del self._results[part]
        self._unmerged.discard(part)
      merge = self._parents.get(task.number)
      if merge is not None and self._results.keys() >= set(merge.parts):
        self._push(merge.number)
      self._changed.notify_all()

  def retry(self, task: Task, *, counts: bool = True) -> None:
    """Deals a task again, because its worker was lost.

    Args:
      task: a task that was taken.
      counts: whether the task itself may have ended its worker.

    Raises:
      WorkerLostError: the task has lost several workers already.
    """
    with self._changed:
      losses = self._losses.get(task.number, 0) + int(counts)
      self._losses[task.number] = losses
      if losses >= _MAX_LOSSES:
        what = 'A merge of partial sums'
        if isinstance(task, Block):
          what = f'A block with the clients at positions {task.positions}'
        raise WorkerLostError(
            f'{what} lost its worker {losses} times; it may need more memory '
            'than the worker has.'
        )
      self._push(task.number)
      self._changed.notify_all()

  def recompute(self, part: int) -> None:
    """Deals the tasks again that make a lost part; its merge follows them."""
    with self._changed:
      pending = [part]
      while pending:
        number = pending.pop()
        self._results.pop(number, None)
        if number < self._num_blocks:
          self._unmerged.add(number)
          self._push(number)
        else:
          pending.extend(self._tasks[number].parts)
      self._changed.notify_all()

  def result(self) -> Any:
    """Waits for all work; returns the total.

    Raises:
      Stopped: `stop` was called before.
    """
    with self._changed:
      while not self._is_done():
        self.check_running()
        self._changed.wait()
      return self._results[len(self._tasks) - 1]

  def stop(self) -> None:
    """Ends the round: everyone waiting, and every later call, is stopped."""
    with self._changed:
      self._stopped = True
      self._changed.notify_all()

  def check_running(self) -> None:
    """Raises Stopped once `stop` was called; for use between clients."""
    with self._changed:
      if self._stopped:
        raise Stopped()

  def is_over(self) -> bool:
    """Returns True once nothing is left to take."""
    with self._changed:
      return self._stopped or self._is_done()

  def _is_done(self) -> bool:
    return len(self._tasks) - 1 in self._results

  def _push(self, number: int) -> None:
    heapq.heappush(self._ready, (number < self._num_blocks, number))
