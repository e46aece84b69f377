"""A gradient-tracing optimizer: its state also holds the last gradient.

    last <- gradient,

besides the inner optimizer's step. Audits read there what each round released.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff


def build_gradient_tracing(
    optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.optimizers.Optimizer:
  """Returns the optimizer; its state has `last`, like the weights."""
  return _GradientTracing(optimizer)


class _GradientTracing(tff.learning.optimizers.Optimizer):
  """See `build_gradient_tracing`."""

  def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
    self._optimizer = optimizer

  def initialize(self, specs):
    # Zeros, so that the state's type is the same in all rounds.
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
    # `optimizer` is the key under which the server finds the learning rate.
    return collections.OrderedDict(last=gradients, optimizer=inner), new_weights

  def get_hparams(self, state):
    # The wrapper has none: schedules set the inner optimizer's rate.
    return self._optimizer.get_hparams(state['optimizer'])

  def set_hparams(self, state, hparams):
    inner = self._optimizer.set_hparams(state['optimizer'], hparams)
    return collections.OrderedDict(state, optimizer=inner)
