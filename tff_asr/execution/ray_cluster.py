"""TFF contexts that run on many machines, over Ray (https://docs.ray.io).

    context = build_async_context(Settings(address='auto'))

A worker is a Ray actor: a process with one device or more. A round:

    here    prepare             the broadcast, to the object store
    here    Scheduler.acquire   a task, in a thread for each of a worker's
    worker  ping                after silence: does its object store answer?
    worker  train               client groups, into the worker's sum
    worker  flush               that sum, once no client is left
    here    Scheduler.complete  or `fail`, if the worker is gone
    task    ray_sums.add_packed adds eight sums each, if there are more
    here    ray_sums.add        adds the rest; `finish`, the server's step
    worker  end_round           frees what it holds of the round

- The result has the same bits for any number of workers of one kind, and those
  of `multi_device` with the same number of threads for each op. GPUs need
  deterministic kernels (TF_DETERMINISTIC_OPS=1 on every machine); not run.
- Cheap client groups share a task, so that a client costs the driver little.
  Each is added as if it were alone, so results do not depend on it.
- Clients of a lost worker run again elsewhere, with the same bits. It is
  replaced if there is room; the round continues while one worker is left.
- Machines may join and leave between rounds, if `num_workers` is None. Workers
  stay of one kind: on GPUs if the cluster has any when the context is built.
"""

from collections.abc import Sequence
import dataclasses
import importlib.util
import os
import re
import secrets
import sys

from absl import logging

from tff_asr import checks
from tff_asr.execution import context

# Clients of this project use ops of these libraries. tensorflow-io registers
# its ops when one of them is first looked up. The last one draws the noise of
# devices.
OP_LIBRARIES = (
    'tensorflow_text',
    'tensorflow_io.python.ops:core_ops.io_audio_decode_flac',
    'tff_asr.privacy.discrete_gaussian',
)

_MODE = 'RAY_AUTH_MODE'
_TOKEN = 'RAY_AUTH_TOKEN'
# Ray replaces the address 127.0.0.1 by the machine's own if clusters of several
# machines are possible, as they are by default on Linux.
_SEVERAL_MACHINES = 'RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(context.Settings):
  """Settings of a context; those of `context.Settings`, and of the cluster.

  Attributes:
    address: 'auto' or 'host:port' of a Ray cluster that this machine belongs
      to, with its token (`require_token`); None starts one on this machine
      only, with a new token, and stops it at exit.
    num_workers: how many actors, each on GPUs if the cluster has any when the
      context is built, else on CPUs. None: as many as the GPUs allow, or one
      for each node.
    gpus_per_worker: GPUs of each actor, if actors are on GPUs. If one actor has
      all GPUs of a machine, it adds their sums, and the machine sends one.
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
  in progress. `tff.program.NativeFederatedContext` takes this context.
  See `build_sync_context`.
  """
  return context.AsyncContext(_build_runner(settings))


def require_token(address: str | None) -> None:
  """Makes Ray require a token; keeps what the user has set.

  A Ray cluster runs the code of everyone who can reach its ports, unless its
  processes require a token from each other
  (https://docs.ray.io/en/latest/ray-security/auth.html). The token is in the
  environment, which other users of the machine cannot read. It is not
  encrypted on the network, so a cluster of only this machine listens on the
  loopback address. Ray reads both settings when it is imported, so call
  this before.

  Args:
    address: address of the cluster to join; None: one will be started here, on
      the loopback address, with a new token.

  Raises:
    ValueError: the environment does not say how to join the cluster, or Ray was
      imported with other settings.
  """
  ray = sys.modules.get('ray')
  if ray is not None and ray.is_initialized():
    return  # The user has connected it.
  mode = os.environ.get(_MODE)
  if address is not None:
    if mode is None:
      raise ValueError(
          f'the Ray cluster at {address} would run the code of everyone who '
          f'can reach it: start it with {_MODE}=token and {_TOKEN}=SECRET, and '
          f'set both here. {_MODE}=disabled joins one without a token.'
      )
    if mode == 'disabled':
      logging.warning(
          'The Ray cluster at %s requires no token: everyone who can reach it '
          'can run code here and read the data of clients.', address
      )
    return
  needed = {_SEVERAL_MACHINES: '0'}
  if mode is None:
    # Drawn again in each process: no one else needs to join this cluster.
    needed |= {_MODE: 'token', _TOKEN: secrets.token_hex(32)}
  if ray is not None and not needed.items() <= os.environ.items():
    raise ValueError(
        'Ray was imported before it got a token: import it after a context is '
        f'built, or set {_MODE}=token, {_TOKEN} and {_SEVERAL_MACHINES}=0.'
    )
  os.environ.update(needed)


def stop() -> None:
  """Ends all actors, and the cluster if it was started here.

  Call it before you build another context: the actors of the first one hold
  the devices.
  """
  # Never imported, so there is nothing to stop.
  if 'ray' not in sys.modules:
    return
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_session

  ray_session.stop()


def _build_runner(settings: Settings) -> context.Runner:
  """The runner of a context."""
  # Before the import, to name the missing package in one line.
  _check_ray()
  require_token(settings.address)  # Before Ray is imported.
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_runner

  return ray_runner.RayRunner(settings)


def _check_ray() -> None:
  # Looked up, not imported: Ray reads its token when it is imported.
  if importlib.util.find_spec('ray') is None:
    raise ValueError(
        'The ray_cluster context needs Ray, which is not installed: run '
        '`pip install --no-deps -r requirements-ray.txt`.'
    )
