"""Multi-head self-attention, plain or with relative positions.

Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, as in the federated ASR
paper's code: queries, keys and values in one matrix, dropout on the attention
weights, biases only if there are weights for them.

With relative positions (Dai et al. 2019, Transformer-XL,
https://arxiv.org/abs/1901.02860, as in the Conformer) frame i scores frame j by

    ((q_i + u) k_j + (q_i + v) W_r r_(i-j)) / sqrt(D / H)

for sinusoids r of the distance i - j in frames, either way, and biases u and v
of each head.

  B: batch size. S: frames. D: width. H: heads.
"""

import math
from typing import Optional

import tensorflow as tf

from tff_asr.models import layers
from tff_asr.models import positions as positions_lib
from tff_asr.models import weights as weights_lib

# Finite, so that rows without a valid frame stay finite, too; large enough for
# a softmax of 0 in float32 and bfloat16.
_MASKED = -1e9


def specs(*, dim: int, biases: bool = False) -> weights_lib.Specs:
  """Weights `wqkv` [D, 3 D] and `wf` [D, D]; with biases `bqkv` and `bf`."""
  matrices = {
      'wf': weights_lib.matrix_spec(dim, dim),
      'wqkv': weights_lib.matrix_spec(dim, 3 * dim),
  }
  if not biases:
    return matrices
  vectors = {
      'bf': weights_lib.zeros_spec(dim),
      'bqkv': weights_lib.zeros_spec(3 * dim),
  }
  return matrices | vectors


def apply(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    *,
    num_heads: int,
    dropout: float,
    seed: Optional[tf.Tensor],
    rounding: str = 'products',
) -> tf.Tensor:
  """Attends from every frame to the valid ones.

  Args:
    weights: As in `specs`.
    inputs: float32 or bfloat16 [B, S, D].
    valid: float32 [B, S, 1], 1 for frames of the utterance, 0 for padding.
    num_heads: H, divides D.
    dropout: Rate on the attention weights.
    seed: int32 [2] in training, None in evaluation.
    rounding: 'products', with a float32 softmax; or 'published', with one of
      the inputs' dtype, and queries divided in it; see `layers`.

  Returns:
    As inputs, [B, S, D]; values at padded frames are arbitrary but finite.
  """
  query, key, value = _project(weights, inputs, num_heads=num_heads)
  # Known when traced, unlike batch size and frames.
  dim = inputs.shape[-1]
  head_dim = dim // num_heads
  # Dividing queries is cheaper than dividing scores [B, H, S, S].
  if rounding == 'published':
    query /= tf.cast(math.sqrt(head_dim), query.dtype)
    softmax_dtype = query.dtype
  else:
    query *= 1 / math.sqrt(head_dim)
    softmax_dtype = tf.float32
  return _combine(
      weights,
      tf.cast(tf.matmul(query, key, transpose_b=True), softmax_dtype),
      value,
      valid,
      dropout=dropout,
      seed=seed,
  )


def relative_specs(*, dim: int) -> weights_lib.Specs:
  """As `specs`, and `wr` [D, D], `u` and `v` [D], one part per head."""
  return {
      **specs(dim=dim),
      'u': weights_lib.zeros_spec(dim),
      'v': weights_lib.zeros_spec(dim),
      'wr': weights_lib.matrix_spec(dim, dim),
  }


def apply_relative(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    *,
    num_heads: int,
    dropout: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """Attends from every frame to the valid ones; as `apply`."""
  size, dim = tf.shape(inputs)[1], inputs.shape[-1]
  head_dim = dim // num_heads
  query, key, value = _project(weights, inputs, num_heads=num_heads)
  # From S - 1 (the first frame to the last) down to 1 - S.
  distances = size - 1 - tf.range(tf.maximum(2 * size - 1, 1))
  positions = layers.matmul(
      tf.cast(
          positions_lib.sinusoids(tf.cast(distances, tf.float32), dim=dim),
          inputs.dtype,
      ),
      weights['wr'],
  )
  # To [H, D / H, 2 S - 1], which all utterances of the batch share.
  positions = tf.transpose(
      tf.reshape(positions, [-1, num_heads, head_dim]), [1, 2, 0]
  )
  by_head = lambda bias: tf.cast(
      tf.reshape(bias, [num_heads, 1, head_dim]), inputs.dtype
  )
  content = tf.matmul(query + by_head(weights['u']), key, transpose_b=True)
  position = tf.matmul(query + by_head(weights['v']), positions)
  scores = (content + _shift(position)) * (1 / math.sqrt(head_dim))
  # The softmax is float32 whatever the activations are.
  scores = tf.cast(scores, tf.float32)
  return _combine(weights, scores, value, valid, dropout=dropout, seed=seed)


def _project(
    weights: weights_lib.Weights, inputs: tf.Tensor, *, num_heads: int
) -> list[tf.Tensor]:
  """Returns queries, keys and values of each head, [B, H, S, D / H]."""
  batch_size, size, _ = tf.unstack(tf.shape(inputs))
  head_dim = inputs.shape[-1] // num_heads
  # One product for all three, which is faster than three smaller ones.
  qkv = layers.linear(inputs, weights['wqkv'], weights.get('bqkv'))
  qkv = tf.reshape(qkv, [batch_size, size, 3, num_heads, head_dim])
  return tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))


def _combine(
    weights: weights_lib.Weights,
    scores: tf.Tensor,
    value: tf.Tensor,
    valid: tf.Tensor,
    *,
    dropout: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """Weighs values of valid frames by the softmax of scores [B, H, S, S]."""
  batch_size, _, size, _ = tf.unstack(tf.shape(value))
  dim = value.shape[1] * value.shape[3]
  # Added to the scores of padded keys, so that their softmax is 0.
  masked = (1 - tf.transpose(valid, [0, 2, 1])[:, tf.newaxis]) * _MASKED
  scores += tf.cast(masked, scores.dtype)
  attention = tf.cast(tf.nn.softmax(scores), value.dtype)
  attention = layers.dropout(attention, dropout, seed)
  heads = tf.transpose(tf.matmul(attention, value), [0, 2, 1, 3])
  heads = tf.reshape(heads, [batch_size, size, dim])
  return layers.linear(heads, weights['wf'], weights.get('bf'))


def _shift(scores: tf.Tensor) -> tf.Tensor:
  """Scores by distance S-1 ... 1-S [B, H, S, 2S-1] to by frame [B, H, S, S].

  Row i needs the S columns from S-1-i on. Reading the padded matrix in rows of
  one column less shifts each row by one more column.
  """
  batch_size, num_heads, size, num_distances = tf.unstack(tf.shape(scores))
  padded = tf.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]])
  turned = tf.reshape(padded, [batch_size, num_heads, 2 * size, size])
  shifted = tf.reshape(
      turned[:, :, 1:], [batch_size, num_heads, size, num_distances]
  )
  return shifted[:, :, :, :size]
