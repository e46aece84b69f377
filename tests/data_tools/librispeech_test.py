import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import soundfile

from data_tools import conversion
from data_tools import librispeech
from tff_asr.data import client_data

_ROOT = pathlib.Path(__file__).parents[2]
_SPEECH = os.environ.get('TFF_ASR_SPEECH', '')
_WITH_SPEECH = unittest.skipUnless(
    _SPEECH, 'TFF_ASR_SPEECH is not set: no real speech to read.'
)


def _write_audio(path: pathlib.Path, **kwargs) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  soundfile.write(path, np.arange(-800, 800, dtype=np.int16), 16000, **kwargs)


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess:
  return subprocess.run(
      [sys.executable, '-m', module, *arguments],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=False,
  )


class LibriSpeechTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.source = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )
    for speaker, chapter, count in ((19, 1, 2), (19, 2, 1), (84, 3, 2)):
      folder = self.source / 'dev' / str(speaker) / str(chapter)
      lines = []
      for i in range(count):
        name = f'{speaker}-{chapter}-{i:04d}'
        _write_audio(folder / f'{name}.{("flac", "wav")[i]}')
        lines.append(f"{name} IT'S WORD {'ABC'[i]}\n")
      (folder / f'{speaker}-{chapter}.trans.txt').write_text(''.join(lines))
    (self.source / 'SPEAKERS.TXT').write_text('19 | F\n')

  def list(self):
    return librispeech.list_utterances(self.source, split='dev')

  def test_lists_utterances(self):
    self.assertEqual(
        [(u.client_id, u.utterance_id, u.transcript) for u in self.list()],
        [
            ('19', '19-1-0000', "it's word a"),
            ('19', '19-1-0001', "it's word b"),
            ('19', '19-2-0000', "it's word a"),
            ('84', '84-3-0000', "it's word a"),
            ('84', '84-3-0001', "it's word b"),
        ],
    )
    self.assertEndsWith(self.list()[1].audio, '19/1/19-1-0001.wav')

  def test_missing_folders(self):
    with self.assertRaisesRegex(ValueError, 'no/where is not a folder'):
      librispeech.list_utterances('no/where', split='dev')
    with self.assertRaisesRegex(ValueError, "no split 'test', but dev;"):
      librispeech.list_utterances(self.source, split='test')

  def test_no_transcripts(self):
    (self.source / 'empty' / '1' / '2').mkdir(parents=True)
    with self.assertRaisesRegex(ValueError, 'empty holds no transcripts'):
      librispeech.list_utterances(self.source, split='empty')

  def test_transcript_without_audio(self):
    (self.source / 'dev/19/2/19-2-0000.flac').unlink()
    with self.assertRaisesRegex(ValueError, '19-2-0000 has a transcript but'):
      self.list()

  def test_audio_without_transcript(self):
    _write_audio(self.source / 'dev/19/2/19-2-0007.flac')
    with self.assertRaisesRegex(ValueError, '19-2-0007.flac has no transcript'):
      self.list()

  def test_two_audio_files_of_one_utterance(self):
    _write_audio(self.source / 'dev/19/2/19-2-0000.wav')
    with self.assertRaisesRegex(ValueError, '19-2-0000.wav: .*keep one'):
      self.list()

  def test_character_outside_the_tokens(self):
    path = self.source / 'dev/19/2/19-2.trans.txt'
    path.write_text('19-2-0000 ROOM 5\n')
    with self.assertRaisesRegex(ValueError, "19-2-0000: .*'5'"):
      self.list()

  def test_transcript_of_another_speaker_or_twice(self):
    path = self.source / 'dev/19/2/19-2.trans.txt'
    path.write_text('20-2-0000 A\n')
    with self.assertRaisesRegex(ValueError, '20-2-0000 is not of speaker 19'):
      self.list()
    path.write_text('19-2-0000 A\n19-2-0000 B\n')
    with self.assertRaisesRegex(ValueError, '19-2-0000 occurs twice'):
      self.list()

  def test_program(self):
    output = self.source / 'out'
    arguments = (
        f'--source_dir={self.source}',
        f'--output_dir={output}',
        '--splits=dev',
    )
    done = _run('data_tools.librispeech', *arguments, '--encoding=flac')
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(done.stderr, '')
    self.assertStartsWith(done.stdout, 'dev: 2 speakers, 5 utterances')
    self.assertEqual(client_data.load(output / 'dev').corpus.encoding, 'flac')
    with open(self.source / 'dev/19/1/19-1-0000.flac', 'r+b') as f:
      f.truncate(200)
    done = _run('data_tools.librispeech', *arguments, '--overwrite')
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stderr, r'\Aerror: .*19-1-0000.flac: is .*\n\Z')

  def test_help_is_short_and_has_an_example(self):
    done = _run('data_tools.librispeech', '--help')
    self.assertIn('python -m data_tools.librispeech --source_dir', done.stdout)
    self.assertLess(done.stdout.count('\n'), 45)

  @_WITH_SPEECH
  def test_real_dev_clean(self):
    utterances = librispeech.list_utterances(
        os.path.join(_SPEECH, 'LibriSpeech'), split='dev-clean'
    )
    self.assertLen(utterances, 1313)
    speakers = {u.client_id for u in utterances}
    self.assertLen(speakers, 20)
    output = self.source / 'out'
    summaries = conversion.convert(
        lambda *_, **__: [u for u in utterances if u.client_id == '84'],
        corpus='LibriSpeech',
        source_dir='',
        output_dir=output,
        splits=['dev-clean'],
    )
    data = client_data.load(output / 'dev-clean')
    self.assertEqual(
        data.num_utterances('84'), summaries['dev-clean']['num_utterances']
    )
    element = next(iter(data.create_tf_dataset_for_client('84')))
    path = next(u.audio for u in utterances if u.client_id == '84')
    expected, _ = soundfile.read(path)
    np.testing.assert_allclose(
        element['waveform'].numpy() / 2**15, expected, atol=2e-5
    )


if __name__ == '__main__':
  absltest.main()
