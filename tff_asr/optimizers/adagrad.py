"""Adagrad from an accumulator of 0.

Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html, with the semantics
of the federated ASR paper's code: for each tensor w with gradient g,

    s = s + g^2                                          (from 0)
    w = w - learning_rate g (1 / sqrt(s) + epsilon)      (no step where s is 0)

Neither TFF's nor optax's own is used: they start s at .1, so that gradients
well below its root, as all client updates under DP are, hardly move a weight.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.optimizers import per_tensor


def build_adagrad(
    learning_rate: float, *, epsilon: float = 1e-8
) -> tff.learning.optimizers.Optimizer:
  """Builds the optimizer; the default is the paper's code's.

  Args:
    learning_rate: At least 0. In the first step each element moves by it,
      however small its gradient.
    epsilon: At least 0; added to the inverse root, not inside it.

  Returns:
    An optimizer that keeps its memory and hyperparameters in its state.

  Raises:
    ValueError: An argument is out of its range.
  """
  checks.non_negative(learning_rate=learning_rate, epsilon=epsilon)
  checks.finite(learning_rate=learning_rate)

  def update(weight, gradient, slots, scalars):
    total = slots['sum_of_squares'] + tf.square(gradient)
    # The inverse root is infinite where all gradients were 0.
    is_moved = total > 0
    # 1 in place of 0: the branch that is not taken must be finite, too.
    inverse = tf.math.rsqrt(tf.where(is_moved, total, tf.ones_like(total)))
    scale = tf.where(
        is_moved, inverse + scalars['epsilon'], tf.zeros_like(total)
    )
    new_weight = weight - scalars['learning_rate'] * (scale * gradient)
    return new_weight, dict(sum_of_squares=total)

  hparams = dict(learning_rate=learning_rate, epsilon=epsilon)
  return per_tensor.build(update, hparams=hparams, slots=('sum_of_squares',))
