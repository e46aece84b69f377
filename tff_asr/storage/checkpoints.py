"""Program states on disk: one checked file per version.

Differences from `tff.program.FileProgramStateManager`: files are atomic and
have checksums (`state_file`); saving needs no TensorFlow graph; loading
compares the structure. Secrets are kept in a separate file, for the newest
version only.
"""

import asyncio
from collections.abc import Callable, Coroutine
import contextlib
import os
import re
import types
from typing import Generic

from absl import logging
import tensorflow_federated as tff
import tree

from tff_asr import files
from tff_asr.storage import state_file
from tff_asr.storage import tensor_file

# A nest of leaves of a state file.
State = state_file.State

_NAME = 'state_{version:08d}.safetensors'
_PATTERN = re.compile(r'state_(\d{8,})\.safetensors')


def state_paths(root_dir: str | os.PathLike[str]) -> dict[int, str]:
  """Returns the file of each saved version in a folder (need not exist)."""
  # The pattern leaves out the partial file of a run that was killed.
  names = os.listdir(root_dir) if os.path.isdir(root_dir) else []
  matches = filter(None, map(_PATTERN.fullmatch, names))
  return {
      int(match[1]): os.path.join(root_dir, match[0]) for match in matches
  }


class StateManager(tff.program.ProgramStateManager):
  """Saves and loads the versions of a program's state in one folder.

  It keeps the last `keep_last` versions and every `keep_every`-th. A folder may
  have one writer. `save` does not block the event loop, so the next round may
  run in the meantime.
  """

  def __init__(
      self,
      root_dir: str | os.PathLike[str],
      *,
      secrets_path: str | None = None,
      keep_last: int = 3,
      keep_every: int = 0,
  ):
    """Initializes the manager and makes the folder, mode 0700.

    Args:
      root_dir: The folder.
      secrets_path: The file of secrets; None: versions have none.
      keep_last: How many of the newest versions to keep, at least 1.
      keep_every: Versions that are multiples of this are kept too; 0: none.
    """
    self._root_dir = os.fspath(root_dir)
    self._secrets_path = secrets_path
    self._keep_last = keep_last
    self._keep_every = keep_every
    # Names, sizes and times of states are private, too.
    os.makedirs(self._root_dir, 0o700, exist_ok=True)

  async def get_versions(self) -> list[int] | None:
    """Returns the saved versions, ascending, or None without any."""
    return sorted(state_paths(self._root_dir)) or None

  async def save(
      self,
      program_state: State,
      version: int,
      *,
      secrets: tuple | None = None,
  ) -> None:
    """Saves a version; value references in the state are materialized first.

    Call it again only when the version before is saved.

    Args:
      program_state: The state, without secrets.
      version: Its number.
      secrets: A nest of what must not outlive the version; None: nothing.

    Raises:
      tff.program.ProgramStateExistsError: If the version exists already.
      OSError: If the disk is full; nothing is left behind.
      ValueError: If a leaf cannot be stored.
    """
    both = program_state, secrets
    # Here, since only the event loop can wait for value references.
    leaves = await tff.program.materialize_value(tree.flatten(both))
    program_state, secrets = tree.unflatten_as(both, leaves)
    await asyncio.to_thread(self._write, program_state, version, secrets)

  async def remove_all(self) -> None:
    """Removes all versions."""
    for version in state_paths(self._root_dir):
      self.remove(version)

  async def load(self, version: int, structure: State) -> State:
    """Returns a version, in the structure given.

    Raises:
      tff.program.ProgramStateNotFoundError: If the version does not exist.
      tensor_file.DamagedFileError: If the checksum does not match.
      state_file.StateMismatchError: If paths, types or shapes differ.
    """
    path = self.path(version)
    if not os.path.exists(path):
      raise tff.program.ProgramStateNotFoundError(version)
    try:
      return await asyncio.to_thread(state_file.read, path, structure=structure)
    except tensor_file.DamagedFileError as error:
      # An older state means new keys, and rounds that are charged again: only
      # the user may decide that.
      raise tensor_file.DamagedFileError(
          f'{error} Restore it, or remove it to resume from the state before.'
      ) from None

  def write_secrets(self, secrets: tuple) -> None:
    """Replaces the secrets on disk, and overwrites the old ones."""
    # A killed program may have left a part of them.
    files.erase(f'{self._secrets_path}.partial')
    with files.overwriting(self._secrets_path):
      state_file.write(self._secrets_path, secrets)

  def read_secrets(self, structure: State) -> State | None:
    """Returns the secrets on disk, in the structure given, or None.

    Damaged secrets are logged and treated as missing.

    Raises:
      state_file.StateMismatchError: If paths, types or shapes differ.
    """
    try:
      return state_file.read(self._secrets_path, structure=structure)
    except FileNotFoundError:
      return None
    except tensor_file.DamagedFileError as error:
      logging.error('%s', error)
      return None

  def erase_secrets(self) -> None:
    """Overwrites and removes the secrets on disk, if there are any."""
    files.erase(self._secrets_path)

  def path(self, version: int) -> str:
    """Returns the file of a version, which may not exist."""
    return os.path.join(self._root_dir, _NAME.format(version=int(version)))

  def remove(self, version: int) -> None:
    """Removes a version if it exists."""
    with contextlib.suppress(FileNotFoundError):
      os.remove(self.path(version))

  def _write(
      self, program_state: State, version: int, secrets: tuple | None
  ) -> None:
    """Saves a version, without value references."""
    path = self.path(version)
    if os.path.exists(path):
      raise tff.program.ProgramStateExistsError(
          version=int(version), path=self._root_dir
      )
    # In this order the secrets on disk always belong to a version on disk,
    # wherever the program is killed.
    state_file.write(path, program_state)
    if secrets is not None:
      self.write_secrets(secrets)
    # Last: the secrets of before named an older version.
    self._remove_old()

  def _remove_old(self) -> None:
    """Removes the versions that are not to be kept."""
    for version in sorted(state_paths(self._root_dir))[: -self._keep_last]:
      if not self._keep_every or version % self._keep_every:
        self.remove(version)


