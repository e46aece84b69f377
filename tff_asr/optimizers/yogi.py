"""Yogi: Adam with additive control of the second moment.

Zaheer et al. 2018, with the semantics of optax's `yogi`: with gradient g, at
step t = 1, 2, ..., both moments from 1e-6,

    m = beta_1 m + (1 - beta_1) g
    v = v - (1 - beta_2) sign(v - g^2) g^2
    w = w - learning_rate (m / (1 - beta_1^t)) /
        (sqrt(v / (1 - beta_2^t)) + epsilon)

TFF's own is not used: it starts m at 0 and adds epsilon to the root of v before
that is corrected for its bias, which makes epsilon some 30 times as large in
the first step (`adam`).
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.optimizers import per_tensor

_INITIAL_MOMENT = 1e-6


def build_yogi(
    learning_rate: float,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-3,
) -> tff.learning.optimizers.Optimizer:
  """Builds the optimizer; the defaults are optax's.

  Args:
    learning_rate: At least 0.
    beta_1: In [0, 1); decay of the first moment.
    beta_2: In [0, 1); 1 - beta_2 scales the changes of the second moment.
    epsilon: At least 0; beside the root of the corrected second moment.

  Returns:
    An optimizer whose memory and hyperparameters are all in its state.

  Raises:
    ValueError: An argument is out of its range.
  """
  checks.non_negative(learning_rate=learning_rate, epsilon=epsilon)
  checks.finite(learning_rate=learning_rate)
  checks.below_one(beta_1=beta_1, beta_2=beta_2)

  def update(weight, gradient, slots, scalars):
    beta_1, beta_2 = scalars['beta_1'], scalars['beta_2']
    square, second = tf.square(gradient), slots['second_moment']
    first = beta_1 * slots['first_moment'] + (1 - beta_1) * gradient
    second -= (1 - beta_2) * tf.sign(second - square) * square
    root = tf.sqrt(second / (1 - tf.pow(beta_2, scalars['step'])))
    direction = first / (1 - tf.pow(beta_1, scalars['step']))
    direction /= root + scalars['epsilon']
    slots = dict(first_moment=first, second_moment=second)
    return weight - scalars['learning_rate'] * direction, slots

  hparams = dict(
      learning_rate=learning_rate,
      beta_1=beta_1,
      beta_2=beta_2,
      epsilon=epsilon,
  )
  return per_tensor.build(
      update,
      hparams=hparams,
      slots=('first_moment', 'second_moment'),
      initial=_INITIAL_MOMENT,
  )
