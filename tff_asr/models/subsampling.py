"""Convolutional front ends: features to subsampled frames.

3x, of the transformer, as in the published code of
https://arxiv.org/abs/2310.00098: the features are normalised to mean 0 and
variance 1 over the utterance's frames and bins (once more after the front end
of the signal: SpecAugment's zeros have changed both), then scaled and shifted
by one scalar each; a 1-D convolution (kernel 7, stride 3) to twice the width, a
gated linear unit, dropout. The kernel covers the 7 input frames centred on an
output frame's group of 3.

4x, of the Conformer, in time and mel (Gulati et al. 2020,
https://arxiv.org/abs/2005.08100): two convolutions over time and mel bins
(kernel 3 x 3, stride 2 x 2, ReLU) and a linear layer over what is left of the
bins. Frame j of a convolution covers the 3 frames from 2 j on.

Frames past the utterance's end read as 0 in both, whether they are padding of
the batch or lie outside it, so that padding never changes an output.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames.
  K: channels. D: output width.
"""

import math

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import convolution
from tff_asr.features import log_mel
from tff_asr.models import encoder
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib

STRIDE_3X = 3
STRIDE_4X = 4

CENTRED = 'centred'
# As in the published code, where padding changes outputs. It pads batches to a
# multiple of 5 s, and its convolution pads 3 + 3 frames, not 2 + 2, if such a
# batch has 3 k + 1 frames (batches of 15 s and of 30 s).
FLAX_SAME = 'flax_same'
PADDINGS = (CENTRED, FLAX_SAME)

_KERNEL_3X = 7
_PUBLISHED_BATCH_SEC = 5.0
_KERNEL_4X = 3
_CONV_STRIDE_4X = 2


def output_lengths_3x(feature_lengths: tf.Tensor) -> tf.Tensor:
  """Whole groups of 3 frames: S = T // 3."""
  return feature_lengths // STRIDE_3X


def output_lengths_4x(feature_lengths: tf.Tensor) -> tf.Tensor:
  """Whole groups of 4 frames: S = T // 4."""
  return feature_lengths // STRIDE_4X


def build_3x(
    *,
    feature_dim: int,
    dim: int,
    dropout: float,
    padding: str = CENTRED,
    input_dtype: str = 'float32',
) -> encoder.Encoder:
  """Builds the front end from F = feature_dim to D = dim, with S = T // 3.

  Its products are of float32, as in the published code whatever the blocks'
  activations are.

  Args:
    feature_dim: F.
    dim: D.
    dropout: Rate on the outputs.
    padding: 'centred', by which an output depends on its utterance alone; or
      'flax_same', by which it depends on the longest of its batch, too.
    input_dtype: What the convolution's inputs are rounded to.

  Raises:
    ValueError: An argument is out of its range.
  """
  checks.below_one(dropout=dropout)
  checks.positive_int(feature_dim=feature_dim, dim=dim)
  checks.one_of(PADDINGS, front_padding=padding)
  fan_in = _KERNEL_3X * feature_dim
  specs = {
      'bias': weights_lib.WeightSpec((2 * dim,), limit=math.sqrt(1 / fan_in)),
      'input_bias': weights_lib.zeros_spec(1),
      'input_scale': weights_lib.ones_spec(1),
      # LeCun uniform: the variance is 1 / fan-in.
      'kernel': weights_lib.WeightSpec(
          (_KERNEL_3X, feature_dim, 2 * dim), limit=math.sqrt(3 / fan_in)
      ),
  }
  num_padded = _KERNEL_3X - STRIDE_3X

  def apply(weights, features, feature_lengths, seed):
    valid = layers.length_mask(feature_lengths, tf.shape(features)[1])
    # Again: the zeros of SpecAugment have changed mean and variance.
    normed = log_mel.normalize_utterances(features, feature_lengths)
    scaled = normed * weights['input_scale'] + weights['input_bias']
    scaled = layers.round_to_dtype(scaled * valid, input_dtype)
    # The kernel is centred on its group of 3 frames.
    pad_left = num_padded // 2
    if padding == FLAX_SAME:
      # Computed in the graph, because the longest utterance of a batch decides.
      frames = _published_frames(tf.reduce_max(feature_lengths))
      pad_left += tf.cast(tf.equal(frames % STRIDE_3X, 1), tf.int32)
    padded = tf.pad(
        scaled, [[0, 0], [pad_left, num_padded - pad_left], [0, 0]]
    )
    hidden = convolution.convolve(padded, weights['kernel'], STRIDE_3X)
    hidden += weights['bias']
    outputs = layers.dropout(layers.glu(hidden), dropout, seed)
    return outputs, output_lengths_3x(feature_lengths)

  return encoder.Encoder(specs, apply, output_lengths_3x, dim)


