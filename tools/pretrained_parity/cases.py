"""Inputs of the comparison: utterances, and factors of the scalar.

The scalar is the sum over layers and frames of outputs times these factors,
which have a random sign each, so that no gradient cancels.
"""

from collections.abc import Mapping
import math

import numpy as np

# Samples of the waveform for the front ends: whole frames, and louder at its
# start, so that no frame after its end is the loudest.
FRONT_END_SAMPLES = 1600
MEL_BINS = (80, 128)


def utterances(
    config: Mapping[str, object], *, frames: tuple[int, int] = (7, 4)
) -> list[np.ndarray]:
  """Inputs of a model.

  Args:
    config: Its configuration.
    frames: Frames of each, of tiny models of waveforms.

  Returns:
    Of Whisper float32 [T, F], T even, of the most that it takes and of half as
    much; of others float32 [N].
  """
  rng = np.random.default_rng(1)
  if config['model_type'] == 'whisper':
    most = 2 * config['max_source_positions']
    sizes = [(n, config['num_mel_bins']) for n in (most, most // 2)]
  else:
    # Not all of the samples fill a frame.
    window, stride = field(config)
    sizes = [(window + stride * (n - 1) + 1,) for n in frames]
    if config['hidden_size'] > 100:  # A second, at the published sizes.
      sizes = [(16000,), (9000,)]
  return [rng.standard_normal(size, np.float32) for size in sizes]


def field(config: Mapping[str, object]) -> tuple[int, int]:
  """Samples of a frame's window, and from one frame to the next."""
  window, stride = 1, 1
  for size, step in zip(config['conv_kernel'], config['conv_stride']):
    window += (size - 1) * stride
    stride *= step
  return window, stride


def factors(shape: tuple[int, ...]) -> np.ndarray:
  """float32 [layers, S, D], a function of the shape."""
  rng = np.random.default_rng(math.prod(shape))
  return rng.choice([-1.0, 1.0], shape).astype(np.float32)


def normal(shape: tuple[int, ...]) -> np.ndarray:
  """float32 normal numbers, a function of the shape."""
  rng = np.random.default_rng(math.prod(shape))
  return rng.standard_normal(shape, np.float32)


def waveform() -> np.ndarray:
  """int16 [FRONT_END_SAMPLES]: noise and a tone that die away."""
  rng = np.random.default_rng(2)
  time = np.arange(FRONT_END_SAMPLES) / 16000
  sound = np.sin(2 * math.pi * 440 * time) + 0.1 * rng.standard_normal(
      FRONT_END_SAMPLES
  )
  return (8000 * sound * np.exp(-30 * time)).astype(np.int16)
