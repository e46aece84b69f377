"""TFF contexts that run on every device of this machine, in this process.

A federated round runs as

    broadcast = prepare(server)                  on the server device
    for each block of clients, on any device:
      sum_b = work(client_n, ... work(client_1, zero(), broadcast))
    result = finish(server, the merged sums)

`compiler` makes the functions, `scheduler` deals the blocks, and `client_loop`
runs one block. Sums of integers, such as those of clipped updates, are exact in
any order: a worker goes on with one of them over all its blocks, and the
workers' sums are added at the end. The other sums are of a block each, and
`reduction` sets the order in which the server device, the first one, merges
them. Each device holds one copy of the round's broadcast. A
worker is a Python thread: it trains one client at a time and adds it to its
block's sum on the device, while the next clients' data are read into memory.
Values never leave this process.

Guarantees:
- The result has the same bits for any number of devices (of one kind) and of
  workers, if the computation has no unseeded or stateful random ops. On GPUs
  this needs kernels that repeat their bits (TF_DETERMINISTIC_OPS=1); not run.
- An empty cohort gives the server step on `zero`.
- A client that fails is left out, up to `max_failed_share` of a round's
  clients. One more ends the round with a `ClientError`, which has its position.
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

from tff_asr import checks
from tff_asr.execution import client_loop
from tff_asr.execution import compiler
from tff_asr.execution import context
from tff_asr.execution import devices as devices_lib
from tff_asr.execution import prefetch
from tff_asr.execution import reduction
from tff_asr.execution import round_execution
from tff_asr.execution import scheduler

ClientError = round_execution.ClientError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(context.Settings):
  """Settings of a context; those of `context.Settings`, and where to run.

  Attributes:
    devices: logical devices such as 'GPU:0' or 'CPU:1', the first of which
      runs the server's part. None is all GPUs, else 'CPU:0'.
    clients_per_device: how many clients train at once on each device.

  Raises:
    ValueError: a setting out of range.
  """

  devices: Sequence[str] | None = None
  clients_per_device: int = 1

  def __post_init__(self):
    super().__post_init__()
    checks.positive_int(clients_per_device=self.clients_per_device)


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
  """
  built = build_sync_context(settings)
  tff.framework.set_default_context(built)
  return built


class _Runner(context.Runner):
  """Runs clients in threads on the devices of this machine."""

  def __init__(self, settings: Settings):
    self._devices = devices_lib.find(settings.devices)
    # One device a worker; the first workers are on different devices.
    self._places = self._devices * settings.clients_per_device
    super().__init__(
        settings,
        server_device=self._devices[0],
        # Two blocks a worker: one in work, one waiting to be merged.
        max_unmerged=2 * len(self._places),
    )

  def load_clients(
      self, programs: compiler.ClientPrograms
  ) -> client_loop.ClientFunctions:
    return client_loop.ClientFunctions(programs)

  def run_clients(
      self, execution: round_execution.RoundExecution
  ) -> list[tf.Tensor]:
    functions = execution.functions
    places = self._places[: len(execution.clients)]
    replicas = {
        device: _Replica(device, execution) for device in set(places)
    }
    # The execution does not own the reader. That would be a reference cycle,
    # which keeps the round's tensors until Python's collector runs.
    reader = functions.build_reader(
        execution.get_client, num_threads=len(self._places)
    )
    sums = []
    try:
      ordered = execution.run(
          [
              functools.partial(
                  self._work, execution, replicas[device], worker, reader, sums
              )
              for worker, device in enumerate(places)
          ],
          timeout_sec=execution.timeout_sec,
      )
    finally:
      hangs = isinstance(execution.failure, round_execution.HungError)
      reader.close(wait=not hangs)
    exact = sums.pop()
    while sums:
      other = sums.pop()
      for place, leaf in enumerate(other):
        exact[place] += leaf
    return functions.join(exact, ordered)

  def _work(
      self,
      execution: round_execution.RoundExecution,
      replica: '_Replica',
      worker: int,
      reader: prefetch.Reader,
      sums: list[list[tf.Tensor]],
  ) -> None:
    """A worker thread: one task after another until none is left.

    Its sums of integers go to `sums` at the end.
    """
    tasks = execution.scheduler
    functions = execution.functions
    exact = []  # Of one element, or taken by a block.

    def get_upcoming():
      # Any worker may get the next blocks, so read one ahead for each worker.
      return [b.positions[0] for b in tasks.upcoming(len(self._places))]

    def run(task: scheduler.Task) -> Sequence[tf.Tensor]:
      if isinstance(task, reduction.Merge):
        left, right = tasks.get_parts(task)
        with tf.device(self._server_device):
          return functions.merge_ordered(*left, *right)
      total = client_loop.run_block(
          task.positions,
          functions=functions,
          worker=worker,
          device=replica.device,
          # No variable keeps a sum alive of which there is the next.
          zero=functions.join(exact.pop(), replica.ordered_zero),
          broadcast=replica.broadcast,
          get_client=execution.get_client,
          reader=reader,
          get_upcoming=get_upcoming,
          monitor=execution,
      )
      own, ordered = functions.split(total)
      exact.append(own)
      return ordered

    with tf.device(replica.device):
      exact.append(functions.split(functions.zero())[0])
      while (task := tasks.take()) is not None:
        # A local variable would keep the sum alive after it was merged.
        tasks.put(task, run(task))
    with tf.device(self._server_device):
      sums.append([tf.identity(leaf) for leaf in exact.pop()])


class _Replica:
  """Broadcast and empty sums of a round, on one device."""

  def __init__(
      self, device: str, execution: round_execution.RoundExecution
  ):
    self.device = device
    with tf.device(device):
      self.broadcast = [_copy(tensor) for tensor in execution.broadcast]
      functions = execution.functions
      self.ordered_zero = functions.split(functions.zero())[1]


def _copy(tensor: tf.Tensor) -> tf.Tensor:
  """Copies a tensor here; integers, strings and datasets stay put."""
  if tensor.dtype.is_floating or tensor.dtype.is_complex:
    return tf.identity(tensor)
  return tensor
