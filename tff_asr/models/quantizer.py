"""Random-projection quantizer: speech frames to labels, without training.

Chiu et al. 2022 (BEST-RQ), https://arxiv.org/abs/2202.01855: stacked frames are
projected to a few dimensions by a random matrix (Xavier) and labelled by the
nearest of many random vectors, both sides l2-normalised. Matrix and vectors are
functions of a seed and do not change.

Frames are first shifted and scaled, each mel bin to mean 0 and variance 1 over
the utterance; the paper does so over its corpus. Without this, bins that are
always loud decide all labels, and few labels are used. Statistics of a private
corpus are not needed.

  B: batch size. T: feature frames. F: mel bins. S: stacked frames.
"""

import dataclasses
import math

import tensorflow as tf

from tff_asr import checks
from tff_asr.features import log_mel
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib

# A bin that does not change, as in digital silence, has variance 0.
_VARIANCE_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomProjectionQuantizer:
  """A frozen quantizer.

  Attributes:
    num_codes: Labels are in [0, num_codes).
    code_dim: Dimensions that frames are projected to.
    num_stacked: Frames that make one label.
    seed: Seed of the matrix and the codes.
    feature_dim: F.
  """

  num_codes: int = 8192
  code_dim: int = 16
  num_stacked: int = 4
  seed: int = 1
  feature_dim: int = log_mel.NUM_MEL_BINS

  def __post_init__(self):
    checks.positive_int(
        num_codes=self.num_codes,
        code_dim=self.code_dim,
        num_stacked=self.num_stacked,
        feature_dim=self.feature_dim,
    )
    checks.non_negative_int(seed=self.seed)

  @property
  def projection(self) -> tf.Tensor:
    """The matrix, float32 [num_stacked F, code_dim]."""
    fan_in = self.num_stacked * self.feature_dim
    # Xavier uniform, as in the paper.
    limit = math.sqrt(6 / (fan_in + self.code_dim))
    return tf.random.stateless_uniform(
        [fan_in, self.code_dim], self._seeds[0], -limit, limit
    )

  @property
  def codes(self) -> tf.Tensor:
    """The unit vectors, float32 [num_codes, code_dim]."""
    # Normal, so that the directions are uniform on the sphere.
    codes = tf.random.stateless_normal(
        [self.num_codes, self.code_dim], self._seeds[1]
    )
    return tf.math.l2_normalize(codes, axis=-1)

  def labels(
      self, features: tf.Tensor, feature_lengths: tf.Tensor
  ) -> tf.Tensor:
    """Labels of each utterance's stacked frames.

    Args:
      features: float32 [B, T, F].
      feature_lengths: int32 [B], each in [0, T]. Frames at or past the length
        do not affect the labels before it.

    Returns:
      int32 [B, S] with S = T // num_stacked; arbitrary at and past
      feature_lengths // num_stacked.
    """
    batch_size, size, _ = tf.unstack(tf.shape(features))
    num_labels = size // self.num_stacked
    # Labels are of the clean features, before frames are masked.
    normed = _normalize_bins(features, feature_lengths)
    stacked = tf.reshape(
        normed[:, : num_labels * self.num_stacked],
        [batch_size, num_labels, self.num_stacked * self.feature_dim],
    )
    # The nearest unit vector has the largest product, whatever the length of
    # the projection.
    projected = layers.matmul(stacked, self.projection)
    products = layers.matmul(projected, tf.transpose(self.codes))
    return tf.argmax(products, axis=-1, output_type=tf.int32)

  @property
  def _seeds(self) -> list[tf.Tensor]:
    seed = tf.constant(weights_lib.seed_pair(self.seed))
    return tf.unstack(tf.random.split(seed, 2))


def perplexity(counts: tf.Tensor) -> tf.Tensor:
  """Effective number of labels in use: exp(entropy).

  Args:
    counts: [number of labels], how often each was used.

  Returns:
    float64 [], between 1 and the number of labels; 1 if all counts are 0.
  """
  counts = tf.cast(counts, tf.float64)
  shares = counts / tf.maximum(tf.reduce_sum(counts), 1.0)
  # xlogy(0, 0) is 0: unused labels do not count.
  return tf.exp(-tf.reduce_sum(tf.math.xlogy(shares, shares)))


def _normalize_bins(
    features: tf.Tensor, feature_lengths: tf.Tensor
) -> tf.Tensor:
  """Each bin to mean 0 and variance 1 over an utterance's frames."""
  valid = tf.sequence_mask(feature_lengths, tf.shape(features)[1])
  count = tf.cast(tf.maximum(feature_lengths, 1), tf.float32)
  return log_mel.standardize(
      features,
      valid[:, :, tf.newaxis],
      count=count[:, tf.newaxis, tf.newaxis],
      axes=[1],
      epsilon=_VARIANCE_EPSILON,
  )
