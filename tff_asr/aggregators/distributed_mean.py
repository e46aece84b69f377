"""The mean of updates that clients noise themselves, of a secure modular sum.

Its type:

  (<S@SERVER, {V}@CLIENTS, {int64}@CLIENTS> -> <S@SERVER, V@SERVER, M@SERVER>)

The number of a client takes the place of its weight. Its simulated randomness
follows that number (`privacy.distributed`). A client without data has none and
fails, since two of them would draw the same noise; a round with two equal
numbers is refused at the server, which releases nothing of it. The sum is
divided by the public number of clients, of whom some may have dropped out.

The server gets the sum of b bits, the numbers of the clients in it, and in a
simulation the metrics of clipping, as `dp_mean` has them but for the norm of
the mean without noise, which nobody knows. A deployment leaves out what is
`not_private`: it is summed beside the secure sum.
"""

import collections
from collections.abc import Callable
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.aggregators import aggregation
from tff_asr.aggregators import dp_mean
from tff_asr.privacy import distributed


class DistributedMean(aggregation.AccountedFactory):
  """See the module. Clients' numbers come in place of weights."""

  def __init__(
      self,
      *,
      build_query: Callable[[Any], distributed.DistributedSumQuery],
      cohort_size: int,
  ):
    """Creates the factory.

    Args:
      build_query: From the specs of an update; all settings but these bound.
      cohort_size: Clients of each round; the divisor.
    """
    self._build_query = build_query
    self._cohort_size = cohort_size

  def create(
      self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    dp_mean.check_shapes(specs)
    if weight_type != tff.TensorType(np.int64):
      raise TypeError(
          'Distributed noise needs the number of each client, int64, in place '
          f'of its weight, found {weight_type}.'
      )
    query = self._build_query(specs)
    if query.event.num_clients != self._cohort_size:
      raise ValueError(
          f'The query is for {query.event.num_clients} clients a round, the '
          f'mean for {self._cohort_size}: set both by COHORT_SIZE.'
      )

    @tff.tensorflow.computation
    def initial_state():
      event = tf.nest.map_structure(
          tf.constant, query.event.to_named_tuple()
      )
      mean_state = aggregation.MeanState(query.initial_global_state())
      return aggregation.State(mean_state, event)

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(state_type)
    def prepare(state):
      return query.derive_sample_params(state.query_state.numerator_state)

    @tff.tensorflow.computation(
        prepare.type_signature.result, value_type, weight_type
    )
    def encode(params, value, number):
      check = tf.debugging.assert_non_negative(
          number,
          'A client without data has no number, and its noise would be that of '
          'the next one: leave it out of the client data.',
      )
      with tf.control_dependencies([check]):
        number = tf.identity(number)
      sent, measured = query.encode(params, value, client=number)
      return collections.OrderedDict(
          sent=sent, measured=measured, number=number[tf.newaxis]
      )

    sent_type = encode.type_signature.result

    numbers_type = tff.TensorType(np.int64, [None])

    @tff.tensorflow.computation
    def no_numbers():
      return tf.zeros([0], tf.int64)

    @tff.tensorflow.computation(numbers_type, numbers_type)
    def concatenate(first, second):
      return tf.concat([first, second], axis=0)

    @tff.tensorflow.computation(numbers_type)
    def count_clients(numbers):
      count = tf.size(numbers)
      check = tf.debugging.assert_equal(
          tf.size(tf.unique(numbers).y),
          count,
          'The cohort names a client twice: both would draw the same noise.',
      )
      with tf.control_dependencies([check]):
        return tf.identity(count)

    @tff.tensorflow.computation(
        state_type, sent_type.sent, sent_type.measured, np.int32
    )
    def decode(state, total, measured, count):
      query_state = state.query_state.numerator_state
      noised = query.decode(total, num_clients=count, global_state=query_state)
      mean = tf.nest.map_structure(
          lambda part: tf.cast(part / self._cohort_size, tf.float32), noised
      )
      counted = query_state._replace(counter=query_state.counter + 1)
      metrics = query.derive_metrics(query_state)
      measurements = collections.OrderedDict(
          dp_query_metrics=metrics,
          noise_norm=metrics['noise_stddev_on_sum'] * (
              math.sqrt(query.num_noised) / self._cohort_size
          ),
          not_private=dp_mean.clipping_metrics(
              measured, layer_names=query.layer_names
          ),
      )
      new_state = aggregation.State(
          aggregation.MeanState(counted), state.dp_event
      )
      return new_state, mean, measurements

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, number):
      # Client computation.
      params = tff.federated_broadcast(tff.federated_map(prepare, state))
      encoded = tff.federated_map(encode, (params, value, number))
      # Inner aggregations.
      total = tff.backends.mapreduce.federated_secure_modular_sum(
          encoded.sent, query.modulus
      )
      measured = tff.federated_sum(encoded.measured)
      # Not private: the server knows who takes part.
      count = tff.federated_aggregate(
          encoded.number, no_numbers(), concatenate, concatenate, count_clients
      )
      # Server computation.
      new_state, mean, measurements = tff.federated_map(
          decode, (state, total, measured, count)
      )
      # Output preparation.
      return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

    return tff.templates.AggregationProcess(init_fn, next_fn)
