"""Scheduler of a round: who trains which clients, and how sums come together.

A cohort is cut into blocks of clients (of one client, as a rule; `cut`). They
follow the order of the cohort or, if each client's cost is known, falling cost
(ties in cohort order). Each free worker takes the next block, so the longest
start first. A worker goes on with one running sum over all its blocks. Once no
block is left it hands the sum over, and sums are merged, up to `FAN_IN` at a
time and those of one place first, until one is left: the total.

So a sum moves once for each worker, not for each client. These sums are of
integers: which worker has which blocks changes no bit. What depends on the
order of addition goes to `reduction.OrderedSum`, block by block.

Between machines sums may move in parts (`Scheduler.num_parts`). Each machine
then adds another part of the same sums, all at once (a reduce-scatter), and the
last task joins the parts (a gather). With one worker a machine the busiest link
so carries two sums, not one for each machine. With several it carries more:
their sums are not added on their machine first.

A sum that is lost, with its worker or later, is lost with all its blocks: they
are dealt again. A merged one is merged again. No block is counted twice,
because a sum counts only once it is whole and handed over.
"""

from collections.abc import Hashable, Iterable, Sequence
import dataclasses
import heapq
import math
import threading
from typing import Any, NamedTuple

# Of a machine with eight workers, one merge makes one sum.
FAN_IN = 8
# Sums have a part for each machine, up to so many: with more machines, several
# groups of sums are merged at once.
MAX_PARTS = 2 * FAN_IN
# Parts of the broadcast to several machines, which hand them on to each other.
BROADCAST_PARTS = 64
# Into so many blocks a cohort is cut whose ordered sums are large.
_MAX_LARGE_BLOCKS = 32
# A block may end each worker that takes it (too little memory, a crash in an
# op). Without a limit it would be tried forever.
_MAX_LOSSES = 3


class Block(NamedTuple):
  """Clients that one worker trains one after another.

  Attributes:
    number: place in the order of dealing and of ordered sums, from 0.
    positions: the clients' positions in the cohort, in order of training.
  """

  number: int
  positions: tuple[int, ...]


class HandOver(NamedTuple):
  """A worker's running sum is to be handed over.

  Attributes:
    blocks: numbers of the blocks in the sum.
  """

  blocks: frozenset[int]


class Sum(NamedTuple):
  """A sum that was handed over, or merged.

  Attributes:
    value: whatever the worker handed in, such as a list of its parts'
      references. Of a sum that was merged in parts: a list of their results.
    blocks: numbers of the blocks in it.
    place: where the value is, such as a machine; None: its parts are in
      several places.
    merged: the sums that were added in parts, to be added again if one of
      these places is lost.
  """

  value: Any
  blocks: frozenset[int]
  place: str | None
  merged: tuple['Sum', ...] = ()


class Merge(NamedTuple):
  """Sums that are to be added.

  Attributes:
    sums: at most `FAN_IN`.
    is_total: whether they hold all blocks: the result ends the round.
    part: the part of the sums to add; None: all of them.
  """

  sums: tuple[Sum, ...]
  is_total: bool
  part: int | None = None

  @property
  def blocks(self) -> frozenset[int]:
    """Numbers of the blocks in the result."""
    return frozenset().union(*(part.blocks for part in self.sums))


Task = Block | HandOver | Merge


@dataclasses.dataclass(eq=False)
class _PartMerges:
  """Sums that are merged in parts.

  Attributes:
    sums: at most `FAN_IN`.
    waiting: parts that nobody adds.
    results: of parts that were added.
  """

  sums: tuple[Sum, ...]
  waiting: list[int]
  results: dict[int, Any] = dataclasses.field(default_factory=dict)


class Stopped(Exception):  # pylint: disable=g-bad-exception-name
  """The round has ended early; raised in whoever works or waits for it."""


class WorkerLostError(ConnectionError):
  """Workers were lost, and the round cannot go on without them."""


