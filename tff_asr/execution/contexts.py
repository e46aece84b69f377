"""TFF's two kinds of context around one `Runner`: synchronous, asynchronous."""

import asyncio
import functools
import inspect
import threading
from typing import Any, Protocol

import tensorflow_federated as tff

from tff_asr.execution import worker_threads


class Runner(Protocol):
  """What runs computations for a context."""

  last_timeline: list[worker_threads.ClientInterval]
  last_failures: dict[int, str]

  def invoke(
      self, comp: tff.Computation, arg: Any, *, stop: threading.Event
  ) -> Any:
    """Returns the result of `comp(arg)`; `stop` ends it between clients."""


class SyncRunnerContext(tff.framework.SyncContext):
  """Runs computations in the calling thread's time."""

  def __init__(self, runner: Runner):
    self._runner = runner

  @property
  def last_timeline(self) -> list[worker_threads.ClientInterval]:
    return self._runner.last_timeline

  @property
  def last_failures(self) -> dict[int, str]:
    return self._runner.last_failures

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    return self._runner.invoke(comp, arg, stop=threading.Event())


class AsyncRunnerContext(tff.framework.AsyncContext):
  """Runs computations in a thread, and awaits it."""

  def __init__(self, runner: Runner):
    self._runner = runner

  @property
  def last_timeline(self) -> list[worker_threads.ClientInterval]:
    return self._runner.last_timeline

  @property
  def last_failures(self) -> dict[int, str]:
    return self._runner.last_failures

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
