"""What the tests of optimizers step along, and how."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def arrays(*key: int, scale: float = 1.0) -> list[np.ndarray]:
  """A random matrix, vector and scalar, a function of the key."""
  rng = np.random.default_rng(key)
  return [
      scale * rng.normal(size=shape).astype(np.float32)
      for shape in ((4, 3), (5,), ())
  ]


def run(
    optimizer: tff.learning.optimizers.Optimizer, weights, gradients
) -> list[tf.Tensor]:
  """The weights after a step a list of gradients."""
  weights = [tf.constant(w, tf.float32) for w in weights]
  state = optimizer.initialize(
      [tf.TensorSpec(w.shape, w.dtype) for w in weights]
  )
  next_fn = tf.function(optimizer.next)
  for each in gradients:
    each = [tf.constant(g, tf.float32) for g in each]
    state, weights = next_fn(state, weights, each)
  return weights
