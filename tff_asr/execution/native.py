"""TFF's own C++ runtime, stopped when the program ends.

TFF runs computations in a separate program, `worker_binary`, which it starts
with the first computation and talks to over gRPC. The worker uses the CPU only,
gets every value through gRPC (at most 2 GB a message), and has TensorFlow's
core ops only. Use it for computations that `multi_device` refuses, and for
comparison.

The worker listens on every address of the machine, without a password, and runs
what it is sent, so that files can be read and written through it. TFF fixes
that address in the worker's program. A context is refused where the program
has a network interface other than loopback, unless the caller passes
`trust_network`.

The worker is stopped when Python exits (normally or by an exception), at
Ctrl-C, when a call is cancelled, and by `stop`. A signal that Python does not
handle ends the process without that: SIGKILL, and SIGTERM unless a handler is
set, as `tff_asr.launch` does.
"""

import asyncio
import atexit
from concurrent import futures
import contextlib
import inspect
import ipaddress
import re
import signal
import socket
import threading
import time
from typing import Any

import psutil
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.execution import intrinsics

_WORKER = 'worker_binary'
_END_TIMEOUT_SEC = 10.0
_UNKNOWN_OP = re.compile(
    r"(?:Op type not registered|No OpKernel was registered to support Op) "
    r"'([^']+)'"
)


def build_sync_context(
    *, max_concurrent_clients: int | None = None, trust_network: bool = False
) -> tff.framework.SyncContext:
  """Builds a context in which calling a computation returns its result.

  Args:
    max_concurrent_clients: how many clients run at once; None is all.
    trust_network: whether no one else can reach this machine's ports, because
      of a firewall, and because it has no other users.

  Raises:
    ValueError: an argument out of range, or others might reach the worker.
  """
  _check_reach(trust_network)
  return _SyncContext(max_concurrent_clients)


def build_async_context(
    *, max_concurrent_clients: int | None = None, trust_network: bool = False
) -> tff.framework.AsyncContext:
  """Builds a context in which calling a computation returns an awaitable.

  Cancelling the awaitable stops the workers of this process; build a new
  context to continue. `tff.program.NativeFederatedContext` takes it. Arguments:
  see `build_sync_context`.
  """
  _check_reach(trust_network)
  return _AsyncContext(max_concurrent_clients)


def stop() -> None:
  """Ends every worker of this process; build a new context to continue."""
  # Only the children of this process: others have workers, too.
  workers = list(filter(_is_worker, psutil.Process().children()))
  for worker in workers:
    with contextlib.suppress(psutil.NoSuchProcess):
      # Killed, as it has nothing to save.
      worker.kill()
  # TFF, which started them, reaps them: `psutil.wait_procs` would be in its
  # way.
  deadline = time.monotonic() + _END_TIMEOUT_SEC
  while any(map(_is_worker, workers)) and time.monotonic() < deadline:
    time.sleep(0.01)


def _is_worker(child: psutil.Process) -> bool:
  """Whether this is a worker that runs."""
  try:
    return child.name() == _WORKER and child.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


class _Caller:
  """Calls a context of TFF in a separate event loop."""

  # A call blocks its event loop until the worker answers, at the end of a
  # round. If the worker dies, TFF starts a new one and calls again. To end a
  # call, it is cancelled first, and then the worker is stopped: when the worker
  # fails, the call is already cancelled.

  def __init__(self, max_concurrent_clients: int | None):
    if max_concurrent_clients is not None:
      checks.positive_int(max_concurrent_clients=max_concurrent_clients)
    # Registered once, and last, so that it runs before handlers of libraries.
    atexit.unregister(stop)
    atexit.register(stop)
    _leave_interrupts_to_workers()
    build = tff.backends.native.create_async_local_cpp_execution_context
    self._context = build(
        max_concurrent_computation_calls=max_concurrent_clients or -1
    )
    # A separate loop: the caller's may be running, and a call would block it.
    self._loop = asyncio.new_event_loop()
    # A daemon, so that Python's exit does not wait for it.
    threading.Thread(
        target=self._loop.run_forever, name='native calls', daemon=True
    ).start()

  def _start(self, comp: tff.Computation, arg: Any) -> futures.Future:
    """Starts the call; the future has its result."""
    return asyncio.run_coroutine_threadsafe(
        self._call(comp, arg), self._loop
    )

  async def _call(self, comp: tff.Computation, arg: Any) -> Any:
    """Returns the result; refuses an unknown number of clients."""
    intrinsics.check_clients(comp)
    return await self._context.invoke(comp, arg)


class _SyncContext(_Caller, tff.framework.SyncContext):
  """TFF's context, with clearer errors, and ended by Ctrl-C."""

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    call = self._start(comp, arg)
    try:
      return call.result()
    except KeyboardInterrupt:
      call.cancel()
      stop()
      raise
    except Exception as error:
      _explain(error, comp)
      raise


class _AsyncContext(_Caller, tff.framework.AsyncContext):
  """TFF's context, with clearer errors, that leaves the event loop free."""

  async def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    if inspect.isawaitable(arg):
      arg = await arg
    try:
      return await asyncio.wrap_future(self._start(comp, arg))
    except asyncio.CancelledError:
      stop()
      raise
    except Exception as error:
      _explain(error, comp)
      raise


def _check_reach(trust_network: bool) -> None:
  """Raises ValueError if others might send the worker what it then runs."""
  if trust_network:
    return
  others = sorted(
      name
      for name, addresses in psutil.net_if_addrs().items()
      for address in addresses
      if address.family in (socket.AF_INET, socket.AF_INET6)
      # IPv6 addresses may end in the name of their interface, such as %eth0.
      and not ipaddress.ip_address(address.address.split('%')[0]).is_loopback
  )
  if others:
    raise ValueError(
        "TFF's native worker listens on all addresses of this machine "
        f'({others[0]}) and runs what anyone sends it: use multi_device. For '
        'what that refuses, run without a network, as `unshare --net '
        '--map-root-user` does (docs/execution.md), or pass trust_network=True '
        '(TRUST_NETWORK = True in gin) where no one else can reach this '
        'machine.'
    )


def _leave_interrupts_to_workers() -> None:
  """Lets SIGINT end workers even if this process ignores it."""
  # A program that a script starts in the background ignores SIGINT, and its
  # children inherit that. But TFF ends a worker by SIGINT when a context is
  # dropped, and would wait forever. Workers do not inherit handlers, so this
  # process replaces SIG_IGN by a handler that does nothing.
  is_main = threading.current_thread() is threading.main_thread()
  if is_main and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)


def _explain(error: Exception, comp: tff.Computation) -> None:
  """Raises ValueError, of one line, for what the worker cannot run."""
  if found := _UNKNOWN_OP.search(str(error)):
    raise ValueError(
        'The native worker has core TensorFlow ops only, and found '
        f'{found[1]!r}; use tff_asr.execution.multi_device, or PCM shards if '
        'the op decodes audio, characters if it makes sentence pieces, or '
        "kernel='tensorflow' if it draws noise."
    ) from error
  for name in sorted(
      intrinsics.called_intrinsics(comp) & intrinsics.NOT_NATIVE
  ):
    raise ValueError(
        f'TFF\'s native runtime has no {name}: use multi_device for secure '
        'sums, and write the others as the table in docs/execution.md says.'
    ) from error
