"""Atomic files and locks on files: the one place that replaces, syncs, locks.

A file is written as NAME.partial, synced, renamed, and the folder synced: a
name stands for a whole file, old or new, also after a power failure.
"""

from collections.abc import Iterator
import contextlib
import fcntl
import json
import os
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: str, *, mode: int = 0o644) -> Iterator[BinaryIO]:
  """Opens a file that takes the place of `path` when the context ends well.

  Args:
    path: The file; its folder exists.
    mode: Its permissions, less those that the umask takes.

  Yields:
    The file to write. After an exception nothing of it is left, and an older
    file stays as it was.
  """
  partial = f'{path}.partial'
  descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
  try:
    with open(descriptor, 'wb') as file:
      yield file
      file.flush()
      os.fsync(descriptor)
    os.replace(partial, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(partial)
    raise
  sync(os.path.dirname(os.path.abspath(path)))


def write(path: str, data: bytes, *, mode: int = 0o644) -> None:
  """Writes a file whole or not at all; when this returns, it is on disk."""
  with replacing(path, mode=mode) as file:
    file.write(data)


def write_text(path: str, text: str) -> None:
  """As `write`, in UTF-8."""
  write(path, text.encode())


def write_json(path: str, value: Any) -> None:
  """As `write`, a value as indented JSON."""
  write_text(path, json.dumps(value, indent=1) + '\n')


def sync(path: str) -> None:
  """Waits until a file, or the names of the files in a folder, are on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def try_lock(descriptor: int) -> bool:
  """Takes the lock of an open file; False if another process or file has it.

  The operating system lets go of it however the process ends.
  """
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True
