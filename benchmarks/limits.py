"""This machine's peak rate of matrix products, and waiting for devices.

The rate is that of TensorFlow's own kernel on its own threads, so a step's
share of it shows what the work around the kernels costs.
"""

from collections.abc import Callable

import tensorflow as tf

_PRODUCT_SIZE = 2048


def build_product() -> tuple[Callable[[], None], int]:
  """A product of two square float32 matrices, and its operations."""
  size = _PRODUCT_SIZE
  one, other = tf.unstack(
      tf.random.stateless_normal([2, size, size], seed=[1, 2])
  )

  def run() -> None:
    tf.matmul(one, other).numpy()

  return run, 2 * size**3


def wait(tensors) -> None:
  """Returns when a device has computed them all."""
  for tensor in tf.nest.flatten(tensors):
    # One value suffices to wait for all, and to copy the rest would be timed.
    tf.reshape(tensor, [-1])[:1].numpy()
