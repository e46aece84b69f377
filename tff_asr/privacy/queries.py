"""The sum of clipped client updates with Gaussian noise, as one DP query.

Clipping each layer h of an update to its own norm C_h, with
sqrt(sum_h C_h^2) = C, bounds the whole update by C, exactly as clipping it
globally would; so the layers share one Gaussian mechanism and cost one event.
Pelikan et al. 2025, https://arxiv.org/abs/2310.00098, Definition 3.
"""

import collections
from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_asr import checks

# A split of C: from the layers' numbers of elements to shares s_h of C, with
# C_h = s_h C and sum of s_h^2 = 1. None stands for clipping all layers as one.
ClipSplit = Callable[[Sequence[int]], Sequence[float]]


def uniform_split(sizes: Sequence[int]) -> list[float]:
  """The same norm for each of the H layers: C_h = C / sqrt(H)."""
  return [1 / math.sqrt(len(sizes))] * len(sizes)


def dim_split(sizes: Sequence[int]) -> list[float]:
  """Norms by the layers' sizes d_h: C_h = C sqrt(d_h / sum of d)."""
  total = sum(sizes)
  return [math.sqrt(size / total) for size in sizes]


SPLITS = {'global': None, 'uniform': uniform_split, 'dim': dim_split}

# Noise is read from the counter stream of one Philox key. A round owns 2^40
# values of it, far more than any model has.
VALUES_PER_ROUND = 2**40
_PHILOX = 1


class PerLayerClipSumQuery(tfp.SumAggregationDPQuery):
  """Sums records after clipping each layer, then adds isotropic Gaussian noise.

  A record is a nest of float32 tensors; each tensor is a layer. Let C be the
  clip and z the noise multiplier.

  Sensitivity (one record added or removed, whatever it holds): C; the norm of a
  clipped record is at most C (1 + 1e-6) in float32. Replacing a record moves
  the sum by up to 2 C. Noise: N(0, (z C)^2) on every element of the sum,
  whatever the split. Event: one GaussianDpEvent(z) for each call of
  `get_noised_result`, stated for adding or removing a record.

    - A layer at or under C_h is unchanged; a layer of zeros stays zeros.
    - A record with a NaN or an infinity anywhere becomes all zeros.
    - C = inf clips nothing; it takes no noise.
    - z = 0 adds nothing; its event has infinite epsilon.

  The noise comes from stateless ops keyed by the state's 128-bit `noise_key`
  and its `counter`: the same state and sum give the same bits again, and no key
  is ever part of a graph. `initial_global_state` leaves the key at zero, which
  stands for "not set": then noised results are NaN (see `set_noise_key`).
  Elements are rounded to float32, for which the guarantee of the real-valued
  Gaussian holds only approximately (Mironov 2012).
  """

  class GlobalState(NamedTuple):
    """The query's state.

    Attributes:
      l2_norm_clip: C, float32.
      noise_multiplier: z, float32.
      noise_key: int32 [4]; zeros: not set.
      counter: int64, noised results so far.
    """

    l2_norm_clip: Any
    noise_multiplier: Any
    noise_key: Any
    counter: Any

  def __init__(
      self,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      split: str = 'global',
  ):
    """Creates the query.

    Args:
      l2_norm_clip: C, from 1e-30 up, or infinity.
      noise_multiplier: z, the noise's standard deviation over C, at least 0.
      split: How C is divided over layers: `global` (one norm over all),
        `uniform` or `dim`.

    Raises:
      ValueError: An argument is out of its range, or there is noise without a
        finite clip.
    """
    checks.in_range(1e-30, math.inf, l2_norm_clip=l2_norm_clip)
    checks.non_negative(noise_multiplier=noise_multiplier)
    checks.finite(noise_multiplier=noise_multiplier)
    checks.one_of(SPLITS, split=split)
    if math.isinf(l2_norm_clip) and noise_multiplier > 0:
      raise ValueError(
          f'noise_multiplier {noise_multiplier} needs a finite l2_norm_clip, '
          'found infinity: without a clip, no noise gives privacy.'
      )
    self._l2_norm_clip = l2_norm_clip
    self._noise_multiplier = noise_multiplier
    self._split = SPLITS[split]

  def initial_global_state(self):
    return PerLayerClipSumQuery.GlobalState(
        l2_norm_clip=tf.constant(self._l2_norm_clip, tf.float32),
        noise_multiplier=tf.constant(self._noise_multiplier, tf.float32),
        noise_key=tf.zeros([4], tf.int32),
        counter=tf.constant(0, tf.int64),
    )

  def derive_sample_params(self, global_state):
    # What clients get: the clip, and nothing of the key.
    return global_state.l2_norm_clip

  def preprocess_record(self, params, record):
    layers = tf.nest.flatten(record)
    squared_norms = [
        tf.reduce_sum(tf.square(tf.cast(layer, tf.float64))) for layer in layers
    ]
    # In float64 the squares of finite float32 values neither overflow nor
    # vanish, so this is finite exactly when every element is.
    is_finite = tf.math.is_finite(tf.add_n(squared_norms))
    clip = tf.cast(params, tf.float64)
    if self._split is None:
      factors = [_factor(tf.add_n(squared_norms), clip)] * len(layers)
    else:
      shares = self._split([layer.shape.num_elements() for layer in layers])
      factors = [
          _factor(squared_norm, share * clip)
          for squared_norm, share in zip(squared_norms, shares)
      ]
    # The product in float64 too: a factor of C over a huge norm may be below
    # float32's normal numbers, where rounding could double it.
    clipped = [
        tf.where(
            is_finite,
            tf.cast(tf.cast(layer, tf.float64) * factor, layer.dtype),
            0.0,
        )
        for layer, factor in zip(layers, factors)
    ]
    return tf.nest.pack_sequence_as(record, clipped)

  def get_noised_result(self, sample_state, global_state):
    layers = tf.nest.flatten(sample_state)
    if self._noise_multiplier > 0:
      stddev = keyed_stddev(global_state)
      noises = standard_normal(
          [layer.shape for layer in layers],
          noise_key=global_state.noise_key,
          start=global_state.counter * VALUES_PER_ROUND,
      )
      layers = [layer + stddev * noise for layer, noise in zip(layers, noises)]
    new_state = global_state._replace(counter=global_state.counter + 1)
    event = dp_accounting.GaussianDpEvent(global_state.noise_multiplier)
    return tf.nest.pack_sequence_as(sample_state, layers), new_state, event

  def derive_metrics(self, global_state):
    return collections.OrderedDict(
        l2_norm_clip=global_state.l2_norm_clip,
        noise_stddev_on_sum=(
            global_state.noise_multiplier * global_state.l2_norm_clip
            if self._noise_multiplier > 0
            else tf.constant(0.0)
        ),
    )


