"""Conformer encoder with group norm.

Gulati et al. 2020, https://arxiv.org/abs/2005.08100: a convolutional front end
(`subsampling`, 4x), then blocks

    x = x + FFN(x) / 2
    x = x + attention(LN(x))
    x = x + W_4 swish(GN(depthwise(glu(W_3 LN(x)))))
    x = x + FFN(x) / 2
    x = LN(x),    FFN(x) = W_2 swish(W_1 LN(x))

with dropout at the end of each of the four and after the swish of an FFN.
Differences from the paper: group norm over valid frames replaces batch norm, as
in https://arxiv.org/abs/2409.13953, because the statistics of batch norm couple
the examples of a batch, which private gradients by example forbid. Matrices
have no biases, as in `transformer`. Relative positions can be left out, as in
the Conformer XL of Zhang et al. 2020, https://arxiv.org/abs/2010.10504, where
the convolutions encode the position.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames. D: width.
"""

from collections.abc import Callable
import functools
import math
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import log_mel
from tff_asr.models import attention
from tff_asr.models import encoder
from tff_asr.models import layers
from tff_asr.models import subsampling
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
    relative_attention: bool = True,
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
    kernel_size: Frames of a depthwise convolution's kernel, odd.
    num_groups: Groups of channels of the group norm after the depthwise
      convolution.
    front_channels: Channels of the front end's convolutions.
    relative_attention: Whether attention has relative positions, or none.
    dropout: Rate.
    feature_dim: F, at least 4.
    activation_dtype: 'float32' or 'bfloat16'; see `layers`.

  Returns:
    An `encoder.Encoder` with D = dim and S = T // 4.

  Raises:
    ValueError: An unknown activation_dtype, a size is not positive,
      dropout is outside [0, 1), kernel_size is even, feature_dim below 4, or
      dim not divisible by num_heads and num_groups.
  """
  checks.positive_int(
      mlp_dim=mlp_dim,
      num_heads=num_heads,
      kernel_size=kernel_size,
      num_groups=num_groups,
  )
  if dim % num_heads or dim % num_groups:
    raise ValueError(
        'dim must be divisible by num_heads and num_groups, found dim '
        f'{dim}, num_heads {num_heads} and num_groups {num_groups}.'
    )
  # An even kernel has no frame at its centre.
  if kernel_size % 2 == 0:
    raise ValueError(f'kernel_size must be odd, found {kernel_size}.')
  return encoder.stack(
      subsampling.build_4x(
          feature_dim=feature_dim,
          channels=front_channels,
          dim=dim,
          dropout=dropout,
          activation_dtype=activation_dtype,
      ),
      num_blocks=num_blocks,
      block_specs=_block_specs(dim, mlp_dim, kernel_size, relative_attention),
      # No final norm: each block ends with one.
      apply_block=functools.partial(
          _block,
          attend=functools.partial(
              attention.apply_relative
              if relative_attention
              else attention.apply,
              num_heads=num_heads,
              dropout=dropout,
          ),
          num_groups=num_groups,
          dropout=dropout,
          activation_dtype=activation_dtype,
      ),
  )


def _block_specs(
    dim: int,
    mlp_dim: int,
    kernel_size: int,
    relative_attention: bool,
) -> weights_lib.Specs:
  """Weights of one block."""
  # Each module normalises its inputs first.
  layer_norm = weights_lib.prefix('ln', layers.norm_specs(dim))
  mlp = {
      **layer_norm,
      'w1': weights_lib.matrix_spec(dim, mlp_dim),
      'w2': weights_lib.matrix_spec(mlp_dim, dim),
  }
  attention_specs = (
      attention.relative_specs if relative_attention else attention.specs
  )
  convolution = {
      **layer_norm,
      # The fan-in of a depthwise convolution is its kernel size alone.
      'depthwise': weights_lib.WeightSpec(
          (kernel_size, dim), limit=1 / math.sqrt(kernel_size)
      ),
      **weights_lib.prefix('gn', layers.norm_specs(dim)),
      'w3': weights_lib.matrix_spec(dim, 2 * dim),
      'w4': weights_lib.matrix_spec(dim, dim),
  }
  return {
      **layer_norm,
      **weights_lib.prefix(
          'attention', {**layer_norm, **attention_specs(dim=dim)}
      ),
      **weights_lib.prefix('conv', convolution),
      **weights_lib.prefix('mlp_1', mlp),
      **weights_lib.prefix('mlp_2', mlp),
  }


def _block(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    seed: Optional[tf.Tensor],
    *,
    attend: Callable[..., tf.Tensor],
    num_groups: int,
    dropout: float,
    activation_dtype: str,
) -> tf.Tensor:
  """One block."""

  def mlp(weights, normed, seed):
    inner_seed, outer_seed = layers.split_seed(seed, 2)
    inner = _swish(layers.matmul(normed, weights['w1']))
    inner = layers.dropout(inner, dropout, inner_seed)
    outputs = layers.matmul(inner, weights['w2'])
    return layers.dropout(outputs, dropout, outer_seed)

  def attention_module(weights, normed, seed):
    inner_seed, outer_seed = layers.split_seed(seed, 2)
    outputs = attend(weights, normed, valid, seed=inner_seed)
    return layers.dropout(outputs, dropout, outer_seed)

  def convolution(weights, normed, seed):
    gated = layers.glu(layers.matmul(normed, weights['w3']))
    # Padding must read as 0 in the convolution.
    gated *= tf.cast(valid, gated.dtype)
    hidden = _depthwise(gated, weights['depthwise'])
    hidden = layers.group_norm(
        weights_lib.subtree('gn', weights),
        hidden,
        valid,
        num_groups=num_groups,
    )
    outputs = layers.matmul(_swish(hidden), weights['w4'])
    return layers.dropout(outputs, dropout, seed)

  def run(module, name, hidden, seed):
    """A module on the normed stream, in `activation_dtype`; its outputs."""
    own = weights_lib.subtree(name, weights)
    normed = layers.layer_norm(weights_lib.subtree('ln', own), hidden)
    # The residual stream stays float32.
    normed = tf.cast(normed, activation_dtype)
    return tf.cast(module(own, normed, seed), tf.float32)

  # Modules must not share the random bits of dropout.
  mlp_1_seed, attention_seed, conv_seed, mlp_2_seed = layers.split_seed(
      seed, 4
  )
  # Half steps: the two FFNs of a block together weigh as much as one.
  hidden = inputs + run(mlp, 'mlp_1', inputs, mlp_1_seed) / 2
  hidden += run(attention_module, 'attention', hidden, attention_seed)
  hidden += run(convolution, 'conv', hidden, conv_seed)
  hidden += run(mlp, 'mlp_2', hidden, mlp_2_seed) / 2
  return layers.layer_norm(weights_lib.subtree('ln', weights), hidden)


def _depthwise(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  """Each channel of [B, S, D] convolved with its column of [kernel size, D].

  A sum of shifted products: unlike convolution ops, these compute gradients by
  example at the speed of gradients by batch.
  """
  kernel = tf.cast(kernel, inputs.dtype)
  kernel_size, size = kernel.shape[0], tf.shape(inputs)[1]
  reach = kernel_size // 2
  # Centred: an output depends on as many frames before as after it.
  padded = tf.pad(inputs, [[0, 0], [reach, reach], [0, 0]])
  return tf.add_n(
      [padded[:, k : k + size] * kernel[k] for k in range(kernel_size)]
  )


def _swish(inputs: tf.Tensor) -> tf.Tensor:
  """x sigmoid(x)."""
  # Not tf.nn.swish: pfor, which computes gradients by example, lacks its
  # custom gradient.
  return inputs * tf.sigmoid(inputs)
