from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tff_asr.features import log_mel


def _noise(num_samples: int, *, loudness: float = 1000.0) -> np.ndarray:
  rng = np.random.default_rng(num_samples)
  samples = rng.normal(size=num_samples) * loudness
  return np.clip(samples, -32768, 32767).astype(np.int16)


def _tone(hertz: float, *, num_samples: int = 4000) -> np.ndarray:
  time = np.arange(num_samples) / log_mel.SAMPLE_RATE_HZ
  return (8000 * np.sin(2 * np.pi * hertz * time)).astype(np.int16)


def _features(waveform: np.ndarray) -> tf.Tensor:
  """Features [T, F] of one utterance, as a batch of one."""
  features, lengths = log_mel.log_mel(
      tf.constant(waveform)[tf.newaxis], tf.constant([len(waveform)])
  )
  np.testing.assert_array_equal(lengths, [features.shape[1]])
  return features[0]


class LogMelTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('noise', _noise(4321)),
      ('one_frame', _noise(400)),
      ('two_frames', _noise(560)),
      ('faint_under_the_floor', _noise(2000, loudness=0.4)),
      ('full_scale', _noise(2000, loudness=1e6)),
      ('tone_in_noise', _tone(440.0) + _noise(4000, loudness=30.0)),
      ('silence_then_noise', np.concatenate([np.zeros(800), _noise(800)])),
      ('step', np.repeat([0, 20000], 1000)),
  )
  def test_agrees_with_the_numpy_twin(self, waveform):
    waveform = waveform.astype(np.int16)
    features = _features(waveform)
    self.assertEqual(features.dtype, tf.float32)
    # Sums of 200 or 400 float32 products up to 2e4 are right to some 1e-3, in
    # an order that differs with the number of threads; the log is taken from 1
    # up.
    tolerance = dict(rtol=1e-4, atol=5e-4)
    np.testing.assert_allclose(
        features, reference.log_mel(waveform), **tolerance
    )
    without_graph = log_mel.log_mel_numpy(waveform)
    self.assertEqual(without_graph.dtype, np.float32)
    np.testing.assert_allclose(
        without_graph, reference.log_mel(waveform), **tolerance
    )

  def test_mel_filters_by_hand(self):
    # The ends of triangles stand every 2840.02 / 81 mel: those of the first at
    # 0, 22.1201 and 44.9391 Hz, of number 40 at 1729.7017, 1806.4805 and
    # 1885.6855. Bin k is at 31.25 k Hz: (44.9391 - 31.25) / 22.8191 and so on.
    filters = log_mel.mel_filterbank()
    expected = np.zeros([257, 2])
    expected[1, 0] = 0.59990
    expected[56:61, 1] = [0.26437, 0.67139, 0.92400, 0.52946, 0.13491]
    np.testing.assert_allclose(filters[:, [0, 40]], expected, atol=2e-5)
    np.testing.assert_allclose(
        filters, reference.mel_filters(), rtol=0, atol=1e-6
    )
    # `log_mel` does not compute the last bin.
    np.testing.assert_array_equal(filters[256], np.zeros(80))

  @parameterized.parameters(12, 20, 40, 60, 79)
  def test_a_tone_at_the_centre_of_a_bin_peaks_there(self, mel_bin):
    # The 80 centres and two ends are evenly spaced from 0 to mel(8000).
    mel = (mel_bin + 1) / 81 * 2595 * np.log10(1 + 8000 / 700)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    features = _features(_tone(hertz))
    np.testing.assert_array_equal(np.argmax(features, axis=1), mel_bin)

  # By hand: one window of 400 samples, then one more for each 160.
  @parameterized.parameters(
      (0, 0), (1, 0), (239, 0), (240, 0), (399, 0), (400, 1), (401, 1),
      (559, 1), (560, 2), (719, 2), (720, 3), (16000, 98),
  )
  def test_frame_counts(self, num_samples, expected):
    self.assertEqual(log_mel.num_frames(num_samples), expected)
    np.testing.assert_array_equal(
        log_mel.num_frames(tf.constant([num_samples])), [expected]
    )
    np.testing.assert_array_equal(
        log_mel.num_frames(np.array([num_samples])), [expected]
    )
    features = _features(_noise(num_samples))
    self.assertEqual(features.shape, [expected, 80])
    self.assertEqual(
        log_mel.log_mel_numpy(_noise(num_samples)).shape, (expected, 80)
    )

  def test_seconds_to_frames(self):
    # Every multiple of 10 ms up to 10 minutes is whole: 16.4 / 0.01 is not.
    for frames in range(60000):
      self.assertEqual(log_mel.frames_of_seconds(frames / 100), frames)
    self.assertEqual(log_mel.frames_of_seconds(16.4), 1640)
    # What does not fit whole does not count.
    self.assertEqual(log_mel.frames_of_seconds(0.0199), 1)
    self.assertEqual(log_mel.frames_of_seconds(29.999), 2999)

  def test_seconds_and_frames_to_samples(self):
    # 120.1 * 16000 is below 1921600.
    self.assertEqual(log_mel.samples_of_seconds(120.1), 1921600)
    self.assertEqual(log_mel.samples_of_seconds(1.00009), 16001)
    frames = np.arange(1, 4000)
    samples = log_mel.samples_of_frames(frames)
    for off in (-80, 79):
      np.testing.assert_array_equal(log_mel.num_frames(samples + off), frames)
    np.testing.assert_array_equal(log_mel.num_frames(samples - 81), frames - 1)
    np.testing.assert_array_equal(log_mel.num_frames(samples + 80), frames + 1)

  def test_normalize_by_hand(self):
    # Mean 2.5, variance (2.25 + .25 + .25 + 2.25) / 4 = 1.25.
    features = log_mel.normalize_utterances(
        tf.constant([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]]), tf.constant([2])
    )[0]
    np.testing.assert_array_equal(features[2], [0, 0])
    scale = 1 / np.sqrt(1.25)
    np.testing.assert_allclose(
        features[:2],
        [[-1.5 * scale, -0.5 * scale], [0.5 * scale, 1.5 * scale]],
        rtol=1e-6,
    )

  def test_digital_silence_gives_zeros(self):
    silence = np.zeros(2000, np.int16)
    np.testing.assert_array_equal(_features(silence), np.zeros([11, 80]))
    np.testing.assert_array_equal(
        log_mel.log_mel_numpy(silence), np.zeros([11, 80])
    )

  def test_padding_of_a_batch_does_not_matter(self):
    waveforms = [_noise(100), _noise(1000), _noise(1500)]
    padded = np.full([3, 2000], 12345, np.int16)
    for row, waveform in zip(padded, waveforms):
      row[: len(waveform)] = waveform
    run = tf.function(log_mel.log_mel).get_concrete_function(
        tf.TensorSpec([None, None], tf.int16), tf.TensorSpec([None], tf.int32)
    )
    features, lengths = run(
        tf.constant(padded), tf.constant([len(each) for each in waveforms])
    )
    self.assertEqual(features.shape[2], 80)
    np.testing.assert_array_equal(lengths, [0, 4, 7])
    for row, length, waveform in zip(features, lengths, waveforms):
      np.testing.assert_allclose(
          row[:length], _features(waveform), rtol=1e-5, atol=1e-5
      )
      np.testing.assert_array_equal(row[length:], 0)
