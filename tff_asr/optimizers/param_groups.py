"""A param-group optimizer: some weights take scaled or later steps.

It serves fine-tuning: a pre-trained encoder takes smaller steps than a new
head, or no steps at first. Let the inner optimizer's step be w -> step(w):

    w <- w + rate (step(w) - w)    for the weights of the param group,
    w <- step(w)                   for the others.

The param group may have another inner optimizer, for example with another
warm-up. It and the other weights each have a state. While the group has no
gradients (all are None), its weights and its state do not change: its moments,
bias corrections and schedule begin with its first gradients.
"""

import collections
from collections.abc import Collection, Mapping
from typing import Optional, TypeVar

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks


_Value = TypeVar('_Value')


def build_param_groups(
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    group: Collection[str],
    rate: float,
    group_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
) -> tff.learning.optimizers.Optimizer:
  """Returns the optimizer, for weights by name.

  Args:
    optimizer: Its state is that of `others` in the state.
    group: Names of the param group's weights.
    rate: Factor of the group's steps; positive.
    group_optimizer: Its state is that of `group`; None: one like `optimizer`.
      Its hyperparameters are of the same names.

  Raises:
    ValueError: rate is not positive and finite. `initialize` raises it if the
      weights lack a name of the group, or all of them are in the group.
  """
  checks.positive(rate=rate)
  checks.finite(rate=rate)
  return _ParamGroups(
      dict(group=group_optimizer or optimizer, others=optimizer),
      frozenset(group),
      rate,
  )


class _ParamGroups(tff.learning.optimizers.Optimizer):
  """See `build_param_groups`."""

  def __init__(
      self,
      optimizers: Mapping[str, tff.learning.optimizers.Optimizer],
      group: frozenset[str],
      rate: float,
  ):
    self._optimizers = optimizers
    self._group = group
    self._rate = rate

  def initialize(self, specs):
    # Only here are the names of the weights known.
    unknown = sorted(self._group - specs.keys())
    if unknown:
      raise ValueError(f'group names {unknown[0]}, which is not a weight.')
    if len(self._group) == len(specs):
      raise ValueError('group names all weights: there are no others.')
    parts = self._split(specs)
    return collections.OrderedDict(
        (key, optimizer.initialize(parts[key]))
        for key, optimizer in self._optimizers.items()
    )

  def next(self, state, weights, gradients):
    parts = self._split(weights)
    new_state = collections.OrderedDict(state)
    for key, part in self._split(gradients).items():
      # A frozen group keeps its state: moments, corrections and schedule begin
      # with its first gradients.
      if all(gradient is None for gradient in part.values()):
        continue
      new_state[key], stepped = self._optimizers[key].next(
          state[key], parts[key], part
      )
      # The step is scaled, not the learning rate, which a schedule may set.
      if key == 'group':
        stepped = tf.nest.map_structure(
            lambda old, new: old + self._rate * (new - old),
            parts[key],
            stepped,
        )
      parts[key] = stepped
    merged = parts['group'] | parts['others']
    # In the weights' order, which TFF and checkpoints compare.
    return new_state, type(weights)((name, merged[name]) for name in weights)

  def get_hparams(self, state):
    # Schedules set one rate; `set_hparams` passes it to both.
    return self._optimizers['others'].get_hparams(state['others'])

  def set_hparams(self, state, hparams):
    return collections.OrderedDict(
        (key, self._optimizers[key].set_hparams(part, hparams))
        for key, part in state.items()
    )

  def _split(
      self, values: Mapping[str, _Value]
  ) -> dict[str, collections.OrderedDict[str, _Value]]:
    """The group's values and the others', each in their order."""
    pick = lambda is_in: collections.OrderedDict(
        (name, value)
        for name, value in values.items()
        if (name in self._group) == is_in
    )
    return dict(group=pick(True), others=pick(False))
