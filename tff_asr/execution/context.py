"""TFF contexts around a runner of clients; the server's part of each round.

    broadcast = prepare(server)                  on the server device
    total = the sum over all clients             a subclass' `run_clients`
    result = finish(server, total)               on the server device

Computations without clients run on the server device as they are. In a
synchronous context a call returns its result. In an asynchronous one it returns
an awaitable: the event loop stays free, and cancelling the awaitable ends the
round after the clients in progress.
"""

import abc
import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
import ctypes
import dataclasses
import functools
import inspect
import threading
from typing import Any, Generic, NamedTuple, TypeVar
import weakref

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import rounding
from tff_asr.execution import client_round
from tff_asr.execution import compiler
from tff_asr.execution import devices
from tff_asr.execution import reduction
from tff_asr.execution import scheduler

# Larger sums that depend on the order are each of several clients.
_LARGE_BYTES = 2**20

# The allocator keeps little of smaller models, and a trim takes milliseconds.
_TRIM_BYTES = 2**26
_malloc_trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)  # glibc only.

_Built = TypeVar('_Built')
_Clients = TypeVar('_Clients')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Settings that all contexts of this package share.

  Attributes:
    clients_per_device: how many clients train at once on each device; 'auto'
      chooses by cores, memory and the model's size (`devices.DeviceSet`).
    gpu_memory_mb: memory of each of these clients on a GPU, in MiB. Each then
      has a logical device with its own compute stream. None: they share the
      GPU's memory and its one stream.
    client_cost: a function of a client's argument (a tuple if there are
      several) that returns its expected cost, such as seconds of audio. Costly
      clients start first. Floats (measurements, deltas without a clip) are
      added in the same order, so their bits repeat only if the costs do. None
      keeps the cohort's order.
    max_failed_share: share of a round's clients, in [0, 1], that may fail; they
      are left out of the sum.
    client_timeout_sec: how long a client's work may take. The first client also
      waits for compilation. None: forever.

  Raises:
    ValueError: a setting out of range.
  """

  clients_per_device: devices.ClientsPerDevice = 'auto'
  gpu_memory_mb: int | None = None
  client_cost: Callable[[Any], float] | None = None
  max_failed_share: float = 0.0
  client_timeout_sec: float | None = None

  def __post_init__(self):
    if self.clients_per_device != 'auto':
      checks.positive_int(clients_per_device=self.clients_per_device)
    if self.gpu_memory_mb is not None:
      checks.positive_int(gpu_memory_mb=self.gpu_memory_mb)
    checks.in_range(0, 1, max_failed_share=self.max_failed_share)
    if self.client_timeout_sec is not None:
      checks.positive(client_timeout_sec=self.client_timeout_sec)


class ComputationCache(Generic[_Built]):
  """Keeps what was built from each computation object while that lives."""

  def __init__(self, build: Callable[[tff.Computation], _Built]):
    """Keeps `build(comp)`, made once, for each computation object."""
    self._build = build
    self._entries = {}
    self._lock = threading.Lock()

  def get(self, comp: tff.Computation) -> _Built:
    """Returns `build(comp)`; a second thread waits while the first builds."""
    # A computation serializes itself to hash, so its identity is the key. The
    # weak reference drops the entry before the identity can be reused.
    key = id(comp)
    with self._lock:
      if key not in self._entries:
        drop = weakref.ref(comp, lambda _: self._entries.pop(key, None))
        self._entries[key] = drop, self._build(comp)
      return self._entries[key][1]


# Contexts share compiled programs. Each loads its own copy, with its settings.
_compiled = ComputationCache(compiler.compile_computation)


class _LoadedServerProgram:
  """A computation without clients."""

  def __init__(self, program: compiler.ServerProgram):
    self.program = program
    self.lock = threading.Lock()
    # Graph optimization turns the results of a program without arguments (such
    # as a process's first state) into constants, which take memory as long as
    # the program is loaded. So such a program is loaded for each call.
    self._run = program.run.load() if program.argument.specs else None

  def run(self, arg: object) -> Any:
    """Returns the result."""
    run = self._run or self.program.run.load()
    return self.program.result.pack(run(*self.program.argument.flatten(arg)))


class _LoadedFederatedProgram(Generic[_Clients]):
  """A computation over clients: its server's functions.

  Attributes:
    program: the computation.
    lock: held during a call: a computation has one call at a time.
    clients: what the runner's `load_clients` returned.
    prepare: see `compiler.FederatedProgram`.
    finish: see `compiler.FederatedProgram`.
    merge_ordered: adds the leaves of two groups; None if all sums are exact.
  """

  def __init__(
      self, program: compiler.FederatedProgram, runner: 'Runner[_Clients]'
  ):
    self.program = program
    self.lock = threading.Lock()
    self.prepare = program.prepare.load()
    self.finish = program.finish.load()
    merge = program.clients.merge_ordered
    if runner.adds_on_host and _adds_little(program.clients):
      self.merge_ordered = reduction.add_arrays
    else:
      self.merge_ordered = merge and merge.load()
    self.clients = runner.load_clients(program.clients)


class RoundReport(NamedTuple):
  """What a runner reports of a round besides the result.

  Attributes:
    failures: the causes of the failed clients, by position in the cohort.
    store_bytes: bytes that went into an object store for the round: its
      broadcast, sums and measurements.
    num_at_once: how many clients trained at once; 0: without clients.
  """

  failures: Mapping[int, str] = {}
  store_bytes: int = 0
  num_at_once: int = 0


class Runner(abc.ABC, Generic[_Clients]):
  """Runs computations for a context.

  Type variable: a computation's clients' programs as this runner keeps them.

  Attributes:
    settings: settings of all rounds.
    last_round: the report of the round that finished last.
    adds_on_host: whether groups' results are in the host's memory.
  """

  def __init__(
      self, settings: Settings, *, server_device: str, adds_on_host: bool
  ):
    """Prepares to run.

    Args:
      settings: settings of all rounds.
      server_device: the logical device that runs the server's part.
      adds_on_host: whether groups' results are in the host's memory.
    """
    self.settings = settings
    self.adds_on_host = adds_on_host
    self._server_device = server_device
    self._cache = ComputationCache(self._load)
    self.last_round = RoundReport()

  @abc.abstractmethod
  def num_threads(self, clients: _Clients) -> int:
    """Returns how many of a computation's clients train at once."""

  @abc.abstractmethod
  def load_clients(self, programs: compiler.ClientPrograms) -> _Clients:
    """Returns what `run_clients` needs of a computation; called once."""

  @abc.abstractmethod
  def run_clients(
      self, clients: _Clients, this_round: client_round.ClientRound
  ) -> list[tf.Tensor]:
    """Runs all clients of a round, at least one; returns their sum.

    Args:
      clients: what `load_clients` returned.
      this_round: the round.
    """

  def invoke(
      self, comp: tff.Computation, arg: object, *, stop: threading.Event
  ) -> Any:
    """Returns the result of `comp(arg)`; `stop` ends it between clients."""
    loaded = self._cache.get(comp)
    with loaded.lock, tf.device(self._server_device):
      if isinstance(loaded, _LoadedServerProgram):
        return loaded.run(arg)
      return self._invoke_over_clients(loaded, arg, stop)

  def _load(
      self, comp: tff.Computation
  ) -> _LoadedServerProgram | _LoadedFederatedProgram[_Clients]:
    program = _compiled.get(comp)
    if isinstance(program, compiler.ServerProgram):
      return _LoadedServerProgram(program)
    return _LoadedFederatedProgram(program, self)

  def _invoke_over_clients(
      self,
      loaded: _LoadedFederatedProgram[_Clients],
      arg: object,
      stop: threading.Event,
  ) -> Any:
    """Runs a computation over clients."""
    program = loaded.program
    server, clients = program.arguments.split(arg)
    broadcast = loaded.prepare(*server)
    # This also returns free memory of the round before.
    trim_malloc(broadcast)
    this_round = self._build_round(loaded, clients, broadcast, stop)
    if clients:
      total = self.run_clients(loaded.clients, this_round)
    else:
      total = program.clients.zero.load()()
    self.last_round = RoundReport(
        this_round.failures,
        this_round.store_bytes,
        self.num_threads(loaded.clients),
    )
    trim_malloc(total)
    # It refers to the sum, too, which `finish` frees leaf by leaf.
    del this_round
    results = loaded.finish(*server, *program.clients.as_variables(total))
    trim_malloc(results)
    return program.result.pack(results)

  def _build_round(
      self,
      loaded: _LoadedFederatedProgram[_Clients],
      clients: Sequence[tuple],
      broadcast: Sequence[tf.Tensor],
      stop: threading.Event,
  ) -> client_round.ClientRound:
    """The round, with its clients in groups."""
    is_large = loaded.program.clients.ordered_bytes > _LARGE_BYTES
    groups = scheduler.group_clients(
        len(clients), is_large=is_large, costs=self._measure_costs(clients)
    )
    return client_round.ClientRound(
        program=loaded.program,
        clients=clients,
        broadcast=broadcast,
        scheduler=scheduler.Scheduler(
            # Twice the threads: each may have a group in progress and a result
            # that waits for its turn.
            groups,
            max_ahead=2 * self.num_threads(loaded.clients)
            if is_large
            else None,
        ),
        ordered=loaded.merge_ordered
        and reduction.OrderedSum(loaded.merge_ordered),
        stop=stop,
        max_failed=rounding.whole(
            self.settings.max_failed_share * len(clients)
        ),
        timeout_sec=self.settings.client_timeout_sec,
    )

  def _measure_costs(self, clients: Sequence[tuple]) -> list[float] | None:
    if self.settings.client_cost is None:
      return None
    return [
        self.settings.client_cost(client[0] if len(client) == 1 else client)
        for client in clients
    ]


