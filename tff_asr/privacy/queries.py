"""The sum of clipped client updates with Gaussian noise, as one DP query.

Each layer h of an update is clipped to its own norm C_h, with
sqrt(sum_h C_h^2) = C. That bounds the whole update by C, exactly as one global
clip would, so the layers share one Gaussian mechanism and cost one event.
Pelikan et al. 2025, https://arxiv.org/abs/2310.00098, Definition 3.

A query combines a rule for clips with a noise process:

  clips   `PerLayerClipSumQuery`: fixed;
          `adaptive_query.AdaptiveClipSumQuery`: they follow a quantile
  noise   `IndependentNoise`: drawn for each round;
          `correlated_noise.CorrelatedNoise`: later rounds cancel a part of it

Where each client adds its own noise: `distributed`. Sums and noise are
integers, so that the guarantee holds for the bits that are released:
docs/privacy.md ("Sums and noise on a grid").
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import math
from typing import NamedTuple, Optional, Protocol

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_asr import checks
from tff_asr import sequential
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import grid_clipper
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib

# Sums and noise stay below 2^62: 2^33 records exceed the world population, and
# no draw exceeds 64 standard deviations (p < 1e-890).
_LIMIT = 2.0**62
_MAX_RECORDS = 2.0**33
_MAX_STDDEVS = 64


class QueryState(NamedTuple):
  """State of a query. Fields that a query does not need are ().

  Saved states are public, except for the fields marked secret: only these are
  kept apart (`programs.run_state`). Put no secret into another field.

  H: layers with their own clip. d: buffers of correlated noise.

  Attributes:
    l2_norm_clip: C of the coming round, float32 [].
    noise_multiplier: z, float32 [].
    noise_key: Key of the coming rounds' noise, int32 [8]. Secret. If it is
      zeros, each round draws its own and keeps it nowhere.
    counter: Noised results so far, int64 [].
    layer_clips: C_h of the coming round, float32 [H], if clips adapt.
    layer_noise: Norm of the noise on each layer of a sum over z C, before it is
      correlated, float32 [number of layers]: sqrt(D_h) for D_h elements.
    layer_shares: C_h / C, float32 [number of layers], of the first round; () if
      all layers are clipped as one.
    output_scale: Of the strategy of correlated noise, int64 [d].
    buf_decay: The same, int64 [d]; [0] if the strategy is banded.
    buffers: Noise that later rounds cancel in part, int64 [d, ...] for each
      layer of a sum, in steps of 2^-16 of the grid. Secret.
  """

  l2_norm_clip: tf.Tensor
  noise_multiplier: tf.Tensor
  noise_key: tf.Tensor
  counter: tf.Tensor
  layer_clips: tf.Tensor | tuple[()] = ()
  layer_noise: tf.Tensor | tuple[()] = ()
  layer_shares: tf.Tensor | tuple[()] = ()
  output_scale: tf.Tensor | tuple[()] = ()
  buf_decay: tf.Tensor | tuple[()] = ()
  buffers: clipping_lib.Nest = ()

  @classmethod
  def initial(
      cls,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      **others: clipping_lib.Nest,
  ) -> 'QueryState':
    """The state before the first round, without a key."""
    return cls(
        l2_norm_clip=tf.constant(l2_norm_clip, tf.float32),
        noise_multiplier=tf.constant(noise_multiplier, tf.float32),
        # A key in the initial state would be a constant of its graph.
        noise_key=tf.zeros([keys.NUM_WORDS], tf.int32),
        counter=tf.constant(0, tf.int64),
        **others,
    )

  @property
  def is_correlated(self) -> bool:
    """Whether noise is correlated over rounds."""
    return bool(tf.nest.flatten(self.buffers))


class NoiseProcess(Protocol):
  """How the noise of rounds follows from fresh Gaussian draws.

  Gaussian only: clips bound the L2 norm, the sampler draws rounded Gaussians,
  and the ledger charges nothing else. Most correlated noise needs no new class:
  write a strategy for `correlated_noise.CorrelatedNoise`, by the recipe of
  docs/extending.md ("Noise").

  Attributes:
    resolution: Steps of a fresh draw in one step of the grid.
    num_buffers: Copies of the sum that the state holds for later rounds.
    largest_weight: Bound on a buffer's standard deviation over that of a draw.
  """

  resolution: int
  num_buffers: int
  largest_weight: float

  def initial_state(
      self, specs: clipping_lib.Nest
  ) -> dict[str, clipping_lib.Nest]:
    """Returns fields of the first `QueryState`, for sums of these specs."""

  def next(
      self,
      drawn: tf.Tensor,
      buffers: tf.Tensor | tuple[()],
      global_state: QueryState,
  ) -> tuple[tf.Tensor, tf.Tensor | tuple[()]]:
    """Returns a layer's noise in whole steps of the grid, and its buffers.

    Args:
      drawn: The layer's fresh draw, int64, in 1 / resolution of a grid step.
      buffers: The layer's buffers, int64 [d, ...]; () without any. They are
        all that a process keeps from round to round, and are kept secret.
      global_state: State of the round.
    """

  def event(self, global_state: QueryState) -> dp_accounting.DpEvent:
    """Returns the event of a round."""


class IndependentNoise:
  """Each round has its own noise. Event: GaussianDpEvent(z)."""

  resolution = 1
  num_buffers = 0
  largest_weight = 1.0

  def initial_state(self, specs):
    del specs
    return {}

  def next(self, drawn, buffers, global_state):
    del global_state
    return drawn, buffers

  def event(self, global_state):
    return dp_accounting.GaussianDpEvent(global_state.noise_multiplier)


class PerLayerClipSumQuery(tfp.SumAggregationDPQuery):
  """Sums records after clipping each layer, then adds isotropic Gaussian noise.

  A record is a nest of float32 tensors; `grid_clipper.GridClipper` says how it
  is clipped.

  Sensitivity (one record added or removed, whatever it holds): C, exactly.
  Replacing a record moves the sum by up to 2 C. Noise: Gaussian draws of
  standard deviation z C on every element of the sum, rounded to the grid, which
  the noise process may combine with those of earlier rounds. Event: that of the
  noise process; GaussianDpEvent(z) for independent noise, for adding or
  removing a record.

  z = 0 adds nothing; its event has infinite epsilon. C = inf clips nothing and
  takes no noise. Only sums of integers carry a guarantee: where epsilon is
  infinite (no noise, or less in some layers) sums are float32.

      >>> query = PerLayerClipSumQuery(
      ...     {'w': tf.TensorSpec([2])}, l2_norm_clip=1.0, noise_multiplier=0.5
      ... )
      >>> state = query.initial_global_state()
      >>> params = query.derive_sample_params(state)
      >>> total = query.initial_sample_state({'w': tf.zeros([2])})
      >>> record = {'w': tf.constant([3.0, 4.0])}  # Clipped to [0.6, 0.8].
      >>> total = query.accumulate_record(params, total, record)
      >>> noised, state, event = query.get_noised_result(total, state)
      >>> print(noised['w'].dtype.name, event.noise_multiplier.numpy())
      float64 0.5

  Each noised result draws its own key from the operating system, so that two
  results from one state have independent noise. Only where a run has set a key
  (`set_noise_key`) is noise a function of that key and `counter`: then the same
  state and sum give the same bits again. No key is part of a graph.

  Attributes:
    grid_follows_clip: Whether the clip changes from round to round. Then the
      grid changes with it, as buffers of correlated noise are in its steps.
    layer_names: Names of the H layers.
    num_noised: Elements of the sum of updates that get noise, each times the
      square of its layer's factor.
  """

  grid_follows_clip = False

  def __init__(
      self,
      record_specs: clipping_lib.Nest,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
      noise: NoiseProcess = IndependentNoise(),
      noise_factors: Optional[Mapping[str, float]] = None,
      noise_kernel: str = 'host',
  ):
    """Creates the query.

    Args:
      record_specs: Nest of float32 `tf.TensorSpec`, like a record.
      l2_norm_clip: C, in [1e-30, 1e30], or infinity.
      noise_multiplier: z, the noise's standard deviation over C, at least 0.
      clipping: How C is divided over layers; by default one norm over all.
      noise: How the noise of rounds depends on each other.
      noise_factors: {regular expression: factor} of a tensor's noise, to see
        which layers suffer from it: NOT PRIVATE. The first pattern that is
        found in the tensor's name decides; without one it is 1. None: all have
        1, and the sum is private.
      noise_kernel: What draws noise; see `noise.gaussian`. All have the same
        bits.

    Raises:
      ValueError: An argument is out of its range, there is noise without a
        finite clip, the clipping does not fit the record, or sums or noise
        could reach 2^62 steps of the grid.
    """
    checks.non_negative(noise_multiplier=noise_multiplier)
    checks.finite(noise_multiplier=noise_multiplier)
    if l2_norm_clip == math.inf and noise_multiplier > 0:
      raise ValueError(
          f'noise_multiplier {noise_multiplier} needs a finite l2_norm_clip, '
          'found infinity: without a clip, no noise gives privacy.'
      )
    # Without noise there is nothing that later rounds could cancel.
    if noise.num_buffers:
      checks.positive(noise_multiplier=noise_multiplier)
    is_private = noise_multiplier > 0 and noise_factors is None
    self._clipper = grid_clipper.GridClipper(
        record_specs,
        l2_norm_clip=l2_norm_clip,
        clipping=clipping,
        grid_follows_clip=self.grid_follows_clip,
        is_exact=is_private,
    )
    self._specs = record_specs
    self._l2_norm_clip = l2_norm_clip
    self._noise_multiplier = noise_multiplier
    self._noise = noise
    self._noise_kernel = noise_kernel
    self._factors = _factors(noise_factors, record_specs)
    self._check_range()

  @property
  def _sum_specs(self) -> clipping_lib.Nest:
    """A nest with the shapes of a sum."""
    return self._specs

  @property
  def _noise_scale(self) -> float:
    """Standard deviation of the noise over z C."""
    return 1.0

  def _check_range(self) -> None:
    """Raises ValueError if sums or noise could reach 2^62."""
    steps = self._clipper.max_clip_in_steps
    stddev = (
        self._noise.resolution
        * self._noise_multiplier
        * self._noise_scale
        * steps
    )
    # A sum's norm grows with the noise: `adaptive_query` adds counts to it.
    largest = (
        self._noise_scale * _MAX_RECORDS * steps
        + _MAX_STDDEVS * self._noise.largest_weight * stddev
    )
    if stddev > noise_lib.MAX_STDDEV or largest >= _LIMIT:
      raise ValueError(
          f'noise_multiplier {self._noise_multiplier:g} on '
          f'{self._clipper.num_elements} elements exceeds 62 bits: lower it.'
      )

  @property
  def layer_names(self) -> list[str]:
    return self._clipper.layer_names

  @property
  def num_noised(self) -> float:
    return sum(self._noised)

  @property
  def _noised(self) -> list[float]:
    """Each tensor's part of `num_noised`."""
    sizes = [math.prod(spec.shape) for spec in tf.nest.flatten(self._specs)]
    return [size * f**2 for size, f in zip(sizes, self._factors)]

  def initial_global_state(self) -> QueryState:
    return QueryState.initial(
        l2_norm_clip=self._l2_norm_clip,
        noise_multiplier=self._noise_multiplier,
        **layer_fields(
            self._clipper.layers,
            num_noised=self._noised,
            noise_scale=self._noise_scale,
        ),
        **self._noise.initial_state(self._sum_specs),
    )

  def derive_sample_params(self, global_state):
    # Clients get the clip, and nothing of the key.
    return global_state.l2_norm_clip

  def initial_sample_state(self, template):
    # Integers where there is a guarantee: their sums are exact in any order.
    return tf.nest.map_structure(
        lambda layer: tf.zeros(layer.shape, self._clipper.dtype), template
    )

  def preprocess_record(self, params, record):
    return self.clip(params, record)[0]

  def clip(
      self, params: clipping_lib.Nest, record: clipping_lib.Nest
  ) -> tuple[clipping_lib.Nest, grid_clipper.ClippingStats]:
    """Returns the clipped record, as it is summed, and what clipping did."""
    return self._clipper.clip(record, l2_norm_clip=params)

  def updates_of(self, sample_state: clipping_lib.Nest) -> clipping_lib.Nest:
    """Returns the sum of clipped records alone, in units of `sum_unit`."""
    return sample_state

  def grid_step(self, global_state: QueryState) -> tf.Tensor:
    """Returns the step of the grid that noise is on, float64 []."""
    return self._clipper.grid_step(global_state.l2_norm_clip)

  def sum_unit(self, global_state: QueryState) -> tf.Tensor:
    """Returns the unit of sums, float64 []: the grid's step, or 1."""
    return self._clipper.sum_unit(global_state.l2_norm_clip)

  def event(self, global_state: QueryState) -> dp_accounting.DpEvent:
    """Returns the event of a round that starts from this state."""
    # A guarantee needs sums of integers, which only noised sums are. (The state
    # may come from a query with noise, where this one adds none.)
    if self._clipper.dtype == tf.int64:
      return self._noise.event(global_state)
    return dp_accounting.GaussianDpEvent(
        tf.zeros_like(global_state.noise_multiplier)
    )

  def get_noised_result(
      self, sample_state: clipping_lib.Nest, global_state: QueryState
  ) -> tuple[clipping_lib.Nest, QueryState, dp_accounting.DpEvent]:
    """Returns the noised sum (float64), the new state, and the event."""
    sums = tf.nest.flatten(sample_state)
    # Always: the next release must not have this one's noise.
    new_state = global_state._replace(counter=global_state.counter + 1)
    event = self.event(global_state)
    if not self._noise_multiplier:
      exact = sequential.sequential_map(
          lambda total: tf.cast(total, tf.float64), sums
      )
      return tf.nest.pack_sequence_as(sample_state, exact), new_state, event
    grid_step = self.grid_step(global_state)
    drawn = noise_lib.gaussian(
        [total.shape for total in sums],
        key=noise_key(global_state),
        release=global_state.counter,
        stddev=self._noise.resolution * self._stddev_in_steps(global_state),
        kernel=self._noise_kernel,
    )
    # A sum may have more than the tensors of records: counts of adaptive clips.
    factors = self._factors + [1.0] * (len(sums) - len(self._factors))
    buffers = [()] * len(sums)
    if self._noise.num_buffers:
      buffers = tf.nest.flatten(global_state.buffers)

    def add_noise(factor, total, fresh, buffers):
      noise, buffers = self._noise.next(fresh, buffers, global_state)
      if self._clipper.dtype == tf.int64:
        total += noise  # This is where noise is added.
        # float64 rounds beyond 2^53. The noise is already in the total, so this
        # is post-processing.
        return grid_step * tf.cast(total, tf.float64), buffers
      # Not private: sums of floats.
      noise = factor * grid_step * tf.cast(noise, tf.float64)
      return tf.cast(total, tf.float64) + noise, buffers

    # Layer by layer: the noise of all layers at once would take the memory of
    # several models.
    noised, buffers = zip(*sequential.sequential_map(
        add_noise, factors, sums, drawn, buffers
    ))
    if self._noise.num_buffers:
      new_state = new_state._replace(
          buffers=tf.nest.pack_sequence_as(global_state.buffers, buffers)
      )
    return tf.nest.pack_sequence_as(sample_state, noised), new_state, event

  def _stddev_in_steps(self, global_state: QueryState) -> tf.Tensor:
    """Standard deviation of the noise in grid steps, float64 []."""
    # In float64: a product rounded down would be less noise than charged.
    stddev = tf.cast(global_state.noise_multiplier, tf.float64) * tf.cast(
        global_state.l2_norm_clip, tf.float64
    )
    return self._noise_scale * (stddev / self.grid_step(global_state))

  def derive_metrics(
      self, global_state: QueryState
  ) -> dict[str, tf.Tensor]:
    """Returns settings and noised values of the coming round: public."""
    stddev = tf.constant(0.0)
    if self._noise_multiplier > 0:
      stddev = self._noise_scale * (
          global_state.noise_multiplier * global_state.l2_norm_clip
      )
    name = 'noise_stddev_on_sum'
    if self._noise.num_buffers:
      # The released noise has another deviation in each round.
      name = 'noise_stddev_before_correlation'
    return collections.OrderedDict(
        [('l2_norm_clip', global_state.l2_norm_clip), (name, stddev)]
    )


