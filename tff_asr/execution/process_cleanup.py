"""Ends the child processes that this process must not leave behind.

A child that outlives its parent keeps the parent's stdout open, so that
`program | tail` never ends.
"""

from collections.abc import Sequence
import contextlib
import time

import psutil


def end_children(name: str, *, timeout_sec: float = 5.0) -> None:
  """Ends this process's own children of a name, and waits for them.

  Each is asked to terminate, and killed if it still runs after the timeout.
  They are not reaped, so the `Popen.wait` of their starter works as usual.

  Args:
    name: name of the executable, such as 'worker_binary'.
    timeout_sec: how long a child may take to terminate.
  """
  children = [
      child for child in psutil.Process().children() if _is_named(child, name)
  ]
  for child in children:
    with contextlib.suppress(psutil.NoSuchProcess):
      child.terminate()
  _wait(children, timeout_sec)
  for child in children:
    if _runs(child):
      with contextlib.suppress(psutil.NoSuchProcess):
        child.kill()
  _wait(children, timeout_sec)


def _wait(processes: Sequence[psutil.Process], timeout_sec: float) -> None:
  """Waits until all processes have ended, or the time is over."""
  deadline = time.monotonic() + timeout_sec
  while any(map(_runs, processes)) and time.monotonic() < deadline:
    time.sleep(0.01)


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
