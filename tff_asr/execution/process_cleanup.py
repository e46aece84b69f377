"""Ends the child processes that this process must not leave behind.

A child that outlives its parent keeps the parent's stdout open, so that
`program | tail` never ends.
"""

from collections.abc import Sequence
import time

import psutil

from tff_asr import checks


def end_children(name: str, *, timeout_sec: float = 5.0) -> None:
  """Ends this process's own children of a name, and waits for them.

  Each is asked to terminate, and killed if it still runs at the timeout. They
  are left for whoever started them to reap: its `Popen.wait` works as usual.

  Args:
    name: name of the executable, such as 'worker_binary'.
    timeout_sec: how long a child may take to terminate, at least 0.
  """
  children = [
      child for child in psutil.Process().children() if _is_named(child, name)
  ]
  end(children, timeout_sec=timeout_sec)


def end(
    processes: Sequence[psutil.Process], *, timeout_sec: float = 5.0
) -> None:
  """Ends processes that this one started, as `end_children` does."""
  checks.non_negative(timeout_sec=timeout_sec)
  for process in processes:
    _ignore_gone(process.terminate)
  if not _wait(processes, timeout_sec):
    for process in processes:
      _ignore_gone(process.kill)
    _wait(processes, timeout_sec)


def _wait(processes: Sequence[psutil.Process], timeout_sec: float) -> bool:
  """Whether all processes ended within the time."""
  deadline = time.monotonic() + timeout_sec
  while any(map(_runs, processes)):
    if time.monotonic() >= deadline:
      return False
    time.sleep(0.01)
  return True


def _runs(child: psutil.Process) -> bool:
  try:
    return child.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def _is_named(child: psutil.Process, name: str) -> bool:
  try:
    return child.name() == name and _runs(child)
  except psutil.NoSuchProcess:
    return False


def _ignore_gone(action) -> None:
  try:
    action()
  except psutil.NoSuchProcess:
    pass