# From the specs of a record (nest of float32 `tf.TensorSpec`) to a query.
BuildQuery = Callable[[clipping_lib.Nest], PerLayerClipSumQuery]


def layer_fields(
    layers: Sequence[clipping_lib.Layer],
    *,
    num_noised: Sequence[float],
    noise_scale: float,
) -> dict[str, tf.Tensor]:
  """Returns the fields of a `QueryState` on the noise of layers.

  Args:
    layers: As `Clipping.divide` returns them.
    num_noised: Elements of each tensor that get noise, times the squares of
      factors of their noise.
    noise_scale: Standard deviation of the noise on the sum over z C.
  """
  noise = [
      noise_scale
      * math.sqrt(sum(num_noised[place] for place in layer.indices))
      for layer in layers
  ]
  fields = {'layer_noise': tf.constant(noise, tf.float32)}
  if layers[0].share is not None:
    shares = [layer.share for layer in layers]
    fields['layer_shares'] = tf.constant(shares, tf.float32)
  return fields


def set_noise_key(state: QueryState, key: np.ndarray) -> QueryState:
  """Returns the state with its key set, for noise that can be repeated.

  Without it every round has noise of its own. With it, noise is a function of
  key and counter: two sums that are released from one state have the same
  noise, and their difference has none. Runs (`programs.training_loop`) set a
  key for each round, find by their ledger a round that is repeated with another
  sum, and charge both. If you keep no such ledger, set no key.

  Args:
    state: The query's state.
    key: int32 [8], not all zeros; see `keys.draw`.

  Raises:
    ValueError: The key has another shape, or is all zeros.
  """
  bits = keys.check(key)
  # Zeros stand for "not set".
  if not np.any(bits):
    raise ValueError('the noise key is all zeros: draw one.')
  return state._replace(noise_key=bits)


