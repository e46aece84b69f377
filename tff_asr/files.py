"""Atomic files and locks on files: the one place that replaces, syncs, locks.

A file is written as NAME.partial, synced and renamed, and its folder is synced:
the name stands for a complete file, old or new, even after a power failure. The
partial file is always created (O_EXCL), so that it has its mode from the first
byte and cannot be a link to another file.
"""

from collections.abc import Iterator
import contextlib
import fcntl
import hashlib
import json
import os
import stat
from typing import Any, BinaryIO

_CHUNK_BYTES = 1 << 20


@contextlib.contextmanager
def replacing(path: str, *, mode: int = 0o644) -> Iterator[BinaryIO]:
  """Opens a file that replaces `path` if the context ends without an error.

  Args:
    path: The file; its folder exists.
    mode: Its permissions, less those that the umask takes.

  Yields:
    The file to write. After an exception it is deleted, and an older file
    stays as it was.
  """
  partial = _partial(path)
  with contextlib.suppress(FileNotFoundError):
    os.remove(partial)  # Left by a program that was killed.
  descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
  try:
    with open(descriptor, 'wb') as file:
      yield file
      file.flush()
      # Before the rename: otherwise a power failure may leave an empty file
      # under the final name.
      os.fsync(descriptor)
    os.replace(partial, path)
  # Also for KeyboardInterrupt and SystemExit.
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(partial)
    raise
  # The rename itself is in the folder, and lost in a power failure without
  # this.
  sync(os.path.dirname(os.path.abspath(path)))


def write(path: str, data: bytes, *, mode: int = 0o644) -> None:
  """Writes a whole file or nothing; returns when it is on disk."""
  with replacing(path, mode=mode) as file:
    file.write(data)


def write_text(path: str, text: str) -> None:
  """As `write`: text in UTF-8."""
  write(path, text.encode())


def write_json(path: str, value: object) -> None:
  """As `write`: a value as indented JSON, with non-ASCII letters as they are.

      >>> write_json('results.json', {'rounds': 20})
      >>> parse_json(read('results.json'))
      {'rounds': 20}
  """
  text = json.dumps(value, indent=1, ensure_ascii=False) + '\n'
  # A path that is not UTF-8 has lone surrogates, which become JSON's escapes.
  write(path, text.encode(errors='backslashreplace'))


@contextlib.contextmanager
def open_regular(path: str) -> Iterator[BinaryIO]:
  """Opens a regular file to read it.

  Raises:
    OSError: It cannot be opened.
    ValueError: It is a pipe or device, which might never end.
  """
  # `open` would wait for the writer of a pipe.
  opener = lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
  with open(path, 'rb', opener=opener) as file:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
      raise ValueError(f'{path} is not a regular file.')
    yield file


def sha256(path: str) -> str:
  """Returns the SHA-256 of a file, in hexadecimal; raises as `open_regular`."""
  with open_regular(path) as file:
    # In blocks: it does not have to fit into memory.
    return hashlib.file_digest(file, 'sha256').hexdigest()


def read(path: str, *, max_bytes: int | None = None) -> bytes:
  """Returns a file's bytes.

  Args:
    path: The file.
    max_bytes: The largest size to read; None: no limit.

  Raises:
    OSError: It cannot be read.
    ValueError: It is larger, or a pipe or device, which might never end.
  """
  with open_regular(path) as file:
    size = os.fstat(file.fileno()).st_size
    if max_bytes is not None and size > max_bytes:
      raise ValueError(
          f'{path} has {size:,} bytes, more than the {max_bytes:,} '
          'that such a file may have.'
      )
    return file.read()


def parse_json(data: bytes | str) -> Any:
  """Parses JSON; raises ValueError if it is invalid or nested too deeply."""
  try:
    return json.loads(data)
  except RecursionError:
    raise ValueError('it is nested too deeply') from None


@contextlib.contextmanager
def overwriting(path: str) -> Iterator[None]:
  """Overwrites the old content of `path` with zeros after it is replaced.

  Best effort: journals, snapshots, copies on write and the spare cells of a
  flash disk may keep the old content.

  Args:
    path: A file that the context replaces or removes; need not exist.
  """
  try:
    # Opened before the file is replaced: afterwards no name leads to its
    # content. A link is not followed, so that no other file is overwritten.
    old = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
  except FileNotFoundError:
    yield
    return
  try:
    yield
    left = os.fstat(old).st_size
    while left:
      # From the start of the file: nothing was read from this descriptor.
      left -= os.write(old, bytes(min(left, _CHUNK_BYTES)))
    os.fsync(old)
  finally:
    os.close(old)


def erase(path: str) -> None:
  """Removes a file and its partial file; see `overwriting`.

  Args:
    path: The file; need not exist.
  """
  # A program that was killed may have left its content in the partial file.
  for name in (path, _partial(path)):
    with overwriting(name), contextlib.suppress(FileNotFoundError):
      os.remove(name)
      sync(os.path.dirname(os.path.abspath(name)))


def _partial(path: str) -> str:
  """The name of a file until it is complete."""
  return f'{path}.partial'


@contextlib.contextmanager
def for_owner_only() -> Iterator[None]:
  """Gives new files mode 0600 and new folders 0700, also in new processes.

  Also a decorator. All threads of a process share the umask.
  """
  before = os.umask(0o077)
  try:
    yield
  finally:
    os.umask(before)


def sync(path: str) -> None:
  """Waits until a file, or a folder's list of files, is on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def try_lock(descriptor: int) -> bool:
  """Locks an open file; False if it is locked already.

  The operating system releases the lock however the process ends.
  """
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True
