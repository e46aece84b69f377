"""Whisper's log-mel features.

As in Radford et al. 2022 (https://arxiv.org/abs/2212.04356) and its code: 25 ms
Hann windows centred on every 10 ms, power of a 400-point DFT, 80 triangular
filters (128 for the third large model) on Slaney's mel scale with an area of 1,
logarithm to base 10, clamped to 8 below the utterance's largest value, then
(x + 4) / 4.

Whisper computes them for 30 s: the utterance followed by silence. Here there
are N // 160 frames, which end with the utterance. They equal Whisper's (samples
past the end read as zeros, and the start is reflected), unless the loudest
frame of all straddles the end.

  B: batch size. N: samples. T: feature frames. F: mel bins.
"""

import functools
import math

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution

SAMPLE_RATE_HZ = 16000
FRAME_SHIFT = 160  # Samples: 10 ms.
NUM_MEL_BINS = 80

_WINDOW = 400
_FLOOR = 1e-10
_RANGE = 8.0  # Of powers of ten.
_INT16 = 32768.0


def num_frames(num_samples):
  """Frames of a waveform: N // 160.

  Args:
    num_samples: Integer or integer tensor of any shape, at least 0.
  """
  return num_samples // FRAME_SHIFT


def whisper_log_mel(
    waveforms: tf.Tensor,
    num_samples: tf.Tensor,
    *,
    num_mel_bins: int = NUM_MEL_BINS,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Computes Whisper's log-mel frames of a batch of utterances.

      >>> features, lengths = whisper_log_mel(
      ...     tf.ones([2, 16000]), tf.constant([16000, 720])
      ... )
      >>> features.shape, lengths.numpy()
      (TensorShape([2, 100, 80]), array([100,   4], dtype=int32))

  Args:
    waveforms: int16 [B, N], or their values as float32; 16 kHz mono, padded
      with anything.
    num_samples: int32 [B], samples of each utterance, in [0, N].
    num_mel_bins: F, 80 or 128.

  Returns:
    features: float32 [B, T, F] with T = num_frames(N), 0 past an utterance's
      frames. What pads a waveform does not matter.
    feature_lengths: int32 [B], num_frames(num_samples).

  Raises:
    ValueError: num_mel_bins is not a positive integer.
  """
  checks.positive_int(num_mel_bins=num_mel_bins)
  size = tf.shape(waveforms)[1]
  inside = tf.sequence_mask(num_samples, size)
  samples = tf.where(inside, tf.cast(waveforms, tf.float32) / _INT16, 0.0)
  half = _WINDOW // 2
  # One more than half a window, so that there is enough to reflect.
  samples = tf.pad(samples, [[0, 0], [0, half + 1]])
  start = tf.reverse(samples[:, 1 : half + 1], axis=[1])
  samples = tf.concat([start, samples], axis=1)[:, :, tf.newaxis]
  # Window and DFT are a convolution over the samples.
  kernel = tf.constant(_windowed_dft()[:, np.newaxis, :])
  parts = convolution.convolve(samples, kernel, FRAME_SHIFT)
  # The padding may hold a window more.
  parts = parts[:, : num_frames(size)]
  real, imaginary = tf.split(parts, 2, axis=-1)
  power = tf.square(real) + tf.square(imaginary)
  bins = tf.matmul(power, tf.constant(mel_filters(num_mel_bins)))
  log = tf.math.log(tf.maximum(bins, _FLOOR)) / math.log(10.0)

  feature_lengths = num_frames(num_samples)
  valid = tf.sequence_mask(feature_lengths, num_frames(size))[:, :, tf.newaxis]
  # A window of padding that reaches into the utterance must not be the largest.
  valid_log = tf.where(valid, log, math.log10(_FLOOR))
  largest = tf.reduce_max(valid_log, axis=[1, 2], keepdims=True)
  features = (tf.maximum(log, largest - _RANGE) + 4.0) / 4.0
  return tf.where(valid, features, 0.0), feature_lengths


@functools.lru_cache
def mel_filters(num_mel_bins: int) -> np.ndarray:
  """Weights of the DFT's bins in each filter.

  Slaney's scale (Auditory Toolbox, 1998): 200 / 3 Hz a mel up to 1 kHz, above
  it 27 mel for each factor of 6.4. The filters' ends are evenly spaced on it
  from 0 to 8 kHz, their sides are straight in Hz, and a filter of width w Hz
  has the height 2 / w.

  Args:
    num_mel_bins: F.

  Returns:
    float32 [201, F].
  """
  edges = _hertz(np.linspace(0.0, _mel(SAMPLE_RATE_HZ / 2), num_mel_bins + 2))
  lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
  bins = np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE_HZ)[:, np.newaxis]
  rising = (bins - lower) / (centre - lower)
  falling = (upper - bins) / (upper - centre)
  heights = 2 / (upper - lower)
  weights = np.maximum(0.0, np.minimum(rising, falling)) * heights
  return weights.astype(np.float32)


_BREAK_HZ = 1000.0  # The scale is linear up to here.
_HZ_A_MEL = 200 / 3
_LOG_STEP = math.log(6.4) / 27


def _mel(hertz: float) -> float:
  """A frequency above the break on Slaney's scale."""
  return _BREAK_HZ / _HZ_A_MEL + math.log(hertz / _BREAK_HZ) / _LOG_STEP


def _hertz(mels: np.ndarray) -> np.ndarray:
  """Slaney's scale to frequencies."""
  above = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_HZ / _HZ_A_MEL))
  return np.where(mels * _HZ_A_MEL < _BREAK_HZ, mels * _HZ_A_MEL, above)


@functools.lru_cache(maxsize=1)
def _windowed_dft() -> np.ndarray:
  """float32 [400, 402]: 201 real parts and 201 imaginary parts."""
  # Periodic, as for spectra: the window's 401st sample would be 0 again.
  hann = 0.5 - 0.5 * np.cos(2 * math.pi * np.arange(_WINDOW) / _WINDOW)
  spectrum = np.fft.rfft(np.diag(hann), axis=0).T
  parts = np.concatenate([spectrum.real, spectrum.imag], axis=1)
  return parts.astype(np.float32)
