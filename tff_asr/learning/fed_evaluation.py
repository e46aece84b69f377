"""Federated evaluation as a TFF learning process that changes no weights.

    distributor  sends the weights to the clients
    client work  decodes and counts word errors (`client_evaluation`); a client
                 sends one vector (`metrics.private_wer`)
    aggregator   clip, sum, noise, divide: that of training
    finalizer    adds the noised means of rounds; the weights stay as they are

Its rounds therefore run in every execution context, draw their clients from
`data.cohorts`, and are keyed and charged by `programs.private_rounds`, as the
rounds of training are. The type, with the state S of `process`:

    (<S@SERVER, {<client_id=string,shard=int64,offsets=int64[?]>}@CLIENTS>
     -> <state=S@SERVER, metrics=M@SERVER>)

The metrics contain exact measurements of clipping, which are not private.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.aggregators import aggregation
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import client_evaluation
from tff_asr.learning import client_update
from tff_asr.metrics import private_wer
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib


def build(
    *,
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
    aggregator: tff.aggregators.AggregationFactory,
    vectors: private_wer.PersonVectors,
) -> tff.learning.templates.LearningProcess:
  """Builds the process.

  Args:
    model: The model; the state's first weights are zeros, to be replaced.
    pipeline: Features and batches; also the tokenizer.
    client_data: The people to evaluate, as in `fed_avg.build`.
    aggregator: See `dp_mean.build`; a clip of 1 changes no vector.
    vectors: What a person sends.

  Returns:
    The process. The finalizer's state is the sum of the rounds' means, float32
    [vectors.size].
  """

  @tff.tensorflow.computation
  def initial_weights():
    return weights_lib.Weights(
        (name, tf.zeros(spec.shape))
        for name, spec in weights_lib.tensor_specs(model.specs).items()
    )

  weights_type = initial_weights.type_signature.result
  vector_type = tff.TensorType(np.float32, [vectors.size])
  open_client, read = client_data_lib.dataset_computation(client_data)
  process = tff.learning.templates.compose_learning_process(
      initial_weights,
      tff.learning.templates.build_broadcast_process(weights_type),
      _build_client_work(
          client_evaluation.build_count(
              model=model, pipeline=dataclasses.replace(pipeline, read=read)
          ),
          vectors,
          weights_type=weights_type,
          examples_type=open_client.type_signature.result,
      ),
      aggregation.create_weighted_process(
          aggregator,
          value_type=vector_type,
          weight_type=tff.TensorType(np.int64),
      ),
      _build_finalizer(weights_type=weights_type, vector_type=vector_type),
  )
  return tff.simulation.compose_dataset_computation_with_learning_process(
      open_client, process
  )


def _build_client_work(
    count_errors: client_evaluation.CountErrors,
    vectors: private_wer.PersonVectors,
    *,
    weights_type: tff.Type,
    examples_type: tff.Type,
) -> tff.learning.templates.ClientWorkProcess:
  """Decodes a client's utterances and makes its vector."""

  @tff.tensorflow.computation(weights_type, examples_type)
  def client_computation(weights, examples):
    client_id, counts = count_errors(weights, examples)
    return tff.learning.templates.ClientResult(
        update=vectors.encode(counts),
        # Aggregators where clients draw the noise need the client's number.
        update_weight=client_update.hash_client_id(client_id),
    )

  @tff.federated_computation
  def init_fn():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(weights_type, tff.CLIENTS),
      tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def next_fn(state, weights, examples):
    # Client computation.
    result = tff.federated_map(client_computation, (weights, examples))
    # No measurements: exact sums over clients would not be private.
    return tff.templates.MeasuredProcessOutput(
        state, result, tff.federated_value((), tff.SERVER)
    )

  return tff.learning.templates.ClientWorkProcess(init_fn, next_fn)


def _build_finalizer(
    *, weights_type: tff.Type, vector_type: tff.TensorType
) -> tff.learning.templates.FinalizerProcess:
  """Adds up noised means in its state."""

  @tff.tensorflow.computation
  def initialize():
    return tf.zeros(vector_type.shape)

  @tff.tensorflow.computation(vector_type, vector_type)
  def add(total, mean):
    check = tf.debugging.Assert(
        tf.reduce_all(tf.math.is_finite(mean)),
        ['The noised sum is not finite.'],
    )
    with tf.control_dependencies([check]):
      return total + mean

  @tff.federated_computation
  def init_fn():
    return tff.federated_eval(initialize, tff.SERVER)

  @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(weights_type, tff.SERVER),
      tff.FederatedType(vector_type, tff.SERVER),
  )
  def next_fn(state, weights, mean):
    # Server computation.
    new_state = tff.federated_map(add, (state, mean))
    return tff.templates.MeasuredProcessOutput(
        new_state,
        weights,
        tff.federated_value(collections.OrderedDict(), tff.SERVER),
    )

  return tff.learning.templates.FinalizerProcess(init_fn, next_fn)
