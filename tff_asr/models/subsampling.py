"""Convolutional front end: features to subsampled frames.

As in the published code of https://arxiv.org/abs/2310.00098: the features are
normalised to mean 0 and variance 1 over the utterance's frames and bins (once
more after the front end of the signal: SpecAugment's zeros have changed both),
then scaled and shifted by one scalar each; a 1-D convolution (kernel 7, stride
3) to twice the width, a gated linear unit, dropout. The convolution sees the 7
input frames centred on an output frame's group of 3; frames past the
utterance's end read as 0, whether they are padding of the batch or lie outside
it, so that padding never changes an output.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames.
  D: output width.
"""

import math
from typing import Optional

import tensorflow as tf

from tff_asr.features import convolution
from tff_asr.features import log_mel
from tff_asr.models import encoder
from tff_asr.models import weights as weights_lib

KERNEL_SIZE = 7
STRIDE = 3

_PAD_LEFT = (KERNEL_SIZE - STRIDE) // 2
_PAD_RIGHT = KERNEL_SIZE - STRIDE - _PAD_LEFT


def output_lengths(feature_lengths: tf.Tensor) -> tf.Tensor:
  """Whole groups of 3 frames: S = T // 3."""
  return feature_lengths // STRIDE


def specs(*, feature_dim: int, dim: int) -> weights_lib.Specs:
  """Weights of the front end from F = feature_dim to D = dim."""
  fan_in = KERNEL_SIZE * feature_dim
  return {
      'bias': weights_lib.WeightSpec((2 * dim,), limit=math.sqrt(1 / fan_in)),
      'input_bias': weights_lib.zeros(1),
      'input_scale': weights_lib.ones(1),
      'kernel': weights_lib.WeightSpec(
          (KERNEL_SIZE, feature_dim, 2 * dim), limit=math.sqrt(3 / fan_in)
      ),
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
  normed = log_mel.normalize(features, feature_lengths)
  scaled = normed * weights['input_scale'] + weights['input_bias']
  scaled *= valid
  padded = tf.pad(scaled, [[0, 0], [_PAD_LEFT, _PAD_RIGHT], [0, 0]])
  padded = tf.cast(padded, activation_dtype)
  kernel = tf.cast(weights['kernel'], activation_dtype)
  hidden = convolution.convolve(padded, kernel, STRIDE)
  hidden += tf.cast(weights['bias'], activation_dtype)
  value, gate = tf.split(hidden, 2, axis=-1)
  outputs = encoder.dropout(value * tf.sigmoid(gate), dropout, seed)
  return outputs, output_lengths(feature_lengths)
