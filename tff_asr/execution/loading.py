"""The functions of one computation, each loaded where it runs.

The server's part (`prepare`, `finish`) and the clients' (`zero`, `work`,
`merge`) load apart, since they may run in different processes.
"""

from collections.abc import Callable, Hashable, Sequence
import threading
from typing import Any, NamedTuple

import tensorflow as tf

from tff_asr.execution import client_datasets
from tff_asr.execution import compiler
from tff_asr.execution import graph
from tff_asr.execution import client_cache
from tff_asr.execution import prefetch


class ClientPrograms(NamedTuple):
  """What runs at clients; pickles, without the types of the computation.

  Attributes:
    read: makes a client's datasets; None where the work makes none.
    work: the client program of a `compiler.Round` or `compiler.ClientMap`.
    zero: the empty accumulator; None where nothing is summed.
    merge: two accumulators to one; None where nothing is summed.
  """

  read: client_datasets.Read | None
  work: graph.Program
  zero: graph.Program | None
  merge: graph.Program | None


def get_client_programs(
    compiled: compiler.Round | compiler.ClientMap,
) -> ClientPrograms:
  """Returns the part of a compiled computation that runs at clients."""
  if isinstance(compiled, compiler.Round):
    return ClientPrograms(
        compiled.read, compiled.work, compiled.zero, compiled.merge
    )
  return ClientPrograms(compiled.read, compiled.work, None, None)


class ClientFunctions:
  """Loaded `ClientPrograms`, for several threads of a process.

  Attributes:
    sums: whether clients are summed; without, there are the next two neither.
    zero: the empty accumulator.
    merge: two accumulators to one.
    zero_lock: to be held where threads share `zero`.
  """

  def __init__(self, programs: ClientPrograms):
    self._programs = programs
    self._read = programs.read and programs.read.program.load()
    self._kept = client_cache.IN_PROCESS.part()
    self._work = {0: programs.work.load()}
    self._work_lock = threading.Lock()
    self.zero_lock = threading.Lock()
    self.sums = programs.zero is not None
    if self.sums:
      self.zero = programs.zero.load()
      self.merge = programs.merge.load()

  def build_reader(
      self,
      get_client: Callable[[Hashable], Sequence[tf.Tensor]],
      *,
      num_threads: int,
  ) -> prefetch.Reader:
    """What reads clients' data ahead; to be closed.

    Args:
      get_client: the flat values of a client by its key.
      num_threads: how many clients are read at once.
    """
    return prefetch.Reader(
        self._read,
        elements=self._programs.read.elements if self._read else (),
        get_client=get_client,
        num_threads=num_threads,
        kept=self._kept,
    )

  def get_work(self, slot: int) -> graph.Function:
    """The client function for a worker: its own if it has variables."""
    with self._work_lock:
      if not self._work[0].has_variables:
        slot = 0
      if slot not in self._work:
        self._work[slot] = self._programs.work.load()
      return self._work[slot]


class Loaded:
  """One computation: its server's functions, and whatever runs its clients.

  Attributes:
    compiled: the computation as programs.
    lock: held while it runs.
    prepare: of the others.
    finish: of a `compiler.Round`.
    clients: made by the `load_clients` of the constructor; not for a `Local`.
  """

  def __init__(
      self,
      compiled: compiler.Compiled,
      load_clients: Callable[[compiler.Round | compiler.ClientMap], Any],
  ):
    self.compiled = compiled
    self.lock = threading.Lock()
    if isinstance(compiled, compiler.Local):
      self._run = None if _is_constant(compiled.run) else compiled.run.load()
      return
    self.prepare = compiled.prepare.load()
    if isinstance(compiled, compiler.Round):
      self.finish = compiled.finish.load()
    self.clients = load_clients(compiled)

  def run(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """The function of a `compiler.Local`."""
    if self._run is None:
      return self.compiled.run.load()(*tensors)
    return self._run(*tensors)


def _is_constant(program: graph.Program) -> bool:
  """Whether a program takes nothing.

  Graph optimization makes constants of what it returns, such as a process's
  first state. They would take memory for as long as the program is loaded.
  """
  return not program.num_arguments
