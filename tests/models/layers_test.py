"""Tests of tff_asr.models.layers; norms also in their encoders' twins."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.models import layers

_SEED = tf.constant([1, 2])


class LayersTest(parameterized.TestCase):

  @parameterized.parameters(0.001, 0.2, 0.5, 0.999999)
  def test_dropout_zeroes_its_rate_and_scales_up_the_rest(self, rate):
    outputs = layers.dropout(tf.ones([1001, 1001]), rate, _SEED).numpy()
    # Within 5 binomial standard deviations of the rate, rounded to 16 bits.
    delta = 5 * (rate * (1 - rate)) ** 0.5 / 1001 + 2**-16
    self.assertAlmostEqual(np.mean(outputs == 0), rate, delta=delta)
    if rate < 0.9:
      np.testing.assert_allclose(outputs[outputs != 0], 1 / (1 - rate), 1e-4)
    # Neighbours share a draw of 32 bits, and agree no more often for that.
    kept = (outputs > 0).ravel()
    agreeing = rate**2 + (1 - rate) ** 2
    self.assertAlmostEqual(
        np.mean(kept[:-1] == kept[1:]), agreeing, delta=0.003
    )

  def test_dropout_of_bfloat16_drops_what_it_drops_of_float32(self):
    ones = tf.ones([1000, 100], tf.bfloat16)
    outputs = layers.dropout(ones, 0.035, _SEED)
    self.assertEqual(outputs.dtype, tf.bfloat16)
    expected = layers.dropout(tf.ones([1000, 100]), 0.035, _SEED)
    np.testing.assert_array_equal(outputs == 0, expected == 0)

  def test_dropout_without_seed_or_rate_is_the_identity(self):
    inputs = tf.ones([3])
    self.assertIs(layers.dropout(inputs, 0.5, None), inputs)
    self.assertIs(layers.dropout(inputs, 0.0, _SEED), inputs)

  def test_no_two_seeds_of_a_split_are_one(self):
    seeds = {tuple(seed.numpy()) for seed in layers.split_seed(_SEED, 50)}
    self.assertLen(seeds, 50)
    self.assertEqual(layers.split_seed(None, 3), [None] * 3)

  def test_group_norm_by_hand(self):
    # Two frames, two groups of two channels. Group 0 holds 1, 3, 5, 7: mean 4,
    # variance 5; group 1 is constant. The third frame is padding.
    inputs = tf.constant([[[1.0, 3, 2, 2], [5, 7, 2, 2], [9, 9, 9, np.nan]]])
    valid = tf.constant([[[1.0], [1], [0]]])
    weights = {'scale': tf.ones([4]), 'bias': tf.constant([0.0, 0, 0, 1])}
    outputs = layers.group_norm(weights, inputs, valid, num_groups=2)
    root = np.sqrt(5 + 1e-5)
    np.testing.assert_allclose(
        outputs[0, :2],
        [[-3 / root, -1 / root, 0, 1], [1 / root, 3 / root, 0, 1]],
        rtol=1e-5,
        atol=1e-6,
    )
    self.assertTrue(np.all(np.isfinite(outputs)))

  def test_layer_norm_and_its_gradient_by_hand(self):
    # Mean 2 and variance 2 / 3, so that the normed values are -r, 0 and r with
    # r = sqrt(3 / 2), up to the epsilon.
    inputs = tf.constant([[[1.0, 2, 3]]])
    with tf.GradientTape() as tape:
      tape.watch(inputs)
      normed = layers.normalize_frames(inputs)
      first = normed[0, 0, 0]
    root = 1.5**0.5
    np.testing.assert_allclose(normed, [[[-root, 0, root]]], atol=2e-5)
    # r (1 - 1/3 - r r / 3), r (-1/3), r (-1/3 + r r / 3) of the first value.
    np.testing.assert_allclose(
        tape.gradient(first, inputs),
        [[[root / 6, -root / 3, root / 6]]],
        atol=2e-5,
    )

  @parameterized.parameters([[3, 40]], [[2, 5, 256]])
  def test_gradient_of_layer_norm_agrees_with_tensorflow_s(self, shape):
    generator = np.random.default_rng(1)
    inputs = tf.constant(generator.normal(2, 3, shape), tf.float32)
    upstream = tf.constant(generator.normal(size=shape), tf.float32)

    def plain(values):
      mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
      return (values - mean) * tf.math.rsqrt(variance + 1e-5)

    def run(function):
      with tf.GradientTape() as tape:
        tape.watch(inputs)
        normed = function(inputs)
      return normed, tape.gradient(normed, inputs, upstream)

    normed, gradient = run(layers.normalize_frames)
    expected_normed, expected = run(plain)
    np.testing.assert_array_equal(normed, expected_normed)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)

  def test_layer_norm_is_differentiated_once(self):
    inputs = tf.constant([[1.0, 2, 4]])

    @tf.function
    def second():
      with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
          inner.watch(inputs)
          cubes = tf.reduce_sum(layers.normalize_frames(inputs) ** 3)
        first = inner.gradient(cubes, inputs)
      return outer.gradient(first, inputs)

    for run in (second, second.python_function):
      with self.assertRaisesRegex(NotImplementedError, 'second derivative'):
        run()
