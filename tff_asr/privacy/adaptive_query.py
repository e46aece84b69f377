"""A query whose clips follow a quantile of the layers' norms, privately.

Andrew et al. 2021, https://arxiv.org/abs/1905.03871, for each of H layers at
once. In a round a client sends, beside its update clipped to the layers' norms
C_h, a number for each layer: b_h = +1/2 where the layer's norm is at most C_h
and -1/2 where it is above. With n expected clients and noise on both sums,

    share_h = 1/2 + (sum of b_h + noise) / n, brought into [0, 1]
    C_h <- C_h exp(-learning_rate (share_h - target_quantile))

So in the long run a share `target_quantile` of the clients has the layer
unclipped. The clip of the whole update is C = sqrt(sum of C_h^2).

Privacy. A client moves the sum of updates by at most C and the vector of the
sums of b by sqrt(H) / 2. The first gets noise of z_u C, the second of
z_b sqrt(H) / 2 on each number, with

    z_b = r z,   z_u = z / sqrt(1 - r^-2),   so z_u^-2 + z_b^-2 = z^-2:

Together they are one Gaussian mechanism of noise multiplier z. Its price is
noise on the update that is z_u / z times as large (1.02 at r = 5).

Where noise is correlated over rounds (`correlated_noise`), counts are H more
elements of a client's record, and have noise and buffers like the others. They
are +c or -c, in steps of the grid g of updates, with

    g = 2^-k C, so that C / g = 2^k in each round,
    c = the largest integer of at most 2^k / sqrt(H (r^2 - 1)).

So the squared norm of update and counts is at most 4^k (1 + 1 / (r^2 - 1)) =
(2^k z_u / z)^2, exactly, whatever C is, and w of z_u 2^k on each element is z
times that: z_u C on updates, and on 2 b the r z sqrt(H) of above (or more by up
to 1 / c of it). Buffers are in steps, that is of a stream of sums over C. Its
queries are adaptive: C follows from what was released before, and to multiply
by g is post-processing (https://arxiv.org/abs/2202.08312, Theorem 2.1). So the
proof in `correlated_noise` holds with H elements more, and rounds cost what
they do where clips stay. Clips follow the sum of all shares so far, whose noise
is what later rounds take back.

Differences from tensorflow-privacy's `QuantileAdaptiveClipSumQuery`: a clip for
each layer; one event of the given z instead of two; noise by our key.

  H: layers that have a clip of their own; 1 if all are clipped as one.
"""

import collections
import dataclasses
import fractions
import math
from typing import Any, NamedTuple, Optional

from absl import logging
import tensorflow as tf

from tff_asr import checks
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import noise as noise_lib
from tff_asr.privacy import queries


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptation:
  """Settings of adaptive clips.

  Attributes:
    target_quantile: Share of clients whose layer shall stay unclipped, in
      [0, 1].
    learning_rate: A round changes the logarithm of a clip by at most this.
    count_noise_ratio: r, the noise multiplier of the counts over that of the
      round, at least 1.1. Near 1 the update needs many times the noise. A
      larger r makes the shares noisier.
  """

  target_quantile: float = 0.5
  learning_rate: float = 0.2
  count_noise_ratio: float = 5.0

  def __post_init__(self):
    checks.in_range(0, 1, target_quantile=self.target_quantile)
    checks.in_range(0, 10, learning_rate=self.learning_rate)
    checks.finite(count_noise_ratio=self.count_noise_ratio)
    if self.count_noise_ratio < 1.1:
      raise ValueError(
          'count_noise_ratio must be at least 1.1, found '
          f'{self.count_noise_ratio:g}: the counts alone may not cost nearly '
          'all of the round. 5 adds 2 % to the noise of the update.'
      )

  @property
  def update_noise_ratio(self) -> float:
    """z_u / z."""
    return 1 / math.sqrt(1 - self.count_noise_ratio**-2)


class SampleParams(NamedTuple):
  """What clients get of the state.

  Attributes:
    l2_norm_clip: C, float32.
    layer_clips: C_h, float32 [H].
  """

  l2_norm_clip: Any
  layer_clips: Any


class AdaptiveRecord(NamedTuple):
  """A clipped record with its counts, or a sum of them.

  Attributes:
    record: As the base class has it.
    counts: 2 b, or 2 b c where noise is correlated, int64 [H].
  """

  record: Any
  counts: Any


