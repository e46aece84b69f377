"""One run at a time in a folder: a lock that ends with its process.

The lock is on an open file (flock), so that the operating system lets go of it
however the process ends; the file stays and says who held it last.
"""

import fcntl
import os
import socket

_NAME = 'run.lock'


class InUseError(ValueError):
  """Another run has the folder."""


class RunLock:
  """Holds a folder until `release`, or until this process ends."""

  def __init__(self, folder: str):
    """Takes the lock.

    Args:
      folder: Exists.

    Raises:
      InUseError: Another process (or this one) holds it; names it.
    """
    path = os.path.join(folder, _NAME)
    # Unbuffered; not inherited by programs that this one starts.
    self._file = open(path, 'a+b', buffering=0)
    if not _try(self._file.fileno()):
      self._file.close()
      raise _in_use(folder)
    self._file.truncate(0)
    self._file.write(f'{os.getpid()} on {socket.gethostname()}\n'.encode())

  def release(self) -> None:
    """Lets go of the folder."""
    self._file.close()


def check_free(folder: str) -> None:
  """Raises InUseError if a run holds the folder; writes nothing."""
  try:
    descriptor = os.open(os.path.join(folder, _NAME), os.O_RDONLY)
  except OSError:
    return  # Nobody ever held it.
  try:
    if not _try(descriptor):
      raise _in_use(folder)
  finally:
    os.close(descriptor)


def _try(descriptor: int) -> bool:
  """Whether the lock could be taken."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _in_use(folder: str) -> InUseError:
  """The error that names who holds the folder."""
  with open(os.path.join(folder, _NAME), encoding='utf-8') as f:
    holder = f.read().strip() or 'unknown'
  return InUseError(
      f'{folder} is in use by process {holder}: wait until it has ended, end '
      'it, or take another output_dir.'
  )
