"""Rounds on Ray actors; see `ray_cluster`.

One thread of this process serves each thread of an actor: it takes tasks from
the round's `scheduler.Scheduler`, sends them to the actor, and puts references
to the results back. A lost actor is replaced; `_ActorThreads` says how.
"""

from collections.abc import Callable
import errno
import functools
import itertools
import math
import os
import threading
import time
from typing import Any

from absl import logging
import ray
import tensorflow as tf

from tff_asr.execution import compiler
from tff_asr.execution import context
from tff_asr.execution import devices
from tff_asr.execution import ray_session
from tff_asr.execution import ray_worker
from tff_asr.execution import round_execution
from tff_asr.execution import scheduler

# TensorFlow takes 15 s to load on a slow machine, and more when several load.
_START_TIMEOUT_SEC = 180.0
_POLL_SEC = 0.2

# Ray raises these when an actor's process or machine is gone.
LOSSES = (
    ray.exceptions.RayActorError,
    ray.exceptions.NodeDiedError,
    # Ray's memory monitor ended the process.
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.WorkerCrashedError,
)


class _NoAnswerError(Exception):
  """A worker is there, and cannot use its object store."""


_STORE_FULL = (
    ray.exceptions.ObjectStoreFullError,
    ray.exceptions.OutOfDiskError,
)


def _put(value: Any) -> ray.ObjectRef:
  """Puts a value into this machine's object store.

  Raises:
    OSError: it is full, and so is the disk that it spills to.
  """
  try:
    return ray.put(value)
  except _STORE_FULL as error:
    raise OSError(
        errno.ENOSPC,
        f"Ray's object store on this machine is full ({type(error).__name__}): "
        'start Ray with a larger --object-store-memory, or make room on the '
        'disk of its --temp-dir.',
    ) from error


# Calls of this concurrency group have a thread of their own in the actor, so
# they do not wait for the block in work.
_CONTROL = 'control'


