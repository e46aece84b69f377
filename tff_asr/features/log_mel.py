"""Log-mel features: waveform to normalised frames, and the length arithmetic.

As in the federated ASR paper (https://arxiv.org/abs/2310.00098) and its
published code: 25 ms Hamming windows every 10 ms without padding, pre-emphasis
.97 in each frame, magnitude of a 512-point FFT, 80 triangular mel filters (HTK
scale) from 0 to 8 kHz, floor 1 on samples in int16 units, natural logarithm;
then one mean and one variance per utterance, over time and mel together.

`mel` holds the constants, and the same in NumPy.

  B: batch size. N: samples. T: feature frames. F: mel bins.
"""

import numpy as np
import tensorflow as tf

from tff_asr.features import convolution
from tff_asr.features import mel

SAMPLE_RATE_HZ = mel.SAMPLE_RATE_HZ
FRAME_LENGTH = mel.FRAME_LENGTH
FRAME_SHIFT = mel.FRAME_SHIFT
FRAME_SHIFT_SEC = FRAME_SHIFT / SAMPLE_RATE_HZ
NUM_MEL_BINS = mel.NUM_MEL_BINS


def num_frames(num_samples):
  """Frames of a waveform: windows that fit whole; below one window, none.

  Args:
    num_samples: Integer or integer tensor of any shape, at least 0.

  Returns:
    Frames, of the same kind: max(0, 1 + (num_samples - 400) // 160).
  """
  frames = 1 + (num_samples - FRAME_LENGTH) // FRAME_SHIFT
  if tf.is_tensor(frames):
    return tf.maximum(frames, 0)
  return np.maximum(frames, 0)


def log_mel(
    waveforms: tf.Tensor, num_samples: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Computes normalised log-mel frames of a batch of utterances.

  Args:
    waveforms: int16 [B, N], or their values as float32; 16 kHz mono, padded
      with anything.
    num_samples: int32 [B], samples of each utterance, in [0, N].

  Returns:
    features: float32 [B, T, F] with T = num_frames(N); over an utterance's
      frames and bins mean 0 and variance 1 (a constant utterance gives zeros),
      0 past its frames. What pads a waveform does not matter.
    feature_lengths: int32 [B], num_frames(num_samples).
  """
  samples = tf.cast(waveforms, tf.float32)[:, :, tf.newaxis]
  parts = convolution.convolve(
      samples, tf.constant(_frame_kernel()), FRAME_SHIFT
  )
  real, imaginary = tf.split(parts, 2, axis=-1)
  spectrum = tf.sqrt(tf.square(real) + tf.square(imaginary))
  bins = tf.matmul(spectrum, tf.constant(mel.filters()))
  feature_lengths = num_frames(num_samples)
  log = tf.math.log(tf.maximum(bins, mel.FLOOR))
  return normalize(log, feature_lengths), feature_lengths


def normalize(features: tf.Tensor, feature_lengths: tf.Tensor) -> tf.Tensor:
  """Shifts and scales each utterance to mean 0 and variance 1 over its frames.

  Args:
    features: float32 [B, T, F].
    feature_lengths: int32 [B].

  Returns:
    float32 [B, T, F], 0 past each length.
  """
  size = tf.shape(features)[1]
  valid = tf.sequence_mask(feature_lengths, size)[:, :, tf.newaxis]
  elements = tf.cast(feature_lengths * features.shape[-1], tf.float32)
  count = tf.maximum(elements, 1.0)[:, tf.newaxis, tf.newaxis]
  total = lambda values: tf.reduce_sum(values, axis=[1, 2], keepdims=True)
  mean = total(tf.where(valid, features, 0.0)) / count
  centred = tf.where(valid, features - mean, 0.0)
  variance = total(tf.square(centred)) / count
  return centred * tf.math.rsqrt(variance + mel.VARIANCE_EPSILON)


def _frame_kernel() -> np.ndarray:
  """Returns `mel.frame_transform` as a convolution, float32 [400, 1, 514].

  As a convolution over the samples it takes a third of the time of TensorFlow's
  FFT on a CPU.
  """
  return mel.frame_transform()[:, np.newaxis, :]
