"""A progress line, redrawn on a terminal and repeated in a log."""

import os
import sys
import time
from typing import Optional, TextIO

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_REDRAWS = 0.1
# Returns to the start of a terminal's line and erases it.
_REDRAW = '\r\x1b[K'


class Progress:
  """Shows how far a loop is, and some of its metrics; a context manager.

  A terminal shows one line that is redrawn, at most ten times a second; the
  last metrics are left out where it is too narrow for them. A pipe or a log
  file gets a line at the start, about one every ten seconds, and one at the
  end.

  The time that is left is estimated from the second update on: the first one
  also waits for functions to be traced and compiled.

  >>> with Progress(description='train', total=2, stream=sys.stdout) as shown:
  ...   shown.update(loss='2.5')
  ...   shown.update(loss='1.5')
  train: round 1 of 2, loss 2.5
  train: round 2 of 2, loss 1.5
  """

  def __init__(
      self,
      *,
      description: str,
      total: int,
      initial: int = 0,
      unit: str = 'round',
      stream: Optional[TextIO] = None,
  ):
    """Creates the display.

    Args:
      description: What is being done.
      total: Steps of the whole loop.
      initial: Steps done before (a resumed run).
      unit: What is counted, in the singular.
      stream: Where to write; standard error by default.
    """
    self._description = description
    self._total = total
    self._done = initial
    self._unit = unit
    self._stream = stream or sys.stderr
    # Steps done, and the time, when the first update was made.
    self._first: Optional[tuple[int, float]] = None
    # So that the first update writes a line.
    self._last_line = time.monotonic() - _SECONDS_BETWEEN_LINES
    self._metrics = {}
    # Whether a terminal's line is still to be ended.
    self._is_open = False

  def update(self, count: int = 1, **metrics: str) -> None:
    """Advances by `count`; metrics replace earlier ones of the same name."""
    self._done += count
    self._metrics |= metrics
    now = time.monotonic()
    if self._first is None:
      self._first = self._done, now
    is_last = self._done >= self._total
    is_terminal = self._stream.isatty()
    pause = _SECONDS_BETWEEN_REDRAWS if is_terminal else _SECONDS_BETWEEN_LINES
    if not is_last and now - self._last_line < pause:
      return
    self._last_line = now
    if is_terminal:
      self._stream.write(_REDRAW + self._line(now, columns=self._columns()))
      # What is printed next begins a line.
      self._is_open = not is_last
      if is_last:
        self._stream.write('\n')
    else:
      self._stream.write(self._line(now) + '\n')
    self._stream.flush()

  def __enter__(self) -> 'Progress':
    return self

  def __exit__(self, *unused_error: object) -> None:
    if self._is_open:
      self._stream.write('\n')

  def _columns(self) -> Optional[int]:
    """Returns the width of the terminal; None if it does not tell."""
    try:
      return os.get_terminal_size(self._stream.fileno()).columns or None
    except (OSError, ValueError):
      return None

  def _line(self, now: float, *, columns: Optional[int] = None) -> str:
    """`description: unit 3 of 10, loss 2.5, 12 s left`."""
    count = (
        f'{self._description}: {self._unit} {self._done:,} of {self._total:,}'
    )
    metrics = [f'{name} {value}' for name, value in self._metrics.items()]
    left = []
    first, started = self._first
    if first < self._done < self._total:
      rate = (now - started) / (self._done - first)
      left.append(f'{_duration(rate * (self._total - self._done))} left')
    line = ', '.join([count, *metrics, *left])
    # A line that wraps cannot be redrawn.
    while metrics and columns is not None and len(line) >= columns:
      metrics.pop()
      line = ', '.join([count, *metrics, *left])
    return line


def _duration(seconds: float) -> str:
  """Seconds in at most two units: `2 h 5 min`."""
  if seconds < 120:
    return f'{seconds:.0f} s'
  minutes = round(seconds / 60)
  if minutes < 120:
    return f'{minutes} min'
  return f'{minutes // 60} h {minutes % 60} min'
