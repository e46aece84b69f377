"""Tests of tff_asr.data.buckets."""

import collections

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.data import buckets as buckets_lib


class BucketsTest(parameterized.TestCase):

  @parameterized.parameters(
      # 30 rows of 400 frames fill a batch of 12,000: multiples of 4.
      (10, 350, (12, 400)),
      (8, 400, (8, 400)),
      # Of 800 frames 15 do: multiples of 2.
      (1, 401, (2, 800)),
      (15, 800, (16, 800)),
  )
  def test_padded_sizes_by_hand(self, num_rows, num_frames, expected):
    buckets = buckets_lib.LengthBuckets([4.0, 8.0])
    self.assertEqual(
        buckets.padded_size(num_rows, num_frames, max_batch_frames=12000),
        expected,
    )
    tensors = buckets.padded_size(
        tf.constant(num_rows), tf.constant(num_frames), max_batch_frames=12000
    )
    self.assertEqual(tuple(map(int, tensors)), expected)

  def test_all_batches_have_few_sizes(self):
    buckets = buckets_lib.LengthBuckets(1.3 ** np.arange(1, 14))
    sizes = {
        buckets.padded_size(num_rows, num_frames, max_batch_frames=12000)
        for num_frames in range(101, buckets.boundaries[-1], 7)
        for num_rows in range(1, 12000 // num_frames + 1)
    }
    self.assertLessEqual(len(sizes), 11 * 13)

  def test_a_padded_batch_is_the_batch_and_rows_of_weight_0(self):
    features = np.arange(2 * 25 * 3, dtype=np.float32).reshape(2, 25, 3)
    batch = collections.OrderedDict(
        example_weights=tf.constant([1.0, 0.0]),
        feature_lengths=tf.constant([18, 25]),
        features=tf.constant(features),
        label_lengths=tf.constant([1, 2]),
        labels=tf.constant([[1, 0], [2, 3]]),
        seed=tf.constant([1, 2]),
        utterance_id=tf.constant(['u0', 'u1']),
    )
    padded = buckets_lib.LengthBuckets([0.2, 0.4]).pad(
        batch, max_batch_frames=1000, output_lengths=lambda frames: frames // 8
    )
    self.assertEqual(list(padded), list(batch))
    found = {name: value.numpy() for name, value in padded.items()}
    # 25 rows of 40 frames would fill a batch: multiples of 4.
    self.assertEqual(found['features'].shape, (4, 40, 3))
    np.testing.assert_array_equal(found['features'][:2, :25], features)
    self.assertEqual(np.sum(found['features']), np.sum(features))
    np.testing.assert_array_equal(found['example_weights'], [1, 0, 0, 0])
    np.testing.assert_array_equal(found['feature_lengths'], [18, 25, 8, 8])
    np.testing.assert_array_equal(found['label_lengths'], [1, 2, 0, 0])
    np.testing.assert_array_equal(
        found['labels'], [[1, 0, 0, 0, 0], [2, 3, 0, 0, 0], [0] * 5, [0] * 5]
    )
    np.testing.assert_array_equal(found['seed'], [1, 2])
    np.testing.assert_array_equal(
        found['utterance_id'], [b'u0', b'u1', b'', b'']
    )

  def test_labels_longer_than_the_outputs_are_padded_and_not_cut(self):
    # Kept by the published code's loss: 7 labels, 5 outputs.
    batch = collections.OrderedDict(
        features=tf.ones([1, 25, 3]),
        feature_lengths=tf.constant([25]),
        label_lengths=tf.constant([7]),
        labels=tf.constant([[1, 2, 3, 1, 2, 3, 1]]),
    )
    padded = buckets_lib.LengthBuckets([0.2, 0.4]).pad(
        batch, max_batch_frames=1000, output_lengths=lambda frames: frames // 8
    )
    np.testing.assert_array_equal(
        padded['labels'], [[1, 2, 3, 1, 2, 3, 1]] + 3 * [[0] * 7]
    )
    np.testing.assert_array_equal(padded['label_lengths'], [7, 0, 0, 0])

  @parameterized.parameters([[]], [[0.0, 1.0]], [[2.0, 1.0]], [[1.0, 1.0]])
  def test_bad_boundaries_are_named(self, boundaries):
    with self.assertRaisesRegex(ValueError, 'boundaries_sec must be positive'):
      buckets_lib.LengthBuckets(boundaries)
