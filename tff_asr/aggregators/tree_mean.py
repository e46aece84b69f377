"""The mean of client updates with tree noise, for DP-FTRL.

Type: as `dp_mean`. A tree covers one pass over the clients, of
population // cohort_size rounds; cohorts must come from
`cohorts.shuffled_passes` with the same cohort size, so that a client is in a
tree once at most. See `privacy.tree_query`.
"""

from absl import logging
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.aggregators import dp_mean
from tff_asr.privacy import accounting
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import tree_query


def build(
    *,
    client_data: tff.simulation.datasets.ClientData,
    cohort_size: int,
    l2_norm_clip: float,
    noise_multiplier: float,
    clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
) -> tff.aggregators.WeightedAggregationFactory:
  """Builds the aggregator.

  The state holds as many copies of the model as the tree has levels, which is
  logged when a process is created.

  Args:
    client_data: The private clients; only their number is used.
    cohort_size: Clients in each round; the divisor of the mean.
    l2_norm_clip: See `tree_query.TreeSumQuery`.
    noise_multiplier: Noise of each node of the tree, over the clip.
    clipping: How the clip is divided over layers.

  Raises:
    ValueError: An argument is out of its range.
  """
  sampling = accounting.Sampling(
      kind='pass',
      cohort_size=cohort_size,
      population=len(client_data.client_ids),
  )
  checks.positive(l2_norm_clip=l2_norm_clip, noise_multiplier=noise_multiplier)
  return _TreeMean(
      sampling=sampling,
      l2_norm_clip=l2_norm_clip,
      noise_multiplier=noise_multiplier,
      clipping=clipping,
  )


class _TreeMean(tff.aggregators.WeightedAggregationFactory):
  """Makes the query when the type of the updates is known."""

  def __init__(self, *, sampling: accounting.Sampling, **clip_and_noise):
    self._sampling = sampling
    self._clip_and_noise = clip_and_noise

  def create(
      self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    dp_mean.check_shapes(value_type)
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    query = tree_query.TreeSumQuery(
        rounds_per_tree=self._sampling.rounds_per_pass,
        record_specs=specs,
        **self._clip_and_noise,
    )
    logging.warning(
        'DP-FTRL: trees of %d rounds; the state holds %d more copies of the '
        'model for their noise.',
        self._sampling.rounds_per_pass, query.num_model_copies,
    )
    inner = dp_mean.build(
        query=query, cohort_size=self._sampling.cohort_size
    )
    return inner.create(value_type, weight_type)
