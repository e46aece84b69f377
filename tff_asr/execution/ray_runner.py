"""Rounds on Ray actors, one actor a device; see `ray_cluster`.

One thread of this process serves each actor: it takes tasks from the round's
`scheduler.Scheduler`, sends them to the actor, and puts references to the
results back. A lost actor is replaced; `_RoundWorkers.work` says how.
"""

from collections.abc import Callable
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
from tff_asr.execution import reduction
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


# Calls of this concurrency group have a thread of their own in the actor, so
# they do not wait for the block in work.
_CONTROL = 'control'


class WorkerSlot:
  """One actor's place in the pool; the actor in it may change.

  Attributes:
    actor: the handle of the actor.
    device: where it runs, for messages; None until it has started.
  """

  def __init__(
      self, options: dict[str, Any], start_arguments: dict[str, Any]
  ):
    self._options = options
    self._start_arguments = start_arguments
    self._launch()

  def _launch(self) -> None:
    remote = ray.remote(concurrency_groups={_CONTROL: 1})(
        ray_worker.RayWorker
    )
    # No restarts by Ray: a restarted actor would have to be prepared anew.
    self.actor = remote.options(max_restarts=0, **self._options).remote()
    self.device = None
    self._started = self.actor.start.remote(**self._start_arguments)

  def wait(self, is_over: Callable[[], bool]) -> bool:
    """Waits until the actor has started; returns whether it has.

    It returns False after `_START_TIMEOUT_SEC`, or once `is_over()`; the caller
    may ask again later.

    Raises:
      ValueError: the actor's node lacks something, which the message names.
      LOSSES: the actor was lost.
    """
    deadline = time.monotonic() + _START_TIMEOUT_SEC
    while self.device is None:
      ready, _ = ray.wait([self._started], timeout=_POLL_SEC)
      if ready:
        self.device = _get(self._started)
      elif is_over() or time.monotonic() >= deadline:
        return False
    return True

  def ping(self) -> ray.ObjectRef:
    """Returns a reference that is ready as soon as the actor answers."""
    return self.actor.ping.options(concurrency_group=_CONTROL).remote()

  def end_round(self, number: int) -> None:
    """Has the actor end work on a round."""
    self.actor.end_round.options(concurrency_group=_CONTROL).remote(number)

  def replace(self) -> None:
    """Starts another actor in the place of one that was lost."""
    logging.warning('Lost a Ray worker: %s.', self.device or 'not started')
    # The actor may still run: Ray may only have lost sight of it.
    ray.kill(self.actor)
    self._launch()


class RayRunner(context.Runner):
  """Runs clients on Ray actors, and the server's part in this process."""

  def __init__(self, settings: Any):
    """Connects to the cluster and starts the actors.

    Args:
      settings: `ray_cluster.Settings`.
    """
    ray_session.connect(
        settings.address,
        num_cpus=(settings.num_workers or 1) * settings.cpus_per_worker,
    )
    self.worker_slots = _start(settings)
    self._computations = itertools.count()
    self._rounds = itertools.count()
    super().__init__(
        settings,
        server_device=devices.find(None)[0],
        # Waiting sums live in the object store, not in one process, so a larger
        # limit is affordable; a slow worker then blocks the others later.
        max_unmerged=reduction.FAN_IN + 2 * len(self.worker_slots),
    )

  def load_clients(
      self, programs: compiler.ClientPrograms
  ) -> tuple[int, ray.ObjectRef]:
    """Returns a name for the programs, and a reference to them."""
    return next(self._computations), ray.put(programs)

  def run_clients(
      self, execution: round_execution.RoundExecution
  ) -> list[tf.Tensor]:
    computation, programs = execution.functions
    key = ray_worker.RoundKey(
        number=next(self._rounds),
        computation=computation,
        programs=[programs],
        broadcast=[ray.put(ray_worker.pack(execution.broadcast))],
        leaves_out=execution.max_failed > 0,
    )
    workers = _RoundWorkers(execution, key, num_workers=len(self.worker_slots))
    try:
      # No time limit here: `work` gives up a hung worker and replaces it.
      total = execution.run(
          [functools.partial(workers.work, slot) for slot in self.worker_slots]
      )
    finally:
      for slot in self.worker_slots:
        slot.end_round(key.number)
    return ray_worker.unpack(total)


