"""Peak memory of a program with all processes that it started.

Processes are known by a variable in their environment, which they inherit, also
where they leave their parent. What is summed is PSS, in which a page that n
processes share counts 1 / n for each.
"""

import threading

import psutil

VARIABLE = 'TFF_ASR_RIVAL'


class Peak:
  """Samples the sum in a thread, from entry to exit.

      with memory.Peak(mark) as peak:
        ...
      print(peak.gib)

  Attributes:
    gib: The largest sum so far, GiB.
  """

  def __init__(self, mark: str, *, interval_sec: float = 0.25):
    """Initializes it.

    Args:
      mark: Value of `VARIABLE` of the processes that count.
      interval_sec: From one sample to the next.
    """
    self.gib = 0.0
    self._mark = mark
    self._interval_sec = interval_sec
    self._others: set[tuple[int, float]] = set()
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
    for process in psutil.process_iter():
      try:
        key = process.pid, process.create_time()
        if key in self._others:
          continue
        if process.environ().get(VARIABLE) != self._mark:
          self._others.add(key)
          continue
        total += process.memory_full_info().pss
      except psutil.Error:  # It has ended, or is another user's.
        continue
    return total
