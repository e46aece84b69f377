"""TFF contexts that run on many machines, over Ray.

The schedule is that of `multi_device`: blocks of clients, longest first, each
to the next free worker. A worker is a Ray actor with a device of its own. The
programs of a computation go to each actor once, the broadcast goes to the
object store once a round, and the partial sums stay in it, where the actors
merge them. `prepare` and `finish`, the server's part, run in this process, on
its first device. https://docs.ray.io

Guarantees:
- The result has the same bits for any number of workers of one kind, and those
  of `multi_device` where devices, threads of an op and block size are the same:
  both merge in the order of `merging`. On GPUs this needs kernels that repeat
  their bits (TF_DETERMINISTIC_OPS=1 on every machine), and was not run.
- A lost worker's blocks run again elsewhere, with the same result. The worker
  is replaced where there is room; the round goes on as long as one is left.
- A client that fails is left out, as long as few do (`max_failed_share`); one
  too many ends the round with one `ClientError` that tells its position.
- A worker whose work hangs is given up for lost after `client_timeout_sec`.
- A cluster that was started here ends with the program; one that was joined
  goes on, without this program's actors.

A GPU is used by one actor, and by the server's part where the driver sees it.
All machines need this project at one path, with requirements.txt and
requirements-ray.txt installed, and the shards at one path.
"""

from collections.abc import Callable, Sequence
import re
from typing import Any

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.execution import contexts
from tff_asr.execution import worker_threads
from tff_asr.execution import runner

ClientError = worker_threads.ClientError

# Libraries whose ops the data pipelines of this project use. tensorflow-io
# loads its own at the first look at one of them.
OP_LIBRARIES = (
    'tensorflow_text',
    'tensorflow_io.python.ops:core_ops.io_audio_decode_flac',
)


def build_sync_context(
    *,
    address: str | None = None,
    num_workers: int | None = None,
    cpus_per_worker: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
    max_failed_share: float = 0.0,
    client_timeout_sec: float | None = None,
    required_paths: Sequence[str] = (),
    op_libraries: Sequence[str] = OP_LIBRARIES,
) -> tff.framework.SyncContext:
  """Builds a context in which calling a computation returns its result.

  Args:
    address: 'auto' or 'host:port' of a Ray cluster that this machine belongs
      to; None starts one on this machine alone, and stops it at exit.
    num_workers: how many actors; on GPUs where the cluster has any, else on
      CPUs. None is all its GPUs, else one actor a node.
    cpus_per_worker: CPUs of each actor, and threads of each of its ops, which
      the bits of a result depend on.
    block_size: clients a block; more saves messages and merges, one balances
      best.
    client_cost: see `multi_device.build_sync_context`.
    max_failed_share: see there.
    client_timeout_sec: how long a client's work may take before its worker is
      given up for lost; the first one also compiles. None: forever.
    required_paths: files and folders, such as those of the shards, that each
      actor must be able to read when it starts, the same as this process.
    op_libraries: what registers the TensorFlow ops of the computations in an
      actor, as `pkgutil.resolve_name` takes it: a module, or one's attribute.

  Returns:
    The context, with the attributes `last_timeline`: the
    `worker_threads.ClientInterval`s of the round that finished last, by start, on this
    machine's clock (to within the time that a message takes); and
    `last_failures`: see `multi_device.build_sync_context`.

  Raises:
    ValueError: an argument out of range, Ray is not installed, the cluster is
      too small, or a node lacks something; it is named.
    ConnectionError: no cluster at `address`, or its workers did not start.
  """
  return contexts.SyncRunnerContext(_build_runner(**locals()))


def build_async_context(
    *,
    address: str | None = None,
    num_workers: int | None = None,
    cpus_per_worker: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
    max_failed_share: float = 0.0,
    client_timeout_sec: float | None = None,
    required_paths: Sequence[str] = (),
    op_libraries: Sequence[str] = OP_LIBRARIES,
) -> tff.framework.AsyncContext:
  """Builds a context in which calling a computation returns an awaitable.

  The event loop stays free while a round runs. Cancelling the awaitable ends
  the round at once, and the actors after the clients in work.
  `tff.program.NativeFederatedContext` takes this context. Arguments and
  attributes: see `build_sync_context`.
  """
  return contexts.AsyncRunnerContext(_build_runner(**locals()))


def set_default_context(
    *,
    address: str | None = None,
    num_workers: int | None = None,
    cpus_per_worker: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
    max_failed_share: float = 0.0,
    client_timeout_sec: float | None = None,
    required_paths: Sequence[str] = (),
    op_libraries: Sequence[str] = OP_LIBRARIES,
) -> tff.framework.SyncContext:
  """Makes a new synchronous context the default of this thread; returns it.

  For notebooks: afterwards `process.next(state, clients)` runs on the cluster.
  Arguments: see `build_sync_context`.
  """
  settings = locals()
  _check(settings)
  # The default before may hold the actors' places that the new ones need.
  tff.framework.set_default_context(_Absent())
  context = build_sync_context(**settings)
  tff.framework.set_default_context(context)
  return context


def stop() -> None:
  """Ends all actors, and the cluster if it was started here."""
  _import_ray()
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_session

  ray_session.stop()


class _Absent(tff.framework.SyncContext):
  """Stands where a context was that could not be replaced."""

  def invoke(self, comp: Any, arg: Any) -> Any:
    raise RuntimeError(
        'There is no context: set_default_context failed. Call it again.'
    )


def _build_runner(**settings: Any) -> contexts.Runner:
  """The runner of a context."""
  _check(settings)
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_runner

  return ray_runner.RayRunner(**settings)


def _check(settings: dict[str, Any]) -> None:
  """Checks that Ray is there, and the arguments that it does not check."""
  checks.positive_int(cpus_per_worker=settings['cpus_per_worker'])
  if settings['num_workers'] is not None:
    checks.positive_int(num_workers=settings['num_workers'])
  runner.check_settings(
      block_size=settings['block_size'],
      client_cost=settings['client_cost'],
      max_failed_share=settings['max_failed_share'],
      client_timeout_sec=settings['client_timeout_sec'],
  )
  for name in ('required_paths', 'op_libraries'):
    if isinstance(settings[name], str):
      raise ValueError(
          f'{name} must be a list of strings, found {settings[name]!r}.'
      )
  address = settings['address']
  if address not in (None, 'auto') and not re.fullmatch(r'[^/]+:\d+', address):
    raise ValueError(
        f"address must be None, 'auto' or 'host:port', found {address!r}."
    )
  _import_ray()


def _import_ray() -> None:
  try:
    import ray  # pylint: disable=g-import-not-at-top, unused-import
  except ImportError as error:
    raise ValueError(
        'The ray_cluster context needs Ray, which is not installed: run '
        '`pip install --no-deps -r requirements-ray.txt`.'
    ) from error
