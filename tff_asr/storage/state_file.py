"""State files: a nested structure of arrays on disk, checked and atomic.

A file, all numbers little-endian:

    8 bytes   magic
    leaves    raw bytes, each from a multiple of 64 on
    manifest  JSON: {"format_version": 1, "leaves": [{"path", "kind", "dtype",
              "shape", "offset", "nbytes", "crc32"}]}
    24 bytes  manifest's offset, length (uint64), CRC-32 (uint32), magic's end

The manifest comes last, so checksums are computed while the leaves are written:
the state is read once and never held twice. CRC-32 finds damage, not forgery;
it takes 0.3 s a GB, BLAKE2 1.4 s. Nothing is pickled: loading runs no code from
the file.

A file is written atomically (`files`). Its mode is 0600: states are not
released, and a run's secrets are in such a file, too.

Leaves: NumPy arrays and scalars (bfloat16 too), eager tensors (loaded as their
`.numpy()`), int, float, bool, str, bytes, None. Structures: dicts, lists,
tuples, NamedTuples, attrs classes.
"""

from collections.abc import Mapping
import errno
import json
import os
import struct
from typing import Any, BinaryIO, NamedTuple
import zlib

import ml_dtypes
import numpy as np
import tensorflow as tf
import tree

from tff_asr import files

_MAGIC = b'TFFASR\x00\x01'
_END = b'TASR'
_TRAILER = struct.Struct('<QQI4s')
_FORMAT_VERSION = 1
_ALIGNMENT = 64
_CHUNK_BYTES = 1 << 24
_MAX_SHOWN = 4
_MARGIN_BYTES = 1 << 20
# Of 100,000 leaves; a stranger's file may claim any length.
_MAX_MANIFEST_BYTES = 1 << 24
_ARRAYS = (np.ndarray, np.generic, tf.Tensor, tf.Variable)


class DamagedStateError(ValueError):
  """A state file is not what was written."""


class StateMismatchError(ValueError):
  """A state file holds another structure than the one asked for."""


class Leaf(NamedTuple):
  """An entry of a manifest; `kind`: array or a Python type."""
  path: str
  kind: str
  dtype: str
  shape: tuple[int, ...]
  offset: int
  nbytes: int
  crc32: int


def write_state(path: str, *, state: Any) -> None:
  """Writes a state to a file, atomically, in place of any older one.

  Args:
    path: The file; its folder exists.
    state: Leaves and structure as in the module's docstring.

  Raises:
    OSError: If the disk has too little room; nothing is left behind.
    ValueError: If a leaf cannot be stored.
  """
  flat = _flatten(state)
  folder = os.path.dirname(os.path.abspath(path))
  _check_room(folder, flat)
  with files.replacing(path, mode=0o600) as file:
    _write_file(file, flat)


def read_manifest(path: str) -> tuple[Leaf, ...]:
  """Returns the leaves; DamagedStateError if this is no whole state file."""
  with open(path, 'rb', buffering=0) as file:
    return _read_manifest(file, path)


def read_leaves(path: str, *, prefix: str = '') -> dict[str, Any]:
  """Returns {path: leaf} of a file, without knowing the structure.

  Args:
    path: A state file.
    prefix: Leaves at this path or under it, such as 'server/model'; '': all.

  Raises:
    DamagedStateError: If a checksum fails.
    ValueError: If nothing is there.
  """
  with open(path, 'rb', buffering=0) as file:
    leaves = _read_manifest(file, path)
    found = [
        leaf for leaf in leaves
        if not prefix or f'{leaf.path}/'.startswith(f'{prefix}/')
    ]
    if not found and prefix:
      tops = ', '.join(sorted({leaf.path.split('/')[0] for leaf in leaves}))
      raise ValueError(f'{path} has no leaf under {prefix!r}; it has {tops}.')
    return {leaf.path: _read_leaf(file, leaf, path) for leaf in found}


def read_state(path: str, *, structure: Any) -> Any:
  """Returns the state in a file, in the structure given.

  Args:
    path: A state file.
    structure: Any state of that structure. Tensors come back as `.numpy()`.

  Raises:
    DamagedStateError: If a checksum fails; names the leaf.
    StateMismatchError: If paths, types or shapes differ; shows the first.
  """
  flat = _flatten(structure)
  with open(path, 'rb', buffering=0) as file:
    leaves = {leaf.path: leaf for leaf in _read_manifest(file, path)}
    _check_same(leaves, flat, path)
    values = []
    for name, wanted in flat.items():
      value = _read_leaf(file, leaves[name], path)
      if isinstance(wanted, np.generic) or tf.is_tensor(wanted):
        value = value[()]  # a NumPy scalar, if it is one
      values.append(value)
  return tree.unflatten_as(structure, values)


