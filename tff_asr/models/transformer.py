"""Transformer encoder with layer drop, layer norms before or after.

The encoder of the federated ASR paper (https://arxiv.org/abs/2310.00098) as in
its published code: a convolutional front end, positions added once, then blocks
with MLP(x) = W2 dropout(relu(W1 x)). With norm 'pre', the paper's, a block is

    x = x + keep * attention(LN1(x))
    x = x + keep * MLP(LN2(x))

and a final layer norm follows. With norm 'post' (Vaswani et al. 2017) it is

    x = LN1(x + keep * attention(x))
    x = LN2(x + keep * MLP(x))

without a final layer norm. One draw of layer drop (`keep`) switches both
halves of a block. Blocks have no biases. 'post' needs a warm-up of the learning
rate.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames. D: width.
"""

import dataclasses
import functools
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import log_mel
from tff_asr.models import attention
from tff_asr.models import encoder
from tff_asr.models import layers
from tff_asr.models import positions
from tff_asr.models import subsampling
from tff_asr.models import weights as weights_lib

NORMS = ('pre', 'post')
POSITIONS = ('cape', 'sinusoidal')


def build(
    *,
    num_blocks: int,
    dim: int,
    mlp_dim: int,
    num_heads: int,
    dropout: float = 0.0,
    layer_drop: float = 0.0,
    norm: str = 'pre',
    position: str = 'cape',
    max_shift_sec: float = 30.0,
    feature_dim: int = log_mel.NUM_MEL_BINS,
    activation_dtype: str = 'float32',
    front_padding: str = subsampling.CENTRED,
    rounding: str = 'products',
) -> encoder.Encoder:
  """Builds the encoder.

  Args:
    num_blocks: Transformer blocks.
    dim: D, even and divisible by num_heads.
    mlp_dim: Hidden width of the blocks' MLPs.
    num_heads: Attention heads.
    dropout: Rate after the front end, on attention weights and in the MLPs.
    layer_drop: Probability that training skips a block.
    norm: 'pre' or 'post'; where a block has its layer norms.
    position: 'cape' or 'sinusoidal'; see `positions`.
    max_shift_sec: Largest shift of CAPE's positions in training.
    feature_dim: F.
    activation_dtype: 'float32' or 'bfloat16'; see `layers`.
    front_padding: 'centred' or 'flax_same'; see `subsampling`.
    rounding: 'products' or 'published', what is of activation_dtype; see
      `layers`.

  Returns:
    An `encoder.Encoder` with D = dim and S = T // 3.

  Raises:
    ValueError: An unknown norm, position, activation_dtype, front_padding or
      rounding, a size is not positive, a rate is outside [0, 1], dropout is 1,
      or dim is odd or not divisible by num_heads.
  """
  checks.positive_int(mlp_dim=mlp_dim, num_heads=num_heads)
  checks.one_of(layers.ACTIVATION_DTYPES, activation_dtype=activation_dtype)
  checks.in_range(0, 1, layer_drop=layer_drop)
  checks.one_of(NORMS, norm=norm)
  checks.one_of(POSITIONS, position=position)
  checks.one_of(layers.ROUNDINGS, rounding=rounding)
  checks.non_negative(max_shift_sec=max_shift_sec)
  # Each head takes an equal part of D, and positions are pairs of sine and
  # cosine.
  if dim % num_heads or dim % 2:
    raise ValueError(
        f'dim must be even and divisible by num_heads, found dim {dim} and '
        f'num_heads {num_heads}.'
    )

  # The published code also rounds the inputs of the first block.
  entry_dtype = activation_dtype if rounding == 'published' else 'float32'
  return encoder.stack(
      subsampling.build_3x(
          feature_dim=feature_dim,
          dim=dim,
          dropout=dropout,
          padding=front_padding,
          input_dtype=entry_dtype,
      ),
      num_blocks=num_blocks,
      block_specs=_block_specs(dim, mlp_dim),
      apply_block=_Block(
          num_heads=num_heads,
          dropout=dropout,
          layer_drop=layer_drop,
          norm=norm,
          activation_dtype=activation_dtype,
          rounding=rounding,
      ),
      embed=functools.partial(
          _embed,
          dim=dim,
          position=position,
          max_shift_sec=max_shift_sec,
          dtype=entry_dtype,
      ),
      # The stream of 'pre' is never normalised inside the blocks.
      final_norm=norm == 'pre',
  )


def _embed(
    lengths: tf.Tensor,
    size: tf.Tensor,
    seed: Optional[tf.Tensor],
    *,
    dim: int,
    position: str,
    max_shift_sec: float,
    dtype: str,
) -> tf.Tensor:
  """Positions, rounded to `dtype`; see `encoder.stack`."""
  if position == 'sinusoidal':
    embedded = positions.sinusoidal(lengths, size, dim=dim)
  else:
    embedded = positions.cape(
        lengths,
        size,
        dim=dim,
        # CAPE's positions are seconds, so they do not depend on the stride.
        frame_sec=subsampling.STRIDE_3X * log_mel.FRAME_SHIFT_SEC,
        max_shift_sec=max_shift_sec,
        seed=seed,
    )
  return layers.round_to_dtype(embedded, dtype)


def _block_specs(dim: int, mlp_dim: int) -> weights_lib.Specs:
  """Weights of one block."""
  return {
      **attention.specs(dim=dim),
      **weights_lib.prefix('ln1', layers.norm_specs(dim)),
      **weights_lib.prefix('ln2', layers.norm_specs(dim)),
      'w1': weights_lib.matrix_spec(dim, mlp_dim),
      'w2': weights_lib.matrix_spec(mlp_dim, dim),
  }


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Block:
  """One block; in training, with probability layer_drop, without its halves."""

  num_heads: int
  dropout: float
  layer_drop: float
  norm: str
  activation_dtype: str
  rounding: str

  def __call__(
      self,
      weights: weights_lib.Weights,
      inputs: tf.Tensor,
      valid: tf.Tensor,
      seed: Optional[tf.Tensor],
  ) -> tf.Tensor:
    return layers.residual_block(
        weights,
        inputs,
        seed,
        attend=lambda hidden, seed: self._attend(weights, hidden, valid, seed),
        mlp=lambda hidden, seed: self._mlp(weights, hidden, seed),
        norm=self.norm,
        layer_drop=self.layer_drop,
        # With norm 'post' the stream passes both norms even without the halves.
        skips_norms=False,
    )

  def _attend(self, weights, hidden, valid, seed):
    outputs = attention.apply(
        weights,
        tf.cast(hidden, self.activation_dtype),
        valid,
        num_heads=self.num_heads,
        dropout=self.dropout,
        seed=seed,
        rounding=self.rounding,
    )
    # The residual stream stays float32.
    return tf.cast(outputs, tf.float32)

  def _mlp(self, weights, hidden, seed):
    hidden = tf.cast(hidden, self.activation_dtype)
    # No biases: the published code has none.
    inner = tf.nn.relu(layers.matmul(hidden, weights['w1']))
    inner = layers.dropout(inner, self.dropout, seed)
    return tf.cast(layers.matmul(inner, weights['w2']), tf.float32)
