"""LAMB: layer-wise adaptive moments.

You et al. 2020, https://arxiv.org/abs/1904.00962, with the semantics of
optax's `lamb`, which the federated ASR paper used: for each tensor w with
gradient g, at step t = 1, 2, ...

    m = beta_1 m + (1 - beta_1) g
    v = beta_2 v + (1 - beta_2) g^2
    u = (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)
    u = u + weight_decay w
    w = w - learning_rate ||w|| / ||u|| u        (ratio 1 if a norm is 0)

Every tensor is adapted, biases and layer norms too; the ratio has no bounds.
"""

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.optimizers import trust_ratio

_HPARAMS = (
    tff.learning.optimizers.LEARNING_RATE_KEY,
    'beta_1',
    'beta_2',
    'epsilon',
    'weight_decay',
)


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
  checks.non_negative(
      learning_rate=learning_rate, epsilon=epsilon, weight_decay=weight_decay
  )
  checks.finite(learning_rate=learning_rate)
  for name, beta in (('beta_1', beta_1), ('beta_2', beta_2)):
    checks.in_range(0, 1, **{name: beta})
    if beta == 1:
      raise ValueError(f'{name} must be below 1, found 1.')
  return _Lamb(
      collections.OrderedDict(
          zip(_HPARAMS, (learning_rate, beta_1, beta_2, epsilon, weight_decay))
      )
  )


class _Lamb(tff.learning.optimizers.Optimizer):
  """LAMB; see `build_lamb`."""

  def __init__(self, hparams: collections.OrderedDict[str, float]):
    self._hparams = hparams

  def initialize(self, specs: Any) -> collections.OrderedDict[str, Any]:
    zeros = lambda: tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), specs
    )
    return collections.OrderedDict(
        self._hparams, step=0, first_moment=zeros(), second_moment=zeros()
    )

  def next(
      self,
      state: collections.OrderedDict[str, Any],
      weights: Any,
      gradients: Any,
  ) -> tuple[collections.OrderedDict[str, Any], Any]:
    gradients = tff.learning.optimizers.handle_indexed_slices_gradients(
        gradients
    )
    tff.learning.optimizers.check_weights_gradients_match(weights, gradients)
    step = state['step'] + 1
    hparams = [tf.cast(state[name], tf.float32) for name in _HPARAMS]
    learning_rate, beta_1, beta_2, epsilon, weight_decay = hparams
    time = tf.cast(step, tf.float32)
    correction_1 = 1 - tf.pow(beta_1, time)
    correction_2 = 1 - tf.pow(beta_2, time)

    def update(weight, first, second, gradient):
      if gradient is None:
        return weight, first, second
      cast = lambda value: tf.cast(value, weight.dtype)
      first = cast(beta_1) * first + cast(1 - beta_1) * gradient
      second = cast(beta_2) * second + cast(1 - beta_2) * tf.square(gradient)
      direction = (first / cast(correction_1)) / (
          tf.sqrt(second / cast(correction_2)) + cast(epsilon)
      )
      direction += cast(weight_decay) * weight
      ratio = trust_ratio.trust_ratio(weight, direction)
      return weight - cast(learning_rate) * ratio * direction, first, second

    # Flat lists, since a gradient may be None, which tf.nest takes for a leaf.
    updated = [
        update(*leaves)
        for leaves in zip(
            tf.nest.flatten(weights),
            tf.nest.flatten(state['first_moment']),
            tf.nest.flatten(state['second_moment']),
            tf.nest.flatten(gradients),
            strict=True,
        )
    ]
    pack = lambda index: tf.nest.pack_sequence_as(
        weights, [leaves[index] for leaves in updated]
    )
    new_state = collections.OrderedDict(
        state, step=step, first_moment=pack(1), second_moment=pack(2)
    )
    return new_state, pack(0)

  def get_hparams(
      self, state: collections.OrderedDict[str, Any]
  ) -> collections.OrderedDict[str, Any]:
    return collections.OrderedDict((name, state[name]) for name in _HPARAMS)

  def set_hparams(
      self,
      state: collections.OrderedDict[str, Any],
      hparams: collections.OrderedDict[str, Any],
  ) -> collections.OrderedDict[str, Any]:
    return collections.OrderedDict(
        state, **{name: hparams[name] for name in _HPARAMS}
    )
