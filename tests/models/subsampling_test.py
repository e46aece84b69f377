import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tff_asr.models import subsampling
from tff_asr.models import weights as weights_lib

_SPECS = subsampling.specs(feature_dim=5, dim=4)


def _weights() -> weights_lib.Weights:
  weights = weights_lib.initialize(_SPECS, tf.constant([1, 2]))
  # Not their initial values, so that scale and bias of the input do something.
  weights['input_bias'] += 0.3
  weights['input_scale'] *= 1.7
  return weights


def _features(*shape: int) -> np.ndarray:
  return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def _apply(features, lengths, dropout: float = 0.0, seed=None):
  outputs, output_lengths = subsampling.apply(
      _weights(),
      tf.constant(features),
      tf.constant(lengths),
      dropout=dropout,
      seed=seed,
  )
  return outputs.numpy(), output_lengths.numpy()


class SubsamplingTest(parameterized.TestCase):

  @parameterized.parameters(*range(12))
  def test_output_lengths_are_those_of_real_outputs(self, num_frames):
    outputs, lengths = _apply(_features(2, num_frames, 5), [num_frames] * 2)
    self.assertEqual(outputs.shape, (2, num_frames // 3, 4))
    np.testing.assert_array_equal(lengths, num_frames // 3)
    self.assertEqual(subsampling.output_lengths(num_frames), num_frames // 3)

  @parameterized.parameters(3, 4, 5, 12, 20)
  def test_agrees_with_the_numpy_twin(self, num_frames):
    features = _features(num_frames, 5)
    outputs, _ = _apply(features[np.newaxis], [num_frames])
    weights = {key: value.numpy() for key, value in _weights().items()}
    expected = reference.front_end(weights, features)
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-5, atol=1e-5)

  @parameterized.named_parameters(
      ('zeros', 0.0), ('large', 1e6), ('infinity', np.inf), ('nan', np.nan)
  )
  def test_padding_does_not_change_outputs(self, padding):
    lengths = [14, 9, 0, 20, 1]
    batch = np.full([5, 20, 5], padding, np.float32)
    for row, length in zip(batch, lengths):
      row[:length] = _features(length, 5)
    outputs, output_lengths = _apply(batch, lengths)
    for i, length in enumerate(lengths):
      alone, _ = _apply(batch[i : i + 1, :length], [length])
      np.testing.assert_allclose(
          outputs[i, : output_lengths[i]], alone[0], rtol=1e-5, atol=1e-6
      )

  def test_padding_does_not_reach_gradients(self):
    batch = np.full([1, 9, 5], np.nan, np.float32)
    batch[0, :6] = _features(6, 5)
    weights = _weights()
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, _ = subsampling.apply(
          weights, tf.constant(batch), tf.constant([6]), dropout=0.0, seed=None
      )
      total = tf.reduce_sum(outputs[:, :2])
    for gradient in tape.gradient(total, weights).values():
      self.assertTrue(np.all(np.isfinite(gradient)))

  def test_an_output_sees_7_frames_around_its_group(self):
    features = _features(1, 21, 5)
    outputs, _ = _apply(features, [21])
    for t in range(21):
      changed = features.copy()
      # The same values, so the same mean and variance.
      changed[0, t] = features[0, t, ::-1]
      difference = np.abs(_apply(changed, [21])[0] - outputs)[0].max(axis=1)
      seen = [s for s in range(7) if 3 * s - 2 <= t <= 3 * s + 4]
      np.testing.assert_array_equal(np.flatnonzero(difference > 1e-4), seen)

  def test_features_are_normalised_before_scale_and_bias(self):
    features = _features(2, 21, 5)
    outputs, _ = _apply(features, [21, 15])
    shifted, _ = _apply(7.0 * features - 3.0, [21, 15])
    np.testing.assert_allclose(
        outputs[0], shifted[0], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        outputs[1, :5], shifted[1, :5], rtol=1e-4, atol=1e-5
    )
    # One mean and variance an utterance, not one a frame or a bin.
    for unit in ((slice(None), 3), (3,)):
      changed = features[:1].copy()
      changed[0][unit] = 7.0 * changed[0][unit] - 3.0
      self.assertGreater(
          np.abs(_apply(changed, [21])[0] - outputs[:1]).max(), 0.1
      )

  def test_an_utterance_of_one_value_is_its_bias(self):
    constant, _ = _apply(np.full([1, 9, 5], 4.0, np.float32), [9])
    zeros, _ = _apply(np.zeros([1, 9, 5], np.float32), [9])
    np.testing.assert_allclose(constant, zeros, atol=1e-5)

  def test_initial_ranges(self):
    # Fan-in 7 * 5 = 35: LeCun uniform has limit sqrt(3 / 35), the bias
    # sqrt(1 / 35).
    weights = weights_lib.initialize(
        subsampling.specs(feature_dim=5, dim=500), tf.constant([3, 4])
    )
    for name, limit in (('kernel', (3 / 35) ** 0.5), ('bias', 35**-0.5)):
      largest = float(tf.reduce_max(tf.abs(weights[name])))
      self.assertBetween(largest, 0.98 * limit, limit)
    self.assertAlmostEqual(np.var(weights['kernel']), 1 / 35, delta=0.001)
    np.testing.assert_array_equal(weights['input_scale'], [1])
    np.testing.assert_array_equal(weights['input_bias'], [0])

  def test_parameter_count_of_the_paper(self):
    # Kernel 7 * 80 * 1536, bias 1536, scale and bias of the input.
    specs = subsampling.specs(feature_dim=80, dim=768)
    self.assertEqual(weights_lib.count(specs), 860160 + 1536 + 2)
    self.assertEqual(math.prod(specs['kernel'].shape), 860160)

  def test_dropout_applies_in_training_only(self):
    features = _features(1, 300, 5)
    seed = tf.constant([1, 2])
    evaluated, _ = _apply(features, [300])
    dropped, _ = _apply(features, [300], dropout=0.3, seed=seed)
    kept = dropped != 0
    self.assertAlmostEqual(np.mean(~kept), 0.3, delta=0.08)
    np.testing.assert_allclose(dropped[kept], evaluated[kept] / 0.7, rtol=1e-5)
    np.testing.assert_array_equal(_apply(features, [300], 0.3)[0], evaluated)


if __name__ == '__main__':
  absltest.main()
