"""LAMB: layer-wise adaptive moments.

You et al. 2020, https://arxiv.org/abs/1904.00962, with the semantics of
optax's `lamb`, which the federated ASR paper used: for each tensor w, with
Adam's direction u from its gradient (`per_tensor.adam_direction`),

    u = u + weight_decay w
    w = w - learning_rate ||w|| / ||u|| u        (ratio 1 if a norm is 0)

Every tensor is adapted, biases and layer norms too; the ratio has no bounds.
"""

import tensorflow_federated as tff

from tff_asr.optimizers import per_tensor


def build_lamb(
    learning_rate: float,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
  """Builds the optimizer; the defaults are optax's.

  Args:
    learning_rate: At least 0.
    beta_1: In [0, 1); decay of the first moment.
    beta_2: In [0, 1); decay of the second moment.
    epsilon: At least 0; beside the second moment's root. Client updates under
      DP are tiny (C over the root of the number of parameters), so this can
      dominate the denominator: compare it with them.
    weight_decay: At least 0; added to the direction before the ratio.

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
    ratio = per_tensor.trust_ratio(weight, direction)
    return weight - scalars['learning_rate'] * ratio * direction, slots

  return per_tensor.build(update, hparams=hparams, slots=per_tensor.ADAM_SLOTS)