class AdaptiveClipSumQuery(queries.PerLayerClipSumQuery):
  """Sums records clipped to norms that adapt from round to round.

  Sensitivity and event as the module says: GaussianDpEvent(z) for each call of
  `get_noised_result`, stated for adding or removing a record; with correlated
  noise the event of `correlated_noise.CorrelatedSumQuery`. A record with a
  NaN or an infinity counts as no record. With z = 0 nothing is noised: the
  clips adapt without privacy. Noise key: as the base class.
  """

  class GlobalState(NamedTuple):
    """The query's state.

    Attributes:
      l2_norm_clip: C of the coming round, float32.
      noise_multiplier: z, float32.
      noise_key: int32 [8]; zeros: not set.
      counter: int64, noised results so far.
      layer_clips: C_h of the coming round, float32 [H].
    """

    l2_norm_clip: Any
    noise_multiplier: Any
    noise_key: Any
    counter: Any
    layer_clips: Any

  class CorrelatedState(NamedTuple):
    """The query's state where noise is correlated.

    Attributes:
      l2_norm_clip: As above, like all before `scales`.
      noise_multiplier: z.
      noise_key: int32 [8].
      counter: int64.
      layer_clips: C_h.
      output_scale: As `correlated_noise.CorrelatedSumQuery` has it.
      buf_decay: The same.
      buffers: The same, an `AdaptiveRecord`. Secret.
    """

    l2_norm_clip: Any
    noise_multiplier: Any
    noise_key: Any
    counter: Any
    layer_clips: Any
    output_scale: Any
    buf_decay: Any
    buffers: Any

  def __init__(
      self,
      record_specs: Any,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      cohort_size: float,
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
      noise_kernel: str = 'host',
      adaptation: Adaptation = Adaptation(),
      correlation: Optional[correlated_noise.Correlation] = None,
  ):
    """Creates the query.

    Args:
      record_specs: See the base class.
      l2_norm_clip: C of the first round, finite; see the base class.
      noise_multiplier: z of a round in all.
      cohort_size: n, the public expected number of records.
      clipping: How the first C is divided; its layers are those that adapt.
      adaptation: How clips adapt.
      noise_kernel: See the base class.
      correlation: Correlation of the rounds' noise; None: each has noise of its
        own.

    Raises:
      ValueError: An argument is out of its range, or the clipping rescales.
    """
    self._correlation = correlation  # The base class asks for the grid.
    super().__init__(
        record_specs,
        l2_norm_clip=l2_norm_clip,
        noise_multiplier=noise_multiplier,
        clipping=clipping,
        noise_kernel=noise_kernel,
    )
    checks.finite(l2_norm_clip=l2_norm_clip)
    checks.positive(cohort_size=cohort_size)
    checks.one_of(('clip',), rule_of_adaptive_clips=clipping.rule)
    self._is_global = self._layers[0].share is None
    if self._is_global:
      self._initial_clips = collections.OrderedDict(all=l2_norm_clip)
    else:
      self._initial_clips = collections.OrderedDict(
          (layer.name, layer.share * l2_norm_clip) for layer in self._layers
      )
    self._cohort_size = cohort_size
    self._adaptation = adaptation
    ratio = adaptation.update_noise_ratio
    self._count_steps = 1
    if correlation is None:
      self._check_noise(noise_multiplier * ratio)
    else:
      self._check_noise(
          **correlation.drawn(noise_multiplier * ratio), norm=ratio
      )
      self._count_steps = self._largest_count()
    # Noise on a share: r z sqrt(H) / (2 n).
    share_stddev = (
        adaptation.count_noise_ratio
        * noise_multiplier
        * math.sqrt(len(self._initial_clips))
        / (2 * cohort_size)
    )
    if share_stddev > 0.5:
      logging.warning(
          'Adaptive clips: the share of clients below a clip is known to '
          '+-%.2g only (%d layers, %g clients a round): lower '
          'COUNT_NOISE_RATIO, clip fewer layers, or take larger cohorts.',
          share_stddev, len(self._initial_clips), cohort_size,
      )

  def _largest_count(self) -> int:
    """c of the module; whole numbers, so that it is exact."""
    ratio = fractions.Fraction(self._adaptation.count_noise_ratio)
    square = fractions.Fraction(self._first_step()) ** -2 / (
        len(self._initial_clips) * (ratio**2 - 1)
    )
    largest = math.isqrt(math.floor(square))
    if not largest:
      raise ValueError(
          f'count_noise_ratio {float(ratio):g} leaves less than a step of the '
          'grid to counts: lower it.'
      )
    return largest

  def _first_step(self):
    if self._correlation is None:
      return super()._first_step()
    return queries.power_of_two(self._step)

  def _grid(self, clip):
    if self._correlation is None:
      return super()._grid(clip)
    # Of each C, so that buffers are in units of C.
    return tf.cast(clip, tf.float64) * self._first_step()

  def initial_global_state(self):
    base = super().initial_global_state()
    layer_clips = tf.constant(list(self._initial_clips.values()), tf.float32)
    state = self.GlobalState(*base, layer_clips=layer_clips)._replace(
        l2_norm_clip=_whole(layer_clips)
    )
    if self._correlation is None:
      return state
    counts = tf.TensorSpec(layer_clips.shape, tf.int64)
    return self.CorrelatedState(
        *state,
        **self._correlation.initial_fields(AdaptiveRecord(self._specs, counts)),
    )

  def derive_sample_params(self, global_state):
    return SampleParams(global_state.l2_norm_clip, global_state.layer_clips)

  def initial_sample_state(self, template):
    return AdaptiveRecord(
        super().initial_sample_state(template),
        tf.zeros([len(self._initial_clips)], tf.int64),
    )

  def clip(self, params, record):
    layer_clips = tf.unstack(tf.cast(params.layer_clips, tf.float64))
    if self._is_global:
      clip, layer_clips = layer_clips[0], [None] * len(self._layers)
    else:
      clip = tf.constant(math.inf, tf.float64)  # Each layer has its own.
    clipped, measured = self._clip(
        record,
        clip=clip,
        layer_clips=layer_clips,
        grid=self._grid(params.l2_norm_clip),
    )
    is_above = measured.layers_clipped
    if self._is_global:
      is_above = measured.num_clipped[tf.newaxis]
    counts = tf.cast((1 - 2 * is_above) * measured.num_finite, tf.int64)
    return AdaptiveRecord(clipped, self._count_steps * counts), measured

  def summed(self, sample_state):
    return sample_state.record

  def get_noised_result(self, sample_state, global_state):
    release = self._release if self._correlation is None else self._correlated
    noised, new_state, event = release(sample_state, global_state)
    share = noised.counts / (2 * self._cohort_size) + 0.5
    share = tf.cast(tf.clip_by_value(share, 0.0, 1.0), tf.float32)
    step = self._adaptation.learning_rate * (
        share - self._adaptation.target_quantile
    )
    layer_clips = tf.clip_by_value(
        global_state.layer_clips * tf.exp(-step),
        queries.MIN_CLIP,
        queries.MAX_CLIP,
    )
    new_state = new_state._replace(
        counter=global_state.counter + 1,
        l2_norm_clip=_whole(layer_clips),
        layer_clips=layer_clips,
    )
    return noised.record, new_state, event

  def _release(self, sample_state: Any, global_state: Any) -> Any:
    """Noised updates and 2 b, the state after them, and the event."""
    # Releases 2 t and 2 t + 1 of the key are those of round t.
    noised, new_state, event = super().get_noised_result(
        sample_state.record,
        global_state._replace(counter=2 * global_state.counter),
    )
    counts = sample_state.counts
    unit = tf.constant(1.0, tf.float64)
    if self._noise_multiplier > 0:
      num_clips = len(self._initial_clips)
      (noise,) = noise_lib.gaussian(
          [tf.TensorShape([num_clips])],
          key=global_state.noise_key,
          release=2 * global_state.counter + 1,
          stddev=tf.cast(global_state.noise_multiplier, tf.float64)
          * (self._adaptation.count_noise_ratio * math.sqrt(num_clips)),
          kernel=self._noise_kernel,
      )
      counts += noise
      unit = queries.keyed(unit, global_state)
    counts = unit * tf.cast(counts, tf.float64)
    return AdaptiveRecord(noised, counts), new_state, event

  def _correlated(self, sample_state: Any, global_state: Any) -> Any:
    """The same with correlated noise."""
    unit = self.grid(global_state)
    noised, new_state, event = self._correlation.release(
        sample_state,
        global_state=global_state,
        stddev=self._stddev(global_state),
        unit=unit,
        kernel=self._noise_kernel,
    )
    counts = noised.counts / (unit * self._count_steps)
    return noised._replace(counts=counts), new_state, event

  def _stddev(self, global_state):
    return self._adaptation.update_noise_ratio * super()._stddev(global_state)

  def derive_metrics(self, global_state):
    metrics = super().derive_metrics(global_state)
    name = 'noise_stddev_on_sum'
    stddev = metrics.pop(name)
    if self._correlation is not None:
      name = 'noise_stddev_before_correlation'
    metrics[name] = self._adaptation.update_noise_ratio * stddev
    metrics['layer_clip'] = collections.OrderedDict(
        (name, global_state.layer_clips[place])
        for place, name in enumerate(self._initial_clips)
    )
    return metrics


def _whole(layer_clips: tf.Tensor) -> tf.Tensor:
  """C of the C_h, float32, not below the root of the sum of their squares."""
  squares = tf.square(tf.cast(layer_clips, tf.float64))
  # Rounding to float32 takes off 2^-24 of it at most.
  return tf.cast(
      (1 + 2.0**-23) * tf.sqrt(tf.reduce_sum(squares)), tf.float32
  )
