"""Tests of tff_asr.learning.delta_transforms; fed_avg_test runs one."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.learning import delta_transforms

# Norm 13.
_DELTA = {'a': tf.constant([3.0, 4.0]), 'b': tf.constant([[12.0]])}


class DeltaTransformsTest(parameterized.TestCase):

  @parameterized.parameters((6.5, 0.5), (13.0, 1.0), (100.0, 1.0))
  def test_clip_by_hand(self, max_norm, factor):
    clipped = delta_transforms.clip(max_norm=max_norm)(_DELTA)
    for name, value in _DELTA.items():
      np.testing.assert_allclose(clipped[name], factor * value, rtol=1e-6)

  @parameterized.parameters((1.0, 1 / 13), (26.0, 2.0))
  def test_normalize_by_hand(self, norm, factor):
    normed = delta_transforms.normalize(norm=norm)(_DELTA)
    for name, value in _DELTA.items():
      np.testing.assert_allclose(normed[name], factor * value, rtol=1e-6)

  def test_zeros_stay_zeros(self):
    zeros = [tf.zeros([2]), tf.zeros([])]
    for transform in (
        delta_transforms.clip(max_norm=1.0), delta_transforms.normalize()
    ):
      for value in transform(zeros):
        np.testing.assert_array_equal(value, np.zeros(value.shape))

  @parameterized.parameters(0.0, -1.0, math.nan)
  def test_bad_norms_are_named(self, norm):
    with self.assertRaisesRegex(ValueError, 'max_norm must be positive'):
      delta_transforms.clip(max_norm=norm)
    with self.assertRaisesRegex(ValueError, 'norm must be positive'):
      delta_transforms.normalize(norm=norm)

  def test_an_infinite_norm_to_bring_to_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'norm must be a finite number'):
      delta_transforms.normalize(norm=math.inf)


if __name__ == '__main__':
  absltest.main()
