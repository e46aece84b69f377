"""This process' connection to a Ray cluster, ended with the program.

A cluster that was started here is stopped when Python exits (normally, by an
exception or by Ctrl-C) and by `stop`. Stopping waits for its processes and
removes its folder of logs. A cluster that was joined goes on.
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

from tff_asr.execution import process_cleanup

# Ray reads these when it starts: no usage reports, no advice on settings of the
# next release, no metrics (Ray complains if nothing collects them).
_ENVIRONMENT = {
    'RAY_USAGE_STATS_ENABLED': '0',
    'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO': '0',
    'RAY_enable_metrics_collection': '0',
}

_CONNECT_TIMEOUT_SEC = 10.0

_lock = threading.Lock()
# Processes and folder of the cluster that was started here.
_processes = []
_folder = None


def connect(address: str | None, *, num_cpus: int) -> None:
  """Connects this process to a cluster, unless it is already.

  Args:
    address: 'auto' or 'host:port' of a cluster that this machine belongs to;
      None starts one on this machine.
    num_cpus: the least number of CPUs that a new cluster offers.

  Raises:
    ConnectionError: there is no cluster at `address`.
  """
  with _lock:
    if ray.is_initialized():
      return
    for name, value in _ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    atexit.unregister(stop)
    if address is None:
      _start(num_cpus)
    else:
      _join(address)
    # Registered after Ray's own exit handler, so it runs before that.
    atexit.register(stop)


def stop() -> None:
  """Leaves the cluster; stops it if this process started it."""
  global _folder
  with _lock:
    processes = []
    for parent in filter(psutil.Process.is_running, _processes):
      with contextlib.suppress(psutil.NoSuchProcess):
        processes += [parent, *parent.children(recursive=True)]
    _processes.clear()
    ray.shutdown()
    process_cleanup.end(processes)
    if _folder is not None:
      shutil.rmtree(_folder, ignore_errors=True)
      _folder = None


def _start(num_cpus: int) -> None:
  """Starts a cluster on this machine."""
  global _folder
  others = psutil.Process().children()
  # A short path: the sockets below it may have at most 107 characters.
  _folder = tempfile.mkdtemp(prefix='ray_', dir='/tmp')
  try:
    ray.init(
        # Explicit: otherwise RAY_ADDRESS would make Ray join another cluster.
        address='local',
        num_cpus=max(num_cpus, os.cpu_count()),
        # Otherwise Ray listens on every address of this machine.
        _node_ip_address='127.0.0.1',
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=_folder,
    )
  finally:
    _processes.extend(
        child for child in psutil.Process().children() if child not in others
    )


def _join(address: str) -> None:
  """Joins a running cluster."""
  try:
    if address != 'auto':
      # Ray itself would try for minutes if nobody listens.
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
        f'({" ".join(str(error).split())[:200]}); run `ray start --head` on '
        'one machine and `ray start --address=HOST:PORT` on the others; this '
        'must be one of them.'
    ) from error