def noise_key(global_state: QueryState) -> tf.Tensor:
  """Returns the key of a round, int32 [8]: the state's, or a new one.

  Where the state has none, each execution reads a key from the operating
  system's generator. Call it once a round.
  """

  def draw() -> tf.Tensor:
    # By a reader of lines: TFF's worker has TensorFlow's ops only, and of those
    # the random ones begin with 32 bits. What reads files has a state, so no
    # compiler merges two readers, or reads while it compiles.
    lines = tf.data.experimental.from_variant(
        tf.raw_ops.TextLineDataset(
            filenames='/dev/urandom', compression_type='', buffer_size=4096
        ),
        tf.TensorSpec([], tf.string),
    )
    # Some 4,000 bytes, all independent, without LF and CR: 255.6 bits a key.
    data = tf.strings.reduce_join(lines.batch(16).take(1).get_single_element())
    words = tf.io.decode_raw(
        tf.strings.substr(data, 0, keys.NUM_BYTES), tf.int32
    )
    return tf.reshape(words, [keys.NUM_WORDS])

  is_set = tf.reduce_any(tf.not_equal(global_state.noise_key, 0))
  return tf.cond(is_set, lambda: tf.identity(global_state.noise_key), draw)


def divide_by_cohort_size(
    noised: clipping_lib.Nest, cohort_size: float
) -> clipping_lib.Nest:
  """Returns a noised sum over a public number, rounded to float32 once.

  Args:
    noised: Nest of float64, as `get_noised_result` returns it.
    cohort_size: Records expected in a sum.
  """
  # Divided in float64: float32 would round twice.
  return tf.nest.map_structure(
      lambda part: tf.cast(part / cohort_size, tf.float32), noised
  )


