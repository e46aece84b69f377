from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.models import encoder

_SEED = tf.constant([1, 2])


class EncoderTest(absltest.TestCase):

  def test_mask_by_hand(self):
    mask = encoder.mask(tf.constant([2, 0, 3]), tf.constant(3))
    np.testing.assert_array_equal(
        mask, [[[1], [1], [0]], [[0], [0], [0]], [[1], [1], [1]]]
    )
    self.assertEqual(mask.dtype, tf.float32)

  def test_dropout_zeroes_its_rate_and_scales_up_the_rest(self):
    outputs = encoder.dropout(tf.ones([10000]), 0.2, _SEED).numpy()
    # Binomial: stddev .004; seeded, a new seed would fail 1 time in 10^6.
    self.assertAlmostEqual(np.mean(outputs == 0), 0.2, delta=0.02)
    np.testing.assert_allclose(outputs[outputs != 0], 1.25, rtol=1e-6)

  def test_dropout_of_bfloat16_drops_what_it_drops_of_float32(self):
    # A draw of 8 bits would drop 4/128 = 3.1 % for 3.5 %.
    ones = tf.ones([1000, 100], tf.bfloat16)
    outputs = encoder.dropout(ones, 0.035, tf.constant([1, 2]))
    self.assertEqual(outputs.dtype, tf.bfloat16)
    expected = encoder.dropout(tf.ones([1000, 100]), 0.035, tf.constant([1, 2]))
    np.testing.assert_array_equal(outputs == 0, expected == 0)

  def test_dropout_depends_on_its_seed(self):
    drop = lambda seed: encoder.dropout(tf.ones([100]), 0.5, seed).numpy()
    np.testing.assert_array_equal(drop(_SEED), drop(tf.constant([1, 2])))
    self.assertFalse(np.array_equal(drop(_SEED), drop(tf.constant([1, 3]))))

  def test_dropout_without_seed_or_rate_is_the_identity(self):
    inputs = tf.ones([3])
    self.assertIs(encoder.dropout(inputs, 0.5, None), inputs)
    self.assertIs(encoder.dropout(inputs, 0.0, _SEED), inputs)

  def test_split_seed_gives_different_seeds_and_keeps_none(self):
    seeds = {tuple(seed.numpy()) for seed in encoder.split_seed(_SEED, 10)}
    self.assertLen(seeds, 10)
    self.assertEqual(encoder.split_seed(None, 3), [None] * 3)


if __name__ == '__main__':
  absltest.main()
