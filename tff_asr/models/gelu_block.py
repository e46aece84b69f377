"""Transformer block of Whisper, wav2vec 2.0 and HuBERT: biases and exact GELU.

With norm 'pre' (Whisper, and the large models of the others) a block is

    x = x + attention(LN1(x))
    x = x + W2 gelu(W1 LN2(x) + b1) + b2

and with norm 'post' (the base models of wav2vec 2.0 and HuBERT) it is

    x = LN1(x + attention(x))
    x = LN2(x + W2 gelu(W1 x + b1) + b2)

GELU (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415) is x times
the normal distribution function of x, not its approximation by tanh. Unlike the
blocks of `transformer`, a block that layer drop skips returns its inputs
whatever the norm is, as in `transformers`. With adapter_dim above 0, an
`adapter` follows each block.

  B: batch size. S: frames. D: width.
"""

import dataclasses
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.models import adapter
from tff_asr.models import attention
from tff_asr.models import encoder
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib

NORMS = ('pre', 'post')

_ADAPTER = 'adapter'


def stack(
    front: encoder.Encoder,
    *,
    num_blocks: int,
    mlp_dim: int,
    num_heads: int,
    norm: str,
    dropout: float,
    layer_drop: float,
    activation_dtype: str,
    adapter_dim: int = 0,
) -> encoder.Encoder:
  """Builds an encoder of a front end and such blocks.

  Args:
    front: The front end; its output_dim is D.
    num_blocks: Blocks.
    mlp_dim: Hidden width of the blocks' MLPs.
    num_heads: Attention heads.
    norm: 'pre', with a final layer norm after the blocks, or 'post'.
    dropout: Rate on attention weights, in the MLPs and on what either adds.
    layer_drop: Probability that training skips a block.
    activation_dtype: 'float32' or 'bfloat16'; see `layers`.
    adapter_dim: Width of the adapters' bottlenecks; 0: no adapters.

  Raises:
    ValueError: An argument is out of its range, or num_heads does not divide D.
  """
  checks.positive_int(mlp_dim=mlp_dim, num_heads=num_heads)
  checks.one_of(NORMS, norm=norm)
  checks.below_one(dropout=dropout)
  checks.in_range(0, 1, layer_drop=layer_drop)
  checks.one_of(layers.ACTIVATION_DTYPES, activation_dtype=activation_dtype)
  checks.non_negative_int(adapter_dim=adapter_dim)
  dim = front.output_dim
  if dim % num_heads:
    raise ValueError(
        f'dim must be divisible by num_heads, found dim {dim} and num_heads '
        f'{num_heads}.'
    )
  adapter_specs = {}
  if adapter_dim:
    adapter_specs = adapter.specs(dim=dim, adapter_dim=adapter_dim)
  return encoder.stack(
      front,
      num_blocks=num_blocks,
      block_specs={
          **weights_lib.prefix(_ADAPTER, adapter_specs),
          **attention.specs(dim=dim, biases=True),
          **weights_lib.prefix('ln1', layers.norm_specs(dim)),
          **weights_lib.prefix('ln2', layers.norm_specs(dim)),
          'b1': weights_lib.zeros_spec(mlp_dim),
          'b2': weights_lib.zeros_spec(dim),
          'w1': weights_lib.matrix_spec(dim, mlp_dim),
          'w2': weights_lib.matrix_spec(mlp_dim, dim),
      },
      apply_block=_Block(
          num_heads=num_heads,
          norm=norm,
          dropout=dropout,
          layer_drop=layer_drop,
          activation_dtype=activation_dtype,
      ),
      # The stream of 'pre' is never normalised inside the blocks.
      final_norm=norm == 'pre',
  )


def exact_gelu(inputs: tf.Tensor) -> tf.Tensor:
  """Exact GELU."""
  # Said in full, as BERT and GPT-2 take the approximation by tanh.
  return tf.nn.gelu(inputs, approximate=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Block:
  """One block; in training, with probability layer_drop, its adapter alone."""

  num_heads: int
  norm: str
  dropout: float
  layer_drop: float
  activation_dtype: str

  def __call__(
      self,
      weights: weights_lib.Weights,
      inputs: tf.Tensor,
      valid: tf.Tensor,
      seed: Optional[tf.Tensor],
  ) -> tf.Tensor:
    outputs = layers.residual_block(
        weights,
        inputs,
        seed,
        attend=lambda hidden, seed: self._attend(weights, hidden, valid, seed),
        mlp=lambda hidden, seed: self._mlp(weights, hidden, seed),
        norm=self.norm,
        layer_drop=self.layer_drop,
        # As `transformers` does, also with norm 'post'.
        skips_norms=True,
    )
    # After layer drop: a skipped block keeps its adapter.
    own = weights_lib.subtree(_ADAPTER, weights)
    return adapter.apply(own, outputs) if own else outputs

  def _attend(self, weights, hidden, valid, seed):
    # Dropout of attention weights and of outputs must not share random bits.
    weights_seed, output_seed = layers.split_seed(seed, 2)
    outputs = attention.apply(
        weights,
        tf.cast(hidden, self.activation_dtype),
        valid,
        num_heads=self.num_heads,
        dropout=self.dropout,
        seed=weights_seed,
    )
    # The residual stream stays float32.
    outputs = tf.cast(outputs, tf.float32)
    return layers.dropout(outputs, self.dropout, output_seed)

  def _mlp(self, weights, hidden, seed):
    inner_seed, output_seed = layers.split_seed(seed, 2)
    hidden = tf.cast(hidden, self.activation_dtype)
    inner = exact_gelu(layers.linear(hidden, weights['w1'], weights['b1']))
    inner = layers.dropout(inner, self.dropout, inner_seed)
    outputs = layers.linear(inner, weights['w2'], weights['b2'])
    outputs = tf.cast(outputs, tf.float32)
    return layers.dropout(outputs, self.dropout, output_seed)
