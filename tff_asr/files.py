"""Atomic files and locks: the one place that opens files to write them.

A file is written as NAME.partial, synced and renamed, and its folder is synced:
the name stands for a complete file, old or new, even after a power failure. The
partial file is always created (O_EXCL), so that it has its mode from the first
byte and cannot be a link to another file. What is written in place, such as a
lock or the ledger, is opened by `open_own`, which follows no link either.
"""

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import hashlib
import json
import os
import stat
from typing import Any, BinaryIO, TypeVar

_CHUNK_BYTES = 1 << 20
_Parsed = TypeVar('_Parsed')


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


def open_own(path: str, flags: int) -> int:
  """Opens or creates a regular file that is written in place.

  It is an opener for Python's `open`, too:

      >>> open('run.lock', 'a+b', opener=open_own).close()

  Args:
    path: The file.
    flags: Those of `os.open`.

  Returns:
    A descriptor, which child processes do not inherit.

  Raises:
    OSError: It cannot be opened.
    ValueError: It is a link, has a second name (a hard link), or is no regular
      file, so that another file would be written.
  """
  other = ValueError(
      f'{path} is a link or no regular file, and writing it might change '
      'another file: move it away.'
  )
  if os.path.islink(path):
    raise other
  # In case it has become a link since, and not to wait for a pipe's reader.
  safe = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
  descriptor = os.open(path, safe, 0o666)
  status = os.fstat(descriptor)
  if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
    os.close(descriptor)
    raise other
  if flags & os.O_TRUNC:
    os.ftruncate(descriptor, 0)
  return descriptor


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


def read_json(
    path: str,
    parse: Callable[[Any], _Parsed] = lambda value: value,
    *,
    remedy: str,
) -> _Parsed:
  """Reads a JSON file.

  Args:
    path: The file.
    parse: Makes the result of the file's value.
    remedy: What the user should do about a damaged file, for the message.

  Raises:
    OSError: It cannot be read.
    ValueError: It is not JSON, or `parse` raises what values of another kind
      give. The message is one line that names the file.
  """
  data = read(path)
  try:
    return parse(parse_json(data))
  except (AttributeError, KeyError, TypeError, ValueError) as e:
    detail = f'it lacks {e}' if isinstance(e, KeyError) else e
    if isinstance(e, (AttributeError, TypeError)):  # Python's own words.
      detail = 'its values are of other types'
    raise ValueError(f'{path} is damaged ({detail}): {remedy}.') from e


@contextlib.contextmanager
def overwriting(path: str) -> Iterator[None]:
  """Overwrites the old content of `path` with zeros after it is replaced.

  Best effort: journals, snapshots, copies on write and the spare cells of a
  flash disk may keep the old content.

  Args:
    path: A file that the context replaces or removes; need not exist.

  Raises:
    ValueError: As `open_own`; the file is as it was.
  """
  try:
    # Opened before the file is replaced: afterwards no name leads to its
    # content.
    old = open_own(path, os.O_RDWR)
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
