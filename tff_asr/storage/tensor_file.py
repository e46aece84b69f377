"""Arrays by name in a safetensors file, with checksums.

    >>> weights = {'head/bias': np.zeros([3], np.float32)}
    >>> write('model.safetensors', weights, content={'tokens': ' ab'})
    >>> read_header('model.safetensors').content
    {'tokens': ' ab'}
    >>> read('model.safetensors')
    {'head/bias': array([0., 0., 0.], dtype=float32)}

Any reader of safetensors reads these files. Their metadata have one entry,
`tff_asr`: JSON with the content given and the CRC-32 of each array and of the
header. A CRC finds damage, not forgery. Reading runs no code from the file.

Files are written atomically (`files`) with mode 0600.
"""

from collections.abc import Mapping
import json
from typing import NamedTuple
import zlib

import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from tff_asr import files

# A value of JSON.
Json = (
    None | bool | int | float | str | list['Json'] | dict[str, 'Json']
)

_METADATA = 'tff_asr'


class DamagedFileError(ValueError):
  """A file does not match what was written."""


class Header(NamedTuple):
  """Describes the arrays of a file.

  Attributes:
    shapes: Shapes by name.
    dtypes: Types by name, as safetensors calls them, such as 'F32'.
    content: What was stored with the arrays.
    checksums: CRC-32 of the arrays by name.
  """

  shapes: dict[str, tuple[int, ...]]
  dtypes: dict[str, str]
  content: dict[str, Json]
  checksums: dict[str, int]


def write(
    path: str, arrays: Mapping[str, np.ndarray], *, content: Mapping[str, Json]
) -> None:
  """Writes a file atomically, in place of an older one.

  Equal arrays and content give equal files.

  Args:
    path: The file; its folder exists.
    arrays: Contiguous arrays of numbers or truth values, bfloat16 included.
    content: Values to store with them.

  Raises:
    OSError: The disk is full; nothing is left behind.
  """
  header = Header(
      shapes={name: array.shape for name, array in arrays.items()},
      dtypes={},
      content=dict(content),
      checksums={name: _checksum(array) for name, array in arrays.items()},
  )
  described = {
      'content': header.content,
      'arrays_crc32': header.checksums,
      'header_crc32': _header_checksum(header),
  }
  # A single entry, because safetensors writes several in no fixed order.
  metadata = {_METADATA: json.dumps(described, sort_keys=True)}
  files.write(
      # Serialized in memory, so that `files` can sync and rename the file.
      path, safetensors_numpy.save(dict(arrays), metadata), mode=0o600
  )


def read_header(path: str) -> Header:
  """Reads the description of a file, but not its arrays.

  Raises:
    DamagedFileError: The file is damaged, or another project wrote it.
  """
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      metadata = file.metadata() or {}
      slices = {name: file.get_slice(name) for name in file.keys()}
      shapes = {name: tuple(s.get_shape()) for name, s in slices.items()}
      dtypes = {name: s.get_dtype() for name, s in slices.items()}
    described = files.parse_json(metadata.get(_METADATA, 'null'))
  except (safetensors.SafetensorError, ValueError) as e:
    raise DamagedFileError(f'The file {path} is damaged: {e}.') from None
  try:
    header = Header(
        shapes, dtypes, described['content'], described['arrays_crc32']
    )
    expected = described['header_crc32']
  # TypeError: the metadata have no entry of this project.
  except (KeyError, TypeError):
    raise DamagedFileError(
        f'The file {path} is not of this project: its metadata have no '
        f'{_METADATA!r} with checksums.'
    ) from None
  if _header_checksum(header) != expected:
    raise DamagedFileError(
        f'The file {path} is damaged: its header does not match its checksum.'
    )
  return header


def read(path: str, *, prefix: str = '') -> dict[str, np.ndarray]:
  """Reads arrays, sorted by name.

  Args:
    path: The file.
    prefix: Only arrays with names that begin with it are read.

  Raises:
    DamagedFileError: As `read_header`, or an array does not match its checksum.
  """
  checksums = read_header(path).checksums
  arrays = {}
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      for name in file.keys():
        if name.startswith(prefix):
          arrays[name] = file.get_tensor(name)
  except (safetensors.SafetensorError, AttributeError, TypeError) as e:
    # The last two: a type that NumPy lacks.
    raise DamagedFileError(f'The file {path} is damaged: {e}.') from None
  for name, array in arrays.items():
    if _checksum(array) != checksums.get(name):
      raise DamagedFileError(
          f'The file {path} is damaged: {name!r} does not match its checksum.'
      )
  return arrays


def _checksum(array: np.ndarray) -> int:
  """CRC-32 of an array's type and bytes."""
  # Includes the type, which the checksum of the header does not cover.
  start = zlib.crc32(array.dtype.name.encode())
  # Not of the array itself: the buffer protocol has no bfloat16.
  return zlib.crc32(array.reshape(-1).view(np.uint8), start)


def _header_checksum(header: Header) -> int:
  """CRC-32 of names, shapes, content and checksums."""
  # Types are part of the arrays' checksums.
  covered = [header.shapes, header.content, header.checksums]
  return zlib.crc32(json.dumps(covered, sort_keys=True).encode())
