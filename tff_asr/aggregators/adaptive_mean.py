"""The mean of client updates with clips that adapt, differentially private.

Type: as `dp_mean`. The clips are part of the state. See
`privacy.adaptive_query`.
"""

import tensorflow_federated as tff

from tff_asr.aggregators import dp_mean
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping as clipping_lib


def build(
    *,
    cohort_size: float,
    l2_norm_clip: float,
    noise_multiplier: float,
    clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
    adaptation: adaptive_query.Adaptation = adaptive_query.Adaptation(),
) -> tff.aggregators.WeightedAggregationFactory:
  """Builds the aggregator.

  Args:
    cohort_size: Clients expected in a round; the divisor of the mean.
    l2_norm_clip: C of the first round.
    noise_multiplier: z of a round in all, update and counts; 0 adapts without
      noise, and so without privacy.
    clipping: How the first C is divided over layers, which are those that
      adapt; by default one norm over all layers adapts.
    adaptation: How clips adapt.

  Returns:
    A factory; its `create` raises ValueError for what is out of its range.
  """
  return _AdaptiveMean(
      cohort_size=cohort_size,
      l2_norm_clip=l2_norm_clip,
      noise_multiplier=noise_multiplier,
      clipping=clipping,
      adaptation=adaptation,
  )


class _AdaptiveMean(tff.aggregators.WeightedAggregationFactory):
  """Makes the query when the type of the updates is known."""

  def __init__(self, *, cohort_size: float, **clip_and_noise):
    self._cohort_size = cohort_size
    self._clip_and_noise = clip_and_noise

  def create(
      self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    dp_mean.check_shapes(value_type)
    query = adaptive_query.AdaptiveClipSumQuery(
        record_specs=tff.types.type_to_tf_tensor_specs(value_type),
        cohort_size=self._cohort_size,
        **self._clip_and_noise,
    )
    inner = dp_mean.build(query=query, cohort_size=self._cohort_size)
    return inner.create(value_type, weight_type)
