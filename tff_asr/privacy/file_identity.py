"""What tells a file from a copy of it, also from one put in its place."""

import hashlib
import os

_SUFFIX = '.place'
_TEXT = (
    'When this file was written tells the ledger beside it from a copy: a copy'
    ' draws new keys.\n'
)


def of(path: str, descriptor: int) -> int:
  """Returns a number that a file keeps when its folder is renamed.

  It is made of the inodes of the file and of a marker beside it that is written
  once, and of the time at which the marker was last changed in any way: a
  backup that is written over both cannot have the same.

  Args:
    path: The file.
    descriptor: The file, open.

  Returns:
    From 0 to 2^63 - 1.
  """
  marker = path + _SUFFIX
  if not os.path.exists(marker):
    with open(marker, 'w', encoding='utf-8') as file:
      file.write(_TEXT)
  status = os.stat(marker)
  parts = os.fstat(descriptor).st_ino, status.st_ino, status.st_ctime_ns
  digest = hashlib.sha256(repr(parts).encode()).digest()
  return int.from_bytes(digest[:8], 'big') >> 1
