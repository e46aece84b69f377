"""Tests of tff_asr.models.layer_mix."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests.models import calls
from tff_asr.features import front_end as front_end_lib
from tff_asr.models import layer_mix


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

  def test_padding_and_other_utterances_do_not_matter(self):
    encoder = _build()
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

  def test_gradients_reach_every_weight(self):
    encoder = _build()
    weights = calls.perturbed(encoder.specs)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, _ = encoder.apply(
          weights, tf.constant(calls.features(1, 6, 12)), tf.constant([6]), None
      )
      total = tf.reduce_sum(outputs**2)
    for name, gradient in tape.gradient(total, weights).items():
      self.assertGreater(float(tf.norm(gradient)), 1e-4, name)

  def test_each_option_counts(self):
    features = tf.constant(calls.features(1, 6, 12))
    plain = {name: spec.shape for name, spec in _build().specs.items()}
    self.assertEqual(plain, dict(bias=(5,), kernel=(5, 4, 5), mix=(3,)))
    self.assertEqual(_build(kernel_size=1).specs['kernel'].shape, (1, 4, 5))
    self.assertEqual(_build(dim=7).output_dim, 7)
    run = lambda dropout, seed: _build(dropout=dropout).apply(
        calls.perturbed(_build().specs), features, tf.constant([6]), seed
    )[0].numpy()
    seeds = tf.constant([1, 2]), tf.constant([1, 3])
    np.testing.assert_array_equal(run(0.5, None), run(0.0, None))
    np.testing.assert_array_equal(run(0.5, seeds[0]), run(0.5, seeds[0]))
    self.assertFalse(np.allclose(run(0.5, seeds[0]), run(0.5, seeds[1])))
    np.testing.assert_array_equal(run(0.0, seeds[0]), run(0.0, None))

  @parameterized.parameters(
      (dict(dim=0), 'dim'),
      (dict(kernel_size=0), 'kernel_size'),
      (dict(kernel_size=4), 'kernel_size must be odd, found 4'),
      (dict(dropout=1.0), 'dropout'),
  )
  def test_bad_arguments(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _build(**options)


if __name__ == '__main__':
  absltest.main()
