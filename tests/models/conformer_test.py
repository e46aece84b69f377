"""Tests of tff_asr.models.conformer and of the parts that only it has."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference_ssl
from tests.models import calls
from tff_asr.models import conformer
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import norms
from tff_asr.models import relative_attention
from tff_asr.models import subsampling_2d
from tff_asr.models import weights as weights_lib

_SEED = tf.constant([3, 4])
_SIZES = dict(
    num_blocks=2,
    dim=8,
    mlp_dim=12,
    num_heads=2,
    kernel_size=3,
    num_groups=4,
    front_channels=3,
    feature_dim=9,
)


def _build(**options) -> encoder_lib.Encoder:
  return conformer.build(**(_SIZES | options))


_perturbed = calls.perturbed
_features = calls.features
_apply = calls.apply


def _arrays(weights: weights_lib.Weights) -> dict[str, np.ndarray]:
  return {name: value.numpy() for name, value in weights.items()}


class ConformerTest(parameterized.TestCase):

  @parameterized.parameters(0.0, 1e3, np.nan)
  def test_padding_does_not_change_outputs(self, padding):
    encoder = _build()
    lengths = [16, 4, 31, 7]
    batch = np.full([4, 31, 9], padding, np.float32)
    for row, length in zip(batch, lengths):
      row[:length] = _features(length, 9)
    outputs, output_lengths = _apply(encoder, batch, lengths)
    np.testing.assert_array_equal(output_lengths, [4, 1, 7, 1])
    for i, length in enumerate(lengths):
      alone, _ = _apply(encoder, batch[i : i + 1, :length], [length])
      self.assertEqual(alone.shape, (1, output_lengths[i], 8))
      np.testing.assert_allclose(
          outputs[i, : output_lengths[i]], alone[0], rtol=1e-4, atol=1e-5
      )

  def test_padding_does_not_reach_gradients(self):
    encoder, weights = _build(), _perturbed(_build().specs)
    features = np.full([2, 20, 9], np.nan, np.float32)
    features[0, :17], features[1, :9] = _features(17, 9), _features(9, 9)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, lengths = encoder.apply(
          weights, tf.constant(features), tf.constant([17, 9]), None
      )
      valid = encoder_lib.mask(lengths, tf.shape(outputs)[1])
      loss = tf.reduce_sum(tf.where(valid > 0, tf.square(outputs), 0.0))
    for name, gradient in tape.gradient(loss, weights).items():
      self.assertTrue(np.all(np.isfinite(gradient)), name)

  @parameterized.parameters((1, 1), (2, 2), (2, 4))
  def test_agrees_with_the_numpy_twin(self, num_blocks, num_heads):
    encoder = _build(num_blocks=num_blocks, num_heads=num_heads)
    arrays = _arrays(_perturbed(encoder.specs))
    for num_frames in (4, 21, 30):
      features = _features(num_frames, 9)
      outputs, _ = _apply(encoder, features[np.newaxis], [num_frames])
      expected = reference_ssl.conformer_encoder(
          arrays,
          features,
          num_blocks=num_blocks,
          num_heads=num_heads,
          num_groups=4,
      )
      np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)

  @parameterized.parameters(*range(2, 13))
  def test_output_lengths_are_those_of_real_outputs(self, num_frames):
    encoder = _build(num_blocks=1)
    outputs, lengths = _apply(encoder, _features(1, num_frames, 9), [num_frames])
    self.assertEqual(outputs.shape, (1, num_frames // 4, encoder.output_dim))
    np.testing.assert_array_equal(lengths, [num_frames // 4])
    self.assertEqual(encoder.output_lengths(num_frames), num_frames // 4)

  def test_every_weight_has_a_part_in_the_output(self):
    encoder = _build()
    weights = _perturbed(encoder.specs)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, _ = encoder.apply(
          weights, tf.constant(_features(1, 32, 9)), tf.constant([32]), None
      )
      total = tf.reduce_sum(outputs * _features(1, 8, 8))
    for name, gradient in tape.gradient(total, weights).items():
      self.assertGreater(float(tf.norm(gradient)), 1e-6, msg=name)

  def test_the_seed_makes_what_training_draws(self):
    encoder = _build(dropout=0.3)
    features = _features(2, 16, 9)
    run = lambda seed: _apply(encoder, features, [16, 12], seed)[0]
    first = run(_SEED)
    np.testing.assert_array_equal(first, run(tf.constant([3, 4])))
    self.assertFalse(np.allclose(first, run(tf.constant([3, 5]))))
    # Without a seed nothing is drawn.
    np.testing.assert_array_equal(
        run(None), _apply(_build(), features, [16, 12])[0]
    )

  @parameterized.parameters(
      dict(num_blocks=3),
      dict(dim=16),
      dict(mlp_dim=13),
      dict(num_heads=4),
      dict(kernel_size=5),
      dict(num_groups=2),
      dict(front_channels=4),
      dict(dropout=0.3),
      dict(feature_dim=10),
      dict(activation_dtype='bfloat16'),
  )
  def test_each_option_changes_the_result(self, **options):
    def train(**options):
      num_bins = options.get('feature_dim', _SIZES['feature_dim'])
      # Of weights that do not depend on the others' shapes.
      encoder = _build(**options)
      weights = weights_lib.initialize(encoder.specs, tf.constant([1, 2]))
      return encoder.apply(
          weights,
          tf.constant(_features(1, 17, num_bins)),
          tf.constant([17]),
          _SEED,
      )[0].numpy()

    before, after = train(), train(**options)
    is_other_shape = before.shape != after.shape
    self.assertTrue(
        is_other_shape or np.abs(before - after).max() > 1e-4, options
    )

  def test_runs_in_a_graph_of_unknown_sizes(self):
    encoder = _build(dropout=0.1)
    weights = _perturbed(encoder.specs)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, 9]),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([2], tf.int32),
        ]
    )
    def train(features, lengths, seed):
      return encoder.apply(weights, features, lengths, seed)

    features = _features(2, 17, 9)
    outputs, lengths = train(features, [17, 12], _SEED)
    np.testing.assert_array_equal(lengths, [4, 3])
    np.testing.assert_allclose(
        outputs,
        _apply(encoder, features, [17, 12], _SEED)[0],
        rtol=1e-5,
        atol=1e-5,
    )

  def test_bfloat16_rounds_and_no_more(self):
    # Eight bits round by up to 2^-9 = .2 % at each of some 30 ops of the way.
    features = _features(2, 60, 9)
    expected, _ = _apply(_build(), features, [60, 45])
    outputs, _ = _apply(
        _build(activation_dtype='bfloat16'), features, [60, 45]
    )
    self.assertEqual(outputs.dtype, np.float32)
    expected[1, 11:] = outputs[1, 11:] = 0
    error = np.linalg.norm(outputs - expected) / np.linalg.norm(expected)
    self.assertBetween(error, 1e-4, 0.05)

  @parameterized.parameters(
      'num_blocks', 'dim', 'mlp_dim', 'num_heads', 'kernel_size', 'num_groups',
      'front_channels', 'feature_dim',
  )
  def test_bad_sizes_are_named(self, name):
    for value in (0, -1, 2.0):
      with self.assertRaisesRegex(ValueError, name):
        _build(**{name: value})

  @parameterized.parameters(
      (dict(dropout=-0.1), 'dropout'),
      (dict(dropout=1.0), 'dropout'),
      (dict(kernel_size=4), 'kernel_size must be odd, found 4'),
      (dict(feature_dim=3), 'feature_dim must be at least 4, found 3'),
      (dict(dim=9), 'found dim 9, num_heads 2 and num_groups 4'),
      (dict(num_groups=3), 'num_groups 3'),
      (dict(activation_dtype='float16'), 'activation_dtype'),
  )
  def test_other_bad_options_are_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _build(**options)


class SizesTest(parameterized.TestCase):

  def test_a_block_has_24_squares_of_its_width_and_vectors(self):
    # FFNs 2 * 2 * 4 D^2, attention 5 D^2, convolution 3 D^2; 6 norms of 2 D,
    # u and v, 5 D of the depthwise kernel: 19 D.
    for dim in (8, 16):
      one, two = (
          weights_lib.count(
              _build(num_blocks=n, dim=dim, mlp_dim=4 * dim, kernel_size=5).specs
          )
          for n in (1, 2)
      )
      self.assertEqual(two - one, 24 * dim**2 + 19 * dim)


class PartsTest(parameterized.TestCase):

  def test_group_norm_by_hand(self):
    # Two frames, two groups of two channels. Group 0 holds 1, 3, 5, 7: mean 4,
    # variance 5; group 1 is constant. The third frame is padding.
    inputs = tf.constant([[[1.0, 3, 2, 2], [5, 7, 2, 2], [9, 9, 9, np.nan]]])
    valid = tf.constant([[[1.0], [1], [0]]])
    weights = {'scale': tf.ones([4]), 'bias': tf.constant([0.0, 0, 0, 1])}
    outputs = norms.group_norm(weights, inputs, valid, num_groups=2)
    root = np.sqrt(5 + 1e-5)
    np.testing.assert_allclose(
        outputs[0, :2],
        [[-3 / root, -1 / root, 0, 1], [1 / root, 3 / root, 0, 1]],
        rtol=1e-5,
        atol=1e-6,
    )
    self.assertTrue(np.all(np.isfinite(outputs)))

  @parameterized.parameters(1, 2, 5, 9)
  def test_relative_attention_agrees_with_the_numpy_twin(self, size):
    weights = _perturbed(relative_attention.specs(dim=8))
    inputs = 3 * _features(size, 8)
    for num_heads in (1, 2, 4):
      outputs = relative_attention.apply(
          weights,
          tf.constant(inputs[np.newaxis]),
          tf.ones([1, size, 1]),
          num_heads=num_heads,
          dropout=0.5,
          seed=None,
      )
      expected = reference_ssl.relative_attention(
          _arrays(weights), inputs, num_heads=num_heads
      )
      np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)

  def test_relative_attention_sees_distances_only(self):
    # Position scores alone: a frame's weights depend on the distance, so that
    # neighbouring rows of the attention, shifted, are proportional.
    scores = relative_attention._shift(
        tf.reshape(tf.range(1.0, 8), [1, 1, 1, 7]) * tf.ones([1, 1, 4, 1])
    )
    # Scores 1 to 7 stand for distances 3 to -3; i - j = 0 is 4.
    np.testing.assert_array_equal(
        scores[0, 0],
        [[4, 5, 6, 7], [3, 4, 5, 6], [2, 3, 4, 5], [1, 2, 3, 4]],
    )

  @parameterized.parameters(4, 7, 20)
  def test_the_front_end_agrees_with_the_numpy_twin(self, num_frames):
    for feature_dim in (8, 10, 11):
      specs = subsampling_2d.specs(
          feature_dim=feature_dim, channels=3, dim=5
      )
      weights = _perturbed(specs)
      features = _features(num_frames, feature_dim)
      outputs, lengths = subsampling_2d.apply(
          weights,
          tf.constant(features[np.newaxis]),
          tf.constant([num_frames]),
          dropout=0.0,
          seed=None,
      )
      np.testing.assert_array_equal(lengths, [num_frames // 4])
      np.testing.assert_allclose(
          outputs[0],
          reference_ssl.front_end_2d(_arrays(weights), features),
          rtol=1e-4,
          atol=1e-5,
      )


if __name__ == '__main__':
  absltest.main()
