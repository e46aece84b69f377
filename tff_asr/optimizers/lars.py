"""LARS: layer-wise adaptive rate scaling.

You et al. 2017, https://arxiv.org/abs/1708.03888, with the semantics of optax's
`lars`, which the federated ASR paper used for central training. For each tensor
w with gradient g:

    u = g + weight_decay w
    ratio = trust_coefficient ||w|| / (||u|| + epsilon)    (1 if a norm is 0)
    v = momentum v + learning_rate ratio u
    w = w - v

The learning rate is inside the momentum: a new rate does not rescale earlier
steps. Every tensor has its own ratio, also biases and layer norms. As in optax,
a tensor of zeros moves by the plain step, 1 / trust_coefficient times as large.
"""

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.optimizers import per_tensor


def build_lars(
    learning_rate: float,
    *,
    momentum: float = 0.9,
    trust_coefficient: float = 0.001,
    epsilon: float = 0.0,
    weight_decay: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
  """Builds the optimizer; the defaults are optax's and the paper's.

  Args:
    learning_rate: At least 0.
    momentum: In [0, 1).
    trust_coefficient: Positive.
    epsilon: At least 0; added to the update's norm.
    weight_decay: At least 0; added to the gradient before the ratio.

  Returns:
    An optimizer that keeps its memory and hyperparameters in its state.

  Raises:
    ValueError: An argument is out of its range.
  """
  checks.non_negative(
      learning_rate=learning_rate, epsilon=epsilon, weight_decay=weight_decay
  )
  checks.finite(learning_rate=learning_rate)
  checks.positive(trust_coefficient=trust_coefficient)
  checks.below_one(momentum=momentum)

  def update(weight, gradient, slots, scalars):
    direction = gradient + scalars['weight_decay'] * weight
    # Its norm includes the decay.
    ratio = per_tensor.trust_ratio(
        weight,
        direction,
        coefficient=scalars['trust_coefficient'],
        epsilon=scalars['epsilon'],
    )
    # The rate is inside the momentum, unlike in PyTorch's SGD.
    velocity = scalars['momentum'] * slots['velocity'] + (
        scalars['learning_rate'] * ratio * direction
    )
    return weight - velocity, dict(velocity=velocity)

  hparams = dict(
      learning_rate=learning_rate,
      momentum=momentum,
      trust_coefficient=trust_coefficient,
      epsilon=epsilon,
      weight_decay=weight_decay,
  )
  return per_tensor.build(update, hparams=hparams, slots=('velocity',))
