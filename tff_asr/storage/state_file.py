"""State files: a nested structure on disk, as safetensors (`tensor_file`).

    >>> write('state.safetensors', {'weights': np.zeros([2]), 'round_num': 3})
    >>> read_leaves('state.safetensors')
    {'round_num': 3, 'weights': array([0., 0.])}

Leaves are NumPy arrays and scalars, eager tensors (loaded as NumPy values),
int, float, bool, str, bytes and None. Structures are those of `tree`: dicts,
lists, tuples, NamedTuples, attrs classes. A leaf's name is its path, such as
'process/aggregator/counter'.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
import tree

from tff_asr.storage import tensor_file

# A nest of leaves.
State = TypeVar('State')
Array = np.ndarray | np.generic | tf.Tensor | tf.Variable
Leaf = Array | bool | int | float | str | bytes | None

# Where the file's content has the leaves that are not arrays.
_VALUES = 'values'
# JSON has no bytes; TFF's state of a DP aggregator does (names of its event).
_BYTES = 'hex'
_MAX_SHOWN = 4


class StateMismatchError(ValueError):
  """A state file holds another structure than the one asked for."""


class _Flat(NamedTuple):
  """A state's leaves by path."""
  arrays: dict[str, np.ndarray]
  values: dict[str, bool | int | float | str | bytes | None]

  def describe(self) -> dict[str, str]:
    """Types of the leaves, such as `float32[3,4]` or `int`."""
    return {
        path: f'{array.dtype.name}{[*array.shape]}'.replace(' ', '')
        for path, array in self.arrays.items()
    } | {path: type(value).__name__ for path, value in self.values.items()}


def write(path: str, state: State) -> None:
  """Writes a state to a file, atomically, in place of an older one.

  Args:
    path: The file; its folder exists.
    state: The state. Arrays are not copied before they are serialized.

  Raises:
    OSError: The disk is full; nothing is left behind.
    ValueError: A leaf cannot be stored.
  """
  flat = _flatten(state)
  values = {
      name: {_BYTES: value.hex()} if isinstance(value, bytes) else value
      for name, value in flat.values.items()
  }
  tensor_file.write(path, flat.arrays, content={_VALUES: values})


def read(path: str, *, structure: State) -> State:
  """Reads a state.

  Args:
    path: A state file.
    structure: Any state of the structure wanted.

  Returns:
    The state; tensors are NumPy arrays and scalars.

  Raises:
    DamagedFileError: A checksum does not match.
    StateMismatchError: Paths, types or shapes differ; shows the first.
  """
  wanted = _flatten(structure)
  found = _Flat(tensor_file.read(path), _values(path))
  _check_same(found.describe(), wanted.describe(), path=path)
  leaves = []
  for parts, leaf in tree.flatten_with_path(structure):
    name = _name(parts)
    if name in found.values:
      leaves.append(found.values[name])
    elif isinstance(leaf, np.ndarray):
      leaves.append(found.arrays[name])
    else:
      leaves.append(found.arrays[name][()])  # A scalar, if it has no shape.
  return tree.unflatten_as(structure, leaves)


def read_leaves(path: str, *, prefix: str = '') -> dict[str, Leaf]:
  """Reads leaves by path, without knowing the structure.

  Args:
    path: A state file.
    prefix: Only leaves with paths that begin with it are read.

  Raises:
    DamagedFileError: A checksum does not match.
  """
  leaves = _values(path) | tensor_file.read(path, prefix=prefix)
  return {
      name: leaves[name] for name in sorted(leaves) if name.startswith(prefix)
  }


def _values(path: str) -> dict[str, bool | int | float | str | bytes | None]:
  """The leaves of a file that are not arrays."""
  values = tensor_file.read_header(path).content.get(_VALUES)
  if not isinstance(values, dict):
    raise tensor_file.DamagedFileError(
        f'The file {path} is not a state of this project.'
    )
  return {
      name: bytes.fromhex(value[_BYTES]) if isinstance(value, dict) else value
      for name, value in values.items()
  }


def _name(parts: tuple[str | int, ...]) -> str:
  """A leaf's name in the file, from its path in the structure."""
  return '/'.join(map(str, parts))


def _flatten(state: State) -> _Flat:
  """Splits a state into arrays and other leaves."""
  flat = _Flat({}, {})
  for parts, leaf in tree.flatten_with_path(state):
    name = _name(parts)
    if name in flat.arrays or name in flat.values:
      raise ValueError(
          f'Two leaves of the state have the path {name!r}: rename a key.'
      )
    if isinstance(leaf, Array):
      # safetensors writes an array's memory as it is.
      flat.arrays[name] = np.asarray(leaf, order='C')
      # 'V': bfloat16. Text and objects are left.
      if flat.arrays[name].dtype.kind in 'biufV':
        continue
    # Exact types: a subclass would come back as its base class.
    elif type(leaf) in (bool, int, float, str, bytes, type(None)):
      flat.values[name] = leaf
      continue
    raise ValueError(
        f'Leaf {name!r} is of type {type(leaf).__name__}'
        + (f' ({leaf.dtype})' if isinstance(leaf, Array) else '')
        + ', which cannot be stored; store numbers, str or bytes.'
    )
  return flat


def _check_same(
    found: Mapping[str, str], wanted: Mapping[str, str], *, path: str
) -> None:
  """Raises StateMismatchError if types of leaves differ."""
  differences = [
      f'{name}: {found.get(name, "absent")} in the file, '
      f'{wanted.get(name, "absent")} in the program'
      for name in sorted(found.keys() | wanted.keys())
      if found.get(name) != wanted.get(name)
  ]
  if differences:
    shown = '; '.join(differences[:_MAX_SHOWN])
    more = len(differences) - _MAX_SHOWN
    raise StateMismatchError(
        f'The state file {path} belongs to another configuration: {shown}'
        + (f'; and {more} more' if more > 0 else '') + '.'
    )
