"""What the server may do to the aggregated delta before its optimizer.

The aggregate is noised by then, so all of this is post-processing: it costs no
privacy, and what is below is no protection. A transform is a pure function from
a nest of float32 tensors to one like it.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_asr import checks

Transform = Callable[[Any], Any]


def clip(*, max_norm: float) -> Transform:
  """Returns a transform: delta min(1, max_norm / |delta|), of all as one."""
  checks.positive(max_norm=max_norm)

  def transform(delta: Any) -> Any:
    norm = tf.linalg.global_norm(tf.nest.flatten(delta))
    factor = max_norm / tf.maximum(norm, max_norm)
    return tf.nest.map_structure(lambda part: part * factor, delta)

  return transform


def normalize(*, norm: float = 1.0) -> Transform:
  """Returns a transform: delta norm / |delta|; a delta of zeros stays zeros."""
  checks.positive(norm=norm)
  checks.finite(norm=norm)

  def transform(delta: Any) -> Any:
    found = tf.linalg.global_norm(tf.nest.flatten(delta))
    factor = tf.math.divide_no_nan(norm, found)
    return tf.nest.map_structure(lambda part: part * factor, delta)

  return transform
