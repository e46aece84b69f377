from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.optimizers import per_tensor


class TrustRatioTest(parameterized.TestCase):

  # By hand: ||(3, 4)|| = 5, ||(6, 8)|| = 10.
  @parameterized.named_parameters(
      ('both', [3.0, 4.0], [6.0, 8.0], 0.5),
      ('reverse', [6.0, 8.0], [3.0, 4.0], 2.0),
      ('sign_is_nothing', [-3.0, 4.0], [3.0, -4.0], 1.0),
      ('weight_0', [0.0, 0.0], [3.0, 4.0], 1.0),
      ('update_0', [3.0, 4.0], [0.0, 0.0], 1.0),
      ('both_0', [0.0, 0.0], [0.0, 0.0], 1.0),
      ('scalar', 2.0, 8.0, 0.25),
      ('matrix', [[3.0], [4.0]], [[0.0], [1.0]], 5.0),
      ('empty', [], [], 1.0),
      ('unbounded', [1e6], [1e-6], 1e12),
  )
  def test_by_hand(self, weight, update, expected):
    for dtype in (tf.float32, tf.float64):
      ratio = per_tensor.trust_ratio(
          tf.constant(weight, dtype), tf.constant(update, dtype)
      )
      self.assertEqual(ratio.dtype, dtype)
      self.assertEqual(ratio.shape, [])
      np.testing.assert_allclose(ratio, expected, rtol=1e-6)

  def test_coefficient_and_epsilon_by_hand(self):
    # .5 * 5 / (10 + 2.5) = .2; a zero norm still gives 1.
    options = dict(coefficient=0.5, epsilon=2.5)
    ratio = per_tensor.trust_ratio(
        tf.constant([3.0, 4.0]), tf.constant([6.0, 8.0]), **options
    )
    np.testing.assert_allclose(ratio, 0.2, rtol=1e-6)
    for weight, update in (([0.0], [1.0]), ([1.0], [0.0])):
      ratio = per_tensor.trust_ratio(
          tf.constant(weight), tf.constant(update), **options
      )
      self.assertEqual(float(ratio), 1.0)

  def test_zero_norms_hold_in_a_plain_graph(self):
    with tf.Graph().as_default():
      ratio = per_tensor.trust_ratio(tf.zeros([2]), tf.ones([2]))
      with tf.compat.v1.Session() as session:
        self.assertEqual(session.run(ratio), 1.0)


if __name__ == '__main__':
  absltest.main()
