"""One line of progress: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Optional, TextIO

import tqdm

_SECONDS_BETWEEN_LINES = 10.0
_BAR = '{desc}: {n_fmt}/{total_fmt} |{bar:16}| {remaining} left{postfix}'


class Progress:
  """Shows how far a loop is, with a few figures; a context manager.

  A terminal shows a bar that redraws itself. A pipe or a log file gets a line
  at the start, then one every ten seconds or so, and one at the end.
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
      total: Units of the whole loop.
      initial: Units done before (a resumed run).
      unit: What is counted, in the singular.
      stream: Where to write; standard error by default.
    """
    self._description = description
    self._total = total
    self._done = initial
    self._initial = initial
    self._unit = unit
    self._stream = stream or sys.stderr
    self._started = time.monotonic()
    self._last_line = self._started - _SECONDS_BETWEEN_LINES
    self._figures = {}
    self._bar = None
    if self._stream.isatty():
      self._bar = tqdm.tqdm(
          desc=description,
          total=total,
          initial=initial,
          unit=unit,
          file=self._stream,
          dynamic_ncols=True,
          bar_format=_BAR,
      )

  def update(self, count: int = 1, **figures: str) -> None:
    """Advances by `count`; figures given replace those of the same name."""
    self._done += count
    self._figures |= figures
    if self._bar is not None:
      self._bar.set_postfix(self._figures, refresh=False)
      self._bar.update(count)
      return
    now = time.monotonic()
    is_last = self._done >= self._total
    if is_last or now - self._last_line >= _SECONDS_BETWEEN_LINES:
      self._last_line = now
      self._stream.write(self._line(now) + '\n')
      self._stream.flush()

  def close(self) -> None:
    """Ends the display; what was shown last stays."""
    if self._bar is not None:
      self._bar.close()

  def __enter__(self) -> 'Progress':
    return self

  def __exit__(self, *unused_error) -> None:
    self.close()

  def _line(self, now: float) -> str:
    """`description: unit 3 of 10, loss 2.5, 12 s left`."""
    parts = [f'{self._unit} {self._done} of {self._total}']
    parts += [f'{name} {value}' for name, value in self._figures.items()]
    advanced = self._done - self._initial
    if 0 < advanced and self._done < self._total:
      rate = (now - self._started) / advanced
      parts.append(f'{_duration(rate * (self._total - self._done))} left')
    return f'{self._description}: {", ".join(parts)}'


def _duration(seconds: float) -> str:
  """Seconds in two units at most, as people say it: `2 h 5 min`."""
  if seconds < 120:
    return f'{seconds:.0f} s'
  minutes = round(seconds / 60)
  if minutes < 120:
    return f'{minutes} min'
  return f'{minutes // 60} h {minutes % 60} min'
