"""What every encoder beside the transformer must do; a new one is a new row.

The transformer has a file of its own, with what only it has.
"""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tests.models import calls
from tff_asr.models import conv
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import weights as weights_lib

_SEED = tf.constant([3, 4])
_BUILD = {
    'conv': lambda **options: conv.build(
        **(dict(num_blocks=2, dim=8, kernel_size=3, feature_dim=5) | options)
    ),
}
_TWIN = {'conv': reference.conv_encoder}
_ROWS = tuple((name, name) for name in _BUILD)


_features = calls.features
_apply = calls.apply


def _weights(encoder: encoder_lib.Encoder) -> weights_lib.Weights:
  return calls.perturbed(encoder.specs)


class EncodersTest(parameterized.TestCase):

  @parameterized.product(row=tuple(_BUILD), padding=(0.0, 1e3, np.nan))
  def test_padding_does_not_change_outputs(self, row, padding):
    encoder = _BUILD[row]()
    lengths = [16, 3, 30, 7, 2]
    batch = np.full([5, 30, 5], padding, np.float32)
    for line, length in zip(batch, lengths):
      line[:length] = _features(length, 5)
    outputs, output_lengths = _apply(encoder, batch, lengths)
    np.testing.assert_array_equal(output_lengths, [5, 1, 10, 2, 0])
    self.assertTrue(np.all(np.isfinite(outputs)))
    for i, length in enumerate(lengths):
      alone, _ = _apply(encoder, batch[i : i + 1, :length], [length])
      self.assertEqual(alone.shape, (1, output_lengths[i], 8))
      np.testing.assert_allclose(
          outputs[i, : output_lengths[i]], alone[0], rtol=1e-4, atol=1e-5
      )

  @parameterized.product(row=tuple(_BUILD), num_blocks=(1, 3))
  def test_agrees_with_the_numpy_twin(self, row, num_blocks):
    encoder = _BUILD[row](num_blocks=num_blocks)
    weights = _weights(encoder)
    for num_frames in (3, 4, 31):
      features = _features(num_frames, 5)
      outputs, _ = _apply(
          encoder, features[np.newaxis], [num_frames], None, weights
      )
      expected = _TWIN[row](weights, features, num_blocks=num_blocks)
      np.testing.assert_allclose(outputs[0], expected, rtol=1e-5, atol=1e-5)

  @parameterized.product(row=tuple(_BUILD), num_frames=(2, 3, 5, 6))
  def test_output_lengths_are_those_of_real_outputs(self, row, num_frames):
    encoder = _BUILD[row]()
    outputs, lengths = _apply(
        encoder, _features(1, num_frames, 5), [num_frames]
    )
    expected = encoder.output_lengths(num_frames)
    self.assertEqual(outputs.shape, (1, expected, encoder.output_dim))
    np.testing.assert_array_equal(lengths, [expected])

  @parameterized.named_parameters(*_ROWS)
  def test_dropout_applies_in_training_only_and_by_its_seed(self, row):
    encoder = _BUILD[row](dropout=0.3)
    features = _features(2, 15, 5)
    run = lambda seed: _apply(encoder, features, [15, 12], seed)[0]
    first = run(_SEED)
    np.testing.assert_array_equal(first, run(tf.constant([3, 4])))
    self.assertFalse(np.allclose(first, run(tf.constant([3, 5]))))
    plain = _apply(_BUILD[row](), features, [15, 12])[0]
    np.testing.assert_array_equal(run(None), plain)
    np.testing.assert_array_equal(
        _apply(_BUILD[row](), features, [15, 12], _SEED)[0], plain
    )

  @parameterized.named_parameters(*_ROWS)
  def test_gradients_reach_every_weight_and_ignore_padding(self, row):
    encoder = _BUILD[row]()
    weights = _weights(encoder)

    def gradients(features):
      with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs, _ = encoder.apply(
            weights, tf.constant(features), tf.constant([24]), None
        )
        total = tf.reduce_sum(outputs[:, :8] * _features(1, 8, 8))
      return tape.gradient(total, weights)

    features = _features(1, 24, 5)
    padded = np.pad(features, [[0, 0], [0, 9], [0, 0]], constant_values=np.nan)
    expected = gradients(features)
    for name, gradient in gradients(padded).items():
      self.assertGreater(float(tf.norm(gradient)), 0, msg=name)
      np.testing.assert_allclose(
          gradient, expected[name], rtol=1e-3, atol=1e-4, err_msg=name
      )

  @parameterized.named_parameters(*_ROWS)
  def test_runs_in_a_graph_of_unknown_sizes(self, row):
    encoder = _BUILD[row](dropout=0.1)
    weights = _weights(encoder)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, 5]),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([2], tf.int32),
        ]
    )
    def train(features, lengths, seed):
      return encoder.apply(weights, features, lengths, seed)

    features = _features(2, 15, 5)
    outputs, lengths = train(features, [15, 12], _SEED)
    np.testing.assert_array_equal(lengths, [5, 4])
    np.testing.assert_allclose(
        outputs,
        _apply(encoder, features, [15, 12], _SEED, weights)[0],
        rtol=1e-5,
        atol=1e-5,
    )

  @parameterized.named_parameters(*_ROWS)
  def test_bfloat16_rounds_and_no_more(self, row):
    features, lengths = _features(2, 60, 5), [60, 60]
    expected, _ = _apply(_BUILD[row](), features, lengths)
    outputs, _ = _apply(
        _BUILD[row](activation_dtype='bfloat16'), features, lengths
    )
    self.assertEqual(outputs.dtype, np.float32)
    error = np.linalg.norm(outputs - expected) / np.linalg.norm(expected)
    self.assertBetween(error, 1e-4, 0.03)

  @parameterized.named_parameters(
      *(
          (f'{row}_{name}', row, {name: value})
          for row, options in (
              ('conv', dict(num_blocks=3, dim=9, kernel_size=5, feature_dim=6)),
          )
          for name, value in options.items()
      )
  )
  def test_each_option_changes_the_result(self, row, options):
    def run(**options):
      encoder = _BUILD[row](**options)
      num_bins = options.get('feature_dim', 5)
      return _apply(encoder, _features(1, 15, num_bins), [15])[0]

    before, after = run(), run(**options)
    is_other_shape = before.shape != after.shape
    self.assertTrue(
        is_other_shape or np.abs(before - after).max() > 1e-3, options
    )

  @parameterized.named_parameters(
      ('conv_num_blocks', 'conv', 'num_blocks', 0),
      ('conv_dim', 'conv', 'dim', 0),
      ('conv_kernel_size', 'conv', 'kernel_size', 0),
      ('conv_even_kernel_size', 'conv', 'kernel_size', 4),
      ('conv_feature_dim', 'conv', 'feature_dim', 0),
      ('conv_dropout', 'conv', 'dropout', -0.1),
      ('conv_dtype', 'conv', 'activation_dtype', 'float16'),
  )
  def test_bad_arguments_are_named(self, row, name, value):
    with self.assertRaisesRegex(ValueError, f'{name} must be'):
      _BUILD[row](**{name: value})


class ConvTest(absltest.TestCase):

  def test_an_output_sees_the_frames_of_its_kernel(self):
    # Of subsampled frames: kernel 5, one block.
    weights = weights_lib.select(
        'block_00', _weights(_BUILD['conv'](kernel_size=5))
    )
    inputs, valid = _features(1, 12, 8), tf.ones([1, 12, 1])
    outputs = conv._gated_conv(weights, tf.constant(inputs), valid)
    for t in range(12):
      changed = inputs.copy()
      changed[0, t] = inputs[0, t, ::-1]
      other = conv._gated_conv(weights, tf.constant(changed), valid)
      difference = np.abs(other - outputs)[0].max(axis=1)
      np.testing.assert_array_equal(
          np.flatnonzero(difference),
          [s for s in range(12) if abs(s - t) <= 2],
      )

  def test_weights_by_hand(self):
    # Kernel 3 * 8 * 16, bias 16, a norm of 2 * 8.
    one, two = (_BUILD['conv'](num_blocks=n) for n in (1, 2))
    per_block = weights_lib.count(two.specs) - weights_lib.count(one.specs)
    self.assertEqual(per_block, 384 + 16 + 16)


if __name__ == '__main__':
  absltest.main()
