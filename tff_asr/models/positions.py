"""Positional embeddings: CAPE, in seconds, and plain sinusoids, in frames.

CAPE, continuous augmented positional embeddings (Likhomanenko et al. 2021,
https://arxiv.org/abs/2106.03143), with the settings of the federated ASR
paper's code: sinusoids of the position in seconds, centred on the utterance; in
training the whole utterance is shifted by up to 30 s either way; no local
shift, no scaling. Plain ones (Vaswani et al. 2017,
https://arxiv.org/abs/1706.03762) are of the frame's number, and are the same in
training.

  B: batch size. S: frames. D: width.
"""

import math
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_asr.models import layers

# As in the paper's code, for positions in seconds.
_FREQ_SCALE = 30.0


def cape(
    lengths: tf.Tensor,
    size: tf.Tensor,
    *,
    dim: int,
    frame_sec: float,
    max_shift_sec: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """Computes positional embeddings.

  Args:
    lengths: int32 [B], frames of each utterance.
    size: S, frames to make.
    dim: D, even.
    frame_sec: Seconds from one frame to the next.
    max_shift_sec: In training, the shift is uniform in plus or minus this.
    seed: int32 [2] in training, None in evaluation (no shift).

  Returns:
    float32 [B, S, D]: sines at even and cosines at odd places, with
    frequencies 30 * 10000^(-2k / D) radians a second; 0 past each length.
  """
  # The middle of the utterance is at second 0.
  centres = (tf.cast(lengths, tf.float32) - 1) / 2
  seconds = (_frames(size) - centres[:, tf.newaxis]) * frame_sec
  if seed is not None:
    # One shift for all frames of an utterance.
    draws = layers.uniform([tf.shape(lengths)[0], 1], seed)
    seconds += draws * (2 * max_shift_sec) - max_shift_sec
  embedding = sinusoids(seconds, dim=dim, scale=_FREQ_SCALE)
  return embedding * layers.length_mask(lengths, size)


def sinusoidal(lengths: tf.Tensor, size: tf.Tensor, *, dim: int) -> tf.Tensor:
  """Computes positional embeddings.

  Args:
    lengths: int32 [B], frames of each utterance.
    size: S, frames to make.
    dim: D, even.

  Returns:
    float32 [B, S, D]: sines at even and cosines at odd places of the frame's
    number, 0 for the first, with frequencies 10000^(-2k / D) radians a frame; 0
    past each length.
  """
  embedding = sinusoids(_frames(size), dim=dim)
  return embedding * layers.length_mask(lengths, size)


def sinusoids(
    positions: tf.Tensor, *, dim: int, scale: float = 1.0
) -> tf.Tensor:
  """Sines at even and cosines at odd places of positions.

  Args:
    positions: float32 [...].
    dim: D, even.
    scale: Factor of the frequencies scale * 10000^(-2k / D).

  Returns:
    float32 [..., D].
  """
  # Computed by NumPy in float64, when traced: the graph holds the constants.
  half = np.arange(dim) // 2
  frequencies = scale * np.exp(-2 * half * math.log(1e4) / dim)
  # A cosine is a sine a quarter turn ahead.
  phases = (math.pi / 2) * (np.arange(dim) % 2)
  angles = positions[..., tf.newaxis] * frequencies.astype(np.float32)
  return tf.sin(angles + phases.astype(np.float32))


def _frames(size: tf.Tensor) -> tf.Tensor:
  """Numbers of the frames, float32 [1, S]."""
  frames = tf.range(tf.cast(size, tf.float32), dtype=tf.float32)
  return frames[tf.newaxis, :]