def _adds_little(programs: compiler.ClientPrograms) -> bool:
  """Whether groups' results are small numbers of which sums are taken."""
  return (
      programs.merge_ordered is not None
      and programs.only_adds
      and programs.ordered_bytes <= _LARGE_BYTES
  )


def trim_malloc(tensors: Iterable[tf.Tensor]) -> None:
  """Returns free memory to the system if these tensors are large together."""
  # glibc's allocator keeps freed blocks under 32 MB for reuse. Clients and the
  # server's step need blocks of different sizes, so a large model leaves
  # gigabytes unused. A round of 255.8M parameters peaked at 12.8 GiB without
  # this and `sequential`, and at 9.2 GiB with them, when tensors came from
  # glibc. oneDNN takes them from a pool of TensorFlow, which returns nothing
  # unless `TF_ONEDNN_USE_SYSTEM_ALLOCATOR` is 1; memory of NumPy is returned.
  if _malloc_trim is None:
    return
  num_bytes = sum(
      tensor.dtype.size * (tensor.shape.num_elements() or 0)
      for tensor in tensors
  )
  if num_bytes >= _TRIM_BYTES:
    _malloc_trim(0)


class SyncContext(tff.framework.SyncContext):
  """Runs computations in the calling thread's time."""

  def __init__(self, runner: Runner):
    self.runner = runner

  def invoke(self, comp: tff.Computation, arg: object) -> Any:
    return self.runner.invoke(comp, arg, stop=threading.Event())


class AsyncContext(tff.framework.AsyncContext):
  """Runs computations in a thread, and awaits it."""

  def __init__(self, runner: Runner):
    self.runner = runner

  async def invoke(self, comp: tff.Computation, arg: object) -> Any:
    if inspect.isawaitable(arg):
      arg = await arg
    stop = threading.Event()
    call = functools.partial(self.runner.invoke, comp, arg, stop=stop)
    try:
      # In a thread, because the round blocks. It cannot be cancelled itself, so
      # `stop` tells it to end.
      return await asyncio.get_running_loop().run_in_executor(None, call)
    except asyncio.CancelledError:
      stop.set()
      raise
