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

import math

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution
from tff_asr.features import front_end as front_end_lib
from tff_asr.models import encoder
from tff_asr.models import layers as layers_lib
from tff_asr.models import weights as weights_lib

_EPSILON = 1e-5


def build(
    *,
    front_end: front_end_lib.FrontEnd,
    dim: int = 128,
    kernel_size: int = 5,
    dropout: float = 0.0,
) -> encoder.Encoder:
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
  checks.positive_int(dim=dim, kernel_size=kernel_size)
  checks.below_one(dropout=dropout)
  if kernel_size % 2 == 0:
    raise ValueError(f'kernel_size must be odd, found {kernel_size}.')
  num_layers = front_end.num_layers
  width = front_end.feature_dim // num_layers
  specs = {
      'bias': weights_lib.zeros(dim),
      'kernel': weights_lib.WeightSpec(
          # LeCun uniform: outputs have the variance of the inputs.
          (kernel_size, width, dim), limit=math.sqrt(3 / (kernel_size * width))
      ),
      'mix': weights_lib.zeros(num_layers),
  }

  def apply(weights, features, feature_lengths, seed):
    mix_seed, output_seed = layers_lib.split_seed(seed, 2)
    shape = tf.shape(features)
    parts = tf.reshape(features, [shape[0], shape[1], num_layers, width])
    mean, variance = tf.nn.moments(parts, axes=[-1], keepdims=True)
    parts = (parts - mean) * tf.math.rsqrt(variance + _EPSILON)
    shares = tf.nn.softmax(weights['mix'])
    hidden = tf.reduce_sum(parts * shares[:, tf.newaxis], axis=2)
    hidden = layers_lib.dropout(hidden, dropout, mix_seed)
    # Frames past the end read as 0.
    hidden *= layers_lib.length_mask(feature_lengths, shape[1])
    reach = kernel_size // 2
    padded = tf.pad(hidden, [[0, 0], [reach, reach], [0, 0]])
    hidden = convolution.convolve(padded, weights['kernel'], 1)
    hidden = tf.nn.gelu(hidden + weights['bias'], approximate=False)
    return layers_lib.dropout(hidden, dropout, output_seed), feature_lengths

  return encoder.Encoder(specs, apply, output_lengths, dim)


def output_lengths(feature_lengths: tf.Tensor) -> tf.Tensor:
  """One output a frame: S = T."""
  return feature_lengths

