"""Convolutional front end of the Conformer: 4x subsampling in time and mel.

Two convolutions over time and mel bins (kernel 3 x 3, stride 2 x 2, ReLU) and a
linear layer over what is left of the bins, as in Gulati et al. 2020,
https://arxiv.org/abs/2005.08100. Frame j of a convolution sees the 3 frames
from 2 j on; those past the utterance's end read as 0, whether they are padding
of the batch or lie outside it, so that padding never changes an output.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames.
  K: channels. D: output width.
"""

import math
from typing import Optional

import tensorflow as tf

from tff_asr.features import convolution
from tff_asr.models import encoder
from tff_asr.models import weights as weights_lib

STRIDE = 4

_KERNEL_SIZE = 3
_CONV_STRIDE = 2
_PAD_RIGHT = _KERNEL_SIZE - _CONV_STRIDE


def output_lengths(feature_lengths: tf.Tensor) -> tf.Tensor:
  """Whole groups of 4 frames: S = T // 4."""
  return feature_lengths // STRIDE


def specs(*, feature_dim: int, channels: int, dim: int) -> weights_lib.Specs:
  """Weights from F = feature_dim by way of K = channels to D = dim."""
  return {
      'bias_1': weights_lib.zeros(channels),
      'bias_2': weights_lib.zeros(channels),
      'bias_out': weights_lib.zeros(dim),
      'kernel_1': _kernel(1, channels),
      'kernel_2': _kernel(channels, channels),
      'kernel_out': weights_lib.matrix(feature_dim // STRIDE * channels, dim),
  }


def apply(
    weights: weights_lib.Weights,
    features: tf.Tensor,
    feature_lengths: tf.Tensor,
    *,
    dropout: float,
    activation_dtype: str = 'float32',
    seed: Optional[tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns activations [B, S, D] and their lengths int32 [B]."""
  valid = encoder.mask(feature_lengths, tf.shape(features)[1])
  # Chosen, not multiplied: padding may hold anything, and 0 * NaN is NaN.
  hidden = tf.where(valid > 0, features, 0.0)[:, :, :, tf.newaxis]
  hidden = tf.cast(hidden, activation_dtype)
  lengths = feature_lengths
  for number in ('1', '2'):
    hidden = _convolve(hidden, weights[f'kernel_{number}'])
    hidden = tf.nn.relu(
        hidden + tf.cast(weights[f'bias_{number}'], activation_dtype)
    )
    lengths = lengths // _CONV_STRIDE
    valid = encoder.mask(lengths, tf.shape(hidden)[1])[:, :, :, tf.newaxis]
    hidden *= tf.cast(valid, activation_dtype)
  batch_size, size, _, _ = tf.unstack(tf.shape(hidden))
  flat = hidden.shape[2] * hidden.shape[3]
  hidden = tf.reshape(hidden, [batch_size, size, flat])
  outputs = encoder.matmul(hidden, weights['kernel_out'])
  outputs += tf.cast(weights['bias_out'], activation_dtype)
  return encoder.dropout(outputs, dropout, seed), lengths


def _kernel(fan_in: int, fan_out: int) -> weights_lib.WeightSpec:
  """A kernel whose outputs, before ReLU, have the variance of its inputs."""
  limit = math.sqrt(3 / (_KERNEL_SIZE**2 * fan_in))
  return weights_lib.WeightSpec(
      (_KERNEL_SIZE, _KERNEL_SIZE, fan_in, fan_out), limit=limit
  )


def _convolve(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  """Whole strides in time and mel of [B, T, F, K]; reads 0 past the end."""
  padded = tf.pad(inputs, [[0, 0], [0, _PAD_RIGHT], [0, _PAD_RIGHT], [0, 0]])
  kernel = tf.cast(kernel, inputs.dtype)
  return convolution.convolve(padded, kernel, _CONV_STRIDE)
