"""Your own server optimizer: Lion (https://arxiv.org/abs/2302.06675)."""

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.optimizers import per_tensor


def build_lion(
    learning_rate: float, *, beta_1: float = 0.9, beta_2: float = 0.99
) -> tff.learning.optimizers.Optimizer:
  """Builds Lion: w = w - rate sign(beta_1 m + (1 - beta_1) g)."""

  def update(weight, gradient, slots, scalars):
    mix = lambda beta: beta * slots['momentum'] + (1 - beta) * gradient
    moved = weight - scalars['learning_rate'] * tf.sign(mix(scalars['beta_1']))
    return moved, dict(momentum=mix(scalars['beta_2']))

  hparams = dict(learning_rate=learning_rate, beta_1=beta_1, beta_2=beta_2)
  return per_tensor.build(update, hparams=hparams, slots=('momentum',))
