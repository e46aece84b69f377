"""The differentially private mean of client updates, with clipping metrics.

Type: (<S@SERVER, {V}@CLIENTS, {W}@CLIENTS> -> <S@SERVER, V@SERVER, M@SERVER>).
The noised sum is divided by the public expected cohort size, never by the
number of clients that came, which is private under Poisson sampling.

    >>> import functools
    >>> factory = build(
    ...     build_query=functools.partial(
    ...         queries.PerLayerClipSumQuery,
    ...         l2_norm_clip=1.0,
    ...         noise_multiplier=0.5,
    ...     ),
    ...     cohort_size=100,
    ... )
    >>> update = tff.TensorType(np.float32, [3])
    >>> process = factory.create(update, tff.TensorType(np.float32))
    >>> print(process.next.type_signature.result.result)
    float32[3]@SERVER

`build`: the server adds the noise, in `get_noised_result` of the query
(`privacy.queries`). `build_distributed`: clients do (`privacy.distributed`),
and the server sees a secure sum. docs/metrics.md lists the measurements M.
"""

import collections
from collections.abc import Callable, Sequence
import math
from typing import Any, Optional

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_asr import checks
from tff_asr import sequential
from tff_asr.aggregators import aggregation
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import distributed
from tff_asr.privacy import grid_clipper
from tff_asr.privacy import queries


def build(
    *, build_query: queries.BuildQuery, cohort_size: float
) -> aggregation.AccountedFactory:
  """Builds the aggregator in which the server adds the noise.

  The weights W are ignored, because weights that depend on data would change
  the sensitivity.

  Args:
    build_query: Builds, from the specs of an update, the query that clips
      updates and noises their sum: `queries.PerLayerClipSumQuery` with its
      settings bound, for example. Called once the updates' type is known.
    cohort_size: Clients expected in a round; the divisor.

  Returns:
    A factory. With no client at all the result is the noise alone. Its `create`
    raises ValueError for an update with an open dimension, and as `build_query`
    does.

  Raises:
    ValueError: cohort_size is not positive.
  """
  checks.positive(cohort_size=cohort_size)
  return _DpMean(build_query, float(cohort_size))


def build_unweighted(
    *, build_query: queries.BuildQuery, cohort_size: float
) -> tff.aggregators.UnweightedAggregationFactory:
  """Builds the same mean for algorithms that take no weights.

  They are `tff.learning.algorithms.build_unweighted_fed_avg` and others; see
  `build` for the arguments. Its state is that of `build`.
  """
  return _UnweightedMean(
      build(build_query=build_query, cohort_size=cohort_size)
  )


def build_distributed(
    *,
    build_query: Callable[
        [clipping_lib.Nest], distributed.DistributedSumQuery
    ],
    cohort_size: int,
) -> aggregation.AccountedFactory:
  """Builds the aggregator in which clients add the noise; see `distributed`.

  The number of a client, int64, takes the place of its weight: its simulated
  randomness follows that number. A client without data has no number and fails,
  since two such clients would draw the same noise. A cohort may not contain a
  client twice, either. Clients may drop out; the divisor remains cohort_size.

  The server gets the modular sum, the number of clients in it, and in a
  simulation the metrics of clipping, except the norm of the mean without noise.
  A deployment omits the `not_private` metrics, which are summed without
  protection.

  Args:
    build_query: From the specs of an update; all other settings bound.
    cohort_size: Clients of each round.
  """
  return _DistributedMean(build_query, cohort_size)


