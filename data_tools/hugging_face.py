"""Folders that Hugging Face's `datasets` saves: Arrow files and state.json.

Read by pyarrow, an extra (requirements-datasets.txt). Loads no TensorFlow:
worker processes read the audio of rows with `ArrowClip`.
"""

import collections
from collections.abc import Iterator
import dataclasses
import functools
import os
from typing import Any

import numpy as np

from data_tools import utterances
from tff_asr import files
from tff_asr.data import audio


@dataclasses.dataclass(frozen=True)
class ArrowClip(utterances.Clip):
  """Audio stored in a row of an Arrow file.

  Attributes:
    column: The column's name.
    row: The row's number.
  """

  column: str = ''
  row: int = 0

  def read(self, conversions: collections.Counter[str]) -> np.ndarray:
    """See base class."""
    name = f'{self.path}, row {self.row}'
    try:
      # Only this row is read: the file is mapped into memory.
      value = _open(self.path).column(self.column)[self.row].as_py()
      data = value['bytes']
    except (ValueError, IndexError, KeyError, TypeError) as e:
      raise audio.AudioError(name, 'cannot be opened', str(e)) from e
    if not isinstance(data, bytes):  # A text would pass for a path.
      raise audio.AudioError(name, 'is not readable audio', 'it is not bytes')
    return audio.read(
        data,
        name=name,
        start_sec=self.start_sec,
        duration_sec=self.duration_sec,
        channels=self.channels,
        sample_rate_hz=self.sample_rate_hz,
        conversions=conversions,
    )


def tables(folder: str) -> Iterator[tuple[str, Any]]:
  """Yields the paths and tables of a folder, each table in memory map.

  Raises:
    ValueError: If the folder holds splits or is damaged, or pyarrow is missing.
  """
  if os.path.exists(os.path.join(folder, 'dataset_dict.json')):
    names = sorted(
        name
        for name in os.listdir(folder)
        if os.path.isdir(os.path.join(folder, name))
    )
    splits = ','.join(f'{name}={os.path.join(folder, name)}' for name in names)
    raise ValueError(f'{folder} holds splits; say --manifest={splits}.')
  path = os.path.join(folder, 'state.json')
  try:
    state = files.parse_json(files.read(path))
    # In the order of the dataset, which need not be that of names.
    names = [str(each['filename']) for each in state['_data_files']]
    # Rows of the files would not be those of the dataset.
    if state.get('_indices_files') or state.get('_indices_data_files'):
      raise ValueError('it selects rows; save it after flatten_indices()')
    if not names or any(os.path.basename(name) != name for name in names):
      raise ValueError('its files must be in the same folder')
  except FileNotFoundError as e:
    raise ValueError(
        f'{folder} is neither a Kaldi (wav.scp) nor a Hugging Face folder'
        ' (state.json).'
    ) from e
  except (KeyError, TypeError, AttributeError, ValueError, OSError) as e:
    raise ValueError(f'{path} cannot be used: {e}.') from e
  for name in names:
    path = os.path.join(folder, name)
    yield path, _open(path)


def clips(path: str, table: Any, column: str) -> Iterator[str | ArrowClip]:
  """Yields the audio of each row: a path, or the bytes in the row.

  Args:
    path: The Arrow file.
    table: What it holds.
    column: Strings, or structures of `bytes` and `path`.

  Raises:
    ValueError: If the structures have other fields.
  """
  row = 0
  for chunk in table.column(column).chunks:
    paths, is_outside = chunk, [True] * len(chunk)
    if hasattr(chunk, 'field'):
      try:
        paths = chunk.field('path')
        is_outside = chunk.field('bytes').is_null().to_pylist()
      except KeyError as e:
        raise ValueError(f'{path}: {column!r} has no field {e}.') from e
    for value, outside in zip(paths.to_pylist(), is_outside, strict=True):
      yield value if outside else ArrowClip(path, column=column, row=row)
      row += 1


@functools.lru_cache(maxsize=2)
def _open(path: str) -> Any:
  """Opens and checks an Arrow file."""
  try:
    import pyarrow  # pylint: disable=g-import-not-at-top
  except ImportError as e:
    raise ValueError(
        f'{path} is an Arrow file, and pyarrow is not installed: pip install'
        ' --no-deps -r requirements-datasets.txt'
    ) from e
  try:
    with files.open_regular(path):  # No pipe, which would block.
      pass
    table = pyarrow.ipc.open_stream(pyarrow.memory_map(path)).read_all()
    # Full: pyarrow crashes on offsets that lead out of a damaged file.
    table.validate(full=True)
  except (pyarrow.ArrowException, OSError, ValueError) as e:
    cause = ' '.join(str(e).split())[:200]
    raise ValueError(f'{path} is not a readable Arrow file ({cause}).') from e
  return table
