"""NumPy's form of the operations that `tensorflow_ops` has for tensors.

Code over both, with the operators of arrays, gives the same bits: each is one
integer operation, or one of IEEE 754 that rounds correctly.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

_State = TypeVar('_State')

FLOAT64 = np.float64
INT64 = np.int64
UINT64 = np.uint64
bitcast = np.ndarray.view
cast = np.ndarray.astype
concat = np.concatenate
equal = np.equal
rint = np.rint
sqrt = np.sqrt
where = np.where


def fold(
    step: Callable[[_State, np.ndarray], _State],
    state: _State,
    rows: np.ndarray,
) -> _State:
  """step(.. step(step(state, rows[0]), rows[1]) ..)."""
  for row in rows:
    state = step(state, row)
  return state


def left_shift(x: np.ndarray, bits: int) -> np.ndarray:
  """x << bits, of the same type."""
  return np.left_shift(x, x.dtype.type(bits))


def right_shift(x: np.ndarray, bits: int) -> np.ndarray:
  """x >> bits, of the same type; keeps the sign of signed integers."""
  return np.right_shift(x, x.dtype.type(bits))


def join_words(rows: np.ndarray) -> np.ndarray:
  """uint32 [2 m, n] to uint64 [n, m]: a column's pairs, low words first."""
  # Little-endian machines: the first of two words is the low one.
  return np.ascontiguousarray(rows.T).view(np.uint64)
