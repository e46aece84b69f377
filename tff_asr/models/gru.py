"""Bidirectional GRU encoder.

The convolutional front end of the transformer, then blocks that read their
input [S, D] in both directions, each to half the width, side by side. With the
gates of Cho et al. 2014, https://arxiv.org/abs/1406.1078, in the form of cuDNN,
which applies the reset gate after the product (`reset_after` of Keras):

    z = sigmoid(Wz x + bz + Uz h + cz)
    r = sigmoid(Wr x + br + Ur h + cr)
    n = tanh(Wn x + bn + r * (Un h + cn))
    h = z h + (1 - z) n,    h = 0 before the first frame

Not of the federated ASR paper: an architecture to compare per-layer clipping
on. Padding needs no mask: it comes after an utterance's frames in the one
direction, and the other direction starts at the last frame of each.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames. D: width.
  H: D / 2.
"""

from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import log_mel
from tff_asr.models import encoder
from tff_asr.models import subsampling
from tff_asr.models import weights as weights_lib


def build(
    *,
    num_blocks: int,
    dim: int,
    dropout: float = 0.0,
    feature_dim: int = log_mel.NUM_MEL_BINS,
    activation_dtype: str = 'float32',
) -> encoder.Encoder:
  """Builds the encoder.

  Args:
    num_blocks: Bidirectional layers.
    dim: D, even.
    dropout: Rate after the front end and after each block.
    feature_dim: F.
    activation_dtype: 'float32' or 'bfloat16'; see `encoder`. The state h stays
      float32.

  Returns:
    An `encoder.Encoder` with D = dim and S = T // 3.

  Raises:
    ValueError: An unknown activation_dtype, a size is not positive, dim is odd,
      or dropout is outside [0, 1).
  """
  checks.positive_int(num_blocks=num_blocks, dim=dim, feature_dim=feature_dim)
  encoder.check_dropout(dropout)
  checks.one_of(encoder.ACTIVATION_DTYPES, activation_dtype=activation_dtype)
  if dim % 2:
    raise ValueError(f'dim must be even, found {dim}.')

  names = encoder.block_names(num_blocks)
  specs = dict(
      weights_lib.prefix(
          'front', subsampling.specs(feature_dim=feature_dim, dim=dim)
      )
  )
  for name in names:
    for direction in ('backward', 'forward'):
      specs |= weights_lib.prefix(f'{name}/{direction}', _specs(dim))

  def apply(
      weights: weights_lib.Weights,
      features: tf.Tensor,
      feature_lengths: tf.Tensor,
      seed: Optional[tf.Tensor],
  ) -> tuple[tf.Tensor, tf.Tensor]:
    front_seed, *block_seeds = encoder.split_seed(seed, num_blocks + 1)
    hidden, lengths = subsampling.apply(
        weights_lib.select('front', weights),
        features,
        feature_lengths,
        dropout=dropout,
        activation_dtype=activation_dtype,
        seed=front_seed,
    )
    reverse = lambda inputs: tf.reverse_sequence(inputs, lengths, seq_axis=1)
    for name, block_seed in zip(names, block_seeds):
      block = weights_lib.select(name, weights)
      forward = _read(weights_lib.select('forward', block), hidden)
      backward = _read(weights_lib.select('backward', block), reverse(hidden))
      hidden = tf.concat([forward, reverse(backward)], axis=-1)
      hidden = encoder.dropout(hidden, dropout, block_seed)
    return tf.cast(hidden, tf.float32), lengths

  return encoder.Encoder(specs, apply, subsampling.output_lengths, dim)


def _specs(dim: int) -> weights_lib.Specs:
  """Weights of one direction, the gates z, r and n side by side."""
  half = dim // 2
  return {
      'bias': weights_lib.zeros(3 * half),
      'kernel': weights_lib.matrix(dim, 3 * half),
      'recurrent': weights_lib.matrix(half, 3 * half),
      'recurrent_bias': weights_lib.zeros(3 * half),
  }


def _read(weights: weights_lib.Weights, inputs: tf.Tensor) -> tf.Tensor:
  """One direction, [B, S, D] to [B, S, H] of the same dtype."""
  # All frames' part of the gates at once; the loop adds the state's.
  from_inputs = encoder.matmul(inputs, weights['kernel'])
  from_inputs = tf.cast(from_inputs, tf.float32) + weights['bias']

  def step(state: tf.Tensor, from_input: tf.Tensor) -> tf.Tensor:
    product = encoder.matmul(
        tf.cast(state, inputs.dtype), weights['recurrent']
    )
    from_state = tf.cast(product, tf.float32) + weights['recurrent_bias']
    input_z, input_r, input_n = tf.split(from_input, 3, axis=-1)
    state_z, state_r, state_n = tf.split(from_state, 3, axis=-1)
    update = tf.sigmoid(input_z + state_z)
    reset = tf.sigmoid(input_r + state_r)
    new = tf.tanh(input_n + reset * state_n)
    return update * state + (1 - update) * new

  half = weights['recurrent'].shape[0]
  states = tf.scan(
      step,
      tf.transpose(from_inputs, [1, 0, 2]),
      initializer=tf.zeros([tf.shape(inputs)[0], half]),
  )
  return tf.cast(tf.transpose(states, [1, 0, 2]), inputs.dtype)
