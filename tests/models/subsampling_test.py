"""Tests of tff_asr.models.subsampling; padding also in encoders_test."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tests import reference_ssl
from tests.models import calls
from tff_asr.features import log_mel
from tff_asr.models import subsampling
from tff_asr.models import weights as weights_lib

_features = calls.features
_SMALL_3X = dict(feature_dim=5, dim=4, dropout=0.0)
_SMALL_4X = dict(
    feature_dim=8, channels=3, dim=5, dropout=0.0, activation_dtype='float32'
)


def _build_3x(**options):
  return subsampling.build_3x(**(_SMALL_3X | options))


def _build_4x(**options):
  return subsampling.build_4x(**(_SMALL_4X | options))


class SubsamplingTest(parameterized.TestCase):

  @parameterized.product(
      row=(
          (_build_3x, 5, reference.front_end, subsampling.output_lengths_3x),
          *(
              (_build_4x, bins, reference_ssl.front_end_2d,
               subsampling.output_lengths_4x)
              for bins in (8, 10, 11)
          ),
      ),
      num_frames=(0, 1, 2, 3, 4, 5, 7, 8, 12, 20),
  )
  def test_agrees_with_the_numpy_twin(self, row, num_frames):
    build, num_bins, twin, output_lengths = row
    front = build(feature_dim=num_bins)
    features = _features(num_frames, num_bins)
    outputs, lengths = calls.apply(front, features[np.newaxis], [num_frames])
    np.testing.assert_array_equal(lengths, [output_lengths(num_frames)])
    self.assertEqual(outputs.shape, (1, lengths[0], front.output_dim))
    if lengths[0]:
      arrays = calls.arrays(calls.perturbed(front.specs))
      np.testing.assert_allclose(
          outputs[0], twin(arrays, features), rtol=1e-4, atol=1e-5
      )

  @parameterized.parameters(
      # A batch's longest row in seconds, and the frames on the left that Flax's
      # SAME pads a batch of 5, 10, 15, 20, 25 or 30 s with: 498, 998, 1498,
      # 1998, 2498 and 2998 frames.
      (1, 2), (5, 2), (5.1, 2), (10, 2), (10.1, 3), (15, 3), (15.1, 2), (20, 2),
      (25, 2), (26, 3), (30, 3),
  )
  def test_published_padding_depends_on_the_longest_of_the_batch(
      self, longest_sec, left
  ):
    front = _build_3x(padding=subsampling.FLAX_SAME)
    longest = log_mel.num_frames(log_mel.samples_of_seconds(longest_sec))
    features = np.zeros([2, longest, 5], np.float32)
    features[0, :21] = _features(21, 5)
    outputs, lengths = calls.apply(front, features, [21, longest])
    np.testing.assert_array_equal(lengths, [7, longest // 3])
    arrays = calls.arrays(calls.perturbed(front.specs))
    np.testing.assert_allclose(
        outputs[0, :7],
        reference.front_end(arrays, features[0, :21], left=left),
        rtol=1e-4,
        atol=1e-5,
    )

  def test_initial_ranges_of_3x(self):
    # Fan-in 7 * 5 = 35: LeCun uniform has limit sqrt(3 / 35), the bias
    # sqrt(1 / 35).
    weights = weights_lib.initialize(
        _build_3x(dim=500).specs, tf.constant([3, 4])
    )
    for name, limit in (('kernel', (3 / 35) ** 0.5), ('bias', 35**-0.5)):
      largest = float(tf.reduce_max(tf.abs(weights[name])))
      self.assertBetween(largest, 0.98 * limit, limit)
    np.testing.assert_array_equal(weights['input_scale'], [1])
    np.testing.assert_array_equal(weights['input_bias'], [0])
