"""What every encoder is: weights, a pure function of them, and its lengths.

  B: batch size. T: feature frames. F: mel bins. S: subsampled frames.
  D: width of the encoder's output.
"""

from collections.abc import Callable
import dataclasses
from typing import Optional

import tensorflow as tf

from tff_asr.models import weights as weights_lib


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


def mask(lengths: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
  """Returns float32 [B, size, 1]: 1 before each length, 0 from it on."""
  return tf.sequence_mask(lengths, size, tf.float32)[:, :, tf.newaxis]


def dropout(
    inputs: tf.Tensor, rate: float, seed: Optional[tf.Tensor]
) -> tf.Tensor:
  """Inverted dropout from a stateless seed; without seed or rate, identity."""
  if seed is None or rate == 0:
    return inputs
  return tf.nn.experimental.stateless_dropout(inputs, rate, seed)


def split_seed(
    seed: Optional[tf.Tensor], num_seeds: int
) -> list[Optional[tf.Tensor]]:
  """Splits a seed into independent ones; None stays None (evaluation)."""
  if seed is None:
    return [None] * num_seeds
  return tf.unstack(tf.random.split(seed, num_seeds))
