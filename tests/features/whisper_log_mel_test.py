"""Tests of tff_asr.features.whisper_log_mel and .waveform.

tests/pretrained compares both with `transformers`.
"""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.features import waveform as waveform_lib
from tff_asr.features import whisper_log_mel


def _noise(num_samples: int, *, loudness: float = 1000.0) -> np.ndarray:
  """Noise that dies away, so that its end is not the loudest."""
  rng = np.random.default_rng(num_samples)
  decay = np.exp(-3 * np.arange(num_samples) / num_samples)
  return (rng.normal(size=num_samples) * loudness * decay).astype(np.int16)


def _filters(num_bins: int) -> np.ndarray:
  """Slaney's filters [201, F], a loop over filters and bins."""

  def to_mel(hertz):
    if hertz < 1000:
      return 3 * hertz / 200
    return 15 + 27 * math.log(hertz / 1000) / math.log(6.4)

  def to_hertz(mel):
    return 200 * mel / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

  step = to_mel(8000) / (num_bins + 1)
  edges = [to_hertz(step * k) for k in range(num_bins + 2)]
  filters = np.zeros([201, num_bins])
  for k, (low, middle, high) in enumerate(zip(edges, edges[1:], edges[2:])):
    for index in range(201):
      hertz = 40 * index
      side = min((hertz - low) / (middle - low), (high - hertz) / (high - middle))
      filters[index, k] = max(0, side) * 2 / (high - low)
  return filters


