"""A sum of measured records (`privacy.measured_query`), and what it tells.

Type: (<(), {<record=R, measured=M>}@CLIENTS>
       -> <(), <record=R, measured=M>@SERVER, N@SERVER>).

N are means over the clients whose update was finite (NaN without any), of the
exact values: nothing in N is private.

    clipped_delta_norm  norm of an update after clipping
    clipped_clients     share of updates of which some layer was changed
    clipped_layers      share of layers that were changed
    signal_norm         norm of the sum over the divisor, without noise
    layer_norm/NAME     norm of a layer before clipping
    clipped_layer_norm/NAME  and after it
    layer_clipped/NAME  share of updates whose layer was changed
"""

import collections
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.privacy import queries


def build(
    *,
    query: queries.PerLayerClipSumQuery,
    layer_names: Sequence[str],
    divisor: float,
) -> tff.aggregators.UnweightedAggregationFactory:
  """Builds the aggregator of a `measured_query.MeasuredQuery`'s records.

  Args:
    query: The query within.
    layer_names: Names of its layers, in its order.
    divisor: What the sum is divided by later.
  """
  return _MeasuredSum(query, tuple(layer_names), divisor)


class _MeasuredSum(tff.aggregators.UnweightedAggregationFactory):
  """TFF's sum, with measurements."""

  def __init__(
      self,
      query: queries.PerLayerClipSumQuery,
      layer_names: tuple[str, ...],
      divisor: float,
  ):
    self._query = query
    self._layer_names = layer_names
    self._divisor = divisor

  def create(
      self, value_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    inner = tff.aggregators.SumFactory().create(value_type)

    @tff.tensorflow.computation(value_type)
    def report(total):
      measured = total.measured
      layers = tf.nest.flatten(self._query.summed(total.record))
      count = measured.num_finite
      share = measured.layers_clipped / count
      norms = measured.layer_norms / count
      clipped_norms = measured.clipped_layer_norms / count
      return collections.OrderedDict(
          clipped_clients=measured.num_clipped / count,
          clipped_delta_norm=measured.clipped_norm / count,
          clipped_layer_norm=self._by_name(clipped_norms),
          clipped_layers=tf.reduce_mean(share),
          layer_clipped=self._by_name(share),
          layer_norm=self._by_name(norms),
          signal_norm=tf.linalg.global_norm(layers) / self._divisor,
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
        (name, values[place]) for place, name in enumerate(self._layer_names)
    )
