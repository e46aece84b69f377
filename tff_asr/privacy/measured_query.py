"""A query that carries measurements of clipping along with its records.

Records of the query around are clipped records with what clipping them
measured (`queries.Measured`); both are summed; only the clipped records' sum
reaches the noise. So the measurements cost no second pass over the updates.
They are exact: whoever sums the records may read them, and nobody may take them
for private.
"""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_privacy as tfp

from tff_asr.privacy import queries


class MeasuredRecord(NamedTuple):
  """A clipped record, or a sum of them.

  Attributes:
    record: As the inner query has it.
    measured: A `queries.Measured`.
  """

  record: Any
  measured: queries.Measured


class MeasuredQuery(tfp.SumAggregationDPQuery):
  """Does what the inner query does; state, event and metrics are its own."""

  def __init__(self, query: queries.PerLayerClipSumQuery):
    self._query = query

  def initial_global_state(self):
    return self._query.initial_global_state()

  def derive_sample_params(self, global_state):
    return self._query.derive_sample_params(global_state)

  def initial_sample_state(self, template):
    num_layers = len(self._query.layer_names(template))
    return MeasuredRecord(
        self._query.initial_sample_state(template),
        queries.Measured(
            num_finite=tf.constant(0.0),
            num_clipped=tf.constant(0.0),
            norm=tf.constant(0.0),
            clipped_norm=tf.constant(0.0),
            layer_norms=tf.zeros([num_layers]),
            clipped_layer_norms=tf.zeros([num_layers]),
            layers_clipped=tf.zeros([num_layers]),
        ),
    )

  def preprocess_record(self, params, record):
    return MeasuredRecord(*self._query.clip(params, record))

  def get_noised_result(self, sample_state, global_state):
    return self._query.get_noised_result(sample_state.record, global_state)

  def derive_metrics(self, global_state):
    return self._query.derive_metrics(global_state)
