"""Published archives: splits in a .tar.gz are read as from a folder.

A compressed archive cannot be read from the middle, so it is unpacked once,
next to the output, and deleted when all splits are written.

Only files and folders are unpacked: published corpora have no links, and a link
can lead tarfile's own filter out of the folder (CVE-2025-4517, Python before
3.11.13). The archive's size bounds that of its contents.
"""

from collections.abc import Callable, Iterator
import os
import shutil
import tarfile

_SUFFIXES = ('.tar', '.tar.gz', '.tgz', '.tar.bz2', '.tar.xz')
# LibriSpeech/dev-clean and cv-corpus-13.0-2023-03-09/en lie this deep.
_MAX_DEPTH = 3
# Speech hardly shrinks, and tables of text to a tenth.
_MAX_GROWTH = 100
_MAX_HEADER_BYTES = 2**20
# Members that describe the next one; tarfile reads their text as a whole.
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def is_named_after_split(archive: str, split: str) -> bool:
  """True for an archive of the split's name, as dev-clean.tar.gz."""
  return archive.startswith(f'{split}.')


def subfolders(folder: str) -> list[str]:
  """Returns the names of the folders in a folder, sorted; no hidden ones."""
  with os.scandir(folder) as entries:
    return sorted(
        e.name for e in entries if e.is_dir() and not e.name.startswith('.')
    )


class Scratch:
  """A folder that archives are unpacked into; a context manager.

  Leaving it normally deletes what was unpacked; an exception keeps it for
  another attempt.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    self._folder = os.fspath(folder)

  def __enter__(self) -> 'Scratch':
    return self

  def __exit__(self, exc_type, *_) -> None:
    if exc_type is None:
      shutil.rmtree(self._folder, ignore_errors=True)

  def find(
      self,
      source: str | os.PathLike[str],
      *,
      split: str,
      holds_split: Callable[[str, str], bool],
      is_named: Callable[[str, str], bool] = is_named_after_split,
  ) -> str:
    """Returns the folder that holds a split, unpacked if need be.

    Args:
      source: A folder that holds the split at most three folders deep; an
        archive that does; or a folder with archives. If some are named for the
        split, only those are tried.
      split: The split.
      holds_split: Whether a folder holds a split.
      is_named: Whether an archive's file name says that it holds a split.

    Returns:
      The folder; `source` if there is none.

    Raises:
      ValueError: If the source is missing or an archive damaged.
    """
    source = os.fspath(source)
    if not os.path.exists(source):
      raise ValueError(f'{source} is not a folder; set --source_dir.')
    for folder in _folders(source):
      if holds_split(folder, split):
        return folder
    for archive in _archives(source, lambda name: is_named(name, split)):
      for folder in _folders(self._unpack(archive)):
        if holds_split(folder, split):
          return folder
    return source

  def _unpack(self, archive: str) -> str:
    """Unpacks an archive into its own folder, unless that exists."""
    folder = os.path.join(self._folder, os.path.basename(archive))
    if os.path.exists(folder):
      return folder
    # A folder without this ending is complete, and used again.
    partial = f'{folder}.partial'
    shutil.rmtree(partial, ignore_errors=True)
    # Not deleted either if it is a link, which unpacking would follow.
    if os.path.lexists(partial):
      raise ValueError(f'{partial} is in the way: remove it.')
    try:
      # As a stream: seeking back in a compressed file reads it again.
      with tarfile.open(archive, 'r|*', tarinfo=_Member) as tar:
        tar.extractall(partial, filter=_filter(os.path.getsize(archive)))
    except (tarfile.TarError, EOFError, OSError) as e:
      shutil.rmtree(partial, ignore_errors=True)
      raise ValueError(
          f'{archive} cannot be unpacked into {folder} ({e}); it may be damaged'
          ' or the disk full.'
      ) from e
    os.rename(partial, folder)
    return folder


class _Member(tarfile.TarInfo):
  """A member that rejects headers large enough to fill the memory."""

  def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
    if self.type in _HEADERS and self.size > _MAX_HEADER_BYTES:
      raise tarfile.ReadError(f'it has a header of {self.size:,} bytes')
    return super()._proc_member(archive)


def _filter(
    archive_bytes: int,
) -> Callable[[tarfile.TarInfo, str], tarfile.TarInfo]:
  """Takes plain files and folders that stay inside, up to a total size."""
  left = _MAX_GROWTH * archive_bytes

  def check(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    nonlocal left
    if not member.isreg() and not member.isdir():
      raise tarfile.ReadError(f'{member.name[:80]!r} is a link or a device')
    # The size of a folder is not looked at, and may be below zero.
    left -= max(0, member.size)
    if left < 0:
      raise tarfile.ReadError(
          f'it holds more than {_MAX_GROWTH} times the bytes of the archive'
      )
    # Makes absolute names relative, and refuses those that lead out.
    return tarfile.data_filter(member, folder)

  return check


def _archives(source: str, is_named: Callable[[str], bool]) -> list[str]:
  """The archives of a source; only matching names, if there are any."""
  if os.path.isfile(source):
    if not source.endswith(_SUFFIXES):
      raise ValueError(
          f'{source} is a file but no archive ({", ".join(_SUFFIXES)}); set'
          ' --source_dir to a folder or an archive.'
      )
    return [source]
  names = [name for name in os.listdir(source) if name.endswith(_SUFFIXES)]
  # Unpacking takes long, so others are not opened if a name fits.
  named = [name for name in names if is_named(name)]
  return [os.path.join(source, name) for name in sorted(named or names)]


def _folders(folder: str) -> Iterator[str]:
  """A folder and its subfolders, top down."""
  level = [folder] if os.path.isdir(folder) else []
  for _ in range(_MAX_DEPTH):
    yield from level
    level = [
        os.path.join(parent, name)
        for parent in level
        for name in subfolders(parent)
    ]
