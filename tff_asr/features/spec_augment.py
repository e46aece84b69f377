"""SpecAugment: time and frequency masks from an explicit stateless seed.

Park et al. 2019, https://arxiv.org/abs/1904.08779, without time warping, as in
the federated ASR paper: widths and starts are uniform integers, a time mask is
at most a share of the utterance, masked values are 0 (the mean of normalised
features).
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
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Builds the augmentation; the defaults are the paper's.

  Args:
    num_freq_masks: Masks over mel bins.
    max_freq_width: A mask's width is uniform in [0, max_freq_width) bins.
    num_time_masks: Masks over frames.
    max_time_width: A mask's width is uniform in [0, m) frames, where m is the
      smaller of this and max_time_share of the utterance.
    max_time_share: In [0, 1].

  Returns:
    A function of features float32 [T, F] of one utterance and a seed int32 [2]
    to masked features of the same shape. The same seed gives the same masks.

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

  def augment(features: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    num_frames, num_bins = tf.unstack(tf.shape(features))
    freq_seed, time_seed = tf.unstack(tf.random.split(seed, 2))
    freq_limit = tf.minimum(max_freq_width, num_bins)
    share = tf.cast(
        max_time_share * tf.cast(num_frames, tf.float32), tf.int32
    )
    time_limit = tf.minimum(max_time_width, share)
    keep_freq = _keep(num_bins, num_freq_masks, freq_limit, freq_seed)
    keep_time = _keep(num_frames, num_time_masks, time_limit, time_seed)
    keep = keep_time[:, tf.newaxis] & keep_freq[tf.newaxis, :]
    return tf.where(keep, features, tf.zeros_like(features))

  return augment


def _keep(
    size: tf.Tensor, num_masks: int, limit: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
  """Returns bool [size]: False under any of the masks."""
  width_seed, start_seed = tf.unstack(tf.random.split(seed, 2))
  widths = tf.cast(
      tf.random.stateless_uniform([num_masks], width_seed)
      * tf.cast(limit, tf.float32),
      tf.int32,
  )
  # Starts are such that the whole mask lies inside: uniform in [0, size - w].
  room = tf.cast(size - widths + 1, tf.float32)
  starts = tf.cast(
      tf.random.stateless_uniform([num_masks], start_seed) * room, tf.int32
  )
  position = tf.range(size)[:, tf.newaxis]
  masked = (position >= starts) & (position < starts + widths)
  return ~tf.reduce_any(masked, axis=1)
