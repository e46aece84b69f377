"""SpecAugment: time and frequency masks from an explicit stateless seed.

Park et al. 2019, https://arxiv.org/abs/1904.08779, without time warping, as in
the federated ASR paper: widths and starts are uniform integers, a time mask is
at most a share of the utterance, masked values are 0 (the mean of normalised
features). A start is below the size less the width, in the published code, too:
the last bin and the last frame are never masked.

  B: batch size. T: feature frames. F: mel bins.
"""

from collections.abc import Callable

import tensorflow as tf

from tff_asr import checks


def build(
    *,
    num_freq_masks: int = 2,
    max_freq_width: int = 30,
    num_time_masks: int = 10,
    max_time_width: int = 50,
    max_time_share: float = 0.1,
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
  """Builds the augmentation; the defaults are the paper's.

  Args:
    num_freq_masks: Masks over mel bins.
    max_freq_width: A mask's width is uniform in [0, max_freq_width) bins.
    num_time_masks: Masks over frames.
    max_time_width: A mask's width is uniform in [0, m) frames, where m is the
      smaller of this and max_time_share of the utterance.
    max_time_share: In [0, 1].

  Returns:
    A function of features float32 [B, T, F], their lengths int32 [B] and a seed
    int32 [2] to masked features of the same shape. Masks differ by utterance;
    the same seed gives the same masks.

  Raises:
    ValueError: A count or width is negative, or the share outside [0, 1].
  """
  checks.non_negative_int(
      num_freq_masks=num_freq_masks,
      max_freq_width=max_freq_width,
      num_time_masks=num_time_masks,
      max_time_width=max_time_width,
  )
  checks.in_range(0, 1, max_time_share=max_time_share)

  def augment(
      features: tf.Tensor, feature_lengths: tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    batch_size, size, num_bins = tf.unstack(tf.shape(features))
    # Frequency and time masks are independent.
    freq_seed, time_seed = tf.unstack(tf.random.split(seed, 2))
    bins = tf.fill([batch_size], num_bins)
    freq_limits = tf.minimum(max_freq_width, bins)
    # As `rounding.whole`: .13 of 900 frames are 117.
    shares = max_time_share * (1 + 1e-9) * tf.cast(feature_lengths, tf.float64)
    time_limits = tf.minimum(max_time_width, tf.cast(shares, tf.int32))
    keep_freq = _keep(num_bins, bins, num_freq_masks, freq_limits, freq_seed)
    keep_time = _keep(
        size, feature_lengths, num_time_masks, time_limits, time_seed
    )
    # A value is kept if no mask covers its frame or its bin.
    keep = keep_time[:, :, tf.newaxis] & keep_freq[:, tf.newaxis, :]
    return tf.where(keep, features, tf.zeros_like(features))

  return augment


def _keep(
    size: tf.Tensor,
    lengths: tf.Tensor,
    num_masks: int,
    limits: tf.Tensor,
    seed: tf.Tensor,
) -> tf.Tensor:
  """Returns bool [B, size]: False under any of a row's masks.

  A mask's width is below its row's limit, and it lies before the row's length.
  """
  # Widths first: starts depend on them.
  width_seed, start_seed = tf.unstack(tf.random.split(seed, 2))
  shape = [tf.size(lengths), num_masks]
  scaled = lambda seed, most: tf.cast(
      tf.random.stateless_uniform(shape, seed) * tf.cast(most, tf.float32),
      tf.int32,
  )
  # Floats and not integers with limits by row: `stateless_uniform` takes one
  # limit for all rows.
  widths = scaled(width_seed, limits[:, tf.newaxis])
  # The whole mask lies inside: starts are uniform in [0, length - width).
  starts = scaled(start_seed, lengths[:, tf.newaxis] - widths)
  position = tf.range(size)[:, tf.newaxis]
  starts, ends = starts[:, tf.newaxis], (starts + widths)[:, tf.newaxis]
  return ~tf.reduce_any((position >= starts) & (position < ends), axis=-1)
