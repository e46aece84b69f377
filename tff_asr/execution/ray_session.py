"""This process' connection to a Ray cluster.

A cluster that was started here is stopped when Python exits (normally, by an
exception or by Ctrl-C) and by `stop`, which waits for its processes and removes
its folder of logs. If the program or Ray's process for this machine is killed,
`ray_watch` does this. A cluster that was joined continues to run.
"""

import atexit
import logging
import os
import socket
import subprocess
import sys
import tempfile

import ray

from tff_asr.execution import ray_watch

# Ray reads these when it starts: no usage reports, no advice on settings of the
# next release, no metrics (Ray complains if nothing collects them).
_ENVIRONMENT = {
    'RAY_USAGE_STATS_ENABLED': '0',
    'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO': '0',
    'RAY_enable_metrics_collection': '0',
}

_CONNECT_TIMEOUT_SEC = 10.0

_watch = None  # Of the cluster that this process is connected to.


def connect(address: str | None, *, num_cpus: int) -> None:
  """Connects this process to a cluster, unless it is connected.

  Args:
    address: 'auto' or 'host:port' of a cluster that this machine belongs to;
      None starts one on this machine.
    num_cpus: the least number of CPUs that a new cluster offers.

  Raises:
    ConnectionError: there is no cluster at `address`.
  """
  global _watch
  if ray.is_initialized():
    return
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  atexit.unregister(stop)
  folder = None
  if address is None:
    # Ray opens its folder to all users, so it gets one inside of a folder that
    # is private. The path is short: those of sockets have a limit.
    folder = tempfile.mkdtemp(prefix='ray_', dir='/tmp')
  _watch = _Watch(folder)
  try:
    if folder is not None:
      _start(num_cpus, folder)
    else:
      _join(address)
  # An interrupt must leave no process either.
  except BaseException:
    stop()
    raise
  # Registered after Ray's own exit handlers, so it runs before those.
  atexit.register(stop)


def stop() -> None:
  """Leaves the cluster; stops it if this process started it."""
  global _watch
  announce_end()
  ray.shutdown()
  if _watch is not None:
    _watch.end()
    _watch = None


def announce_end() -> None:
  """Announces that the program is about to end, so this is no error."""
  if _watch is not None:
    _watch.announce_end()


class _Watch:
  """The process of `ray_watch`.

  Attributes:
    folder: The cluster's folder, which `ray_watch` removes; None if the cluster
      was joined.
  """

  def __init__(self, folder: str | None):
    self.folder = folder
    self._process = subprocess.Popen(
        [sys.executable, '-P', ray_watch.__file__, folder or ''],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # A Ctrl-C must not end it.
    )

  def announce_end(self) -> None:
    """Says that the program is about to end."""
    self._process.stdin.write(b'.')

  def end(self) -> None:
    """Waits until the cluster's processes and folder are gone."""
    self._process.stdin.close()
    # Empty at the end of its child, which has the same stdout.
    self._process.stdout.read()
    self._process.wait()


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
