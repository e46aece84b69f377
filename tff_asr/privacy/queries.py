"""The sum of clipped client updates with Gaussian noise, as one DP query.

Each layer h of an update is clipped to its own norm C_h, with
sqrt(sum_h C_h^2) = C. That bounds the whole update by C, exactly as one global
clip would, so the layers share one Gaussian mechanism and cost one event.
Pelikan et al. 2025, https://arxiv.org/abs/2310.00098, Definition 3.

Sums and noise are integers, so that the guarantee holds for the bits that are
released, not for real numbers alone (Mironov 2012; arXiv 2207.10635):

  - A clipped record is divided by the step g of a grid and rounded toward zero
    to int64. Its norm is at most C, exactly (`PerLayerClipSumQuery`).
  - Integers are added without error. One record more moves their sum S by at
    most C / g, in whatever order it is computed.
  - The noise is round(N / g), N Gaussian of standard deviation z C. As S is an
    integer, S + round(N / g) is round(S + N / g): post-processing of the
    Gaussian mechanism. What is released is a function of that integer alone.
"""

import collections
from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple, Protocol

from absl import logging
import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_asr import checks
from tff_asr import sequential
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib

# g over C, and at most over C / sqrt(D), the root mean square of the elements
# of a record of norm C. The first is the smaller up to D = 2^32.
STEP_OVER_CLIP = 2.0**-24
_STEP_OVER_ELEMENT = 2.0**-8
# Sums and noise stay below 2^62: more records than there are people, and noise
# of 64 standard deviations, which no draw exceeds (p < 1e-890).
_LIMIT = 2.0**62
_MAX_RECORDS = 2.0**33
_MAX_STDDEVS = 64
# A run whose grid keeps less of an update is warned.
_LEAST_KEPT = 0.99
# The clip of adaptive queries stays within this, too.
MIN_CLIP, MAX_CLIP = 1e-30, 1e30


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

  def grid(self, global_state: Any) -> tf.Tensor:
    """The unit of sums of records, float64 []."""

  def get_noised_result(
      self, sample_state: Any, global_state: Any
  ) -> tuple[Any, Any, dp_accounting.DpEvent]:
    """Returns the noised sum (float64), the new state, and the event."""

  def derive_metrics(self, global_state: Any) -> dict[str, Any]:
    """Settings and noised values of the coming round, which may be shown."""


# From the specs of a record (nest of float32 `tf.TensorSpec`) to a query.
BuildQuery = Callable[[Any], ClippingQuery]


