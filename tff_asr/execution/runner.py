"""The server's part of every computation, whoever runs the clients.

    broadcast = prepare(server)                  on the server device
    total = the sum over all blocks of clients   a subclass' `run_clients`
    result = finish(server, total)               on the server device

Computations without clients run on the server device as they are.
"""

import abc
from collections.abc import Callable, Sequence
import threading
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.execution import cache
from tff_asr.execution import worker_threads
from tff_asr.execution import compiler
from tff_asr.execution import malloc_trim
from tff_asr.execution import loading
from tff_asr.execution import schedule

# Contexts share what was compiled; each loads its own functions, as variables
# belong to one load.
_compiled = cache.Cache(compiler.compile_computation)


class Job(NamedTuple):
  """The clients' part of one call of a computation.

  Attributes:
    loaded: the computation, a `compiler.Round` or `compiler.ClientMap`.
    clients: a tuple of values for each client.
    blocks: the clients' positions, in blocks.
    broadcast: what `prepare` returned.
    stop: set from outside to end the round between clients.
    max_failed: how many clients may fail and are left out.
    timeout_sec: how long a client's work may take, or None.
  """

  loaded: loading.Loaded
  clients: Sequence[tuple]
  blocks: Sequence[schedule.Block]
  broadcast: Sequence[tf.Tensor]
  stop: threading.Event
  max_failed: int = 0
  timeout_sec: float | None = None


class Runner(abc.ABC):
  """Runs computations for the contexts of `contexts`.

  Attributes:
    last_timeline: the `worker_threads.ClientInterval`s of the round that finished last,
      by start.
    last_failures: what the clients that it left out failed of, by position.
  """

  def __init__(
      self,
      *,
      server_device: str,
      block_size: int,
      client_cost: Callable[[Any], float] | None,
      max_failed_share: float = 0.0,
      client_timeout_sec: float | None = None,
  ):
    """Checks the settings.

    Args:
      server_device: logical device of the server's part.
      block_size: clients a block, at least 1.
      client_cost: a client's argument (a tuple of them if there are several)
        to its expected cost; None keeps the order of the cohort.
      max_failed_share: share of a round's clients that may fail.
      client_timeout_sec: how long a client's work may take; None: forever.

    Raises:
      ValueError: an argument out of range.
    """
    check_settings(
        block_size=block_size,
        client_cost=client_cost,
        max_failed_share=max_failed_share,
        client_timeout_sec=client_timeout_sec,
    )
    self._server_device = server_device
    self._block_size = block_size
    self._client_cost = client_cost
    self._max_failed_share = max_failed_share
    self._timeout_sec = client_timeout_sec
    self._cache = cache.Cache(
        lambda comp: loading.Loaded(_compiled.get(comp), self.load_clients)
    )
    self.last_timeline = []
    self.last_failures = {}

  @abc.abstractmethod
  def load_clients(self, compiled: compiler.Round | compiler.ClientMap) -> Any:
    """Returns what a job's `loaded.clients` shall be; made once."""

  @abc.abstractmethod
  def run_clients(
      self, job: Job
  ) -> tuple[list[Any], worker_threads.RoundExecution]:
    """Runs all clients of a job.

    Returns:
      The total of a `compiler.Round`, or each client's result, in the order of
      the cohort, of a `compiler.ClientMap`; and the cohort that ran.
    """

  def invoke(
      self, comp: tff.Computation, arg: Any, *, stop: threading.Event
  ) -> Any:
    """Returns the result of `comp(arg)`; `stop` ends it between clients."""
    loaded = self._cache.get(comp)
    # Functions with variables allow one call at a time.
    with loaded.lock, tf.device(self._server_device):
      if isinstance(loaded.compiled, compiler.Local):
        tensors = loaded.run(*loaded.compiled.argument.flatten(arg))
        return loaded.compiled.result.pack(tensors)
      return self._invoke_over_clients(loaded, arg, stop)

  def _invoke_over_clients(
      self, loaded: loading.Loaded, arg: Any, stop: threading.Event
  ) -> Any:
    """Runs a computation over clients: a `compiler.Round` or `compiler.ClientMap`."""
    compiled = loaded.compiled
    server, clients = compiled.arguments.split(arg)
    blocks = schedule.build_blocks(
        len(clients),
        block_size=self._block_size,
        costs=self._measure_costs(clients),
    )
    max_failed = 0  # Each result of a `compiler.ClientMap` is asked for.
    if isinstance(compiled, compiler.Round):
      max_failed = int(self._max_failed_share * len(clients))
    broadcast = loaded.prepare(*server)
    # Here, too: of the round before, what nobody holds any more.
    malloc_trim.give_back(broadcast)
    outputs, cohort = self.run_clients(Job(
        loaded,
        clients,
        blocks,
        broadcast,
        stop,
        max_failed,
        self._timeout_sec,
    ))
    self.last_timeline = sorted(
        cohort.timeline, key=lambda interval: interval.start_sec
    )
    self.last_failures = cohort.failures
    if isinstance(compiled, compiler.Round):
      malloc_trim.give_back(outputs)
      results = loaded.finish(*server, *outputs)
      malloc_trim.give_back(results)
      return compiled.result.pack(results)
    return [compiled.result.pack(tensors) for tensors in outputs]

  def _measure_costs(self, clients: Sequence[tuple]) -> list[float] | None:
    if self._client_cost is None:
      return None
    return [
        self._client_cost(client[0] if len(client) == 1 else client)
        for client in clients
    ]


def check_settings(
    *,
    block_size: int,
    client_cost: Callable[[Any], float] | None,
    max_failed_share: float = 0.0,
    client_timeout_sec: float | None = None,
) -> None:
  """Raises ValueError, naming the argument, unless all are in range."""
  checks.positive_int(block_size=block_size)
  checks.in_range(0, 1, max_failed_share=max_failed_share)
  if client_timeout_sec is not None:
    checks.positive(client_timeout_sec=client_timeout_sec)
  if client_cost is not None and not callable(client_cost):
    raise ValueError(
        'client_cost must be None or a function of one client, found '
        f'{client_cost!r}.'
    )
