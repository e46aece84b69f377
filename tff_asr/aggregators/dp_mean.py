"""The differentially private mean of client updates, with clipping metrics.

Type: (<S@SERVER, {V}@CLIENTS, {W}@CLIENTS> -> <S@SERVER, V@SERVER, M@SERVER>).
The query's noised sum is divided by the public expected cohort size, never by
the number of clients that came, which is private under Poisson sampling. The
weights W are ignored, because weights that depend on data would change the
sensitivity. TFF's `DifferentiallyPrivateFactory` does everything federated.

Clients send clipped records together with measurements of the clipping
(`queries.Measured`). Both are summed, and only the records' sum gets noise. So
the measurements need no second pass over the updates.

Measurements M of the round:

    dp_query_metrics  the query's own, of settings and noised values; public
    noise_norm        z C sqrt(D) / cohort size, for D noised elements: the root
                      mean square of the norm of the noise on the mean (not for
                      noise that is correlated over rounds)
    not_private       clipping metrics, exact and not private: means over the
                      clients whose update was finite (NaN without any)
      clipped_delta_norm  norm of an update after clipping
      clipped_clients     share of updates of which some layer was changed
      clipped_layers      share of layers that were changed
      signal_norm         norm of the mean without noise
      layer_norm/NAME     norm of a layer before clipping
      clipped_layer_norm/NAME  and after it
      layer_clipped/NAME  share of updates whose layer was changed
"""

import collections
from collections.abc import Sequence
import math
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp
import tree

from tff_asr import checks
from tff_asr import sequential
from tff_asr.aggregators import aggregation
from tff_asr.privacy import queries


def build(
    *, build_query: queries.BuildQuery, cohort_size: float
) -> aggregation.AccountedFactory:
  """Builds the aggregator.

  Args:
    build_query: Builds, from the specs of an update, the query that clips
      updates and noises their sum: `queries.PerLayerClipSumQuery` with its
      settings bound, for example. Called once the updates' type is known.
    cohort_size: Clients expected in a round; the divisor.

  Returns:
    A factory whose processes ignore their weights. With no client at all the
    result is the noise alone. Its `create` raises ValueError for an update with
    an open dimension, and as `build_query` does.

  Raises:
    ValueError: cohort_size is not positive.
  """
  checks.positive(cohort_size=cohort_size)
  return _DpMean(build_query, float(cohort_size))


class _DpMean(aggregation.AccountedFactory):
  """An unweighted aggregator behind the weighted interface."""

  def __init__(self, build_query: queries.BuildQuery, cohort_size: float):
    self._build_query = build_query
    self._cohort_size = cohort_size

  def create(
      self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    check_shapes(specs)
    query = self._build_query(specs)
    inner = tff.aggregators.DifferentiallyPrivateFactory(
        queries.MeanQuery(_MeasuredQuery(query), self._cohort_size),
        _MeasuredSum(query),
    ).create(value_type)
    state_type = inner.initialize.type_signature.result

    # A round uses the state that it starts with, so measure that one.
    @tff.tensorflow.computation(
        state_type.member.query_state,
        inner.next.type_signature.result.measurements.member.dp,
    )
    def describe(query_state, exact):
      metrics = query.derive_metrics(query_state.numerator_state)
      described = collections.OrderedDict(dp_query_metrics=metrics)
      if 'noise_stddev_on_sum' in metrics:
        described['noise_norm'] = metrics['noise_stddev_on_sum'] * (
            math.sqrt(query.num_noised) / self._cohort_size
        )
      exact['signal_norm'] *= tf.cast(
          query.grid(query_state.numerator_state) / self._cohort_size,
          tf.float32,
      )
      described['not_private'] = exact
      return described

    @tff.federated_computation(
        state_type,
        tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      del weight
      # Inner aggregations.
      output = inner.next(state, value)
      # Output preparation.
      measurements = tff.federated_map(
          describe, (state.query_state, output.measurements.dp)
      )
      return tff.templates.MeasuredProcessOutput(
          output.state, output.result, measurements
      )

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


class _MeasuredRecord(NamedTuple):
  """A clipped record with its measurements, or a sum of them."""

  record: Any
  measured: queries.Measured


class _MeasuredQuery(tfp.SumAggregationDPQuery):
  """A query whose records carry what clipping them measured."""

  def __init__(self, query: queries.ClippingQuery):
    self._query = query

  def initial_global_state(self):
    return self._query.initial_global_state()

  def derive_sample_params(self, global_state):
    return self._query.derive_sample_params(global_state)

  def initial_sample_state(self, template):
    by_layer = tf.zeros([len(self._query.layer_names)])
    return _MeasuredRecord(
        self._query.initial_sample_state(template),
        queries.Measured(*[tf.constant(0.0)] * 4, *[by_layer] * 3),
    )

  def preprocess_record(self, params, record):
    return _MeasuredRecord(*self._query.clip(params, record))

  def get_noised_result(self, sample_state, global_state):
    return self._query.get_noised_result(sample_state.record, global_state)

  def derive_metrics(self, global_state):
    return self._query.derive_metrics(global_state)


class _MeasuredSum(tff.aggregators.UnweightedAggregationFactory):
  """TFF's sum of measured records, with clipping metrics as measurements."""

  def __init__(self, query: queries.ClippingQuery):
    self._query = query

  def create(
      self, value_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    inner = tff.aggregators.SumFactory().create(value_type)

    @tff.tensorflow.computation(value_type)
    def report(total):
      squares = sequential.sequential_map(
          queries.squared_norm,
          tf.nest.flatten(self._query.summed(total.record)),
      )
      metrics = clipping_metrics(
          total.measured, layer_names=self._query.layer_names
      )
      # In units of the query's grid, which only its state tells.
      metrics['signal_norm'] = tf.cast(
          tf.sqrt(tf.add_n(squares)), tf.float32
      )
      return metrics

    @tff.federated_computation(
        inner.initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      # Inner aggregation.
      output = inner.next(state, value)
      # Output preparation.
      measurements = tff.federated_map(report, output.result)
      return tff.templates.MeasuredProcessOutput(
          output.state, output.result, measurements
      )

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


def clipping_metrics(
    total: queries.Measured, *, layer_names: Sequence[str]
) -> dict[str, Any]:
  """Metrics of clipping, of the sum of what clients measured.

  Args:
    total: Over the round's clients.
    layer_names: H of them.
  """
  count = total.num_finite
  mean = tf.nest.map_structure(lambda value: value / count, total)

  def by_name(values: tf.Tensor) -> dict[str, tf.Tensor]:
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


def check_shapes(specs: Any) -> None:
  """Raises ValueError if updates have a dimension that is left to the client.

  Without one, TFF's types refuse an update of another shape before it is
  summed. With one, an update could be added to others by broadcasting, which
  multiplies what one client can move.
  """
  for path, spec in tree.flatten_with_path(specs):
    if not spec.shape.is_fully_defined():
      name = '/'.join(map(str, path)) or 'the update'
      raise ValueError(
          f'{name} has the shape {spec.shape}: all dimensions of clients\' '
          'updates must be given.'
      )
