"""What CTC needs of a label sequence: arithmetic of its alignments."""

import tensorflow as tf


def min_frames(labels: tf.Tensor) -> tf.Tensor:
  """Fewest output frames that can spell labels int32 [U]: U and its repeats.

  Between two equal labels CTC needs a blank (Graves et al. 2006).
  """
  repeats = tf.cast(tf.equal(labels[1:], labels[:-1]), tf.int32)
  return tf.size(labels) + tf.reduce_sum(repeats)
