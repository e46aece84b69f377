"""Multi-head self-attention with relative positions.

Dai et al. 2019 (Transformer-XL), https://arxiv.org/abs/1901.02860, as in the
Conformer: frame i scores frame j by

    ((q_i + u) k_j + (q_i + v) W_r r_(i-j)) / sqrt(D / H)

for sinusoids r of the distance i - j in frames, either way, and biases u and v
of each head. Other matrices as in `attention`.

  B: batch size. S: frames. D: width. H: heads.
"""

import math
from typing import Optional

import tensorflow as tf

from tff_asr.models import attention
from tff_asr.models import encoder
from tff_asr.models import positions as positions_lib
from tff_asr.models import weights as weights_lib


def specs(*, dim: int) -> weights_lib.Specs:
  """As `attention.specs`, and `wr` [D, D], `u` and `v` [D], a part a head."""
  return {
      **attention.specs(dim=dim),
      'u': weights_lib.zeros(dim),
      'v': weights_lib.zeros(dim),
      'wr': weights_lib.matrix(dim, dim),
  }


def apply(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    *,
    num_heads: int,
    dropout: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """Attends from every frame to the valid ones; as `attention.apply`."""
  size, dim = tf.shape(inputs)[1], inputs.shape[-1]
  head_dim = dim // num_heads
  query, key, value = attention.project(weights, inputs, num_heads=num_heads)
  distances = size - 1 - tf.range(tf.maximum(2 * size - 1, 1))
  positions = encoder.matmul(
      tf.cast(
          positions_lib.sinusoids(tf.cast(distances, tf.float32), dim=dim),
          inputs.dtype,
      ),
      weights['wr'],
  )
  positions = tf.transpose(
      tf.reshape(positions, [-1, num_heads, head_dim]), [1, 2, 0]
  )
  by_head = lambda bias: tf.cast(
      tf.reshape(bias, [num_heads, 1, head_dim]), inputs.dtype
  )
  content = tf.matmul(query + by_head(weights['u']), key, transpose_b=True)
  position = tf.matmul(query + by_head(weights['v']), positions)
  scores = (content + _shift(position)) * (1 / math.sqrt(head_dim))
  return attention.combine(
      weights, scores, value, valid, dropout=dropout, seed=seed
  )


def _shift(scores: tf.Tensor) -> tf.Tensor:
  """Scores by distance S-1 ... 1-S [B, H, S, 2S-1] to by frame [B, H, S, S].

  Row i needs the S columns from S-1-i on: read in rows of one column less, each
  row starts one column further left.
  """
  batch_size, num_heads, size, num_distances = tf.unstack(tf.shape(scores))
  padded = tf.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]])
  turned = tf.reshape(padded, [batch_size, num_heads, 2 * size, size])
  shifted = tf.reshape(
      turned[:, :, 1:], [batch_size, num_heads, size, num_distances]
  )
  return shifted[:, :, :, :size]
