"""TFF contexts that run on every device of this machine, in this process.

A federated round runs as

    broadcast = prepare(server)                  on the server device
    for each block of clients, on any device:
      sum_b = work(client_n, ... work(client_1, zero(), broadcast))
    result = finish(server, the merged sums)

(`compiler` for the functions, `schedule` for the blocks, `merging` for the order
in which their sums are merged, on the server device). Each device holds one
replica of the broadcast a round; each of its workers, one Python thread each,
trains one client at a time and adds it to its block's sum on the device, while
the data of the clients that come next are read into memory. The server device
is the first one. Values never leave this process.

Guarantees:
- The result has the same bits for any number of devices of one kind and of
  workers, provided the computation has no unseeded or stateful random ops. On
  GPUs this needs kernels that repeat their bits (TF_DETERMINISTIC_OPS=1), and
  was not run.
- An empty cohort gives the server step on `zero`.
- A client that fails is left out, as long as few do (`max_failed_share`); one
  too many ends the round with one `ClientError` that tells its position.
- No process is started, and no thread outlives a call that returns.

Results have the containers that the type signature declares, with eager
tensors for rank one and more, and NumPy values for scalars and strings
(`values`). Variables of a computation are initialized before each call.
"""

from collections.abc import Callable, Sequence
import contextlib
import functools
from typing import Any

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.execution import contexts
from tff_asr.execution import worker_threads
from tff_asr.execution import devices as devices_lib
from tff_asr.execution import compiler
from tff_asr.execution import loading
from tff_asr.execution import runner
from tff_asr.execution import schedule
from tff_asr.execution import workers

ClientError = worker_threads.ClientError


def build_sync_context(
    *,
    devices: Sequence[str] | None = None,
    clients_per_device: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
    max_failed_share: float = 0.0,
    client_timeout_sec: float | None = None,
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
    max_failed_share: share of a round's clients, in [0, 1], that may fail; they
      are left out of the sum.
    client_timeout_sec: how long a client's work may take before the round ends
      with a `worker_threads.HungError`; the first one also compiles. None: forever.

  Returns:
    The context, with the attributes `last_timeline`: the `ClientInterval`s of
    the round that finished last, by start; and `last_failures`: what the
    clients that it left out failed of, by position in the cohort.

  Raises:
    ValueError: an argument out of range, or a device this machine has not.
  """
  return contexts.SyncRunnerContext(_Runner(
      devices=devices,
      clients_per_device=clients_per_device,
      block_size=block_size,
      client_cost=client_cost,
      max_failed_share=max_failed_share,
      client_timeout_sec=client_timeout_sec,
  ))


def build_async_context(
    *,
    devices: Sequence[str] | None = None,
    clients_per_device: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
    max_failed_share: float = 0.0,
    client_timeout_sec: float | None = None,
) -> tff.framework.AsyncContext:
  """Builds a context in which calling a computation returns an awaitable.

  The event loop stays free while a round runs. Cancelling the awaitable ends
  the round after the clients in work. `tff.program.NativeFederatedContext`
  takes this context. Arguments and attributes: see `build_sync_context`.
  """
  return contexts.AsyncRunnerContext(_Runner(
      devices=devices,
      clients_per_device=clients_per_device,
      block_size=block_size,
      client_cost=client_cost,
      max_failed_share=max_failed_share,
      client_timeout_sec=client_timeout_sec,
  ))


def set_default_context(
    *,
    devices: Sequence[str] | None = None,
    clients_per_device: int = 1,
    block_size: int = 1,
    client_cost: Callable[[Any], float] | None = None,
    max_failed_share: float = 0.0,
    client_timeout_sec: float | None = None,
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
      max_failed_share=max_failed_share,
      client_timeout_sec=client_timeout_sec,
  )
  tff.framework.set_default_context(context)
  return context


class _Runner(runner.Runner):
  """Runs clients in threads on the devices of this machine."""

  def __init__(
      self,
      *,
      devices: Sequence[str] | None,
      clients_per_device: int,
      block_size: int,
      client_cost: Callable[[Any], float] | None,
      max_failed_share: float,
      client_timeout_sec: float | None,
  ):
    checks.positive_int(clients_per_device=clients_per_device)
    self._devices = devices_lib.find(devices)
    self._clients_per_device = clients_per_device
    super().__init__(
        server_device=self._devices[0],
        block_size=block_size,
        client_cost=client_cost,
        max_failed_share=max_failed_share,
        client_timeout_sec=client_timeout_sec,
    )

  def load_clients(
      self, compiled: compiler.Round | compiler.ClientMap
  ) -> loading.ClientFunctions:
    return loading.ClientFunctions(loading.get_client_programs(compiled))

  def run_clients(
      self, job: runner.Job
  ) -> tuple[list[Any], worker_threads.RoundExecution]:
    num_workers = len(self._devices) * self._clients_per_device
    cohort = workers.DeviceCohort(
        job,
        devices=self._devices,
        num_workers=num_workers,
        # Two blocks a worker: one in work, one waiting to be merged.
        board=schedule.Board(job.blocks, window=2 * num_workers),
    )
    if isinstance(job.loaded.compiled, compiler.Round):
      train = functools.partial(workers.sum_block, cohort)
      consume = functools.partial(
          workers.merge_blocks, cohort, device=self._devices[0]
      )
    else:
      train = functools.partial(workers.map_block, cohort)
      consume = functools.partial(workers.collect_blocks, cohort)
    places = [
        workers.Worker(device=device, slot=index * len(self._devices) + place)
        for index in range(self._clients_per_device)
        for place, device in enumerate(self._devices)
    ]
    with contextlib.closing(cohort):
      outputs = worker_threads.run(
          cohort,
          [
              functools.partial(workers.work, cohort, worker, train)
              for worker in places[: len(job.blocks)]
          ],
          consume,
      )
    return outputs, cohort
