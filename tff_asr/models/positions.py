"""CAPE: continuous augmented positional embeddings, in seconds.

Likhomanenko et al. 2021, https://arxiv.org/abs/2106.03143, with the settings of
the federated ASR paper's code: sinusoids of the position in seconds, centred on
the utterance; in training the whole utterance is shifted by up to 30 s either
way; no local shift, no scaling.

  B: batch size. S: frames. D: width.
"""

import math
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_asr.models import encoder

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
  half = np.arange(dim) // 2
  frequencies = _FREQ_SCALE * np.exp(-2 * half * math.log(1e4) / dim)
  phases = (math.pi / 2) * (np.arange(dim) % 2)
  frames = tf.range(tf.cast(size, tf.float32), dtype=tf.float32)
  centres = (tf.cast(lengths, tf.float32) - 1) / 2
  seconds = (frames[tf.newaxis, :] - centres[:, tf.newaxis]) * frame_sec
  if seed is not None:
    seconds += tf.random.stateless_uniform(
        [tf.shape(lengths)[0], 1], seed, -max_shift_sec, max_shift_sec
    )
  angles = seconds[:, :, tf.newaxis] * frequencies.astype(np.float32)
  embedding = tf.sin(angles + phases.astype(np.float32))
  return embedding * encoder.mask(lengths, size)
