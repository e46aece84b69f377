"""This process' connection to a Ray cluster.

A cluster that was started here is stopped when Python exits (normally, by an
exception or by Ctrl-C) and by `stop`, which waits for its processes and removes
its folder of logs. A cluster that was joined continues to run.
"""

import atexit
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading

import psutil
import ray

# Ray reads these when it starts: no usage reports, no advice on settings of the
# next release, no metrics (Ray complains if nothing collects them).
_ENVIRONMENT = {
    'RAY_USAGE_STATS_ENABLED': '0',
    'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO': '0',
    'RAY_enable_metrics_collection': '0',
}

_CONNECT_TIMEOUT_SEC = 10.0
# How long Ray's processes may take to end by themselves.
_END_TIMEOUT_SEC = 10.0

_lock = threading.Lock()
_folder = None  # Of the cluster that was started here.


def connect(address: str | None, *, num_cpus: int) -> None:
  """Connects this process to a cluster, unless it is connected.

  Args:
    address: 'auto' or 'host:port' of a cluster that this machine belongs to;
      None starts one on this machine.
    num_cpus: the least number of CPUs that a new cluster offers.

  Raises:
    ConnectionError: there is no cluster at `address`.
  """
  global _folder
  with _lock:
    if ray.is_initialized():
      return
    for name, value in _ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    atexit.unregister(stop)
    try:
      if address is None:
        # Ray opens its folder to all users, so it gets one inside of a folder
        # that is private. The path is short: those of sockets have a limit.
        _folder = tempfile.mkdtemp(prefix='ray_', dir='/tmp')
        _start(num_cpus, _folder)
      else:
        _join(address)
    except BaseException:
      _leave()
      raise
    # Registered after Ray's own exit handlers, so it runs before those.
    atexit.register(stop)


def stop() -> None:
  """Leaves the cluster; stops it if this process started it."""
  with _lock:
    _leave()


def _leave() -> None:
  global _folder
  folder, _folder = _folder, None
  # Ray waits for the processes that it started, but not for their children.
  processes = [] if folder is None else _find_processes()
  ray.shutdown()
  _, left = psutil.wait_procs(processes, timeout=_END_TIMEOUT_SEC)
  for process in left:
    with contextlib.suppress(psutil.NoSuchProcess):
      process.kill()
  if folder is not None:
    shutil.rmtree(folder, ignore_errors=True)


def _find_processes() -> list[psutil.Process]:
  """Returns the children of the raylet that this process started."""
  found = []
  for child in psutil.Process().children():
    with contextlib.suppress(psutil.NoSuchProcess):
      if child.name() == 'raylet':
        found += child.children(recursive=True)
  return found


def _start(num_cpus: int, folder: str) -> None:
  """Starts a cluster on this machine."""
  ray.init(
      # Explicit: otherwise RAY_ADDRESS would make Ray join another cluster.
      address='local',
      num_cpus=max(num_cpus, os.cpu_count()),
      # Otherwise Ray listens on every address of this machine.
      _node_ip_address='127.0.0.1',
      include_dashboard=False,
      log_to_driver=False,
      logging_level=logging.ERROR,
      _temp_dir=os.path.join(folder, 'r'),
  )


def _join(address: str) -> None:
  """Joins a running cluster."""
  try:
    if address != 'auto':
      # Ray itself would try for minutes to reach an unused port.
      host, port = address.rsplit(':', 1)
      socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_SEC).close()
    ray.init(
        address=address, log_to_driver=False, logging_level=logging.ERROR
    )
  except ray.exceptions.AuthenticationError as error:
    raise ConnectionError(
        f'The Ray cluster at {address!r} has another token: set RAY_AUTH_TOKEN '
        'to the one that it was started with.'
    ) from error
  except (OSError, RuntimeError, ValueError) as error:
    raise ConnectionError(
        f'There is no Ray cluster to join at {address!r} '
        f'({" ".join(str(error).split())[:200]}); run `ray start --head '
        '--include-dashboard=false` on one machine and `ray start '
        '--address=HOST:PORT` on the others; this must be one of them.'
    ) from error
