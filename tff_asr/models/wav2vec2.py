"""Encoder of wav2vec 2.0 and HuBERT, base and large.

Baevski et al. 2020, https://arxiv.org/abs/2006.11477, and Hsu et al. 2021,
https://arxiv.org/abs/2106.07447, which share it: convolutions over the waveform
without padding (GELU), a layer norm and a projection, positions by a grouped
convolution, transformer blocks (`gelu_block`). Base models have a group norm
after the first convolution and post-norm blocks; large ones have a layer norm
after each convolution and pre-norm blocks.

    >>> base = build(num_blocks=12, dim=768, mlp_dim=3072, num_heads=12)
    >>> weights_lib.num_parameters(base.specs)
    94370816
    >>> base.output_lengths(16000)  # Of 20 ms.
    49

Differences from `transformers`:

- Padding never affects outputs. There, base models take a batch's padding for
  zeros of the utterance: the group norm's mean and variance include them, and
  attention is not masked. Here both end with the utterance, which gives the
  outputs that it has there in a batch of one.
- The kernel of the positions is one weight, without weight norm; what training
  does to it differs in the step, not in the function.
- There is no mask of learned vectors in training (`masked_spec_embed`).

  B: batch size. T: samples. S: frames. D: width. K: kernel size.
"""

import dataclasses
import math

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import gelu_block
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib

CONV_NORMS = ('group', 'layer')

_BASE_DIMS = (512,) * 7
_BASE_KERNELS = (10, 3, 3, 3, 3, 2, 2)
_BASE_STRIDES = (5, 2, 2, 2, 2, 2, 2)


