"""The sum of clipped client updates with Gaussian noise, as one DP query.

Each layer h of an update is clipped to its own norm C_h, with
sqrt(sum_h C_h^2) = C. That bounds the whole update by C, exactly as one global
clip would, so the layers share one Gaussian mechanism and cost one event.
Pelikan et al. 2025, https://arxiv.org/abs/2310.00098, Definition 3.
"""

import collections
from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple, Protocol

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_asr import checks
from tff_asr import sequential
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import keys

# Noise comes from the counter stream of one Philox key. A round owns 2^40
# values of it, far more than a model has parameters.
VALUES_PER_ROUND = 2**40
_PHILOX = 1


class Measured(NamedTuple):
  """Effect of clipping, summed over records: exact and so not private.

  H: layers, as the clipping divides a record into them.

  Attributes:
    num_finite: Records without NaN and infinity; others have zeros below.
    num_clipped: Records of which at least one layer was changed.
    norm: Norms of the records before clipping, float32.
    clipped_norm: Norms of the records after it, float32.
    layer_norms: Norms of layers before clipping, float32 [H].
    clipped_layer_norms: Norms of layers after it, float32 [H].
    layers_clipped: Records whose layer was changed, float32 [H].
  """

  num_finite: Any
  num_clipped: Any
  norm: Any
  clipped_norm: Any
  layer_norms: Any
  clipped_layer_norms: Any
  layers_clipped: Any


class ClippingQuery(Protocol):
  """A `tfp.SumAggregationDPQuery` that also measures its clipping.

  Its global state has at least the fields of
  `PerLayerClipSumQuery.GlobalState`, the noise key among them.

  H: layers, as the clipping divides a record into them.

  Attributes:
    layer_names: Names of the layers, H of them.
    num_noised: Elements of the sum that get noise.
  """

  layer_names: Sequence[str]
  num_noised: int

  def initial_global_state(self) -> Any:
    """The state before the first round, without a noise key."""

  def derive_sample_params(self, global_state: Any) -> Any:
    """The part of the state that `clip` takes."""

  def initial_sample_state(self, template: Any) -> Any:
    """The sum of no records."""

  def clip(self, params: Any, record: Any) -> tuple[Any, Measured]:
    """Returns the clipped record, as it is summed, and what was measured."""

  def summed(self, sample_state: Any) -> Any:
    """The sum of clipped records, of a sum of what `clip` returns."""

  def get_noised_result(
      self, sample_state: Any, global_state: Any
  ) -> tuple[Any, Any, dp_accounting.DpEvent]:
    """Returns the noised sum, the new state, and the event."""

  def derive_metrics(self, global_state: Any) -> dict[str, Any]:
    """Settings and noised values of the coming round, which may be shown."""


# From the specs of a record (nest of float32 `tf.TensorSpec`) to a query.
BuildQuery = Callable[[Any], ClippingQuery]


