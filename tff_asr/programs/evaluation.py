"""Greedy decoding of a data set and its word error rate, by speaker.

  B: batch size. S: output frames. V: vocabulary with blank.
"""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
from typing import Any, NamedTuple, Optional

from absl import logging
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import pipeline as pipeline_lib
from tff_asr.metrics import word_errors
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib


class Hypothesis(NamedTuple):
  """What was heard of one utterance."""

  client_id: str
  utterance_id: str
  reference: str
  text: str


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A decoded data set.

  Attributes:
    hypotheses: One an utterance, sorted by its id.
    loss: Mean CTC loss in nats of the utterances that have one (NaN if none).
  """

  hypotheses: list[Hypothesis]
  loss: float

  def errors_by_client(self) -> dict[str, word_errors.WordErrors]:
    """Word errors of each speaker, sorted by speaker."""
    errors = {}
    for hypothesis in self.hypotheses:
      errors[hypothesis.client_id] = errors.get(
          hypothesis.client_id, word_errors.WordErrors()
      ) + word_errors.count(hypothesis.reference, hypothesis.text)
    return dict(sorted(errors.items()))

  @property
  def errors(self) -> word_errors.WordErrors:
    """Word errors of all utterances."""
    return word_errors.total(self.errors_by_client().values())

  @property
  def word_error_rate(self) -> float:
    return self.errors.rate


class Evaluator:
  """Decodes a data set with given weights; the graph is traced once.

  Attributes:
    client_ids: The speakers of the data set.
  """

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      pipeline: pipeline_lib.Pipeline,
      client_data: tff.simulation.datasets.ClientData,
  ):
    """Creates an evaluator.

    Args:
      model: The model.
      pipeline: Features and batches; also the tokenizer.
      client_data: The speakers to decode; all their utterances.

    Raises:
      ValueError: The transcripts have a character that is not a token.
    """
    check_characters(client_data, pipeline)
    self._pipeline = pipeline
    self._client_data = client_data
    self.client_ids = frozenset(client_data.client_ids)

    @tf.function(
        input_signature=[
            weights_lib.tensor_specs(model.specs),
            pipeline_lib.batch_spec(),
        ],
        autograph=False,
    )
    def decode(weights, batch):
      logits, lengths = model.logits(
          weights, batch['features'], batch['feature_lengths']
      )
      losses = ctc.loss(
          logits,
          lengths,
          batch['labels'],
          batch['label_lengths'],
          kernel=model.loss_kernel,
      )
      usable = batch['example_weights'] > 0
      loss_sum = tf.reduce_sum(tf.where(usable, losses, 0.0))
      tokens = ctc.greedy_decode(logits, lengths)
      return tokens, loss_sum, tf.reduce_sum(batch['example_weights'])

    self._decode = decode

  def __call__(
      self,
      weights: weights_lib.Weights,
      *,
      progress: Optional[Callable[[int], Any]] = None,
  ) -> Evaluation:
    """Decodes everything.

    Args:
      weights: float32 tensors or arrays by name.
      progress: Called with the number of utterances just decoded.
    """
    weights = weights_lib.to_tensors(weights)
    hypotheses = []
    loss_sum = 0.0
    num_losses = 0.0
    for batch in self._batches():
      tokens, batch_loss_sum, batch_losses = self._decode(weights, batch)
      loss_sum += float(batch_loss_sum)
      num_losses += float(batch_losses)
      rows = zip(
          batch['client_id'].numpy(),
          batch['utterance_id'].numpy(),
          batch['transcript'].numpy(),
          tokens.to_list(),
          strict=True,
      )
      for client_id, utterance_id, reference, ids in rows:
        hypotheses.append(
            Hypothesis(
                client_id=client_id.decode(),
                utterance_id=utterance_id.decode(),
                reference=reference.decode(),
                text=self._pipeline.tokenizer.decode(ids).strip(),
            )
        )
      if progress is not None:
        progress(len(batch['utterance_id']))
    return Evaluation(
        hypotheses=sorted(hypotheses, key=lambda each: each.utterance_id),
        loss=loss_sum / num_losses if num_losses else float('nan'),
    )

  def _batches(self) -> Iterator[pipeline_lib.Batch]:
    examples = tf.data.Dataset.from_tensor_slices(
        sorted(self._client_data.client_ids)
    ).flat_map(self._client_data.serializable_dataset_fn)
    return iter(self._pipeline.evaluation_batches(examples))


def check_characters(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
) -> None:
  """Raises ValueError if a corpus has characters that are not tokens.

  Data that do not describe their corpus (not made by `data.index`) are checked
  as they are read.
  """
  corpus = getattr(client_data, 'corpus', None)
  if corpus is None:
    return
  missing = pipeline.tokenizer.missing(corpus.characters)
  if missing:
    raise ValueError(
        f'transcripts of {corpus.path} have characters that are not tokens: '
        f'{" ".join(map(repr, missing))}; add them to the tokenizer or '
        'normalise the transcripts.'
    )


def warn_of_heard_speakers(
    evaluator: Evaluator, client_ids: Iterable[str]
) -> None:
  """Says so if speakers that are evaluated train, too.

  Their word error rates would be mistaken for those of people whom the model
  never heard.
  """
  num_heard = len(evaluator.client_ids & frozenset(client_ids))
  if num_heard:
    logging.warning(
        '%d of the %d dev speakers train, too: word error rates are not of '
        'people whom the model never heard. Divide the corpus by speaker '
        '(--partition of data_tools).',
        num_heard,
        len(evaluator.client_ids),
    )
