"""Adam, and AdamW with decoupled weight decay.

Kingma and Ba 2015, https://arxiv.org/abs/1412.6980; Loshchilov and Hutter 2019,
https://arxiv.org/abs/1711.05101: with gradient g, at step t = 1, 2, ...

    m = beta_1 m + (1 - beta_1) g
    v = beta_2 v + (1 - beta_2) g^2
    u = (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)
    u = u + weight_decay w
    w = w - learning_rate u

This is the rule of the papers and of optax's `adam` and `adamw`. TFF's own Adam
is not used. It adds epsilon to the root of the second moment before the bias
correction, which makes epsilon 1 / sqrt(1 - beta_2^t) times as large: some 30
times in the first step. The two differ under DP, where client updates are as
small as epsilon.
"""

from collections.abc import Callable
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.optimizers import per_tensor


def build_adam(
    learning_rate: float,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    ratio: Optional[Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = None,
) -> tff.learning.optimizers.Optimizer:
  """Builds the optimizer; the defaults are optax's.

  Args:
    learning_rate: At least 0.
    beta_1: In [0, 1); decay of the first moment.
    beta_2: In [0, 1); decay of the second moment.
    epsilon: At least 0; added to the root of the corrected second moment. It
      can dominate the denominator under DP, where client updates are tiny (C
      over the root of the number of parameters): compare it with them.
    weight_decay: At least 0; 0 is Adam, optax's AdamW has 1e-4.
    ratio: A function of w and u (with its decay) that returns a factor for the
      tensor's learning rate; see `lamb`. None: 1.

  Returns:
    An optimizer that keeps its memory and hyperparameters in its state.

  Raises:
    ValueError: An argument is out of its range.
  """
  checks.non_negative(
      learning_rate=learning_rate, epsilon=epsilon, weight_decay=weight_decay
  )
  checks.finite(learning_rate=learning_rate)
  checks.below_one(beta_1=beta_1, beta_2=beta_2)

  def update(weight, gradient, slots, scalars):
    beta_1, beta_2 = scalars['beta_1'], scalars['beta_2']
    first = beta_1 * slots['first_moment'] + (1 - beta_1) * gradient
    second = beta_2 * slots['second_moment'] + (1 - beta_2) * tf.square(
        gradient
    )
    # Moments start at 0, which these corrections undo.
    correction_1 = 1 - tf.pow(beta_1, scalars['step'])
    correction_2 = 1 - tf.pow(beta_2, scalars['step'])
    # Epsilon is outside the root: optax's `eps`, not its `eps_root`.
    direction = (first / correction_1) / (
        tf.sqrt(second / correction_2) + scalars['epsilon']
    )
    # Decoupled: the decay is not divided by the second moment.
    direction += scalars['weight_decay'] * weight
    rate = scalars['learning_rate']
    # After the decay, so that LAMB's ratio covers it.
    if ratio is not None:
      rate *= ratio(weight, direction)
    slots = dict(first_moment=first, second_moment=second)
    return weight - rate * direction, slots

  hparams = dict(
      learning_rate=learning_rate,
      beta_1=beta_1,
      beta_2=beta_2,
      epsilon=epsilon,
      weight_decay=weight_decay,
  )
  return per_tensor.build(
      update, hparams=hparams, slots=('first_moment', 'second_moment')
  )
