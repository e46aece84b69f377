import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import soundfile

from data_tools import conversion
from data_tools import librispeech
from tests.bin import in_process
from tff_asr.data import client_data

_ROOT = pathlib.Path(__file__).parents[2]


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
    (self.source / 'SPEAKERS.TXT').write_bytes(
        b'; A comment | M | of no speaker\n\n;ID |SEX|...\n'
        b'14   | F | train-clean-360  | 25.03 | Of another split\n'
        b'19   | F | dev  | 25.19 | Jos\xe9 | with (a name)\n'
        b'84|M|dev| 30.07\n'
    )

  def list(self):
    listing = librispeech.list_utterances(self.source, split='dev')
    self.assertEmpty(listing.problems)
    return listing.utterances

  def check_problem(self, utterance_id, reason, detail, num_left=4):
    listing = librispeech.list_utterances(self.source, split='dev')
    listed, (problem,) = listing.utterances, listing.problems
    self.assertLen(listed, num_left)
    self.assertEqual(problem.client_id, '19')
    self.assertEqual(problem.utterance_id, utterance_id)
    self.assertEqual(problem.reason, reason)
    self.assertRegex(problem.detail, detail)

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

  def test_genders_are_those_of_the_table_of_speakers(self):
    listing = librispeech.list_utterances(self.source, split='dev')
    self.assertEqual(
        listing.attributes,
        {'gender': {'14': {'female'}, '19': {'female'}, '84': {'male'}}},
    )
    (self.source / 'SPEAKERS.TXT').write_text('19 | F\n84 | |\n')
    listing = librispeech.list_utterances(self.source, split='dev')
    self.assertEqual(listing.attributes, {'gender': {'19': {'female'}}})
    self.assertEmpty(listing.problems)
    (self.source / 'SPEAKERS.TXT').unlink()
    listing = librispeech.list_utterances(self.source, split='dev')
    self.assertEmpty(listing.attributes)

  def test_line_of_the_table_of_speakers_that_cannot_be_read(self):
    path = self.source / 'SPEAKERS.TXT'
    for line in ('84, M', '84 | dev | M'):
      path.write_text(f'19 | F\n{line}\n')
      listing = librispeech.list_utterances(self.source, split='dev')
      self.assertLen(listing.utterances, 5)
      self.assertEqual(listing.attributes, {'gender': {'19': {'female'}}})
      (problem,) = listing.problems
      self.assertEqual(problem[:3], (
          '', 'line 2', 'has a line that cannot be read'
      ))
      self.assertRegex(problem.detail, 'SPEAKERS.TXT, line 2: must begin as')

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
    self.check_problem(
        '19-2-0000', 'has no audio file', '19-2-0000 has a transcript but'
    )

  def test_audio_without_transcript(self):
    _write_audio(self.source / 'dev/19/2/19-2-0007.flac')
    self.check_problem(
        '19-2-0007', 'has no transcript', '7.flac has no transcript', 5
    )

  def test_two_audio_files_of_one_utterance(self):
    _write_audio(self.source / 'dev/19/2/19-2-0000.wav')
    self.check_problem(
        '19-2-0000', 'has two audio files', '0.wav: 19-2-0000.flac beside', 5
    )

  def test_character_outside_the_tokens(self):
    path = self.source / 'dev/19/2/19-2.trans.txt'
    path.write_text('19-2-0000 ROOM 5\n')
    self.check_problem(
        '19-2-0000', 'has characters outside the tokens', "19-2-0000: .*'5'"
    )

  def test_transcript_of_another_speaker_or_twice(self):
    path = self.source / 'dev/19/2/19-2.trans.txt'
    path.write_text('19-2-0000 A\n20-2-0000 A\n')
    self.check_problem(
        '20-2-0000', 'is not of speaker', 'is not of speaker 19', 5
    )
    path.write_text('19-2-0000 A\n19-2-0000 B\n')
    self.check_problem('19-2-0000', 'occurs twice', '0 occurs twice', 5)

  def test_program(self):
    output = self.source / 'out'
    arguments = (
        f'--source_dir={self.source}',
        f'--output_dir={output}',
        '--splits=dev',
    )
    done = in_process.run(
        'data_tools.librispeech', *arguments, '--encoding=flac'
    )
    self.assertEqual((done.code, done.stderr), (0, ''))
    self.assertRegex(done.stdout, r'\| dev +\| +0.00 \| +5 \| +2 \|')
    self.assertEqual(client_data.load(output / 'dev').corpus.encoding, 'flac')
    self.assertEqual(
        (output / 'dev/speakers.tsv').read_text(),
        'client_id\tgender\n19\tfemale\n84\tmale\n',
    )
    self.assertIn('dev: gender known of 2 of 2 speakers', done.stdout)
    with open(self.source / 'dev/19/1/19-1-0000.flac', 'r+b') as f:
      f.truncate(200)
    arguments += ('--overwrite',)
    done = in_process.run('data_tools.librispeech', *arguments, '--strict')
    self.assertEqual(done.code, 1)
    self.assertRegex(done.stderr, r'\Aerror: .*19-1-0000.flac: is .*\n\Z')
    done = in_process.run(
        'data_tools.librispeech', *arguments, '--attributes='
    )
    self.assertEqual(done.code, 0, done.stderr)
    self.assertIn('dev: left out, is not readable audio: 1', done.stdout)
    self.assertFalse((output / 'dev/speakers.tsv').exists())
    done = in_process.run(
        'data_tools.librispeech', *arguments, '--attributes=gender,age'
    )
    self.assertEqual(done.code, 1)
    self.assertRegex(
        done.stderr, r"\Aerror: attributes names 'age', .* says gender .*\n\Z"
    )

  def test_help_is_short_and_has_an_example(self):
    done = _run('data_tools.librispeech', '--help')
    self.assertIn('python -m data_tools.librispeech --source_dir', done.stdout)
    self.assertLess(done.stdout.count('\n'), 50)

  def test_published_archive_gives_the_same(self):
    def convert(source, output):
      return conversion.convert(
          librispeech.CORPUS,
          source_dir=source,
          output_dir=self.source / output,
          splits=['dev'],
          num_workers=0,
      )

    expected = convert(self.source, 'folder')
    (self.source / 'published').mkdir()
    with tarfile.open(self.source / 'published/dev.tar.gz', 'w:gz') as tar:
      tar.add(self.source / 'SPEAKERS.TXT', 'LibriSpeech/SPEAKERS.TXT')
      tar.add(self.source / 'dev', 'LibriSpeech/dev')
    self.assertEqual(convert(self.source / 'published', 'archive'), expected)
    self.assertCountEqual(
        os.listdir(self.source / 'archive'), ['dev', 'summary.json']
    )
    corpora = [
        client_data.load(self.source / name / 'dev').corpus
        for name in ('folder', 'archive')
    ]
    self.assertEqual(corpora[0].shards, corpora[1].shards)
    self.assertIn('speakers.tsv', corpora[0].files)
    self.assertEqual(corpora[0].files, corpora[1].files)
    self.assertEqual(corpora[0].origin, corpora[1].origin)


if __name__ == '__main__':
  absltest.main()
