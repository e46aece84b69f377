"""Tests of tff_asr.models.layer_mix."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tests.models import calls
from tff_asr.features import front_end as front_end_lib
from tff_asr.models import layer_mix
from tff_asr.models import weights as weights_lib


def _front_end(*, num_layers: int = 3, width: int = 4):
  return front_end_lib.FrontEnd(
      identity='test',
      feature_dim=num_layers * width,
      frame_shift=320,
      window=400,
      compute=lambda *unused: None,
      num_layers=num_layers,
  )


def _build(**options):
  return layer_mix.build(**dict(front_end=_front_end(), dim=5) | options)


class LayerMixTest(parameterized.TestCase):

  def test_value_by_hand(self):
    # Layers (1, 3) and (8, 4): normalised (-1, 1) and (1, -1). With shares 3/4
    # and 1/4 the mix is (-.5, .5); the kernel (1, 3) makes 1, and the bias 2:
    # GELU(3) = 3 Phi(3).
    encoder = layer_mix.build(
        front_end=_front_end(num_layers=2, width=2), dim=1, kernel_size=1
    )
    weights = dict(
        bias=tf.constant([2.0]),
        kernel=tf.constant([[[1.0], [3.0]]]),
        mix=tf.constant([math.log(3.0), 0.0]),
    )
    outputs, lengths = encoder.apply(
        weights, tf.constant([[[1.0, 3.0, 8.0, 4.0]]]), tf.constant([1]), None
    )
    expected = 3 * 0.5 * (1 + math.erf(3 / math.sqrt(2)))
    np.testing.assert_allclose(outputs, [[[expected]]], rtol=1e-4)
    np.testing.assert_array_equal(lengths, [1])

  def test_the_kernel_is_centred_and_reads_0_past_the_end(self):
    encoder = layer_mix.build(
        front_end=_front_end(num_layers=1, width=2), dim=1, kernel_size=3
    )
    kernel = np.zeros([3, 2, 1], np.float32)
    kernel[:, 1, 0] = 1, 10, 100
    weights = dict(
        bias=tf.constant([500.0]), kernel=tf.constant(kernel),
        mix=tf.constant([0.0]),
    )
    # Normalised: second features 1, -1, and 1 past the end.
    features = tf.constant([[[0.0, 2e3], [2e3, 0.0], [0.0, 2e3]]])
    outputs, _ = encoder.apply(weights, features, tf.constant([2]), None)
    np.testing.assert_allclose(
        outputs[0, :2, 0], [500 + 10 - 100, 500 + 1 - 10], rtol=1e-5
    )

  @parameterized.parameters(
      dict(num_frames=num_frames, num_blocks=num_blocks)
      for num_frames in (1, 2, 9) for num_blocks in (0, 1, 3)
  )
  def test_agrees_with_the_numpy_twin(self, num_frames, num_blocks):
    encoder = _build(num_blocks=num_blocks)
    weights = calls.perturbed(encoder.specs)
    features = calls.features(num_frames, 12)
    outputs, _ = calls.apply(
        encoder, features[np.newaxis], [num_frames], weights=weights
    )
    expected = reference.layer_mix_head(
        calls.arrays(weights), features, num_layers=3, num_blocks=num_blocks
    )
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)

  def test_blocks_add_these_weights(self):
    # D = 5: two kernels of 3 x 5 x 5, biases and the norms of two blocks, and
    # the last norm.
    count = lambda num_blocks: weights_lib.num_parameters(
        _build(kernel_size=3, num_blocks=num_blocks).specs
    )
    self.assertEqual(count(0), 3 * 4 * 5 + 5 + 3)
    self.assertEqual(count(2) - count(0), 2 * (75 + 5 + 10) + 10)

  @parameterized.parameters(0, 6)
  def test_the_scale_at_the_start_does_not_depend_on_the_depth(self, num_blocks):
    # GELU of a normal value has the mean square .43 (.5 for ReLU). A mix of
    # independent layers has less, and blocks end with a norm.
    encoder = _build(
        front_end=_front_end(num_layers=1, width=64), dim=96,
        num_blocks=num_blocks,
    )
    weights = weights_lib.initialize(encoder.specs, tf.constant([1, 2]))
    outputs, _ = calls.apply(
        encoder, calls.features(2, 50, 64), [50, 50], weights=weights
    )
    square = np.mean(outputs[:, 2:-2] ** 2)
    expected = 1.0 if num_blocks else 0.43
    self.assertBetween(square, 0.8 * expected, 1.2 * expected)

  @parameterized.parameters(0, 2)
  def test_padding_and_other_utterances_do_not_matter(self, num_blocks):
    encoder = _build(num_blocks=num_blocks)
    weights = calls.perturbed(encoder.specs)
    lengths = [9, 1, 4]
    batch = np.full([3, 9, 12], 1e3, np.float32)
    for row, length in zip(batch, lengths):
      row[:length] = calls.features(length, 12)
    outputs, found = encoder.apply(
        weights, tf.constant(batch), tf.constant(lengths), None
    )
    np.testing.assert_array_equal(found, lengths)
    np.testing.assert_array_equal(encoder.output_lengths(9), 9)
    self.assertEqual(outputs.shape, [3, 9, 5])
    for row, length in zip(outputs, lengths):
      alone, _ = encoder.apply(
          weights,
          tf.constant(calls.features(length, 12)[np.newaxis]),
          tf.constant([length]),
          None,
      )
      np.testing.assert_allclose(row[:length], alone[0], rtol=1e-4, atol=1e-5)

  def test_the_scale_of_a_frame_does_not_matter(self):
    encoder = _build()
    weights = calls.perturbed(encoder.specs)
    features = tf.constant(calls.features(1, 6, 12))
    one, other = (
        encoder.apply(weights, each, tf.constant([6]), None)[0]
        for each in (features, 300 * features + 7)
    )
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)

  @parameterized.parameters(0, 2)
  def test_gradients_reach_every_weight(self, num_blocks):
    encoder = _build(num_blocks=num_blocks)
    weights = calls.perturbed(encoder.specs)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, _ = encoder.apply(
          weights, tf.constant(calls.features(1, 6, 12)), tf.constant([6]), None
      )
      # We do not take the sum of squares, which a layer norm nearly fixes.
      total = tf.reduce_sum(outputs**2 * calls.features(5))
    for name, gradient in tape.gradient(total, weights).items():
      self.assertGreater(float(tf.norm(gradient)), 1e-4, name)

  def test_each_option_counts(self):
    features = tf.constant(calls.features(1, 6, 12))
    plain = {name: spec.shape for name, spec in _build().specs.items()}
    self.assertEqual(plain, dict(bias=(5,), kernel=(5, 4, 5), mix=(3,)))
    self.assertEqual(_build(kernel_size=1).specs['kernel'].shape, (1, 4, 5))
    self.assertEqual(_build(dim=7).output_dim, 7)
    self.assertIn('block_01/kernel', _build(num_blocks=2).specs)
    run = lambda dropout, seed, num_blocks=0: calls.apply(
        _build(dropout=dropout, num_blocks=num_blocks), features, [6], seed
    )[0]
    # Blocks drop other values than what is before them does.
    self.assertFalse(
        np.allclose(run(0.5, [1, 2], 1), run(0.0, [1, 2], 1))
    )
    seeds = tf.constant([1, 2]), tf.constant([1, 3])
    np.testing.assert_array_equal(run(0.5, None), run(0.0, None))
    np.testing.assert_array_equal(run(0.5, seeds[0]), run(0.5, seeds[0]))
    self.assertFalse(np.allclose(run(0.5, seeds[0]), run(0.5, seeds[1])))
    np.testing.assert_array_equal(run(0.0, seeds[0]), run(0.0, None))

  def test_dropout_draws_from_a_stream_of_its_own_in_each_layer(self):
    encoder = _build(num_blocks=3, dropout=0.5)
    with calls.recorded_seeds() as seeds:
      calls.apply(encoder, calls.features(1, 6, 12), [6], tf.constant([1, 2]))
    # Two around the first convolution and one in each block; two seeds are
    # split: the encoder's and the first convolution's.
    self.assertLen(seeds, 2 + 3 + 2)
    self.assertLen(set(seeds), 2 + 3 + 2)

  @parameterized.parameters(
      (dict(dim=0), 'dim'),
      (dict(kernel_size=0), 'kernel_size'),
      (dict(kernel_size=4), 'kernel_size must be odd, found 4'),
      (dict(num_blocks=-1), 'num_blocks must be .*found -1'),
      (dict(dropout=1.0), 'dropout'),
  )
  def test_bad_arguments(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _build(**options)


if __name__ == '__main__':
  absltest.main()
