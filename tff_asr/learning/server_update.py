"""The server's work: an optimizer step along the aggregated delta.

The delta has the weights that are trained, which may be some of them. The type:

  (<S@SERVER, weights@SERVER, delta@SERVER>
   -> <S@SERVER, weights@SERVER, M@SERVER>)
"""

import collections
from collections.abc import Collection

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.models import weights as weights_lib


def build(
    *,
    optimizer: tff.learning.optimizers.Optimizer,
    weights_type: tff.Type,
    frozen: Collection[str] = (),
) -> tff.learning.templates.FinalizerProcess:
  """Builds the finalizer.

  The optimizer takes the aggregated delta (old minus new) for the gradient. An
  aggregate that is not finite raises an error before the weights change.

  Args:
    optimizer: The server's optimizer; its state is the process's.
    weights_type: Type of the model's weights.
    frozen: Names of weights that have no delta and no optimizer state, and
      stay as they are.

  Returns:
    A finalizer process. Measurements, from the noised aggregate and so as
    private as the model: learning_rate, update_norm (of the delta) and
    weights_norm, float32.
  """
  specs = weights_lib.without(
      frozen, tff.types.type_to_tf_tensor_specs(weights_type)
  )
  delta_type = tff.types.tensorflow_to_type(specs)

  @tff.tensorflow.computation
  def initialize():
    return optimizer.initialize(specs)

  state_type = initialize.type_signature.result

  @tff.tensorflow.computation(state_type, weights_type, delta_type)
  def server_computation(state, weights, delta):
    norm = tf.linalg.global_norm(tf.nest.flatten(delta))
    # Aggregators leave out clients' non-finite deltas, and noise is finite.
    check = tf.debugging.Assert(
        tf.math.is_finite(norm),
        ['The aggregated update is not finite: did it overflow?'],
    )
    # Nothing is updated before the check has passed.
    with tf.control_dependencies([check]):
      delta = tf.nest.map_structure(tf.identity, delta)
    new_state, live = optimizer.next(
        state, weights_lib.without(frozen, weights), delta
    )
    new_weights = weights_lib.updated(weights, live)
    measurements = collections.OrderedDict(
        # Of the state before the step: the rate that the step used.
        learning_rate=tf.cast(_learning_rate(state), tf.float32),
        update_norm=norm,
        weights_norm=tf.linalg.global_norm(tf.nest.flatten(new_weights)),
    )
    return new_state, new_weights, measurements

  @tff.federated_computation
  def init_fn():
    return tff.federated_eval(initialize, tff.SERVER)

  @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(weights_type, tff.SERVER),
      tff.FederatedType(delta_type, tff.SERVER),
  )
  def next_fn(state, weights, delta):
    # Server computation.
    new_state, new_weights, measurements = tff.federated_map(
        server_computation, (state, weights, delta)
    )
    return tff.templates.MeasuredProcessOutput(
        new_state, new_weights, measurements
    )

  return tff.learning.templates.FinalizerProcess(init_fn, next_fn)


def _learning_rate(state) -> tf.Tensor:
  """The rate of the next step, of an optimizer or of the one that it wraps."""
  key = tff.learning.optimizers.LEARNING_RATE_KEY
  # Optimizers that wrap another one keep its state under this name.
  while key not in state:
    state = state['optimizer']
  return state[key]
