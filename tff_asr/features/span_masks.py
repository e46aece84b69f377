"""Spans of frames that masked prediction replaces by noise.

As in BEST-RQ (Chiu et al. 2022, https://arxiv.org/abs/2202.01855): each frame
of an utterance starts a span with a small probability; spans have one width,
may overlap, and end with the utterance. An utterance's spans and noise depend
on its own seed alone, not on what pads it or on its batch.

  B: batch size. T: feature frames. F: mel bins.
"""

import tensorflow as tf


def draw(
    feature_lengths: tf.Tensor,
    size: tf.Tensor,
    seeds: tf.Tensor,
    *,
    start_prob: float,
    width: int,
) -> tf.Tensor:
  """Draws which frames are masked.

  Args:
    feature_lengths: int32 [B], each in [0, T].
    size: T.
    seeds: int32 [B, 2], one an utterance.
    start_prob: Probability that a frame starts a span.
    width: Frames of a span.

  Returns:
    bool [B, T], False at and past each length.
  """
  # Utterance by utterance: draws must not depend on the batch.
  draws = tf.map_fn(
      lambda seed: tf.random.stateless_uniform([size], seed),
      seeds,
      fn_output_signature=tf.TensorSpec([None], tf.float32),
  )
  # Numbers of spans that have started so far.
  starts = tf.cumsum(tf.cast(draws < start_prob, tf.int32), axis=1)
  # Spans that started at least a width ago have ended.
  ended = tf.pad(starts, [[0, 0], [width, 0]])[:, :size]
  # Between its start and its end a span makes the two counts differ.
  return (starts > ended) & tf.sequence_mask(feature_lengths, size)


def replace_by_noise(
    features: tf.Tensor,
    is_masked: tf.Tensor,
    seeds: tf.Tensor,
    *,
    noise_stddev: float,
) -> tf.Tensor:
  """Returns features float32 [B, T, F] with N(0, stddev^2) in masked frames.

  Args:
    features: float32 [B, T, F].
    is_masked: bool [B, T].
    seeds: int32 [B, 2], one an utterance.
    noise_stddev: Standard deviation of the noise.
  """
  shape = tf.shape(features)[1:]
  # Utterance by utterance, too. Drawn for all frames, and used in masked ones.
  noise = tf.map_fn(
      lambda seed: tf.random.stateless_normal(shape, seed),
      seeds,
      fn_output_signature=tf.TensorSpec(features.shape[1:], tf.float32),
  )
  return tf.where(is_masked[:, :, tf.newaxis], noise_stddev * noise, features)
