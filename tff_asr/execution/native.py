"""TFF's own C++ runtime, stopped when the program ends.

It runs computations in a separate program, `worker_binary`, that TFF starts
with the first computation and talks to over gRPC. It uses the CPU only, moves
every value through gRPC (messages end at 2 GB), knows TensorFlow's core ops
only, and outlives the Python process unless it is stopped. Take it for
computations that `multi_device` refuses, and to compare with.

The worker is stopped when Python exits, normally or by an exception, at
Ctrl-C, and at the end of `stopped_at_end`. A process ended by a signal that
Python does not handle (SIGTERM, SIGKILL) runs no such code.
"""

import atexit
from collections.abc import Iterator
import contextlib
import re
from typing import Any

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.execution import orphans

_WORKER = 'worker_binary'
_UNKNOWN_OP = re.compile(r"Op type not registered '([^']+)'")


def build_sync_context(
    *,
    default_num_clients: int = 0,
    max_concurrent_clients: int | None = None,
) -> tff.framework.SyncContext:
  """Builds a context in which calling a computation returns its result.

  Args:
    default_num_clients: number of clients where no argument tells it.
    max_concurrent_clients: how many clients run at once; None is all.

  Raises:
    ValueError: an argument out of range.
  """
  options = _options(default_num_clients, max_concurrent_clients)
  return _SyncContext(
      tff.backends.native.create_sync_local_cpp_execution_context(**options)
  )


def build_async_context(
    *,
    default_num_clients: int = 0,
    max_concurrent_clients: int | None = None,
) -> tff.framework.AsyncContext:
  """Builds a context in which calling a computation returns an awaitable.

  `tff.program.NativeFederatedContext` takes it. Arguments: see
  `build_sync_context`.
  """
  options = _options(default_num_clients, max_concurrent_clients)
  return _AsyncContext(
      tff.backends.native.create_async_local_cpp_execution_context(**options)
  )


def set_default_context(
    *,
    default_num_clients: int = 0,
    max_concurrent_clients: int | None = None,
) -> tff.framework.SyncContext:
  """Makes a new synchronous context the default of this thread; returns it."""
  context = build_sync_context(
      default_num_clients=default_num_clients,
      max_concurrent_clients=max_concurrent_clients,
  )
  tff.framework.set_default_context(context)
  return context


def stop() -> None:
  """Ends every worker of this process; build a new context to go on."""
  orphans.end_children(_WORKER)


@contextlib.contextmanager
def stopped_at_end() -> Iterator[None]:
  """Ends every worker of this process when the `with` block ends."""
  try:
    yield
  finally:
    stop()


class _SyncContext(tff.framework.SyncContext):
  """TFF's synchronous context with clearer errors."""

  def __init__(self, context: tff.framework.SyncContext):
    self._context = context

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    try:
      return self._context.invoke(comp, arg)
    except KeyboardInterrupt:
      # Python waits for TFF's threads, and these for the worker, before it
      # runs what is registered for its exit.
      stop()
      raise
    except Exception as error:
      _explain(error)
      raise


class _AsyncContext(tff.framework.AsyncContext):
  """TFF's asynchronous context with clearer errors."""

  def __init__(self, context: tff.framework.AsyncContext):
    self._context = context

  async def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    try:
      return await self._context.invoke(comp, arg)
    except Exception as error:
      _explain(error)
      raise


def _options(
    default_num_clients: int, max_concurrent_clients: int | None
) -> dict[str, int]:
  """TFF's names for the settings; also registers the stop at exit."""
  checks.non_negative_int(default_num_clients=default_num_clients)
  if max_concurrent_clients is not None:
    checks.positive_int(max_concurrent_clients=max_concurrent_clients)
  atexit.unregister(stop)
  atexit.register(stop)
  return {
      'default_num_clients': default_num_clients,
      'max_concurrent_computation_calls': max_concurrent_clients or -1,
  }


def _explain(error: Exception) -> None:
  """Raises a one-line error for what the worker cannot run."""
  if found := _UNKNOWN_OP.search(str(error)):
    raise RuntimeError(
        'The native worker knows core TensorFlow ops only, and found '
        f'{found[1]!r}; use tff_asr.execution.multi_device, or PCM shards if '
        'the op decodes audio.'
    ) from error
