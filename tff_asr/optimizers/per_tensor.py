"""Optimizers that update each tensor of the weights separately.

LAMB, LARS, Adam and others are each an update rule for one tensor. `build`
makes an optimizer of such a rule: its state holds the hyperparameters, the step
number and the slots (tensors like the weights, zeros at first).
`trust_ratio` serves LAMB and LARS.

A server optimizer need not be built here. gin can bind any
`tff.learning.optimizers.Optimizer` with `learning_rate` in its state: schedules
set that rate, and the server reports it. An optimizer that wraps another one
keeps its state as `optimizer`, and wraps the scheduled one (`SERVER_OPTIMIZER`
in gin).
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import sequential

# A function of a weight, its gradient, its slots by name, and a dict of the
# hyperparameters and the 1-based `step` (scalars of the weight's dtype). It
# returns the new weight and the new slots by name.
Update = Callable[
    [tf.Tensor, tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]],
    tuple[tf.Tensor, dict[str, tf.Tensor]],
]

_State = collections.OrderedDict[str, Any]


def build(
    update: Update,
    *,
    hparams: Mapping[str, float],
    slots: Sequence[str],
) -> tff.learning.optimizers.Optimizer:
  """Builds an optimizer from the rule for one tensor.

  Args:
    update: The rule; see `Update`. A tensor without a gradient (None) stays as
      it is, with its slots.
    hparams: Hyperparameters by name, `learning_rate` among them.
    slots: Names of the slots.

  Returns:
    An optimizer that keeps its memory and hyperparameters in its state, in the
    order: hyperparameters, step, slots.
  """
  return _PerTensor(update, collections.OrderedDict(hparams), tuple(slots))


def trust_ratio(
    weight: tf.Tensor,
    update: tf.Tensor,
    *,
    coefficient: float | tf.Tensor = 1.0,
    epsilon: float | tf.Tensor = 0.0,
) -> tf.Tensor:
  """The layer-wise ratio of LAMB and LARS.

  coefficient ||weight|| / (||update|| + epsilon), a scalar of its dtype;
  1 where either norm is 0 (optax's `scale_by_trust_ratio` without bounds): a
  tensor that starts at zero, like a bias, still moves.
  """
  weight_norm = tf.norm(weight)
  update_norm = tf.norm(update)
  usable = (weight_norm > 0) & (update_norm > 0)
  # 1 in place of 0: the branch that is not taken must be finite, too.
  divisor = tf.where(
      usable, update_norm + epsilon, tf.ones_like(update_norm)
  )
  return tf.where(
      usable, coefficient * weight_norm / divisor, tf.ones_like(weight_norm)
  )


class _PerTensor(tff.learning.optimizers.Optimizer):
  """See `build`."""

  def __init__(
      self,
      update: Update,
      hparams: collections.OrderedDict[str, float],
      slots: tuple[str, ...],
  ):
    self._update = update
    self._hparams = hparams
    self._slots = slots

  def initialize(self, specs: Any) -> _State:
    start = lambda: tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), specs
    )
    return collections.OrderedDict(
        self._hparams, step=0, **{slot: start() for slot in self._slots}
    )

  def next(
      self, state: _State, weights: Any, gradients: Any
  ) -> tuple[_State, Any]:
    gradients = tff.learning.optimizers.handle_indexed_slices_gradients(
        gradients
    )
    tff.learning.optimizers.check_weights_gradients_match(weights, gradients)
    # The first step is number 1, as bias corrections need.
    step = state['step'] + 1
    scalars = dict(self.get_hparams(state), step=step)

    def update(weight, gradient, *slots):
      if gradient is None:
        # A frozen tensor: without a gradient its moments must not decay.
        return weight, slots
      new_weight, new_slots = self._update(
          weight,
          gradient,
          dict(zip(self._slots, slots)),
          # Scalars of the state may be float64 or integers.
          {key: tf.cast(value, weight.dtype) for key, value in scalars.items()},
      )
      return new_weight, [new_slots[slot] for slot in self._slots]

    # Flat lists: a gradient may be None, which is a leaf to tf.nest. One tensor
    # after another: the intermediate values of all at once would take several
    # times the memory of the weights.
    updated = sequential.sequential_map(
        update,
        tf.nest.flatten(weights),
        tf.nest.flatten(gradients),
        *(tf.nest.flatten(state[slot]) for slot in self._slots),
    )
    pack = lambda leaves: tf.nest.pack_sequence_as(weights, leaves)
    new_slots = {
        slot: pack([slots[index] for _, slots in updated])
        for index, slot in enumerate(self._slots)
    }
    new_state = collections.OrderedDict(state, step=step, **new_slots)
    return new_state, pack([weight for weight, _ in updated])

  def get_hparams(self, state: _State) -> _State:
    # Not the step: it belongs to the memory, which a new rate must not reset.
    return collections.OrderedDict(
        (name, state[name]) for name in self._hparams
    )

  def set_hparams(self, state: _State, hparams: _State) -> _State:
    return collections.OrderedDict(
        state, **{name: hparams[name] for name in self._hparams}
    )
