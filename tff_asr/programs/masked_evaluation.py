"""Quality of the predictions of masked speech in a data set."""

from typing import NamedTuple

import tensorflow as tf

from tff_asr.data import client_data as client_data_lib
from tff_asr.data import examples as examples_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.models import best_rq
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys


class MaskedEvaluation(NamedTuple):
  """Figures of the masked frames of a data set.

  Attributes:
    loss: Mean over utterances of their mean cross-entropy, in nats.
    accuracy: Share of frames whose best label is the right one.
    most_frequent: Share of the most frequent label: the accuracy of a model
      that predicts one label always, at best.
    label_perplexity: How many labels are used, as if evenly (`quantizer`);
      frozen: a property of the data.
    prediction_perplexity: The same of the best labels; 1 if the model predicts
      one label always.
  """

  loss: float
  accuracy: float
  most_frequent: float
  label_perplexity: float
  prediction_perplexity: float


class MaskedEvaluator:
  """Predicts a data set under masks that are always the same ones."""

  def __init__(
      self,
      *,
      model: best_rq.BestRqModel,
      pipeline: pipeline_lib.Pipeline,
      client_data: client_data_lib.SpeechClientData,
  ):
    """Creates an evaluator.

    Args:
      model: The model.
      pipeline: Gives features and batches.
      client_data: The speakers; all their utterances within the limit.
    """
    examples = examples_lib.Examples(
        client_data, pipeline=pipeline, batch_size=1, key=keys.from_seed(0)
    )
    self._examples = examples
    self._numbers = list(range(examples.sampling.population))

    @tf.function(
        input_signature=[
            weights_lib.tensor_specs(model.specs),
            pipeline_lib.batch_spec(),
        ],
        autograph=False,
    )
    def evaluate(weights, batch):
      numbers = tf.cast(
          tf.strings.to_hash_bucket_fast(batch['utterance_id'], 2**31 - 1),
          tf.int32,
      )
      masked = model.mask(
          batch['features'],
          batch['feature_lengths'],
          tf.stack([numbers, tf.zeros_like(numbers)], axis=1),
      )
      logits = model.logits(weights, masked)
      losses = best_rq.loss(logits, masked)
      return tf.reduce_sum(losses), best_rq.count(logits, masked)

    self._evaluate = evaluate

  def __call__(self, weights: weights_lib.Weights) -> MaskedEvaluation:
    """Evaluates weights, tensors or arrays by name."""
    weights = weights_lib.to_tensors(weights)
    loss_sum, counts, num_utterances = 0.0, None, 0
    for batch in self._examples.batches(self._numbers):
      loss, found = self._evaluate(weights, batch)
      loss_sum += float(loss)
      num_utterances += len(batch['utterance_id'])
      counts = found if counts is None else tf.nest.map_structure(
          tf.add, counts, found
      )
    if counts is None or not float(counts.masked):
      raise ValueError(
          'the dev set has no masked frame to predict: give it more speech.'
      )
    return MaskedEvaluation(
        loss=loss_sum / num_utterances,
        accuracy=float(counts.correct / counts.masked),
        most_frequent=float(tf.reduce_max(counts.labels) / counts.masked),
        label_perplexity=float(quantizer_lib.perplexity(counts.labels)),
        prediction_perplexity=float(
            quantizer_lib.perplexity(counts.predictions)
        ),
    )
