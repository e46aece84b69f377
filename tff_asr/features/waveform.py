"""Waveforms as the inputs of an encoder, such as wav2vec 2.0's.

  B: batch size. N: samples.
"""

import tensorflow as tf

from tff_asr.features import log_mel

_INT16 = 32768.0


def waveform(
    waveforms: tf.Tensor, num_samples: tf.Tensor, *, normalize: bool
) -> tuple[tf.Tensor, tf.Tensor]:
  """Scales the samples of a batch of utterances.

      >>> features, lengths = waveform(
      ...     tf.constant([[16384, -16384, 999]]), tf.constant([2]),
      ...     normalize=False,
      ... )
      >>> features.numpy(), lengths.numpy()
      (array([[ 0.5, -0.5,  0. ]], dtype=float32), array([2], dtype=int32))

  Args:
    waveforms: int16 [B, N], or their values as other numbers; 16 kHz mono,
      padded with anything.
    num_samples: int32 [B], samples of each utterance, in [0, N].
    normalize: Whether to shift and scale each utterance to mean 0 and variance
      1, as most models of wav2vec 2.0 and HuBERT expect it.

  Returns:
    features: float32 [B, N], 0 past each utterance's end; in [-1, 1) unless
      they are normalized.
    feature_lengths: int32 [B], num_samples.
  """
  samples = tf.cast(waveforms, tf.float32) / _INT16
  if not normalize:
    inside = tf.sequence_mask(num_samples, tf.shape(waveforms)[1])
    return tf.where(inside, samples, 0.0), num_samples
  return standardize_waveforms(samples, num_samples), num_samples


def standardize_waveforms(
    samples: tf.Tensor, num_samples: tf.Tensor
) -> tf.Tensor:
  """Shifts and scales each utterance to mean 0 and variance 1.

  Args:
    samples: float32 [B, N], padded with anything; of variance far above 1e-7.
    num_samples: int32 [B], samples of each utterance, in [0, N].

  Returns:
    float32 [B, N], 0 past each utterance's end.
  """
  return log_mel.standardize(
      samples,
      tf.sequence_mask(num_samples, tf.shape(samples)[1]),
      # At least 1, so that an utterance without samples stays finite.
      count=tf.cast(tf.maximum(num_samples, 1), tf.float32)[:, tf.newaxis],
      axes=[1],
      epsilon=log_mel.VARIANCE_EPSILON,  # As in `transformers`.
  )
