"""Conformer encoder with group norm.

Gulati et al. 2020, https://arxiv.org/abs/2005.08100: a convolutional front end
(`subsampling_2d`), then blocks

    x = x + FFN(x) / 2
    x = x + relative_attention(LN(x))
    x = x + W_4 swish(GN(depthwise(glu(W_3 LN(x)))))
    x = x + FFN(x) / 2
    x = LN(x),    FFN(x) = W_2 swish(W_1 LN(x))

with dropout at the end of each of the four and after the swish of an FFN.
Differences: group norm in place of batch norm, whose statistics couple the
examples of a batch (private gradients by example forbid it, and clients have
none to share; so in https://arxiv.org/abs/2409.13953), taken over valid frames
only; matrices have no biases, as in `transformer`.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames. D: width.
"""

import math
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import log_mel
from tff_asr.models import encoder
from tff_asr.models import norms
from tff_asr.models import relative_attention
from tff_asr.models import subsampling_2d
from tff_asr.models import weights as weights_lib


def build(
    *,
    num_blocks: int,
    dim: int,
    mlp_dim: int,
    num_heads: int,
    kernel_size: int = 5,
    num_groups: int = 8,
    front_channels: int = 32,
    dropout: float = 0.0,
    feature_dim: int = log_mel.NUM_MEL_BINS,
    activation_dtype: str = 'float32',
) -> encoder.Encoder:
  """Builds the encoder.

  Args:
    num_blocks: Conformer blocks.
    dim: D, divisible by num_heads and num_groups.
    mlp_dim: Hidden width of the blocks' FFNs.
    num_heads: Attention heads.
    kernel_size: Frames that a depthwise convolution sees, odd.
    num_groups: Groups of channels of the group norms.
    front_channels: Channels of the front end's convolutions.
    dropout: Rate.
    feature_dim: F, at least 4.
    activation_dtype: 'float32' or 'bfloat16'; see `encoder`.

  Returns:
    An `encoder.Encoder` with D = dim and S = T // 4.

  Raises:
    ValueError: An unknown activation_dtype, a size is not positive, dropout is
      outside [0, 1), kernel_size is even, feature_dim below 4, or dim not
      divisible by num_heads and num_groups.
  """
  checks.positive_int(
      num_blocks=num_blocks,
      dim=dim,
      mlp_dim=mlp_dim,
      num_heads=num_heads,
      kernel_size=kernel_size,
      num_groups=num_groups,
      front_channels=front_channels,
      feature_dim=feature_dim,
  )
  encoder.check_dropout(dropout)
  checks.one_of(encoder.ACTIVATION_DTYPES, activation_dtype=activation_dtype)
  if dim % num_heads or dim % num_groups:
    raise ValueError(
        'dim must be divisible by num_heads and num_groups, found dim '
        f'{dim}, num_heads {num_heads} and num_groups {num_groups}.'
    )
  if kernel_size % 2 == 0:
    raise ValueError(f'kernel_size must be odd, found {kernel_size}.')
  if feature_dim < subsampling_2d.STRIDE:
    raise ValueError(f'feature_dim must be at least 4, found {feature_dim}.')

  names = encoder.block_names(num_blocks)
  front = subsampling_2d.specs(
      feature_dim=feature_dim, channels=front_channels, dim=dim
  )
  specs = dict(weights_lib.prefix('front', front))
  for name in names:
    specs |= weights_lib.prefix(name, _block_specs(dim, mlp_dim, kernel_size))

  def apply(
      weights: weights_lib.Weights,
      features: tf.Tensor,
      feature_lengths: tf.Tensor,
      seed: Optional[tf.Tensor],
  ) -> tuple[tf.Tensor, tf.Tensor]:
    front_seed, *block_seeds = encoder.split_seed(seed, num_blocks + 1)
    hidden, lengths = subsampling_2d.apply(
        weights_lib.select('front', weights),
        features,
        feature_lengths,
        dropout=dropout,
        activation_dtype=activation_dtype,
        seed=front_seed,
    )
    valid = encoder.mask(lengths, tf.shape(hidden)[1])
    for name, block_seed in zip(names, block_seeds):
      hidden = _block(
          weights_lib.select(name, weights),
          hidden,
          valid,
          num_heads=num_heads,
          num_groups=num_groups,
          dropout=dropout,
          seed=block_seed,
      )
    return tf.cast(hidden, tf.float32), lengths

  return encoder.Encoder(specs, apply, subsampling_2d.output_lengths, dim)


