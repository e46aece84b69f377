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
from typing import TypeVar

import numpy as np
import tensorflow as tf
import tree

from tff_asr.storage import tensor_file

# A nest of leaves.
State = TypeVar('State')
Array = np.ndarray | np.generic | tf.Tensor | tf.Variable
# A leaf that is not an array.
Value = bool | int | float | str | bytes | None

# Where the file's content has the leaves that are not arrays.
_VALUES = 'values'
# JSON has no bytes; TFF's state of a DP aggregator does (names of its event).
_BYTES = 'hex'
# Differences in a message: another configuration may change every leaf.
_MAX_SHOWN = 4


class StateMismatchError(ValueError):
  """A state file holds another structure than the one asked for."""


def write(path: str, state: State) -> None:
  """Writes a state to a file, atomically, in place of an older one.

  Args:
    path: The file; its folder exists.
    state: The state.

  Raises:
    OSError: The disk is full; nothing is left behind.
    ValueError: A leaf cannot be stored.
  """
  leaves = _flatten(state)
  arrays = {
      name: leaf
      for name, leaf in leaves.items()
      if isinstance(leaf, np.ndarray)
  }
  values = {
      name: {_BYTES: leaf.hex()} if isinstance(leaf, bytes) else leaf
      for name, leaf in leaves.items()
      if name not in arrays
  }
  tensor_file.write(path, arrays, content={_VALUES: values})


def read(path: str, *, structure: State) -> State:
  """Reads a state.

  Args:
    path: A state file.
    structure: Any state of the structure wanted.

  Returns:
    The state; tensors are NumPy arrays and scalars.

  Raises:
    DamagedFileError: The checksum does not match.
    StateMismatchError: Paths, types or shapes differ; shows the first.
  """
  found = read_leaves(path)
  _check_same(found, _flatten(structure), path=path)
  leaves = []
  for parts, leaf in tree.flatten_with_path(structure):
    value = found[_name(parts)]
    if isinstance(value, np.ndarray) and not isinstance(leaf, np.ndarray):
      value = value[()]  # A scalar, if it has no shape.
    leaves.append(value)
  return tree.unflatten_as(structure, leaves)


def read_leaves(path: str) -> dict[str, np.ndarray | Value]:
  """Reads all leaves by path, without knowing the structure.

  Raises:
    DamagedFileError: The checksum does not match.
  """
  arrays, content = tensor_file.read_with_header(path)
  if _VALUES not in content:
    raise tensor_file.DamagedFileError(
        f'The file {path} is not a state of this project.'
    )
  values = {
      name: bytes.fromhex(value[_BYTES]) if isinstance(value, dict) else value
      for name, value in content[_VALUES].items()
  }
  # Sorted: the file lists arrays and other values apart.
  return dict(sorted((arrays | values).items()))


def _name(parts: tuple[str | int, ...]) -> str:
  """A leaf's name in the file, from its path in the structure."""
  return '/'.join(map(str, parts))


def _flatten(state: State) -> dict[str, np.ndarray | Value]:
  """Returns a state's leaves by path, tensors as arrays."""
  leaves = {}
  for parts, leaf in tree.flatten_with_path(state):
    name = _name(parts)
    if name in leaves:
      raise ValueError(
          f'Two leaves of the state have the path {name!r}: rename a key.'
      )
    if isinstance(leaf, Array):
      # A tensor as its NumPy value.
      leaves[name] = np.asarray(leaf)
      # 'V': bfloat16. Text and objects are left.
      if leaves[name].dtype.kind in 'biufV':
        continue
    # Exact types: a subclass would come back as its base class.
    elif type(leaf) in (bool, int, float, str, bytes, type(None)):
      leaves[name] = leaf
      continue
    raise ValueError(
        f'Leaf {name!r} is of type {type(leaf).__name__}'
        + (f' ({leaf.dtype})' if isinstance(leaf, Array) else '')
        + ', which cannot be stored; store numbers, str or bytes.'
    )
  return leaves


def _describe(leaf: np.ndarray | Value) -> str:
  """A leaf's type, such as `float32[3,4]` or `int`."""
  if isinstance(leaf, np.ndarray):
    return f'{leaf.dtype.name}{[*leaf.shape]}'.replace(' ', '')
  return type(leaf).__name__


def _check_same(
    found: Mapping[str, np.ndarray | Value],
    wanted: Mapping[str, np.ndarray | Value],
    *,
    path: str,
) -> None:
  """Raises StateMismatchError if types of leaves differ."""
  there, here = (
      {name: _describe(leaf) for name, leaf in leaves.items()}
      for leaves in (found, wanted)
  )
  differences = [
      f'{name}: {there.get(name, "absent")} in the file, '
      f'{here.get(name, "absent")} in the program'
      for name in sorted(there.keys() | here.keys())
      if there.get(name) != here.get(name)
  ]
  if differences:
    shown = '; '.join(differences[:_MAX_SHOWN])
    more = len(differences) - _MAX_SHOWN
    raise StateMismatchError(
        f'The state file {path} belongs to another configuration: {shown}'
        + (f'; and {more} more' if more > 0 else '') + '.'
    )
