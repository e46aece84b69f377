"""Log-mel features in NumPy: for programs that must not load TensorFlow.

The definition is that of `log_mel`, which computes the same in a graph and
takes its matrices from here.

  N: samples. T: feature frames. F: mel bins.
"""

import functools

import numpy as np

SAMPLE_RATE_HZ = 16000
FRAME_LENGTH = 400  # Samples: 25 ms.
FRAME_SHIFT = 160  # Samples: 10 ms.
NUM_MEL_BINS = 80
FLOOR = 1.0
VARIANCE_EPSILON = 1e-7

_FFT_LENGTH = 512
_PRE_EMPHASIS = 0.97


def compute(waveform: np.ndarray) -> np.ndarray:
  """Computes the normalised log-mel frames of one utterance.

  Args:
    waveform: int16 [N], 16 kHz mono.

  Returns:
    float32 [T, F], T = max(0, 1 + (N - 400) // 160); over all frames and bins
    mean 0 and variance 1 (a constant utterance gives zeros).
  """
  if len(waveform) < FRAME_LENGTH:
    return np.zeros([0, NUM_MEL_BINS], np.float32)
  frames = np.lib.stride_tricks.sliding_window_view(
      waveform.astype(np.float32), FRAME_LENGTH
  )[::FRAME_SHIFT]
  # Rows that overlap in memory would be multiplied without BLAS.
  frames = np.ascontiguousarray(frames)
  real, imaginary = np.split(frames @ frame_transform(), 2, axis=1)
  spectrum = np.sqrt(np.square(real) + np.square(imaginary))
  log = np.log(np.maximum(spectrum @ filters(), FLOOR))
  centred = log - np.mean(log, dtype=np.float64)
  variance = np.mean(np.square(centred), dtype=np.float64)
  return (centred / np.sqrt(variance + VARIANCE_EPSILON)).astype(np.float32)


@functools.lru_cache(maxsize=1)
def frame_transform() -> np.ndarray:
  """Returns float32 [400, 514]: a frame to its spectrum.

  Pre-emphasis, window and DFT are linear, so they are one matrix for all frames
  (257 real parts, then 257 imaginary parts).
  """
  # HTK's convention: the first sample of a frame is its own predecessor.
  pre_emphasis = np.eye(FRAME_LENGTH)
  pre_emphasis -= _PRE_EMPHASIS * np.eye(FRAME_LENGTH, k=-1)
  pre_emphasis[0, 0] -= _PRE_EMPHASIS
  windowed = np.hamming(FRAME_LENGTH)[:, np.newaxis] * pre_emphasis
  spectrum = np.fft.rfft(windowed, _FFT_LENGTH, axis=0).T
  return np.concatenate([spectrum.real, spectrum.imag], axis=1).astype(
      np.float32
  )


@functools.lru_cache(maxsize=1)
def filters() -> np.ndarray:
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
