"""Pre-norm transformer encoder with layer drop.

The encoder of the federated ASR paper (https://arxiv.org/abs/2310.00098) as its
published code has it: convolutional front end, CAPE added once, then blocks

    x = x + keep * attention(LN1(x))
    x = x + keep * W2 dropout(relu(W1 LN2(x)))

where one draw of layer drop (`keep`) switches both halves of a block, and a
final layer norm. No biases in the blocks.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames. D: width.
"""

from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import log_mel
from tff_asr.models import attention
from tff_asr.models import encoder
from tff_asr.models import norms
from tff_asr.models import positions
from tff_asr.models import subsampling
from tff_asr.models import weights as weights_lib

_block_names = encoder.block_names
_norm = norms.layer_norm
_norm_specs = norms.specs


def build(
    *,
    num_blocks: int,
    dim: int,
    mlp_dim: int,
    num_heads: int,
    dropout: float = 0.0,
    layer_drop: float = 0.0,
    max_shift_sec: float = 30.0,
    feature_dim: int = log_mel.NUM_MEL_BINS,
    activation_dtype: str = 'float32',
) -> encoder.Encoder:
  """Builds the encoder.

  Args:
    num_blocks: Transformer blocks.
    dim: D, even and divisible by num_heads.
    mlp_dim: Hidden width of the blocks' MLPs.
    num_heads: Attention heads.
    dropout: Rate after the front end, on attention weights and in the MLPs.
    layer_drop: Probability that training skips a block.
    max_shift_sec: Largest shift of positions in training; see `positions`.
    feature_dim: F.
    activation_dtype: 'float32' or 'bfloat16'; see `encoder`.

  Returns:
    An `encoder.Encoder` with D = dim and S = T // 3.

  Raises:
    ValueError: An unknown activation_dtype, a size is not positive, a rate is
      outside [0, 1], dropout is 1, or dim is odd or not divisible by num_heads.
  """
  checks.positive_int(
      num_blocks=num_blocks,
      dim=dim,
      mlp_dim=mlp_dim,
      num_heads=num_heads,
      feature_dim=feature_dim,
  )
  checks.in_range(0, 1, dropout=dropout, layer_drop=layer_drop)
  if dropout == 1:
    raise ValueError('dropout must be below 1, found 1.')
  checks.non_negative(max_shift_sec=max_shift_sec)
  checks.one_of(encoder.ACTIVATION_DTYPES, activation_dtype=activation_dtype)
  if dim % num_heads or dim % 2:
    raise ValueError(
        f'dim must be even and divisible by num_heads, found dim {dim} and '
        f'num_heads {num_heads}.'
    )

  specs = dict(
      weights_lib.prefix(
          'front', subsampling.specs(feature_dim=feature_dim, dim=dim)
      )
  )
  for name in _block_names(num_blocks):
    specs |= weights_lib.prefix(name, _block_specs(dim, mlp_dim))
  specs |= weights_lib.prefix('norm', _norm_specs(dim))

  def apply(
      weights: weights_lib.Weights,
      features: tf.Tensor,
      feature_lengths: tf.Tensor,
      seed: Optional[tf.Tensor],
  ) -> tuple[tf.Tensor, tf.Tensor]:
    front_seed, shift_seed, *block_seeds = encoder.split_seed(
        seed, num_blocks + 2
    )
    hidden, lengths = subsampling.apply(
        weights_lib.select('front', weights),
        features,
        feature_lengths,
        dropout=dropout,
        activation_dtype=activation_dtype,
        seed=front_seed,
    )
    size = tf.shape(hidden)[1]
    embedding = positions.cape(
        lengths,
        size,
        dim=dim,
        frame_sec=subsampling.STRIDE * log_mel.FRAME_SHIFT_SEC,
        max_shift_sec=max_shift_sec,
        seed=shift_seed,
    )
    hidden += tf.cast(embedding, hidden.dtype)
    valid = encoder.mask(lengths, size)
    for name, block_seed in zip(_block_names(num_blocks), block_seeds):
      hidden = _block(
          weights_lib.select(name, weights),
          hidden,
          valid,
          num_heads=num_heads,
          dropout=dropout,
          layer_drop=layer_drop,
          seed=block_seed,
      )
    outputs = _norm(weights_lib.select('norm', weights), hidden)
    return tf.cast(outputs, tf.float32), lengths

  return encoder.Encoder(specs, apply, subsampling.output_lengths, dim)


def _block_specs(dim: int, mlp_dim: int) -> weights_lib.Specs:
  """Weights of one block."""
  return {
      **attention.specs(dim=dim),
      **weights_lib.prefix('ln1', _norm_specs(dim)),
      **weights_lib.prefix('ln2', _norm_specs(dim)),
      'w1': weights_lib.matrix(dim, mlp_dim),
      'w2': weights_lib.matrix(mlp_dim, dim),
  }


def _block(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    *,
    num_heads: int,
    dropout: float,
    layer_drop: float,
    seed: Optional[tf.Tensor],
) -> tf.Tensor:
  """One block, or in training, with probability layer_drop, nothing."""
  attention_seed, mlp_seed, drop_seed = encoder.split_seed(seed, 3)

  def run() -> tf.Tensor:
    hidden = inputs + attention.apply(
        weights,
        _norm(weights_lib.select('ln1', weights), inputs),
        valid,
        num_heads=num_heads,
        dropout=dropout,
        seed=attention_seed,
    )
    normed = _norm(weights_lib.select('ln2', weights), hidden)
    inner = tf.nn.relu(encoder.matmul(normed, weights['w1']))
    inner = encoder.dropout(inner, dropout, mlp_seed)
    return hidden + encoder.matmul(inner, weights['w2'])

  if seed is None or layer_drop == 0:
    return run()
  # A conditional, not a product with 0: a dropped block costs nothing.
  keep = tf.random.stateless_uniform([], drop_seed) >= layer_drop
  return tf.cond(keep, run, lambda: inputs)
