"""Runs the clients of a round on Ray actors; see `ray_cluster`.

One thread of this process stands for each actor: it takes tasks from the
`scheduler.TaskBoard`, sends them, and puts references to the results back.
"""

from collections.abc import Callable, Sequence
import functools
import itertools
import threading
import time
from typing import Any, NamedTuple

from absl import logging
import ray

from tff_asr.execution import worker_threads
from tff_asr.execution import devices
from tff_asr.execution import compiler
from tff_asr.execution import loading
from tff_asr.execution import reduction
from tff_asr.execution import ray_pool
from tff_asr.execution import ray_session
from tff_asr.execution import ray_worker
from tff_asr.execution import runner
from tff_asr.execution import schedule
from tff_asr.execution import scheduler
from tff_asr.execution import transport

_POLL_SEC = 0.2


class _StoredPrograms(NamedTuple):
  """A computation's client programs in the object store.

  Attributes:
    number: names them to the actors.
    reference: to the `loading.ClientPrograms`.
  """

  number: int
  reference: ray.ObjectRef


class RayRunner(runner.Runner):
  """Runs clients on Ray actors, and the server's part in this process."""

  def __init__(
      self,
      *,
      address: str | None,
      num_workers: int | None,
      cpus_per_worker: int,
      block_size: int,
      client_cost: Callable[[Any], float] | None,
      max_failed_share: float,
      client_timeout_sec: float | None,
      required_paths: Sequence[str],
      op_libraries: Sequence[str],
  ):
    """Connects to the cluster and starts the actors; see `ray_cluster`."""
    ray_session.connect(
        address, num_cpus=(num_workers or 1) * cpus_per_worker
    )
    self._members = ray_pool.start(
        num_workers=num_workers,
        cpus_per_worker=cpus_per_worker,
        op_libraries=op_libraries,
        required_paths=required_paths,
    )
    self._computations = itertools.count()
    self._rounds = itertools.count()
    super().__init__(
        server_device=devices.find(None)[0],
        block_size=block_size,
        client_cost=client_cost,
        max_failed_share=max_failed_share,
        client_timeout_sec=client_timeout_sec,
    )

  def load_clients(
      self, compiled: compiler.Round | compiler.ClientMap
  ) -> _StoredPrograms:
    programs = loading.get_client_programs(compiled)
    return _StoredPrograms(next(self._computations), ray.put(programs))

  def run_clients(
      self, job: runner.Job
  ) -> tuple[list[Any], worker_threads.RoundExecution]:
    compiled = job.loaded.compiled
    is_round = isinstance(compiled, compiler.Round)
    cohort = _RayCohort(
        job,
        number=next(self._rounds),
        board=scheduler.TaskBoard(
            job.blocks,
            merges=reduction.plan(len(job.blocks)) if is_round else (),
            num_workers=len(self._members),
        ),
        num_workers=len(self._members),
    )
    if not job.clients:
      return (compiled.zero.load()() if is_round else []), cohort
    try:
      results = worker_threads.run(
          cohort,
          [functools.partial(cohort.work, each) for each in self._members],
          cohort.board.results,
      )
    finally:
      for member in self._members:
        member.actor.end_round.remote(cohort.key.number)
    if is_round:
      return transport.unpack(results[0]), cohort
    outputs = [None] * len(job.clients)
    for block, packed in zip(job.blocks, results):
      for position, values in zip(block.positions, packed):
        outputs[position] = transport.unpack(values)
    return outputs, cohort