class Actor:
  """One actor, from its launch to its end.

  Attributes:
    handle: Ray's handle.
    devices: the devices of its threads; None until it has started.
    node: its machine, for messages.
    place: Ray's id of the machine.
  """

  def __init__(
      self, options: dict[str, Any], start_arguments: dict[str, Any]
  ):
    remote = ray.remote(concurrency_groups={_CONTROL: 1})(
        ray_worker.RayWorker
    )
    # No restarts by Ray: a restarted actor would have to be prepared anew.
    self.handle = remote.options(max_restarts=0, **options).remote()
    self.devices = None
    self.node = 'not started'
    self.place = None
    self._started = self.handle.start.remote(**start_arguments)

  def wait(self, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Waits until the actor has started; returns whether it has.

    It returns False after `_START_TIMEOUT_SEC`, or once `is_over()`; the caller
    may ask again later.

    Raises:
      ValueError: the actor's node lacks something, which the message names.
      LOSSES: the actor was lost.
    """
    deadline = time.monotonic() + _START_TIMEOUT_SEC
    while self.devices is None:
      ready, _ = ray.wait([self._started], timeout=_POLL_SEC)
      if ready:
        try:
          devices_found, self.node, self.place = _get(self._started)
        except (*LOSSES, ValueError):
          raise
        except Exception as error:
          # The code there may be so old that it does not know the arguments.
          raise ValueError(
              f'A Ray worker did not start ({_last_line(error)}); put the same '
              'copy of this project on every machine.'
          ) from error
        self.devices = devices_found
      elif is_over() or time.monotonic() >= deadline:
        return False
    return True

  def ping(self) -> ray.ObjectRef:
    """Returns a reference that is ready as soon as the actor answers."""
    return self.handle.ping.options(concurrency_group=_CONTROL).remote()

  def end_round(self, number: int) -> None:
    """Has the actor end work on a round."""
    self.handle.end_round.options(concurrency_group=_CONTROL).remote(number)

  def end(self) -> None:
    """Ends the actor, which may still run: Ray may only have lost sight."""
    ray.kill(self.handle)


class WorkerSlot:
  """A place in the pool.

  Attributes:
    actor: the one that runs there now.
    num_threads: how many clients it trains at once.
  """

  def __init__(
      self, options: dict[str, Any], start_arguments: dict[str, Any]
  ):
    self._arguments = options, start_arguments
    self.num_threads = options['max_concurrency']
    self._lock = threading.Lock()
    self.actor = Actor(*self._arguments)

  def replace(self, actor: Actor) -> None:
    """Starts another actor if the slot still has this one, which was lost."""
    with self._lock:
      if self.actor is actor:
        logging.warning('Lost a Ray worker: %s.', actor.node)
        actor.end()
        self.actor = Actor(*self._arguments)


class RayRunner(context.Runner):
  """Runs clients on Ray actors, and the server's part in this process."""

  draws_ahead = True  # This process trains no client.

  def __init__(self, settings: Any):
    """Connects to the cluster and starts the actors.

    Args:
      settings: `ray_cluster.Settings`.
    """
    ray_session.connect(
        settings.address,
        num_cpus=(settings.num_workers or 1) * settings.cpus_per_worker,
    )
    self._start_arguments = dict(
        folder=os.getcwd(),
        software=ray_worker.find_software(),
        num_threads=settings.cpus_per_worker,
        op_libraries=tuple(settings.op_libraries),
        required_files=ray_worker.digest_all(
            settings.required_paths, machine='This machine'
        ),
        clients_per_device=settings.clients_per_device,
        gpu_memory_mb=settings.gpu_memory_mb,
        all_reduce=settings.all_reduce,
    )
    self._slots = {}  # By place; see `_place`.
    # GPUs and CPUs give other bits, so all actors are of one kind for good.
    self._on_gpus = _have_gpus(_find_nodes())
    self._has_warned = False
    self._computations = itertools.count()
    self._rounds = itertools.count()
    super().__init__(settings, server_device=devices.find(None)[0])
    self._fill_slots()
    _wait_for_all(self.worker_slots)

  @property
  def worker_slots(self) -> list[WorkerSlot]:
    """Of the actors that run or are being started."""
    return list(self._slots.values())

  @property
  def num_threads(self) -> int:
    return sum(slot.num_threads for slot in self.worker_slots)

  def _fill_slots(self) -> None:
    """Starts actors where the cluster has room that it had not before.

    An actor whose machine is gone is forgotten, unless it began elsewhere. If
    no room is left, all stay: the round waits for them to be replaced, and ends
    if they are not.

    Raises:
      ValueError: the cluster is too small for the first actors.
    """
    nodes = _find_nodes()
    if _have_gpus(nodes) and not (self._on_gpus or self._has_warned):
      self._has_warned = True
      logging.warning(
          'The Ray cluster has GPUs now. This program began without GPUs, and '
          'keeps to CPUs; start it again to train on GPUs.'
      )
    try:
      places = _place(self.settings, nodes, on_gpus=self._on_gpus)
    except ValueError:
      if not self._slots:
        raise
      return
    for place, options in places.items():
      if place not in self._slots:
        self._slots[place] = WorkerSlot(options, self._start_arguments)
    for place in self._slots.keys() - places.keys():
      if self._slots[place].actor.devices is None:
        self._slots.pop(place).actor.end()

  def load_clients(
      self, programs: compiler.ClientPrograms
  ) -> tuple[int, ray.ObjectRef]:
    """Returns a name for the programs, and a reference to them."""
    return next(self._computations), _put(programs)

  def run_clients(
      self, execution: round_execution.RoundExecution
  ) -> list[tf.Tensor]:
    if self.settings.num_workers is None:
      # Machines come and go. Those that came take part once they have started.
      self._fill_slots()
    slots = self.worker_slots
    num_places = len({slot.actor.place for slot in slots} - {None})
    execution.scheduler.num_parts = scheduler.count_parts(
        len(slots), num_places
    )
    execution.scheduler.server_place = (
        ray.get_runtime_context().get_node_id()
    )
    computation, programs = execution.functions
    broadcast = ray_worker.pack(execution.broadcast)
    execution.store_bytes += ray_worker.count_bytes(broadcast)
    broadcast_parts = ray_worker.cut(
        execution.broadcast, scheduler.BROADCAST_PARTS if num_places > 1 else 1
    )
    key = ray_worker.RoundKey(
        number=next(self._rounds),
        computation=computation,
        programs=[programs],
        broadcast=[
            _put({number: broadcast[number] for number in numbers})
            for numbers in broadcast_parts
        ],
        leaves_out=execution.max_failed > 0,
    )
    served = [
        (slot, thread) for slot in slots for thread in range(slot.num_threads)
    ]
    threads = _ActorThreads(
        execution,
        key,
        num_threads=len(served),
        server_device=self._server_device,
    )
    try:
      # No time limit here: `serve` gives up a hung worker and replaces it.
      parts = execution.run(
          [functools.partial(threads.serve, *each) for each in served]
      )
      with tf.device(self._server_device):
        return execution.total(ray_worker.join(parts))
    finally:
      for slot in slots:
        slot.actor.end_round(key.number)


class _ActorThreads:
  """One round's threads, one for each thread of an actor; what they share.

  - What is lost with an actor goes back to the scheduler (`lose`): its tasks,
    and the blocks in its running sum. The loss counts against a task only if
    the actor had answered a ping before.
  - An actor whose object store is of no use counts as lost, with its task.
  - The lost actor is replaced. Its threads leave the round if the replacement
    does not start in time, is lost while it starts, or lacks something.
  - The round ends with `WorkerLostError` when the last thread leaves before the
    work is done, or when one task has lost too many actors.
  - A client's error is recorded (`RoundExecution.fail`) and loses no actor.
  """

  def __init__(
      self,
      execution: round_execution.RoundExecution,
      key: ray_worker.RoundKey,
      *,
      num_threads: int,
      server_device: str,
  ):
    self._execution = execution
    self._tasks = execution.scheduler
    self._key = key
    self._num_left = num_threads
    self._server_device = server_device
    self._lock = threading.Lock()

  def serve(self, slot: WorkerSlot, thread: int) -> None:
    """Serves one thread of an actor: one task after another."""
    while self._is_running(slot, actor := slot.actor):
      task = self._tasks.take(actor, actor.place)
      if task is None:
        return
      was_there = False
      try:
        # A machine dies with all its actors at once. An actor that was dead
        # before it got the task says nothing about the task.
        self._ping(actor)
        was_there = True
        self._run(actor, thread, task)
      except _NoAnswerError as error:
        logging.warning('A Ray worker is given up: %s', error)
        slot.replace(actor)
        # Each replacement may find the same full store.
        self._tasks.lose(actor, task)
      except (*LOSSES, *_STORE_FULL):
        slot.replace(actor)
        self._tasks.lose(actor, task, counts=was_there)
    self._leave()

  def _is_running(self, slot: WorkerSlot, actor: Actor) -> bool:
    """Waits for an actor that is being started; returns whether it is."""
    try:
      return actor.wait(
          lambda: self._tasks.is_over() or self._execution.stop.is_set()
      )
    except LOSSES:
      slot.replace(actor)
    except ValueError as error:
      logging.warning('A lost Ray worker is not replaced: %s', error)
    return False

  def _leave(self) -> None:
    """Ends the round if the last thread leaves before the work is done."""
    with self._lock:
      self._num_left -= 1
      if self._execution.stop.is_set():
        self._tasks.stop()
      elif not self._num_left and not self._tasks.is_over():
        self._execution.failure = scheduler.WorkerLostError(
            'All Ray workers were lost, and none could be started again; see '
            '`ray status`.'
        )
        self._tasks.stop()

  def _ping(self, actor: Actor) -> None:
    """Waits until an actor answers.

    Raises:
      LOSSES: it is gone, or exceeded the time limit.
      _NoAnswerError: it is there, and its object store or disk is of no use.
    """
    try:
      self._wait(actor.ping(), timeout_sec=self._execution.timeout_sec)
    except LOSSES:
      raise
    except (ray.exceptions.RayError, OSError) as error:
      raise _NoAnswerError(_last_line(error)) from error

  def _run(self, actor: Actor, thread: int, task: scheduler.Task) -> None:
    """Runs a task and puts its result back, or a reference to it."""
    if isinstance(task, scheduler.Block):
      self._train(actor, thread, task)
      self._tasks.put(actor, task)
    elif isinstance(task, scheduler.HandOver):
      num_bytes, *parts = actor.handle.hand_over.options(
          num_returns=1 + self._tasks.num_parts
      ).remote(self._key, self._tasks.num_parts)
      self._count(self._wait(num_bytes))
      self._tasks.put(actor, task, parts)
    else:
      self._merge(actor, task)

  def _merge(self, actor: Actor, task: scheduler.Merge) -> None:
    """Has an actor add a part of sums; fetches it, if it is of the total.

    What is all on this machine, and of the total, is added in this process.
    """
    lost = task.order
    parts = [task.sums[index].parts[task.part] for index in lost]
    is_here = len(parts) == 1 or task.places == {self._tasks.server_place}
    try:
      if not (task.is_total and is_here):
        merge = actor.handle.merge.options(num_returns=2)
        num_bytes, result = merge.remote(parts)
        self._count(self._wait(num_bytes))
        parts, lost = [result], [None]
      if task.is_total:
        with tf.device(self._server_device):
          result = ray_worker.add(parts, get=ray.get)
    except ray_worker.SumLostError as error:
      self._tasks.lose_sum(actor, task, lost[error.index])
    else:
      self._tasks.put(actor, task, result)

  def _count(self, num_bytes: int) -> None:
    with self._lock:
      self._execution.store_bytes += num_bytes

  def _train(
      self, actor: Actor, thread: int, block: scheduler.Block
  ) -> None:
    """Trains a block on an actor, into its running sum.

    Raises:
      scheduler.Stopped: the round has ended.
      LOSSES: the actor was lost, or its report.
    """
    execution = self._execution
    device = f'{actor.devices[thread]} of node {actor.node}'
    was_done = self._tasks.was_done(block)
    clients = {}
    for position in block.positions:
      if position in execution.errors:  # It failed on a worker that was lost.
        continue
      try:
        clients[position] = ray_worker.pack(execution.get_client(position))
      except Exception as error:  # pylint: disable=broad-exception-caught
        execution.fail(position, error, device, is_repeated=was_done)
    limit = execution.timeout_sec
    try:
      report = self._wait(
          actor.handle.train.remote(
              self._key, thread, tuple(clients), list(clients.values())
          ),
          timeout_sec=limit and limit * len(block.positions),
      )
    except ray.exceptions.ObjectLostError as error:
      # A report with large sums lies in the store of the worker's machine.
      raise ray.exceptions.WorkerCrashedError() from error
    for position, error in report.errors:
      execution.fail(position, error, device, is_repeated=was_done)
    if report.ordered is None:
      raise scheduler.Stopped()
    self._count(ray_worker.count_bytes(report.ordered))
    with tf.device(self._server_device):
      execution.add_ordered(block.number, ray_worker.unpack(report.ordered))

  def _wait(
      self, reference: ray.ObjectRef, *, timeout_sec: float | None = None
  ) -> Any:
    """Waits for a reference's value, or until the round is cancelled.

    Raises:
      scheduler.Stopped: the round was cancelled.
      LOSSES: the worker was lost, or exceeded the time limit.
    """
    begun_sec = time.monotonic()
    while not ray.wait([reference], timeout=_POLL_SEC)[0]:
      if self._execution.stop.is_set():
        self._tasks.stop()
        raise scheduler.Stopped()
      if timeout_sec and time.monotonic() - begun_sec > timeout_sec:
        logging.warning(
            'A Ray worker has been at a block or a ping for more than %g s '
            '(CLIENT_TIMEOUT_SEC for each client) and is given up.', timeout_sec
        )
        raise ray.exceptions.WorkerCrashedError()
    return _get(reference)


def _wait_for_all(slots: list[WorkerSlot]) -> None:
  """Waits until all actors are ready.

  Raises:
    ValueError: a node lacks something.
    ConnectionError: workers did not start.
  """
  for slot in slots:
    try:
      is_ready = slot.actor.wait()
    except LOSSES as error:
      raise ConnectionError(
          f'A Ray worker did not start ({_last_line(error)}); run `ray start` '
          'in a copy of this project, at the same path on every machine.'
      ) from error
    if not is_ready:
      raise ConnectionError(
          f'Not all {len(slots)} Ray workers started in '
          f'{_START_TIMEOUT_SEC:.0f} s; free are {ray.available_resources()}; '
          'end other work on the cluster or lower num_workers.'
      )


def _get(reference: ray.ObjectRef) -> Any:
  """Returns the value; raises what was raised in the worker itself."""
  try:
    return ray.get(reference)
  except ray.exceptions.RayTaskError as error:
    # The error's own message is a traceback; its cause has the one line.
    raise error.cause if isinstance(error.cause, Exception) else error


def _find_nodes() -> dict[str, dict[str, float]]:
  """The resources of each machine that is there, by Ray's id of it."""
  return {
      node['NodeID']: node['Resources'] for node in ray.nodes() if node['Alive']
  }


def _have_gpus(nodes: dict[str, dict[str, float]]) -> bool:
  return any(resources.get('GPU', 0) >= 1 for resources in nodes.values())


def _place(
    settings: Any, nodes: dict[str, dict[str, float]], *, on_gpus: bool
) -> dict[Any, dict[str, Any]]:
  """Returns each actor's options, its resources and node, by its place.

  A place is a number if `num_workers` is set, else a node and a number on it.

  Args:
    settings: `ray_cluster.Settings`.
    nodes: what `_find_nodes` returned.
    on_gpus: whether actors use GPUs. If not, each machine has one at most.

  Raises:
    ValueError: the cluster is too small.
  """
  num_workers, num_cpus = settings.num_workers, settings.cpus_per_worker
  num_gpus = settings.gpus_per_worker if on_gpus else 0
  rooms = {
      node_id: min(
          int(resources.get('CPU', 0)) // num_cpus,
          int(resources.get('GPU', 0)) // num_gpus if on_gpus else math.inf,
      )
      for node_id, resources in nodes.items()
  }
  room = sum(rooms.values())
  if room < max(1, num_workers or 1):
    raise ValueError(
        f'num_workers is {num_workers}, but the {len(nodes)} nodes of the Ray '
        f'cluster have room for {room} workers with {num_cpus} CPUs'
        f'{f" and {num_gpus} GPUs" if on_gpus else ""} each.'
    )
  options = dict(
      num_cpus=num_cpus,
      num_gpus=num_gpus,
      max_concurrency=settings.clients_per_device * max(1, num_gpus),
  )
  if num_workers is not None:
    spread = options | dict(scheduling_strategy='SPREAD')
    return {number: dict(spread) for number in range(num_workers)}
  strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
  return {
      # Soft: if an actor's node is lost, another may take its replacement.
      (node_id, number): options
      | dict(scheduling_strategy=strategy(node_id, soft=True))
      for node_id, room in rooms.items()
      for number in range(room if on_gpus else min(1, room))
  }


def _last_line(error: Exception) -> str:
  """Returns the last line that names an error, else the last line."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  told = [line for line in lines if 'Error:' in line]
  return (told or lines or ['no message'])[-1][:300]
