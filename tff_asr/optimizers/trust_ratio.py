"""The layer-wise ratio of LAMB and LARS, with its zero-norm cases."""

import tensorflow as tf


def trust_ratio(
    weight: tf.Tensor,
    update: tf.Tensor,
    *,
    coefficient: float | tf.Tensor = 1.0,
    epsilon: float | tf.Tensor = 0.0,
) -> tf.Tensor:
  """coefficient ||weight|| / (||update|| + epsilon), a scalar of its dtype.

  1 where either norm is 0 (optax's `scale_by_trust_ratio` without bounds): a
  tensor that starts at zero, like a bias, still moves.
  """
  weight_norm = tf.norm(weight)
  update_norm = tf.norm(update)
  usable = (weight_norm > 0) & (update_norm > 0)
  divisor = tf.where(
      usable, update_norm + epsilon, tf.ones_like(update_norm)
  )
  return tf.where(
      usable, coefficient * weight_norm / divisor, tf.ones_like(weight_norm)
  )
