"""Assigns a round's clients to workers, and reassigns lost ones.

A cohort is divided into client groups (`group_clients`), of one client each
unless their sums are large. Each thread of a worker does

    while (task := scheduler.acquire(worker)) is not None:
      scheduler.complete(worker, task)     # `fail` if the worker is lost

A task is a `ClientGroup`, which the worker trains and adds to its running sum,
or, once no group is left, a `FlushSum`: the worker returns its running sum and
begins an empty one. A thread may take several groups at once (`acquire_more`).
`wait_for_sums` returns the flushed sums when they contain all groups.

Every client is in the flushed sums exactly once. A running sum is lost with its
worker, and all groups in it are assigned again; a flushed sum that is lost is
reported to `fail_sum`, with the same effect. A group has the same result on
every worker, and sums of integers are exact, so losses change no bit.
"""

import collections
from collections.abc import Hashable, Iterable, Sequence
import heapq
import math
import threading
from typing import Generic, NamedTuple, TypeVar

# Upper limit for the number of groups if their sums are large.
_MAX_LARGE_GROUPS = 32
# A group may crash every worker that trains it, for example because it needs
# too much memory. Without a limit it would be tried forever.
_MAX_LOSSES = 3

Value = TypeVar('Value')


class ClientGroup(NamedTuple):
  """Clients that one worker trains one after another.

  Attributes:
    number: position in the order of assignment, from 0.
    positions: the clients' positions in the cohort, in order of training.
  """

  number: int
  positions: tuple[int, ...]


class FlushSum(NamedTuple):
  """The worker is to return its running sum, and to begin an empty one.

  Attributes:
    groups: numbers of the groups in the sum.
  """

  groups: frozenset[int]


Task = ClientGroup | FlushSum


class FlushedSum(NamedTuple, Generic[Value]):
  """A flushed sum.

  Attributes:
    value: the sum, or a reference to it.
    groups: numbers of the groups in it.
  """

  value: Value
  groups: frozenset[int]


class RoundStopped(Exception):  # pylint: disable=g-bad-exception-name
  """The round has ended early. Threads that work on it should return."""


class WorkerLostError(ConnectionError):
  """Workers were lost, and the round cannot continue without them."""


