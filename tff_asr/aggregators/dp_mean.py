"""The differentially private mean of client updates.

Type: (<S@SERVER, {V}@CLIENTS, {W}@CLIENTS> -> <S@SERVER, V@SERVER, M@SERVER>).
The query's noised sum is divided by the public expected cohort size, never by
the clients that came (whose number is private under Poisson sampling); the
weights W are ignored, since weights that depend on data would change the
sensitivity. Everything federated is TFF's `DifferentiallyPrivateFactory`.
"""

from typing import Any

import tensorflow_federated as tff
import tensorflow_privacy as tfp
import tree

from tff_asr import checks
from tff_asr.privacy import queries


def build(
    *, query: tfp.SumAggregationDPQuery, cohort_size: float
) -> tff.aggregators.WeightedAggregationFactory:
  """Builds the aggregator.

  Args:
    query: Clips records and noises their sum.
    cohort_size: Clients expected in a round; the divisor.

  Returns:
    A factory whose processes ignore their weights. With no client at all the
    result is the noise alone.

  Raises:
    ValueError: cohort_size is not positive.
  """
  checks.positive(cohort_size=cohort_size)
  mean_query = tfp.NormalizedQuery(query, denominator=float(cohort_size))
  return _IgnoreWeights(
      tff.aggregators.DifferentiallyPrivateFactory(mean_query)
  )


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


class _IgnoreWeights(tff.aggregators.WeightedAggregationFactory):
  """An unweighted aggregator behind the weighted interface."""

  def __init__(self, factory: tff.aggregators.UnweightedAggregationFactory):
    self._factory = factory

  def create(
      self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    check_shapes(value_type)
    inner = self._factory.create(value_type)

    @tff.federated_computation(
        inner.initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      del weight
      return inner.next(state, value)

    return tff.templates.AggregationProcess(inner.initialize, next_fn)
