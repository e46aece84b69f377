"""Memory of this process, and of a program with all processes it started.

Processes are found by a variable in their environment, which they inherit even
if they leave their parent. The sum is of PSS, which counts a page shared by n
processes as 1 / n for each.
"""

import os
import pathlib
import re
import threading

VARIABLE = 'TFF_ASR_BASELINE'

_PSS = re.compile(r'^Pss: +(\d+) kB$', re.MULTILINE)


def peak_gib() -> float:
  """This process's largest resident memory since `reset_peak`, GiB."""
  # Not ru_maxrss: a process inherits the one of who started it.
  return _status_gib('VmHWM')


def resident_gib() -> float:
  """This process's resident memory now, GiB."""
  return _status_gib('VmRSS')


def private_gib() -> float:
  """This process's resident memory that is not mapped from files, GiB."""
  return _status_gib('RssAnon')


def reset_peak() -> None:
  """Resets `peak_gib` to the present resident size."""
  pathlib.Path('/proc/self/clear_refs').write_text('5', encoding='ascii')


def _status_gib(name: str) -> float:
  """A size from Linux's status of this process, GiB."""
  status = pathlib.Path('/proc/self/status').read_text(encoding='ascii')
  kib = re.search(rf'^{name}:\s+(\d+) kB$', status, re.MULTILINE)[1]
  return int(kib) / 2**20


class Peak:
  """Samples the sum in a thread, from entry to exit.

      with memory.Peak(mark) as peak:
        ...
      print(peak.gib)

  Attributes:
    gib: The largest sum so far, GiB.
  """

  def __init__(
      self, mark: str, *, interval_sec: float = 0.5, with_own: bool = False
  ):
    """Initializes it.

    Args:
      mark: Value of `VARIABLE` of the processes that count.
      interval_sec: Seconds from one sample to the next.
      with_own: This process counts, whatever its variable.
    """
    self.gib = 0.0
    self._mark = f'{VARIABLE}={mark}'.encode()
    self._interval_sec = interval_sec
    self._own = str(os.getpid()) if with_own else None
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)

  def __enter__(self) -> 'Peak':
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._ended.set()
    self._thread.join()

  def _watch(self) -> None:
    while not self._ended.wait(self._interval_sec):
      self.gib = max(self.gib, self._sum() / 2**30)

  def _sum(self) -> int:
    """PSS of the processes now, bytes."""
    total = 0
    for name in os.listdir('/proc'):
      if not name.isdecimal():
        continue
      process = pathlib.Path('/proc', name)
      try:
        if name != self._own and self._mark not in (
            process / 'environ'
        ).read_bytes().split(b'\0'):
          continue
        found = _PSS.search((process / 'smaps_rollup').read_text('ascii'))
      except (FileNotFoundError, PermissionError, ProcessLookupError):
        continue  # It has ended, or is another user's.
      if found:
        total += int(found.group(1)) << 10
    return total