def set_noise_key(
    state: PerLayerClipSumQuery.GlobalState, key: Any
) -> PerLayerClipSumQuery.GlobalState:
  """Returns the state with its key set.

  Args:
    state: The query's state.
    key: int32 [4], not all zeros; see `keys.draw`.

  Raises:
    ValueError: The key has another shape, or is all zeros.
  """
  bits = np.asarray(key)
  if bits.dtype != np.int32 or bits.shape != (4,) or not np.any(bits):
    raise ValueError(
        'noise key must be four int32 values that are not all zero, found '
        f'{bits.dtype} {bits.shape}.'
    )
  return state._replace(noise_key=bits)


def _factor(squared_norm: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
  """min(1, clip / norm), and 1 for norm 0 or an infinite clip."""
  norm = tf.sqrt(squared_norm)
  over = norm > clip
  return tf.where(over, clip / tf.where(over, norm, 1.0), 1.0)


def keyed_stddev(global_state: Any) -> tf.Tensor:
  """z C, float32; NaN without a key, so that nothing is quietly unprotected."""
  stddev = global_state.noise_multiplier * global_state.l2_norm_clip
  is_keyed = tf.reduce_any(tf.not_equal(global_state.noise_key, 0))
  return tf.where(is_keyed, stddev, math.nan)


def standard_normal(
    shapes: Sequence[tf.TensorShape],
    *,
    noise_key: tf.Tensor,
    start: tf.Tensor,
) -> list[tf.Tensor]:
  """Returns N(0, 1) of each shape: a function of key and start only.

  Args:
    shapes: Fully defined.
    noise_key: int32 [4].
    start: int64, where in the key's stream to begin.
  """
  # Slices: to unstack 64-bit integers there is no GPU kernel.
  words = tf.bitcast(tf.reshape(noise_key, [2, 2]), tf.uint64)
  key, high = words[0], words[1]
  noise = []
  for shape in shapes:
    noise.append(
        tf.raw_ops.StatelessRandomNormalV2(
            shape=shape.as_list(),
            key=[key],
            counter=[tf.cast(start, tf.uint64), high],
            alg=_PHILOX,
        )
    )
    start += shape.num_elements()
  return noise
