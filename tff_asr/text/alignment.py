"""What CTC needs of a label sequence: arithmetic of its alignments.

  B: batch size. U: label length.
"""

import tensorflow as tf


def min_frames(labels: tf.Tensor, label_lengths: tf.Tensor) -> tf.Tensor:
  """Fewest output frames that can spell each label sequence.

  Its length and its repeats: between two equal labels CTC needs a blank (Graves
  et al. 2006).

  Args:
    labels: int32 [B, U]; what stands at or past a length is ignored.
    label_lengths: int32 [B].

  Returns:
    int32 [B].
  """
  # Not `==`, which compares tensors by identity while TFF traces.
  is_repeat = tf.equal(labels[:, 1:], labels[:, :-1])
  is_repeat &= tf.sequence_mask(label_lengths, tf.shape(labels)[1])[:, 1:]
  repeats = tf.reduce_sum(tf.cast(is_repeat, tf.int32), axis=1)
  return label_lengths + repeats
