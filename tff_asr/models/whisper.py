"""Encoder of Whisper, all sizes.

Radford et al. 2022, https://arxiv.org/abs/2212.04356: two convolutions over
time (kernel 3, GELU; the second halves the frames), sinusoidal positions,
pre-norm blocks (`gelu_block`), a final layer norm. The features are those of
`features/whisper_log_mel`.

Whisper pads every utterance to 30 s of silence and attends to all of it. Here
attention and convolutions end with the utterance, so that a second of speech
costs a second: the convolutions read 0 past the end, attention is masked. An
utterance of 30 s has the same outputs as in Whisper.

    >>> encoder = build(num_blocks=4, dim=384, mlp_dim=1536, num_heads=6)
    >>> weights_lib.num_parameters(encoder.specs)  # Whisper tiny.
    8209920

The positions are weights (`front/positions`), because published files hold them
rounded to float16, and are at most max_positions frames long: a longer batch
ends in TensorFlow's InvalidArgumentError. Whisper does not train them.

  B: batch size. T: feature frames. F: mel bins. S: frames after the second
  convolution. D: width.
"""

import math

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution
from tff_asr.features import whisper_log_mel
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import gelu_block
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib

STRIDE = 2
MAX_POSITIONS = 1500  # Of 20 ms: 30 s.

_KERNEL = 3
_LONGEST_PERIOD = 1e4


def build(
    *,
    num_blocks: int,
    dim: int,
    mlp_dim: int,
    num_heads: int,
    max_positions: int = MAX_POSITIONS,
    feature_dim: int = whisper_log_mel.NUM_MEL_BINS,
    dropout: float = 0.0,
    layer_drop: float = 0.0,
    activation_dtype: str = 'float32',
    adapter_dim: int = 0,
) -> encoder_lib.Encoder:
  """Builds the encoder.

  Args:
    num_blocks: Transformer blocks.
    dim: D, even and divisible by num_heads.
    mlp_dim: Hidden width of the blocks' MLPs.
    num_heads: Attention heads.
    max_positions: Largest S.
    feature_dim: F; 80, and 128 for Whisper's third large model.
    dropout: Rate after the positions and in the blocks; see `gelu_block`.
    layer_drop: Probability that training skips a block.
    activation_dtype: 'float32' or 'bfloat16' in the blocks; see `layers`.
    adapter_dim: Width of the bottleneck of an adapter after each block, which
      begins as the identity (`adapter`); 0: no adapters.

  Returns:
    An `encoder.Encoder` with D = dim, S = ceil(T / 2) and `layer_outputs`.

  Raises:
    ValueError: A size is not positive, a rate is outside [0, 1], dropout is 1,
      or dim is odd or not divisible by num_heads.
  """
  checks.positive_int(
      dim=dim, max_positions=max_positions, feature_dim=feature_dim
  )
  if dim % 2:
    raise ValueError(f'dim must be even, found {dim}.')
  return gelu_block.stack(
      _build_front(
          feature_dim=feature_dim,
          dim=dim,
          max_positions=max_positions,
          dropout=dropout,
      ),
      num_blocks=num_blocks,
      mlp_dim=mlp_dim,
      num_heads=num_heads,
      norm='pre',
      dropout=dropout,
      layer_drop=layer_drop,
      activation_dtype=activation_dtype,
      adapter_dim=adapter_dim,
  )


def output_lengths(feature_lengths: tf.Tensor) -> tf.Tensor:
  """Pairs of frames, the last of which may be half: S = ceil(T / 2)."""
  return (feature_lengths + 1) // STRIDE


def positions(*, max_positions: int, dim: int) -> np.ndarray:
  """Whisper's sinusoids: the sines of a frame's number, then the cosines.

  Args:
    max_positions: Frames.
    dim: D, even.

  Returns:
    float32 [max_positions, D], with frequencies 10000^(-k / (D / 2 - 1))
    radians a frame for k = 0 to D / 2 - 1.
  """
  half = dim // 2
  # The last frequency is exactly 1 / 10000, unlike in Vaswani et al. 2017.
  exponents = np.arange(half) / max(half - 1, 1)
  angles = np.arange(max_positions)[:, np.newaxis] * _LONGEST_PERIOD**-exponents
  return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def _build_front(
    *, feature_dim: int, dim: int, max_positions: int, dropout: float
) -> encoder_lib.Encoder:
  """Convolutions and positions."""
  specs = {
      'bias_1': weights_lib.zeros_spec(dim),
      'bias_2': weights_lib.zeros_spec(dim),
      'kernel_1': _kernel(feature_dim, dim),
      'kernel_2': _kernel(dim, dim),
      # From the published file, or `positions`.
      'positions': weights_lib.WeightSpec((max_positions, dim)),
  }

  def apply(weights, features, feature_lengths, seed):
    valid = layers.length_mask(feature_lengths, tf.shape(features)[1])
    # Chosen, not multiplied: padding may hold anything, and 0 * NaN is NaN.
    hidden = tf.where(valid > 0, features, 0.0)
    hidden = _convolve(hidden, weights['kernel_1'], stride=1)
    # The bias made padding nonzero, which the next convolution would read.
    hidden = gelu_block.exact_gelu(hidden + weights['bias_1']) * valid
    hidden = _convolve(hidden, weights['kernel_2'], stride=STRIDE)
    hidden = gelu_block.exact_gelu(hidden + weights['bias_2'])
    # An utterance begins at position 0, as in Whisper's window of 30 s.
    hidden += weights['positions'][: tf.shape(hidden)[1]]
    outputs = layers.dropout(hidden, dropout, seed)
    return outputs, output_lengths(feature_lengths)

  return encoder_lib.Encoder(specs, apply, output_lengths, dim)


def _kernel(fan_in: int, fan_out: int) -> weights_lib.WeightSpec:
  """A kernel that keeps the variance of its inputs."""
  limit = math.sqrt(3 / (_KERNEL * fan_in))
  return weights_lib.WeightSpec((_KERNEL, fan_in, fan_out), limit=limit)


def _convolve(
    inputs: tf.Tensor, kernel: tf.Tensor, *, stride: int
) -> tf.Tensor:
  """Frames centred on every stride-th; reads 0 outside of [B, T, K]."""
  padded = tf.pad(inputs, [[0, 0], [1, 1], [0, 0]])
  return convolution.convolve(padded, kernel, stride)
