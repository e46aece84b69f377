"""The Ray actors of a context: one a device, replaced when they are lost."""

from collections.abc import Callable, Sequence
import os
import time
from typing import Any

from absl import logging
import ray

from tff_asr.execution import ray_worker
from tff_asr.execution import path_digest

# TensorFlow takes 15 s to load on a slow machine, and more when several load.
_START_TIMEOUT_SEC = 180.0
_POLL_SEC = 0.2

# What Ray raises when the process or the machine of an actor is gone.
LOSSES = (
    ray.exceptions.RayActorError,
    ray.exceptions.NodeDiedError,
    # Ray's memory monitor ended it.
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.WorkerCrashedError,
)


class Member:
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
    remote = ray.remote(concurrency_groups={'control': 1})(
        ray_worker.RayWorker
    )
    # No restarts by Ray: a restarted actor would have to be prepared anew.
    self.actor = remote.options(max_restarts=0, **self._options).remote()
    self.device = None
    self._started = self.actor.start.remote(**self._start_arguments)

  def wait(self, is_over: Callable[[], bool]) -> bool:
    """Waits for the actor; whether it runs.

    It does not if it takes too long, or `is_over()`; ask again later.

    Raises:
      ValueError: its node lacks something, which the message names.
      LOSSES: it was lost.
    """
    deadline = time.monotonic() + _START_TIMEOUT_SEC
    while self.device is None:
      ready, _ = ray.wait([self._started], timeout=_POLL_SEC)
      if ready:
        self.device = get(self._started)
      elif is_over() or time.monotonic() >= deadline:
        return False
    return True

  def replace(self) -> None:
    """Starts another actor in the place of one that was lost."""
    logging.warning('Lost a Ray worker: %s.', self.device or 'not started')
    # Ray may only have lost sight of it.
    ray.kill(self.actor)
    self._launch()


def start(
    *,
    num_workers: int | None,
    cpus_per_worker: int,
    op_libraries: Sequence[str],
    required_paths: Sequence[str],
) -> list[Member]:
  """Starts one actor a device, and waits until all are ready.

  Args:
    num_workers: how many; None is all GPUs, else one a node.
    cpus_per_worker: CPUs of each, at least 1.
    op_libraries: see `ray_worker.RayWorker.start`.
    required_paths: files and folders of which each actor must see what this
      process sees.

  Raises:
    ValueError: a path cannot be read here, the cluster is too small, or a node
      lacks something.
    ConnectionError: workers did not start.
  """
  start_arguments = dict(
      folder=os.getcwd(),
      num_threads=cpus_per_worker,
      op_libraries=tuple(op_libraries),
      required_files=_digest_all(required_paths),
  )
  members = [
      Member(options, start_arguments)
      for options in _place(num_workers, cpus_per_worker)
  ]
  for member in members:
    try:
      is_ready = member.wait(is_over=lambda: False)
    except LOSSES as error:
      raise ConnectionError(
          f'A Ray worker did not start ({_explain(error)}); run `ray start` '
          'in a copy of this project, at the same path on every machine.'
      ) from error
    if not is_ready:
      raise ConnectionError(
          f'Not all {len(members)} Ray workers started in '
          f'{_START_TIMEOUT_SEC:.0f} s; free are {ray.available_resources()}; '
          'end other work on the cluster or lower num_workers.'
      )
  return members


def _digest_all(paths: Sequence[str]) -> dict[str, str]:
  try:
    return {path: path_digest.digest(path) for path in paths}
  except ValueError as error:
    raise ValueError(
        f'This machine cannot read {error}, which required_paths names; put the'
        ' shards under this path on every machine.'
    ) from error


def get(reference: ray.ObjectRef) -> Any:
  """Returns the value; raises what was raised in the worker itself."""
  try:
    return ray.get(reference)
  except ray.exceptions.RayTaskError as error:
    # Its message is a traceback; the cause has the line.
    raise error.cause if isinstance(error.cause, Exception) else error


def _place(
    num_workers: int | None, cpus_per_worker: int
) -> list[dict[str, Any]]:
  """Each actor's options: what it needs, and where it goes."""
  nodes = {}
  num_gpus = 0
  for node in ray.nodes():
    if node['Alive']:
      room = int(node['Resources'].get('CPU', 0)) // cpus_per_worker
      nodes[node['NodeID']] = node['Resources'], room
      num_gpus += int(node['Resources'].get('GPU', 0))
  if num_gpus:
    room = sum(
        min(room, int(resources.get('GPU', 0)))
        for resources, room in nodes.values()
    )
  else:
    room = sum(room for _, room in nodes.values())
  if room < max(1, num_workers or 1):
    raise ValueError(
        f'num_workers is {num_workers}, but the {len(nodes)} nodes of the Ray '
        f'cluster have room for {room} workers with {cpus_per_worker} CPUs'
        f'{" and a GPU" if num_gpus else ""} each.'
    )
  options = dict(num_cpus=cpus_per_worker, num_gpus=1 if num_gpus else 0)
  if num_workers is None and not num_gpus:
    # Soft: where its node is lost, another may take its place.
    return [
        options
        | dict(
            scheduling_strategy=(
                ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                    node_id, soft=True
                )
            )
        )
        for node_id, (_, room) in nodes.items()
        if room
    ]
  spread = options | dict(scheduling_strategy='SPREAD')
  return [spread] * (room if num_workers is None else num_workers)


def _explain(error: Exception) -> str:
  """The last line of an error that tells more than where it was raised."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  told = [line for line in lines if 'Error:' in line]
  return (told or lines or ['no message'])[-1][:300]