def _flatten(state: Any) -> dict[str, Any]:
  """{path: leaf}; ValueError if two leaves share a path."""
  flat = {}
  for parts, value in tree.flatten_with_path(state):
    path = '/'.join(map(str, parts))
    if path in flat:
      raise ValueError(
          f'Two leaves of the state have the path {path!r}: rename a key.'
      )
    if _kind(value) is None:
      raise ValueError(
          f'Leaf {path!r} is a {type(value).__name__}'
          + (f' of {value.dtype}' if hasattr(value, 'dtype') else '')
          + ', which cannot be stored; store numbers, text or bytes.'
      )
    flat[path] = value
  return flat


def _kind(value: Any) -> str | None:
  """'array', a Python type, or None if it cannot be stored."""
  if isinstance(value, _ARRAYS):
    storable = hasattr(value, 'numpy') or not tf.is_tensor(value)
    return 'array' if storable and _dtype_name(_dtype_of(value)) else None
  if type(value) in (bool, int, float, str, bytes, type(None)):
    return type(value).__name__
  return None


def _dtype_of(value: Any) -> np.dtype:
  """The NumPy dtype of an array or tensor."""
  return np.dtype(getattr(value.dtype, 'as_numpy_dtype', value.dtype))


def _dtype_name(dtype: np.dtype) -> str:
  """A name that `_dtype` understands; '' if there is none."""
  if dtype.kind in 'biufcSU':
    return dtype.str
  custom = getattr(ml_dtypes, dtype.name, None)
  return dtype.name if custom and np.dtype(custom) == dtype else ''


def _dtype(name: str) -> np.dtype:
  """The dtype of a name by `_dtype_name`."""
  return np.dtype(getattr(ml_dtypes, name, name))


def _encode(value: Any) -> tuple[str, tuple[int, ...], memoryview]:
  """A leaf as (dtype, shape, bytes)."""
  if _kind(value) == 'array':
    # No copy if the value is contiguous and in this machine's memory.
    value = value.numpy() if hasattr(value, 'numpy') else value
    array = np.asarray(value, order='C')
    data = array.reshape(-1).view(np.uint8) if array.size else b''
    return _dtype_name(array.dtype), array.shape, memoryview(data)
  data = value if isinstance(value, bytes) else json.dumps(value).encode()
  return '', (), memoryview(data)


def _decode(leaf: Leaf, buffer: np.ndarray) -> Any:
  """The leaf that `_encode` encoded; an array takes the buffer over."""
  if leaf.kind == 'array':
    return buffer.view(_dtype(leaf.dtype)).reshape(leaf.shape)
  data = buffer.tobytes()
  return data if leaf.kind == 'bytes' else files.parse_json(data)


def _check_room(folder: str, flat: Mapping[str, Any]) -> None:
  """Raises OSError if the disk has no room for the leaves."""
  # The margin is for leaves that are not arrays, and the manifest.
  needed = _MARGIN_BYTES + sum(
      256 + int(np.prod(value.shape)) * _dtype_of(value).itemsize
      for value in flat.values()
      if _kind(value) == 'array'
  )
  disk = os.statvfs(folder)
  free = disk.f_bavail * disk.f_frsize
  if free < needed:
    raise OSError(
        errno.ENOSPC,
        f'Saving the state takes {needed / 1e6:,.0f} MB, the disk of {folder} '
        f'has {free / 1e6:,.0f} MB free: make room or keep fewer versions.'
    )


def _write_file(file: BinaryIO, flat: Mapping[str, Any]) -> None:
  """Writes the whole content, leaf by leaf."""
  _write(file, _MAGIC)
  offset, leaves = len(_MAGIC), []
  for path, value in flat.items():
    padding = -offset % _ALIGNMENT
    _write(file, bytes(padding))
    offset += padding
    dtype, shape, data = _encode(value)
    crc = _write(file, data)
    leaves.append(Leaf(
        path, _kind(value), dtype, shape, offset, data.nbytes, crc
    )._asdict())
    offset += data.nbytes
  manifest = json.dumps({
      'format_version': _FORMAT_VERSION,
      'leaves': leaves,
  }).encode()
  crc = _write(file, manifest)
  _write(file, _TRAILER.pack(offset, len(manifest), crc, _END))


