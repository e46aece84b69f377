"""Canary clients for an audit: ids, and the random updates that they send.

A canary's update has in each layer a random direction of a norm far above any
clip, so that a clip that fails in one layer shows. Its directions follow from a
seed and its number, here and inside a graph.
"""

from collections.abc import Sequence
import dataclasses

import tensorflow as tf

from tff_asr import checks
from tff_asr.privacy import keys
from tff_asr.privacy import queries

PREFIX = 'canary/'
# Clips are 1 or less in practice, and squares stay in float32's range.
LAYER_NORM = 1e6

# Values of the stream that a canary owns.
_VALUES_PER_CANARY = 2**34


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
  """`num_canaries` of them; the seed need not be secret."""

  num_canaries: int
  seed: int = 1

  def __post_init__(self):
    checks.positive_int(num_canaries=self.num_canaries)
    checks.non_negative_int(seed=self.seed)

  @property
  def client_ids(self) -> list[str]:
    """Their ids, sorted."""
    return [f'{PREFIX}{number:08d}' for number in range(self.num_canaries)]

  def update(
      self, client_id: tf.Tensor, shapes: Sequence[tf.TensorShape]
  ) -> list[tf.Tensor]:
    """Returns a canary's update, float32 of these shapes; traceable.

    Args:
      client_id: string [], one of `client_ids`.
      shapes: Fully defined, of the layers.
    """
    digits = tf.strings.substr(client_id, len(PREFIX), -1)
    number = tf.strings.to_number(digits, tf.int64)
    directions = queries.standard_normal(
        shapes,
        noise_key=tf.constant(keys.from_seed(self.seed)),
        start=number * _VALUES_PER_CANARY,
    )
    return [
        direction * (LAYER_NORM / tf.norm(direction))
        for direction in directions
    ]


def is_canary(client_id: tf.Tensor) -> tf.Tensor:
  """Whether a client id, string [], is a canary's; bool []."""
  return tf.equal(tf.strings.substr(client_id, 0, len(PREFIX)), PREFIX)
