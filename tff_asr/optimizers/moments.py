"""Adam's direction, which LAMB scales: moments with their bias corrected.

Kingma and Ba 2015, https://arxiv.org/abs/1412.6980: with gradient g, at step
t = 1, 2, ...

    m = beta_1 m + (1 - beta_1) g
    v = beta_2 v + (1 - beta_2) g^2
    u = (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)
"""

from collections.abc import Mapping

import tensorflow as tf

from tff_asr import checks

HPARAMS = ('learning_rate', 'beta_1', 'beta_2', 'epsilon', 'weight_decay')
SLOTS = ('first_moment', 'second_moment')


def hparams(
    learning_rate: float,
    *,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
) -> dict[str, float]:
  """The hyperparameters by name.

  Raises:
    ValueError: An argument is out of its range; see `lamb.build_lamb`.
  """
  checks.non_negative(
      learning_rate=learning_rate, epsilon=epsilon, weight_decay=weight_decay
  )
  checks.finite(learning_rate=learning_rate)
  below_one(beta_1=beta_1, beta_2=beta_2)
  values = (learning_rate, beta_1, beta_2, epsilon, weight_decay)
  return dict(zip(HPARAMS, values))


def below_one(**decays: float) -> None:
  """Raises ValueError unless each is in [0, 1)."""
  for name, decay in decays.items():
    checks.in_range(0, 1, **{name: decay})
    if decay == 1:
      raise ValueError(f'{name} must be below 1, found 1.')


def direction(
    gradient: tf.Tensor,
    slots: Mapping[str, tf.Tensor],
    scalars: Mapping[str, tf.Tensor],
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
  """Returns u and the new slots; see `per_tensor.Update` for the arguments."""
  beta_1, beta_2 = scalars['beta_1'], scalars['beta_2']
  first = beta_1 * slots['first_moment'] + (1 - beta_1) * gradient
  second = beta_2 * slots['second_moment'] + (1 - beta_2) * tf.square(gradient)
  correction_1 = 1 - tf.pow(beta_1, scalars['step'])
  correction_2 = 1 - tf.pow(beta_2, scalars['step'])
  update = (first / correction_1) / (
      tf.sqrt(second / correction_2) + scalars['epsilon']
  )
  return update, dict(first_moment=first, second_moment=second)
