"""An append-only file of JSON lines, each holding the hash of the one before.

    {..., "previous": hash of the line before ("" in the first), "hash": ...}

A line's hash is SHA-256 over its canonical JSON (sorted keys) without the hash
itself. Whoever keeps the number of lines and the last hash notices any edit,
removal or reordering of those lines. What follows the last newline is a line
that a crash cut short; it does not count, because `append` had not returned.
"""

from collections.abc import Collection, Mapping
import fcntl
import hashlib
import json
import os
from typing import Any

from absl import logging

_MAX_BYTES = 2**31

Line = dict[str, Any]


class ChainError(ValueError):
  """The file is not a whole chain, or someone else has it open."""


def seal(fields: Mapping[str, Any], *, previous: str) -> Line:
  """Returns the line with these fields that follows the hash `previous`."""
  line = {**fields, 'previous': previous}
  return {**line, 'hash': _hash(line)}


def read(path: str) -> list[Line]:
  """Returns the complete lines of a file after checking the chain.

  Raises:
    ChainError: If a line was edited, removed, inserted or reordered.
  """
  if os.path.getsize(path) > _MAX_BYTES:
    raise ChainError(f'{path} has over {_MAX_BYTES} bytes: not a ledger.')
  with open(path, 'rb') as file:
    data = file.read()
  lines, previous = [], ''
  for number, raw in enumerate(data.split(b'\n')[:-1], start=1):
    try:
      line = json.loads(raw)
      whole = (
          isinstance(line, dict)
          and line['previous'] == previous
          and line['hash'] == _hash(line)
          and raw + b'\n' == _encode(line)
      )
    except (ValueError, KeyError, RecursionError):
      whole = False
    if not whole:
      raise ChainError(
          f'{path} was changed: line {number} does not follow from the line '
          'before it.'
      )
    previous = line['hash']
    lines.append(line)
  return lines


def open_locked(path: str, *, new: bool = False) -> int:
  """Returns a file descriptor for `append`, with an exclusive lock.

  Args:
    path: The file.
    new: Whether to make the file if there is none.

  Raises:
    ChainError: If another process (or this one) holds the lock.
  """
  flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if new else 0)
  descriptor = os.open(path, flags, 0o644)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    os.close(descriptor)
    raise ChainError(f'{path} is in use by another run.') from None
  return descriptor


def append(descriptor: int, *lines: Line) -> None:
  """Appends lines and waits for the disk; on failure nothing is appended."""
  size = os.fstat(descriptor).st_size
  data = b''.join(map(_encode, lines))
  try:
    while data:
      data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)
  except OSError:
    os.ftruncate(descriptor, size)
    raise


def cut_torn_line(descriptor: int, lines: list[Line]) -> None:
  """Cuts off what follows the complete lines, and says so."""
  size = sum(len(_encode(line)) for line in lines)
  torn = os.fstat(descriptor).st_size - size
  if torn > 0:
    logging.warning(
        'The ledger ended in a line that a crash cut short; nothing of it was '
        'released, %d bytes are removed.', torn
    )
    os.ftruncate(descriptor, size)
    os.fsync(descriptor)


def is_torn_start(path: str, starts: Collection[bytes]) -> bool:
  """Whether the file is the beginning of a first line and nothing else.

  Args:
    path: The file.
    starts: How first lines may begin.
  """
  with open(path, 'rb') as file:
    data = file.read(1 << 16)
  return b'\n' not in data and any(
      data[: len(start)] == start[: len(data)] for start in starts
  )


def path_beside(path: str, name: str) -> str:
  """Path of a chain that goes with another: a/b.jsonl to a/b.NAME.jsonl."""
  stem, extension = os.path.splitext(path)
  return f'{stem}.{name}{extension}'


def sync_folder(path: str) -> None:
  """Makes the file's name survive a crash, as fsync does its content."""
  folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
  try:
    os.fsync(folder)
  finally:
    os.close(folder)


def _encode(line: Mapping[str, Any]) -> bytes:
  """The one way in which a line is written."""
  text = json.dumps(line, sort_keys=True, allow_nan=False)
  return text.encode() + b'\n'


def _hash(line: Mapping[str, Any]) -> str:
  """SHA-256 of a line without its own hash."""
  bare = {name: value for name, value in line.items() if name != 'hash'}
  return hashlib.sha256(_encode(bare)).hexdigest()
