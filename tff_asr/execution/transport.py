"""Eager tensors to values that travel between processes, and back.

A numeric tensor travels as a NumPy array, so that shared memory will do, a
string tensor as an array of bytes, and a dataset (a variant tensor) as its
serialized graph.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# A dataset with random state is sent all the same: each process then draws its
# own numbers, as each call of a computation does.
_IGNORE_STATE = 1  # ExternalStatePolicy.POLICY_IGNORE


class _DatasetGraph(NamedTuple):
  """A dataset as a serialized `GraphDef`."""

  graph_def: bytes


def pack(tensors: Sequence[tf.Tensor]) -> list[Any]:
  """Returns the tensors as values that pickle.

  Raises:
    tf.errors.OpError: a dataset that has no serialized form, such as one of a
      Python generator.
  """
  return [_pack(tensor) for tensor in tensors]


def unpack(values: Sequence[Any]) -> list[tf.Tensor]:
  """Returns the tensors that were packed, on the current device."""
  return [_unpack(value) for value in values]


def _pack(tensor: tf.Tensor) -> Any:
  if tensor.dtype != tf.variant:
    return tensor.numpy()
  graph = tf.raw_ops.DatasetToGraphV2(
      input_dataset=tensor,
      external_state_policy=_IGNORE_STATE,
      strip_device_assignment=True,
  )
  return _DatasetGraph(graph.numpy())


def _unpack(value: Any) -> tf.Tensor:
  if not isinstance(value, _DatasetGraph):
    return tf.convert_to_tensor(value)
  with tf.device('/device:CPU:0'):
    return tf.raw_ops.DatasetFromGraph(graph_def=value.graph_def)
