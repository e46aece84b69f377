"""Tests of tff_asr.features.front_end."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import cases
from tests import front_ends
from tff_asr.features import front_end
from tff_asr.features import log_mel
from tff_asr.features import whisper_log_mel

_BUILT = (
    ('log_mel', front_end.build_log_mel(), log_mel.num_frames),
    (
        'whisper', front_end.build_whisper_log_mel(num_mel_bins=8),
        whisper_log_mel.num_frames,
    ),
)


class FrontEndTest(cases.TestCase):

  @parameterized.named_parameters(*_BUILT)
  def test_lengths_are_the_modules_own(self, built, num_frames):
    samples = np.arange(5000)
    expected = num_frames(samples)
    np.testing.assert_array_equal(built.num_frames(samples), expected)
    np.testing.assert_array_equal(
        built.num_frames(tf.constant(samples)), expected
    )
    self.assertEqual(
        [built.num_frames(n) for n in range(900)], [*expected[:900]]
    )

  def test_frames_and_samples_are_log_mel_s(self):
    built = front_end.build_log_mel()
    for frames in range(1, 50):
      self.assertEqual(
          built.samples_of_frames(frames), log_mel.samples_of_frames(frames)
      )
    for seconds in (0.01, 0.1, 0.29, 1.0, 8.2, 20.0, 35.0):
      self.assertEqual(
          built.frames_of_seconds(seconds), log_mel.frames_of_seconds(seconds)
      )
    self.assertEqual(built.frame_shift_sec, log_mel.FRAME_SHIFT_SEC)

  @parameterized.named_parameters(*_BUILT)
  def test_samples_of_frames_have_so_many_frames(self, built, num_frames):
    del num_frames
    frames = np.arange(1, 100)
    np.testing.assert_array_equal(
        built.num_frames(built.samples_of_frames(frames)), frames
    )

  @parameterized.named_parameters(*_BUILT)
  def test_features_have_their_sizes(self, built, num_frames):
    lengths = [4000, 700, 0]
    waveforms = tf.ones([3, 4000], tf.int16)
    features, found = built.features(waveforms, tf.constant(lengths))
    self.assertEqual(
        features.shape, [3, num_frames(4000), built.feature_dim]
    )
    np.testing.assert_array_equal(found, [num_frames(n) for n in lengths])

  def test_weights_are_from_files_or_given(self):
    built = front_ends.build(self.root)
    waveforms, lengths = tf.fill([1, 800], 512), tf.constant([800])
    features, _ = built.features(waveforms, lengths)
    np.testing.assert_array_equal(features, [[[1, 2, 3, 4]] * 2])
    given = {'weights': tf.constant([5.0])}
    features, _ = built.features(waveforms, lengths, tensors=given)
    np.testing.assert_array_equal(features, [[[5]] * 2])

  def test_utterances_that_are_too_long_are_refused(self):
    built = front_ends.build(self.root)
    built.check_duration(30.0, of='x')
    with self.assertRaisesRegex(ValueError, 'x is 31 s.* at most 30 s'):
      built.check_duration(31.0, of='x')

  def test_bad_sizes_are_named(self):
    good = dict(
        identity='x', feature_dim=4, frame_shift=2, window=3, compute=print
    )
    for bad in (
        dict(feature_dim=0), dict(frame_shift=0), dict(window=-1),
        dict(num_layers=0), dict(num_layers=3), dict(placeholder_frames=0),
    ):
      (name,) = bad
      with self.assertRaisesRegex(ValueError, name):
        front_end.FrontEnd(**good | bad)
    with self.assertRaisesRegex(ValueError, 'num_mel_bins'):
      front_end.build_whisper_log_mel(num_mel_bins=0)


if __name__ == '__main__':
  absltest.main()