class PerLayerClipSumQuery(tfp.SumAggregationDPQuery):
  """Sums records after clipping each layer, then adds isotropic Gaussian noise.

  A record is a nest of float32 tensors. `clipping_lib.Clipping` says what its
  layers are, their clips C_h, and what happens to a layer above its clip. Let C
  be the clip of the whole and z the noise multiplier.

  Sensitivity (one record added or removed, whatever it holds): C; the norm of a
  clipped record is at most C (1 + 1e-6) in float32. Replacing a record moves
  the sum by up to 2 C. Noise: N(0, (z C)^2) on every element of the sum,
  whatever the split. Event: one GaussianDpEvent(z) for each call of
  `get_noised_result`, stated for adding or removing a record.

    - A layer at or under C_h is unchanged, unless the rule is `rescale`; a
      layer of zeros stays zeros.
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
      record_specs: Any,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
  ):
    """Creates the query.

    Args:
      record_specs: Nest of float32 `tf.TensorSpec`, like a record.
      l2_norm_clip: C, from 1e-30 up, or infinity.
      noise_multiplier: z, the noise's standard deviation over C, at least 0.
      clipping: How C is divided over layers; by default one norm over all.

    Raises:
      ValueError: An argument is out of its range, there is noise without a
        finite clip, or the clipping does not fit the record.
    """
    checks.in_range(1e-30, math.inf, l2_norm_clip=l2_norm_clip)
    checks.non_negative(noise_multiplier=noise_multiplier)
    checks.finite(noise_multiplier=noise_multiplier)
    if math.isinf(l2_norm_clip) and noise_multiplier > 0:
      raise ValueError(
          f'noise_multiplier {noise_multiplier} needs a finite l2_norm_clip, '
          'found infinity: without a clip, no noise gives privacy.'
      )
    self._l2_norm_clip = l2_norm_clip
    self._noise_multiplier = noise_multiplier
    self._specs = record_specs
    self._rule = clipping.rule
    self._layers = clipping.divide(record_specs)

  def initial_global_state(self):
    return PerLayerClipSumQuery.GlobalState(
        l2_norm_clip=tf.constant(self._l2_norm_clip, tf.float32),
        noise_multiplier=tf.constant(self._noise_multiplier, tf.float32),
        noise_key=tf.zeros([4], tf.int32),
        counter=tf.constant(0, tf.int64),
    )

  def derive_sample_params(self, global_state):
    # Clients get the clip, and nothing of the key.
    return global_state.l2_norm_clip

  def preprocess_record(self, params, record):
    return self.clip(params, record)[0]

  def clip(self, params: Any, record: Any) -> tuple[Any, Measured]:
    """Returns the clipped record, as it is summed, and what was measured."""
    clip = tf.cast(params, tf.float64)
    return self._clip(
        record,
        clip=clip,
        layer_clips=[
            None if layer.share is None else layer.share * clip
            for layer in self._layers
        ],
    )

  def summed(self, sample_state: Any) -> Any:
    """The sum of clipped records, of a sum of what `clip` returns."""
    return sample_state

  @property
  def layer_names(self) -> list[str]:
    """Names of the layers, H of them."""
    return [layer.name for layer in self._layers]

  @property
  def num_noised(self) -> int:
    """Elements of the sum that get noise."""
    return sum(math.prod(spec.shape) for spec in tf.nest.flatten(self._specs))

  def _clip(
      self, record: Any, *, clip: tf.Tensor, layer_clips: Sequence[tf.Tensor]
  ) -> tuple[Any, Measured]:
    """Clips to C and the C_h, float64 []."""
    tensors = tf.nest.flatten(record)
    squared_norms = sequential.sequential_map(
        lambda tensor: tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64))),
        tensors,
    )
    # In float64 the squares of finite float32 values neither overflow nor
    # vanish, so this is finite exactly when every element is.
    is_finite = tf.math.is_finite(tf.add_n(squared_norms))
    factors = clipping_lib.factors(
        squared_norms,
        layers=self._layers,
        layer_clips=layer_clips,
        clip=clip,
        rule=self._rule,
    )
    # The product is in float64, too: C over a huge norm may be below float32's
    # normal numbers, where rounding could double it.
    clipped = sequential.sequential_map(
        lambda tensor, factor: tf.where(
            is_finite,
            tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype),
            0.0,
        ),
        tensors,
        factors,
    )
    measured = _measure(squared_norms, factors, layers=self._layers)
    zeros = tf.nest.map_structure(tf.zeros_like, measured)
    return (
        tf.nest.pack_sequence_as(record, clipped),
        tf.nest.map_structure(
            lambda value, zero: tf.where(is_finite, value, zero),
            measured,
            zeros,
        ),
    )

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
  bits = keys.check(key)
  if not np.any(bits):
    raise ValueError('the noise key is all zeros: draw one.')
  return state._replace(noise_key=bits)


def _measure(
    squared_norms: Sequence[tf.Tensor],
    factors: Sequence[tf.Tensor],
    *,
    layers: Sequence[clipping_lib.Layer],
) -> Measured:
  """Measures a finite record."""
  layer_norms = tf.sqrt(
      [clipping_lib.layer_square(squared_norms, layer) for layer in layers]
  )
  # All tensors of a layer have one factor. Zeros times any factor stay zeros.
  layer_factors = tf.stack([factors[layer.indices[0]] for layer in layers])
  changed = tf.not_equal(layer_factors, 1) & (layer_norms > 0)
  changed = tf.cast(changed, tf.float32)
  clipped_square = tf.add_n([
      squared_norm * tf.square(factor)
      for squared_norm, factor in zip(squared_norms, factors)
  ])
  return Measured(
      num_finite=tf.constant(1.0),
      num_clipped=tf.reduce_max(changed),
      norm=tf.cast(tf.sqrt(tf.add_n(squared_norms)), tf.float32),
      clipped_norm=tf.cast(tf.sqrt(clipped_square), tf.float32),
      layer_norms=tf.cast(layer_norms, tf.float32),
      clipped_layer_norms=tf.cast(layer_norms * layer_factors, tf.float32),
      layers_clipped=changed,
  )


def keyed_stddev(global_state: Any) -> tf.Tensor:
  """z C, float32; NaN without a key, so a missing key cannot go unnoticed."""
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
  # Slices, because there is no GPU kernel to unstack 64-bit integers.
  words = tf.bitcast(tf.reshape(noise_key, [2, 2]), tf.uint64)
  key, high = words[0], words[1]
  noise = []
  for shape in shapes:
    # One tensor after the other: each is added and freed before the next one.
    with tf.control_dependencies(noise[-1:]):
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
