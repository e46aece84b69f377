"""TFF contexts that run on every device of this machine, in this process.

A federated round runs as

    broadcast = prepare(server)                  on the server device
    for each block of clients, on any device:
      sum_b = work(client_n, ... work(client_1, zero(), broadcast))
    result = finish(server, merge(... merge(sum_0, sum_1) ..., sum_B))

(`form` for the functions, `schedule` for the blocks). Each device holds one
replica of the broadcast a round; each of its workers, one Python thread each,
trains one client at a time and adds it to its block's sum on the device. The
server device is the first one. Values never leave this process.

Guarantees:
- The result has the same bits for any number of devices of one kind and of
  workers, provided the computation has no unseeded or stateful random ops.
- An empty cohort gives the server step on `zero`.
- A client that fails ends the round with one `ClientError` that names it.
- No process is started, and no thread outlives a call that returns.

Results have the containers that the type signature declares, with eager
tensors for rank one and more, and NumPy values for scalars and strings
(`values`). Variables of a computation are initialized before each call.
"""

import asyncio
from collections.abc import Callable, Sequence
import functools
import inspect
import threading
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.execution import cache
from tff_asr.execution import devices as devices_lib
from tff_asr.execution import form
from tff_asr.execution import schedule
from tff_asr.execution import workers

# Contexts share what was compiled; each loads its own functions, as variables
# belong to one load.
_compiled = cache.Cache(form.compile_computation)


class ClientError(RuntimeError):
  """One client's work failed; `position` is its place in the cohort."""

  def __init__(self, message: str, *, position: int):
    super().__init__(message)
    self.position = position


def build_sync_context(
    *,
    devices: Sequence[str] | None = None,
    clients_per_device: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
) -> tff.framework.SyncContext:
  """Builds a context in which calling a computation returns its result.

  It may be used inside a running event loop, which waits meanwhile.

  Args:
    devices: logical devices such as 'GPU:0' or 'CPU:1', the first of which
      runs the server's part. None is all GPUs, else 'CPU:0'.
    clients_per_device: how many clients train at once on each device.
    block_size: clients a block. One balances best; more saves a merge on the
      server device, and its transfer, for all but one client of a block.
    client_cost: a client's argument (a tuple of them if there are several) to
      its expected cost, such as seconds of audio; clients of high cost start
      first. It decides the order of summation, so it must not vary for a run
      to repeat. None keeps the order of the cohort.

  Returns:
    The context, with the attribute `last_timeline`: the `ClientInterval`s of
    the round that finished last, by start.

  Raises:
    ValueError: an argument out of range, or a device this machine has not.
  """
  return _SyncContext(_Runner(
      devices=devices,
      clients_per_device=clients_per_device,
      block_size=block_size,
      client_cost=client_cost,
  ))


def build_async_context(
    *,
    devices: Sequence[str] | None = None,
    clients_per_device: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
) -> tff.framework.AsyncContext:
  """Builds a context in which calling a computation returns an awaitable.

  The event loop stays free while a round runs. Cancelling the awaitable ends
  the round after the clients in work. `tff.program.NativeFederatedContext`
  takes this context. Arguments and attributes: see `build_sync_context`.
  """
  return _AsyncContext(_Runner(
      devices=devices,
      clients_per_device=clients_per_device,
      block_size=block_size,
      client_cost=client_cost,
  ))


def set_default_context(
    *,
    devices: Sequence[str] | None = None,
    clients_per_device: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
) -> tff.framework.SyncContext:
  """Makes a new synchronous context the default of this thread; returns it.

  For notebooks: afterwards `process.next(state, clients)` runs on all devices.
  Arguments: see `build_sync_context`.
  """
  context = build_sync_context(
      devices=devices,
      clients_per_device=clients_per_device,
      block_size=block_size,
      client_cost=client_cost,
  )
  tff.framework.set_default_context(context)
  return context


class _SyncContext(tff.framework.SyncContext):
  """Runs computations in the calling thread's time."""

  def __init__(self, runner: '_Runner'):
    self._runner = runner

  @property
  def last_timeline(self) -> list[workers.ClientInterval]:
    return self._runner.last_timeline

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    return self._runner.invoke(comp, arg, stop=threading.Event())


class _AsyncContext(tff.framework.AsyncContext):
  """Runs computations in a thread, and awaits it."""

  def __init__(self, runner: '_Runner'):
    self._runner = runner

  @property
  def last_timeline(self) -> list[workers.ClientInterval]:
    return self._runner.last_timeline

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


