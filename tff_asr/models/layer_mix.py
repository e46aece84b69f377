"""Small encoder on the outputs of a public encoder's layers.

Features are the outputs of L layers of width E, side by side, as
`pretrained.features` computes them. Each layer is normalised frame by frame,
the layers are mixed with weights that are trained (softmax of L numbers, as in
SUPERB, https://arxiv.org/abs/2105.01051), and one convolution with GELU gives D
outputs for each frame:

    mix = sum_l softmax(a)_l LN(x_l)
    outputs = dropout(GELU(conv(dropout(mix)) + b))

`num_blocks` residual blocks and a layer norm may follow, as in `conv`:

    outputs = outputs + dropout(GELU(conv(LN(outputs)) + b))

Frames past an utterance's end read as 0 in every convolution.

Whisper's layers have a few features hundreds of times larger than the others.
The norm has no weights and no statistics of data, so that every initialisation
starts at one scale, and no part of it is private.

  B: batch size. S: frames. L: layers. E: width of a layer. D: output width.
"""

from collections.abc import Sequence
import functools
import math
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution
from tff_asr.features import front_end as front_end_lib
from tff_asr.models import conv
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers as layers_lib
from tff_asr.models import weights as weights_lib

_gelu = functools.partial(tf.nn.gelu, approximate=False)


def build(
    *,
    front_end: front_end_lib.FrontEnd,
    dim: int = 128,
    kernel_size: int = 5,
    num_blocks: int = 0,
    dropout: float = 0.0,
) -> encoder_lib.Encoder:
  """Builds the encoder.

      >>> encoder = build(front_end=front_end_lib.build_log_mel())
      >>> weights_lib.num_parameters(encoder.specs)
      51329

  Args:
    front_end: Gives L and L E, its `num_layers` and `feature_dim`.
    dim: D.
    kernel_size: Frames of each kernel, odd; 1 for layers of each frame alone.
    num_blocks: Residual blocks. If 0, there is no last layer norm, either.
    dropout: Rate before and after the first convolution and in each block.

  Returns:
    An `encoder.Encoder` with S = T.

  Raises:
    ValueError: A size is not positive, num_blocks is negative, kernel_size is
      even, or dropout is outside [0, 1).
  """
  num_layers = front_end.num_layers
  width = front_end.feature_dim // num_layers
  head = _head(
      num_layers,
      width,
      dim=dim,
      kernel_size=kernel_size,
      num_blocks=num_blocks,
      dropout=dropout,
  )

  def apply(weights, features, feature_lengths, seed):
    shape = tf.shape(features)
    # As `pretrained.features` joined them: layer after layer.
    parts = tf.reshape(features, [shape[0], shape[1], num_layers, width])
    return head.apply(weights, parts, feature_lengths, seed)

  return encoder_lib.Encoder(head.specs, apply, output_lengths, dim)


def build_on(
    *,
    encoder: encoder_lib.Encoder,
    layers: Optional[Sequence[int]] = None,
    dim: int = 128,
    kernel_size: int = 5,
    num_blocks: int = 0,
    dropout: float = 0.0,
) -> encoder_lib.Encoder:
  """Builds the same on an encoder that is trained with it.

  Args:
    encoder: An encoder with `layer_outputs`, such as `pretrained.adapted` has.
    layers: Numbers of its layers, from 0, the inputs of the first block, to the
      number of blocks. None: all but 0.
    dim: D.
    kernel_size: As for `build`.
    num_blocks: As for `build`.
    dropout: As for `build`.

  Returns:
    An `encoder.Encoder` with the weights of `encoder`, trained and frozen,
    under `encoder/`.

  Raises:
    ValueError: As `build`, or there is no such layer.
  """
  chosen = encoder_lib.choose_layers(encoder, layers)
  head = _head(
      len(chosen),
      encoder.output_dim,
      dim=dim,
      kernel_size=kernel_size,
      num_blocks=num_blocks,
      dropout=dropout,
  )
  # Both trained and frozen ones, so that `select` finds them together.
  below = lambda mapping: weights_lib.prefix('encoder', mapping)

  def apply(weights, features, feature_lengths, seed):
    encoder_seed, head_seed = layers_lib.split_seed(seed, 2)
    outputs, lengths = encoder.layer_outputs(
        weights_lib.subtree('encoder', weights),
        features,
        feature_lengths,
        encoder_seed,
    )
    parts = tf.stack([outputs[layer] for layer in chosen], axis=2)
    return head.apply(weights, parts, lengths, head_seed)

  return encoder_lib.Encoder(
      {**below(encoder.specs), **head.specs},
      apply,
      encoder.output_lengths,
      dim,
      frozen=below(encoder.frozen),
  )


def output_lengths(feature_lengths: tf.Tensor) -> tf.Tensor:
  """One output a frame: S = T."""
  return feature_lengths


def _head(
    num_layers: int,
    width: int,
    *,
    dim: int,
    kernel_size: int,
    num_blocks: int,
    dropout: float,
) -> encoder_lib.Encoder:
  """The encoder of inputs float32 [B, S, L, E]; raises for bad settings."""
  checks.positive_int(dim=dim, kernel_size=kernel_size)
  checks.non_negative_int(num_blocks=num_blocks)
  checks.below_one(dropout=dropout)
  if kernel_size % 2 == 0:
    raise ValueError(f'kernel_size must be odd, found {kernel_size}.')
  fan_in = kernel_size * width
  specs = {
      'bias': weights_lib.zeros_spec(dim),
      'kernel': weights_lib.WeightSpec(
          (kernel_size, width, dim),
          # LeCun uniform: outputs have the variance of the inputs.
          limit=math.sqrt(3 / fan_in),
      ),
      # Equal shares at first.
      'mix': weights_lib.zeros_spec(num_layers),
  }

  def apply(weights, parts, lengths, seed):
    mix_seed, output_seed = layers_lib.split_seed(seed, 2)
    parts = layers_lib.normalize_frames(parts)
    # Shares sum to 1, so that the mix stays at the scale of one layer.
    shares = tf.nn.softmax(weights['mix'])
    hidden = tf.reduce_sum(parts * shares[:, tf.newaxis], axis=2)
    hidden = layers_lib.dropout(hidden, dropout, mix_seed)
    # Frames past the end read as 0.
    hidden *= layers_lib.length_mask(lengths, tf.shape(hidden)[1])
    reach = kernel_size // 2
    padded = tf.pad(hidden, [[0, 0], [reach, reach], [0, 0]])
    hidden = convolution.convolve(padded, weights['kernel'], 1)
    hidden = _gelu(hidden + weights['bias'])
    return layers_lib.dropout(hidden, dropout, output_seed), lengths

  front = encoder_lib.Encoder(specs, apply, output_lengths, dim)
  if num_blocks == 0:
    return front
  return encoder_lib.stack(
      front,
      num_blocks=num_blocks,
      block_specs=conv.convolution_specs(dim, kernel_size, num_outputs=dim),
      apply_block=functools.partial(
          conv.add_convolution, activation=_gelu, dropout=dropout
      ),
      # The residual stream is not normalised inside the blocks.
      final_norm=True,
  )