class _DpMean(aggregation.AccountedFactory):
  """See `build`."""

  def __init__(self, build_query: queries.BuildQuery, cohort_size: float):
    self.build_query = build_query
    self._cohort_size = cohort_size

  def create(
      self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    query = self.build_query(_record_specs(value_type))

    # Weights that depend on data would change the sensitivity.
    def clip(params, value, unused_weight):
      return query.clip(params, value)

    def release(query_state, total, measurements):
      # Layer by layer: squares of all layers at once would take much memory.
      squares = sequential.sequential_map(
          grid_clipper.squared_norm, tf.nest.flatten(query.updates_of(total))
      )
      unit = query.sum_unit(query_state) / self._cohort_size
      # Computed from the sum without noise.
      measurements['not_private']['signal_norm'] = tf.cast(
          tf.sqrt(tf.add_n(squares)) * unit, tf.float32
      )
      return query.get_noised_result(total, query_state)

    return _build_process(
        query,
        value_type=value_type,
        weight_type=weight_type,
        cohort_size=self._cohort_size,
        client_work=clip,
        aggregate=tff.federated_sum,
        release=release,
    )


class _UnweightedMean(tff.aggregators.UnweightedAggregationFactory):
  """See `build_unweighted`."""

  def __init__(self, weighted: aggregation.AccountedFactory):
    self._weighted = weighted

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    inner = self._weighted.create(value_type, tff.TensorType(np.float32))

    @tff.federated_computation(
        inner.initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      return inner.next(state, value, aggregation.weigh_equally(value))

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


class _DistributedMean(aggregation.AccountedFactory):
  """See `build_distributed`."""

  def __init__(
      self,
      build_query: Callable[
          [clipping_lib.Nest], distributed.DistributedSumQuery
      ],
      cohort_size: int,
  ):
    self._build_query = build_query
    self._cohort_size = cohort_size

  def create(
      self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    specs = _record_specs(value_type)
    if weight_type != tff.TensorType(np.int64):
      raise TypeError(
          'Distributed noise needs the number of each client, int64, in place '
          f'of its weight, found {weight_type}.'
      )
    query = self._build_query(specs)
    if query.num_clients != self._cohort_size:
      raise ValueError(
          f'The query is for {query.num_clients} clients a round, the mean for '
          f'{self._cohort_size}: set both by COHORT_SIZE.'
      )

    def encode(params, value, number):
      check = tf.debugging.assert_non_negative(
          number,
          'A client without data has no number, and its noise would be that of '
          'the next one: leave it out of the client data.',
      )
      # The graph runs only ops that the result depends on.
      with tf.control_dependencies([check]):
        number = tf.identity(number)
      sent, stats = query.encode(params, value, client=number)
      # The 1 counts the client, plainly: fewer than m of them release nothing.
      return (sent, tf.constant(1)), stats

    def aggregate(sent):
      return (
          tff.backends.mapreduce.federated_secure_modular_sum(
              sent[0], query.modulus
          ),
          # Not private: the server knows who takes part.
          tff.federated_sum(sent[1]),
      )

    def release(query_state, total, unused_measurements):
      noised, new_state = query.decode(
          total[0], num_clients=total[1], global_state=query_state
      )
      return noised, new_state, query.event(new_state)

    return _build_process(
        query,
        value_type=value_type,
        weight_type=weight_type,
        cohort_size=self._cohort_size,
        client_work=encode,
        aggregate=aggregate,
        release=release,
    )


def _build_process(
    query: queries.PerLayerClipSumQuery | distributed.DistributedSumQuery,
    *,
    value_type: tff.Type,
    weight_type: tff.Type,
    cohort_size: float,
    client_work: Callable[..., tuple[Any, grid_clipper.ClippingStats]],
    aggregate: Callable[[tff.Value], tff.Value],
    release: Callable[..., tuple[Any, queries.QueryState, Any]],
) -> tff.templates.AggregationProcess:
  """Builds the process from what differs between the means.

  Args:
    query: Has state, parameters of clients and metrics.
    value_type: Type of a client's update.
    weight_type: Type of its weight.
    cohort_size: The divisor.
    client_work: Maps (parameters, update, weight) to what a client sends and
      the effect of clipping, in TensorFlow.
    aggregate: Sums what clients send, as a federated value.
    release: Maps (query's state, sum, measurements) to noised sum, new state
      and event, in TensorFlow; may add measurements.
  """

  @tff.tensorflow.computation
  def initial_state():
    query_state = query.initial_global_state()
    return _state(query_state, query.event(query_state))

  state_type = initial_state.type_signature.result

  @tff.tensorflow.computation(state_type)
  def sample_params(state):
    return query.derive_sample_params(state.query_state)

  client_computation = tff.tensorflow.computation(
      client_work,
      [sample_params.type_signature.result, value_type, weight_type],
  )

  @tff.federated_computation
  def init_fn():
    return tff.federated_eval(initial_state, tff.SERVER)

  @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
  )
  def next_fn(state, value, weight):
    # Client computation.
    params = tff.federated_broadcast(tff.federated_map(sample_params, state))
    sent, stats = tff.federated_map(client_computation, (params, value, weight))
    # Inner aggregations.
    # Zipped, as the type of the server's argument follows from the sums.
    sums = tff.federated_zip((state, aggregate(sent), tff.federated_sum(stats)))

    @tff.tensorflow.computation(sums.type_signature.member)
    def server_computation(arguments):
      state, total, stats = arguments
      # A round uses the state that it starts with, so describe that one.
      measurements = _measurements(
          query, state.query_state, cohort_size=cohort_size, stats=stats
      )
      noised, query_state, event = release(
          state.query_state, total, measurements
      )
      mean = queries.divide_by_cohort_size(noised, cohort_size)
      return _state(query_state, event, like=state), mean, measurements

    # Server computation.
    new_state, mean, measurements = tff.federated_map(server_computation, sums)
    # Output preparation.
    return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

  return tff.templates.AggregationProcess(init_fn, next_fn)


def _state(
    query_state: queries.QueryState,
    event: dp_accounting.DpEvent,
    *,
    like: Optional[aggregation.State] = None,
) -> aggregation.State:
  """The process's state, of the same type as another one."""
  dp_event = tf.nest.map_structure(
      tf.convert_to_tensor, event.to_named_tuple()
  )
  if like is not None:
    # Each `to_named_tuple` makes a new class, which is a part of TFF's type.
    dp_event = type(like.dp_event)(*dp_event)
  return aggregation.State(query_state, dp_event)


def _measurements(
    query: queries.PerLayerClipSumQuery | distributed.DistributedSumQuery,
    query_state: queries.QueryState,
    *,
    cohort_size: float,
    stats: grid_clipper.ClippingStats,
) -> collections.OrderedDict[str, clipping_lib.Nest]:
  """Measurements of a round that starts from a state."""
  metrics = query.derive_metrics(query_state)
  found = collections.OrderedDict(dp_query_metrics=metrics)
  # For correlated noise, only the stddev of fresh draws is in the metrics.
  if 'noise_stddev_on_sum' in metrics:
    found['noise_norm'] = metrics['noise_stddev_on_sum'] * (
        math.sqrt(query.num_noised) / cohort_size
    )
  found['not_private'] = _clipping_metrics(
      stats, layer_names=query.layer_names
  )
  return found


def _clipping_metrics(
    stats: grid_clipper.ClippingStats, *, layer_names: Sequence[str]
) -> collections.OrderedDict[str, clipping_lib.Nest]:
  """Returns metrics of clipping: means over clients with a finite update.

  Args:
    stats: Sum over the round's clients.
    layer_names: H of them.
  """
  # NaN if no update is finite.
  mean = tf.nest.map_structure(lambda value: value / stats.num_finite, stats)

  def by_name(values: tf.Tensor) -> collections.OrderedDict[str, tf.Tensor]:
    return collections.OrderedDict(
        (name, values[place]) for place, name in enumerate(layer_names)
    )

  return collections.OrderedDict(
      clipped_clients=mean.num_clipped,
      clipped_delta_norm=mean.clipped_norm,
      clipped_layer_norm=by_name(mean.clipped_layer_norms),
      clipped_layers=tf.reduce_mean(mean.layers_clipped),
      layer_clipped=by_name(mean.layers_clipped),
      layer_norm=by_name(mean.layer_norms),
  )


def _record_specs(value_type: tff.Type) -> clipping_lib.Nest:
  """Specs of updates; ValueError if the client may choose a dimension.

  Without one, TFF's types refuse an update of another shape before it is
  summed. With one, an update could be added to others by broadcasting, which
  multiplies what one client can move.
  """
  specs = tff.types.type_to_tf_tensor_specs(value_type)
  for path, spec in tree.flatten_with_path(specs):
    if not spec.shape.is_fully_defined():
      name = '/'.join(map(str, path)) or 'the update'
      raise ValueError(
          f'{name} has the shape {spec.shape}: all dimensions of clients\' '
          'updates must be given.'
      )
  return specs
