"""Convolutional encoder with gated residual blocks.

The convolutional front end of the transformer, then blocks

    x = x + dropout(GLU(conv(LN(x)) + b))

with a 1-D convolution over an odd number of frames centred on each (Dauphin et
al. 2017, https://arxiv.org/abs/1612.08083, here not causal), and a final layer
norm. The federated ASR paper does not use it; it serves to compare per-layer
clipping. Frames past an utterance's end read as 0 in every convolution,
whether they are padding of the batch or lie outside it.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames. D: width.
"""

from collections.abc import Callable
import functools
import math
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution
from tff_asr.features import log_mel
from tff_asr.models import encoder
from tff_asr.models import layers
from tff_asr.models import subsampling
from tff_asr.models import weights as weights_lib


def build(
    *,
    num_blocks: int,
    dim: int,
    kernel_size: int,
    dropout: float = 0.0,
    feature_dim: int = log_mel.NUM_MEL_BINS,
    activation_dtype: str = 'float32',
) -> encoder.Encoder:
  """Builds the encoder.

  Args:
    num_blocks: Residual blocks.
    dim: D.
    kernel_size: Frames of a block's convolution kernel, odd.
    dropout: Rate after the front end and in each block.
    feature_dim: F.
    activation_dtype: 'float32' or 'bfloat16'; see `layers`.

  Returns:
    An `encoder.Encoder` with D = dim and S = T // 3.

  Raises:
    ValueError: An unknown activation_dtype, a size is not positive, kernel_size
      is even, or dropout is outside [0, 1).
  """
  checks.positive_int(kernel_size=kernel_size)
  checks.one_of(layers.ACTIVATION_DTYPES, activation_dtype=activation_dtype)
  # An even kernel has no frame at its centre.
  if kernel_size % 2 == 0:
    raise ValueError(f'kernel_size must be odd, found {kernel_size}.')

  return encoder.stack(
      subsampling.build_3x(
          feature_dim=feature_dim,
          dim=dim,
          dropout=dropout,
      ),
      num_blocks=num_blocks,
      # Twice the width, which the gated linear unit halves.
      block_specs=convolution_specs(dim, kernel_size, num_outputs=2 * dim),
      apply_block=functools.partial(
          add_convolution,
          activation=layers.glu,
          dropout=dropout,
          activation_dtype=activation_dtype,
      ),
      # The residual stream is not normalised inside the blocks.
      final_norm=True,
  )


def convolution_specs(
    dim: int, kernel_size: int, *, num_outputs: int
) -> weights_lib.Specs:
  """Returns the weights of `add_convolution`, whose kernel is LeCun uniform."""
  fan_in = kernel_size * dim
  return {
      'bias': weights_lib.zeros_spec(num_outputs),
      'kernel': weights_lib.WeightSpec(
          (kernel_size, dim, num_outputs), limit=math.sqrt(3 / fan_in)
      ),
      **weights_lib.prefix('norm', layers.norm_specs(dim)),
  }


def add_convolution(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    seed: Optional[tf.Tensor],
    *,
    activation: Callable[[tf.Tensor], tf.Tensor],
    dropout: float,
    activation_dtype: str = 'float32',
) -> tf.Tensor:
  """Returns x + dropout(activation(conv(LN(x)) + b)), an `encoder.Block`.

  Args:
    weights: As in `convolution_specs`.
    inputs: float32 [B, S, D].
    valid: float32 [B, S, 1], 1 for frames of the utterance, 0 for padding.
    seed: int32 [2] in training, else None.
    activation: Has D outputs for the convolution's `num_outputs`.
    dropout: Rate of what is added.
    activation_dtype: 'float32' or 'bfloat16' in the convolution.
  """
  normed = layers.layer_norm(weights_lib.subtree('norm', weights), inputs)
  kernel = tf.cast(weights['kernel'], activation_dtype)
  reach = kernel.shape[0] // 2
  # Layer norm makes padding nonzero; the convolution must read 0 there.
  padded = tf.pad(normed * valid, [[0, 0], [reach, reach], [0, 0]])
  hidden = convolution.convolve(tf.cast(padded, activation_dtype), kernel, 1)
  # The residual stream stays float32.
  hidden = tf.cast(hidden, tf.float32) + weights['bias']
  return inputs + layers.dropout(activation(hidden), dropout, seed)
