"""One minibatch step of central training, with any TFF optimizer."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import client_update
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib


def build(
    *,
    model: ctc.CtcModel,
    optimizer: tff.learning.optimizers.Optimizer,
    max_grad_norm: float = 1.0,
) -> Callable[..., tuple[Any, weights_lib.Weights, tf.Tensor, tf.Tensor]]:
  """Builds the step.

  Args:
    model: The model.
    optimizer: Steps along the gradient of the batch's mean loss.
    max_grad_norm: The gradient is clipped to this global norm.

  Returns:
    A tf.function (optimizer_state, weights, batch) to (optimizer_state,
    weights, sum of the utterances' losses, number of utterances trained on).
    A batch of stubs alone still is a step, with a gradient of zero.
  """

  weights_specs = weights_lib.tensor_specs(model.specs)
  # Traced and not run: the state is larger than the weights.
  initialize = tf.function(lambda: optimizer.initialize(weights_specs))
  state_specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype),
      initialize.get_concrete_function().structured_outputs,
  )

  # One graph for all batches, so that a resumed run has the same bits.
  @tf.function(
      input_signature=[state_specs, weights_specs, pipeline_lib.batch_spec()]
  )
  def step(optimizer_state, weights, batch: pipeline_lib.Batch):
    optimizer_state, weights, loss_sum = client_update.step(
        model,
        optimizer,
        optimizer_state,
        weights,
        batch,
        max_grad_norm=max_grad_norm,
    )
    return optimizer_state, weights, loss_sum, tf.reduce_sum(batch['weights'])

  return step
