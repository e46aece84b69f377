"""TFF contexts around a runner of clients; the server's part of each round.

    broadcast = prepare(server)                  on the server device
    total = the sum over all clients             a subclass' `run_clients`
    result = finish(server, total)               on the server device

Where the server's process waits for clients, it draws the noise of `finish`
meanwhile (`Runner.draws_ahead`); the bits are the same.

Computations without clients run on the server device as they are. In a
synchronous context a call returns its result. In an asynchronous one it returns
an awaitable: the event loop stays free, and cancelling the awaitable ends the
round after the clients in work.
"""

import abc
import asyncio
from collections.abc import Callable, Sequence
from concurrent import futures
import dataclasses
import functools
import inspect
import threading
from typing import Any
import weakref

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import rounding
from tff_asr.execution import compiler
from tff_asr.execution import intrinsics
from tff_asr.execution import malloc_trim
from tff_asr.execution import reduction
from tff_asr.execution import round_execution
from tff_asr.execution import scheduler
from tff_asr.execution import xla

# Sums larger than this that depend on the order are of several clients each.
_LARGE_BYTES = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Settings of rounds, in whichever context.

  Attributes:
    clients_per_device: how many clients train at once on each device.
    gpu_memory_mb: memory of each client at once on a GPU, in MiB. Each is then
      a logical device with a compute stream of its own. None: they share the
      GPU's memory and its one stream.
    all_reduce: whether a process adds the sums of its devices by an all-reduce
      (NCCL, on GPUs); False adds them pairwise. None: an all-reduce if all
      devices are GPUs and none is split (`gpu_memory_mb`), else pairwise.
    client_cost: a function of a client's argument (a tuple if there are
      several) that returns its expected cost, such as seconds of audio. Costly
      clients start first. The cost decides the order in which floats are
      added (measurements, deltas without a clip), so they repeat their bits
      only if it does not vary. None keeps the cohort's order.
    max_failed_share: share of a round's clients, in [0, 1], that may fail; they
      are left out of the sum.
    client_timeout_sec: how long a client's work may take. The first client also
      waits for compilation. None: forever.
    jit: XLA compiles what clients do of few shapes (`xla`), once a device and
      shape. Bits are others than without.

  Raises:
    ValueError: a setting out of range.
  """

  clients_per_device: int = 1
  gpu_memory_mb: int | None = None
  all_reduce: bool | None = None
  client_cost: Callable[[Any], float] | None = None
  max_failed_share: float = 0.0
  client_timeout_sec: float | None = None
  jit: bool = False

  def __post_init__(self):
    checks.positive_int(clients_per_device=self.clients_per_device)
    if self.gpu_memory_mb is not None:
      checks.positive_int(gpu_memory_mb=self.gpu_memory_mb)
    checks.in_range(0, 1, max_failed_share=self.max_failed_share)
    if self.client_timeout_sec is not None:
      checks.positive(client_timeout_sec=self.client_timeout_sec)


class Cache:
  """A cache of values made from computation objects, while those live."""

  def __init__(self, build: Callable[[tff.Computation], Any]):
    """Keeps `build(comp)`, made once, for each computation object."""
    self._build = build
    self._entries = {}
    self._lock = threading.Lock()

  def get(self, comp: tff.Computation) -> Any:
    """Returns `build(comp)`; a second thread waits while the first builds."""
    # A computation serializes itself to hash, so its identity is the key. The
    # weak reference drops the entry before the identity can be reused.
    key = id(comp)
    with self._lock:
      if key not in self._entries:
        drop = weakref.ref(comp, lambda _: self._entries.pop(key, None))
        self._entries[key] = drop, self._build(comp)
      return self._entries[key][1]


# Contexts share compiled programs. Each loads its own functions, with its
# settings.
_compiled = Cache(compiler.compile_computation)


class _Loaded:
  """One computation: its server's functions, and whatever runs its clients.

  Attributes:
    compiled: the computation as programs.
    lock: held during a call: a computation has one call at a time.
    merge_ordered: the function of a `compiler.Round`, or None.
    prepare: the function of a `compiler.Round`.
    draw: the function of a `compiler.Round`, or None: `finish` draws.
    finish: the function of a `compiler.Round`, or `finish_drawn`.
    clients: what the runner's `load_clients` returned.
  """

  def __init__(
      self, compiled: compiler.Local | compiler.Round, runner: 'Runner'
  ):
    self.compiled = compiled
    self.lock = threading.Lock()
    if isinstance(compiled, compiler.Local):
      # Graph optimization turns the results of a program without arguments
      # (such as a process's first state) into constants, which take memory as
      # long as the program is loaded. So load such a program for each call.
      self._run = compiled.run.load() if compiled.argument.specs else None
      return
    programs = compiled.clients
    self.merge_ordered = (
        programs.merge_ordered and programs.merge_ordered.load()
    )
    self.prepare = compiled.prepare.load()
    self.draw = None
    if runner.draws_ahead and compiled.draw is not None:
      self.draw = compiled.draw.load()
    self.finish = (
        compiled.finish if self.draw is None else compiled.finish_drawn
    ).load()
    work = dataclasses.replace(programs.work, jit=runner.settings.jit)
    if work.jit and not any(xla.is_marked(g.graph_def) for g in work.graphs):
      xla.warn_of_nothing()
    self.clients = runner.load_clients(programs._replace(work=work))

  def run(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """The function of a `compiler.Local`."""
    return (self._run or self.compiled.run.load())(*tensors)

  def draw_ahead(self, server: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The noise that `finish` takes, drawn on the host."""
    if self.draw is None:
      return []
    with tf.device('/device:CPU:0'):
      return self.draw(*server)


