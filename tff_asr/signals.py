"""Ctrl-C and SIGTERM: the first ends the work, the second the program."""

import contextlib
import os
import signal
import sys
import types
from typing import Any

import psutil

WORDS = {signal.SIGINT: 'interrupted', signal.SIGTERM: 'terminated'}


class Interrupts:
  """Handler of signals: the first ends the work, the second the program.

  Attributes:
    first: The signal that came first, or None.
    end: Ends the work; None: a KeyboardInterrupt does.
  """

  def __init__(self, after_interrupt: str):
    self._after_interrupt = after_interrupt
    self.first = None
    self.end = None

  def install(self) -> dict[signal.Signals, Any]:
    """Takes the signals over; returns the handlers that they had."""
    before = {
        signal_num: signal.getsignal(signal_num)
        for signal_num in WORDS
        if signal.getsignal(signal_num) is not signal.SIG_IGN
    }
    for signal_num in before:
      signal.signal(signal_num, self)
    return before

  def __call__(
      self, signal_num: int, unused_frame: types.FrameType | None
  ) -> None:
    if self.first is not None:
      abandon(
          f'{WORDS[signal_num]} twice, ended at once: {self._after_interrupt}',
          code=128 + signal_num,
      )
    self.first = signal_num
    if self.end is None:
      raise KeyboardInterrupt()
    self.end()


def abandon(line: str, *, code: int) -> None:
  """Ends the program and its children at once, with a line."""
  for child in psutil.Process().children():
    with contextlib.suppress(psutil.NoSuchProcess):
      child.kill()
  os.write(sys.__stderr__.fileno(), f'{line}\n'.encode())
  os._exit(code)  # pylint: disable=protected-access
