"""Scheduler of a round: who trains which clients, and how sums come together.

A cohort is cut into blocks of clients (of one client, as a rule; `cut`). They
follow the order of the cohort or, if each client's cost is known, falling cost
(ties in cohort order). Each free worker takes the next block, so the longest
start first. A worker goes on with one running sum over all its blocks, which it
hands over once no block is left. These sums are of integers: which worker has
which blocks changes no bit. What depends on the order of addition goes to
`reduction.OrderedSum`, block by block.

Sums are merged in parts (`Scheduler.num_parts`), each a task of its own:

- The sums of a place, such as a machine, are merged there by all its workers,
  once none of them trains or has a running sum. No link is used.
- What is left, one sum a machine, is merged up to `FAN_IN` at a time. These
  machines add equal shares of the parts (a reduce-scatter), as soon as there
  are more than `FAN_IN` sums, or no other is to come.
- Each part of the last merge goes to the server at once (a gather), while
  others are added. The server's machine adds none of it.

So with up to `FAN_IN` machines, of any number of workers, each machine's link
carries at most one sum each way, but for the rounding of shares to parts (8 %).
With more, it carries up to as much again for each further merge of which it
adds parts: 2.1 sums were seen with 128 machines. What is lost comes on top.

A sum that is lost, with its worker or later, is lost with all its blocks: they
are dealt again. A merged one is merged again. No block is counted twice,
because a sum counts only once it is whole and handed over.

Every round ends, because everything that is waited for has an owner:

- At any time each block is in one of these: those to deal, a task in a worker's
  hands, a worker's running sum, one sum that waits, or one merge.
- Blocks to deal, and parts of merges without a place, are for any free worker.
- A running sum is handed over by the next thread of its worker that is free.
- Sums of a place wait only for those of its workers that train or have a
  running sum; they wait neither for a number of sums nor for other places.
- Parts of a merge wait for a place only while it has a worker. If its last one
  is lost, anyone may add them.
- Sums between places wait for others only while there are others: in a running
  sum, a merge, or a task.
- Who has taken a task takes the next, or is lost, and `lose` is told so.
"""

import collections
from collections.abc import Hashable, Iterable, Sequence
import heapq
import math
import threading
from typing import Any, NamedTuple

