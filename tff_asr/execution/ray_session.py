"""This process' connection to a Ray cluster, ended with the program.

A cluster that was started here is stopped when Python exits (normally, by an
exception or by Ctrl-C) and by `stop`. Stopping waits for its processes and
removes its folder of logs. If the program is killed, or Ray's process of this
machine is, `ray_watch` does so. A cluster that was joined goes on.
"""

import atexit
from collections.abc import Sequence
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading

import psutil
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

_lock = threading.Lock()
_watch = None


def connect(address: str | None, *, num_cpus: int) -> None:
  """Connects this process to a cluster, unless it is already.

  Args:
    address: 'auto' or 'host:port' of a cluster that this machine belongs to;
      None starts one on this machine.
    num_cpus: the least number of CPUs that a new cluster offers.

  Raises:
    ConnectionError: there is no cluster at `address`.
  """
  global _watch
  with _lock:
    if ray.is_initialized():
      return
    for name, value in _ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    atexit.unregister(stop)
    folder = None
    if address is None:
      # Only its owner gets into it. Ray opens its own folder, in it, to all.
      # Short, as the paths of the sockets below may have 107 characters.
      folder = tempfile.mkdtemp(prefix='ray_', dir='/tmp')
    _watch = _Watch(folder)
    try:
      if folder is not None:
        _start(num_cpus, folder)
      else:
        _join(address)
      _watch.wait_for(_find_processes(folder))
    except BaseException:
      _leave()
      raise
    # Registered after Ray's own exit handlers, so it runs before those.
    atexit.register(stop)


def stop() -> None:
  """Leaves the cluster; stops it if this process started it."""
  with _lock:
    _leave()


def expect_end() -> None:
  """Says that the program, and so its cluster, is about to end."""
  if _watch is not None:
    _watch.wait_for(())


def _leave() -> None:
  global _watch
  expect_end()
  ray.shutdown()
  if _watch is not None:
    _watch.end()
    _watch = None


class _Watch:
  """The process `ray_watch`.

  Attributes:
    folder: the cluster's, which it removes; None: of a cluster that was joined.
  """

  def __init__(self, folder: str | None):
    self.folder = folder
    self._process = subprocess.Popen(
        [sys.executable, '-P', ray_watch.__file__, folder or ''],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # A Ctrl-C is not for it.
    )
    self._thread = threading.Thread(target=self._wait, daemon=True)
    self._thread.start()

  def wait_for(self, process_ids: Sequence[int]) -> None:
    """Has the program end when one of Ray's processes ends; none: it leaves."""
    line = ' '.join(map(str, process_ids)) + '\n'
    with contextlib.suppress(BrokenPipeError):
      self._process.stdin.write(line.encode())

  def end(self) -> None:
    """Waits until all that is left of the cluster is gone."""
    self._process.stdin.close()
    self._thread.join()

  def _wait(self) -> None:
    """Ends the program if one of Ray's processes has ended."""
    self._process.wait()  # What runs on is its own child.
    if self._process.stdout.read():
      os._exit(1)  # pylint: disable=protected-access


def _find_processes(folder: str | None) -> list[int]:
  """Ids of the raylet that this program uses, and its own cluster's GCS."""
  node_id = ray.get_runtime_context().get_node_id()
  (socket_path,) = (
      node['RayletSocketName']
      for node in ray.nodes()
      if node['NodeID'] == node_id
  )
  marks = {'raylet': socket_path, 'gcs_server': folder}
  return [
      process.pid
      for process in psutil.process_iter(['name', 'cmdline'])
      if (mark := marks.get(process.info['name']))
      and mark in ' '.join(process.info['cmdline'] or ())
  ]


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
        f'({" ".join(str(error).split())[:200]}); run `ray start --head '
        '--include-dashboard=false` on one machine and `ray start '
        '--address=HOST:PORT` on the others; this must be one of them.'
    ) from error
