"""TFF contexts that run on many machines, over Ray.

A worker is a Ray actor (https://docs.ray.io): a process with one device or more
of its own. It gets the programs of a computation once. What a round calls, in
order, here (in this process, on its first device) and at workers:

    here    prepare         the broadcast, which goes to the object store: in
                            parts if there are several machines; the store keeps
                            one copy on each
    here    draw            the round's noise, while workers are busy
    here    Scheduler.take  a task, in a thread for each thread of a worker:
    worker  ping              before each, that its object store answers
    worker  train             a client, the longest first, into the worker's sum
                              on its device
    worker  hand_over         that sum in parts, once no client is left
    worker  merge             a part of all sums of its machine, then of up to
                              eight that are left
    here    Scheduler.put   the result; `lose`, if the worker is gone; then
                            `take` again, until no task is left
    here    join, finish    of the parts of the total; the server's step
    worker  end_round       frees what it holds of the round

On several machines each adds other parts of all sums (`scheduler`). If all
workers are on this process's machine, it adds their sums itself.
`last_store_bytes` of a context counts what went to the store.

Guarantees:
- The result has the same bits for any number of workers of one kind. They are
  the bits of `multi_device` with the same devices and threads of an op: sums of
  integers are exact, others are added in the order of `reduction`. On GPUs this
  needs kernels that repeat their bits (TF_DETERMINISTIC_OPS=1 on every
  machine); not run.
- All clients that a lost worker has trained in the round run again elsewhere,
  with the same result. The worker is replaced if there is room; the round goes
  on while one worker is left.
- Machines may join and leave. Without `num_workers`, a round has a worker
  wherever there is room when it begins; one that is still starting joins later.
- Workers are of one kind: all on GPUs if the cluster has any when the context
  is built, else all on CPUs, also on machines with GPUs that join later.
- A client that fails is left out, up to `max_failed_share` of a round's
  clients. One more ends the round with a `round_execution.ClientError`, which
  has its position.
- A hung worker is given up after `client_timeout_sec` for each client of its
  block, and replaced.
- A cluster that was started here ends with the program. A cluster that was
  joined goes on, without this program's actors.

One actor uses a GPU. The server's part uses it, too, if the driver sees it.
All machines need the same copy of this project at one path, with
requirements.txt and requirements-ray.txt installed, and the shards at one path.
A worker with other sources or versions is refused.
"""

from collections.abc import Sequence
import dataclasses
import importlib.util
import re
import sys

from tff_asr import checks
from tff_asr.execution import context
from tff_asr.execution import ray_token

# Clients of this project use ops of these libraries. tensorflow-io registers
# its ops when one of them is first looked up. The last one draws the noise of
# devices.
OP_LIBRARIES = (
    'tensorflow_text',
    'tensorflow_io.python.ops:core_ops.io_audio_decode_flac',
    'tff_asr.privacy.discrete_gaussian',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(context.Settings):
  """Settings of a context; those of `context.Settings`, and of the cluster.

  Attributes:
    address: 'auto' or 'host:port' of a Ray cluster that this machine belongs
      to, with its token (`ray_token`); None starts one on this machine alone,
      with a token of its own, and stops it at exit.
    num_workers: how many actors, each on GPUs if the cluster has any when the
      context is built, else on CPUs. None: as many as the GPUs allow, or one
      for each node.
    gpus_per_worker: GPUs of each actor, if actors are on GPUs. All of a
      machine's in one actor are added by an all-reduce, so one sum a machine
      goes to the store.
    cpus_per_worker: CPUs of each actor, and threads of each of its ops. The
      bits of a result depend on it.
    required_paths: files and folders, such as shards, that each actor must find
      when it starts, with the content that this process finds.
    op_libraries: modules, or attributes of modules (`pkgutil.resolve_name`),
      that register the computations' TensorFlow ops in an actor.

  Raises:
    ValueError: a setting out of range.
  """

  address: str | None = None
  num_workers: int | None = None
  gpus_per_worker: int = 1
  cpus_per_worker: int = 1
  required_paths: Sequence[str] = ()
  op_libraries: Sequence[str] = OP_LIBRARIES

  def __post_init__(self):
    super().__post_init__()
    checks.positive_int(
        cpus_per_worker=self.cpus_per_worker,
        gpus_per_worker=self.gpus_per_worker,
    )
    if self.num_workers is not None:
      checks.positive_int(num_workers=self.num_workers)
    for name in ('required_paths', 'op_libraries'):
      if isinstance(getattr(self, name), str):
        raise ValueError(
            f'{name} must be a list of strings, found {getattr(self, name)!r}.'
        )
    address = self.address
    if address not in (None, 'auto') and not re.fullmatch(
        r'[^/]+:\d+', address
    ):
      raise ValueError(
          f"address must be None, 'auto' or 'host:port', found {address!r}."
      )


def build_sync_context(
    settings: Settings = Settings(),
) -> context.SyncContext:
  """Builds a context in which calling a computation returns its result.

  Raises:
    ValueError: Ray is not installed, the cluster is too small, or a node lacks
      something, which the message names.
    ConnectionError: no cluster is at the address, or workers did not start.
  """
  return context.SyncContext(_build_runner(settings))


def build_async_context(
    settings: Settings = Settings(),
) -> context.AsyncContext:
  """Builds a context in which calling a computation returns an awaitable.

  Cancelling the awaitable ends the round at once; actors stop after the clients
  in work. `tff.program.NativeFederatedContext` takes this context.
  See `build_sync_context`.
  """
  return context.AsyncContext(_build_runner(settings))


def stop() -> None:
  """Ends all actors, and the cluster if it was started here.

  Call it before you build another context: the actors of the first one hold
  the devices.
  """
  if 'ray' not in sys.modules:
    return
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_session

  ray_session.stop()


def _build_runner(settings: Settings) -> context.Runner:
  """The runner of a context."""
  _check_ray()
  ray_token.prepare(settings.address)  # Before Ray is imported.
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_runner

  return ray_runner.RayRunner(settings)


def _check_ray() -> None:
  if importlib.util.find_spec('ray') is None:
    raise ValueError(
        'The ray_cluster context needs Ray, which is not installed: run '
        '`pip install --no-deps -r requirements-ray.txt`.'
    )
