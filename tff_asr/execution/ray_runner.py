"""Rounds on Ray actors; see `ray_cluster`.

One thread of this process serves each thread of an actor: it acquires tasks
from the round's `scheduler.Scheduler`, sends them to the actor, and reports
back. A lost actor is replaced (`_RayRound`).
"""

from collections.abc import Callable
import dataclasses
import errno
import functools
import itertools
import math
import os
import threading
import time
from typing import Any, NamedTuple, TypedDict

from absl import logging
import numpy as np
import ray
import tensorflow as tf

from tff_asr.execution import client_round
from tff_asr.execution import compiler
from tff_asr.execution import context
from tff_asr.execution import devices
from tff_asr.execution import ray_cluster
from tff_asr.execution import ray_session
from tff_asr.execution import ray_sums
from tff_asr.execution import ray_worker
from tff_asr.execution import scheduler

# TensorFlow takes 15 s to load on a slow machine, and more when several load.
_START_TIMEOUT_SEC = 180.0
_POLL_SEC = 0.2
# How many sums one Ray task adds.
# More would hold more sums in one machine's memory; fewer would take more steps
# from machine to machine.
_FAN_IN = 8

# A task has several cheap client groups: what it costs the driver and Ray, what
# it may take, and its values' bytes, of which each thread of the driver has one
# task.
_SERVICE_SEC = 0.002
_TASK_SEC = 1.0
_TASK_BYTES = 2**20
# An actor that has not answered for this long is asked before it gets a task.
_SILENCE_SEC = 10.0

# Ray raises these when an actor's process or machine is gone.
_LOSSES = (
    ray.exceptions.RayActorError,
    ray.exceptions.NodeDiedError,
    # Ray's memory monitor ended the process.
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.WorkerCrashedError,
)


def _put(value: Any) -> ray.ObjectRef:
  """Puts a value into this machine's object store.

  Raises:
    OSError: it is full, and so is the disk that it spills to.
  """
  try:
    return ray.put(value)
  except (
      ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError
  ) as error:
    raise OSError(
        errno.ENOSPC,
        f"Ray's object store on this machine is full ({type(error).__name__}): "
        'start Ray with a larger --object-store-memory, or make room on the '
        'disk of its --temp-dir.',
    ) from error


# Calls of this concurrency group have their own thread in the actor, so they do
# not wait for the clients that train.
_CONTROL = 'control'


_NodeAffinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy


class _ActorOptions(TypedDict, total=False):
  """Ray's options of an actor; `max_concurrency` is its number of threads."""

  num_cpus: int
  num_gpus: int
  max_concurrency: int
  scheduling_strategy: str | _NodeAffinity


# Where the cluster can run one actor: a number if `num_workers` is set, else a
# node's id and a number on it.
_Slot = int | tuple[str, int]


