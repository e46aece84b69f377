"""TensorFlow's form of the operations that `numpy_ops` has for arrays."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import tensorflow as tf

_State = TypeVar('_State')

FLOAT64 = tf.float64
INT64 = tf.int64
UINT64 = tf.uint64
bitcast = tf.bitcast
cast = tf.cast
# Not `==`, which in a graph of TFF's compares objects.
equal = tf.equal
rint = tf.math.rint
sqrt = tf.sqrt
where = tf.where


def concat(arrays: list[tf.Tensor]) -> tf.Tensor:
  """Arrays one after the other in the first axis."""
  return tf.concat(arrays, axis=0)


def fold(
    step: Callable[[_State, tf.Tensor], _State],
    state: _State,
    rows: np.ndarray | tf.Tensor,
) -> _State:
  """step(.. step(step(state, rows[0]), rows[1]) ..), as a loop of one body."""
  rows = tf.convert_to_tensor(rows)
  # A loop keeps the graph small.
  return tf.while_loop(
      lambda i, _: i < tf.shape(rows)[0],
      lambda i, state: (i + 1, step(state, rows[i])),
      (tf.constant(0), state),
  )[1]


def left_shift(x: tf.Tensor, bits: int) -> tf.Tensor:
  """x << bits, of the same type."""
  return tf.bitwise.left_shift(x, tf.constant(bits, x.dtype))


def right_shift(x: tf.Tensor, bits: int) -> tf.Tensor:
  """x >> bits, of the same type; keeps the sign of signed integers."""
  return tf.bitwise.right_shift(x, tf.constant(bits, x.dtype))


def join_words(rows: tf.Tensor) -> tf.Tensor:
  """uint32 [2 m, n] to uint64 [n, m]: a column's pairs, low words first."""
  # bitcast joins the last axis, the first of two words being the low one.
  pairs = tf.reshape(tf.transpose(rows), [tf.shape(rows)[1], -1, 2])
  return tf.bitcast(pairs, tf.uint64)