def build(
    *,
    num_blocks: int,
    dim: int,
    mlp_dim: int,
    num_heads: int,
    conv_dims: tuple[int, ...] = _BASE_DIMS,
    conv_kernels: tuple[int, ...] = _BASE_KERNELS,
    conv_strides: tuple[int, ...] = _BASE_STRIDES,
    conv_bias: bool = False,
    conv_norm: str = 'group',
    input_norm: bool = True,
    position_kernel: int = 128,
    position_groups: int = 16,
    norm: str = 'post',
    dropout: float = 0.0,
    layer_drop: float = 0.0,
    activation_dtype: str = 'float32',
    adapter_dim: int = 0,
) -> encoder_lib.Encoder:
  """Builds the encoder; its defaults are those of the base models.

  Args:
    num_blocks: Transformer blocks.
    dim: D, divisible by num_heads and position_groups.
    mlp_dim: Hidden width of the blocks' MLPs.
    num_heads: Attention heads.
    conv_dims: Channels of each convolution.
    conv_kernels: Samples or frames of each convolution's kernel.
    conv_strides: Their strides.
    conv_bias: Whether they have biases.
    conv_norm: 'group', a group norm of one channel a group after the first
      convolution; or 'layer', a layer norm after each.
    input_norm: Whether a layer norm precedes the projection to D.
    position_kernel: K of the positions' convolution.
    position_groups: Its groups.
    norm: 'pre' or 'post'; see `gelu_block`.
    dropout: Rate after the projection and the positions and in the blocks.
    layer_drop: Probability that training skips a block.
    activation_dtype: 'float32' or 'bfloat16' in the blocks; see `layers`.
    adapter_dim: Width of the bottleneck of an adapter after each block, which
      begins as the identity (`adapter`); 0: no adapters.

  Returns:
    An `encoder.Encoder` with `layer_outputs`, which takes waveforms float32
    [B, T] of 16 kHz in place of features.

  Raises:
    ValueError: A size is not positive, the convolutions' lists differ in
      length, an unknown norm, a rate is outside [0, 1], dropout is 1, or dim is
      not divisible by num_heads or position_groups.
  """
  checks.positive_int(
      dim=dim, position_kernel=position_kernel, position_groups=position_groups
  )
  checks.one_of(CONV_NORMS, conv_norm=conv_norm)
  if not len(conv_dims) == len(conv_kernels) == len(conv_strides) > 0:
    raise ValueError(
        'conv_dims, conv_kernels and conv_strides must have one entry for each '
        f'convolution, found {conv_dims}, {conv_kernels} and {conv_strides}.'
    )
  for sizes in zip(conv_dims, conv_kernels, conv_strides):
    names = ('conv_dims', 'conv_kernels', 'conv_strides')
    checks.positive_int(**dict(zip(names, sizes)))
  if dim % position_groups:
    raise ValueError(
        f'dim must be divisible by position_groups, found dim {dim} and '
        f'position_groups {position_groups}.'
    )
  return gelu_block.stack(
      _Front(
          dim=dim,
          conv_dims=conv_dims,
          conv_kernels=conv_kernels,
          conv_strides=conv_strides,
          conv_bias=conv_bias,
          conv_norm=conv_norm,
          input_norm=input_norm,
          position_kernel=position_kernel,
          position_groups=position_groups,
          norm=norm,
          dropout=dropout,
      ).encoder(),
      num_blocks=num_blocks,
      mlp_dim=mlp_dim,
      num_heads=num_heads,
      norm=norm,
      dropout=dropout,
      layer_drop=layer_drop,
      activation_dtype=activation_dtype,
      adapter_dim=adapter_dim,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Front:
  """All that precedes the blocks; the fields are arguments of `build`."""

  dim: int
  conv_dims: tuple[int, ...]
  conv_kernels: tuple[int, ...]
  conv_strides: tuple[int, ...]
  conv_bias: bool
  conv_norm: str
  input_norm: bool
  position_kernel: int
  position_groups: int
  norm: str
  dropout: float

  def encoder(self) -> encoder_lib.Encoder:
    return encoder_lib.Encoder(
        self._specs(), self._apply, self._output_lengths, self.dim
    )

  @property
  def _names(self) -> list[str]:
    """Names of the convolutions."""
    return [f'conv_{index}' for index in range(len(self.conv_dims))]

  @property
  def _normed(self) -> list[str]:
    """Names of the convolutions with a norm."""
    # Where 'group' is used, the later convolutions have no norm at all.
    return self._names[:1] if self.conv_norm == 'group' else self._names

  def _specs(self) -> weights_lib.Specs:
    group_dim = self.dim // self.position_groups
    specs = {
        'position_bias': weights_lib.zeros_spec(self.dim),
        'position_kernel': weights_lib.WeightSpec(
            # A channel reads its own group only.
            (self.position_kernel, group_dim, self.dim),
            limit=math.sqrt(3 / (self.position_kernel * group_dim)),
        ),
        'projection': weights_lib.matrix_spec(self.conv_dims[-1], self.dim),
        'projection_bias': weights_lib.zeros_spec(self.dim),
    }
    for name, fan_in, fan_out, size in zip(
        self._names, (1, *self.conv_dims), self.conv_dims, self.conv_kernels
    ):
      specs[f'{name}/kernel'] = weights_lib.WeightSpec(
          (size, fan_in, fan_out), limit=math.sqrt(3 / (size * fan_in))
      )
      if self.conv_bias:
        specs[f'{name}/bias'] = weights_lib.zeros_spec(fan_out)
      if name in self._normed:
        specs |= weights_lib.prefix(f'{name}/norm', layers.norm_specs(fan_out))
    if self.input_norm:
      specs |= weights_lib.prefix(
          'input_norm', layers.norm_specs(self.conv_dims[-1])
      )
    if self.norm == 'post':
      specs |= weights_lib.prefix('output_norm', layers.norm_specs(self.dim))
    return specs

  def _output_lengths(self, num_samples):
    for size, stride in zip(self.conv_kernels, self.conv_strides):
      num_samples = (num_samples - size) // stride + 1
    # Below one window the formula is negative: max(0, x), also of tensors.
    return (num_samples + abs(num_samples)) // 2

  def _apply(self, weights, waveforms, num_samples, seed):
    projection_seed, position_seed = layers.split_seed(seed, 2)
    hidden = self._convolve(weights, waveforms, num_samples)
    lengths = self._output_lengths(num_samples)
    if self.input_norm:
      hidden = layers.layer_norm(
          weights_lib.subtree('input_norm', weights), hidden
      )
    hidden = layers.linear(
        hidden, weights['projection'], weights['projection_bias']
    )
    hidden = layers.dropout(hidden, self.dropout, projection_seed)
    # The positions' convolution must read 0 past the end.
    hidden *= layers.length_mask(lengths, tf.shape(hidden)[1])
    hidden += gelu_block.exact_gelu(
        _grouped_convolution(hidden, weights['position_kernel'])
        + weights['position_bias']
    )
    # Blocks of 'pre' begin with a norm of their own.
    if self.norm == 'post':
      hidden = layers.layer_norm(
          weights_lib.subtree('output_norm', weights), hidden
      )
    return layers.dropout(hidden, self.dropout, position_seed), lengths

  def _convolve(self, weights, waveforms, num_samples):
    """Waveforms [B, T] to frames [B, S, channels]."""
    inside = tf.sequence_mask(num_samples, tf.shape(waveforms)[1])
    # Chosen, not multiplied: padding may hold anything, and 0 * NaN is NaN.
    hidden = tf.where(inside, waveforms, 0.0)[:, :, tf.newaxis]
    lengths = num_samples
    for name, size, stride in zip(
        self._names, self.conv_kernels, self.conv_strides
    ):
      own = weights_lib.subtree(name, weights)
      hidden = convolution.convolve(hidden, own['kernel'], stride)
      lengths = (lengths - size) // stride + 1
      if self.conv_bias:
        hidden += own['bias']
      if name in self._normed:
        hidden = self._normalize(
            weights_lib.subtree('norm', own), hidden, lengths
        )
      # Frames past the end are finite, and none before the end reads them.
      hidden = gelu_block.exact_gelu(hidden)
    return hidden

  def _normalize(self, weights, hidden, lengths):
    if self.conv_norm == 'layer':
      return layers.layer_norm(weights, hidden)
    return layers.group_norm(
        weights,
        hidden,
        # Its statistics are over time, so padding must not count.
        layers.length_mask(lengths, tf.shape(hidden)[1]),
        num_groups=hidden.shape[-1],
    )


def _grouped_convolution(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  """Convolves groups of channels, with zeros around the frames.

  Args:
    inputs: float32 [B, S, D].
    kernel: float32 [K, D / groups, D]; each group's outputs are adjacent.

  Returns:
    float32 [B, S, D]; of an even K, the frame read is the first after the
    middle.
  """
  size, group_dim, dim = kernel.shape
  before = size // 2
  padded = tf.pad(inputs, [[0, 0], [before, size - 1 - before], [0, 0]])
  num_groups = dim // group_dim
  # Group by group: TensorFlow has no gradient of grouped convolutions on CPUs.
  parts = zip(
      tf.split(padded, num_groups, axis=2), tf.split(kernel, num_groups, axis=2)
  )
  return tf.concat(
      [convolution.convolve(part, own, 1) for part, own in parts], axis=2
  )
