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
  both merge in the order of `reduction`. On GPUs this needs kernels that repeat
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

from collections.abc import Sequence
import dataclasses
import re

from tff_asr import checks
from tff_asr.execution import context
from tff_asr.execution import round_execution

ClientError = round_execution.ClientError

# Libraries whose ops the data pipelines of this project use. tensorflow-io
# loads its own at the first look at one of them.
OP_LIBRARIES = (
    'tensorflow_text',
    'tensorflow_io.python.ops:core_ops.io_audio_decode_flac',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(context.Settings):
  """Settings of a context; those of `context.Settings`, and of the cluster.

  Attributes:
    address: 'auto' or 'host:port' of a Ray cluster that this machine belongs
      to; None starts one on this machine alone, and stops it at exit.
    num_workers: how many actors; on GPUs where the cluster has any, else on
      CPUs. None is all its GPUs, else one actor a node.
    cpus_per_worker: CPUs of each actor, and threads of each of its ops, which
      the bits of a result depend on.
    required_paths: files and folders, such as those of the shards, that each
      actor must be able to read when it starts, the same as this process.
    op_libraries: what registers the TensorFlow ops of the computations in an
      actor, as `pkgutil.resolve_name` takes it: a module, or one's attribute.

  Raises:
    ValueError: a setting out of range.
  """

  address: str | None = None
  num_workers: int | None = None
  cpus_per_worker: int = 1
  required_paths: Sequence[str] = ()
  op_libraries: Sequence[str] = OP_LIBRARIES

  def __post_init__(self):
    super().__post_init__()
    checks.positive_int(cpus_per_worker=self.cpus_per_worker)
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

  Its `last_timeline` is on this machine's clock, to within the time that a
  message takes.

  Raises:
    ValueError: Ray is not installed, the cluster is too small, or a node lacks
      something; it is named.
    ConnectionError: no cluster at the address, or its workers did not start.
  """
  return context.SyncContext(_build_runner(settings))


def build_async_context(
    settings: Settings = Settings(),
) -> context.AsyncContext:
  """Builds a context in which calling a computation returns an awaitable.

  Cancelling the awaitable ends the round at once, and the actors after the
  clients in work. `tff.program.NativeFederatedContext` takes this context.
  See `build_sync_context`.
  """
  return context.AsyncContext(_build_runner(settings))


def stop() -> None:
  """Ends all actors, and the cluster if it was started here.

  Call it before a context takes the place of another one, whose actors hold
  the devices until then.
  """
  _check_ray()
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_session

  ray_session.stop()


def _build_runner(settings: Settings) -> context.Runner:
  """The runner of a context."""
  _check_ray()
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_runner

  return ray_runner.RayRunner(settings)


def _check_ray() -> None:
  try:
    import ray  # pylint: disable=g-import-not-at-top, unused-import
  except ImportError as error:
    raise ValueError(
        'The ray_cluster context needs Ray, which is not installed: run '
        '`pip install --no-deps -r requirements-ray.txt`.'
    ) from error
