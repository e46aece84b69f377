"""Clips records by layer and rounds them to integers, so that sums are exact.

The norm of what `GridClipper.clip` returns is at most C, for the bits that are
summed and not for real numbers alone: docs/proofs.md ("Why the clip is
exact"). `clipping` divides C over layers.

  H: layers.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple, Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr import sequential
from tff_asr.privacy import clipping as clipping_lib

# g over C, and at most over C / sqrt(D), the root mean square of the elements
# of a record of norm C. The first is the smaller up to D = 2^32.
STEP_OVER_CLIP = 2.0**-24
_STEP_OVER_ELEMENT = 2.0**-8
MIN_CLIP, MAX_CLIP = 1e-30, 1e30

# Elements from which a compiled pass over a tensor is faster than three ops:
# below, its call costs more than the passes over memory that it saves.
_COMPILED_SIZE = 2**15


class ClippingStats(NamedTuple):
  """Effect of clipping, summed over records: exact, and therefore not private.

  H: layers, as the clipping divides a record into them.

  Attributes:
    num_finite: Records without NaN and infinity; others have zeros below.
    num_clipped: Records of which at least one layer was changed.
    clipped_norm: Norms of the records after clipping, float32.
    layer_norms: Norms of layers before clipping, float32 [H].
    clipped_layer_norms: Norms of layers after clipping, float32 [H].
    layers_clipped: Records in which the layer was changed, float32 [H].
  """

  num_finite: tf.Tensor
  num_clipped: tf.Tensor
  clipped_norm: tf.Tensor
  layer_norms: tf.Tensor
  clipped_layer_norms: tf.Tensor
  layers_clipped: tf.Tensor


class GridClipper:
  """Clips records layer by layer and rounds them toward zero to integers.

  The result is in steps of a grid. Its norm is at most C / g for the clip C and
  the grid step g, exactly: docs/proofs.md ("Why the clip is exact").

    - An element is rounded toward zero.
    - A layer under C_h is not scaled, unless the rule is `rescale`; one at C_h
      loses a step where it is on the grid. A layer of zeros stays zeros.
    - A record with a NaN or an infinity anywhere becomes all zeros.
    - C = inf clips nothing. Such records have no bound, so no grid holds them:
      they stay float32.
    - Without noise (`is_exact` False) they stay float32, too: no guarantee
      needs the grid, and it would drop elements far below C that LAMB or Adam
      scale up again.

  Attributes:
    layers: The H layers.
    num_elements: D, elements of a record.
    max_clip_in_steps: Upper bound on C / g; equal to it if the grid follows the
      clip.
    dtype: Of clipped records and their sums: int64 if they are on the grid,
      else float32.
  """

  def __init__(
      self,
      record_specs: clipping_lib.Nest,
      *,
      l2_norm_clip: float,
      clipping: clipping_lib.Clipping,
      grid_follows_clip: bool = False,
      is_exact: bool = True,
  ):
    """Creates the clipper.

    Args:
      record_specs: clipping_lib.Nest of float32 `tf.TensorSpec`, like a record.
      l2_norm_clip: C of the first round, in [1e-30, 1e30], or infinity.
      clipping: How C is divided over layers.
      grid_follows_clip: Whether C / g is the same power of two for every C.
        Otherwise g is a power of two.
      is_exact: Whether clipped records are on the grid, which a guarantee
        needs; with a finite clip only.
    """
    if l2_norm_clip != math.inf:
      checks.in_range(MIN_CLIP, MAX_CLIP, l2_norm_clip=l2_norm_clip)
    self._specs = tf.nest.flatten(record_specs)
    self._rule = clipping.rule
    self._grid_follows_clip = grid_follows_clip
    self.layers = clipping.divide(record_specs)
    self.num_elements = sum(math.prod(spec.shape) for spec in self._specs)
    self._step_over_clip = step_over_clip(self.num_elements)
    if grid_follows_clip:
      self._step_over_clip = _power_of_two(self._step_over_clip)
    # A power of two at most g is more than half of its bound.
    self.max_clip_in_steps = (1 if grid_follows_clip else 2) / (
        self._step_over_clip
    )
    is_exact = is_exact and l2_norm_clip < math.inf
    self.dtype = tf.int64 if is_exact else tf.float32

  @property
  def layer_names(self) -> list[str]:
    """Names of the layers, H of them."""
    return [layer.name for layer in self.layers]

  @property
  def is_global(self) -> bool:
    """Whether all layers are clipped as one."""
    return self.layers[0].share is None

  def grid_step(self, l2_norm_clip: tf.Tensor) -> tf.Tensor:
    """Returns g for a finite clip C, float64 [].

    At most 2^-24 C and 2^-8 C / sqrt(D): the largest power of two, or the
    largest power of two times C if the grid follows the clip.

    Args:
      l2_norm_clip: C, float32 [].
    """
    clip = tf.cast(l2_norm_clip, tf.float64)
    if self._grid_follows_clip:
      return clip * self._step_over_clip
    # The exponent's bits alone are the power of two below.
    bits = tf.bitwise.bitwise_and(
        tf.bitcast(clip * self._step_over_clip, tf.int64),
        tf.constant(0x7FF << 52, tf.int64),
    )
    return tf.bitcast(bits, tf.float64)

  def sum_unit(self, l2_norm_clip: tf.Tensor) -> tf.Tensor:
    """Returns the unit of clipped records, float64 []: g on the grid, else 1.

    Args:
      l2_norm_clip: C, float32 [].
    """
    if self.dtype == tf.int64:
      return self.grid_step(l2_norm_clip)
    return tf.constant(1.0, tf.float64)

  def clip(
      self,
      record: clipping_lib.Nest,
      *,
      l2_norm_clip: tf.Tensor,
      layer_clips: Optional[tf.Tensor] = None,
  ) -> tuple[clipping_lib.Nest, ClippingStats]:
    """Clips a record and, if sums are exact, rounds it to the grid.

    Args:
      record: clipping_lib.Nest of float32 tensors.
      l2_norm_clip: C, float32 [].
      layer_clips: C_h, float32 [H], or [1] if all layers are clipped as one;
        None: C divided by the clipping's shares.

    Returns:
      A nest of `dtype` in units of `sum_unit`, and what clipping did.

    Raises:
      ValueError: XLA, which clips large tensors, is told to be less exact.
    """
    clip, clips = self._exact_clips(l2_norm_clip, layer_clips)
    # Smaller by what float64 may round below, so that C holds exactly.
    shrink = 1 - (self.num_elements + 32) * 2.0**-52
    tensors = tf.nest.flatten(record)
    squared_norms = sequential.sequential_map(squared_norm, tensors)
    # In float64 the squares of finite float32 values neither overflow nor
    # vanish, so this is finite exactly when every element is.
    is_finite = tf.math.is_finite(tf.add_n(squared_norms))
    factors = clipping_lib.factors(
        squared_norms,
        layers=self.layers,
        layer_clips=[c if c is None else shrink * c for c in clips],
        clip=shrink * clip,
        rule=self._rule,
    )
    unit = self.sum_unit(l2_norm_clip)

    # XLA compiles it to one pass, once for each shape, and an execution context
    # adds to a sum in that pass, too (`execution.graph`). Of this call, since a
    # function keeps the graphs in which it was traced.
    scale_large = tf.function(self._scale, autograph=False, jit_compile=True)
    # On GPUs this has not run, and each of them would compile each shape.
    has_gpu = bool(tf.config.list_physical_devices('GPU'))

    def scale(spec, tensor, factor):
      factor = tf.where(is_finite, factor / unit, 0.0)
      if has_gpu or spec.shape.num_elements() < _COMPILED_SIZE:
        return self._scale(tensor, factor)
      # Zero times NaN need not be zero in faster arithmetic.
      checks.xla_is_exact()
      compiled = scale_large.get_concrete_function(
          tf.TensorSpec(spec.shape, spec.dtype), tf.TensorSpec([], tf.float64)
      )
      return compiled(tensor, factor)

    clipped = sequential.sequential_map(scale, self._specs, tensors, factors)
    stats = _stats_of_finite(squared_norms, factors, layers=self.layers)
    return (
        tf.nest.pack_sequence_as(record, clipped),
        tf.nest.map_structure(
            lambda value: tf.where(is_finite, value, tf.zeros_like(value)),
            stats,
        ),
    )

  def _scale(self, tensor: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """A clipped tensor of float32 in the unit of sums, by a float64 factor."""
    # Casting to int64 rounds toward zero. Zero times NaN is zero here.
    return tf.cast(
        tf.math.multiply_no_nan(tf.cast(tensor, tf.float64), factor),
        self.dtype,
    )

  def _exact_clips(
      self, l2_norm_clip: tf.Tensor, layer_clips: Optional[tf.Tensor]
  ) -> tuple[tf.Tensor, list[Optional[tf.Tensor]]]:
    """C and the C_h, float64 []; no C_h where layers are clipped as one."""
    clip = tf.cast(l2_norm_clip, tf.float64)
    if layer_clips is None:
      return clip, [
          None if layer.share is None else layer.share * clip
          for layer in self.layers
      ]
    # Clips that adapt are part of the state, not of the clipping's shares.
    clips = tf.unstack(tf.cast(layer_clips, tf.float64))
    if self.is_global:
      return clips[0], [None] * len(self.layers)
    return clip, clips


def step_over_clip(num_elements: int) -> float:
  """Returns an upper bound on g / C for records of this many elements."""
  return min(
      STEP_OVER_CLIP, _STEP_OVER_ELEMENT / math.sqrt(max(1, num_elements))
  )


def squared_norm(tensor: tf.Tensor) -> tf.Tensor:
  """Sum of an array's squares in float64, in one pass."""
  # l2_loss is half of the sum of squares, without a tensor of squares.
  return 2 * tf.nn.l2_loss(tf.cast(tensor, tf.float64))


