"""A query with clips that follow a quantile of the layers' norms, privately.

Andrew et al. 2021, https://arxiv.org/abs/1905.03871, for each of H layers at
once. Besides its update, clipped to the layers' norms C_h, a client sends a
count for each layer: b_h = +1/2 where the layer's norm is at most C_h and -1/2
where it is above. With n expected clients and noise on both sums,

    share_h = 1/2 + (sum of b_h + noise) / n, clipped to [0, 1]
    C_h <- C_h exp(-learning_rate (share_h - target_quantile))

So in the long run a share `target_quantile` of the clients has the layer
unclipped. The clip of the whole update is C = sqrt(sum of C_h^2).

Counts are H more elements of a record, and get noise like the others. A round
costs one Gaussian of the noise multiplier z; the noise on the update is larger
by `ClipAdaptation.update_noise_ratio`: docs/proofs.md ("Counts of
adaptive clips").

Differences from tensorflow-privacy's `QuantileAdaptiveClipSumQuery`: a clip for
each layer; one event of the given z instead of two; noise by our key.

  H: layers with their own clip; 1 if all are clipped as one.
"""

import collections
import dataclasses
import fractions
import math
from typing import NamedTuple

from absl import logging
import tensorflow as tf

from tff_asr import checks
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import grid_clipper
from tff_asr.privacy import queries


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipAdaptation:
  """Settings of adaptive clips.

  Attributes:
    target_quantile: Share of clients that should have a layer unclipped, in
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
    """z_u / z: noise on the update over that of a round without counts."""
    # Squared inverses add up: 1 / z^2 = 1 / z_u^2 + 1 / (r z)^2.
    return 1 / math.sqrt(1 - self.count_noise_ratio**-2)

  def count_steps(self, *, num_clips: int, clip_in_steps: float) -> int:
    """Returns c: a client's count is +c or -c, in steps of the grid.

    The largest c that makes the counts' squared norm, H c^2, at most that of
    the update over r^2 - 1.

    Args:
      num_clips: H.
      clip_in_steps: C over the grid step, a power of two.
    """
    # In whole numbers, so that the bound is exact.
    ratio = fractions.Fraction(self.count_noise_ratio)
    square = fractions.Fraction(clip_in_steps) ** 2 / (
        num_clips * (ratio**2 - 1)
    )
    largest = math.isqrt(math.floor(square))
    if not largest:
      raise ValueError(
          f'count_noise_ratio {self.count_noise_ratio:g} leaves less than a '
          'step of the grid to counts: lower it.'
      )
    return largest

  def next_clips(self, layer_clips: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Returns the C_h of the next round, float32 [H].

    Args:
      layer_clips: Those of this round.
      share: Noised shares of unclipped clients, float32 [H].
    """
    step = self.learning_rate * (share - self.target_quantile)
    # Within the range of clips that the grid is made for.
    return tf.clip_by_value(
        layer_clips * tf.exp(-step),
        grid_clipper.MIN_CLIP,
        grid_clipper.MAX_CLIP,
    )


class SampleParams(NamedTuple):
  """What clients get of the state.

  Attributes:
    l2_norm_clip: C, float32.
    layer_clips: C_h, float32 [H].
  """

  l2_norm_clip: tf.Tensor
  layer_clips: tf.Tensor


class CountedRecord(NamedTuple):
  """A clipped record with its counts, or a sum of them.

  Attributes:
    record: As in the base class.
    counts: 2 b c, int64 [H].
  """

  record: clipping_lib.Nest
  counts: tf.Tensor


