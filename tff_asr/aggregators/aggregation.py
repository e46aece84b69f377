"""Aggregation of updates: factories with a guarantee, and any other.

An `AccountedFactory` makes processes whose state has a query with a noise key
and the event of its rounds: it says itself what a round costs. The processes of
any other factory are given such a state beside their own, with the event of a
Gaussian without noise: the ledger charges an infinite epsilon, and the
statement says NOT PRIVATE. That holds for TFF's own DP aggregators, too. Their
noise comes from TensorFlow's stateful generator, on floating-point sums, which
no statement here covers. Their measurements become `not_private`.
"""

import collections
from typing import Any, NamedTuple

import dp_accounting
from google.protobuf import message
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.privacy import keys
from tff_asr.privacy import queries


class MeanState(NamedTuple):
  """State of a mean: a query's state where TFP's `NormalizedQuery` has it.

  Attributes:
    numerator_state: State of the query; its noise key is `noise_key`.
  """

  numerator_state: Any


class State(NamedTuple):
  """What the state of an accounted process has, and may be.

  Attributes:
    query_state: `MeanState`, or that of TFP's `NormalizedQuery`.
    dp_event: Event of a round, as a named tuple.
  """

  query_state: Any
  dp_event: Any


class AccountedFactory(tff.aggregators.WeightedAggregationFactory):
  """A factory that claims a guarantee: its processes say what a round costs.

  The state of its processes has the fields of `State`.
  """


class _UnaccountedState(NamedTuple):
  """State of the process around an aggregator without a guarantee.

  Attributes:
    query_state: State of a query that does nothing: an infinite clip, no noise,
      a key that nothing is drawn by, and the number of rounds so far.
    dp_event: A Gaussian event without noise, as a named tuple.
    aggregator: The aggregator's own state.
  """

  query_state: MeanState
  dp_event: Any
  aggregator: Any


def set_noise_key(aggregator_state: Any, key: Any) -> Any:
  """Returns the state of a process of `create` with the query's key set.

  `next` must not be called twice on one state: both results would have the same
  noise. See `queries.set_noise_key`.

  Args:
    aggregator_state: The state.
    key: int32 [8].
  """
  mean_state = aggregator_state.query_state
  keyed = queries.set_noise_key(mean_state.numerator_state, key)
  return aggregator_state._replace(
      query_state=mean_state._replace(numerator_state=keyed)
  )


def create(
    factory: tff.aggregators.AggregationFactory,
    *,
    value_type: tff.Type,
    weight_type: tff.Type,
) -> tff.templates.AggregationProcess:
  """Creates a weighted aggregation process, whatever the factory makes.

  Args:
    factory: Weighted or unweighted. Where it is not an `AccountedFactory`, all
      clients weigh the same.
    value_type: Type of a client's update.
    weight_type: Type of its weight, which only an `AccountedFactory` gets.

  Returns:
    (<S@SERVER, {V}@CLIENTS, {W}@CLIENTS> -> <S@SERVER, V@SERVER, M@SERVER>);
    the factory's own process if it is an `AccountedFactory`.

  Raises:
    ValueError: protobuf does not parse what TFF builds.
  """
  if isinstance(factory, AccountedFactory):
    return factory.create(value_type, weight_type)
  if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
    factory = tff.aggregators.as_weighted_aggregator(factory)
  try:
    inner = factory.create(value_type, tff.TensorType(np.float32))
  except message.DecodeError as error:
    raise ValueError(
        "protobuf's C parser does not parse the computations of this TFF "
        'aggregator, which are nested too deeply (ddp_secure_aggregator): set '
        'the environment variable PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python'
        ', or take gin/privacy/distributed.gin.'
    ) from error
  inner_type = inner.initialize.type_signature.result

  @tff.tensorflow.computation
  def initial_query():
    state = queries.PerLayerClipSumQuery.GlobalState(
        l2_norm_clip=tf.constant(float('inf')),
        noise_multiplier=tf.constant(0.0),
        noise_key=tf.zeros([keys.NUM_WORDS], tf.int32),
        counter=tf.constant(0, tf.int64),
    )
    return MeanState(state), tf.nest.map_structure(
        tf.constant, dp_accounting.GaussianDpEvent(0.0).to_named_tuple()
    )

  query_type, event_type = initial_query.type_signature.result
  state_type = tff.StructWithPythonType(
      [
          ('query_state', query_type),
          ('dp_event', event_type),
          ('aggregator', inner_type.member),
      ],
      _UnaccountedState,
  )

  @tff.tensorflow.computation(inner_type.member)
  def assemble(aggregator):
    query, event = initial_query()
    return _UnaccountedState(query, event, aggregator)

  @tff.tensorflow.computation(state_type, inner_type.member)
  def next_state(state, aggregator):
    query = state.query_state.numerator_state
    counted = query._replace(counter=query.counter + 1)
    return _UnaccountedState(MeanState(counted), state.dp_event, aggregator)

  @tff.tensorflow.computation(
      inner.next.type_signature.result.measurements.member
  )
  def describe(measurements):
    return collections.OrderedDict(
        dp_query_metrics=collections.OrderedDict(),
        not_private=measurements
        if isinstance(measurements, dict)
        else collections.OrderedDict(measurements=measurements),
    )

  @tff.tensorflow.computation(value_type)
  def weigh(unused_value):
    return tf.constant(1.0)

  @tff.federated_computation
  def init_fn():
    return tff.federated_map(assemble, inner.initialize())

  @tff.federated_computation(
      tff.FederatedType(state_type, tff.SERVER),
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
  )
  def next_fn(state, value, weight):
    del weight
    # Client computation.
    alike = tff.federated_map(weigh, value)
    # Inner aggregation.
    own = tff.federated_map(
        tff.tensorflow.computation(lambda s: s.aggregator, state_type), state
    )
    output = inner.next(own, value, alike)
    # Server computation.
    new_state = tff.federated_map(next_state, (state, output.state))
    # Output preparation.
    measurements = tff.federated_map(describe, output.measurements)
    return tff.templates.MeasuredProcessOutput(
        new_state, output.result, measurements
    )

  return tff.templates.AggregationProcess(init_fn, next_fn)
