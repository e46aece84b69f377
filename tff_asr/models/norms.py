"""Layer and group norm, computed in float32 whatever the activations are.

Ba et al. 2016, https://arxiv.org/abs/1607.06450; Wu and He 2018,
https://arxiv.org/abs/1803.08494. Both take their statistics from one utterance
alone, as gradients by example need; batch norm does not.

  B: batch size. S: frames. D: width.
"""

import tensorflow as tf

from tff_asr.models import weights as weights_lib

_EPSILON = 1e-5


def specs(dim: int) -> weights_lib.Specs:
  """Weights of either norm over D = dim: `bias` and `scale`."""
  return {'bias': weights_lib.zeros(dim), 'scale': weights_lib.ones(dim)}


def layer_norm(weights: weights_lib.Weights, inputs: tf.Tensor) -> tf.Tensor:
  """Shifts and scales each frame to mean 0 and variance 1 over its D values.

  Args:
    weights: As in `specs`.
    inputs: float32 or bfloat16 [..., D].

  Returns:
    As inputs.
  """
  values = tf.cast(inputs, tf.float32)
  mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
  normed = (values - mean) * tf.math.rsqrt(variance + _EPSILON)
  return tf.cast(normed * weights['scale'] + weights['bias'], inputs.dtype)


def group_norm(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    *,
    num_groups: int,
) -> tf.Tensor:
  """Shifts and scales each group of channels of an utterance.

  To mean 0 and variance 1 over the group's channels in all valid frames.

  Args:
    weights: As in `specs`.
    inputs: float32 or bfloat16 [B, S, D].
    valid: float32 [B, S, 1], 1 for frames of the utterance, 0 for padding,
      which has no part in the statistics.
    num_groups: Divides D.

  Returns:
    As inputs; what stands at padded frames is arbitrary but finite.
  """
  batch_size, size, _ = tf.unstack(tf.shape(inputs))
  dim = inputs.shape[-1]
  group_dim = dim // num_groups
  values = tf.reshape(
      tf.cast(inputs, tf.float32), [batch_size, size, num_groups, group_dim]
  )
  is_valid = valid[:, :, tf.newaxis] > 0
  count = tf.maximum(tf.reduce_sum(valid, axis=1), 1.0) * group_dim
  count = count[:, :, tf.newaxis, tf.newaxis]
  total = lambda x: tf.reduce_sum(x, axis=[1, 3], keepdims=True)
  mean = total(tf.where(is_valid, values, 0.0)) / count
  centred = tf.where(is_valid, values - mean, 0.0)
  variance = total(tf.square(centred)) / count
  normed = tf.reshape(
      centred * tf.math.rsqrt(variance + _EPSILON), [batch_size, size, dim]
  )
  return tf.cast(normed * weights['scale'] + weights['bias'], inputs.dtype)