class AdaptiveClipSumQuery(queries.PerLayerClipSumQuery):
  """Sums records clipped to norms that adapt from round to round.

  Sensitivity of update and counts together: z_u C / z. Event: that of the noise
  process, for the given z. A record with a NaN or an infinity counts as no
  record. With z = 0 nothing is noised: the clips adapt without privacy. Noise
  key: as in the base class.
  """

  # So that buffers of correlated noise, which are in grid steps, keep their
  # size over the clip when the clip changes.
  grid_follows_clip = True

  def __init__(
      self,
      record_specs: clipping_lib.Nest,
      *,
      l2_norm_clip: float,
      noise_multiplier: float,
      cohort_size: float,
      clipping: clipping_lib.Clipping = clipping_lib.Clipping(),
      noise: queries.NoiseProcess = queries.IndependentNoise(),
      noise_kernel: str = 'host',
      adaptation: ClipAdaptation = ClipAdaptation(),
  ):
    """Creates the query.

    Args:
      record_specs: See the base class.
      l2_norm_clip: C of the first round, finite; see the base class.
      noise_multiplier: z of a round in all.
      cohort_size: n, the public expected number of records.
      clipping: How the first C is divided; its layers are those that adapt.
      noise: See the base class.
      noise_kernel: See the base class.
      adaptation: How clips adapt.

    Raises:
      ValueError: An argument is out of its range, or the clipping rescales.
    """
    checks.finite(l2_norm_clip=l2_norm_clip)
    checks.positive(cohort_size=cohort_size)
    # `rescale` also changes layers under their clips, so counts of changed
    # layers would not say how many were above.
    checks.one_of(('clip',), rule_of_adaptive_clips=clipping.rule)
    # Before the base class, which reads the noise's scale.
    self._adaptation = adaptation
    super().__init__(
        record_specs,
        l2_norm_clip=l2_norm_clip,
        noise_multiplier=noise_multiplier,
        clipping=clipping,
        noise=noise,
        noise_kernel=noise_kernel,
    )
    self._cohort_size = cohort_size
    if self._clipper.is_global:
      self._initial_clips = collections.OrderedDict(all=l2_norm_clip)
    else:
      self._initial_clips = collections.OrderedDict(
          (layer.name, layer.share * l2_norm_clip)
          for layer in self._clipper.layers
      )
    self._count_steps = adaptation.count_steps(
        num_clips=len(self._initial_clips),
        clip_in_steps=self._clipper.max_clip_in_steps,
    )
    self._warn_if_shares_are_noise()

  def _warn_if_shares_are_noise(self) -> None:
    """Logs a warning if noise hides the shares of unclipped clients."""
    num_clips = len(self._initial_clips)
    # Counts of 1/2 in H layers have the norm sqrt(H) / 2; shares are over n.
    share_stddev = (
        self._adaptation.count_noise_ratio
        * self._noise_multiplier
        * math.sqrt(num_clips)
        / (2 * self._cohort_size)
    )
    if share_stddev > 0.5:
      logging.warning(
          'Adaptive clips: the share of clients below a clip is known to '
          '+-%.2g only (%d layers, %g clients a round): lower '
          'COUNT_NOISE_RATIO, clip fewer layers, or take larger cohorts.',
          share_stddev, num_clips, self._cohort_size,
      )

  @property
  def _sum_specs(self):
    num_clips = len(self._initial_clips)
    return CountedRecord(self._specs, tf.TensorSpec([num_clips], tf.int64))

  @property
  def _noise_scale(self):
    return self._adaptation.update_noise_ratio

  def initial_global_state(self):
    layer_clips = tf.constant(list(self._initial_clips.values()), tf.float32)
    return super().initial_global_state()._replace(
        l2_norm_clip=_whole_clip(layer_clips), layer_clips=layer_clips
    )

  def derive_sample_params(self, global_state):
    return SampleParams(global_state.l2_norm_clip, global_state.layer_clips)

  def initial_sample_state(self, template):
    return CountedRecord(
        super().initial_sample_state(template),
        tf.zeros([len(self._initial_clips)], tf.int64),
    )

  def clip(self, params, record):
    clipped, stats = self._clipper.clip(
        record,
        l2_norm_clip=params.l2_norm_clip,
        layer_clips=params.layer_clips,
    )
    is_above = stats.layers_clipped
    # With one clip for all layers there is one count.
    if self._clipper.is_global:
      is_above = stats.num_clipped[tf.newaxis]
    # A record that is not finite counts in no direction.
    counts = tf.cast((1 - 2 * is_above) * stats.num_finite, tf.int64)
    return CountedRecord(clipped, self._count_steps * counts), stats

  def updates_of(self, sample_state):
    return sample_state.record

  def get_noised_result(self, sample_state, global_state):
    noised, new_state, event = super().get_noised_result(
        sample_state, global_state
    )
    # From here on only noised values are used.
    counts = noised.counts / (self.sum_unit(global_state) * self._count_steps)
    share = counts / (2 * self._cohort_size) + 0.5
    # The noise can carry a share out of [0, 1].
    share = tf.cast(tf.clip_by_value(share, 0.0, 1.0), tf.float32)
    layer_clips = self._adaptation.next_clips(global_state.layer_clips, share)
    new_state = new_state._replace(
        l2_norm_clip=_whole_clip(layer_clips), layer_clips=layer_clips
    )
    return noised.record, new_state, event

  def derive_metrics(self, global_state):
    metrics = super().derive_metrics(global_state)
    metrics['layer_clip'] = collections.OrderedDict(
        (name, global_state.layer_clips[place])
        for place, name in enumerate(self._initial_clips)
    )
    return metrics


def _whole_clip(layer_clips: tf.Tensor) -> tf.Tensor:
  """C of the C_h, float32, not below the root of the sum of their squares."""
  squares = tf.square(tf.cast(layer_clips, tf.float64))
  # Rounding to float32 takes off 2^-24 of it at most.
  return tf.cast(
      (1 + 2.0**-23) * tf.sqrt(tf.reduce_sum(squares)), tf.float32
  )