def sampler_epsilon(noise_multiplier: float, *, num_elements: int) -> float:
  """Returns what inexact noise adds to epsilon in a release, at most.

  It is the bound of `noise.sampler_error_epsilon`, which is largest at the
  smallest or the largest standard deviation in grid steps. It holds for every
  query of this package: grid steps are powers of two, or C times one, so noise
  has a standard deviation of up to 2 z / (g / C) steps; adaptive clips take up
  to 2.5 times that, and have further counts. Correlated noise is drawn in finer
  steps (`correlated_noise.noise_resolution`).

  Args:
    noise_multiplier: z, at least 0.
    num_elements: Elements of a record, or more.
  """
  if not noise_multiplier:
    return 0.0
  step = grid_clipper.step_over_clip(num_elements)
  return max(
      noise_lib.sampler_error_epsilon(
          # Twice, which covers the counts of adaptive clips.
          num_draws=2 * num_elements, stddev=stddev
      )
      # 5: twice for powers of two, times 2.5 for adaptive clips.
      for stddev in (noise_multiplier, 5 * noise_multiplier / step)
  )


def _factors(
    noise_factors: Optional[Mapping[str, float]],
    record_specs: clipping_lib.Nest,
) -> list[float]:
  """The factor of each tensor's noise, in the order of `tf.nest.flatten`."""
  names = clipping_lib.names(record_specs)
  if noise_factors is None:
    return [1.0] * len(names)
  if not noise_factors:
    raise ValueError('noise_factors is empty: leave it out.')
  factors = dict.fromkeys(names, 1.0)
  # The first pattern of a name decides, so it is applied last.
  for pattern, factor in reversed(noise_factors.items()):
    checks.in_range(0, 1e3, **{f'noise factor of {pattern}': factor})
    found = clipping_lib.matching(pattern, names, argument='noise_factors')
    factors.update(dict.fromkeys(found, float(factor)))
  return [factors[name] for name in names]
