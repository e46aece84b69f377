"""One minibatch step of central training, with any TFF optimizer."""

from collections.abc import Callable, Collection, Sequence
import functools
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import client_update
from tff_asr.learning import data_parallel
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib


def build(
    *,
    model: ctc.CtcModel,
    optimizer: tff.learning.optimizers.Optimizer,
    max_grad_norm: float = 1.0,
    devices: Optional[Sequence[str]] = None,
    frozen: Collection[str] = (),
) -> Callable[..., tuple[Any, weights_lib.Weights, tf.Tensor, tf.Tensor]]:
  """Builds the step.

  Args:
    model: The model.
    optimizer: Steps along the gradient of the batch's mean loss.
    max_grad_norm: The gradient is clipped to this global norm.
    devices: The batch is divided among these; see `data_parallel`. None: as a
      whole, on TensorFlow's default device.
    frozen: Names of weights for which the optimizer gets no gradient (None);
      those gradients are not computed.

  Returns:
    A tf.function (optimizer_state, weights, batch) to (optimizer_state,
    weights, sum of the utterances' losses, number of utterances trained on).
    A batch of stubs alone still is a step, with a gradient of zero.

  Raises:
    ValueError: As `data_parallel.find`.
  """
  if devices is None:
    clipped_gradients = functools.partial(
        client_update.clipped_gradients,
        max_grad_norm=max_grad_norm,
        frozen=frozen,
    )
  else:
    clipped_gradients = functools.partial(
        data_parallel.clipped_gradients,
        max_grad_norm=max_grad_norm,
        devices=data_parallel.find(devices),
        frozen=frozen,
    )

  weights_specs = weights_lib.tensor_specs(model.specs)
  # Traced and not run: the state is larger than the weights.
  initialize = tf.function(
      lambda: optimizer.initialize(weights_specs), autograph=False
  )
  state_specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype),
      initialize.get_concrete_function().structured_outputs,
  )

  # One graph for all batches, so that a resumed run has the same bits.
  @tf.function(
      input_signature=[state_specs, weights_specs, pipeline_lib.batch_spec()],
      autograph=False,
  )
  def step(optimizer_state, weights, batch: pipeline_lib.Batch):
    live, loss_sum = clipped_gradients(model, weights, batch)
    gradients = weights_lib.Weights(
        (name, live.get(name)) for name in weights
    )
    optimizer_state, weights = optimizer.next(
        optimizer_state, weights, gradients
    )
    return optimizer_state, weights, loss_sum, tf.reduce_sum(batch['example_weights'])

  return step
