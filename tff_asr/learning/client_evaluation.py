"""Word errors of one client, decoded greedily where the client's data are.

The graph function reads a client's utterances, decodes them with given weights
and returns counts alone: no text leaves it. Every utterance counts once, in any
execution context, as in `programs.evaluation`.
"""

from collections.abc import Callable
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_asr.data import pipeline as pipeline_lib
from tff_asr.metrics import person_errors
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib


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
  # An utterance that training repeats still counts once.
  pipeline = dataclasses.replace(pipeline, repeats=1)

  @tf.autograph.experimental.do_not_convert
  def count_batch(weights, batch):
    logits, lengths = model.logits(
        weights, batch['features'], batch['feature_lengths']
    )
    texts = pipeline.tokenizer.decode_batch(ctc.greedy_decode(logits, lengths))
    return person_errors.count(batch['transcript'], texts)

  # AutoGraph converts the loops.
  @tf.function
  def count_errors(weights, examples):
    # Nothing is random in an evaluation.
    seed = tf.zeros([2], tf.int32)
    client = pipeline.open_client(
        pipeline.with_lengths(examples, is_training=False),
        seed=seed,
        num_epochs=1,
    )
    counts = person_errors.PersonErrors.zero()
    for chunk_num in tf.range(client.num_chunks):
      chunk = pipeline.pack(
          pipeline.read_chunk(client, chunk_num, is_training=False),
          seed=seed,
          is_training=False,
      )
      for number in tf.range(pipeline_lib.num_batches(chunk)):
        batch = pipeline.slice_batch(chunk, number, is_training=False)
        counts += count_batch(weights, batch)
    return ClientErrors(client.client_id, counts)

  return count_errors