class _RoundWorkers:
  """One round's threads, one for each actor, and what they share.

  - A task whose actor is lost goes back to the scheduler (`retry`). The loss
    counts against the task only if the actor had answered a ping before.
  - The lost actor is replaced. Its thread leaves the round if the replacement
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
      num_workers: int,
  ):
    self._execution = execution
    self._tasks = execution.scheduler
    self._key = key
    self._num_workers = num_workers
    self._num_left = num_workers
    self._lock = threading.Lock()

  def work(self, slot: WorkerSlot) -> None:
    """The thread of one actor: one task after another until none is left."""
    while self._is_running(slot):
      task = self._tasks.take()
      if task is None:
        return
      was_there = False
      try:
        # A machine dies with all its actors at once. An actor that was dead
        # before it got the task says nothing about the task.
        self._wait(slot.ping())
        was_there = True
        self._run(slot, task)
      except LOSSES:
        slot.replace()
        self._tasks.retry(task, counts=was_there)
    self._leave()

  def _is_running(self, slot: WorkerSlot) -> bool:
    """Waits for an actor that is being replaced; returns whether it started."""
    try:
      return slot.wait(
          lambda: self._tasks.is_over() or self._execution.stop.is_set()
      )
    except LOSSES:
      slot.replace()
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
            f'All {self._num_workers} Ray workers were lost, and none could be '
            'started again; see `ray status`.'
        )
        self._tasks.stop()

  def _run(self, slot: WorkerSlot, task: scheduler.Task) -> None:
    """Runs a task on an actor and puts a reference to its result back."""
    if isinstance(task, reduction.Merge):
      lost, result = slot.actor.merge.options(num_returns=2).remote(
          self._key, self._tasks.get_parts(task)
      )
      lost = self._wait(lost)
      if lost is not None:
        self._tasks.recompute(task.parts[lost])
        return
    else:
      result = self._run_block(slot, task)
    if self._tasks.is_last(task):
      try:
        result = self._wait(result)
      except ray.exceptions.ObjectLostError:
        self._tasks.retry(task)
        return
    self._tasks.put(task, result)

  def _run_block(
      self, slot: WorkerSlot, block: scheduler.Block
  ) -> ray.ObjectRef:
    """Runs a block on an actor; returns a reference to its sum."""
    execution, device = self._execution, slot.device
    clients = {}
    for position in block.positions:
      try:
        clients[position] = ray_worker.pack(execution.get_client(position))
      except Exception as error:  # pylint: disable=broad-exception-caught
        execution.fail(position, error, device)
    sent_sec = time.monotonic()
    report, result = slot.actor.run_block.options(num_returns=2).remote(
        self._key, tuple(clients), list(clients.values())
    )
    limit = execution.timeout_sec
    report = self._wait(
        report, timeout_sec=limit and limit * len(block.positions)
    )
    for interval in report.intervals:
      execution.end(
          interval._replace(
              device=device,
              start_sec=sent_sec + interval.start_sec,
              end_sec=sent_sec + interval.end_sec,
          )
      )
    for position, error in report.errors:
      execution.fail(position, error, device)
    if report.is_stopped:
      raise scheduler.Stopped()
    return result

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
            'A Ray worker has been at a block for more than %g s '
            '(CLIENT_TIMEOUT_SEC for each client) and is given up.', timeout_sec
        )
        raise ray.exceptions.WorkerCrashedError()
    return _get(reference)


def _start(settings: Any) -> list[WorkerSlot]:
  """Starts one actor a device, and waits until all are ready.

  Raises:
    ValueError: a path cannot be read here, the cluster is too small, or a node
      lacks something.
    ConnectionError: workers did not start.
  """
  start_arguments = dict(
      folder=os.getcwd(),
      num_threads=settings.cpus_per_worker,
      op_libraries=tuple(settings.op_libraries),
      required_files=ray_worker.digest_all(
          settings.required_paths, machine='This machine'
      ),
  )
  slots = [
      WorkerSlot(options, start_arguments)
      for options in _place(settings.num_workers, settings.cpus_per_worker)
  ]
  for slot in slots:
    try:
      is_ready = slot.wait(is_over=lambda: False)
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
  return slots


def _get(reference: ray.ObjectRef) -> Any:
  """Returns the value; raises what was raised in the worker itself."""
  try:
    return ray.get(reference)
  except ray.exceptions.RayTaskError as error:
    # The error's own message is a traceback; its cause has the one line.
    raise error.cause if isinstance(error.cause, Exception) else error


def _place(
    num_workers: int | None, cpus_per_worker: int
) -> list[dict[str, Any]]:
  """Returns each actor's options: its resources and its node."""
  nodes = {
      node['NodeID']: node['Resources'] for node in ray.nodes() if node['Alive']
  }
  has_gpus = any(resources.get('GPU', 0) >= 1 for resources in nodes.values())
  rooms = {
      node_id: min(
          int(resources.get('CPU', 0)) // cpus_per_worker,
          int(resources.get('GPU', 0)) if has_gpus else math.inf,
      )
      for node_id, resources in nodes.items()
  }
  room = sum(rooms.values())
  if room < max(1, num_workers or 1):
    raise ValueError(
        f'num_workers is {num_workers}, but the {len(nodes)} nodes of the Ray '
        f'cluster have room for {room} workers with {cpus_per_worker} CPUs'
        f'{" and a GPU" if has_gpus else ""} each.'
    )
  options = dict(num_cpus=cpus_per_worker, num_gpus=int(has_gpus))
  if num_workers is None and not has_gpus:
    # Soft: if an actor's node is lost, another node may take its replacement.
    return [
        options
        | dict(
            scheduling_strategy=(
                ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                    node_id, soft=True
                )
            )
        )
        for node_id, room_of_node in rooms.items()
        if room_of_node
    ]
  spread = options | dict(scheduling_strategy='SPREAD')
  return [spread] * (room if num_workers is None else num_workers)


def _last_line(error: Exception) -> str:
  """Returns the last line that names an error, else the last line."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  told = [line for line in lines if 'Error:' in line]
  return (told or lines or ['no message'])[-1][:300]
