import os
import pathlib
import tarfile
from unittest import mock

from absl.testing import parameterized
import numpy as np
import soundfile

from data_tools import archives
from data_tools import conversion
from data_tools import librispeech
from tests import cases
from tests.bin import in_process
from tff_asr.data import client_data


def _write_audio(path: pathlib.Path, **kwargs) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  soundfile.write(path, np.arange(-800, 800, dtype=np.int16), 16000, **kwargs)


class LibriSpeechTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.source = pathlib.Path(self.root)
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

  def test_lists_utterances_and_genders(self):
    listing = librispeech.list_utterances(self.source, split='dev')
    self.assertEqual(
        [
            (u.client_id, u.utterance_id, u.transcript)
            for u in listing.utterances
        ],
        [
            ('19', '19-1-0000', "it's word a"),
            ('19', '19-1-0001', "it's word b"),
            ('19', '19-2-0000', "it's word a"),
            ('84', '84-3-0000', "it's word a"),
            ('84', '84-3-0001', "it's word b"),
        ],
    )
    self.assertEndsWith(listing.utterances[1].audio, '19/1/19-1-0001.wav')
    self.assertEqual(
        listing.attributes,
        {'gender': {'14': {'female'}, '19': {'female'}, '84': {'male'}}},
    )
    self.assertEmpty(listing.problems)
    (self.source / 'SPEAKERS.TXT').unlink()
    listing = librispeech.list_utterances(self.source, split='dev')
    self.assertEmpty(listing.attributes)

  @parameterized.parameters(('84 | |', 0), ('84, M', 1), ('84 | dev | M', 1))
  def test_table_of_speakers(self, line, num_problems):
    (self.source / 'SPEAKERS.TXT').write_text(f'19 | F\n{line}\n')
    listing = librispeech.list_utterances(self.source, split='dev')
    self.assertLen(listing.utterances, 5)
    self.assertEqual(listing.attributes, {'gender': {'19': {'female'}}})
    self.assertLen(listing.problems, num_problems)
    for problem in listing.problems:
      self.assertEqual(
          problem[:3], ('', 'line 2', 'has a line that cannot be read')
      )
      self.assertRegex(problem.detail, 'SPEAKERS.TXT, line 2: must begin as')

  def test_missing_parts(self):
    (self.source / 'empty' / '1' / '2').mkdir(parents=True)
    for split, message in (
        ('test', "no split 'test', but dev, empty;"),
        ('empty', 'empty holds no transcripts'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        librispeech.list_utterances(self.source, split=split)

  @parameterized.parameters(
      ('', None, 4, '19-2-0000', 'has no audio file', 'has a transcript but'),
      ('', '7.flac', 5, '19-2-0007', 'has no transcript', '7.flac has no'),
      ('', '0.wav', 5, '19-2-0000', 'has two audio files', '0.wav: 19-2-0000'),
      (
          '19-2-0000 ROOM 5\n', '', 4,
          '19-2-0000', 'has characters outside the tokens', "19-2-0000: .*'5'",
      ),
      (
          '19-2-0000 A\n20-2-0000 A\n', '', 5,
          '20-2-0000', 'is not of speaker', 'is not of speaker 19',
      ),
      (
          '19-2-0000 A\n19-2-0000 B\n', '', 5,
          '19-2-0000', 'occurs twice', '0 occurs twice',
      ),
  )
  def test_a_problem_is_named(
      self, transcripts, audio, num_left, utterance_id, reason, detail
  ):
    folder = self.source / 'dev/19/2'
    if transcripts:
      (folder / '19-2.trans.txt').write_text(transcripts)
    if audio:
      _write_audio(folder / f'19-2-000{audio}')
    if audio is None:
      (folder / '19-2-0000.flac').unlink()
    listing = librispeech.list_utterances(self.source, split='dev')
    self.assertLen(listing.utterances, num_left)
    (problem,) = listing.problems
    self.assertEqual(problem[:3], ('19', utterance_id, reason))
    self.assertRegex(problem.detail, detail)

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
    self.assertEqual(done.code, 0)
    self.assertRegex(done.stderr, r'\A(\w+: utterance .*\n)+\Z')
    self.assertRegex(done.stdout, r'\| dev +\| +0.00 \| +5 \| +2 \|')
    self.assertEqual(client_data.load(output / 'dev').corpus.encoding, 'flac')
    self.assertEqual(
        (output / 'dev/speakers.tsv').read_text(),
        'client_id\tgender\n19\tfemale\n84\tmale\n',
    )
    self.assertIn('dev: gender known for 2 of 2 speakers', done.stdout)
    with open(self.source / 'dev/19/1/19-1-0000.flac', 'r+b') as f:
      f.truncate(200)
    arguments += ('--overwrite',)
    done = in_process.run('data_tools.librispeech', *arguments, '--strict')
    self.assertEqual(done.code, 1)
    self.assertRegex(done.stderr, r'\Aerror: .*19-1-0000.flac: is .*\n\Z')
    done = in_process.run(
        'data_tools.librispeech', *arguments, '--attributes='
    )
    self.assertEqual(done.code, 1)
    self.assertRegex(
        done.stderr,
        r'\A(\w+: utterance .*\n)+error: 1 of 5 utterances were left out;',
    )
    self.assertIn('dev: left out, is not readable audio: 1', done.stdout)
    self.assertFalse((output / 'dev/speakers.tsv').exists())

  def test_published_archive_gives_the_same(self):
    def convert(source, output):
      return conversion.convert(
          librispeech.CORPUS,
          source_dir=source,
          output_dir=self.source / output,
          splits=['dev'],
          num_workers=0,
      )

    before = os.umask(0o022)
    self.addCleanup(os.umask, before)
    modes, unpack = [], archives.Scratch._unpack

    def unpack_and_look(scratch, archive):
      folder = unpack(scratch, archive)
      modes.append(os.stat(os.path.dirname(folder)).st_mode & 0o777)
      return folder

    self.enterContext(mock.patch.object(
        archives.Scratch, '_unpack', unpack_and_look
    ))
    expected = convert(self.source, 'folder')
    (self.source / 'published').mkdir()
    with tarfile.open(self.source / 'published/dev.tar.gz', 'w:gz') as tar:
      tar.add(self.source / 'SPEAKERS.TXT', 'LibriSpeech/SPEAKERS.TXT')
      tar.add(self.source / 'dev', 'LibriSpeech/dev')
    self.assertEqual(convert(self.source / 'published', 'archive'), expected)
    self.assertCountEqual(
        os.listdir(self.source / 'archive'), ['dev', 'summary.json']
    )
    folder, archive = (
        (self.source / name / 'dev/corpus.json').read_bytes()
        for name in ('folder', 'archive')
    )
    self.assertIn(b'speakers.tsv', folder)
    # Only the owner can read the folder of unpacked files.
    self.assertEqual(modes, [0o700])
    self.assertEqual(folder, archive)
    with open(self.source / 'published/dev.tar.gz', 'r+b') as f:
      f.truncate(1000)
    with self.assertRaisesRegex(ValueError, 'dev.tar.gz cannot be unpacked'):
      convert(self.source / 'published', 'damaged')
