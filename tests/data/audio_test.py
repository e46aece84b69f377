import collections
import functools
import io
import os
import pathlib

from absl.testing import parameterized
import numpy as np
import soundfile

from tests import cases
from tff_asr.data import audio


def _tone(rate_hz: int = 16000, seconds: float = 0.5) -> np.ndarray:
  """A 440 Hz tone of amplitude 8000."""
  t = np.arange(int(rate_hz * seconds)) / rate_hz
  return np.rint(8000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16)


def _encode(
    samples, rate_hz=16000, *, container='WAV', subtype='PCM_16'
) -> bytes:
  buffer = io.BytesIO()
  soundfile.write(buffer, samples, rate_hz, format=container, subtype=subtype)
  return buffer.getvalue()


class AudioTest(cases.TestCase):

  @parameterized.parameters('WAV', 'FLAC', 'NIST', 'OGG', 'MP3')
  def test_a_part_is_that_of_the_whole(self, container):
    path = self.path('clip')
    noise = np.random.default_rng(1).normal(size=[48_000, 2]) / 8
    soundfile.write(path, noise, 16000, format=container)
    both, first = audio.read(path), audio.read(path, start_sec=0, channel=0)
    # An MP3 decoder remembers what it decoded before.
    check = functools.partial(
        np.testing.assert_allclose, rtol=0, atol=int(container == 'MP3')
    )
    check(
        audio.read(path, start_sec=0.75, duration_sec=1.25),
        both[12_000:32_000],
    )
    check(audio.read(path, start_sec=2.5, channel=0), first[40_000:])
    self.assertFalse(np.array_equal(first, both))
    # Lists round.
    rounded = audio.read(path, start_sec=0, duration_sec=3.05)
    np.testing.assert_array_equal(rounded, both)
    for start, duration, channel, message in (
        (2, 1.2, None, 'ends before a part of it .3.00 s, the part from 2.00'),
        (4, None, None, 'ends before a part of it'),
        (1, 1, 2, 'has no such channel .2 of 2'),
    ):
      with self.assertRaisesRegex(audio.AudioError, message):
        audio.read(
            path, start_sec=start, duration_sec=duration, channel=channel
        )

  @parameterized.parameters('WAV', 'FLAC', 'NIST', 'AIFF', 'W64')
  def test_sixteen_bit_mono_is_bit_exact_and_not_told(self, container):
    noise = np.random.default_rng(3).integers(-(2**15), 2**15, 9000)
    noise = noise.astype(np.int16)
    conversions = collections.Counter()
    # Content and not the name tells the format.
    path = self.path('clip.ogg')
    pathlib.Path(path).write_bytes(_encode(noise, container=container))
    found = audio.read(path, conversions=conversions)
    self.assertEqual(found.dtype, np.int16)
    np.testing.assert_array_equal(found, noise)
    self.assertEmpty(conversions)

  @parameterized.parameters(8000, 22050, 44100, 48000)
  def test_other_rates_are_resampled(self, rate_hz):
    conversions = collections.Counter()
    found = audio.read(
        _encode(_tone(rate_hz), rate_hz), conversions=conversions
    )
    self.assertLen(found, 8000)
    inside = slice(500, -500)
    # 1 % of the amplitude of 8000.
    np.testing.assert_allclose(found[inside], _tone()[inside], atol=80)
    # Each kind of conversion is counted for itself.
    for rate_hz_2 in (16000, 32000, rate_hz):
      audio.read(_encode(_tone(rate_hz_2), rate_hz_2), conversions=conversions)
    self.assertEqual(
        conversions,
        {
            f'files of {rate_hz} Hz were resampled to 16000 Hz': 2,
            'files of 32000 Hz were resampled to 16000 Hz': 1,
        },
    )

  @parameterized.parameters(22050, 44100, 48000)
  def test_tones_above_the_new_nyquist_vanish_and_those_below_stay(self, rate):
    t = np.arange(rate // 2) / rate
    for hertz, amplitude in (
        (100, 8000), (3000, 8000), (7000, 8000),
        # These would come back as tones of 16000 Hz less theirs.
        (8800, 0), (9500, 0), (10500, 0),
    ):
      tone = np.rint(8000 * np.sin(2 * np.pi * hertz * t)).astype(np.int16)
      inside = audio.read(_encode(tone, rate))[500:-500].astype(np.float64)
      # A tone's root mean square is its amplitude over sqrt(2).
      self.assertAlmostEqual(
          np.sqrt(2 * np.mean(inside**2)), amplitude, delta=40, msg=f'{hertz}'
      )

  def test_channels_are_averaged(self):
    left = np.array([100, -101, 2**15 - 1, -(2**15)] * 10, np.int16)
    right = np.array([300, -100, 2**15 - 1, -(2**15)] * 10, np.int16)
    conversions = collections.Counter()
    found = audio.read(
        _encode(np.stack([left, right], 1)), conversions=conversions
    )
    # Halves go to the even neighbour: -100.5 to -100.
    self.assertEqual(found[:4].tolist(), [200, -100, 2**15 - 1, -(2**15)])
    self.assertEqual(
        conversions, {'files of 2 channels were averaged to one': 1}
    )
    three = np.stack([left, right, right + 2], 1)[:2]
    # (100 + 300 + 302) / 3 = 234, (-101 - 100 - 98) / 3 = -99.67.
    self.assertEqual(audio.read(_encode(three)).tolist(), [234, -100])

  def test_floats_are_rounded_and_clipped(self):
    samples = np.array([0, 0.5, -1, 1, 2, -2], np.float32)
    found = audio.read(_encode(samples, subtype='FLOAT'))
    self.assertEqual(
        found.tolist(), [0, 2**14, -(2**15), 32767, 32767, -(2**15)]
    )
    samples = np.array([1.4, 1.6, -1.4, -1.6], np.float32) / 2**15
    found = audio.read(_encode(samples, subtype='FLOAT'))
    self.assertEqual(found.tolist(), [1, 2, -1, -2])

  def test_mp3_and_ogg_keep_their_length_and_sound(self):
    for container, subtype in (('MP3', 'MPEG_LAYER_III'), ('OGG', 'VORBIS')):
      found = audio.read(_encode(_tone(), container=container, subtype=subtype))
      self.assertLen(found, 8000)
      self.assertGreater(np.corrcoef(found, _tone())[0, 1], 0.99, container)

  @parameterized.parameters(
      ('WAV', 'PCM_16'),
      ('WAV', 'FLOAT'),
      ('FLAC', 'PCM_16'),
      ('NIST', 'PCM_16'),
      ('AIFF', 'PCM_16'),
      ('OGG', 'VORBIS'),
      ('MP3', 'MPEG_LAYER_III'),
  )
  def test_truncated_file_is_named(self, container, subtype):
    noise = np.random.default_rng(3).normal(scale=0.1, size=32000)
    data = _encode(noise, container=container, subtype=subtype)
    for share in (0.03, 0.5, 0.8):
      with self.assertRaisesRegex(audio.AudioError, '^some/clip: '):
        audio.read(data[: int(len(data) * share)], name='some/clip')
    if subtype == 'PCM_16' and container != 'FLAC':
      with self.assertRaisesRegex(audio.AudioError, 'clip: is truncated'):
        audio.read(data[:-2], name='clip')  # A single sample.

  def test_a_header_that_claims_any_length_takes_no_memory(self):
    # 36 bits of FLAC's header: 2^36 - 1 samples are 128 GiB of int16.
    data = bytearray(_encode(_tone(), container='FLAC'))
    head = int.from_bytes(data[18:26], 'big')
    data[18:26] = (head | 2**36 - 1).to_bytes(8, 'big')
    with self.assertRaisesRegex(audio.AudioError, 'x: is too long .68,719'):
      audio.read(bytes(data), name='x')

  def test_a_low_rate_takes_no_memory(self):
    # 40,000 samples at 1 Hz are 11 hours: 640 million samples at 16 kHz.
    with self.assertRaisesRegex(audio.AudioError, 'x: is too long .40,000 sam'):
      audio.read(_encode(np.zeros(40_000, np.int16), 1), name='x')

  def test_a_shorter_limit_is_of_seconds_and_of_all_samples(self):
    data = _encode(_tone())
    seconds = len(_tone()) / 16000
    audio.read(data, max_sec=seconds)
    with self.assertRaisesRegex(audio.AudioError, 'is too long'):
      audio.read(data, max_sec=0.9 * seconds)
    # Under a tenth of the limit, but at a rate that no microphone has.
    with self.assertRaisesRegex(audio.AudioError, 'is too long'):
      audio.read(_encode(np.zeros(50_000, np.int16), 10**6), max_sec=0.1)
    # 2.01 * 16000 is below 32160 in floating point.
    audio.read(_encode(np.zeros(32_160, np.int16)), max_sec=2.01)

  def test_a_pipe_is_refused_and_not_waited_for(self):
    path = self.path('x.wav')
    os.mkfifo(path)
    with self.assertRaisesRegex(audio.AudioError, 'x.wav is no plain file'):
      audio.read(path)

  def test_wav_of_unknown_length_is_read(self):
    data = bytearray(_encode(_tone()))
    data[4:8] = data[40:44] = b'\xff\xff\xff\xff'
    np.testing.assert_array_equal(audio.read(bytes(data)), _tone())

  @parameterized.named_parameters(
      ('empty', b'', 'is empty'),
      ('text', b'not audio at all' * 100, 'is not readable audio'),
      ('no_samples', _encode(np.zeros(0, np.int16)), 'has no samples'),
      (
          'not_finite',
          _encode(np.array([0, np.nan], np.float32), subtype='FLOAT'),
          'has samples that are not finite',
      ),
  )
  def test_unusable_file_is_named(self, data, reason):
    with self.assertRaisesRegex(audio.AudioError, f'^clip: {reason}') as caught:
      audio.read(data, name='clip')
    self.assertEqual(caught.exception.reason, reason)
    self.assertNotIn('\n', str(caught.exception))
    with self.assertRaisesRegex(audio.AudioError, 'no/such.wav: cannot be op'):
      audio.read('no/such.wav')
