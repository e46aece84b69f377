"""Log-mel features: waveform to normalised frames, and the length arithmetic.

As in the federated ASR paper (https://arxiv.org/abs/2310.00098) and its
published code: 25 ms Hamming windows every 10 ms without padding, pre-emphasis
.97 in each frame, magnitude of a 512-point FFT, 80 triangular mel filters (HTK
scale) from 0 to 8 kHz, floor 1 on samples in int16 units, natural logarithm;
then one mean and one variance per utterance, over time and mel together.

  N: samples. T: feature frames. F: mel bins.
"""

import functools

import numpy as np
import tensorflow as tf

SAMPLE_RATE_HZ = 16000
FRAME_LENGTH = 400  # Samples: 25 ms.
FRAME_SHIFT = 160  # Samples: 10 ms.
FRAME_SHIFT_SEC = FRAME_SHIFT / SAMPLE_RATE_HZ
NUM_MEL_BINS = 80

_FFT_LENGTH = 512
_PRE_EMPHASIS = 0.97
_FLOOR = 1.0
_VARIANCE_EPSILON = 1e-7


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


def log_mel(waveform: tf.Tensor) -> tf.Tensor:
  """Computes normalised log-mel frames of one utterance.

  Args:
    waveform: int16 [N], 16 kHz mono.

  Returns:
    float32 [T, F] with T = num_frames(N): mean 0 and variance 1 over all its
    elements (a constant utterance gives zeros; T = 0 gives an empty tensor).
  """
  samples = tf.cast(waveform, tf.float32)
  frames = tf.signal.frame(samples, FRAME_LENGTH, FRAME_SHIFT)
  # HTK's convention: the first sample of a frame is its own predecessor.
  previous = tf.concat([frames[:, :1], frames[:, :-1]], axis=1)
  emphasised = frames - _PRE_EMPHASIS * previous
  window = tf.constant(np.hamming(FRAME_LENGTH).astype(np.float32))
  windowed = tf.pad(
      emphasised * window, [[0, 0], [0, _FFT_LENGTH - FRAME_LENGTH]]
  )
  spectrum = tf.abs(tf.signal.rfft(windowed))
  mel = tf.matmul(spectrum, tf.constant(_mel_filters()))
  return normalize(tf.math.log(tf.maximum(mel, _FLOOR)))


def normalize(features: tf.Tensor) -> tf.Tensor:
  """Shifts and scales [T, F] to one mean 0 and one variance 1 over all of it."""
  count = tf.maximum(tf.cast(tf.size(features), tf.float32), 1.0)
  centred = features - tf.reduce_sum(features) / count
  variance = tf.reduce_sum(tf.square(centred)) / count
  return centred * tf.math.rsqrt(variance + _VARIANCE_EPSILON)


@functools.lru_cache(maxsize=1)
def _mel_filters() -> np.ndarray:
  """Returns float32 [257, F]: weights of the FFT's bins in each mel filter."""
  # In NumPy, so that it can be built while any graph is being traced.
  to_mel = lambda hertz: 1127.0 * np.log1p(hertz / 700.0)
  nyquist = SAMPLE_RATE_HZ / 2
  edges = np.linspace(0.0, to_mel(nyquist), NUM_MEL_BINS + 2)
  lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
  bins = to_mel(np.linspace(0.0, nyquist, _FFT_LENGTH // 2 + 1))[:, np.newaxis]
  rising = (bins - lower) / (centre - lower)
  falling = (upper - bins) / (upper - centre)
  weights = np.maximum(0.0, np.minimum(rising, falling))
  weights[0] = 0.0  # The constant part of a frame is no sound.
  return weights.astype(np.float32)