def _published_frames(longest: tf.Tensor) -> tf.Tensor:
  """Frames of the published code's batch with a longest row of this length."""
  whole = log_mel.samples_of_seconds(_PUBLISHED_BATCH_SEC)
  batch_samples = -(-log_mel.samples_of_frames(longest) // whole) * whole
  return log_mel.num_frames(batch_samples)


def build_4x(
    *,
    feature_dim: int,
    channels: int,
    dim: int,
    dropout: float,
    activation_dtype: str,
) -> encoder.Encoder:
  """Builds the front end from F by way of K = channels to D, S = T // 4.

  Raises:
    ValueError: An argument is out of its range, or feature_dim below 4.
  """
  checks.below_one(dropout=dropout)
  checks.one_of(layers.ACTIVATION_DTYPES, activation_dtype=activation_dtype)
  checks.positive_int(feature_dim=feature_dim, front_channels=channels, dim=dim)
  if feature_dim < STRIDE_4X:
    raise ValueError(f'feature_dim must be at least 4, found {feature_dim}.')
  specs = {
      'bias_1': weights_lib.zeros_spec(channels),
      'bias_2': weights_lib.zeros_spec(channels),
      'bias_out': weights_lib.zeros_spec(dim),
      'kernel_1': _kernel_4x(1, channels),
      'kernel_2': _kernel_4x(channels, channels),
      'kernel_out': weights_lib.matrix_spec(
          feature_dim // STRIDE_4X * channels, dim
      ),
  }

  def apply(weights, features, feature_lengths, seed):
    valid = layers.length_mask(feature_lengths, tf.shape(features)[1])
    # Chosen, not multiplied: padding may hold anything, and 0 * NaN is NaN.
    hidden = tf.where(valid > 0, features, 0.0)[:, :, :, tf.newaxis]
    hidden = tf.cast(hidden, activation_dtype)
    lengths = feature_lengths
    for number in ('1', '2'):
      hidden = _convolve_4x(hidden, weights[f'kernel_{number}'])
      hidden = tf.nn.relu(
          hidden + tf.cast(weights[f'bias_{number}'], activation_dtype)
      )
      lengths = lengths // _CONV_STRIDE_4X
      # The bias made padding nonzero, which the next convolution would read.
      valid = layers.length_mask(
          lengths, tf.shape(hidden)[1]
      )[:, :, :, tf.newaxis]
      hidden *= tf.cast(valid, activation_dtype)
    batch_size, size, _, _ = tf.unstack(tf.shape(hidden))
    # Known when traced, as the product's shape must be.
    flat = hidden.shape[2] * hidden.shape[3]
    hidden = tf.reshape(hidden, [batch_size, size, flat])
    outputs = layers.matmul(hidden, weights['kernel_out'])
    outputs = tf.cast(outputs, tf.float32) + weights['bias_out']
    return layers.dropout(outputs, dropout, seed), lengths

  return encoder.Encoder(specs, apply, output_lengths_4x, dim)


def _kernel_4x(fan_in: int, fan_out: int) -> weights_lib.WeightSpec:
  """A kernel that keeps the variance of its inputs, before ReLU."""
  limit = math.sqrt(3 / (_KERNEL_4X**2 * fan_in))
  return weights_lib.WeightSpec(
      (_KERNEL_4X, _KERNEL_4X, fan_in, fan_out), limit=limit
  )


def _convolve_4x(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  """Whole strides in time and mel of [B, T, F, K]; reads 0 past the end."""
  pad = [0, _KERNEL_4X - _CONV_STRIDE_4X]
  padded = tf.pad(inputs, [[0, 0], pad, pad, [0, 0]])
  kernel = tf.cast(kernel, inputs.dtype)
  return convolution.convolve(padded, kernel, _CONV_STRIDE_4X)
