"""Multi-head self-attention without biases.

Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, as in the federated ASR
paper's code: queries, keys and values in one matrix, dropout on the attention
weights.

  B: batch size. S: frames. D: width. H: heads.
"""

import math
from typing import Optional

import tensorflow as tf

from tff_asr.models import encoder
from tff_asr.models import weights as weights_lib

_MASKED = -1e9


def specs(*, dim: int) -> weights_lib.Specs:
  """Weights `wqkv` [D, 3 D] and `wf` [D, D]."""
  return {
      'wf': weights_lib.matrix(dim, dim),
      'wqkv': weights_lib.matrix(dim, 3 * dim),
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
  """Attends from every frame to the valid ones.

  Args:
    weights: As in `specs`.
    inputs: float32 or bfloat16 [B, S, D].
    valid: float32 [B, S, 1], 1 for frames of the utterance, 0 for padding.
    num_heads: H, divides D.
    dropout: Rate on the attention weights.
    seed: int32 [2] in training, None in evaluation.

  Returns:
    As inputs, [B, S, D]; what stands at padded frames is arbitrary but finite.
  """
  query, key, value = project(weights, inputs, num_heads=num_heads)
  dim = inputs.shape[-1]
  head_dim = dim // num_heads
  scores = tf.matmul(query * (1 / math.sqrt(head_dim)), key, transpose_b=True)
  return combine(weights, scores, value, valid, dropout=dropout, seed=seed)


def project(
    weights: weights_lib.Weights, inputs: tf.Tensor, *, num_heads: int
) -> list[tf.Tensor]:
  """Returns queries, keys and values of each head, [B, H, S, D / H]."""
  batch_size, size, _ = tf.unstack(tf.shape(inputs))
  head_dim = inputs.shape[-1] // num_heads
  qkv = encoder.matmul(inputs, weights['wqkv'])
  qkv = tf.reshape(qkv, [batch_size, size, 3, num_heads, head_dim])
  return tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))


def combine(
    weights: weights_lib.Weights,
    scores: tf.Tensor,
    value: tf.Tensor,
    valid: tf.Tensor,
    *,
    dropout: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """Weighs the values of valid frames by their scores, and joins the heads.

  Args:
    weights: As in `specs`.
    scores: float32 or bfloat16 [B, H, S, S], from each frame to each frame.
    value: As from `project`.
    valid: As in `apply`.
    dropout: As in `apply`.
    seed: As in `apply`.

  Returns:
    As from `apply`.
  """
  batch_size, _, size, _ = tf.unstack(tf.shape(value))
  dim = value.shape[1] * value.shape[3]
  scores = tf.cast(scores, tf.float32)
  scores += (1 - tf.transpose(valid, [0, 2, 1])[:, tf.newaxis]) * _MASKED
  attention = tf.cast(tf.nn.softmax(scores), value.dtype)
  attention = encoder.dropout(attention, dropout, seed)
  heads = tf.transpose(tf.matmul(attention, value), [0, 2, 1, 3])
  heads = tf.reshape(heads, [batch_size, size, dim])
  return encoder.matmul(heads, weights['wf'])
