"""Deals a round's work to workers that may be lost on the way.

The work is one task a block of clients and one a merge of `reduction.plan`. A
merge is dealt before any further block, once its parts are there. Results may
be references to values that live with a worker: where a worker or a value is
lost, its task is dealt again, and with it those whose results it needs.
"""

from collections.abc import Sequence
import heapq
import threading
from typing import Any

from tff_asr import checks
from tff_asr.execution import reduction
from tff_asr.execution import schedule

# A block whose worker is lost each time (memory that does not suffice, a crash
# in an op) would otherwise be tried forever.
_MAX_LOSSES = 3


class WorkerLostError(ConnectionError):
  """Workers were lost, and the round cannot go on without them."""


class TaskBoard:
  """Tasks of one round, dealt to the next free worker.

  Workers call `take` and then one of `put`, `give_back` and `lose`; one thread
  waits for `results`. All methods are thread-safe.
  """

  def __init__(
      self,
      blocks: Sequence[schedule.Block],
      *,
      merges: Sequence[reduction.Merge],
      num_workers: int,
  ):
    """Deals `blocks` in their order.

    Args:
      blocks: numbered from 0.
      merges: `reduction.plan(len(blocks))`; none where every block's result is
        an output.
      num_workers: how many workers take tasks, at least 1.
    """
    checks.positive_int(num_workers=num_workers)
    self._tasks = {task.number: task for task in (*blocks, *merges)}
    self._num_blocks = len(blocks)
    self._parents = {
        part: merge for merge in merges for part in merge.parts
    }
    self._outputs = (
        [merges[-1].number] if merges else [block.number for block in blocks]
    )
    # Blocks waiting to be merged take memory: no block is dealt as long as
    # this many are. It suffices for one merge and all workers' next blocks.
    self._window = (
        reduction.FAN_IN + 2 * num_workers if merges else len(blocks)
    )
    self._next_block = 0
    self._unmerged = set()
    self._ready = []  # Heap of (blocks after merges, number).
    self._results = {}
    self._losses = {}
    self._stopped = False
    self._changed = threading.Condition()

  def take(self) -> schedule.Block | reduction.Merge | None:
    """Returns the next task, waiting for one; None if all work is done.

    Raises:
      schedule.Stopped: `stop` was called.
    """
    with self._changed:
      while True:
        self._check_running()
        if self._is_done():
          return None
        if self._ready:
          _, number = heapq.heappop(self._ready)
          return self._tasks[number]
        if (
            self._next_block < self._num_blocks
            and len(self._unmerged) < self._window
        ):
          self._next_block += 1
          self._unmerged.add(self._next_block - 1)
          return self._tasks[self._next_block - 1]
        self._changed.wait()

  def is_output(self, task: schedule.Block | reduction.Merge) -> bool:
    """Whether the task's result is one of `results`."""
    return task.number not in self._parents

  def get_parts(self, merge: reduction.Merge) -> list[Any]:
    """Returns the results that a merge is made of, from left to right."""
    with self._changed:
      return [self._results[part] for part in merge.parts]

  def put(self, task: schedule.Block | reduction.Merge, result: Any) -> None:
    """Hands in a task's result, and lets go of those it was made of."""
    with self._changed:
      self._results[task.number] = result
      for part in getattr(task, 'parts', ()):
        del self._results[part]
        self._unmerged.discard(part)
      self._offer(self._parents.get(task.number))
      self._changed.notify_all()

  def give_back(
      self, task: schedule.Block | reduction.Merge, *, counts: bool = True
  ) -> None:
    """Has a task dealt again whose worker was lost.

    Args:
      task: one that was taken.
      counts: whether it may be the task that ended its worker.

    Raises:
      WorkerLostError: the task has lost several workers already.
    """
    with self._changed:
      losses = self._losses[task.number] = (
          self._losses.get(task.number, 0) + int(counts)
      )
      if losses >= _MAX_LOSSES:
        what = 'A merge of partial sums'
        if isinstance(task, schedule.Block):
          what = f'A block with the clients at positions {task.positions}'
        raise WorkerLostError(
            f'{what} lost its worker {losses} times; it may need more memory '
            'than the worker has.'
        )
      self._push(task.number)
      self._changed.notify_all()

  def lose(self, part: int) -> None:
    """Has a part made again whose value was lost, and then its merge."""
    with self._changed:
      self._forget(part)
      self._changed.notify_all()

  def results(self) -> list[Any]:
    """Waits for all work; returns the total, or each block's result.

    Raises:
      schedule.Stopped: `stop` was called before.
    """
    with self._changed:
      while not self._is_done():
        self._check_running()
        self._changed.wait()
      return [self._results[number] for number in self._outputs]

  def stop(self) -> None:
    """Ends the round: everyone waiting, and every later call, is stopped."""
    with self._changed:
      self._stopped = True
      self._changed.notify_all()

  def is_over(self) -> bool:
    """Whether nothing is left to take."""
    with self._changed:
      return self._stopped or self._is_done()

  def _is_done(self) -> bool:
    return all(number in self._results for number in self._outputs)

  def _check_running(self) -> None:
    if self._stopped:
      raise schedule.Stopped()

  def _push(self, number: int) -> None:
    heapq.heappush(self._ready, (number < self._num_blocks, number))

  def _offer(self, merge: reduction.Merge | None) -> None:
    """Makes a merge ready once all its parts are there."""
    if merge is not None and all(
        part in self._results for part in merge.parts
    ):
      self._push(merge.number)

  def _forget(self, number: int) -> None:
    """Has a result made again, with whatever it was made of."""
    self._results.pop(number, None)
    if number < self._num_blocks:
      self._unmerged.add(number)
      self._push(number)
    else:
      for part in self._tasks[number].parts:
        self._forget(part)
