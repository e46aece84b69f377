from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.models import encoder

_SEED = tf.constant([1, 2])


class EncoderTest(parameterized.TestCase):

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
    np.testing.assert_allclose(outputs[outputs != 0], 1.25, rtol=1e-5)

  def test_dropout_of_bfloat16_drops_what_it_drops_of_float32(self):
    ones = tf.ones([1000, 100], tf.bfloat16)
    outputs = encoder.dropout(ones, 0.035, tf.constant([1, 2]))
    self.assertEqual(outputs.dtype, tf.bfloat16)
    expected = encoder.dropout(tf.ones([1000, 100]), 0.035, tf.constant([1, 2]))
    np.testing.assert_array_equal(outputs == 0, expected == 0)

  @parameterized.parameters(0.001, 0.5, 0.999999)
  def test_dropouts_share_at_its_ends(self, rate):
    outputs = encoder.dropout(tf.ones([1001, 1001]), rate, _SEED).numpy()
    # Within 5 binomial standard deviations of the rate, rounded to 16 bits.
    delta = 5 * (rate * (1 - rate)) ** 0.5 / 1001 + 2**-16
    self.assertAlmostEqual(np.mean(outputs == 0), rate, delta=delta)

  def test_dropout_draws_each_value_anew(self):
    kept = encoder.dropout(tf.ones([100_001]), 0.5, _SEED).numpy() > 0
    # Neighbours share a draw of 32 bits, and agree half of the time.
    agree = np.mean(kept[:-1] == kept[1:])
    self.assertAlmostEqual(agree, 0.5, delta=5 * 0.5 / 100_000**0.5)

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