def _write(file: BinaryIO, data: bytes | memoryview) -> int:
  """Writes all bytes in chunks and returns their CRC-32."""
  view, crc = memoryview(data), 0
  for start in range(0, view.nbytes, _CHUNK_BYTES):
    chunk = view[start : start + _CHUNK_BYTES]
    crc = zlib.crc32(chunk, crc)
    while chunk.nbytes:
      chunk = chunk[file.write(chunk) :]
  return crc


def _read_manifest(file: BinaryIO, path: str) -> tuple[Leaf, ...]:
  """Reads and checks everything but the leaves' bytes."""
  size = os.fstat(file.fileno()).st_size
  try:
    if size < len(_MAGIC) + _TRAILER.size or file.read(8) != _MAGIC:
      raise ValueError('it does not begin as a state file')
    file.seek(size - _TRAILER.size)
    offset, length, crc, end = _TRAILER.unpack(file.read(_TRAILER.size))
    if end != _END or offset + length + _TRAILER.size != size:
      raise ValueError('its end is missing')
    if length > _MAX_MANIFEST_BYTES:
      raise ValueError(f'its manifest claims {length:,} bytes')
    file.seek(offset)
    data = file.read(length)
    if zlib.crc32(data) != crc:
      raise ValueError('its manifest does not have its checksum')
    fields = files.parse_json(data)
    if fields['format_version'] != _FORMAT_VERSION:
      raise ValueError(f'format version {fields["format_version"]} is unknown')
    leaves = tuple(
        Leaf(**{**leaf, 'shape': tuple(leaf['shape'])})
        for leaf in fields['leaves']
    )
    end = len(_MAGIC)
    for leaf in leaves:
      _describe(*leaf[1:4]), hash(leaf)  # Raise for what they are not made for.
      if {type(size) for size in (leaf.offset, leaf.nbytes, *leaf.shape)} != {
          int
      }:
        raise ValueError(f'leaf {leaf.path!r} has a place that is no integer')
      # In their order, so that what is read is no more than the file.
      if leaf.offset < end or not 0 <= leaf.nbytes <= offset - leaf.offset:
        raise ValueError(f'leaf {leaf.path!r} lies outside of it')
      end = leaf.offset + leaf.nbytes
    return leaves
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise DamagedStateError(
        f'The state file {path} is damaged: {error}.'
    ) from None


def _read_leaf(file: BinaryIO, leaf: Leaf, path: str) -> Any:
  """Reads one leaf into its own buffer and checks it."""
  buffer = np.empty(leaf.nbytes, np.uint8)
  view, crc, done = memoryview(buffer), 0, 0
  file.seek(leaf.offset)
  while done < leaf.nbytes:
    count = file.readinto(view[done : done + _CHUNK_BYTES])
    if not count:
      break
    crc = zlib.crc32(view[done : done + count], crc)
    done += count
  if done < leaf.nbytes or crc != leaf.crc32:
    raise DamagedStateError(
        f'The state file {path} is damaged: leaf {leaf.path!r} does not have '
        'its checksum.'
    )
  try:
    return _decode(leaf, buffer)
  except (ValueError, TypeError) as error:
    raise DamagedStateError(
        f'The state file {path} is damaged: leaf {leaf.path!r}: {error}.'
    ) from None


def _check_same(
    leaves: Mapping[str, Leaf], flat: Mapping[str, Any], path: str
) -> None:
  """Raises StateMismatchError unless the leaves are those of a structure."""
  saved = {name: _describe(*leaf[1:4]) for name, leaf in leaves.items()}
  wanted = {}
  for name, value in flat.items():
    kind, shape = _kind(value), tuple(getattr(value, 'shape', ()))
    dtype = _dtype_name(_dtype_of(value)) if kind == 'array' else ''
    wanted[name] = _describe(kind, dtype, shape)
  differences = [
      f'{name}: {saved.get(name, "absent")} in the file, '
      f'{wanted.get(name, "absent")} in the program'
      for name in [*saved, *(name for name in wanted if name not in saved)]
      if saved.get(name) != wanted.get(name)
  ]
  if differences:
    shown = '; '.join(differences[:_MAX_SHOWN])
    more = len(differences) - _MAX_SHOWN
    raise StateMismatchError(
        f'The state file {path} belongs to another configuration: {shown}'
        + (f'; and {more} more' if more > 0 else '') + '.'
    )


def _describe(kind: str, dtype: str, shape: tuple[int, ...]) -> str:
  """A leaf's type for comparison and messages, such as `float32[3,4]`."""
  if kind != 'array':
    return kind
  return f'{_dtype(dtype).name}[{",".join(map(str, shape))}]'