def _twin(waveform: np.ndarray, num_bins: int) -> np.ndarray:
  """As Whisper: of 30 s in float64, then cut."""
  padded = np.zeros(480000)
  padded[: len(waveform)] = waveform / 32768
  reflected = np.concatenate([padded[200:0:-1], padded, padded[-2:-202:-1]])
  # Frames of the utterance and those that straddle its end.
  starts = 160 * np.arange(len(waveform) // 160 + 3)
  frames = np.stack([reflected[start : start + 400] for start in starts])
  window = np.sin(np.pi * np.arange(400) / 400) ** 2
  power = np.abs(np.fft.rfft(frames * window)) ** 2
  log = np.log10(np.maximum(power @ _filters(num_bins), 1e-10))
  log = np.maximum(log, log.max() - 8)
  return ((log + 4) / 4)[: len(waveform) // 160]


def _features(waveform: np.ndarray, **options) -> np.ndarray:
  features, lengths = whisper_log_mel.whisper_log_mel(
      tf.constant(waveform[np.newaxis]), tf.constant([len(waveform)]), **options
  )
  np.testing.assert_array_equal(lengths, [features.shape[1]])
  return features[0].numpy()


class WhisperLogMelTest(parameterized.TestCase):

  @parameterized.product(
      num_samples=(160, 200, 201, 400, 1599, 1600, 5000), num_bins=(80, 128)
  )
  def test_agrees_with_the_numpy_twin(self, num_samples, num_bins):
    waveform = _noise(num_samples)
    features = _features(waveform, num_mel_bins=num_bins)
    self.assertEqual(features.dtype, np.float32)
    np.testing.assert_allclose(
        features, _twin(waveform, num_bins), rtol=0, atol=1e-5
    )

  def test_values_under_the_largest_are_clamped(self):
    time = np.arange(8000) / 16000
    tone = (20000 * np.sin(2 * np.pi * 1000 * time)).astype(np.int16)
    tone[4000:] = 0
    features = _features(tone)
    np.testing.assert_allclose(features, _twin(tone, 80), rtol=0, atol=1e-4)
    # 8 / 4 below the largest.
    self.assertAlmostEqual(np.ptp(features), 2, places=5)

  def test_mel_filters_by_hand(self):
    # mel(8000) = 15 + 27 ln 8 / ln 6.4 = 45.2456, 81 steps of 0.558588 mel or
    # 37.2392 Hz: a triangle of height 2 / 74.4784. Bin 1 is 40 Hz.
    filters = whisper_log_mel.mel_filters(80)
    self.assertEqual(filters.shape, (201, 80))
    self.assertAlmostEqual(filters[1, 0], 0.0248626, places=6)
    np.testing.assert_allclose(filters, _filters(80), rtol=1e-5, atol=1e-8)

  @parameterized.parameters((0, 0), (159, 0), (160, 1), (319, 1), (320, 2))
  def test_frame_counts(self, num_samples, expected):
    self.assertEqual(whisper_log_mel.num_frames(num_samples), expected)
    self.assertEqual(_features(_noise(num_samples)).shape, (expected, 80))

  def test_padding_of_a_batch_does_not_matter(self):
    waveforms = [_noise(100), _noise(1000), _noise(1500)]
    run = tf.function(whisper_log_mel.whisper_log_mel).get_concrete_function(
        tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([None], tf.int32)
    )
    for padding in (0, 32767, np.nan):
      padded = np.full([3, 2000], padding, np.float32)
      for row, waveform in zip(padded, waveforms):
        row[: len(waveform)] = waveform
      features, lengths = run(
          tf.constant(padded), tf.constant([len(each) for each in waveforms])
      )
      self.assertEqual(features.shape, [3, 12, 80])
      np.testing.assert_array_equal(lengths, [0, 6, 9])
      for row, length, waveform in zip(features, lengths, waveforms):
        np.testing.assert_allclose(
            row[:length], _features(waveform), rtol=1e-5, atol=1e-5
        )
        np.testing.assert_array_equal(row[length:], 0)

  def test_the_clamp_is_below_the_loudest_frame_of_the_utterance(self):
    # Silence, which is clamped, then noise that grows up to the end: the
    # loudest window is one that straddles it, and is no frame.
    growing = _noise(790, loudness=8000.0)[::-1]
    waveform = np.concatenate([np.zeros(800, np.int16), growing])
    features = _features(waveform)
    self.assertAlmostEqual(np.ptp(features), 2, places=5)
    padded = np.pad(waveform, [0, 500])
    batch, lengths = whisper_log_mel.whisper_log_mel(
        tf.constant(padded[np.newaxis]), tf.constant([len(waveform)])
    )
    np.testing.assert_array_equal(lengths, [9])
    np.testing.assert_allclose(batch[0, :9], features, rtol=0, atol=1e-5)

  def test_digital_silence_is_finite(self):
    # log10 of the floor is -10: (-10 + 4) / 4.
    np.testing.assert_allclose(_features(np.zeros(800, np.int16)), -1.5)

  def test_no_bands_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'num_mel_bins'):
      _features(_noise(800), num_mel_bins=0)


class WaveformTest(parameterized.TestCase):

  def run_batch(self, **options):
    batch = np.full([3, 4], np.nan, np.float32)
    batch[0] = [16384, -16384, 8192, 0]
    batch[1, :2] = [100, 300]
    return waveform_lib.waveform(
        tf.constant(batch), tf.constant([4, 2, 0]), **options
    )

  def test_samples_are_scaled_to_one(self):
    features, lengths = self.run_batch(normalize=False)
    np.testing.assert_array_equal(lengths, [4, 2, 0])
    np.testing.assert_allclose(
        features,
        [[0.5, -0.5, 0.25, 0], [100 / 32768, 300 / 32768, 0, 0], [0] * 4],
    )

  def test_normalizing_takes_the_utterance_alone(self):
    features, _ = self.run_batch(normalize=True)
    # Mean .0625, variance .13671875 and epsilon 1e-7.
    expected = (np.array([0.5, -0.5, 0.25, 0]) - 0.0625) / math.sqrt(0.13671885)
    np.testing.assert_allclose(features[0], expected, rtol=1e-6)
    # Deviations of 100 / 32768, a variance of 9.313e-6.
    value = 100 / 32768 / math.sqrt((100 / 32768) ** 2 + 1e-7)
    np.testing.assert_allclose(features[1], [-value, value, 0, 0], rtol=1e-5)
    np.testing.assert_array_equal(features[2], [0] * 4)


if __name__ == '__main__':
  absltest.main()
