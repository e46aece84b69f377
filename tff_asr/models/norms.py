"""Layer norm.

Ba et al. 2016, https://arxiv.org/abs/1607.06450, with epsilon 1e-5 as in the
published code of https://arxiv.org/abs/2310.00098.
"""

import tensorflow as tf

from tff_asr.models import weights as weights_lib

_EPSILON = 1e-5


def specs(dim: int) -> weights_lib.Specs:
  """Weights `scale` [D], ones at first, and `bias` [D], zeros."""
  return {'bias': weights_lib.zeros(dim), 'scale': weights_lib.ones(dim)}


def layer_norm(weights: weights_lib.Weights, inputs: tf.Tensor) -> tf.Tensor:
  """Normalises [..., D], in float32; the result has the inputs' dtype."""
  values = tf.cast(inputs, tf.float32)
  mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
  normed = (values - mean) * tf.math.rsqrt(variance + _EPSILON)
  return tf.cast(normed * weights['scale'] + weights['bias'], inputs.dtype)
