"""Saves a run's states beside the rounds that follow.

A state that is being written holds its arrays until it is on disk, so a run
takes the memory of one state more than it would without.
"""

import asyncio
from typing import Any

from absl import logging

from tff_asr.storage import checkpoints


class Saver:
  """Writes states in the background, one at a time; an async context manager.

  The state may not be changed afterwards; a round makes a new one. At the end
  of the context what is being written is waited for, also where the run failed
  or was interrupted: then the newest state that `offer` was given is saved as
  well, so that nothing is done twice.
  """

  def __init__(self, manager: checkpoints.StateManager, *, saved: int):
    """Prepares to save.

    Args:
      manager: Where to.
      saved: The version that is saved already.
    """
    self._manager = manager
    self._saved = saved
    self._writing = None
    self._newest = None

  def offer(self, state: Any, version: int) -> None:
    """Says what there is to save if the run fails or is interrupted."""
    self._newest = state, version

  def withdraw(self) -> None:
    """Says that what was offered is no good."""
    self._newest = None

  async def save(self, state: Any, version: int) -> None:
    """Begins to write a version, when the one before is on disk.

    Raises:
      OSError: A version could not be written: this one's error comes with the
        next call.
    """
    await self.wait()
    if version != self._saved:
      self._saved = version
      self._writing = asyncio.ensure_future(self._manager.save(state, version))

  async def wait(self) -> None:
    """Waits until all versions are on disk.

    Raises:
      OSError: One could not be written.
    """
    if self._writing is not None:
      # A run that is interrupted meanwhile still finishes to write.
      await asyncio.shield(self._writing)
      self._writing = None

  def check(self) -> None:
    """Raises the error of a version that could not be written, if any."""
    if self._writing is not None and self._writing.done():
      self._writing.result()
      self._writing = None

  async def __aenter__(self) -> 'Saver':
    return self

  async def __aexit__(self, kind: Any, error: Any, unused_trace: Any) -> None:
    if kind is None:
      await self.wait()
      return
    if self._writing is not None:
      await asyncio.wait([self._writing])
      if self._writing.exception() is not None:
        return  # The run ends with its own error, or with this one.
      self._writing = None
    if self._newest is None or not issubclass(
        kind, (Exception, asyncio.CancelledError)
    ):
      return
    state, version = self._newest
    if version != self._saved:
      self._saved = version
      try:
        await self._manager.save(state, version)
      except OSError as problem:
        logging.warning('The last state could not be saved: %s', problem)
