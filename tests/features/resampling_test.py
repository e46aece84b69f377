"""Tests of tff_asr.features.resampling."""

import fractions
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.features import resampling

_SLOW, _FAST = fractions.Fraction(9, 10), fractions.Fraction(11, 10)


def _resample(waveform: np.ndarray, speed: fractions.Fraction) -> np.ndarray:
  return resampling.resample(
      tf.constant(waveform, tf.float32), speed=speed
  ).numpy()


def _twin(waveform: np.ndarray, speed: fractions.Fraction) -> np.ndarray:
  """The sum over all samples, for each output on its own."""
  cutoff = 0.95 / max(1, float(speed))
  half_width = math.ceil(16 * max(1, speed) / 0.95)
  outputs = []
  for m in range(math.ceil(len(waveform) / speed)):
    distances = np.arange(len(waveform)) - m * float(speed)
    window = np.cos(0.5 * np.pi * distances / half_width) ** 2
    window[abs(distances) >= half_width] = 0
    outputs.append(waveform @ (cutoff * np.sinc(cutoff * distances) * window))
  return np.array(outputs)


class ResamplingTest(parameterized.TestCase):

  @parameterized.product(
      speed=(_SLOW, _FAST, fractions.Fraction(3, 2), fractions.Fraction(1)),
      size=(1, 2, 9, 10, 11, 300),
  )
  def test_equals_the_twin(self, speed, size):
    waveform = np.random.default_rng(size).normal(size=size)
    found = _resample(waveform, speed)
    self.assertLen(found, resampling.num_samples(size, speed=speed))
    expected = waveform if speed == 1 else _twin(waveform, speed)
    np.testing.assert_allclose(found, expected, atol=1e-5)

  @parameterized.parameters((_SLOW, 396), (_FAST, 484))
  def test_a_tone_changes_its_pitch_and_its_duration(self, speed, pitch):
    # One second of 440 Hz.
    tone = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    found = _resample(tone, speed)
    # 16000 / 0.9 and 16000 / 1.1, rounded up.
    self.assertLen(found, {_SLOW: 17778, _FAST: 14546}[speed])
    expected = np.sin(2 * np.pi * pitch * np.arange(len(found)) / 16000)
    np.testing.assert_allclose(found[50:-50], expected[50:-50], atol=1e-3)

  def test_frequencies_beyond_half_the_rate_are_removed(self):
    # 7,900 Hz would become 8,690 Hz, which would sound as 7,310.
    tone = np.sin(2 * np.pi * 7900 * np.arange(4000) / 16000)
    self.assertLess(np.abs(_resample(tone, _FAST))[50:-50].max(), 0.01)

  def test_no_samples_stay_none(self):
    self.assertEmpty(_resample(np.zeros(0), _SLOW))


if __name__ == '__main__':
  absltest.main()
