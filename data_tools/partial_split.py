"""Partially written split: finished shards survive a kill.

The folder `.NAME.partial` is next to the split's folder. Its journal has a line
for each finished shard, written after the shard is on disk; a restarted program
continues after the last one. The complete folder is moved into place, so an
incomplete one is never taken for a corpus. The journal is only appended to, and
deleted last, so a kill at any time loses no finished shard.
"""

from collections.abc import Mapping, Sequence
import json
import os
import shutil
from typing import Any

from tff_asr import files as files_lib

JOURNAL_FILE = 'journal.jsonl'


class PartialSplit:
  """The folder that a split is written into; a context manager.

  Attributes:
    folder: Where to write.
    entries: What was committed, by this program or one before it.
  """

  def __init__(self, output_dir: str, *, identity: Mapping[str, Any]):
    """Opens or begins a partial split.

    Args:
      output_dir: Final folder of the split, absolute.
      identity: What is written, and how; JSON. What another identity left
        behind is deleted.

    Raises:
      ValueError: If another program is writing it, or a link is in its place.
    """
    parent, name = os.path.split(output_dir)
    self.output_dir = output_dir
    self.folder = os.path.join(parent, f'.{name}.partial')
    # What is left of an earlier program is deleted below, and must not be
    # another folder's.
    if os.path.islink(self.folder):
      raise ValueError(f'{self.folder} is a link: remove it.')
    # Recordings may be private.
    os.makedirs(self.folder, mode=0o700, exist_ok=True)
    os.chmod(self.folder, 0o700)  # Also of one that was left behind.
    self._journal = open(
        os.path.join(self.folder, JOURNAL_FILE),
        'a+b',
        opener=files_lib.open_own,
    )
    if not files_lib.try_lock(self._journal.fileno()):
      self._journal.close()
      raise ValueError(
          f'{output_dir} is being written by another program; wait for it.'
      )
    # As JSON gives it back.
    identity = json.loads(json.dumps(identity))
    self.entries, num_bytes = self._read(identity)
    # What follows the last whole entry was not finished.
    self._journal.truncate(num_bytes)
    self._delete_unfinished()
    if not num_bytes:
      self._append(identity)

  def __enter__(self) -> 'PartialSplit':
    return self

  def __exit__(self, *_) -> None:
    """Keeps only the finished shards, for another attempt."""
    self._journal.close()
    if not any(entry['files'] for entry in self.entries):
      shutil.rmtree(self.folder, ignore_errors=True)

  def commit(self, entry: Mapping[str, Any], *, files: Sequence[str]) -> None:
    """Makes files (names in `folder`) and then their entry durable."""
    for name in files:
      files_lib.sync(os.path.join(self.folder, name))
    # Makes the names durable, too.
    files_lib.sync(self.folder)
    self._append(entry)
    self.entries.append(dict(entry))

  def move_into_place(self) -> None:
    """Moves the folder into place, replacing an older split."""
    self._journal.close()
    for name in os.listdir(self.folder):
      files_lib.sync(os.path.join(self.folder, name))
    # A folder that is not empty cannot be replaced in one step.
    replaced = f'{self.folder}.replaced'
    if os.path.isdir(self.output_dir) and os.listdir(self.output_dir):
      shutil.rmtree(replaced, ignore_errors=True)
      os.rename(self.output_dir, replaced)
    os.rename(self.folder, self.output_dir)
    files_lib.sync(os.path.dirname(self.output_dir))
    # Also removes the leftovers of a program killed between the two renames.
    shutil.rmtree(replaced, ignore_errors=True)
    forget_journal(self.output_dir)

  def _read(
      self, identity: Mapping[str, Any]
  ) -> tuple[list[dict[str, Any]], int]:
    """Returns this identity's entries with whole files, and their end.

    The end is the journal's bytes up to the last of them; 0 if it is not of
    this identity.
    """
    self._journal.seek(0)
    entries, num_bytes = [], 0
    for number, line in enumerate(self._journal):
      try:
        entry = json.loads(line)
      except ValueError:
        break  # The program ended while writing the line.
      if number == 0:
        if entry != identity or not line.endswith(b'\n'):
          break
      elif not line.endswith(b'\n') or not all(
          self._is_whole(file) for file in entry['files']
      ):
        break
      else:
        entries.append(entry)
      num_bytes += len(line)
    return entries, num_bytes

  def _is_whole(self, file: Mapping[str, Any]) -> bool:
    """True for a file of the size in its entry."""
    path = os.path.join(self.folder, file['name'])
    return os.path.isfile(path) and os.path.getsize(path) == file['num_bytes']

  def _delete_unfinished(self) -> None:
    """Deletes all files that no entry names."""
    keep = {file['name'] for e in self.entries for file in e['files']}
    for name in os.listdir(self.folder):
      if name not in keep and name != JOURNAL_FILE:
        os.remove(os.path.join(self.folder, name))

  def _append(self, line: Mapping[str, Any]) -> None:
    """Adds a line to the journal, on disk."""
    text = json.dumps(line, ensure_ascii=False) + '\n'
    self._journal.write(text.encode())
    self._journal.flush()
    os.fsync(self._journal.fileno())


def forget_journal(folder: str) -> None:
  """Deletes the journal of a finished split, if it exists."""
  journal = os.path.join(folder, JOURNAL_FILE)
  if os.path.exists(journal):
    os.remove(journal)