def cut(
    num_clients: int,
    *,
    is_large: bool = False,
    costs: Sequence[float] | None = None,
) -> list[Block]:
  """Returns the blocks of a cohort: of one client each, unless sums are large.

  Args:
    num_clients: size of the cohort.
    is_large: whether each block has a large sum of its own, which depends on
      the order of addition. Then there are at most 32 blocks, of equal size but
      for the last.
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
  size = -(-num_clients // _MAX_LARGE_BLOCKS) if is_large else 1
  return [
      Block(number, tuple(order[start : start + size]))
      for number, start in enumerate(range(0, num_clients, max(1, size)))
  ]


class Scheduler:
  """Deals the tasks of one round; each free worker takes the next.

  A worker (any hashable name) may have several threads. Each calls `take` and
  then `put`; or `lose`, if the worker is gone, which is named no more. One
  thread waits for `result`. All methods are thread-safe.

  Attributes:
    num_parts: into how many parts workers cut their sums; 1 unless set before
      the first task is taken. If it is more, sums of several places are merged
      part by part, and a place adds one part at a time.
  """

  def __init__(self, blocks: Sequence[Block], *, window: int | None = None):
    """Deals `blocks` in their order.

    Args:
      blocks: numbered from 0; at least one.
      window: how far the dealing may be ahead of the first block that is not
        done. Sums of blocks that wait for others to be added take memory.
    """
    self._blocks = blocks
    self._window = window
    self._num_dealt = 0
    self._again = []  # Heap of numbers.
    self._num_first_done = 0  # Blocks below were put at least once.
    self._done = set()  # And those above that were.
    self._in_work = {}  # Worker to the tasks of its threads.
    self._running = {}  # Worker to the blocks in its sum.
    self.num_parts = 1
    self._sums = []
    self._num_summed = 0  # Blocks in them.
    self._part_merges = []
    self._adding = {}  # Place to the part in work there.
    self._lost = set()
    self._losses = {}
    self._total = None
    self._is_done = False
    self._stopped = False
    self._changed = threading.Condition()  # Its lock may be taken twice.

  def take(self, worker: Hashable, place: str = '') -> Task | None:
    """Returns a worker's next task, waiting for one; None if all is done.

    Args:
      worker: its name.
      place: sums there are merged first.

    Raises:
      Stopped: `stop` was called before all work was done.
    """
    with self._changed:
      while True:
        # First: who waits for the result stops the round once it is there.
        if self._is_done:
          return None
        self.check_running()
        if (task := self.poll(worker, place)) is not None:
          return task
        self._changed.wait()

  def poll(self, worker: Hashable, place: str = '') -> Task | None:
    """Like `take`, but None also if there is no task now."""
    with self._changed:
      task = None if self._is_done else self._next(worker, place)
      if task is not None:
        self._in_work.setdefault(worker, []).append(task)
      return task

  def _next(self, worker: Hashable, place: str) -> Task | None:
    """What a worker can do now."""
    own = self._in_work.get(worker, ())
    if any(isinstance(task, HandOver) for task in own):
      return None
    if self._again:
      return self._blocks[heapq.heappop(self._again)]
    if self._num_dealt < len(self._blocks):
      if self._window and (
          self._num_dealt >= self._num_first_done + self._window
      ):
        return None
      self._num_dealt += 1
      return self._blocks[self._num_dealt - 1]
    is_training = any(isinstance(task, Block) for task in own)
    if self._running.get(worker) and not is_training:
      return HandOver(frozenset(self._running[worker]))
    if (part := self._next_part(place)) is not None:
      return part
    is_all = self._num_summed == len(self._blocks)
    if not is_all and len(self._sums) <= FAN_IN:
      return None
    most = FAN_IN if self.num_parts == 1 else 1
    is_total = is_all and len(self._sums) <= most
    self._sums.sort(key=lambda each: (each.place != place, each.place or ''))
    merge = Merge(tuple(self._sums[:FAN_IN]), is_total)
    del self._sums[:FAN_IN]
    self._num_summed -= len(merge.blocks)
    if is_total or self.num_parts == 1 or all(
        each.place == place for each in merge.sums
    ):
      return merge
    self._part_merges.append(
        _PartMerges(merge.sums, list(range(self.num_parts)))
    )
    return self._next_part(place)

  def _next_part(self, place: str) -> Merge | None:
    """The next part to add, unless the place has one in work."""
    if place not in self._adding:
      for each in self._part_merges:
        if each.waiting:
          merge = Merge(each.sums, False, each.waiting.pop())
          self._adding[place] = merge
          return merge
    return None

  def _of_part(self, merge: Merge) -> _PartMerges | None:
    """What a part is of; None if a sum of it was lost meanwhile."""
    found = (each for each in self._part_merges if each.sums is merge.sums)
    return next(found, None)

  def upcoming(self, count: int) -> list[Block]:
    """The next `count` blocks that were never dealt, or what is left."""
    with self._changed:
      return list(self._blocks[self._num_dealt : self._num_dealt + count])

  def was_done(self, block: Block) -> bool:
    """Returns True if the block was put before, and is dealt again."""
    with self._changed:
      return block.number < self._num_first_done or block.number in self._done

  def put(
      self, worker: Hashable, task: Task, result: Any = None, place: str = ''
  ) -> None:
    """Hands in a task's result.

    Args:
      worker: its name.
      task: a task that it took.
      result: the sum; of a block nothing, for it is in the running sum.
      place: where the sum is.
    """
    with self._changed:
      self._end(worker, task)
      if isinstance(task, Block):
        self._mark_done(task.number)
        if worker in self._lost:
          heapq.heappush(self._again, task.number)
        else:
          self._running.setdefault(worker, set()).add(task.number)
      elif isinstance(task, Merge) and task.is_total:
        self._total = result
        self._is_done = True
      elif isinstance(task, Merge) and task.part is not None:
        self._put_part(task, result)
      elif isinstance(task, Merge):
        self._add_sums([Sum(result, task.blocks, place)])
      elif worker not in self._lost:
        del self._running[worker]
        self._add_sums([Sum(result, task.blocks, place)])
      self._changed.notify_all()

  def _put_part(self, merge: Merge, result: Any) -> None:
    if (parts := self._of_part(merge)) is None:
      return
    parts.results[merge.part] = result
    if len(parts.results) == self.num_parts:
      self._part_merges.remove(parts)
      value = [parts.results[part] for part in range(self.num_parts)]
      self._add_sums([Sum(value, merge.blocks, None, merge.sums)])

  def _end(self, worker: Hashable, task: Task) -> None:
    self._in_work[worker] = [
        each for each in self._in_work.get(worker, ()) if each is not task
    ]
    self._end_part(task)

  def _end_part(self, task: Task) -> None:
    self._adding = {
        place: part for place, part in self._adding.items() if part is not task
    }

  def _mark_done(self, number: int) -> None:
    if number >= self._num_first_done:
      self._done.add(number)
    while self._num_first_done in self._done:
      self._done.remove(self._num_first_done)
      self._num_first_done += 1

  def lose(
      self, worker: Hashable, task: Task, *, counts: bool = True
  ) -> None:
    """Deals again what was lost with a worker: its task and its sum.

    Each of its threads calls this for the task in its hands.

    Args:
      worker: its name.
      task: a task that it took.
      counts: whether the task itself may have ended its worker.

    Raises:
      WorkerLostError: the task has lost several workers already.
    """
    with self._changed:
      if counts:
        self._count_loss(task)
      if worker not in self._lost:
        self._lost.add(worker)
        self._in_work.pop(worker, None)
        self._deal_again(self._running.pop(worker, ()))
      if isinstance(task, Block):
        self._deal_again([task.number])
      elif isinstance(task, Merge) and task.part is None:
        self._add_sums(task.sums)
      elif isinstance(task, Merge):
        self._end_part(task)
        if (parts := self._of_part(task)) is not None:
          parts.waiting.append(task.part)
      self._changed.notify_all()

  def lose_sum(self, worker: Hashable, merge: Merge, index: int) -> None:
    """Deals the blocks again of a sum that its merge did not find.

    If it was merged in parts, those sums are merged again.
    """
    with self._changed:
      self._end(worker, merge)
      if merge.part is not None:
        if (parts := self._of_part(merge)) is None:  # Another part told.
          self._changed.notify_all()
          return
        self._part_merges.remove(parts)
      lost = merge.sums[index]
      self._add_sums(merge.sums[:index] + merge.sums[index + 1 :])
      self._add_sums(lost.merged)
      if not lost.merged:
        self._deal_again(lost.blocks)
      self._changed.notify_all()

  def result(self) -> Any:
    """Waits for all work; returns the total.

    Raises:
      Stopped: `stop` was called before.
    """
    with self._changed:
      while not self._is_done:
        self.check_running()
        self._changed.wait()
      total, self._total = self._total, None
      return total

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
      return self._stopped or self._is_done

  def _add_sums(self, sums: Iterable[Sum]) -> None:
    for each in sums:
      self._sums.append(each)
      self._num_summed += len(each.blocks)

  def _deal_again(self, numbers: Iterable[int]) -> None:
    for number in numbers:
      heapq.heappush(self._again, number)

  def _count_loss(self, task: Task) -> None:
    numbers = [task.number] if isinstance(task, Block) else sorted(task.blocks)
    for number in numbers:
      self._losses[number] = self._losses.get(number, 0) + 1
      if self._losses[number] >= _MAX_LOSSES:
        what = (
            f'A block with the clients at positions {task.positions}'
            if isinstance(task, Block)
            else 'Handing over or merging partial sums'
        )
        raise WorkerLostError(
            f'{what} lost its worker {_MAX_LOSSES} times; it may need more '
            'memory than the worker has.'
        )
