import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tff_asr.text import alignment


def _min_frames(labels: list[int]) -> int:
  """Of one sequence, padded with more of its last label."""
  padded = tf.constant([labels + labels[-1:] * 2], tf.int32)
  return int(alignment.min_frames(padded, tf.constant([len(labels)]))[0])


class MinFramesTest(parameterized.TestCase):

  # By hand: one frame a label, one more for the blank between two equal ones.
  @parameterized.parameters(
      ([], 0), ([1], 1), ([0, 1], 2), ([1, 1], 3), ([1, 1, 1], 5),
      ([0, 0, 1, 1], 6), ([0, 1, 0, 1], 4),
  )
  def test_by_hand(self, labels, expected):
    self.assertEqual(_min_frames(labels), expected)

  @parameterized.parameters([[[0]], [[1, 1]], [[0, 1]], [[0, 0, 1]]])
  def test_is_the_fewest_frames_with_an_alignment(self, labels):
    frames = _min_frames(labels)
    loss = lambda num_frames: reference.ctc_loss(
        np.zeros([num_frames, 3]), labels
    )
    self.assertTrue(math.isfinite(loss(frames)))
    self.assertTrue(math.isinf(loss(frames - 1)))

  def test_runs_in_a_graph_of_unknown_lengths(self):
    # In a plain graph `==` would compare the tensors' identities.
    with tf.Graph().as_default():
      labels = tf.compat.v1.placeholder(tf.int32, [None, None])
      lengths = tf.compat.v1.placeholder(tf.int32, [None])
      frames = alignment.min_frames(labels, lengths)
      with tf.compat.v1.Session() as session:
        found = session.run(
            frames, {labels: [[2, 2], [2, 3], [0, 0]], lengths: [2, 2, 0]}
        )
    np.testing.assert_array_equal(found, [3, 2, 0])


if __name__ == '__main__':
  absltest.main()
