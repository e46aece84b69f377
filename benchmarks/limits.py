"""Limits of this machine: its best paces of multiplying and of copying.

Both are measured with TensorFlow's own kernels on its own threads, so that a
share of them tells what the work around the kernels costs.
"""

from collections.abc import Callable

import tensorflow as tf

_PRODUCT_SIZE = 2048
# Beyond every cache.
_COPY_FLOATS = 2**26


def build_product() -> tuple[Callable[[], None], int]:
  """A product of two square float32 matrices, and its operations."""
  size = _PRODUCT_SIZE
  one, other = tf.unstack(
      tf.random.stateless_normal([2, size, size], seed=[1, 2])
  )

  def run() -> None:
    tf.matmul(one, other).numpy()

  return run, 2 * size**3


def build_copy() -> tuple[Callable[[], None], int]:
  """A pass over float32 values, and the bytes that it reads and writes."""
  values = tf.ones([_COPY_FLOATS])

  def run() -> None:
    # An identity copies nothing.
    wait(tf.negative(values))

  return run, 2 * 4 * _COPY_FLOATS


def wait(tensors) -> None:
  """Returns when a device has computed them all."""
  for tensor in tf.nest.flatten(tensors):
    # One value suffices to wait for all, and to copy the rest would be timed.
    tf.reshape(tensor, [-1])[:1].numpy()