class PerLayerClipSumQuery(tfp.SumAggregationDPQuery):
  """Sums records after clipping each layer, then adds isotropic Gaussian noise.

  A record is a nest of float32 tensors. `clipping_lib.Clipping` says what its
  layers are, their clips C_h, and what happens to a layer above its clip. Let C
  be the clip of the whole, D the elements of a record, z the noise multiplier
  and g the step of the grid (`grid`), a function of C and D.

  Sensitivity (one record added or removed, whatever it holds): C, exactly.
  Replacing a record moves the sum by up to 2 C. Noise: N(0, (z C)^2), rounded
  to the grid, on every element of the sum, whatever the split. Event: one
  GaussianDpEvent(z) for each call of `get_noised_result`, stated for adding or
  removing a record.

    - Elements are rounded toward zero to multiples of g; see `norm_kept`.
    - A layer under C_h is not scaled, unless the rule is `rescale`; one at C_h
      loses a step where it is on the grid. A layer of zeros stays zeros.
    - A record with a NaN or an infinity anywhere becomes all zeros.
    - C = inf clips nothing and takes no noise. Such records have no bound, so
      no grid holds them: they stay float32, and so do their sums.
    - z = 0 adds nothing; its event has infinite epsilon.

  Why C is exact. Let u = 2^-53. Squares of float32 are exact in float64; adding
  D of them in any order errs by less than D u (1 + D u) of the sum; root,
  quotient, shares and product by less than 16 u more (1 u of it is for the
  quotient by g, where that is no power of two). So with clips that are
  smaller by the factor 1 - 2 (D + 32) u, the product's norm in float64 is below
  C, and to round toward zero makes no element larger. Elements below float32's
  normal numbers, which a processor may flush to 0 in one op and not in another,
  are below g and become 0.

  The noise is a function of the state's `noise_key` and `counter`: the same
  state and sum give the same bits again, and no key is ever part of a graph.
  `initial_global_state` leaves the key at zero, which stands for "not set":
  then noised results are NaN (see `set_noise_key`).
  """

  class GlobalState(NamedTuple):
    """The query's state.

    Attributes:
      l2_norm_clip: C, float32.
      noise_multiplier: z, float32.
      noise_key: int32 [8]; zeros: not set.
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
      noise_kernel: str = 'host',
  ):
    """Creates the query.

    Args:
      record_specs: Nest of float32 `tf.TensorSpec`, like a record.
      l2_norm_clip: C, in [1e-30, 1e30], or infinity.
      noise_multiplier: z, the noise's standard deviation over C, at least 0.
      clipping: How C is divided over layers; by default one norm over all.
      noise_kernel: What draws noise; see `noise.gaussian`. All have the same
        bits.

    Raises:
      ValueError: An argument is out of its range, there is noise without a
        finite clip, the clipping does not fit the record, or sums or noise
        could reach 2^62 steps of the grid.
    """
    is_clipped = l2_norm_clip != math.inf
    if is_clipped:
      checks.in_range(MIN_CLIP, MAX_CLIP, l2_norm_clip=l2_norm_clip)
    checks.non_negative(noise_multiplier=noise_multiplier)
    checks.finite(noise_multiplier=noise_multiplier)
    if not is_clipped and noise_multiplier > 0:
      raise ValueError(
          f'noise_multiplier {noise_multiplier} needs a finite l2_norm_clip, '
          'found infinity: without a clip, no noise gives privacy.'
      )
    self._l2_norm_clip = l2_norm_clip
    self._noise_multiplier = noise_multiplier
    self._specs = record_specs
    self._rule = clipping.rule
    self._layers = clipping.divide(record_specs)
    sizes = [math.prod(spec.shape) for spec in tf.nest.flatten(record_specs)]
    self._num_elements = sum(sizes)
    self._is_noised = [True] * len(sizes)
    self._sum_dtype = tf.int64 if is_clipped else tf.float32
    # The largest g over C; as a power of two g is more than half of it.
    self._step = min(
        STEP_OVER_CLIP,
        _STEP_OVER_ELEMENT / math.sqrt(max(1, self._num_elements)),
    )
    self._noise_kernel = noise_kernel
    self._check_noise(noise_multiplier)
    kept = self.norm_kept()
    logging.log(
        logging.WARNING if kept < _LEAST_KEPT else logging.INFO,
        'The grid of sums keeps %.3f %% of the norm of an update whose layers '
        'have the norms of their clips.',
        100 * kept,
    )

  def _check_noise(
      self, multiplier: float, *, weight: float = 1.0, norm: float = 1.0
  ) -> None:
    """Raises ValueError if sums could overflow.

    Args:
      multiplier: Multiplier of the noise that is drawn.
      weight: Largest factor of that noise in a sum.
      norm: Largest norm of a record, over C.
    """
    stddev = multiplier * 2 / self._step
    largest = (
        norm * _MAX_RECORDS * 2 / self._step
        + _MAX_STDDEVS * weight * stddev
    )
    if stddev > noise_lib.MAX_STDDEV or largest >= _LIMIT:
      raise ValueError(
          f'noise_multiplier {multiplier:g} on {self._num_elements} elements '
          'exceeds 62 bits: lower it.'
      )

  def initial_global_state(self):
    return PerLayerClipSumQuery.GlobalState(
        l2_norm_clip=tf.constant(self._l2_norm_clip, tf.float32),
        noise_multiplier=tf.constant(self._noise_multiplier, tf.float32),
        noise_key=tf.zeros([8], tf.int32),
        counter=tf.constant(0, tf.int64),
    )

  def derive_sample_params(self, global_state):
    # Clients get the clip, and nothing of the key.
    return global_state.l2_norm_clip

  def initial_sample_state(self, template):
    return tf.nest.map_structure(
        lambda layer: tf.zeros(layer.shape, self._sum_dtype), template
    )

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
        grid=self._grid(params),
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
    return sum(
        math.prod(spec.shape)
        for spec, is_noised in zip(
            tf.nest.flatten(self._specs), self._is_noised, strict=True
        )
        if is_noised
    )

  def grid(self, global_state: Any) -> tf.Tensor:
    """g of the coming round, float64 []; 1 without a clip.

    It is the largest power of two of at most 2^-24 C and 2^-8 C / sqrt(D).
    """
    return self._grid(global_state.l2_norm_clip)

  def norm_kept(self) -> float:
    """The share of a record's norm that rounding toward zero keeps.

    In [0, 1], for a record of normal elements whose layers have the norms C_h;
    1 without a clip. It follows the first round's clips.
    """
    if self._sum_dtype != tf.int64:
      return 1.0
    step = self._first_step()
    specs = tf.nest.flatten(self._specs)
    kept = 0.0
    for layer in self._layers:
      size = sum(math.prod(specs[place].shape) for place in layer.indices)
      share = layer.share
      if share is None:  # As if by size.
        share = math.sqrt(size / self._num_elements)
      if size:
        stddev = share / math.sqrt(size) / step
        kept += share**2 * _square_kept(stddev)
    return math.sqrt(kept)

  def _first_step(self) -> float:
    """g over C, of the first C."""
    # In Python, as this may be called while a graph is traced.
    return power_of_two(self._l2_norm_clip * self._step) / self._l2_norm_clip

  def _grid(self, clip: Any) -> tf.Tensor:
    """g of a clip C, float32 []: float64 []."""
    if self._sum_dtype != tf.int64:
      return tf.constant(1.0, tf.float64)
    bound = tf.cast(clip, tf.float64) * self._step
    # The exponent's bits alone are the power of two below.
    bits = tf.bitwise.bitwise_and(
        tf.bitcast(bound, tf.int64), tf.constant(0x7FF << 52, tf.int64)
    )
    return tf.bitcast(bits, tf.float64)

  def _clip(
      self,
      record: Any,
      *,
      clip: tf.Tensor,
      layer_clips: Sequence[tf.Tensor],
      grid: tf.Tensor,
  ) -> tuple[Any, Measured]:
    """Clips to C and the C_h, and rounds to the grid, all float64 []."""
    # Covers the rounding of what follows; see the class.
    shrink = 1 - (self._num_elements + 32) * 2.0**-52
    tensors = tf.nest.flatten(record)
    squared_norms = sequential.sequential_map(squared_norm, tensors)
    # In float64 the squares of finite float32 values neither overflow nor
    # vanish, so this is finite exactly when every element is.
    is_finite = tf.math.is_finite(tf.add_n(squared_norms))
    factors = clipping_lib.factors(
        squared_norms,
        layers=self._layers,
        layer_clips=[c if c is None else shrink * c for c in layer_clips],
        clip=shrink * clip,
        rule=self._rule,
    )
    # Casting to int64 rounds toward zero. Zero times NaN is zero here.
    clipped = sequential.sequential_map(
        lambda tensor, factor: tf.cast(
            tf.math.multiply_no_nan(
                tf.cast(tensor, tf.float64),
                tf.where(is_finite, factor / grid, 0.0),
            ),
            self._sum_dtype,
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
    sums = tf.nest.flatten(sample_state)
    unit = self.grid(global_state)
    noises = [None] * len(sums)
    if self._noise_multiplier > 0:
      noises = noise_lib.gaussian(
          [layer.shape for layer in sums],
          key=global_state.noise_key,
          release=global_state.counter,
          stddev=self._stddev(global_state),
          kernel=self._noise_kernel,
      )
      unit = keyed(unit, global_state)

    def release(layer: Any, noise: Any, is_noised: bool) -> tf.Tensor:
      if noise is not None and is_noised:
        layer = layer + noise
      return unit * tf.cast(layer, tf.float64)

    noised = sequential.sequential_map(release, sums, noises, self._is_noised)
    new_state = global_state._replace(counter=global_state.counter + 1)
    # Of the noise drawn here: the state may come from a query with noise.
    drawn = 1.0 if self._noise_multiplier > 0 else 0.0
    event = dp_accounting.GaussianDpEvent(
        drawn * global_state.noise_multiplier
    )
    return tf.nest.pack_sequence_as(sample_state, noised), new_state, event

  def _stddev(self, global_state: Any) -> tf.Tensor:
    """z C / g, float64 []."""
    stddev = tf.cast(global_state.noise_multiplier, tf.float64) * tf.cast(
        global_state.l2_norm_clip, tf.float64
    )
    return stddev / self.grid(global_state)

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

  Noise is a function of key and counter, so two sums that are released from one
  state have the same noise, and their difference has none. After a failure, or
  to try a round again, set a key that was never used. Runs
  (`programs.training_loop`) do so, and charge both.

  Args:
    state: The query's state.
    key: int32 [8], not all zeros; see `keys.draw`.

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


def power_of_two(value: float) -> float:
  """The largest power of two of at most a positive value."""
  return 2.0 ** (math.frexp(value)[1] - 1)


def squared_norm(tensor: tf.Tensor) -> tf.Tensor:
  """Sum of an array's squares in float64, in one pass."""
  return 2 * tf.nn.l2_loss(tf.cast(tensor, tf.float64))


