"""Log-mel features: waveform to normalised frames, and the length arithmetic.

As in the federated ASR paper (https://arxiv.org/abs/2310.00098) and its
published code: 25 ms Hamming windows every 10 ms without padding, pre-emphasis
.97 in each frame, magnitude of a 512-point FFT, 80 triangular filters from 0 to
8 kHz, floor 1 on samples in int16 units, natural logarithm; then one mean and
one variance per utterance, over time and mel together. The filters' ends are
evenly spaced in mel (HTK's scale), their sides are straight in Hz (HTK's own
and those of `tf.signal` are straight in mel).

`log_mel` computes them in a graph, `log_mel_numpy` in NumPy. Only the functions
of tensors load TensorFlow, so a process that encodes audio starts without it.

  B: batch size. N: samples. T: feature frames. F: mel bins.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from tff_asr import rounding

if typing.TYPE_CHECKING:
  import tensorflow as tf

SAMPLE_RATE_HZ = 16000
FRAME_LENGTH = 400  # Samples: 25 ms.
FRAME_SHIFT = 160  # Samples: 10 ms.
FRAME_SHIFT_SEC = FRAME_SHIFT / SAMPLE_RATE_HZ
NUM_MEL_BINS = 80
FLOOR = 1.0
# Keeps a constant utterance at 0 instead of 0 / 0.
VARIANCE_EPSILON = 1e-7

# The next power of two above a frame's 400 samples.
_FFT_LENGTH = 512
_PRE_EMPHASIS = 0.97


def num_frames(
    num_samples, *, window: int = FRAME_LENGTH, frame_shift: int = FRAME_SHIFT
):
  """Frames of a waveform: windows that fit whole; below one window, none.

  Args:
    num_samples: Integer or integer tensor of any shape, at least 0.
    window: Samples of a window.
    frame_shift: Samples from one window to the next.

  Returns:
    Frames, of the same kind: max(0, 1 + (num_samples - window) // frame_shift).
  """
  frames = 1 + (num_samples - window) // frame_shift
  if isinstance(frames, (int, np.integer, np.ndarray)):
    return np.maximum(frames, 0)
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  return tf.maximum(frames, 0)


def frames_of_seconds(seconds: float) -> int:
  """Whole frame shifts (10 ms) in a duration.

  Durations are multiples of 10 ms up to rounding: 16.4 s are 1,640 frames,
  although 16.4 / 0.01 is below 1640.
  """
  return rounding.whole(seconds * SAMPLE_RATE_HZ / FRAME_SHIFT)


def samples_of_seconds(seconds: float) -> int:
  """Whole samples in a duration, rounded as by `frames_of_seconds`."""
  return rounding.whole(seconds * SAMPLE_RATE_HZ)


def samples_of_frames(frames):
  """Returns a number of samples with a given number of frames.

  Args:
    frames: Integer or integer tensor of any shape, at least 1.

  Returns:
    160 (frames + 2), of the same type: the middle of all numbers of samples
    with this number of frames.
  """
  return FRAME_SHIFT * (frames + 2)


def log_mel(
    waveforms: tf.Tensor, num_samples: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Computes normalised log-mel frames of a batch of utterances.

      >>> import tensorflow as tf
      >>> features, lengths = log_mel(
      ...     tf.ones([2, 16000]), tf.constant([16000, 720])
      ... )
      >>> features.shape, lengths.numpy()
      (TensorShape([2, 98, 80]), array([98,  3], dtype=int32))

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
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  # The magnitude of a spectrum does not depend on where time 0 is. If it is the
  # middle of a frame, the frame's even part gives the real part of the spectrum
  # and its odd part the imaginary part: half the products of the whole DFT, and
  # on a CPU three quarters of its time; TensorFlow's FFT takes longer than it.
  first, second = _half_frames(tf.cast(waveforms, tf.float32))
  cosines, sines = map(tf.constant, _half_dft_matrices())
  real = tf.matmul(first + second, cosines)
  imaginary = tf.matmul(first - second, sines)
  # Magnitude, not power, as in the published code.
  spectrum = tf.sqrt(tf.square(real) + tf.square(imaginary))
  # The last bin, at 8 kHz, is in no filter.
  bins = tf.matmul(spectrum, tf.constant(mel_filterbank()[:-1]))
  feature_lengths = num_frames(num_samples)
  # The floor keeps digital silence finite.
  log = tf.math.log(tf.maximum(bins, FLOOR))
  return normalize_utterances(log, feature_lengths), feature_lengths


def _half_frames(samples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Frames after pre-emphasis, cut in half.

  Args:
    samples: float32 [B, N].

  Returns:
    Samples 0 to 199 of each frame, and 399 to 200 of each, float32 [B, T, 200].
  """
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  batch_size, size = tf.unstack(tf.shape(samples))
  # A frame is two and a half blocks of a frame shift.
  num_blocks = num_frames(size) + 2
  samples = tf.pad(samples, [[0, 0], [0, 2 * FRAME_SHIFT]])
  samples = samples[:, : num_blocks * FRAME_SHIFT]
  before = tf.concat([samples[:, :1], samples[:, :-1]], axis=1)
  raw, blocks = (
      tf.reshape(each, [batch_size, num_blocks, FRAME_SHIFT])
      for each in (samples, samples - _PRE_EMPHASIS * before)
  )
  reverse = tf.reverse(blocks, axis=[2])
  first = [
      # HTK's convention: the first sample of a frame is its own predecessor.
      (1 - _PRE_EMPHASIS) * raw[:, :-2, :1],
      blocks[:, :-2, 1:],
      blocks[:, 1:-1, :40],
  ]
  second = [reverse[:, 2:, 80:], reverse[:, 1:-1, :120]]
  return tf.concat(first, axis=2), tf.concat(second, axis=2)


def normalize_utterances(
    features: tf.Tensor, feature_lengths: tf.Tensor
) -> tf.Tensor:
  """Shifts and scales each utterance to mean 0 and variance 1.

  One mean and one variance, over its frames and bins.

  Args:
    features: float32 [B, T, F].
    feature_lengths: int32 [B].

  Returns:
    float32 [B, T, F], 0 past each length.
  """
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  size = tf.shape(features)[1]
  # Padded frames must not shift the mean of an utterance.
  valid = tf.sequence_mask(feature_lengths, size)[:, :, tf.newaxis]
  # At least 1, so that an utterance without frames stays finite.
  elements = tf.cast(feature_lengths * features.shape[-1], tf.float32)
  count = tf.maximum(elements, 1.0)[:, tf.newaxis, tf.newaxis]
  return standardize(
      features, valid, count=count, axes=[1, 2], epsilon=VARIANCE_EPSILON
  )


def standardize(
    values: tf.Tensor,
    valid: tf.Tensor,
    *,
    count: tf.Tensor,
    axes: list[int],
    epsilon: float,
) -> tf.Tensor:
  """Shifts and scales to mean 0 and variance 1 over some axes.

  Args:
    values: float32.
    valid: bool, broadcast to values; false for padding, which does not count in
      the statistics.
    count: float32, valid values along the axes, at least 1; of size 1 there.
    axes: Axes of the mean and the variance.
    epsilon: Added to the variance.

  Returns:
    As values, 0 for padding.
  """
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  total = lambda x: tf.reduce_sum(x, axis=axes, keepdims=True)
  mean = total(tf.where(valid, values, 0.0)) / count
  # Chosen, not multiplied: padding may hold NaN, and 0 * NaN is NaN.
  centred = tf.where(valid, values - mean, 0.0)
  variance = total(tf.square(centred)) / count
  return centred * tf.math.rsqrt(variance + epsilon)


def log_mel_numpy(waveform: np.ndarray) -> np.ndarray:
  """Computes the normalised log-mel frames of one utterance, in NumPy.

  Args:
    waveform: int16 [N], 16 kHz mono.

  Returns:
    float32 [T, F], T = num_frames(N), as `log_mel` up to rounding.
  """
  # sliding_window_view raises for an array below its window.
  if len(waveform) < FRAME_LENGTH:
    return np.zeros([0, NUM_MEL_BINS], np.float32)
  frames = np.lib.stride_tricks.sliding_window_view(
      waveform.astype(np.float32), FRAME_LENGTH
  )[::FRAME_SHIFT]
  # Rows that overlap in memory would be multiplied without BLAS.
  frames = np.ascontiguousarray(frames)
  real, imaginary = np.split(frames @ dft_matrix(), 2, axis=1)
  spectrum = np.sqrt(np.square(real) + np.square(imaginary))
  log = np.log(np.maximum(spectrum @ mel_filterbank(), FLOOR))
  # Sums in float64: a minute has half a million values.
  centred = log - np.mean(log, dtype=np.float64)
  variance = np.mean(np.square(centred), dtype=np.float64)
  return (centred / np.sqrt(variance + VARIANCE_EPSILON)).astype(np.float32)


@functools.lru_cache(maxsize=1)
def dft_matrix() -> np.ndarray:
  """Returns the matrix from a frame to its spectrum.

  float32 [400, 514], 257 real parts and 257 imaginary parts: pre-emphasis,
  window and DFT are linear, so they are one matrix.
  """
  # HTK's convention: the first sample of a frame is its own predecessor.
  pre_emphasis = np.eye(FRAME_LENGTH)
  pre_emphasis -= _PRE_EMPHASIS * np.eye(FRAME_LENGTH, k=-1)
  pre_emphasis[0, 0] -= _PRE_EMPHASIS
  windowed = np.hamming(FRAME_LENGTH)[:, np.newaxis] * pre_emphasis
  # In float64; rounded to float32 once, at the end.
  spectrum = np.fft.rfft(windowed, _FFT_LENGTH, axis=0).T
  return np.concatenate([spectrum.real, spectrum.imag], axis=1).astype(
      np.float32
  )


@functools.lru_cache(maxsize=1)
def _half_dft_matrices() -> tuple[np.ndarray, np.ndarray]:
  """Returns the cosines and sines of half a frame, and its window.

  Each is float32 [200, 256], for all bins but the last: the other half of a
  frame has the same window and the same cosines, and the opposite sines.
  """
  times = np.arange(FRAME_LENGTH // 2) - (FRAME_LENGTH - 1) / 2
  bins = np.arange(_FFT_LENGTH // 2)
  angles = 2 * np.pi / _FFT_LENGTH * np.outer(times, bins)
  window = np.hamming(FRAME_LENGTH)[: len(times), np.newaxis]
  cosines, sines = (
      (window * wave).astype(np.float32)
      for wave in (np.cos(angles), np.sin(angles))
  )
  return cosines, sines


@functools.lru_cache(maxsize=1)
def mel_filterbank() -> np.ndarray:
  """Returns float32 [257, F]: weights of the FFT's bins in each mel filter."""
  # HTK's mel scale: 1127 ln(1 + f / 700).
  # The filters reach up to half of the sampling rate.
  nyquist = SAMPLE_RATE_HZ / 2
  top = 1127.0 * math.log1p(nyquist / 700.0)
  edges = 700.0 * np.expm1(np.linspace(0.0, top, NUM_MEL_BINS + 2) / 1127.0)
  lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
  bins = np.linspace(0.0, nyquist, _FFT_LENGTH // 2 + 1)[:, np.newaxis]
  rising = (bins - lower) / (centre - lower)
  falling = (upper - bins) / (upper - centre)
  weights = np.maximum(0.0, np.minimum(rising, falling))
  return weights.astype(np.float32)
