"""Aggregation of updates: factories with a guarantee, and any other.

The processes of an `AccountedFactory` report the privacy cost of a round: their
state holds a query with a noise key, and the round's event. `create` adds such
a state to the processes of any other factory, with the event of a Gaussian
without noise. Then the ledger charges an infinite epsilon, the privacy report
says NOT PRIVATE, and all measurements become `not_private`. This also applies
to TFF's DP aggregators: they add noise from TensorFlow's stateful generator to
floating-point sums, which no report here covers.
"""

import collections
from typing import NamedTuple, Optional

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries


class State(NamedTuple):
  """State of an aggregation process.

  Attributes:
    query_state: State of the query.
    dp_event: Event of a round, as a named tuple.
    inner: State of an aggregator without a guarantee; () with one.
  """

  query_state: queries.QueryState
  dp_event: NamedTuple
  inner: clipping_lib.Nest = ()


class AccountedFactory(tff.aggregators.WeightedAggregationFactory):
  """A factory that claims a guarantee: its processes say what a round costs.

  The state of its processes is a `State`.

  Attributes:
    build_query: Builds the query that clips an update, where the server adds
      the noise; else None.
  """

  build_query: Optional[queries.BuildQuery] = None


def create_weighted_process(
    factory: tff.aggregators.AggregationFactory,
    *,
    value_type: tff.Type,
    weight_type: tff.Type,
) -> tff.templates.AggregationProcess:
  """Creates a weighted aggregation process from any factory.

  Args:
    factory: Weighted or unweighted. Where it is not an `AccountedFactory`, all
      clients weigh the same.
    value_type: Type of a client's update.
    weight_type: Type of its weight, which only an `AccountedFactory` gets.

  Returns:
    (<S@SERVER, {V}@CLIENTS, {W}@CLIENTS> -> <S@SERVER, V@SERVER, M@SERVER>);
    the factory's own process if it is an `AccountedFactory`.
  """
  if isinstance(factory, AccountedFactory):
    return factory.create(value_type, weight_type)
  if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
    factory = tff.aggregators.as_weighted_aggregator(factory)
  inner = factory.create(value_type, tff.TensorType(np.float32))
  return _without_guarantee(inner, weight_type)


def weigh_equally(values: tff.Value) -> tff.Value:
  """Returns a weight of 1 for each client, while tracing."""
  weigh = tff.tensorflow.computation(
      lambda unused_value: tf.constant(1.0), values.type_signature.member
  )
  return tff.federated_map(weigh, values)


def _state_without_guarantee(inner_state: clipping_lib.Nest) -> State:
  """The state of a process that adds no noise."""
  # The ledger charges an infinite epsilon for it.
  event = dp_accounting.GaussianDpEvent(0.0).to_named_tuple()
  # The key is never drawn from; the counter counts rounds.
  query_state = queries.QueryState.initial(
      l2_norm_clip=float('inf'), noise_multiplier=0.0
  )
  return State(
      query_state, tf.nest.map_structure(tf.constant, event), inner_state
  )


def _without_guarantee(
    inner: tff.templates.AggregationProcess, weight_type: tff.Type
) -> tff.templates.AggregationProcess:
  """Adds the state of a query without a guarantee to a process."""
  _, value_type, _ = inner.next.type_signature.parameter

  add_query_state = tff.tensorflow.computation(
      _state_without_guarantee, inner.initialize.type_signature.result.member
  )
  state_type = add_query_state.type_signature.result

  @tff.tensorflow.computation(
      state_type,
      state_type.inner,
      inner.next.type_signature.result.measurements.member,
  )
  def close_round(state, inner_state, measurements):
    query_state = state.query_state
    query_state = query_state._replace(counter=query_state.counter + 1)
    if not isinstance(measurements, dict):
      measurements = collections.OrderedDict(measurements=measurements)
    return (
        state._replace(query_state=query_state, inner=inner_state),
        collections.OrderedDict(
            dp_query_metrics=collections.OrderedDict(), not_private=measurements
        ),
    )

  @tff.federated_computation
  def init_fn():
    return tff.federated_map(add_query_state, inner.initialize())

  @tff.federated_computation(
      init_fn.type_signature.result,
      value_type,
      tff.FederatedType(weight_type, tff.CLIENTS),
  )
  def next_fn(state, value, weight):
    del weight
    # Client computation, and inner aggregation.
    output = inner.next(state.inner, value, weigh_equally(value))
    # Server computation.
    new_state, measurements = tff.federated_map(
        close_round, (state, output.state, output.measurements)
    )
    # Output preparation.
    return tff.templates.MeasuredProcessOutput(
        new_state, output.result, measurements
    )

  return tff.templates.AggregationProcess(init_fn, next_fn)
