"""Greedy packing of utterances, sorted by length, into batches."""

import tensorflow as tf


def batch_starts(
    lengths: tf.Tensor, max_frames: int, *, max_padding: float
) -> tf.Tensor:
  """First positions of greedy batches.

  The padded size of a batch, its utterances times its longest (its last), is
  at most max_frames, and its padding at most a share max_padding of it, unless
  a single utterance exceeds max_frames.

  Args:
    lengths: int32 [n], frames, ascending.
    max_frames: Padded frames of a batch.
    max_padding: Share of them, in [0, 1].

  Returns:
    int32 [number of batches], ascending from 0.
  """
  size = tf.size(lengths)
  # What lies before each position.
  before = tf.cumsum(tf.cast(lengths, tf.int64), exclusive=True)

  def step(position, start, starts):
    padded = (position - start + 1) * lengths[position]
    used = before[position] + tf.cast(lengths[position], tf.int64)
    used = tf.cast(used - before[start], tf.float32)
    is_padding = used < (1 - max_padding) * tf.cast(padded, tf.float32)
    is_new = ((padded > max_frames) | is_padding) & (position > start)
    start = tf.where(is_new, position, start)
    starts = tf.cond(
        is_new, lambda: tf.concat([starts, [position]], axis=0), lambda: starts
    )
    return position + 1, start, starts

  _, _, starts = tf.while_loop(
      lambda position, *_: position < size,
      step,
      (tf.constant(0), tf.constant(0), tf.zeros([1], tf.int32)),
      shape_invariants=(
          tf.TensorShape([]),
          tf.TensorShape([]),
          tf.TensorShape([None]),
      ),
  )
  return starts
