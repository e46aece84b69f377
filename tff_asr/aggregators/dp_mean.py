"""The differentially private mean of client updates.

Type: (<S@SERVER, {V}@CLIENTS, {W}@CLIENTS> -> <S@SERVER, V@SERVER, M@SERVER>).
The query's noised sum is divided by the public expected cohort size, never by
the clients that came (whose number is private under Poisson sampling); the
weights W are ignored, since weights that depend on data would change the
sensitivity. Everything federated is TFF's `DifferentiallyPrivateFactory`.

Measurements M, of the round that the state was for:

    dp_query_metrics  the query's, of settings and noised values: may be shown
    noise_norm        z C sqrt(D) / cohort size, for D noised elements: the root
                      mean square of the norm of the noise on the mean
    not_private       what clipping did (`measured_sum`): exact, not private
"""

import collections
import math
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp
import tree

from tff_asr import checks
from tff_asr.aggregators import measured_sum
from tff_asr.privacy import measured_query
from tff_asr.privacy import queries


def build(
    *, query: tfp.SumAggregationDPQuery, cohort_size: float
) -> tff.aggregators.WeightedAggregationFactory:
  """Builds the aggregator.

  Args:
    query: Clips records and noises their sum. A `queries.PerLayerClipSumQuery`
      is measured; of other queries `not_private` is empty and there is no
      `noise_norm`.
    cohort_size: Clients expected in a round; the divisor.

  Returns:
    A factory whose processes ignore their weights. With no client at all the
    result is the noise alone.

  Raises:
    ValueError: cohort_size is not positive.
  """
  checks.positive(cohort_size=cohort_size)
  return _DpMean(query, float(cohort_size))


def set_noise_key(aggregator_state: Any, key: Any) -> Any:
  """Returns the aggregator's state with the query's key set.

  Args:
    aggregator_state: State of a process made by `build` around a
      `queries.PerLayerClipSumQuery`.
    key: int32 [4]; see `queries.set_noise_key`.
  """
  mean_state = aggregator_state.query_state
  keyed = queries.set_noise_key(mean_state.numerator_state, key)
  return aggregator_state._replace(
      query_state=mean_state._replace(numerator_state=keyed)
  )


def check_shapes(value_type: tff.Type) -> None:
  """Checks that the type of updates leaves no dimension to the client.

  Then TFF's types refuse an update of another shape before it is summed. With
  an open one, an update could be added to others by broadcasting, which
  multiplies what one client can move.

  Raises:
    ValueError: A dimension is open; the message names the layer.
  """
  specs = tff.types.type_to_tf_tensor_specs(value_type)
  for path, spec in tree.flatten_with_path(specs):
    if not spec.shape.is_fully_defined():
      name = '/'.join(map(str, path)) or 'the update'
      raise ValueError(
          f'{name} has the shape {spec.shape}: all dimensions of clients\' '
          'updates must be given.'
      )


class _DpMean(tff.aggregators.WeightedAggregationFactory):
  """An unweighted aggregator behind the weighted interface."""

  def __init__(self, query: tfp.SumAggregationDPQuery, cohort_size: float):
    self._query = query
    self._cohort_size = cohort_size

  def create(
      self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    check_shapes(value_type)
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    inner = self._factory(specs).create(value_type)
    num_noised = 0
    if isinstance(self._query, queries.PerLayerClipSumQuery):
      num_noised = self._query.num_noised(specs)
    state_type = inner.initialize.type_signature.result

    # The state that a round starts with: that is what the round uses.
    @tff.tensorflow.computation(state_type.member.query_state)
    def describe(query_state):
      metrics = self._query.derive_metrics(query_state.numerator_state)
      described = collections.OrderedDict(dp_query_metrics=metrics)
      if num_noised and 'noise_stddev_on_sum' in metrics:
        described['noise_norm'] = metrics['noise_stddev_on_sum'] * (
            math.sqrt(num_noised) / self._cohort_size
        )
      return described

    @tff.tensorflow.computation(
        describe.type_signature.result,
        inner.next.type_signature.result.measurements.member.dp,
    )
    def merge(described, exact):
      return collections.OrderedDict(described, not_private=exact)

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
          merge,
          (
              tff.federated_map(describe, state.query_state),
              output.measurements.dp,
          ),
      )
      return tff.templates.MeasuredProcessOutput(
          output.state, output.result, measurements
      )

    return tff.templates.AggregationProcess(inner.initialize, next_fn)

  def _factory(
      self, specs: Any
  ) -> tff.aggregators.UnweightedAggregationFactory:
    """TFF's aggregator of the query, measured where it can be."""
    query, record_sum = self._query, None
    if isinstance(query, queries.PerLayerClipSumQuery):
      record_sum = measured_sum.build(
          query=query,
          layer_names=query.layer_names(specs),
          divisor=self._cohort_size,
      )
      query = measured_query.MeasuredQuery(query)
    return tff.aggregators.DifferentiallyPrivateFactory(
        tfp.NormalizedQuery(query, denominator=self._cohort_size), record_sum
    )
