"""Tests of tff_asr.privacy.canaries."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.privacy import canaries as canaries_lib

_SHAPES = [tf.TensorShape([50, 40]), tf.TensorShape([]), tf.TensorShape([3])]


class CanariesTest(absltest.TestCase):

  def update(self, canaries, client_id):
    return [
        layer.numpy()
        for layer in canaries.update(tf.constant(client_id), _SHAPES)
    ]

  def test_ids_are_sorted_and_known_as_canaries(self):
    ids = canaries_lib.Canaries(num_canaries=12).client_ids
    self.assertLen(set(ids), 12)
    self.assertEqual(ids, sorted(ids))
    for client_id in ids:
      self.assertTrue(canaries_lib.is_canary(tf.constant(client_id)))
    for client_id in ('', 'ann', 'canary', 'Canary/1'):
      self.assertFalse(canaries_lib.is_canary(tf.constant(client_id)))

  def test_each_layer_is_far_above_any_clip(self):
    canaries = canaries_lib.Canaries(num_canaries=1)
    for layer in self.update(canaries, canaries.client_ids[0]):
      self.assertAlmostEqual(np.linalg.norm(layer) / 1e6, 1, places=5)

  def test_directions_follow_from_seed_and_number_and_are_nearly_orthogonal(
      self,
  ):
    canaries = canaries_lib.Canaries(num_canaries=3)
    updates = [self.update(canaries, one) for one in canaries.client_ids]
    again = self.update(canaries, canaries.client_ids[1])
    np.testing.assert_array_equal(updates[1][0], again[0])
    other = self.update(
        canaries_lib.Canaries(num_canaries=3, seed=2), canaries.client_ids[1]
    )
    for first, second in (
        (updates[0][0], updates[1][0]),
        (updates[1][0], updates[2][0]),
        (updates[1][0], other[0]),
    ):
      cosine = np.sum(first * second) / 1e12
      self.assertLess(abs(cosine), 5 / np.sqrt(2000))

  def test_bad_numbers_are_named(self):
    with self.assertRaisesRegex(ValueError, 'num_canaries'):
      canaries_lib.Canaries(num_canaries=0)
    with self.assertRaisesRegex(ValueError, 'seed'):
      canaries_lib.Canaries(num_canaries=1, seed=-1)


if __name__ == '__main__':
  absltest.main()
