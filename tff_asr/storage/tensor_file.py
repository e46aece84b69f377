"""Arrays by name in a safetensors file, with a checksum.

    >>> weights = {'head/bias': np.zeros([3], np.float32)}
    >>> write('model.safetensors', weights, content={'tokens': ' ab'})
    >>> arrays, content = read_with_header('model.safetensors')
    >>> arrays
    {'head/bias': array([0., 0., 0.], dtype=float32)}
    >>> content
    {'tokens': ' ab'}

Any reader of safetensors reads these files. Their metadata have one entry,
`tff_asr`: JSON with the content given and a CRC-32 of everything. A CRC finds
damage, not forgery. Reading runs no code from the file.

Files are written atomically (`files`) with mode 0600, one array after another.
"""

from collections.abc import Mapping
import json
from typing import BinaryIO, NamedTuple
import zlib

import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from tff_asr import files

# A value of JSON.
Json = (
    None | bool | int | float | str | list['Json'] | dict[str, 'Json']
)
Content = dict[str, Json]

_METADATA = 'tff_asr'

# The format's names of types, by NumPy's. Arrays lie in this order, so that
# each is aligned for its type.
_TYPES = {
    'uint64': 'U64',
    'int64': 'I64',
    'float64': 'F64',
    'float32': 'F32',
    'uint32': 'U32',
    'int32': 'I32',
    'bfloat16': 'BF16',
    'float16': 'F16',
    'uint16': 'U16',
    'int16': 'I16',
    'int8': 'I8',
    'uint8': 'U8',
    'bool': 'BOOL',
}
_ALIGNMENT = 8


class DamagedFileError(ValueError):
  """A file does not match what was written."""


class Header(NamedTuple):
  """Describes a file without its arrays.

  Attributes:
    shapes: Shapes of the arrays by name.
    content: What was stored with the arrays.
    checksum: CRC-32 of arrays and content.
  """

  shapes: dict[str, tuple[int, ...]]
  content: Content
  checksum: int


def write(
    path: str, arrays: Mapping[str, np.ndarray], *, content: Content
) -> None:
  """Writes a file atomically, in place of an older one.

  Equal arrays and content give equal files.

  Args:
    path: The file; its folder exists.
    arrays: Arrays of numbers or truth values, bfloat16 included.
    content: Values to store with them.

  Raises:
    OSError: The disk is full; nothing is left behind.
  """
  # The memory of an array is written as it is.
  arrays = {name: np.asarray(each, order='C') for name, each in arrays.items()}
  described = {'content': content, 'crc32': _checksum(arrays, content)}
  metadata = {_METADATA: json.dumps(described, sort_keys=True)}
  with files.replacing(path, mode=0o600) as file:
    _serialize(file, arrays, metadata)


def _serialize(
    file: BinaryIO,
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
) -> None:
  """Writes the bytes of `safetensors.numpy.save`."""
  # Not by the library: `save` holds all arrays twice more in memory, and
  # `save_file` cannot write into a file that `files` has opened.
  types = list(_TYPES)
  names = sorted(
      arrays, key=lambda name: (types.index(arrays[name].dtype.name), name)
  )
  header, end = {'__metadata__': metadata}, 0
  for name in names:
    each = arrays[name]
    begin, end = end, end + each.nbytes
    header[name] = {
        'dtype': _TYPES[each.dtype.name],
        'shape': each.shape,
        'data_offsets': [begin, end],
    }
  text = json.dumps(header, ensure_ascii=False, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % _ALIGNMENT)
  file.write(len(text).to_bytes(8, 'little') + text)
  for name in names:
    file.write(_bytes_of(arrays[name]))


def _bytes_of(array: np.ndarray) -> np.ndarray:
  """The memory of a contiguous array as uint8, not copied."""
  # The buffer protocol has no bfloat16.
  return array.reshape(-1).view(np.uint8)


def read_header(path: str) -> Header:
  """Reads the description of a file; its checksum is not compared.

  Raises:
    DamagedFileError: The file is damaged, or another project wrote it.
  """
  try:
    # Not only by safetensors, which names no folder and waits for a pipe.
    with files.open_regular(path), safetensors.safe_open(
        path, framework='numpy'
    ) as file:
      metadata = file.metadata() or {}
      shapes = {
          name: tuple(file.get_slice(name).get_shape()) for name in file.keys()
      }
    described = files.parse_json(metadata.get(_METADATA, 'null'))
  except (safetensors.SafetensorError, ValueError) as e:
    raise DamagedFileError(f'The file {path} is damaged: {e}.') from None
  try:
    return Header(shapes, described['content'], described['crc32'])
  # TypeError: the metadata have no entry of this project.
  except (KeyError, TypeError):
    raise DamagedFileError(
        f'The file {path} is not of this project: its metadata have no '
        f'{_METADATA!r} with a checksum.'
    ) from None


def read_with_header(path: str) -> tuple[dict[str, np.ndarray], Content]:
  """Reads the arrays, sorted by name, and what was stored with them.

  Raises:
    DamagedFileError: As `read_header`, or the checksum does not match.
  """
  header = read_header(path)
  try:
    arrays = dict(sorted(safetensors_numpy.load_file(path).items()))
  except (safetensors.SafetensorError, AttributeError, TypeError) as e:
    # The last two: a type that NumPy lacks.
    raise DamagedFileError(f'The file {path} is damaged: {e}.') from None
  if _checksum(arrays, header.content) != header.checksum:
    raise DamagedFileError(
        f'The file {path} is damaged: it does not match its checksum.'
    )
  return arrays, header.content


def _checksum(arrays: Mapping[str, np.ndarray], content: Content) -> int:
  """CRC-32 of content, names, types, shapes and bytes."""
  types = {name: [each.dtype.name, each.shape] for name, each in arrays.items()}
  found = zlib.crc32(json.dumps([content, types], sort_keys=True).encode())
  for name in sorted(arrays):
    found = zlib.crc32(_bytes_of(arrays[name]), found)
  return found
