"""TFF contexts that run on every device of this machine, in this process.

A federated round runs as

    broadcast = prepare(server)                  on the server device
    for each client, on any device:
      sum_d = work(sum_d, client, broadcast)   large sums in place
    result = finish(server, the total of all sum_d)

`compiler` makes the functions, `scheduler` deals the clients, and a
`round_worker.RoundWorker` trains them: a Python thread trains one client at a
time and adds it to its sum on its device. Each device holds one copy of the
round's broadcast. At the end the devices' sums are
added, pairwise or by an all-reduce; they are sums of integers, such as those of
clipped updates, and exact in any order. The server device, the first one, adds
all others block by block, in one order (`reduction`). A block is one client,
or several if these sums are large. Values never leave this process.

Guarantees:
- The result has the same bits for any number of devices (of one kind) and of
  clients at once, if the computation has no unseeded or stateful random ops. On
  GPUs this needs kernels that repeat their bits (TF_DETERMINISTIC_OPS=1); not
  run.
- An empty cohort gives the server step on `zero`, unless that makes no sense
  (`intrinsics.check_clients`).
- A client that fails is left out, up to `max_failed_share` of a round's
  clients. One more ends the round with a `round_execution.ClientError`, which
  has its position.
- With a time limit, a client that hangs ends the round with a `HungError`.
- No process is started, and no thread outlives a call that returns.

Results have the containers that the type signature declares, with eager
tensors for rank one and more, and NumPy values for scalars and strings
(`values`). Variables of a computation are initialized before each call.
"""

from collections.abc import Sequence
import dataclasses
import functools

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import compiler
from tff_asr.execution import context
from tff_asr.execution import devices as devices_lib
from tff_asr.execution import round_execution
from tff_asr.execution import round_worker
from tff_asr.execution import scheduler

# The scheduler's one worker.
_PROCESS = 'this process'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(context.Settings):
  """Settings of a context; those of `context.Settings`, and where to run.

  Attributes:
    devices: logical devices such as 'GPU:0' or 'CPU:1', the first of which
      runs the server's part. None is all GPUs, else 'CPU:0'.

  Raises:
    ValueError: a setting out of range.
  """

  devices: Sequence[str] | None = None


def build_sync_context(
    settings: Settings = Settings(),
) -> context.SyncContext:
  """Builds a context in which calling a computation returns its result.

  It works inside a running event loop, but blocks it.

  Raises:
    ValueError: a device that is not on this machine.
  """
  return context.SyncContext(_Runner(settings))


def build_async_context(
    settings: Settings = Settings(),
) -> context.AsyncContext:
  """Builds a context in which calling a computation returns an awaitable.

  `tff.program.NativeFederatedContext` takes it; see `build_sync_context`.
  """
  return context.AsyncContext(_Runner(settings))


def set_default_context(settings: Settings = Settings()) -> context.SyncContext:
  """Makes a new synchronous context the default of this thread; returns it.

  For notebooks: afterwards `process.next(state, clients)` runs on all devices.
  A state with a noise key is for one call (`fed_avg.set_noise_key`).
  """
  built = build_sync_context(settings)
  tff.framework.set_default_context(built)
  return built


class _Runner(context.Runner):
  """Runs clients in threads on the devices of this machine."""

  def __init__(self, settings: Settings):
    self._places = devices_lib.place(
        settings.devices,
        clients_per_device=settings.clients_per_device,
        gpu_memory_mb=settings.gpu_memory_mb,
        all_reduce=settings.all_reduce,
    )
    super().__init__(settings, server_device=self._places.devices[0])

  @property
  def num_threads(self) -> int:
    return len(self._places.devices) * self._places.clients_per_device

  def load_clients(
      self, programs: compiler.ClientPrograms
  ) -> round_worker.ClientFunctions:
    return round_worker.ClientFunctions(programs)

  def run_clients(
      self, execution: round_execution.RoundExecution
  ) -> list[tf.Tensor]:
    # The execution does not own the worker. That would be a reference cycle,
    # which keeps the round's tensors until Python's collector runs.
    worker = round_worker.RoundWorker(
        execution.functions,
        **self._places._replace(
            devices=self._places.devices[: len(execution.clients)]
        )._asdict(),
        broadcast=execution.broadcast,
        get_client=execution.get_client,
    )
    threads = range(min(len(worker.devices), len(execution.clients)))
    (total,) = execution.run(
        [
            functools.partial(self._work, execution, worker, thread)
            for thread in threads
        ],
        timeout_sec=execution.timeout_sec,
    )
    return execution.total(total)

  def _work(
      self,
      execution: round_execution.RoundExecution,
      worker: round_worker.RoundWorker,
      thread: int,
  ) -> None:
    """A thread: one task after another until none is left."""
    tasks = execution.scheduler

    def run(task: scheduler.Task) -> list[tf.Tensor] | None:
      if isinstance(task, scheduler.HandOver):
        return [worker.hand_over()]
      if isinstance(task, scheduler.Merge):  # There is one sum, in one part.
        return task.sums[0].parts[0]
      ordered = worker.train(thread, task.positions, monitor=execution)
      with tf.device(self._server_device):
        execution.add_ordered(task.number, ordered)
      return None

    while (task := tasks.take(_PROCESS)) is not None:
      tasks.put(_PROCESS, task, run(task))