def _block_specs(
    dim: int, mlp_dim: int, kernel_size: int
) -> weights_lib.Specs:
  """Weights of one block."""
  mlp = {
      **weights_lib.prefix('ln', norms.specs(dim)),
      'w1': weights_lib.matrix(dim, mlp_dim),
      'w2': weights_lib.matrix(mlp_dim, dim),
  }
  attention = {
      **weights_lib.prefix('ln', norms.specs(dim)),
      **relative_attention.specs(dim=dim),
  }
  convolution = {
      'depthwise': weights_lib.WeightSpec(
          (kernel_size, dim), limit=1 / math.sqrt(kernel_size)
      ),
      **weights_lib.prefix('gn', norms.specs(dim)),
      **weights_lib.prefix('ln', norms.specs(dim)),
      'w3': weights_lib.matrix(dim, 2 * dim),
      'w4': weights_lib.matrix(dim, dim),
  }
  return {
      **weights_lib.prefix('attention', attention),
      **weights_lib.prefix('conv', convolution),
      **weights_lib.prefix('ln', norms.specs(dim)),
      **weights_lib.prefix('mlp_1', mlp),
      **weights_lib.prefix('mlp_2', mlp),
  }


def _block(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    *,
    num_heads: int,
    num_groups: int,
    dropout: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """One block."""
  mlp_1_seed, attention_seed, conv_seed, mlp_2_seed = encoder.split_seed(
      seed, 4
  )
  part = lambda name: weights_lib.select(name, weights)
  hidden = inputs + _mlp(part('mlp_1'), inputs, dropout, mlp_1_seed) / 2
  hidden += _attention(
      part('attention'), hidden, valid, num_heads, dropout, attention_seed
  )
  hidden += _convolution(
      part('conv'), hidden, valid, num_groups, dropout, conv_seed
  )
  hidden += _mlp(part('mlp_2'), hidden, dropout, mlp_2_seed) / 2
  return norms.layer_norm(part('ln'), hidden)


def _mlp(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    dropout: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """The feed-forward module."""
  inner_seed, outer_seed = encoder.split_seed(seed, 2)
  normed = norms.layer_norm(weights_lib.select('ln', weights), inputs)
  inner = _swish(encoder.matmul(normed, weights['w1']))
  inner = encoder.dropout(inner, dropout, inner_seed)
  outputs = encoder.matmul(inner, weights['w2'])
  return encoder.dropout(outputs, dropout, outer_seed)


def _attention(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    num_heads: int,
    dropout: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """The attention module."""
  inner_seed, outer_seed = encoder.split_seed(seed, 2)
  outputs = relative_attention.apply(
      weights,
      norms.layer_norm(weights_lib.select('ln', weights), inputs),
      valid,
      num_heads=num_heads,
      dropout=dropout,
      seed=inner_seed,
  )
  return encoder.dropout(outputs, dropout, outer_seed)


def _convolution(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    num_groups: int,
    dropout: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """The convolution module."""
  normed = norms.layer_norm(weights_lib.select('ln', weights), inputs)
  value, gate = tf.split(encoder.matmul(normed, weights['w3']), 2, axis=-1)
  gated = value * tf.sigmoid(gate)
  hidden = _depthwise(gated * tf.cast(valid, gated.dtype), weights['depthwise'])
  hidden = norms.group_norm(
      weights_lib.select('gn', weights), hidden, valid, num_groups=num_groups
  )
  outputs = encoder.matmul(_swish(hidden), weights['w4'])
  return encoder.dropout(outputs, dropout, seed)


def _depthwise(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  """Each channel of [B, S, D] convolved with its column of [kernel size, D].

  As a sum of shifted products: these have gradients by example at the speed of
  gradients by batch, which no convolution op has.
  """
  kernel = tf.cast(kernel, inputs.dtype)
  kernel_size, size = kernel.shape[0], tf.shape(inputs)[1]
  reach = kernel_size // 2
  padded = tf.pad(inputs, [[0, 0], [reach, reach], [0, 0]])
  return tf.add_n(
      [padded[:, k : k + size] * kernel[k] for k in range(kernel_size)]
  )


def _swish(inputs: tf.Tensor) -> tf.Tensor:
  """x sigmoid(x); tf.nn.swish has a gradient of its own, which pfor lacks."""
  return inputs * tf.sigmoid(inputs)
