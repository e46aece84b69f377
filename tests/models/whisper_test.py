"""Tests of tff_asr.models.whisper; tests/pretrained compares it with others."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests.models import calls
from tests.models import public_encoders
from tff_asr.models import whisper


def _gelu(x: np.ndarray) -> np.ndarray:
  return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _front(weights: dict[str, np.ndarray], features: np.ndarray) -> np.ndarray:
  """NumPy twin of the convolutions and positions, on one utterance [T, F]."""

  def convolve(inputs, kernel, stride):
    padded = np.pad(inputs, [[1, 1], [0, 0]])
    return np.stack([
        np.tensordot(padded[start : start + 3], kernel, 2)
        for start in range(0, len(inputs), stride)
    ])

  hidden = convolve(features, weights['front/kernel_1'], 1)
  hidden = _gelu(hidden + weights['front/bias_1'])
  hidden = convolve(hidden, weights['front/kernel_2'], 2)
  hidden = _gelu(hidden + weights['front/bias_2'])
  return hidden + weights['front/positions'][: len(hidden)]


class WhisperTest(public_encoders.Contract, parameterized.TestCase):

  lengths = (13, 12, 5, 2, 1)
  input_shape = (6,)

  def build(self, **options):
    settings = dict(
        num_blocks=1, dim=8, mlp_dim=12, num_heads=2, max_positions=7,
        feature_dim=6,
    )
    return whisper.build(**(settings | options))

  @parameterized.parameters(1, 2, 3, 8, 13, 14)
  def test_front_end_agrees_with_the_numpy_twin(self, num_frames):
    encoder = self.build()
    weights = calls.perturbed(encoder.specs)
    features = self.inputs(num_frames)
    outputs, lengths = self.layer_outputs(
        encoder, features[np.newaxis], [num_frames]
    )
    self.assertEqual(list(lengths), [(num_frames + 1) // 2])
    expected = _front(calls.arrays(weights), features)
    np.testing.assert_allclose(outputs[0][0], expected, rtol=1e-5, atol=1e-5)

  def test_too_long_a_batch_fails(self):
    encoder = self.build()
    with self.assertRaises(tf.errors.InvalidArgumentError):
      calls.apply(encoder, self.inputs(15)[np.newaxis], [15])

  def test_positions_by_hand(self):
    # D = 6: frequencies 1, 1 / 100 and 1 / 10,000; the sines first.
    found = whisper.positions(max_positions=3, dim=6)
    angles = [2.0, 0.02, 0.0002]
    np.testing.assert_array_equal(found[0], [0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(
        found[2], [*np.sin(angles), *np.cos(angles)], rtol=1e-6
    )

  @parameterized.parameters(
      (dict(dim=9, num_heads=3), 'dim must be even, found 9'),
      (dict(max_positions=0), 'max_positions'),
      (dict(feature_dim=2.0), 'feature_dim'),
  )
  def test_bad_options_are_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      self.build(**options)


if __name__ == '__main__':
  absltest.main()
