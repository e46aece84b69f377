"""Errors of one person, counted in TensorFlow where the person's data are.

    >>> counts = count(
    ...     tf.constant(['the cat sat', 'yes']),
    ...     tf.constant(['the cat sad down', 'yes']),
    ... )
    >>> int(counts.errors), int(counts.words)
    (2, 4)
    >>> int(counts.wrong_sentences), int(counts.sentences)
    (1, 2)

The errors equal those of `word_errors.count`, which also tells their kinds, and
of `word_errors.count_sentences`. The ops belong to TensorFlow's core, so every
execution context runs them.

  B: batch size. U: words or tokens of an utterance.
"""

from typing import NamedTuple

import tensorflow as tf


class PersonErrors(NamedTuple):
  """Counts over any number of a person's utterances.

  Attributes:
    errors: Substitutions, deletions and insertions, int64 [].
    words: Words of the references, int64 [].
    wrong_sentences: Utterances with a word error, int64 [].
    sentences: Utterances, int64 [].
  """

  errors: tf.Tensor
  words: tf.Tensor
  wrong_sentences: tf.Tensor
  sentences: tf.Tensor

  @classmethod
  def specs(cls) -> 'PersonErrors':
    """Returns the specs of all tensors."""
    return cls(*(tf.TensorSpec([], tf.int64) for _ in cls._fields))


def count(references: tf.Tensor, hypotheses: tf.Tensor) -> PersonErrors:
  """Counts the errors of a batch of one person's utterances.

  Words are split at ASCII white space.

  Args:
    references: The transcripts, string [B]. Every word of a hypothesis whose
      reference is empty is an insertion.
    hypotheses: The recognised texts, string [B].
  """
  num_sentences = tf.size(references, tf.int64)
  # With an empty utterance at the end, since the op rejects a batch of none.
  references, hypotheses = (
      tf.strings.split(tf.concat([texts, ['']], axis=0))
      for texts in (references, hypotheses)
  )
  # Unnormalised: the number of edits of each utterance.
  distances = tf.edit_distance(
      hypotheses.to_sparse(),
      references.to_sparse(),
      normalize=False,
  )
  return PersonErrors(
      # float32 is exact: an utterance has fewer than 2^24 words.
      errors=tf.reduce_sum(tf.cast(distances, tf.int64)),
      words=tf.size(references.flat_values, tf.int64),
      wrong_sentences=tf.math.count_nonzero(distances),
      sentences=num_sentences,
  )