class Actor:
  """The driver's handle of one Ray worker, from its launch to its end.

  Attributes:
    options: for Ray.
    handle: Ray's handle.
    num_threads: how many clients it trains at once.
    devices: the devices of its threads; None until it has started.
    node: its machine, for messages.
    answered_sec: when it was last heard of, by `time.monotonic`.
  """

  def __init__(
      self, options: _ActorOptions, settings: ray_worker.WorkerSettings
  ):
    """Launches the worker.

    Args:
      options: for Ray.
      settings: for the worker.
    """
    remote = ray.remote(concurrency_groups={_CONTROL: 1})(
        ray_worker.RayWorker
    )
    self.options = options
    # No restarts by Ray: it would not call `start` again.
    self.handle = remote.options(max_restarts=0, **options).remote()
    self.num_threads = options['max_concurrency']
    self.devices = None
    self.node = 'not started'
    self.answered_sec = -math.inf
    self._started = self.handle.start.remote(settings)

  def wait(self, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Waits until the actor has started; returns whether it has.

    It returns False after `_START_TIMEOUT_SEC`, or once `is_over()`; the caller
    may call it again later.

    Raises:
      ValueError: the actor's node lacks something, which the message names.
      _LOSSES: the actor was lost.
    """
    deadline = time.monotonic() + _START_TIMEOUT_SEC
    while self.devices is None:
      # In steps, so that the end of a round or Ctrl-C is noticed.
      ready, _ = ray.wait([self._started], timeout=_POLL_SEC)
      if ready:
        try:
          found = _get(self._started)
        except (*_LOSSES, ValueError):
          raise
        except Exception as error:
          # The code there may be too old for these arguments.
          raise ValueError(
              f'A Ray worker did not start ({_last_line(error)}); put the same '
              'copy of this project on every machine.'
          ) from error
        self.node, self.devices = found
        self.answered_sec = time.monotonic()
      elif is_over() or time.monotonic() >= deadline:
        return False
    return True

  def ping(self) -> ray.ObjectRef:
    """Returns a reference that is ready as soon as the actor answers."""
    return self.handle.ping.options(concurrency_group=_CONTROL).remote()

  def end_round(self, number: int) -> None:
    """Tells the actor to end its work on a round."""
    self.handle.end_round.options(concurrency_group=_CONTROL).remote(number)

  def end(self) -> None:
    """Ends the actor, which may be running though Ray reports it lost."""
    ray.kill(self.handle)


@dataclasses.dataclass(eq=False)
class _RayPrograms:
  """A computation's clients' programs in the object store.

  Attributes:
    number: a different one for each computation.
    reference: to the `compiler.ClientPrograms`.
    group_sec: what a client group took in the last task; None at first.
  """

  number: int
  reference: ray.ObjectRef
  group_sec: float | None = None


class RayRunner(context.Runner[_RayPrograms]):
  """Runs clients on Ray actors, and the server's part in this process.

  Attributes:
    actors: those that run or are being started, by slot (`_find_slots`).
  """

  def __init__(self, settings: ray_cluster.Settings):
    """Connects to the cluster and starts the actors."""
    ray_session.connect(
        settings.address,
        num_cpus=(settings.num_workers or 1) * settings.cpus_per_worker,
    )
    self._worker_settings = ray_worker.WorkerSettings(
        folder=os.getcwd(),
        num_threads=settings.cpus_per_worker,
        op_libraries=tuple(settings.op_libraries),
        required_paths=tuple(settings.required_paths),
        expected=ray_worker.describe_node(settings.required_paths),
        clients_per_device=_per_device(settings),
        gpu_memory_mb=settings.gpu_memory_mb,
    )
    self.actors = {}
    self._lock = threading.Lock()  # Of replacements.
    # GPUs and CPUs give different bits, so all actors stay of one kind.
    self._on_gpus = _have_gpus(_find_nodes())
    self._computations = itertools.count()
    self._rounds = itertools.count()
    super().__init__(
        settings,
        server_device=devices.logical_devices(None)[0],
        adds_on_host=True,
    )
    self._fill_slots()
    _wait_for_all(list(self.actors.values()))

  def num_threads(self, clients: object) -> int:
    del clients
    return sum(actor.num_threads for actor in self.actors.values())

  def replace(self, slot: _Slot, lost: Actor, error: Exception) -> None:
    """Launches an actor in place of a lost one, unless another thread has."""
    with self._lock:
      if self.actors[slot] is lost:
        logging.warning(
            'Lost a Ray worker: %s (%s).', lost.node, _last_line(error)
        )
        lost.end()
        # With the same options, elsewhere if need be.
        self.actors[slot] = Actor(lost.options, self._worker_settings)

  def _fill_slots(self) -> None:
    """Starts actors in slots that the cluster did not have before.

    Actors of lost machines are dropped, unless their replacements have started
    elsewhere. If no slot is left, all stay: the round waits for replacements,
    and ends if there are none.

    Raises:
      ValueError: the cluster is too small for the first actors.
    """
    nodes = _find_nodes()
    try:
      slots = _find_slots(self.settings, nodes, on_gpus=self._on_gpus)
    except ValueError:
      if not self.actors:
        raise
      return
    for slot, options in slots.items():
      if slot not in self.actors:
        self.actors[slot] = Actor(options, self._worker_settings)
    for slot in self.actors.keys() - slots.keys():
      if self.actors[slot].devices is None:
        self.actors.pop(slot).end()

  def load_clients(self, programs: compiler.ClientPrograms) -> _RayPrograms:
    return _RayPrograms(next(self._computations), _put(programs))

  def run_clients(
      self, clients: _RayPrograms, this_round: client_round.ClientRound
  ) -> list[tf.Tensor]:
    if self.settings.num_workers is None:
      # Machines come and go. New actors take part once they have started.
      self._fill_slots()
    # Put once: Ray sends it to each machine once, whatever the number of
    # actors.
    broadcast = ray_worker.pack(this_round.broadcast)
    this_round.store_bytes += ray_worker.count_bytes(broadcast)
    key = ray_worker.RoundInputs(
        number=next(self._rounds),
        computation=clients.number,
        programs=[clients.reference],
        broadcast=[_put(broadcast)],
        leaves_out=this_round.max_failed > 0,
    )
    served = [
        (slot, thread)
        for slot, actor in self.actors.items()
        for thread in range(actor.num_threads)
    ]
    ray_round = _RayRound(
        self,
        this_round,
        clients,
        key,
        num_threads=len(served),
        server_device=self._server_device,
    )
    try:
      # No time limit here: `serve` replaces a hung worker.
      return this_round.run(
          [functools.partial(ray_round.serve, *each) for each in served],
          ray_round.get_sum,
      )
    finally:
      for actor in self.actors.values():
        actor.end_round(key.number)


class _RayRound:
  """State of one round, shared by the threads that serve actors' threads.

  - What is lost with an actor goes back to the scheduler (`Scheduler.fail`):
    its tasks, and the groups in its running sum. An actor that was dead before
    it got the task does not count against the task.
  - An actor that cannot use its object store counts as lost.
  - The lost actor is replaced. The threads that serve it return if the
    replacement does not start in time, is lost while it starts, or lacks
    something.
  - The round ends with `WorkerLostError` when the last thread returns before
    the work is done, or when one task has lost too many actors.
  - A client's error is recorded (`ClientRound.fail`) and loses no actor.
  """

  def __init__(
      self,
      runner: RayRunner,
      this_round: client_round.ClientRound,
      programs: _RayPrograms,
      key: ray_worker.RoundInputs,
      *,
      num_threads: int,
      server_device: str,
  ):
    self._runner = runner
    self._round = this_round
    self._tasks = this_round.scheduler
    self._programs = programs
    self._key = key
    self._num_threads = num_threads
    self._num_serving = num_threads
    self._num_groups = self._tasks.num_waiting()
    self._has_lost = False  # Any actor.
    self._server_device = server_device
    self._lock = threading.Lock()

  def serve(self, slot: _Slot, thread: int) -> None:
    """Serves one thread of a slot's actor: one task after another."""
    while (actor := self._wait_for_actor(slot)) is not None:
      task = self._tasks.acquire(actor)
      if task is None:
        return
      groups, has_answered = {}, False
      try:
        if isinstance(task, scheduler.ClientGroup):
          groups = self._gather(actor, thread, task)
        if self._must_ping(actor):
          # A machine takes all of its actors along. An actor that was dead
          # before it got the task was not lost because of the task.
          self._wait(actor.ping(), timeout_sec=self._round.timeout_sec)
          has_answered = True
        if groups:
          self._train(actor, thread, groups)
        else:
          self._flush(actor, task)
        actor.answered_sec = time.monotonic()
      # Also a report that was lost with the store of the actor's machine.
      except (ray.exceptions.RayError, OSError) as error:
        self._has_lost = True
        self._runner.replace(slot, actor, error)
        # A full store counts: each replacement may find it full.
        counts = has_answered or not isinstance(error, _LOSSES)
        for each in groups or [task]:
          self._tasks.fail(actor, each, counts=counts)
    self._end_service()

  def _must_ping(self, actor: Actor) -> bool:
    """Whether to ask an actor if it is there, before it gets a task.

    What an actor takes along without a ping does not count against its task.
    So after the first loss of a round each task has a ping.
    """
    silent_sec = time.monotonic() - actor.answered_sec
    return self._has_lost or silent_sec > _SILENCE_SEC

  def get_sum(self) -> list[tf.Tensor]:
    """Waits for the workers' sums; returns their total on the server device.

    Raises:
      scheduler.RoundStopped: the round has ended.
      scheduler.WorkerLostError: sums were lost several times.
    """
    while True:
      sums = self._tasks.wait_for_sums()
      try:
        total = self._add([each.value for each in sums])
      except (*_LOSSES, ray.exceptions.ObjectLostError) as error:
        lost = []
        if isinstance(error, ray.exceptions.ObjectLostError):
          name = error.object_ref_hex
          lost = [each for each in sums if each.value.hex() == name]
        for each in lost or sums:  # If it is another object, all may be lost.
          self._tasks.fail_sum(each)
      else:
        with tf.device(self._server_device):
          return list(map(tf.convert_to_tensor, total))

  def _add(self, references: list[ray.ObjectRef]) -> list[np.ndarray]:
    """Adds sums by Ray tasks, and the last few in this process."""
    # These tasks wait for memory, not for a CPU: actors have all CPUs.
    add = ray.remote(num_cpus=0)(ray_sums.add_packed)
    while len(references) > _FAN_IN:
      references = [
          add.remote(*references[start : start + _FAN_IN])
          for start in range(0, len(references), _FAN_IN)
      ]
    return ray_sums.add(map(self._wait, references))

  def _wait_for_actor(self, slot: _Slot) -> Actor | None:
    """Returns the slot's actor once it has started; None if it does not."""
    actor = self._runner.actors[slot]
    try:
      has_started = actor.wait(
          lambda: self._tasks.is_over() or self._round.stop.is_set()
      )
      return actor if has_started else None
    except _LOSSES as error:
      self._runner.replace(slot, actor, error)
    except ValueError as error:
      logging.warning('A lost Ray worker is not replaced: %s', error)
    return None

  def _end_service(self) -> None:
    """Ends the round if no thread is left and the work is not done."""
    with self._lock:
      self._num_serving -= 1
      if self._round.stop.is_set():
        self._tasks.stop()
      elif not self._num_serving and not self._tasks.is_over():
        self._round.failure = scheduler.WorkerLostError(
            'All Ray workers were lost, and none could be started again; see '
            '`ray status`.'
        )
        self._tasks.stop()

  def _flush(self, actor: Actor, task: scheduler.FlushSum) -> None:
    """Gets the reference to an actor's running sum."""
    num_bytes, reference = actor.handle.flush.options(num_returns=2).remote(
        self._key
    )
    # Waits for the small value: the sum itself stays on its machine.
    self._count(self._wait(num_bytes))
    self._tasks.complete(actor, task, reference)

  def _count(self, num_bytes: int) -> None:
    with self._lock:
      self._round.store_bytes += num_bytes

  def _gather(
      self, actor: Actor, thread: int, group: scheduler.ClientGroup
  ) -> dict[scheduler.ClientGroup, ray_worker.GroupInputs]:
    """Returns the group, others to send along with it, and their inputs.

    Raises:
      scheduler.RoundStopped: the round has ended.
    """
    size = 1 if self._tasks.is_suspect(group) else self._task_size()
    gathered, num_bytes = {}, 0
    while group is not None:
      gathered[group] = self._pack(actor, thread, group)
      num_bytes += sum(map(ray_worker.count_bytes, gathered[group].clients))
      group = None
      if len(gathered) < size and num_bytes < _TASK_BYTES:
        group = self._tasks.acquire_more(actor)
    return gathered

  def _task_size(self) -> int:
    """Returns how many groups a worker's next task should have."""
    group_sec = self._programs.group_sec
    if group_sec is None:  # The first ones compile.
      return 1
    most_sec = min(_TASK_SEC, self._round.timeout_sec or math.inf)
    # As long as the driver takes to serve all threads once, so that it does
    # not keep workers waiting; at most an equal share of the round.
    least_sec = min(self._num_threads * _SERVICE_SEC, most_sec)
    least = min(least_sec / group_sec, self._num_groups / self._num_threads)
    # Tasks become smaller towards the end, so that workers end together.
    waiting = self._tasks.num_waiting()
    most = min(most_sec / group_sec, waiting / (2 * self._num_threads))
    return math.ceil(max(least, most))

  def _pack(
      self, actor: Actor, thread: int, group: scheduler.ClientGroup
  ) -> ray_worker.GroupInputs:
    """Returns a group's clients with their values."""
    clients = {}
    for position in group.positions:
      # It failed on a worker that was lost.
      if position in self._round.errors:
        continue
      try:
        clients[position] = ray_worker.pack(
            self._round.get_client_on_host(position)
        )
      except Exception as error:  # pylint: disable=broad-exception-caught
        self._fail(actor, thread, group, position, error)
    return ray_worker.GroupInputs(tuple(clients), list(clients.values()))

  def _fail(
      self,
      actor: Actor,
      thread: int,
      group: scheduler.ClientGroup,
      position: int,
      error: Exception,
  ) -> None:
    """Records a client's error."""
    self._round.fail(
        position,
        error,
        f'{actor.devices[thread]} of node {actor.node}',
        is_repeated=self._tasks.was_completed(group),
    )

  def _train(
      self,
      actor: Actor,
      thread: int,
      groups: dict[scheduler.ClientGroup, ray_worker.GroupInputs],
  ) -> None:
    """Trains client groups on an actor, into its running sum.

    Raises:
      scheduler.RoundStopped: the round has ended.
      RayError: the actor was lost, or its report.
    """
    limit = self._round.timeout_sec
    num_limits = max(len(group.positions) for group in groups)
    report = self._wait(
        actor.handle.train.remote(self._key, thread, list(groups.values())),
        # The limit is for one client, and a group trains one after another.
        # Other groups of the task together were expected to take less.
        timeout_sec=limit and limit * (num_limits + (len(groups) > 1)),
    )
    group_of = {
        position: group for group in groups for position in group.positions
    }
    for position, error in report.errors:
      self._fail(actor, thread, group_of[position], position, error)
    if report.ordered is None:
      raise scheduler.RoundStopped()
    # Not 0, by which `_task_size` divides.
    self._programs.group_sec = max(1e-6, report.seconds / len(groups))
    self._count(sum(map(ray_worker.count_bytes, report.ordered)))
    with tf.device(self._server_device):
      for group, ordered in zip(groups, report.ordered, strict=True):
        self._round.add_ordered(group.number, ordered)
        self._tasks.complete(actor, group)

  def _wait(
      self, reference: ray.ObjectRef, *, timeout_sec: float | None = None
  ) -> Any:
    """Waits for a reference's value, or until the round is cancelled.

    Raises:
      scheduler.RoundStopped: the round was cancelled.
      _LOSSES: the worker was lost, or exceeded the time limit.
    """
    begun_sec = time.monotonic()
    while not ray.wait([reference], timeout=_POLL_SEC)[0]:
      if self._round.stop.is_set():
        self._tasks.stop()
        raise scheduler.RoundStopped()
      if timeout_sec and time.monotonic() - begun_sec > timeout_sec:
        logging.warning(
            'A Ray worker has taken more than %g s for a client group or a '
            'ping (CLIENT_TIMEOUT_SEC for each client) and counts as lost.',
            timeout_sec,
        )
        raise ray.exceptions.WorkerCrashedError()
    return _get(reference)


def _wait_for_all(actors: list[Actor]) -> None:
  """Waits until all actors are ready.

  Raises:
    ValueError: a node lacks something.
    ConnectionError: workers did not start.
  """
  for actor in actors:
    try:
      is_ready = actor.wait()
    except _LOSSES as error:
      raise ConnectionError(
          f'A Ray worker did not start ({_last_line(error)}); run `ray start` '
          'in a copy of this project, at the same path on every machine.'
      ) from error
    if not is_ready:
      raise ConnectionError(
          f'Not all {len(actors)} Ray workers started in '
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
  """Returns the resources of each live machine, by Ray's id of it."""
  return {
      node['NodeID']: node['Resources'] for node in ray.nodes() if node['Alive']
  }


def _have_gpus(nodes: dict[str, dict[str, float]]) -> bool:
  return any(resources.get('GPU', 0) >= 1 for resources in nodes.values())


def _find_slots(
    settings: ray_cluster.Settings,
    nodes: dict[str, dict[str, float]],
    *,
    on_gpus: bool,
) -> dict[_Slot, _ActorOptions]:
  """Returns the options of the actor for each slot of the cluster.

  Args:
    settings: of the context.
    nodes: what `_find_nodes` returned.
    on_gpus: whether actors use GPUs. If not, each machine has one at most.

  Raises:
    ValueError: the cluster is too small.
  """
  num_workers, num_cpus = settings.num_workers, settings.cpus_per_worker
  num_gpus = settings.gpus_per_worker if on_gpus else 0
  counts = {
      node_id: min(
          int(resources.get('CPU', 0)) // num_cpus,
          int(resources.get('GPU', 0)) // num_gpus if on_gpus else math.inf,
      )
      for node_id, resources in nodes.items()
  }
  total = sum(counts.values())
  if total < max(1, num_workers or 1):
    raise ValueError(
        f'num_workers is {num_workers}, but the {len(nodes)} nodes of the Ray '
        f'cluster have room for {total} workers with {num_cpus} CPUs'
        f'{f" and {num_gpus} GPUs" if on_gpus else ""} each.'
    )
  options = _ActorOptions(
      num_cpus=num_cpus,
      num_gpus=num_gpus,
      max_concurrency=_per_device(settings) * max(1, num_gpus),
  )
  if num_workers is not None:
    # Otherwise Ray would fill one machine before the next.
    options['scheduling_strategy'] = 'SPREAD'
    return {number: options for number in range(num_workers)}
  return {
      # Soft: if an actor's node is lost, another may take its replacement.
      (node_id, number): options
      | _ActorOptions(scheduling_strategy=_NodeAffinity(node_id, soft=True))
      for node_id, count in counts.items()
      for number in range(count if on_gpus else min(1, count))
  }


def _per_device(settings: ray_cluster.Settings) -> int:
  """Returns how many clients train at once on each device of a worker."""
  # An actor's number of threads is fixed before its model and its memory are
  # known. A worker has one core by default.
  number = settings.clients_per_device
  return 1 if number == 'auto' else number


def _last_line(error: Exception) -> str:
  """Returns the last line that names an error, else the last line."""
  # Ray's messages end in tracebacks and advice.
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  told = [line for line in lines if 'Error:' in line]
  return (told or lines or ['no message'])[-1][:300]