class _RayCohort(worker_threads.RoundExecution):
  """What the threads of one round share, and what they do."""

  def __init__(
      self,
      job: runner.Job,
      *,
      number: int,
      board: scheduler.TaskBoard,
      num_workers: int,
  ):
    super().__init__(
        clients=job.clients,
        board=board,
        stop=job.stop,
        max_failed=job.max_failed,
    )
    # Not `worker_threads`'s time limit: a worker that hangs can be ended and replaced.
    self._block_timeout_sec = job.timeout_sec
    self.key = ray_worker.RoundKey(
        number=number,
        computation=job.loaded.clients.number,
        programs=[job.loaded.clients.reference],
        broadcast=[ray.put(transport.pack(job.broadcast))],
        leaves_out=job.max_failed > 0,
    )
    self._layout = job.loaded.compiled.arguments.client
    self._num_workers = num_workers
    self._num_left = num_workers
    self._lock = threading.Lock()

  def work(self, member: ray_pool.Member) -> None:
    """The thread of one actor: one task after another until none is left."""
    while self._is_running(member):
      task = self.board.take()
      if task is None:
        return
      was_there = False
      try:
        # One that was dead before says nothing about the task: machines die
        # with all their workers at once.
        self._wait(member.actor.ping.remote())
        was_there = True
        self._run(member, task)
      except ray_pool.LOSSES:
        member.replace()
        self.board.give_back(task, counts=was_there)
    self._leave()

  def _is_running(self, member: ray_pool.Member) -> bool:
    """Waits for an actor that is being replaced; whether it came."""
    try:
      return member.wait(
          lambda: self.board.is_over() or self.stop.is_set()
      )
    except ray_pool.LOSSES:
      member.replace()
    except ValueError as error:
      logging.warning('A lost Ray worker is not replaced: %s', error)
    return False

  def _leave(self) -> None:
    """Ends the round if this was the last actor."""
    with self._lock:
      self._num_left -= 1
      if self.stop.is_set():
        self.board.stop()
      elif not self._num_left and not self.board.is_over():
        self.failure = scheduler.WorkerLostError(
            f'All {self._num_workers} Ray workers were lost, and none could be '
            'started again; see `ray status`.'
        )
        self.board.stop()

  def _run(
      self,
      member: ray_pool.Member,
      task: schedule.Block | reduction.Merge,
  ) -> None:
    """Runs a task on an actor, and puts its result on the board."""
    if isinstance(task, reduction.Merge):
      parts = self.board.get_parts(task)
      lost, result = member.actor.merge.options(num_returns=2).remote(
          self.key, parts
      )
      lost = self._wait(lost)
      if lost is not None:
        self.board.lose(task.parts[lost])
        return
    else:
      result = self._run_block(member, task)
    if self.board.is_output(task):
      try:
        result = self._wait(result)
      except ray.exceptions.ObjectLostError:
        self.board.give_back(task)
        return
    self.board.put(task, result)

  def _run_block(
      self, member: ray_pool.Member, block: schedule.Block
  ) -> ray.ObjectRef:
    """The reference to what a block came to."""
    clients = {}
    for position in block.positions:
      try:
        clients[position] = transport.pack(
            self._layout.flatten(self.clients[position], name='client value')
        )
      except Exception as error:  # pylint: disable=broad-exception-caught
        self.fail(position, error, member.device)
    sent_sec = time.monotonic()
    report, result = member.actor.run_block.options(num_returns=2).remote(
        self.key, tuple(clients), list(clients.values())
    )
    report = self._wait(
        report,
        timeout_sec=(
            self._block_timeout_sec
            and self._block_timeout_sec * len(block.positions)
        ),
    )
    self.timeline.extend(
        worker_threads.ClientInterval(
            position,
            member.device,
            sent_sec + start_sec,
            sent_sec + end_sec,
            waited_sec,
        )
        for position, (start_sec, end_sec, waited_sec) in zip(
            clients, report.intervals
        )
    )
    for position, error in report.errors:
      self.fail(position, error, member.device)
    if report.is_stopped:
      raise schedule.Stopped()
    return result

  def _wait(
      self, reference: ray.ObjectRef, *, timeout_sec: float | None = None
  ) -> Any:
    """The value of a reference, unless the round is ended from outside.

    Raises:
      ray_pool.LOSSES: the worker was lost, or hangs.
    """
    begun_sec = time.monotonic()
    while not ray.wait([reference], timeout=_POLL_SEC)[0]:
      if self.stop.is_set():
        self.board.stop()
        raise schedule.Stopped()
      if timeout_sec and time.monotonic() - begun_sec > timeout_sec:
        logging.warning(
            'A Ray worker has been at a block for more than %g s '
            '(CLIENT_TIMEOUT_SEC for each client) and is given up.', timeout_sec
        )
        raise ray.exceptions.WorkerCrashedError()
    return ray_pool.get(reference)
