import collections
import functools
import io
import os
import pathlib
import shutil
import struct
import subprocess
import sys
from unittest import mock

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


# Formats without a header, which libsndfile cannot recognise.
_HEADERLESS = ('RAW', 'SD2')
# Formats that have one rate only.
_FIXED_RATES = {'XI': 44_100, 'WVE': 8000}


def _pairs() -> list[tuple[str, str]]:
  """All formats and subtypes that this libsndfile writes and recognises."""
  return [
      (container, subtype)
      for container in soundfile.available_formats()
      if container not in _HEADERLESS
      for subtype in soundfile.available_subtypes(container)
  ]


def _mp3_without_length(samples: np.ndarray, *, mode: str) -> bytes:
  """An MP3 file without its first frame, which states its length."""
  buffer = io.BytesIO()
  with soundfile.SoundFile(
      buffer,
      'w',
      samplerate=16000,
      channels=1,
      format='MP3',
      subtype='MPEG_LAYER_III',
      # Without a level soundfile leaves the mode out.
      compression_level=0.5,
      bitrate_mode=mode,
  ) as f:
    f.write(samples)
  data = buffer.getvalue()
  return data[data.index(data[:2], 10) :]


class AudioTest(cases.TestCase):

  def test_every_format_of_libsndfile_is_read(self):
    tone = _tone(8000)
    written = 0
    for container, subtype in _pairs():
      rate_hz = _FIXED_RATES.get(container, 8000)
      data = io.BytesIO()
      try:
        soundfile.write(
            data, tone, rate_hz, format=container, subtype=subtype
        )
      except soundfile.SoundFileError:
        continue  # It only reads this one.
      written += 1
      with self.subTest(f'{container} {subtype}'):
        found = audio.read(data.getvalue())
        expected = len(tone) * 16000 // rate_hz
        # Some pad to a whole block.
        self.assertBetween(len(found), expected - 2, expected + 2500)
        if container != 'XI':
          spectrum = np.abs(np.fft.rfft(found[:8000].astype(float)))
          self.assertAlmostEqual(
              np.argmax(spectrum) * 16000 / min(8000, len(found)), 440, delta=5
          )
        # Also a part of it, of the formats that cannot seek.
        part = audio.read(
            data.getvalue(), start_sec=0.02, duration_sec=0.05, channels=[0]
        )
        self.assertAlmostEqual(len(part), 800, delta=2)
    self.assertGreater(written, 100)

  def test_mp3_without_its_length_is_read_to_its_end(self):
    tone = _tone(seconds=2)
    data = _mp3_without_length(tone, mode='CONSTANT')
    size = 200_000
    tag = b'ID3\x04\0\0' + struct.pack(
        '4B', *(size >> shift & 127 for shift in (21, 14, 7, 0))
    ) + bytes(size)
    for each in (data, tag + data):
      # Encoders add silence.
      self.assertBetween(len(audio.read(each)), 32_000, 34_000)

  def test_mp3_of_varying_rate_without_its_length_is_not_cut_short(self):
    # libsndfile takes the first frame's rate for that of all.
    loud = np.random.default_rng(0).normal(size=32_000) / 10
    data = _mp3_without_length(
        np.concatenate([_tone(seconds=2) / 2**15, loud]), mode='VARIABLE'
    )
    self.assertLess(len(soundfile.read(io.BytesIO(data))[0]), 32_000)
    with mock.patch.object(shutil, 'which', return_value=None):
      with self.assertRaisesRegex(audio.AudioError, 'varying bit rate'):
        audio.read(data)

  def test_an_mp3_file_may_begin_with_other_bytes(self):
    path = pathlib.Path(self.path('call.mp3'))
    data = _encode(_tone(), container='MP3', subtype='MPEG_LAYER_III')
    path.write_bytes(bytes(417) + data)
    np.testing.assert_array_equal(audio.read(str(path)), audio.read(data))

  def test_raw_gsm_of_telephone_systems_is_read_by_its_suffix(self):
    path = self.path('call.gsm')
    soundfile.write(path, _tone(8000), 8000, format='RAW', subtype='GSM610')
    found = audio.read(path)
    self.assertBetween(len(found), 7998, 9000)
    spectrum = np.abs(np.fft.rfft(found[:8000].astype(float)))
    self.assertAlmostEqual(2 * np.argmax(spectrum), 440, delta=5)

  def test_a_suffix_alone_makes_no_audio(self):
    for name in ('notes.gsm', 'notes.vox', 'notes.au', 'notes.mp3'):
      path = self.path(name)
      pathlib.Path(path).write_bytes(b'no audio at all, ' * 330)
      with self.assertRaisesRegex(audio.AudioError, 'is not readable audio'):
        audio.read(path)

  def test_flac_of_unknown_length_is_read(self):
    data = bytearray(_encode(_tone(), container='FLAC'))
    head = int.from_bytes(data[18:26], 'big')
    data[18:26] = (head >> 36 << 36).to_bytes(8, 'big')
    np.testing.assert_array_equal(audio.read(bytes(data)), _tone())
    part = audio.read(bytes(data), start_sec=0.1, duration_sec=0.2)
    np.testing.assert_array_equal(part, _tone()[1600:4800])
    with self.assertRaisesRegex(audio.AudioError, 'too long .more than 1,600'):
      audio.read(bytes(data), max_sec=0.1)

  @parameterized.parameters(1, 1000, 1001, 3000)
  def test_blocks_of_unknown_length_are_joined(self, count):
    samples = np.arange(1, count + 1, dtype=np.int16)
    data = bytearray(_encode(samples, container='FLAC'))
    head = int.from_bytes(data[18:26], 'big')
    data[18:26] = (head >> 36 << 36).to_bytes(8, 'big')
    with mock.patch.object(audio, '_BLOCK_FRAMES', 1000):
      np.testing.assert_array_equal(audio.read(bytes(data)), samples)

  def test_any_decoder_error_names_the_file(self):
    for error in (RuntimeError('odd'), MemoryError(), TypeError('odd')):
      with mock.patch.object(soundfile.SoundFile, 'read', side_effect=error):
        with self.assertRaisesRegex(audio.AudioError, '^clip: is not readabl'):
          audio.read(_encode(_tone()), name='clip')

  def test_decoders_print_no_messages_without_a_name(self):
    data = _encode(_tone(), container='MP3', subtype='MPEG_LAYER_III')
    path = self.path('clip.mp3')
    pathlib.Path(path).write_bytes(data[:1000] + b'xyz' * 200 + data[1000:])
    program = (
        'import os, sys; from tff_asr.data import audio\n'
        'audio.read(sys.argv[1]); os.write(2, b"own message")'
    )
    done = subprocess.run(
        [sys.executable, '-c', program, path],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        check=True,
    )
    self.assertEqual(done.stderr, b'own message')

  def test_ffmpeg_decodes_what_libsndfile_does_not(self):
    folder = pathlib.Path(self.path('bin'))
    folder.mkdir()
    wav = folder / 'decoded.wav'
    wav.write_bytes(_encode(_tone()))
    program = folder / 'ffmpeg'
    program.write_text(
        f'#!/bin/sh\necho "$@" > {folder}/arguments\ncat {wav}\n'
    )
    program.chmod(0o755)
    path = self.path('call.m4a')
    pathlib.Path(path).write_bytes(b'\0\0\0 ftypM4A ' + bytes(100))
    search = f'{folder}:{os.environ["PATH"]}'
    with mock.patch.dict(os.environ, PATH=search):
      np.testing.assert_array_equal(audio.read(path), _tone())
      arguments = (folder / 'arguments').read_text()
      self.assertIn(f'-i file:{path}', arguments)
      # Playlists, which name other files, are no format of these.
      self.assertIn('-format_whitelist', arguments)
      program.write_text('#!/bin/sh\necho "Invalid data" >&2; exit 1\n')
      with self.assertRaisesRegex(
          audio.AudioError, 'call.m4a: is not readable audio .ffmpeg: Invalid'
      ):
        audio.read(path)
    with mock.patch.dict(os.environ, PATH=''):
      with self.assertRaisesRegex(audio.AudioError, 'install ffmpeg'):
        audio.read(path)

  def test_ffmpeg_itself(self):
    if shutil.which('ffmpeg') is None:
      self.skipTest('ffmpeg is not installed.')
    wav, path = self.path('tone.wav'), self.path('tone.m4a')
    pathlib.Path(wav).write_bytes(_encode(_tone()))
    subprocess.run(['ffmpeg', '-v', 'error', '-i', wav, path], check=True)
    found = audio.read(path)
    self.assertBetween(len(found), 7900, 10_000)
    spectrum = np.abs(np.fft.rfft(found[:8000].astype(float)))
    self.assertAlmostEqual(2 * np.argmax(spectrum), 440, delta=5)
    subprocess.run(
        ['ffmpeg', '-v', 'error', '-i', wav, self.path('whole.webm')], check=True
    )
    data = pathlib.Path(self.path('whole.webm')).read_bytes()
    self.assertBetween(len(audio.read(data)), 7900, 10_000)
    with self.assertRaisesRegex(audio.AudioError, 'is truncated or damaged'):
      audio.read(data[: len(data) * 2 // 3])
    two = self.path('two.m4a')
    subprocess.run(
        ['ffmpeg', '-v', 'error', '-i', wav, '-i', wav, '-map', '0:a', '-map',
         '1:a', two],
        check=True,
    )
    with self.assertRaisesRegex(audio.AudioError, 'is not readable audio'):
      audio.read(two)
    playlist = self.path('list.m4a')
    pathlib.Path(playlist).write_text(f'#EXTM3U\n#EXTINF:1,\n{path}\n')
    with self.assertRaises(audio.AudioError):
      audio.read(playlist)

  @parameterized.parameters(*_pairs())
  def test_a_part_of_any_format_is_that_of_the_whole(self, container, subtype):
    rate_hz = _FIXED_RATES.get(container, 16000)
    # A sweep, of which no two parts are alike.
    t = np.arange(rate_hz) / rate_hz
    sweep = 0.5 * np.sin(2 * np.pi * (300 * t + 400 * t**2))
    path = self.path('clip')
    try:
      soundfile.write(path, sweep, rate_hz, format=container, subtype=subtype)
    except soundfile.SoundFileError:
      self.skipTest('libsndfile only reads it')
    for source in (path, pathlib.Path(path).read_bytes()):
      whole = audio.read(source).astype(float)
      for start_sec in (0.0, 0.55):
        part = audio.read(source, start_sec=start_sec, duration_sec=0.4)
        self.assertAlmostEqual(len(part), 6400, delta=2)
        start = round(16000 * start_sec)
        expected = whole[start : start + len(part)]
        # Codecs that remember, and filters at the edges of resampled parts,
        # differ a little; another place of the sweep has nothing in common.
        similar = np.corrcoef(part[400:6000], expected[400:6000])[0, 1]
        self.assertGreater(similar, 0.9, start_sec)

  @parameterized.parameters('WAV', 'FLAC', 'NIST', 'OGG', 'MP3')
  def test_a_part_is_that_of_the_whole(self, container):
    path = self.path('clip')
    noise = np.random.default_rng(1).normal(size=[48_000, 2]) / 8
    soundfile.write(path, noise, 16000, format=container)
    both, first = audio.read(path), audio.read(path, start_sec=0, channels=[0])
    # An MP3 decoder remembers what it decoded before.
    check = functools.partial(
        np.testing.assert_allclose, rtol=0, atol=int(container == 'MP3')
    )
    check(
        audio.read(path, start_sec=0.75, duration_sec=1.25),
        both[12_000:32_000],
    )
    check(audio.read(path, start_sec=2.5, channels=[0]), first[40_000:])
    self.assertFalse(np.array_equal(first, both))
    # Lists round.
    rounded = audio.read(path, start_sec=0, duration_sec=3.05)
    np.testing.assert_array_equal(rounded, both)
    for start, duration, channels, message in (
        (2, 1.2, None, 'ends before a part of it .3.00 s, the part from 2.00'),
        (4, None, None, 'ends before a part of it'),
        (1, 1, [0, 2], 'has no such channel .2 of 2, counted from 0'),
    ):
      with self.assertRaisesRegex(audio.AudioError, message):
        audio.read(
            path, start_sec=start, duration_sec=duration, channels=channels
        )

  @parameterized.parameters('WAV', 'FLAC', 'NIST', 'AIFF', 'W64')
  def test_sixteen_bit_mono_is_bit_exact_and_not_a_conversion(self, container):
    noise = np.random.default_rng(3).integers(-(2**15), 2**15, 9000)
    noise = noise.astype(np.int16)
    conversions = collections.Counter()
    # The format follows from the content, not from the name.
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

  def test_channels_are_chosen(self):
    waves = np.array([[100, 300, 800]] * 40, np.int16)
    data = _encode(waves)
    for channels, expected in (([0], 100), ([2], 800), ([0, 1], 200)):
      self.assertEqual(audio.read(data, channels=channels)[0], expected)

  def test_a_rate_other_than_stated_is_refused(self):
    data = _encode(_tone(8000), 8000)
    audio.read(data, sample_rate_hz=8000)
    with self.assertRaisesRegex(audio.AudioError, '8000 Hz, not 16000'):
      audio.read(data, sample_rate_hz=16000)

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
    with self.assertRaisesRegex(audio.AudioError, 'x.wav is not a regular file'):
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
