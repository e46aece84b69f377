"""Small encoder on the outputs of a public encoder's layers.

Features are the outputs of L layers of width E, side by side, as
`pretrained.features` computes them. Each layer is normalised frame by frame,
the layers are mixed with weights that are trained (softmax of L numbers, as in
SUPERB, https://arxiv.org/abs/2105.01051), and one convolution with GELU gives D
outputs for each frame:

    mix = sum_l softmax(a)_l LN(x_l)
    outputs = dropout(GELU(conv(dropout(mix)) + b))

Whisper's layers have a few features hundreds of times larger than the others.
The norm has no weights and no statistics of data, so that every initialisation
starts at one scale, and no part of it is private.

  B: batch size. S: frames. L: layers. E: width of a layer. D: output width.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple, Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution
from tff_asr.features import front_end as front_end_lib
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers as layers_lib
from tff_asr.models import weights as weights_lib


def build(
    *,
    front_end: front_end_lib.FrontEnd,
    dim: int = 128,
    kernel_size: int = 5,
    dropout: float = 0.0,
) -> encoder_lib.Encoder:
  """Builds the encoder.

      >>> encoder = build(front_end=front_end_lib.build_log_mel())
      >>> weights_lib.num_parameters(encoder.specs)
      51329

  Args:
    front_end: Gives L and L E, its `num_layers` and `feature_dim`.
    dim: D.
    kernel_size: Frames of the kernel, odd; 1 for a layer of each frame alone.
    dropout: Rate before and after the convolution.

  Returns:
    An `encoder.Encoder` with S = T.

  Raises:
    ValueError: A size is not positive, kernel_size is even, or dropout is
      outside [0, 1).
  """
  num_layers = front_end.num_layers
  width = front_end.feature_dim // num_layers
  head = _Head(num_layers, width, dim, kernel_size, dropout)

  def apply(weights, features, feature_lengths, seed):
    shape = tf.shape(features)
    # As `pretrained.features` joined them: layer after layer.
    parts = tf.reshape(features, [shape[0], shape[1], num_layers, width])
    return head(weights, parts, feature_lengths, seed), feature_lengths

  return encoder_lib.Encoder(head.specs(), apply, output_lengths, dim)


def build_on(
    *,
    encoder: encoder_lib.Encoder,
    layers: Optional[Sequence[int]] = None,
    dim: int = 128,
    kernel_size: int = 5,
    dropout: float = 0.0,
) -> encoder_lib.Encoder:
  """Builds the same on an encoder that is trained with it.

  Args:
    encoder: An encoder with `layer_outputs`, such as `pretrained.adapted` has.
    layers: Numbers of its layers, from 0, the inputs of the first block, to the
      number of blocks. None: all but 0.
    dim: D.
    kernel_size: As for `build`.
    dropout: As for `build`.

  Returns:
    An `encoder.Encoder` with the weights of `encoder`, trained and frozen,
    under `encoder/`.

  Raises:
    ValueError: As `build`, or there is no such layer.
  """
  chosen = encoder_lib.choose_layers(encoder, layers)
  head = _Head(len(chosen), encoder.output_dim, dim, kernel_size, dropout)
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
    return head(weights, parts, lengths, head_seed), lengths

  return encoder_lib.Encoder(
      {**below(encoder.specs), **head.specs()},
      apply,
      encoder.output_lengths,
      dim,
      frozen=below(encoder.frozen),
  )


def output_lengths(feature_lengths: tf.Tensor) -> tf.Tensor:
  """One output a frame: S = T."""
  return feature_lengths


class _Head(NamedTuple):
  """Norms, mix and convolution; fields as the symbols of the module."""

  num_layers: int
  width: int
  dim: int
  kernel_size: int
  dropout: float

  def specs(self) -> weights_lib.Specs:
    """Its weights; raises ValueError for bad settings."""
    checks.positive_int(dim=self.dim, kernel_size=self.kernel_size)
    checks.below_one(dropout=self.dropout)
    if self.kernel_size % 2 == 0:
      raise ValueError(f'kernel_size must be odd, found {self.kernel_size}.')
    fan_in = self.kernel_size * self.width
    return {
        'bias': weights_lib.zeros_spec(self.dim),
        'kernel': weights_lib.WeightSpec(
            (self.kernel_size, self.width, self.dim),
            # LeCun uniform: outputs have the variance of the inputs.
            limit=math.sqrt(3 / fan_in),
        ),
        # Equal shares at first.
        'mix': weights_lib.zeros_spec(self.num_layers),
    }

  def __call__(
      self,
      weights: weights_lib.Weights,
      parts: tf.Tensor,
      lengths: tf.Tensor,
      seed: Optional[tf.Tensor],
  ) -> tf.Tensor:
    """float32 [B, S, L, E] to [B, S, D]."""
    mix_seed, output_seed = layers_lib.split_seed(seed, 2)
    parts = layers_lib.normalize_frames(parts)
    # Shares sum to 1, so that the mix stays at the scale of one layer.
    shares = tf.nn.softmax(weights['mix'])
    hidden = tf.reduce_sum(parts * shares[:, tf.newaxis], axis=2)
    hidden = layers_lib.dropout(hidden, self.dropout, mix_seed)
    # Frames past the end read as 0.
    hidden *= layers_lib.length_mask(lengths, tf.shape(hidden)[1])
    reach = self.kernel_size // 2
    padded = tf.pad(hidden, [[0, 0], [reach, reach], [0, 0]])
    hidden = convolution.convolve(padded, weights['kernel'], 1)
    hidden = tf.nn.gelu(hidden + weights['bias'], approximate=False)
    return layers_lib.dropout(hidden, self.dropout, output_seed)
