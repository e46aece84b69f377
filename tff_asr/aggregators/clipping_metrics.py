"""Clipping metrics: a query's mean that tells what clipping did to the updates.

Clients send clipped records together with what clipping them measured
(`queries.Measured`). Both are summed, and only the records' sum reaches the
noise. So the measurements cost no second pass over the updates. They are exact,
and nobody may take them for private. Means over the clients whose update was
finite (NaN without any):

    clipped_delta_norm  norm of an update after clipping
    clipped_clients     share of updates of which some layer was changed
    clipped_layers      share of layers that were changed
    signal_norm         norm of the mean without noise
    layer_norm/NAME     norm of a layer before clipping
    clipped_layer_norm/NAME  and after it
    layer_clipped/NAME  share of updates whose layer was changed
"""

import collections
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_asr.privacy import queries


def build(
    query: queries.ClippingQuery, *, cohort_size: float
) -> tff.aggregators.UnweightedAggregationFactory:
  """Builds TFF's aggregator of a query, over the cohort size, and measured.

  Args:
    query: Clips records and noises their sum.
    cohort_size: What the sum is divided by.

  Returns:
    A factory whose measurements are `dp_query_metrics`, of the query, and `dp`,
    as listed above.
  """
  return tff.aggregators.DifferentiallyPrivateFactory(
      _MeasuredMeanQuery(query, cohort_size), _MeasuredSum(query, cohort_size)
  )


class _MeasuredRecord(NamedTuple):
  """A clipped record, or a sum of them.

  Attributes:
    record: As the query has it.
    measured: A `queries.Measured`.
  """

  record: Any
  measured: queries.Measured


class _MeanState(NamedTuple):
  """As the state of `tfp.NormalizedQuery`."""

  numerator_state: Any
  denominator: Any


class _MeasuredMeanQuery(tfp.SumAggregationDPQuery):
  """The query's noised sum over the cohort size; carries measurements along."""

  def __init__(self, query: queries.ClippingQuery, cohort_size: float):
    self._query = query
    self._cohort_size = cohort_size

  def initial_global_state(self):
    return _MeanState(
        self._query.initial_global_state(),
        tf.constant(self._cohort_size, tf.float32),
    )

  def derive_sample_params(self, global_state):
    return self._query.derive_sample_params(global_state.numerator_state)

  def initial_sample_state(self, template):
    by_layer = tf.zeros([len(self._query.layer_names)])
    return _MeasuredRecord(
        self._query.initial_sample_state(template),
        queries.Measured(
            num_finite=tf.constant(0.0),
            num_clipped=tf.constant(0.0),
            norm=tf.constant(0.0),
            clipped_norm=tf.constant(0.0),
            layer_norms=by_layer,
            clipped_layer_norms=by_layer,
            layers_clipped=by_layer,
        ),
    )

  def preprocess_record(self, params, record):
    return _MeasuredRecord(*self._query.clip(params, record))

  def get_noised_result(self, sample_state, global_state):
    total, numerator_state, event = self._query.get_noised_result(
        sample_state.record, global_state.numerator_state
    )
    mean = tf.nest.map_structure(
        lambda layer: layer / global_state.denominator, total
    )
    return mean, global_state._replace(numerator_state=numerator_state), event

  def derive_metrics(self, global_state):
    return self._query.derive_metrics(global_state.numerator_state)


class _MeasuredSum(tff.aggregators.UnweightedAggregationFactory):
  """TFF's sum of measured records, with the metrics as measurements."""

  def __init__(self, query: queries.ClippingQuery, cohort_size: float):
    self._query = query
    self._cohort_size = cohort_size

  def create(
      self, value_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    inner = tff.aggregators.SumFactory().create(value_type)

    @tff.tensorflow.computation(value_type)
    def report(total):
      layers = tf.nest.flatten(self._query.summed(total.record))
      count = total.measured.num_finite
      mean = tf.nest.map_structure(lambda value: value / count, total.measured)
      return collections.OrderedDict(
          clipped_clients=mean.num_clipped,
          clipped_delta_norm=mean.clipped_norm,
          clipped_layer_norm=self._by_name(mean.clipped_layer_norms),
          clipped_layers=tf.reduce_mean(mean.layers_clipped),
          layer_clipped=self._by_name(mean.layers_clipped),
          layer_norm=self._by_name(mean.layer_norms),
          signal_norm=tf.linalg.global_norm(layers) / self._cohort_size,
      )

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

  def _by_name(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
    """A vector over layers as numbers by the layers' names."""
    return collections.OrderedDict(
        (name, values[place])
        for place, name in enumerate(self._query.layer_names)
    )
