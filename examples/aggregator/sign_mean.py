"""Your own aggregator: the mean of the signs of updates."""

import tensorflow as tf
import tensorflow_federated as tff


class SignMean(tff.aggregators.UnweightedAggregationFactory):
  """Averages sign(update) * scale (signSGD, https://arxiv.org/abs/1802.04434)."""

  def __init__(self, scale: float):
    self._scale = scale

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    mean = tff.aggregators.UnweightedMeanFactory().create(value_type)

    @tff.tensorflow.computation(value_type)
    def signs(update):
      return tf.nest.map_structure(lambda x: self._scale * tf.sign(x), update)

    @tff.federated_computation(
        mean.initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, updates):
      return mean.next(state, tff.federated_map(signs, updates))

    return tff.templates.AggregationProcess(mean.initialize, next_fn)