class Runner(abc.ABC):
  """Runs computations for a context.

  Attributes:
    last_failures: the causes of the failed clients of the round that finished
      last, by position.
    last_store_bytes: bytes that went into an object store for that round: its
      broadcast, sums and measurements.
    draws_ahead: whether noise is drawn while clients work. It takes as much
      memory as their sum.
  """

  draws_ahead = False

  def __init__(self, settings: Settings, *, server_device: str):
    """Prepares to run.

    Args:
      settings: settings of all rounds.
      server_device: the logical device that runs the server's part.
    """
    self.settings = settings
    self._server_device = server_device
    self._cache = Cache(lambda comp: _Loaded(_compiled.get(comp), self))
    self.last_failures: dict[int, str] = {}
    self.last_store_bytes = 0

  @property
  @abc.abstractmethod
  def num_threads(self) -> int:
    """How many clients train at once."""

  @abc.abstractmethod
  def load_clients(self, programs: compiler.ClientPrograms) -> Any:
    """Returns `RoundExecution.functions` of a computation; called once."""

  @abc.abstractmethod
  def run_clients(
      self, execution: round_execution.RoundExecution
  ) -> list[tf.Tensor]:
    """Runs all clients of a round, at least one; returns the total."""

  def invoke(
      self, comp: tff.Computation, arg: Any, *, stop: threading.Event
  ) -> Any:
    """Returns the result of `comp(arg)`; `stop` ends it between clients."""
    loaded = self._cache.get(comp)
    with loaded.lock, tf.device(self._server_device):
      if isinstance(loaded.compiled, compiler.Local):
        tensors = loaded.run(*loaded.compiled.argument.flatten(arg))
        return loaded.compiled.result.pack(tensors)
      return self._invoke_over_clients(comp, loaded, arg, stop)

  def _invoke_over_clients(
      self,
      comp: tff.Computation,
      loaded: _Loaded,
      arg: Any,
      stop: threading.Event,
  ) -> Any:
    """Runs a `compiler.Round`."""
    compiled = loaded.compiled
    server, clients = compiled.arguments.split(arg)
    is_large = compiled.clients.ordered_bytes > _LARGE_BYTES
    blocks = scheduler.cut(
        len(clients), is_large=is_large, costs=self._measure_costs(clients)
    )
    broadcast = loaded.prepare(*server)
    # Also frees what is left of the round before.
    malloc_trim.give_back(broadcast)
    execution = round_execution.RoundExecution(
        compiled=compiled,
        functions=loaded.clients,
        clients=clients,
        broadcast=broadcast,
        scheduler=scheduler.Scheduler(
            blocks, window=2 * self.num_threads if is_large else None
        ),
        ordered=loaded.merge_ordered
        and reduction.OrderedSum(loaded.merge_ordered),
        stop=stop,
        max_failed=rounding.whole(
            self.settings.max_failed_share * len(clients)
        ),
        timeout_sec=self.settings.client_timeout_sec,
    )
    # Waits for the drawing also where the round fails: it uses all threads.
    with futures.ThreadPoolExecutor(1) as thread:
      drawing = thread.submit(loaded.draw_ahead, server)
      if clients:
        total = self.run_clients(execution)
      else:
        total = compiled.clients.zero.load()()
    self.last_failures = execution.failures
    intrinsics.check_clients(comp, len(clients) - len(execution.failures))
    self.last_store_bytes = execution.store_bytes
    malloc_trim.give_back(total)
    del execution  # It has the sum, too, which `finish` gives up.
    results = loaded.finish(
        *server,
        *drawing.result(),
        *compiled.clients.as_variables(total),
    )
    malloc_trim.give_back(results)
    return compiled.result.pack(results)

  def _measure_costs(self, clients: Sequence[tuple]) -> list[float] | None:
    if self.settings.client_cost is None:
      return None
    return [
        self.settings.client_cost(client[0] if len(client) == 1 else client)
        for client in clients
    ]


class _RunnerContext:
  """A context's view of its runner; see `Runner`."""

  def __init__(self, runner: Runner):
    self._runner = runner

  @property
  def last_failures(self) -> dict[int, str]:
    return self._runner.last_failures

  @property
  def last_store_bytes(self) -> int:
    return self._runner.last_store_bytes


class SyncContext(_RunnerContext, tff.framework.SyncContext):
  """Runs computations in the calling thread's time."""

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    return self._runner.invoke(comp, arg, stop=threading.Event())


class AsyncContext(_RunnerContext, tff.framework.AsyncContext):
  """Runs computations in a thread, and awaits it."""

  async def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    if inspect.isawaitable(arg):
      arg = await arg
    stop = threading.Event()
    call = functools.partial(self._runner.invoke, comp, arg, stop=stop)
    try:
      return await asyncio.get_running_loop().run_in_executor(None, call)
    except asyncio.CancelledError:
      stop.set()
      raise