class _Runner:
  """What the two contexts share: devices, settings, loaded computations."""

  def __init__(
      self,
      *,
      devices: Sequence[str] | None,
      clients_per_device: int,
      block_size: int,
      client_cost: Callable[[Any], float] | None,
  ):
    checks.positive_int(
        clients_per_device=clients_per_device, block_size=block_size
    )
    if client_cost is not None and not callable(client_cost):
      raise ValueError(
          'client_cost must be None or a function of one client, found '
          f'{client_cost!r}.'
      )
    self._devices = devices_lib.find(devices)
    self._clients_per_device = clients_per_device
    self._block_size = block_size
    self._client_cost = client_cost
    self._cache = cache.Cache(
        lambda comp: workers.Loaded(_compiled.get(comp))
    )
    self.last_timeline = []

  def invoke(
      self, comp: tff.Computation, arg: Any, *, stop: threading.Event
  ) -> Any:
    """Returns the result of `comp(arg)`; `stop` ends it between clients."""
    loaded = self._cache.get(comp)
    # Functions with variables allow one call at a time.
    with loaded.lock:
      if isinstance(loaded.compiled, form.Local):
        with tf.device(self._devices[0]):
          tensors = loaded.run(*loaded.compiled.argument.flatten(arg))
        return loaded.compiled.result.pack(tensors)
      return self._run_clients(loaded, arg, stop)

  def _run_clients(
      self, loaded: workers.Loaded, arg: Any, stop: threading.Event
  ) -> Any:
    """Runs a computation over clients: a `form.Round` or `form.ClientMap`."""
    compiled = loaded.compiled
    server, clients = compiled.arguments.split(arg)
    blocks = schedule.build_blocks(
        len(clients),
        block_size=self._block_size,
        costs=self._measure_costs(clients),
    )
    server_device = self._devices[0]
    with tf.device(server_device):
      cohort = workers.Cohort(
          loaded=loaded,
          clients=clients,
          replicas={
              device: workers.Replica(device) for device in self._devices
          },
          broadcast=loaded.prepare(*server),
          board=schedule.Board(
              blocks,
              # Two blocks a worker: one in work, one waiting to be merged.
              window=2 * len(self._devices) * self._clients_per_device,
          ),
          stop=stop,
      )
      if isinstance(compiled, form.Round):
        train = functools.partial(workers.sum_block, cohort)
        consume = functools.partial(
            workers.merge_blocks, loaded, cohort, device=server_device
        )
      else:
        train = functools.partial(workers.map_block, cohort)
        consume = functools.partial(workers.collect_blocks, len(clients))
      total = self._run_blocks(cohort, train, consume, len(blocks))
      self.last_timeline = sorted(
          cohort.timeline, key=lambda interval: interval.start_sec
      )
      if isinstance(compiled, form.Round):
        return compiled.result.pack(loaded.finish(*server, *total))
      return [compiled.result.pack(tensors) for tensors in total]

  def _run_blocks(
      self,
      cohort: workers.Cohort,
      train: Callable[[workers.Worker, schedule.Block], Any],
      consume: Callable[[Any], Any],
      num_blocks: int,
  ) -> Any:
    """Returns what `consume` makes of the blocks' results, in order."""
    crew = [
        workers.Worker(device=device, slot=index * len(self._devices) + place)
        for index in range(self._clients_per_device)
        for place, device in enumerate(self._devices)
    ]
    threads = [
        threading.Thread(
            target=workers.work,
            args=(cohort, worker, train),
            name=f'clients on {worker.device}',
        )
        for worker in crew[:num_blocks]
    ]
    started = []
    try:
      for thread in threads:
        thread.start()
        started.append(thread)
      return consume(cohort.board.results())
    except schedule.Stopped:
      if not cohort.errors:
        if cohort.failure is not None:
          raise cohort.failure from None
        raise RuntimeError('The round was cancelled.') from None
    finally:
      cohort.board.stop()
      for thread in started:
        thread.join()
    # Several may have failed at once: name the first, whichever was faster.
    position = min(cohort.errors)
    error, device = cohort.errors[position]
    raise ClientError(
        f'Client {position} of {len(cohort.clients)} (counting from 0) failed '
        f'on {device}: {type(error).__name__}: {_find_reason(error)}',
        position=position,
    ) from error

  def _measure_costs(self, clients: Sequence[tuple]) -> list[float] | None:
    if self._client_cost is None:
      return None
    return [
        self._client_cost(client[0] if len(client) == 1 else client)
        for client in clients
    ]


def _find_reason(error: Exception) -> str:
  """The line of an error that tells what happened."""
  for line in str(error).splitlines():
    line = line.strip()
    if line and not line.startswith(
        ('Graph execution error', 'Detected at node', '<stack traces')
    ):
      return line
  return 'no message'