def group_clients(
    num_clients: int,
    *,
    is_large: bool = False,
    costs: Sequence[float] | None = None,
) -> list[ClientGroup]:
  """Divides a cohort into client groups.

    >>> group_clients(3, costs=[1.0, 5.0, 1.0])[0]
    ClientGroup(number=0, positions=(1,))

  Args:
    num_clients: size of the cohort.
    is_large: whether each group returns a large sum, because it depends on the
      order of addition. If so, there are at most 32 groups of
      equal size (the last may be smaller); if not, each client is a group.
    costs: a finite number of at least 0 for each client, such as seconds of
      audio. The most expensive clients come first. None: in cohort order.

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
    # Sorting is stable, so ties keep the order of the cohort.
    order.sort(key=lambda position: -costs[position])
  # Each group's sum waits for its turn to be added, so fewer groups take less
  # memory, and less is sent.
  size = -(-num_clients // _MAX_LARGE_GROUPS) if is_large else 1
  return [
      ClientGroup(number, tuple(order[start : start + size]))
      for number, start in enumerate(range(0, num_clients, max(1, size)))
  ]


class Scheduler(Generic[Value]):
  """Assigns the tasks of one round. All methods are thread-safe.

  A worker is any hashable name. A lost worker's name is not used again.
  """

  def __init__(
      self, groups: Sequence[ClientGroup], *, max_ahead: int | None = None
  ):
    """Assigns `groups` in their order.

    Args:
      groups: numbered from 0; at least one.
      max_ahead: how many groups may be assigned from the first incomplete one
        on. Results that wait for those before them take memory. None: no
        limit.
    """
    self._groups = groups
    self._max_ahead = max_ahead
    self._num_assigned = 0
    self._lost_groups = []  # Heap of numbers of groups to be assigned again.
    self._completed = set()  # Groups that were completed at least once.
    self._first_incomplete = 0
    self._tasks = collections.defaultdict(list)  # In progress, by worker.
    self._running = collections.defaultdict(set)  # Groups in a worker's sum.
    self._sums = []
    self._lost = set()  # Workers.
    self._losses = collections.Counter()  # By group.
    self._suspects = set()  # Groups that were in progress at a loss.
    self._is_over = False
    # Two conditions: threads that wait for a task need not wake for each sum.
    # Reentrant, because methods that hold it call `check_running`.
    lock = threading.RLock()
    self._has_task = threading.Condition(lock)
    self._has_sum = threading.Condition(lock)
    self._lock = lock

  def acquire(self, worker: Hashable) -> Task | None:
    """Waits for the worker's next task; None once the round is over."""
    with self._lock:
      while not self._is_over:
        if (task := self._next(worker)) is not None:
          self._tasks[worker].append(task)
          return task
        self._has_task.wait()
      return None

  def _next(self, worker: Hashable) -> Task | None:
    """Returns the worker's next task, if there is one now."""
    own = self._tasks[worker]
    if any(isinstance(task, FlushSum) for task in own):
      return None  # The next group belongs to the next running sum.
    # Lost groups come first, by number: ordered sums may wait for them.
    if self._lost_groups:
      return self._groups[heapq.heappop(self._lost_groups)]
    if self._num_assigned < len(self._groups):
      limit = self._first_incomplete + (self._max_ahead or len(self._groups))
      if self._num_assigned >= limit:
        return None
      self._num_assigned += 1
      return self._groups[self._num_assigned - 1]
    # The last thread to complete a group flushes the sum of all threads.
    if self._running[worker] and not own:
      return FlushSum(frozenset(self._running[worker]))
    return None

  def acquire_more(self, worker: Hashable) -> ClientGroup | None:
    """Returns one more group to send along with the worker's task, if any.

    Not a group that was in progress when a worker was lost: it may be the
    reason, and alone it shows. No group if their results are large.
    """
    with self._lock:
      if self._is_over or self._max_ahead or not self.num_waiting():
        return None
      if self._lost_groups and self._lost_groups[0] in self._suspects:
        return None
      group = self._next(worker)
      self._tasks[worker].append(group)
      return group

  def num_waiting(self) -> int:
    """How many groups wait for a worker."""
    with self._lock:
      return len(self._groups) - self._num_assigned + len(self._lost_groups)

  def is_suspect(self, group: ClientGroup) -> bool:
    """Whether the group was in progress when a worker was lost."""
    with self._lock:
      return group.number in self._suspects

  def was_completed(self, group: ClientGroup) -> bool:
    """Whether the group was completed before, by a worker that was lost."""
    with self._lock:
      return group.number in self._completed

  def complete(
      self, worker: Hashable, task: Task, value: Value | None = None
  ) -> None:
    """Reports that a worker has completed a task.

    Args:
      worker: its name.
      task: a task that it acquired.
      value: of a `FlushSum`, the sum. A group's result is in the running sum.
    """
    with self._lock:
      self._remove(worker, task)
      if isinstance(task, ClientGroup):
        self._completed.add(task.number)
        while self._first_incomplete in self._completed:
          self._first_incomplete += 1
        if worker in self._lost:  # Another thread has reported it.
          self._requeue([task.number])
        else:
          self._running[worker].add(task.number)
        if self._max_ahead:  # Others may wait for the first incomplete group.
          self._has_task.notify_all()
      # The sum of a lost worker does not count: its groups run again.
      elif worker not in self._lost:
        del self._running[worker]
        self._sums.append(FlushedSum(value, task.groups))
        self._has_sum.notify_all()
        if self._lost_groups:  # Its other threads may train again.
          self._has_task.notify_all()

  def fail(
      self, worker: Hashable, task: Task, *, counts: bool = True
  ) -> None:
    """Reports that a worker is lost; its task and its sum run again.

    Each of the worker's threads calls this for its own task.

    Args:
      worker: its name.
      task: a task that it acquired.
      counts: whether the task may be the reason for the loss.

    Raises:
      WorkerLostError: the task has lost several workers already.
    """
    with self._lock:
      self._remove(worker, task)
      numbers = [task.number] if isinstance(task, ClientGroup) else task.groups
      if counts:
        self._count_loss(numbers)
      if worker not in self._lost:  # The first of its threads to report it.
        self._lost.add(worker)
        self._requeue(self._running.pop(worker, ()))
      if isinstance(task, ClientGroup):
        self._suspects.add(task.number)
        self._requeue(numbers)

  def fail_sum(self, lost: FlushedSum[Value]) -> None:
    """Reports that a flushed sum is lost; its groups run again.

    Args:
      lost: one of `wait_for_sums`.

    Raises:
      WorkerLostError: one of the groups was lost several times already.
    """
    with self._lock:
      self._sums = [each for each in self._sums if each is not lost]
      self._count_loss(lost.groups)
      self._requeue(lost.groups)

  def wait_for_sums(self) -> list[FlushedSum[Value]]:
    """Waits until all groups are in flushed sums; returns these.

    Raises:
      RoundStopped: `stop` was called before.
    """
    with self._lock:
      # A number, not a set: each group is in at most one flushed sum.
      while sum(len(each.groups) for each in self._sums) < len(self._groups):
        self.check_running()
        self._has_sum.wait()
      # A copy: callers sort it, and lost sums are removed from the list.
      return list(self._sums)

  def stop(self) -> None:
    """Ends the round: wakes all threads that wait."""
    with self._lock:
      self._is_over = True
      self._has_task.notify_all()
      self._has_sum.notify_all()

  def check_running(self) -> None:
    """Raises RoundStopped once `stop` was called; for use between clients."""
    if self.is_over():
      raise RoundStopped()

  def is_over(self) -> bool:
    """Whether `stop` was called."""
    with self._lock:
      return self._is_over

  def _remove(self, worker: Hashable, task: Task) -> None:
    """Removes a task from those in progress."""
    # By identity: a lost group may be in progress on two workers at once.
    self._tasks[worker] = [
        each for each in self._tasks[worker] if each is not task
    ]

  def _requeue(self, numbers: Iterable[int]) -> None:
    """Queues groups to be assigned once more."""
    for number in numbers:
      # A heap: the smallest number comes first, as ordered sums wait for it.
      heapq.heappush(self._lost_groups, number)
    self._has_task.notify_all()

  def _count_loss(self, numbers: Iterable[int]) -> None:
    # Sorted, so that the message names the same group each time.
    for number in sorted(numbers):
      self._losses[number] += 1
      if self._losses[number] >= _MAX_LOSSES:
        raise WorkerLostError(
            'The group with the clients at positions '
            f'{self._groups[number].positions} lost its worker {_MAX_LOSSES} '
            'times; it may need more memory than the worker has.'
        )
