"""TFF contexts that run on every device of this machine, in this process.

    >>> context = build_sync_context(Settings(devices=['CPU:0']))

A federated round runs as

    broadcast = prepare(server)                  on the server device
    for each client, on any device:
      sum_d = work(sum_d, client, broadcast)     large sums in place
    result = finish(server, the total of all sum_d)

`compiler` makes the functions, `scheduler` assigns the clients, and a
`client_trainer.ClientTrainer` trains them: each Python thread trains one client
at a time. The first device is the server device. Values stay in this process.

- The result has the same bits for any number of devices (of one kind) and of
  clients at once, if the computation has no unseeded or stateful random ops,
  and ops have as many threads, which a context chooses if it is built before
  TensorFlow's first op (`devices.share_cores`). On GPUs this needs
  deterministic kernels (TF_DETERMINISTIC_OPS=1); not run.
- An empty cohort gives the server step on `zero`.
- Up to `max_failed_share` of a round's clients may fail; they are left out. One
  more ends the round with a `client_round.ClientError`; a client that hangs,
  with a `client_round.ClientTimeoutError` if there is a time limit.
- No process is started, and no thread outlives a call that returns.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import client_round
from tff_asr.execution import client_trainer
from tff_asr.execution import compiler
from tff_asr.execution import context
from tff_asr.execution import devices as devices_lib
from tff_asr.execution import scheduler

# The name of the scheduler's only worker.
_PROCESS = 'this process'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(context.Settings):
  """Settings of a context; those of `context.Settings`, and where to run.

  Attributes:
    devices: logical devices such as 'GPU:0' or 'CPU:1', the first of which
      runs the server's part. None is all GPUs, else 'CPU:0'.
    cohort_size: about how many clients a round has, if that is known. If there
      are fewer than cores, each op gets several threads.

  Raises:
    ValueError: a setting out of range.
  """

  devices: Sequence[str] | None = None
  cohort_size: float | None = None


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

    >>> import numpy as np
    >>> context = set_default_context()
    >>> clients_type = tff.FederatedType(np.int32, tff.CLIENTS)
    >>> add = tff.federated_computation(tff.federated_sum, clients_type)
    >>> int(add([1, 2, 4]))
    7

  For notebooks: afterwards `process.next(state, clients)` runs on all devices.
  A state with a noise key is for one call (`fed_avg.set_noise_key`).
  """
  built = build_sync_context(settings)
  tff.framework.set_default_context(built)
  return built


class _Clients(NamedTuple):
  """A computation's clients.

  Attributes:
    programs: their programs.
    per_device: how many train at once on each device.
  """

  programs: client_trainer.LoadedClientPrograms
  per_device: int


class _Runner(context.Runner[_Clients]):
  """Runs clients in threads on the devices of this machine."""

  def __init__(self, settings: Settings):
    self._device_set = devices_lib.choose(
        settings.devices,
        clients_per_device=settings.clients_per_device,
        gpu_memory_mb=settings.gpu_memory_mb,
        cohort_size=settings.cohort_size,
    )
    # The trainer returns its sum on this device, so `finish` needs no copy.
    server_device = self._device_set.devices[0]
    super().__init__(
        settings,
        server_device=server_device,
        # A GPU would wait for each group's copy.
        adds_on_host='CPU' in server_device,
    )

  def num_threads(self, clients: _Clients) -> int:
    return len(self._device_set.devices) * clients.per_device

  def load_clients(self, programs: compiler.ClientPrograms) -> _Clients:
    return _Clients(
        client_trainer.load_programs(programs),
        self._device_set.num_at_once(tensor_bytes=programs.client_bytes),
    )

  def run_clients(
      self, clients: _Clients, this_round: client_round.ClientRound
  ) -> list[tf.Tensor]:
    num_clients = len(this_round.clients)
    # The round does not own the trainer: a reference cycle would keep the
    # round's tensors until Python's collector runs.
    trainer = client_trainer.ClientTrainer(
        clients.programs,
        # A small cohort needs no broadcast on the other devices.
        devices=self._device_set.devices[:num_clients],
        clients_per_device=clients.per_device,
        broadcast=this_round.broadcast,
        get_client=this_round.get_client,
    )
    return this_round.run(
        [
            functools.partial(self._work, this_round, trainer, thread)
            for thread in range(min(len(trainer.devices), num_clients))
        ],
        # All threads flush into one sum.
        lambda: this_round.scheduler.wait_for_sums()[0].value,
        timeout_sec=this_round.timeout_sec,
    )

  def _work(
      self,
      this_round: client_round.ClientRound,
      trainer: client_trainer.ClientTrainer,
      thread: int,
  ) -> None:
    """A thread: one task after another until the round is over."""
    tasks = this_round.scheduler
    # All threads share one worker's name, so that one of them flushes for all.
    while (task := tasks.acquire(_PROCESS)) is not None:
      if isinstance(task, scheduler.FlushSum):
        tasks.complete(_PROCESS, task, trainer.flush())
        continue
      ordered = trainer.train(thread, task.positions, monitor=this_round)
      # The ordered sum is kept on one device, where groups are added in turn.
      with tf.device(self._server_device):
        this_round.add_ordered(task.number, ordered)
      tasks.complete(_PROCESS, task)
