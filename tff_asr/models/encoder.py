"""What every encoder is: weights, a pure function of them, and its lengths.

Weights, their gradients and an encoder's output are float32. What happens in
between, the activations, may be bfloat16: half the memory, and the fast matrix
units of GPUs. Statistics of norms, the softmax of attention and the draws of
dropout stay float32.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames.
  D: width of the encoder's output.
"""

from collections.abc import Callable
import dataclasses
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.models import weights as weights_lib

ACTIVATION_DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class Encoder:
  """An acoustic encoder.

  Attributes:
    specs: Its weights.
    apply: A function (weights, features float32 [B, T, F], feature_lengths
      int32 [B], seed int32 [2] or None) to (float32 [B, S, D], int32 [B]).
      With a seed it trains (dropout and the like, all drawn from the seed),
      without it evaluates. Frames at or past an utterance's length do not
      affect its outputs before its output length.
    output_lengths: Feature frames to output frames, any integer tensor.
    output_dim: D.
  """

  specs: weights_lib.Specs
  apply: Callable[
      [weights_lib.Weights, tf.Tensor, tf.Tensor, Optional[tf.Tensor]],
      tuple[tf.Tensor, tf.Tensor],
  ]
  output_lengths: Callable[[tf.Tensor], tf.Tensor]
  output_dim: int


def block_names(num_blocks: int) -> list[str]:
  """Names of blocks that sort in their order."""
  digits = max(2, len(str(num_blocks - 1)))
  return [f'block_{index:0{digits}}' for index in range(num_blocks)]


def mask(lengths: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
  """Returns float32 [B, size, 1]: 1 before each length, 0 from it on."""
  return tf.sequence_mask(lengths, size, tf.float32)[:, :, tf.newaxis]


def dropout(
    inputs: tf.Tensor, rate: float, seed: Optional[tf.Tensor]
) -> tf.Tensor:
  """Inverted dropout from a stateless seed; without seed or rate, identity.

  The rate is rounded to 16 bits, of which a value takes 16: drawing costs half
  of what a uniform float32 does, and is most of dropout's cost.
  """
  if seed is None or rate == 0:
    return inputs
  size = tf.size(inputs)
  pairs = tf.random.stateless_uniform(
      [(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32
  )
  draws = tf.reshape(tf.bitcast(pairs, tf.uint16), [-1])[:size]
  num_dropped = min(round(rate * 2**16), 2**16 - 1)
  kept = tf.cast(draws >= tf.constant(num_dropped, tf.uint16), inputs.dtype)
  kept *= tf.cast(1 / (1 - num_dropped / 2**16), inputs.dtype)
  return inputs * tf.reshape(kept, tf.shape(inputs))


def check_dropout(dropout: float) -> None:
  """Raises ValueError unless the rate is in [0, 1)."""
  checks.in_range(0, 1, dropout=dropout)
  if dropout == 1:
    raise ValueError('dropout must be below 1, found 1.')


def matmul(inputs: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
  """`inputs` [..., D] times a float32 weight [D, E], in the inputs' dtype."""
  # One product of all rows. `tf.matmul` would take one an utterance, and their
  # gradients' sum over utterances is then an operation of its own.
  rows = tf.reshape(inputs, [-1, weight.shape[0]])
  outputs = tf.matmul(rows, tf.cast(weight, inputs.dtype))
  shape = tf.concat([tf.shape(inputs)[:-1], weight.shape[1:]], axis=0)
  outputs = tf.reshape(outputs, shape)
  outputs.set_shape(inputs.shape[:-1] + weight.shape[1:])
  return outputs


def split_seed(
    seed: Optional[tf.Tensor], num_seeds: int
) -> list[Optional[tf.Tensor]]:
  """Splits a seed into independent ones; None stays None (evaluation)."""
  if seed is None:
    return [None] * num_seeds
  return tf.unstack(tf.random.split(seed, num_seeds))
