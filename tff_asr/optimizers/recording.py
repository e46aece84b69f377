"""An optimizer that also keeps the last gradient that it is given.

    last <- gradient,

and whatever the inner optimizer does. It serves audits, which look at what each
round released.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff


def build_recording(
    optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.optimizers.Optimizer:
  """Returns the optimizer; its state has `last`, like the weights."""
  return _Recording(optimizer)


class _Recording(tff.learning.optimizers.Optimizer):
  """See `build_recording`."""

  def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
    self._optimizer = optimizer

  def initialize(self, specs):
    zeros = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), specs
    )
    return collections.OrderedDict(
        last=zeros, optimizer=self._optimizer.initialize(specs)
    )

  def next(self, state, weights, gradients):
    inner, new_weights = self._optimizer.next(
        state['optimizer'], weights, gradients
    )
    return collections.OrderedDict(last=gradients, optimizer=inner), new_weights

  def get_hparams(self, state):
    return self._optimizer.get_hparams(state['optimizer'])

  def set_hparams(self, state, hparams):
    inner = self._optimizer.set_hparams(state['optimizer'], hparams)
    return collections.OrderedDict(state, optimizer=inner)
