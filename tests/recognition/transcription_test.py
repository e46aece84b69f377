"""Tests of tff_asr.recognition.transcription."""

import contextlib
import functools
import io
import json
import os
import pathlib

import numpy as np
import soundfile

from tests import cases
from tff_asr.recognition import recognizer as recognizer_lib
from tff_asr.recognition import transcription


def _recognizer(waveforms):
  """Hears a word a second: its number."""
  for name, waveform in waveforms:
    seconds = len(waveform) / 16000
    words = [
        recognizer_lib.Word(f'w{i}', i + 0.25, i + 0.75, 0.5)
        for i in range(int(seconds))
    ]
    text = ' '.join(word.text for word in words)
    yield recognizer_lib.Recognition(
        name, seconds, text, words, [recognizer_lib.Alternative(text, -1.0)]
    )


class TranscriptionTest(cases.TestCase):

  def audio(self, name: str, seconds: float = 1.0, rate_hz: int = 16000) -> str:
    path = self.path(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    soundfile.write(path, np.zeros(int(seconds * rate_hz)), rate_hz)
    return path

  def transcribe(self, *paths: str, **options):
    return transcription.transcribe(
        paths, recognizer=_recognizer, **options
    )

  def test_lines_of_several_files_begin_with_their_paths(self):
    one, two = self.audio('one.wav'), self.audio('two.flac', 2.0, 44100)
    self.assertEqual(self.transcribe(one), 'w0\n')
    self.assertEqual(
        self.transcribe(two, one), f'{two}\tw0 w1\n{one}\tw0\n'
    )

  def stereo(self, name: str) -> str:
    """A call: the left person speaks 1 s, the right one says nothing."""
    path = self.path(name)
    samples = np.zeros([16000, 2])
    samples[:, 0] = 0.5
    soundfile.write(path, samples, 16000)
    return path

  def peaks(self, *paths: str, **options) -> tuple[dict[str, int], str]:
    """The largest sample of each waveform that is decoded, and stderr."""
    found = {}

    def recognizer(waveforms):
      for name, waveform in waveforms:
        found[name] = int(waveform.max())
        yield from _recognizer([(name, waveform)])

    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
      transcription.transcribe(paths, recognizer=recognizer, **options)
    return found, stderr.getvalue()

  def test_channels_are_averaged_with_a_line_or_taken_apart(self):
    call, mono = self.stereo('call.wav'), self.audio('mono.wav')
    found, told = self.peaks(call, mono)
    self.assertEqual(found, {call: 2**13, mono: 0})
    self.assertRegex(
        told, r'The channels of 1 files were averaged; .*--channel=0, 1 or each'
    )
    for channel, peak in (('0', 2**14), ('1', 0)):
      found, told = self.peaks(call, channel=channel)
      self.assertEqual(found, {call: peak})
      self.assertNotIn('averaged', told)
    found, told = self.peaks(call, mono, channel='each')
    self.assertEqual(found, {
        f'{call}-channel-0': 2**14, f'{call}-channel-1': 0,
        f'{mono}-channel-0': 0,
    })
    self.assertNotIn('averaged', told)
    self.transcribe(
        call, channel='each', output_format='srt', output_dir=self.path('out')
    )
    self.assertCountEqual(
        os.listdir(self.path('out')),
        ['call-channel-0.srt', 'call-channel-1.srt'],
    )

  def test_bad_channels(self):
    call = self.stereo('call.wav')
    for channel in ('both', '-1', '1.0'):
      with self.assertRaisesRegex(ValueError, 'channel must be a number from'):
        self.transcribe(call, channel=channel)
    with self.assertRaisesRegex(ValueError, 'an SRT: give --output_dir'):
      self.transcribe(call, channel='each', output_format='srt')
    with self.assertRaisesRegex(
        transcription.UnreadableError, r'no such channel \(2 of 2, counted'
    ):
      self.transcribe(call, channel='2')
    pathlib.Path(call).write_bytes(b'no audio')
    with self.assertRaisesRegex(transcription.UnreadableError, 'call.wav'):
      self.transcribe(call, channel='each')

  def test_files_with_an_ending_of_audio_in_folders_are_transcribed(self):
    paths = [
        self.audio(name)
        for name in (
            'd/a.wav', 'd/e/b.FLAC', 'd/e/c.mp3', 'd/f.caf', 'd/g.au',
            'd/h.w64',
        )
    ]
    gsm = self.path('d', 'call.gsm')
    soundfile.write(
        gsm, np.zeros(8000), 8000, format='WAV', subtype='GSM610'
    )
    for name in ('a.txt', 'notes.txt', '.DS_Store', '._a.wav'):
      pathlib.Path(self.path('d', name)).write_text('no audio')
    text = self.transcribe(self.path('d'))
    found = [line.split('\t')[0] for line in text.splitlines()]
    self.assertEqual(found, sorted([*paths, gsm]))
    output_dir = self.path('out')
    self.transcribe(self.path('d'), output_dir=output_dir)
    self.assertIn('call.txt', os.listdir(output_dir))

  def test_audio_in_folders_that_cannot_be_read_is_an_error(self):
    self.audio('d/a.wav')
    for name in ('b.m4a', 'c.w64'):
      pathlib.Path(self.path('d', name)).write_bytes(b'broken')
    with self.assertRaises(transcription.UnreadableError) as caught:
      self.transcribe(self.path('d'))
    self.assertRegex(
        ' '.join(caught.exception.args), r'(?s)b\.m4a: .*c\.w64: '
    )

  def test_json_has_words_and_times(self):
    path = self.audio('one.wav', 1.5)
    self.assertEqual(
        json.loads(self.transcribe(path, output_format='json')),
        [{
            'file': path, 'seconds': 1.5, 'text': 'w0',
            'words': [{
                'text': 'w0', 'start_sec': 0.25, 'end_sec': 0.75,
                'confidence': 0.5,
            }],
        }],
    )

  def test_json_has_alternatives_if_there_are_several(self):
    recognition = recognizer_lib.Recognition(
        'x', 1.0, 'a', [],
        [
            recognizer_lib.Alternative('a', -1.0),
            recognizer_lib.Alternative('b', -2.5),
        ],
    )
    (found,) = json.loads(
        transcription.render([recognition], output_format='json')
    )
    self.assertEqual(
        found['alternatives'],
        [{'text': 'a', 'score': -1.0}, {'text': 'b', 'score': -2.5}],
    )

  def test_srt_by_hand(self):
    # A word a second from .25 to .75: the seventh would make 6.5 seconds.
    path = self.audio('one.wav', 7.0)
    self.assertEqual(
        self.transcribe(path, output_format='srt'),
        '1\n00:00:00,250 --> 00:00:05,750\nw0 w1 w2 w3 w4 w5\n\n'
        '2\n00:00:06,250 --> 00:00:06,750\nw6\n',
    )

  def test_subtitles_end_at_pauses_and_before_they_are_too_wide(self):
    word = functools.partial(recognizer_lib.Word, confidence=1.0)
    for words, cues in (
        ([word('a', 0, 1), word('b', 1.7, 2)], 1),
        ([word('a', 0, 1), word('b', 1.9, 2)], 2),
        ([word('a' * 40, 0, 1), word('b' * 39, 1, 2)], 1),
        ([word('a' * 40, 0, 1), word('b' * 40, 1, 2)], 2),
        ([], 0),
    ):
      recognition = recognizer_lib.Recognition('x', 3.0, '', words, [])
      text = transcription.render([recognition], output_format='srt')
      self.assertEqual(text.count(' --> '), cues)
    recognition = recognition._replace(words=[word('a', 3599.9996, 3723.4)])
    self.assertIn(
        '01:00:00,000 --> 01:02:03,400',
        transcription.render([recognition], output_format='srt'),
    )

  def test_an_output_folder_has_one_file_per_recording(self):
    self.audio('d/a.wav')
    self.audio('d/e/b.flac', 2.0)
    output_dir = self.path('out')
    folder = self.path('d')
    self.assertIsNone(self.transcribe(folder, output_dir=output_dir))
    for name, words in (('a.txt', 'w0\n'), ('e/b.txt', 'w0 w1\n')):
      with open(os.path.join(output_dir, name), encoding='utf-8') as f:
        self.assertEqual(f.read(), words)

  def test_unreadable_files_are_named_after_the_others_are_done(self):
    good = self.audio('good.wav')
    bad = self.path('bad.wav')
    pathlib.Path(bad).write_bytes(b'RIFF')
    with self.assertRaisesRegex(
        transcription.UnreadableError, 'bad.wav: is not readable audio'
    ) as caught:
      self.transcribe(bad, good)
    self.assertEqual(caught.exception.text, f'{good}\tw0\n')

  def test_bad_arguments(self):
    one, two = self.audio('one.wav'), self.audio('d/one.flac')
    empty, notes, out = (
        self.path(name) for name in ('empty', 'notes', 'out')
    )
    os.mkdir(empty)
    os.mkdir(notes)
    pathlib.Path(notes, 'a.txt').write_text('no audio')
    for paths, options, message in (
        ([empty], {}, 'empty contains no audio file'),
        ([notes], {}, 'notes contains no audio file'),
        (['nowhere.wav'], {}, 'nowhere.wav does not exist'),
        ([one, one], {}, 'one.wav is given more than once'),
        ([one], {'output_format': 'vtt'}, 'output_format'),
        ([one, two], {'output_format': 'srt'}, 'each file and channel needs'),
        ([one, two], {'output_dir': out}, 'would both be written as one'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.transcribe(*paths, **options)
    self.assertFalse(os.path.exists(out))
