import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tff_asr.text import alignment


class MinFramesTest(parameterized.TestCase):

  # By hand: one frame a label, one more for the blank between two equal ones.
  @parameterized.parameters(
      ([], 0), ([1], 1), ([0, 1], 2), ([1, 1], 3), ([1, 1, 1], 5),
      ([0, 0, 1, 1], 6), ([0, 1, 0, 1], 4),
  )
  def test_by_hand(self, labels, expected):
    np.testing.assert_array_equal(
        alignment.min_frames(tf.constant(labels, tf.int32)), expected
    )

  @parameterized.parameters([[[0]], [[1, 1]], [[0, 1]], [[0, 0, 1]]])
  def test_is_the_fewest_frames_with_an_alignment(self, labels):
    frames = int(alignment.min_frames(tf.constant(labels)))
    loss = lambda num_frames: reference.ctc_loss(
        np.zeros([num_frames, 3]), labels
    )
    self.assertTrue(math.isfinite(loss(frames)))
    self.assertTrue(math.isinf(loss(frames - 1)))

  def test_runs_in_a_graph_of_unknown_lengths(self):
    # In a plain graph `==` would compare the tensors' identities.
    with tf.Graph().as_default():
      dataset = tf.data.Dataset.from_generator(
          lambda: iter([[2, 2], [2, 3], []]),
          output_signature=tf.TensorSpec([None], tf.int32),
      ).map(alignment.min_frames)
      iterator = tf.compat.v1.data.make_one_shot_iterator(dataset)
      value = iterator.get_next()
      with tf.compat.v1.Session() as session:
        found = [session.run(value) for _ in range(3)]
    self.assertEqual(found, [3, 2, 0])


if __name__ == '__main__':
  absltest.main()