class Saver(Generic[State]):
  """Writes states while the next rounds run; an async context manager.

  A state must not change after `save`; its arrays stay in memory until it is on
  disk, and writing takes twice its size more. The end of the context waits
  for the state that is being written. If the run failed or was interrupted, it
  also saves the newest state given to `offer`, so that no round need be
  repeated.
  """

  def __init__(
      self,
      save: Callable[[State, int], Coroutine[None, None, None]],
      *,
      last: int,
  ):
    """Initializes the saver.

    Args:
      save: Saves a state as a version.
      last: The version that is saved already.
    """
    self._save = save
    self._saved = last
    self._writing: asyncio.Task[None] | None = None
    self._newest: tuple[State, int] | None = None

  def offer(self, state: State, version: int) -> None:
    """Notes the state to save if the run fails or is interrupted."""
    self._newest = state, version

  async def save(self, state: State, version: int) -> None:
    """Begins to write a version, once the one before is on disk.

    Raises:
      OSError: The version before could not be written. An error of this version
        is raised by the next call.
    """
    await self.wait()
    # The end of a run saves its last version, which may be on disk already.
    if version != self._saved:
      self._saved = version
      self._writing = asyncio.ensure_future(self._save(state, version))

  async def wait(self) -> None:
    """Waits until all versions are on disk.

    Raises:
      OSError: One could not be written.
    """
    if self._writing is not None:
      # Shielded: an interrupt does not stop the writing.
      await asyncio.shield(self._writing)
      self._writing = None

  def check(self) -> None:
    """Raises the error of a version that could not be written, if any."""
    if self._writing is not None and self._writing.done():
      self._writing.result()

  async def __aenter__(self) -> 'Saver[State]':
    return self

  async def __aexit__(
      self,
      kind: type[BaseException] | None,
      error: BaseException | None,
      unused_trace: types.TracebackType | None,
  ) -> None:
    ending = asyncio.ensure_future(self._end(kind))
    try:
      await asyncio.shield(ending)
    except asyncio.CancelledError:
      await ending  # An interrupt of the end itself loses no state either.
      raise

  async def _end(self, kind: type[BaseException] | None) -> None:
    """Saves what is to be saved, and waits for it."""
    try:
      # An interrupt reaches a coroutine as CancelledError.
      if self._newest is not None and (
          kind is None or issubclass(kind, (Exception, asyncio.CancelledError))
      ):
        await self.save(*self._newest)
      await self.wait()
    except OSError as problem:
      if kind is None:
        raise
      # The error that ended the run must not be replaced by this one.
      logging.warning('The last state could not be saved: %s', problem)