def keyed(value: tf.Tensor, global_state: Any) -> tf.Tensor:
  """The value; NaN without a key, so that a missing key cannot go unnoticed."""
  is_keyed = tf.reduce_any(tf.not_equal(global_state.noise_key, 0))
  return tf.where(is_keyed, value, math.nan)


class MeanQuery(tfp.NormalizedQuery):
  """The noised sum of a `ClippingQuery` over a public number, as float32.

  It is divided in float64 and rounded to float32 once.
  """

  def get_noised_result(self, sample_state, global_state):
    mean, new_state, event = super().get_noised_result(
        sample_state, global_state
    )
    mean = tf.nest.map_structure(lambda part: tf.cast(part, tf.float32), mean)
    return mean, new_state, event


def sampler_epsilon(noise_multiplier: float, *, num_elements: int) -> float:
  """Returns what inexact noise adds to epsilon in a release, at most.

  It is the bound of `noise.charge`, which is largest at the smallest or the
  largest standard deviation in cells. It holds for every query of this package:
  steps are powers of two, or C times one, so noise has up to 2 z / step cells;
  adaptive clips take up to 2.5 times that and further counts, of z cells at
  least. Correlated noise has finer cells (`correlated_noise.noise_resolution`).

  Args:
    noise_multiplier: z, at least 0.
    num_elements: Elements of a record, or more.
  """
  if not noise_multiplier:
    return 0.0
  step = min(STEP_OVER_CLIP, _STEP_OVER_ELEMENT / math.sqrt(num_elements))
  return max(
      noise_lib.charge(num_draws=2 * num_elements, stddev=stddev)
      for stddev in (noise_multiplier, 5 * noise_multiplier / step)
  )


def _square_kept(stddev: float) -> float:
  """E[trunc(x)^2] / E[x^2] for x ~ N(0, stddev^2), from 4 on to 1 %.

  The part that is cut off is nearly uniform on [0, 1): E[(|x| - U)^2] is
  stddev^2 - E|x| + 1 / 3.
  """
  cut = math.sqrt(2 / math.pi) * stddev - 1 / 3
  return max(0.0, 1 - cut / stddev**2)
