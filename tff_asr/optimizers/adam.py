"""Adam, and AdamW with decoupled weight decay.

Kingma and Ba 2015, https://arxiv.org/abs/1412.6980; Loshchilov and Hutter 2019,
https://arxiv.org/abs/1711.05101: with the direction u of
`per_tensor.adam_direction`,

    w = w - learning_rate (u + weight_decay w)

as the paper and optax's `adam` and `adamw` have it. TFF's own Adam is not used:
it adds epsilon to the root of the second moment before that is corrected for
its bias, which makes epsilon 1 / sqrt(1 - beta_2^t) times as large, some 30 in
the first step. Client updates under DP are as small as epsilon, so there the
two differ.
"""

import tensorflow_federated as tff

from tff_asr.optimizers import per_tensor


def build_adam(
    learning_rate: float,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
  """Builds the optimizer; the defaults are optax's.

  Args:
    learning_rate: At least 0.
    beta_1: In [0, 1); decay of the first moment.
    beta_2: In [0, 1); decay of the second moment.
    epsilon: At least 0; beside the root of the corrected second moment.
    weight_decay: At least 0; 0 is Adam, optax's AdamW has 1e-4.

  Returns:
    An optimizer whose memory and hyperparameters are all in its state.

  Raises:
    ValueError: An argument is out of its range.
  """
  hparams = per_tensor.adam_hparams(
      learning_rate,
      beta_1=beta_1,
      beta_2=beta_2,
      epsilon=epsilon,
      weight_decay=weight_decay,
  )

  def update(weight, gradient, slots, scalars):
    direction, slots = per_tensor.adam_direction(gradient, slots, scalars)
    direction += scalars['weight_decay'] * weight
    return weight - scalars['learning_rate'] * direction, slots

  return per_tensor.build(update, hparams=hparams, slots=per_tensor.ADAM_SLOTS)
