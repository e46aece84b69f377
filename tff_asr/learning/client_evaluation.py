"""Word errors of one client, decoded greedily where the client's data are.

The graph function reads a client's utterances, decodes them with given weights
and returns counts alone: no text leaves it. Every utterance counts once, in any
execution context, as in `programs.evaluation`.
"""

from collections.abc import Callable
import dataclasses
from typing import NamedTuple, TypeVar

import tensorflow as tf

from tff_asr.data import pipeline as pipeline_lib
from tff_asr.metrics import person_errors
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.text import tokenizer as tokenizer_lib

# Sums over utterances: a structure of tensors.
_Sums = TypeVar('_Sums')


class ClientErrors(NamedTuple):
  """What a client's evaluation returns.

  Attributes:
    client_id: The client, string []; '' without utterances.
    counts: Word errors over all its utterances.
  """

  client_id: tf.Tensor
  counts: person_errors.PersonErrors


CountErrors = Callable[[weights_lib.Weights, tf.data.Dataset], ClientErrors]
"""From weights and a client's examples (`pipeline.training_batches`)."""


def build_count(
    *, model: ctc.CtcModel, pipeline: pipeline_lib.Pipeline
) -> CountErrors:
  """Builds the graph function that counts one client's word errors.

  Args:
    model: The model.
    pipeline: Features and batches; also the tokenizer.
  """
  pipeline = once(pipeline)
  sum_batches = build_sum(
      build_count_batch(model, pipeline.tokenizer),
      person_errors.PersonErrors.specs(),
      pipeline=pipeline,
  )

  @tf.function(autograph=False)
  def count_errors(weights, examples):
    client = pipeline.open_client(
        pipeline.with_lengths(examples, is_training=False),
        seed=tf.zeros([2], tf.int32),  # Nothing is random in an evaluation.
        num_epochs=1,
    )
    return ClientErrors(client.client_id, sum_batches(weights, client))

  return count_errors


def once(pipeline: pipeline_lib.Pipeline) -> pipeline_lib.Pipeline:
  """The pipeline with each utterance once, whatever training repeats."""
  return dataclasses.replace(pipeline, repeats=1)


def build_count_batch(
    model: ctc.CtcModel, tokenizer: tokenizer_lib.Tokenizer
) -> Callable[
    [weights_lib.Weights, pipeline_lib.Batch], person_errors.PersonErrors
]:
  """Builds the function from weights and a batch to its word errors."""

  def count_batch(weights, batch):
    logits, lengths = model.logits(
        weights, batch['features'], batch['feature_lengths']
    )
    texts = tokenizer.decode_batch(ctc.greedy_decode(logits, lengths))
    return person_errors.count(batch['transcript'], texts)

  return count_batch


def build_sum(
    measure: Callable[[weights_lib.Weights, pipeline_lib.Batch], _Sums],
    specs: _Sums,
    *,
    pipeline: pipeline_lib.Pipeline,
) -> Callable[[weights_lib.Weights, pipeline_lib.ClientExamples], _Sums]:
  """Builds the graph function that adds measurements of a client's batches.

  Args:
    measure: Measures a batch.
    specs: Tensor specs of what it returns.
    pipeline: Examples to batches; see `once`.

  Returns:
    From weights and a client to the sums; zeros for a client without batches.
  """
  # Otherwise AutoGraph converts what the loops call, too, models included.
  measure = tf.autograph.experimental.do_not_convert(measure)

  # AutoGraph converts the loops.
  @tf.function
  def sum_batches(weights, client):
    sums = tf.nest.map_structure(_zeros, specs)
    for chunk_num in tf.range(client.num_chunks):
      chunk = pipeline.pack(
          pipeline.read_chunk(client, chunk_num, is_training=False),
          # Nothing is drawn from it.
          seed=client.seed,
          is_training=False,
      )
      for number in tf.range(pipeline_lib.num_batches(chunk)):
        batch = pipeline.slice_batch(chunk, number, is_training=False)
        sums = tf.nest.map_structure(tf.add, sums, measure(weights, batch))
    return sums

  return sum_batches


@tf.autograph.experimental.do_not_convert
def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
  return tf.zeros(spec.shape, spec.dtype)