def _stats_of_finite(
    squared_norms: Sequence[tf.Tensor],
    factors: Sequence[tf.Tensor],
    *,
    layers: Sequence[clipping_lib.Layer],
) -> ClippingStats:
  """Statistics of a finite record."""
  layer_norms = tf.sqrt(
      [clipping_lib.layer_square(squared_norms, layer) for layer in layers]
  )
  # All tensors of a layer have one factor. Zeros times any factor stay zeros.
  layer_factors = tf.stack([factors[layer.indices[0]] for layer in layers])
  changed = tf.not_equal(layer_factors, 1) & (layer_norms > 0)
  changed = tf.cast(changed, tf.float32)
  clipped_square = tf.add_n([
      square * tf.square(factor)
      for square, factor in zip(squared_norms, factors, strict=True)
  ])
  return ClippingStats(
      num_finite=tf.constant(1.0),
      num_clipped=tf.reduce_max(changed),
      clipped_norm=tf.cast(tf.sqrt(clipped_square), tf.float32),
      layer_norms=tf.cast(layer_norms, tf.float32),
      clipped_layer_norms=tf.cast(layer_norms * layer_factors, tf.float32),
      layers_clipped=changed,
  )


def _power_of_two(value: float) -> float:
  """The largest power of two of at most a positive value."""
  # frexp's mantissa is in [1/2, 1).
  return 2.0 ** (math.frexp(value)[1] - 1)
