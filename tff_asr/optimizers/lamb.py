"""LAMB: layer-wise adaptive moments.

You et al. 2020, https://arxiv.org/abs/1904.00962, with the semantics of optax's
`lamb`, which the federated ASR paper used. For each tensor w, with Adam's
direction u (`adam`, weight decay included):

    w = w - learning_rate ||w|| / ||u|| u        (ratio 1 if a norm is 0)

Every tensor has its own ratio, also biases and layer norms. The ratio has no
bounds.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.optimizers import adam
from tff_asr.optimizers import per_tensor


def build_lamb(
    learning_rate: float,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
  """Builds Adam with a trust ratio; see `adam.build_adam`.

  The defaults are optax's. The default epsilon differs from Adam's.

      >>> optimizer = build_lamb(0.1)
      >>> state = optimizer.initialize(tf.TensorSpec([2]))
      >>> state, weights = optimizer.next(
      ...     state, tf.constant([3.0, 4.0]), tf.constant([1.0, 1.0])
      ... )
      >>> round(float(tf.norm(weights - [3.0, 4.0])), 3)  # 10 % of the norm.
      0.5
  """
  return adam.build_adam(
      learning_rate,
      beta_1=beta_1,
      beta_2=beta_2,
      epsilon=epsilon,
      weight_decay=weight_decay,
      # `adam` takes the ratio after the decay, as optax's `lamb` does.
      ratio=per_tensor.trust_ratio,
  )