# Sums of so many machines are added at once. Each machine's link carries
# as much as one of them.
FAN_IN = 8
# Sums have so many parts if they move between machines. Of eight machines
# seven, all but the server's, add four parts each; eight others four or three.
_NUM_PARTS = 28
# Parts that a machine adds at a time: one is fetched while another is added.
# If it added more at a time, all would reach the server late.
_MAX_ADDING = 2
# Parts of the broadcast to several machines, which hand them on to each other.
BROADCAST_PARTS = 64
# A cohort whose ordered sums are large is cut into so many blocks.
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
    parts: whatever the worker handed in for each part, such as references.
    blocks: numbers of the blocks in it.
    places: where each part is, such as a machine.
    merged: the sums that were added in several places, to be added again if a
      part is lost.
  """

  parts: Sequence[Any]
  blocks: frozenset[int]
  places: tuple[str, ...]
  merged: tuple['Sum', ...] = ()


class Merge(NamedTuple):
  """A part of sums is to be added.

  Attributes:
    sums: of one place, or at most `FAN_IN`; at least one.
    part: its number.
    place: whose workers are to add it.
    is_total: whether the sums hold all blocks: the result is for the server.
  """

  sums: tuple[Sum, ...]
  part: int
  place: str
  is_total: bool

  @property
  def blocks(self) -> frozenset[int]:
    """Numbers of the blocks in the result."""
    return frozenset().union(*(each.blocks for each in self.sums))

  @property
  def places(self) -> set[str]:
    """Where the sums have this part."""
    return {each.places[self.part] for each in self.sums}

  @property
  def order(self) -> list[int]:
    """Indices of the sums, to be fetched in this order, that of `place` first.

    If all places begin at once, each fetches from another one.
    """
    places = [each.places[self.part] for each in self.sums]
    first = places.index(self.place)
    return [(first + step) % len(places) for step in range(len(places))]


Task = Block | HandOver | Merge


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


def count_parts(num_workers: int, num_places: int) -> int:
  """Parts of the sums of so many workers in so many places."""
  # In one place each worker adds a part, if all can work at once.
  return _NUM_PARTS if num_places > 1 else max(1, min(num_workers, _NUM_PARTS))


class Scheduler:
  """Deals the tasks of one round; each free worker takes the next.

  A worker (any hashable name) may have several threads. Each calls `take` and
  then `put`; or `lose`, if the worker is gone, which is named no more. One
  thread waits for `result`. All methods are thread-safe.

  Attributes:
    num_parts: into how many parts workers cut their sums; see `count_parts`.
    server_place: where the result is needed. It adds no part that is not there.

  Both are set before the first task is taken.
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
    self.server_place = None
    self._places = {}  # Of all workers that ever polled.
    self._workers = collections.defaultdict(set)  # Of a place, but lost ones.
    self._staying = collections.defaultdict(list)  # Sums of a place.
    self._ready = []  # Sums that may leave their place.
    self._results = {}  # Of merges in work, by identity of their sums: by part.
    self._waiting = collections.defaultdict(list)  # Merges by place; None: any.
    self._num_adding = collections.Counter()  # By place: parts of several.
    self._lost = set()
    self._losses = {}
    self._total = None
    self._is_done = False
    self._stopped = False
    self._lock = lock = threading.RLock()
    # What the workers of a place wait for, by place.
    self._changed = collections.defaultdict(lambda: threading.Condition(lock))
    self._ended = threading.Condition(lock)

  def take(self, worker: Hashable, place: str = '') -> Task | None:
    """Returns a worker's next task, waiting for one; None if all is done.

    Args:
      worker: its name.
      place: where it is, always the same.

    Raises:
      Stopped: `stop` was called before all work was done.
    """
    with self._lock:
      while True:
        # First: who waits for the result stops the round once it is there.
        if self._is_done:
          return None
        self.check_running()
        if (task := self.poll(worker, place)) is not None:
          return task
        self._changed[place].wait()

  def poll(self, worker: Hashable, place: str = '') -> Task | None:
    """Like `take`, but None also if there is no task now."""
    with self._lock:
      if worker not in self._places:
        self._places[worker] = place
        self._workers[place].add(worker)
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
    return self._next_merge(place)

  def _next_merge(self, place: str) -> Merge | None:
    """A part that a place can add, its own first."""
    for waiting in (self._waiting[place], self._waiting[None]):
      for index, merge in enumerate(waiting):
        if merge.places == {place}:
          return waiting.pop(index)
        if self._num_adding[place] < _MAX_ADDING:
          self._num_adding[place] += 1
          return waiting.pop(index)
    return None

  def was_done(self, block: Block) -> bool:
    """Returns True if the block was put before, and is dealt again."""
    with self._lock:
      return block.number < self._num_first_done or block.number in self._done

  def put(self, worker: Hashable, task: Task, result: Any = None) -> None:
    """Hands in a task's result.

    Args:
      worker: its name.
      task: a task that it took.
      result: of a block nothing, for it is in the running sum; of a hand-over
        the sum's parts; of a merge its part.
    """
    with self._lock:
      self._end(worker, task)
      place = self._places[worker]
      if isinstance(task, Block):
        self._mark_done(task.number)
        if worker in self._lost:
          self._deal_again([task.number])
        else:
          self._running.setdefault(worker, set()).add(task.number)
        self._wake(None if self._window else place)
      elif isinstance(task, Merge):
        self._put_part(task, result, place)
      elif worker not in self._lost:
        del self._running[worker]
        places = (place,) * self.num_parts
        self._add_sums([Sum(result, task.blocks, places)])
        self._wake(place)

  def _put_part(self, merge: Merge, result: Any, place: str) -> None:
    results = self._results.get(id(merge.sums))
    if results is None:  # A sum of it was lost meanwhile.
      return
    results[merge.part] = result, place
    if len(results) < self.num_parts:
      return
    del self._results[id(merge.sums)]
    parts, places = zip(*(results[part] for part in range(self.num_parts)))
    if merge.is_total:
      self._total = parts
      self._is_done = True
      self._wake(None)
    else:
      found = {each for one in merge.sums for each in one.places} | {*places}
      merged = merge.sums if len(found) > 1 else ()
      self._add_sums([Sum(parts, merge.blocks, places, merged)])

  def _end(self, worker: Hashable, task: Task) -> None:
    self._in_work[worker] = [
        each for each in self._in_work.get(worker, ()) if each is not task
    ]
    place = self._places[worker]
    if isinstance(task, Merge) and task.places != {place}:
      self._num_adding[place] -= 1
      self._wake(place)

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
    with self._lock:
      if counts:
        self._count_loss(task)
      self._end(worker, task)
      place = self._places[worker]
      if worker not in self._lost:
        self._lost.add(worker)
        del self._in_work[worker]
        self._workers[place].remove(worker)
        if not self._workers[place]:
          self._waiting[None] += self._waiting.pop(place, ())
        self._deal_again(self._running.pop(worker, ()))
      if isinstance(task, Block):
        self._deal_again([task.number])
      elif isinstance(task, Merge):
        self._offer(task)
      self._settle([place])
      self._wake(None)

  def lose_sum(
      self, worker: Hashable, merge: Merge, index: int | None
  ) -> None:
    """Deals the blocks again of a sum that its merge did not find.

    If it was merged in several places, those sums are merged again.

    Args:
      worker: its name.
      merge: a task that it took.
      index: of the sum; None: the result was lost, and is added again.

    Raises:
      WorkerLostError: results of these sums were lost several times.
    """
    with self._lock:
      self._end(worker, merge)
      if index is None:
        self._count_loss(merge)
        self._offer(merge)
      elif self._results.pop(id(merge.sums), None) is not None:
        for waiting in self._waiting.values():
          waiting[:] = [each for each in waiting if each.sums is not merge.sums]
        lost = merge.sums[index]
        if not lost.merged:
          self._deal_again(lost.blocks)
        self._add_sums(
            merge.sums[:index] + merge.sums[index + 1 :] + lost.merged
        )

  def result(self) -> Sequence[Any]:
    """Waits for all work; returns the total's parts.

    Raises:
      Stopped: `stop` was called before.
    """
    with self._lock:
      while not self._is_done:
        self.check_running()
        self._ended.wait()
      total, self._total = self._total, None
      return total

  def stop(self) -> None:
    """Ends the round: everyone waiting, and every later call, is stopped."""
    with self._lock:
      self._stopped = True
      self._wake(None)

  def check_running(self) -> None:
    """Raises Stopped once `stop` was called; for use between clients."""
    with self._lock:
      if self._stopped:
        raise Stopped()

  def is_over(self) -> bool:
    """Returns True once nothing is left to take."""
    with self._lock:
      return self._stopped or self._is_done

  def _add_sums(self, sums: Iterable[Sum]) -> None:
    """Adds sums to those that wait, and merges what can be."""
    places = []
    for each in sums:
      if len(set(each.places)) == 1:
        places.append(each.places[0])
        self._staying[places[-1]].append(each)
      else:
        self._ready.append(each)
    self._settle(places)

  def _settle(self, places: Iterable[str]) -> None:
    """Merges sums of these places, and those between places."""
    for place in places:
      if self._staying[place] and not any(
          map(self._has_blocks, self._workers[place])
      ):
        sums = self._staying.pop(place)
        if len(sums) > 1 and self._workers[place]:
          self._begin_merge(sums)
        else:
          self._ready += sums
    while len(self._ready) > FAN_IN:
      self._begin_merge(self._ready[:FAN_IN])
      del self._ready[:FAN_IN]
    if self._is_all(self._ready):
      self._begin_merge(self._ready)
      self._ready = []

  def _has_blocks(self, worker: Hashable) -> bool:
    """Whether a worker trains, has a running sum, or is handing it over."""
    return bool(self._running.get(worker)) or any(
        not isinstance(task, Merge) for task in self._in_work.get(worker, ())
    )

  def _is_all(self, sums: Iterable[Sum]) -> bool:
    return sum(len(each.blocks) for each in sums) == len(self._blocks)

  def _begin_merge(self, sums: Sequence[Sum]) -> None:
    sums = tuple(sums)
    is_total = self._is_all(sums)
    self._results[id(sums)] = {}
    for part in range(self.num_parts):
      places = [each.places[part] for each in sums]
      others = [each for each in places if each != self.server_place] or places
      place = others[part % len(others)]
      self._offer(Merge(sums, part, place, is_total))

  def _offer(self, merge: Merge) -> None:
    """Has a part wait for a worker, if its sums are not lost."""
    if id(merge.sums) in self._results:
      place = merge.place if self._workers[merge.place] else None
      self._waiting[place].append(merge)
      self._wake(place)

  def _deal_again(self, numbers: Iterable[int]) -> None:
    for number in numbers:
      heapq.heappush(self._again, number)
      self._wake(None)

  def _wake(self, place: str | None) -> None:
    """Has the waiting workers of a place look again; None: everyone."""
    if place is not None:
      self._changed[place].notify_all()
      return
    for changed in self._changed.values():
      changed.notify_all()
    self._ended.notify_all()

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
