"""Tests of tff_asr.features.waveform_augment."""

import fractions

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.features import resampling
from tff_asr.features import waveform_augment

_OFF = dict(speeds=(1.0,), reverb_prob=0.0, noise_prob=0.0)
_SEED = (3, 4)


def _waveforms(*sizes: int, pad: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """Utterances of noise, and 77 in place of silence after them."""
  waveforms = np.full([len(sizes), max(sizes) + pad], 77, np.int16)
  for i, (row, size) in enumerate(zip(waveforms, sizes)):
    row[:size] = 2000 * np.random.default_rng(i).normal(size=size)
  return waveforms, np.array(sizes, np.int32)


def _augment(waveforms, num_samples, seed=_SEED, **changes):
  augment = waveform_augment.build(**_OFF | changes)
  found = augment(tf.constant(waveforms), tf.constant(num_samples), seed)
  return [each.numpy() for each in found]


class WaveformAugmentTest(parameterized.TestCase):

  def test_without_any_change_samples_are_the_same(self):
    waveforms, sizes = _waveforms(500, 900)
    found, lengths = _augment(waveforms, sizes)
    np.testing.assert_array_equal(lengths, sizes)
    np.testing.assert_array_equal(found[0, :500], waveforms[0, :500])
    np.testing.assert_array_equal(found[1], waveforms[1])
    self.assertFalse(np.any(found[0, 500:]))

  def test_each_speed_is_as_frequent(self):
    waveforms, sizes = np.ones([600, 90], np.int16), np.full(600, 90, np.int32)
    _, lengths = _augment(waveforms, sizes, speeds=(0.9, 1.0, 1.1))
    values, counts = np.unique(lengths, return_counts=True)
    # 90 / 1.1 = 81.8
    self.assertEqual(values.tolist(), [82, 90, 100])
    # 200 each, with a standard deviation of 11.5.
    self.assertBetween(min(counts), 150, 250)

  def test_speed_is_that_of_resampling(self):
    waveforms, sizes = _waveforms(700)
    found, (length,) = _augment(waveforms, sizes, speeds=(0.9,))
    expected = resampling.resample(
        tf.constant(waveforms[0, :700], tf.float32),
        speed=fractions.Fraction(9, 10),
    ).numpy()
    self.assertEqual(length, 778)
    np.testing.assert_allclose(found[0], expected, atol=0.51)

  def test_reverberation_is_a_convolution_that_keeps_energy(self):
    samples = np.random.default_rng(1).normal(size=3000).astype(np.float32)
    impulse = np.zeros(3000, np.float32)
    impulse[0] = 1
    reverberate = lambda x: waveform_augment._reverberate(
        tf.constant(x), tf.constant(_SEED), rt60_sec=(0.05, 0.1),
        ratio_db=(0.0, 10.0),
    ).numpy()
    response = reverberate(impulse)
    expected = np.convolve(samples, response)[: len(samples)]
    expected *= np.linalg.norm(samples) / np.linalg.norm(expected)
    np.testing.assert_allclose(reverberate(samples), expected, atol=1e-3)

  def test_the_tail_decays_by_60_db_in_rt60(self):
    impulse = np.zeros(9000, np.float32)
    impulse[0] = 1
    decays, ratios = [], []
    for seed in range(30):
      response = waveform_augment._reverberate(
          tf.constant(impulse), tf.constant([seed, 1]), rt60_sec=(0.5, 0.5),
          ratio_db=(6.0, 6.0),
      ).numpy()
      # Energy of the first and of the fifth tenth of a second.
      early, late = (
          np.sum(np.square(response[start : start + 1600]))
          for start in (1, 6401)
      )
      decays.append(10 * np.log10(early / late))
      ratios.append(
          10 * np.log10(response[0] ** 2 / np.sum(np.square(response[1:])))
      )
    # 0.4 of 0.5 s: 48 dB.
    self.assertBetween(np.mean(decays), 47, 49)
    np.testing.assert_allclose(ratios, 6, atol=0.01)

  def test_noise_has_the_ratio_and_another_spectrum_each_time(self):
    samples = np.random.default_rng(1).normal(size=8000).astype(np.float32)
    tilts = []
    for seed in range(20):
      noise = waveform_augment._add_noise(
          tf.constant(samples), tf.constant([seed, 1]), snr_db=(20.0, 20.0)
      ).numpy() - samples
      self.assertAlmostEqual(
          np.sum(np.square(noise)) / np.sum(np.square(samples)), 0.01, places=4
      )
      power = np.square(np.abs(np.fft.rfft(noise)))
      tilts.append(np.sum(power[:2000]) / np.sum(power))
    self.assertGreater(max(tilts) - min(tilts), 0.2)

  def test_draws_follow_the_seed_and_differ_by_row(self):
    settings = dict(speeds=(0.9, 1.0, 1.1), reverb_prob=0.5, noise_prob=0.5)
    waveforms, sizes = _waveforms(4000, 4000, 4000, 4000)
    waveforms[:] = waveforms[0]
    first, lengths = _augment(waveforms, sizes, **settings)
    again, _ = _augment(waveforms, sizes, **settings)
    np.testing.assert_array_equal(first, again)
    other, _ = _augment(waveforms, sizes, seed=(3, 5), **settings)
    self.assertFalse(np.array_equal(first, other))
    self.assertGreater(len({row.tobytes() for row in first}), 2)
    padded, padded_lengths = _augment(
        *_waveforms(4000, pad=999), **settings
    )
    alone, alone_lengths = _augment(*_waveforms(4000), **settings)
    self.assertEqual(padded_lengths[0], alone_lengths[0])
    self.assertEqual(alone_lengths[0], lengths[0])
    np.testing.assert_array_equal(
        padded[0, : lengths[0]], alone[0, : lengths[0]]
    )

  def test_probabilities_are_those_of_utterances(self):
    waveforms, sizes = np.full([400, 50], 999, np.int16), np.full(400, 50)
    for name in ('reverb_prob', 'noise_prob'):
      found, _ = _augment(
          waveforms, sizes.astype(np.int32), **{name: 0.25}
      )
      changed = np.any(found != waveforms, axis=1).mean()
      # 0.25, with a standard deviation of 0.022.
      self.assertBetween(changed, 0.15, 0.35)

  def test_loud_and_empty_utterances(self):
    waveforms = np.full([2, 400], 32767, np.int16)
    found, lengths = _augment(
        waveforms, np.array([400, 0], np.int32), noise_prob=1.0,
        snr_db=(0.0, 0.0),
    )
    self.assertEqual(lengths.tolist(), [400, 0])
    # Saturates, and does not wrap around, where the noise is positive.
    self.assertGreater(np.sum(found[0] == 32767), 100)
    _, lengths = _augment(
        waveforms, np.array([400, 0], np.int32), reverb_prob=1.0, speeds=(1.1,)
    )
    self.assertEqual(lengths.tolist(), [364, 0])

  @parameterized.named_parameters(
      ('none', dict(speeds=()), 'speeds must have at least one'),
      ('speed', dict(speeds=(1.0, 3.0)), r'speeds\[1\]'),
      ('prob', dict(noise_prob=1.5), 'noise_prob'),
      ('order', dict(snr_db=(9.0, 1.0)), 'snr_db must be a smallest and a'),
      ('time', dict(rt60_sec=(0.0, 1.0)), 'rt60_sec'),
      ('nan', dict(direct_to_reverb_db=(0.0, float('nan'))), 'direct_to_rev'),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      waveform_augment.build(**changes)


if __name__ == '__main__':
  absltest.main()
