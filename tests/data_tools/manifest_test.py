"""Tests of own recordings: each format, the alphabet, the parts, bad input."""

import collections
import csv
import gzip
import io
import json
import os
import pathlib
import re
import shlex
import sys
import tempfile
from unittest import mock

from absl import logging
from absl.testing import parameterized
import numpy as np
import pytest
import soundfile

from data_tools import hugging_face
from data_tools import manifest
from data_tools import utterances
from tests.bin import in_process
from tests.bin import programs
from tests import experiment_files
from tff_asr import config
from tff_asr import launch
from tff_asr.data import audio
from tff_asr.data import client_data
from tff_asr.storage import run_dir

try:
  import pyarrow
except ImportError:
  pyarrow = None

_RATE_HZ = 44100


def _tone(seconds: float, hz: float, rate_hz: int = _RATE_HZ) -> np.ndarray:
  """Stereo: the tone, and silence."""
  times = np.arange(round(seconds * rate_hz)) / rate_hz
  return np.stack([np.sin(2 * np.pi * hz * times), 0 * times], 1) / 4


_ROWS = [
    ('a/1.wav', 'ann', 'Grüß Gott!'),
    ('a/2.flac', 'ann', 'Äpfel, süß'),
    ('b/1.ogg', 'bob', 'Das »Haus«'),
    ('b/2.mp3', 'bob', 'gut'),
]


class ManifestTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for i, (name, _, _) in enumerate(_ROWS):
      path = self.root / name
      path.parent.mkdir(exist_ok=True)
      soundfile.write(path, _tone(0.3 + 0.1 * i, 440), _RATE_HZ)

  def write(self, name: str, text: str) -> str:
    path = self.root / name
    path.parent.mkdir(exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith('.gz') else data)
    return str(path)

  def write_rows(self, name: str) -> str:
    """`_ROWS` as a format says them."""
    names = ('audio', 'speaker', 'text')
    suffix = name.removesuffix('.gz').rpartition('.')[2]
    if suffix == 'jsonl':
      keys = ('audio_filepath', 'speaker', 'text')
      rows = [dict(zip(keys, row), duration=9.5) for row in _ROWS]
      return self.write(name, '\n'.join(map(json.dumps, rows)))
    text = io.StringIO()
    csv.writer(text, delimiter='\t' if suffix == 'tsv' else ',').writerows(
        [names, *_ROWS]
    )
    # As spreadsheets save it.
    return self.write(name, '\ufeff' + text.getvalue())

  def write_kaldi(self, **changes: str) -> str:
    files = {
        'wav.scp': '\n'.join(f'{r[0]} {r[0]}' for r in _ROWS),
        'utt2spk': '\n'.join(f'{r[0]} {r[1]}' for r in _ROWS),
        'text': '\n'.join(f'{r[0]} {r[2]}' for r in _ROWS),
    }
    for name, text in (files | changes).items():
      self.write(f'kaldi/{name}', text)
    return str(self.root / 'kaldi')

  def cut(self, **changes):
    """A cut of lhotse, from .05 s to .25 s of the first file."""
    return {
        'id': 'cut', 'type': 'MonoCut', 'start': 0.05, 'duration': 0.2,
        'channel': 1,
        'recording': {
            'sources': [
                {'type': 'file', 'channels': [0, 1], 'source': 'a/1.wav'}
            ],
        },
        'supervisions': [
            {'id': 's1', 'start': 0.05, 'duration': 0.1, 'speaker': 'ann',
             'text': 'ja', 'gender': 'female'},
            {'id': 's2', 'start': 0.1, 'duration': 0.2, 'speaker': 'ann',
             'text': 'nein'},
        ],
    } | changes

  def write_arrow(self) -> str:
    folder = self.root / 'hugging'
    folder.mkdir()
    names = ['data-0.arrow', 'data-1.arrow']
    for name, rows in zip(names, (_ROWS[:3], _ROWS[3:])):
      table = pyarrow.table({
          'audio': [
              {'bytes': (self.root / r[0]).read_bytes(), 'path': None}
              for r in rows
          ],
          'speaker_id': [ord(r[1][0]) for r in rows],
          'sentence': [r[2] for r in rows],
      })
      with pyarrow.ipc.new_stream(folder / name, table.schema) as f:
        f.write_table(table)
    state = {'_data_files': [{'filename': name} for name in names]}
    (folder / 'state.json').write_text(json.dumps(state))
    return str(folder)

  def check_listing(self, listing, speakers=('ann', 'ann', 'bob', 'bob')):
    self.assertEmpty(listing.problems)
    self.assertEqual(
        [(u.client_id, u.transcript) for u in listing.utterances],
        [(s, row[2]) for s, row in zip(speakers, _ROWS)],
    )
    for utterance, (name, _, _) in zip(listing.utterances, _ROWS):
      outcome = utterances.encode(utterance, encoding='pcm')
      (record,) = outcome.records
      expected = audio.read(self.root / name)
      self.assertEqual(record.content, expected.astype('<i2').tobytes())

  @parameterized.parameters(
      'm.tsv', 'm.csv', 'm.jsonl', 'm.tsv.gz', 'x.jsonl.gz', 'kaldi'
  )
  def test_tables_json_lines_and_kaldi_folders_are_read(self, name):
    path = self.write_kaldi() if name == 'kaldi' else self.write_rows(name)
    self.check_listing(
        manifest.list_utterances(path, audio_dir=str(self.root))
    )

  def test_segments_of_kaldi_are_parts(self):
    folder = self.write_kaldi(
        segments='u1 b/1.ogg 0.1 0.2\nu2 a/1.wav 0.1 -1\nu3 a/1.wav 0.2 0.1\n',
        text='u1 eins\nu2 zwei\nu3 drei', utt2spk='u1 bob\nu2 ann\nu3 ann',
    )
    listing = manifest.list_utterances(folder, audio_dir=str(self.root))
    self.assertEqual(
        [(u.utterance_id, u.audio.start_sec) for u in listing.utterances],
        [('u1', 0.1), ('u2', 0.1)],
    )
    self.assertAlmostEqual(listing.utterances[0].audio.duration_sec, 0.1)
    self.assertIsNone(listing.utterances[1].audio.duration_sec)
    (problem,) = listing.problems
    self.assertEqual(problem[:3], ('ann', 'u3', 'has an unusable duration'))

  def check_channels(self, path: str, **settings: str) -> None:
    """Checks that ann has the tone, bob the silence and eve both's mean."""
    listing = manifest.list_utterances(path, **settings)
    self.assertEmpty(listing.problems)
    peaks = {
        u.client_id: np.max(np.abs(u.audio.read(collections.Counter())))
        for u in listing.utterances
    }
    # The tone has an amplitude of a quarter.
    self.assertAlmostEqual(peaks.pop('ann'), 2**13, delta=100)
    self.assertLess(peaks.pop('bob'), 3)
    for value in peaks.values():
      self.assertAlmostEqual(value, 2**12, delta=100)

  def test_channels_of_tables_and_json_lines_are_told_apart(self):
    speakers = ('ann', 'bob', 'eve')
    paths = ('a/1.wav', 'a/1.wav', 'a/2.flac')
    for suffix, delimiter in (('tsv', '\t'), ('csv', ',')):
      for chosen in (('0', '1', ''), ('0.0', '[1]', '[0, 1]')):
        rows = [
            delimiter.join([path, name, 'x', f'"{channel}"'])
            for path, name, channel in zip(paths, speakers, chosen)
        ]
        header = delimiter.join(['audio', 'speaker', 'text', 'Channel'])
        self.check_channels(
            self.write(f'm.{suffix}', '\n'.join([header, *rows]))
        )
    for key in ('channel', 'channel_selector'):
      for chosen in ((0, 1, None), ([0], [1], [0, 1]), ('0', '1', '[0, 1]')):
        rows = [
            {'audio_filepath': path, 'speaker': name, 'text': 'x',
             'duration': 0.3}
            | ({} if channel is None else {key: channel})
            for path, name, channel in zip(paths, speakers, chosen)
        ]
        # Also if the first row has no channel.
        rows.sort(key=lambda row: key in row)
        self.check_channels(
            self.write('m.jsonl', '\n'.join(map(json.dumps, rows)))
        )

  def test_channels_of_kaldi_lhotse_and_hugging_face_are_told_apart(self):
    self.check_channels(
        self.write_kaldi(
            segments='u1 a/1.wav 0 0.3 0\nu2 a/1.wav 0 0.3 1\n'
            'u3 a/2.flac 0 0.3 -1\n',
            text='u1 x\nu2 x\nu3 x', utt2spk='u1 ann\nu2 bob\nu3 eve',
        ),
        audio_dir=str(self.root),
    )
    # Recordings of one file, by the side of the call.
    self.check_channels(
        self.write_kaldi(**{
            'wav.scp': 'u1 a/1.wav\nu2 a/1.wav\nu3 a/2.flac',
            'reco2file_and_channel': 'u1 a A\nu2 a B\nu3 b A',
            'text': 'u1 x\nu2 x\nu3 x',
            'utt2spk': 'u1 ann\nu2 bob\nu3 eve',
            'segments': 'u1 u1 0 -1\nu2 u2 0 -1\nu3 u3 0 -1\n',
        }),
        audio_dir=str(self.root),
    )
    # A cut of both channels; each of its supervisions has one.
    supervisions = [
        {'id': name, 'start': 0, 'duration': 0.2, 'speaker': name, 'text': 'x',
         'channel': channel}
        for name, channel in (('ann', 0), ('bob', [1]))
    ]
    cut = self.cut(
        type='MultiCut', channel=[0, 1], supervisions=supervisions
    )
    self.check_channels(self.write('cuts.jsonl', json.dumps(cut)))
    # Also of cuts that take some of a recording's channels.
    cuts = [
        self.cut(channel=channel, supervisions=[supervisions[i] | {
            'channel': channel
        }])
        for i, channel in ((0, [0]), (1, 1))
    ]
    self.check_channels(
        self.write('cuts.jsonl', '\n'.join(map(json.dumps, cuts)))
    )
    if pyarrow is not None:
      folder = self.root / 'hf'
      folder.mkdir()
      content = (self.root / 'a/1.wav').read_bytes()
      table = pyarrow.table({
          'audio': [{'bytes': content, 'path': None}] * 2,
          'speaker': ['ann', 'bob'], 'text': ['x', 'x'], 'channel': [0, 1],
      })
      with pyarrow.ipc.new_stream(folder / '0.arrow', table.schema) as f:
        f.write_table(table)
      (folder / 'state.json').write_text(
          '{"_data_files": [{"filename": "0.arrow"}]}'
      )
      self.check_channels(str(folder))

  def test_two_speakers_do_not_get_one_audio(self):
    text = (
        'audio,speaker,text,channel,start,end\n'
        'a/1.wav,ann,x,,,\na/1.wav,bob,x,,,\n'
        'a/2.flac,ann,x,,0,0.1\na/2.flac,bob,x,,0.1,0.2\n'
        'b/1.ogg,ann,x,0,,\nb/1.ogg,bob,x,1,,\n'
    )
    listing = manifest.list_utterances(self.write('m.csv', text))
    self.assertLen(listing.utterances, 4)
    self.assertEqual(
        [(p.client_id, p.reason) for p in listing.problems],
        [(name, 'has the same audio as another speaker')
         for name in ('ann', 'bob')],
    )
    self.assertRegex(
        listing.problems[0].detail, "line 2: .* 'bob'; give each a channel"
    )

  def test_nearly_equal_segments_are_found_in_all_manifests(self):
    header = 'audio,speaker,text,channel,offset,duration,sampling_rate\n'
    train = self.write('m.csv', header + 'a/1.wav,ann,x,,0,0.3,\n')
    for name, row, is_same in (
        ('blank_and_channel', 'a/1.wav,bob,x,1,0,0.29,', True),
        ('another_rate', f'a/1.wav,bob,x,,0,0.3,{_RATE_HZ}', True),
        ('its_own_file', 'a/2.flac,bob,x,,0,0.3,', False),
        ('the_speaker_again', 'a/1.wav,ann,x,1,0,0.3,', False),
        ('after_it', 'a/1.wav,bob,x,,0.3,0.1,', False),
        # Another speaker says a word meanwhile: reported, and kept.
        ('a_word_in_it', 'a/1.wav,bob,x,,0.1,0.1,', False),
    ):
      with self.subTest(name), self.assertLogs(level='WARNING') as logs:
        others = {}
        manifest.list_utterances(train, others=others)
        dev = self.write(f'{name}.csv', header + row)
        listing = manifest.list_utterances(dev, others=others)
        self.assertLen(listing.problems, int(is_same))
        self.assertLen(listing.utterances, 1 - int(is_same))
        logging.warning('One at least.')
      self.assertEqual(
          any('overlap' in record.getMessage() for record in logs.records),
          name == 'a_word_in_it',
      )

  def test_columns_that_are_not_used_are_named(self):
    text = 'audio;speaker;text;Kanal\na/1.wav;ann;x, y;1\n'
    for prefix in ('', 'sep=;\n'):
      with self.assertLogs(level='WARNING') as logs:
        listing = manifest.list_utterances(self.write('m.CSV', prefix + text))
      # With semicolons, as spreadsheets save it in half of Europe.
      self.assertEqual([u.transcript for u in listing.utterances], ['x, y'])
      (record,) = logs.records
      self.assertEndsWith(record.getMessage(), 'columns not used: Kanal.')

  def test_channels_that_may_be_counted_from_one_are_reported(self):
    text = 'audio,speaker,text,channel\na/1.wav,ann,x,1\n'
    with self.assertLogs(level='WARNING') as logs:
      manifest.list_utterances(self.write('m.csv', text))
    self.assertIn('no channel 0, but 1', logs.records[0].getMessage())

  def test_fields_that_change_the_audio_are_applied_or_refused(self):
    bad_channel = 'has an unusable channel (a number from 0, or a list as [0, 1])'
    cases = (
        # start, end, duration, channel, rate, and the reason.
        (0.1, 0.2, '', '', '', ''),
        ('', 0.2, '', '', _RATE_HZ, ''),
        (0.1, 0.2, 0.11, '', '', ''),
        (0.1, 0.2, 5, '', '', 'has an unusable end'),
        (0.2, 0.1, '', '', '', 'has an unusable end'),
        ('', 'late', '', '', '', 'has an unusable end'),
        ('', '', '', 'left', '', bad_channel),
        ('', '', '', -1, '', bad_channel),
        ('', '', '', 0.5, '', bad_channel),
        ('', '', '', '"1,0"', '', bad_channel),
        ('', '', '', '', '8k', 'has an unusable sampling rate'),
    )
    rows = [
        f'a/1.wav,ann,x,{i},' + ','.join(map(str, case[:-1]))
        for i, case in enumerate(cases)
    ]
    header = 'audio,speaker,text,id,start,end,duration,channel,sample_rate'
    listing = manifest.list_utterances(
        self.write('m.csv', '\n'.join([header, *rows]))
    )
    problems = {p.utterance_id: p.reason for p in listing.problems}
    for i, case in enumerate(cases):
      self.assertEqual(problems.get(str(i), ''), case[-1], case)
    lengths = [
        len(u.audio.read(collections.Counter())) for u in listing.utterances
    ]
    self.assertEqual(lengths, [1600, 3200, 1600])
    text = 'audio,speaker,text,sampling_rate\na/1.wav,ann,x,8000'
    listing = manifest.list_utterances(self.write('m.csv', text))
    with self.assertRaisesRegex(audio.AudioError, '44100 Hz, not 8000'):
      listing.utterances[0].audio.read(collections.Counter())
    text = 'audio,speaker,text,channel\na/1.wav,ann,x,1\na/1.wav,bob,x,2'
    with self.assertRaisesRegex(ValueError, 'channels count from 0'):
      manifest.list_utterances(self.write('m.csv', text))

  def test_quoted_fields_have_line_breaks(self):
    expected = ['first\nsecond, "third"', 'plain', 'he said\n\nno', '"open']
    for suffix, delimiter in (('csv', ','), ('tsv', '\t')):
      text = io.StringIO()
      writer = csv.writer(text, delimiter=delimiter, lineterminator='\r\n')
      writer.writerow(('audio', 'speaker', 'text', 'id'))
      for i, transcript in enumerate(expected[:3]):
        writer.writerow(('a/1.wav', 'ann', transcript, i))
      # A mark that only begins the field.
      text.write(delimiter.join(['a/1.wav', 'ann', '"open', '3\r\n']))
      text.write(delimiter.join(['a/1.wav', 'ann']))
      listing = manifest.list_utterances(
          self.write(f'm.{suffix}', text.getvalue())
      )
      self.assertEqual([u.transcript for u in listing.utterances], expected)
      (problem,) = listing.problems
      # Of the file's lines, not of its rows.
      self.assertEqual(problem.utterance_id, 'line 9')

  def test_marks_of_speech_that_are_not_closed_join_no_lines(self):
    # As in Common Voice: the second mark would close the first one's field.
    text = (
        'audio\tspeaker\ttext\tage\na/1.wav\tann\t"Open\t\n'
        'a/1.wav\tann\tclosed"\t\na/1.wav\tann\tsaid "no"\t\n'
    )
    listing = manifest.list_utterances(self.write('m.tsv', text))
    self.assertEqual(
        [u.transcript for u in listing.utterances],
        ['"Open', 'closed"', 'said "no"'],
    )

  def test_speakers_that_may_be_one_are_logged(self):
    text = 'audio,speaker,text\n' + '\n'.join(
        f'a/1.wav,{name},x' for name in ('Ann', 'ann', 'bob', 'Bob  B', 'BOB B')
    )
    with self.assertLogs(level='WARNING') as logs:
      manifest.list_utterances(self.write('m.csv', text))
    (record,) = logs.records
    self.assertIn(
        'speakers with names that differ only in case, spaces or the form of a'
        " number count as different people: 'Ann', 'ann'; 'BOB B', 'Bob  B'. -",
        record.getMessage(),
    )

  def test_each_supervision_of_a_lhotse_cut_is_an_utterance(self):
    cuts = [
        self.cut(),
        self.cut(type='MixedCut', recording=None),
        self.cut(supervisions=[]),
        self.cut(recording={'sources': [
            {'type': 'command', 'channels': [0], 'source': 'rm'}
        ]}),
    ]
    path = self.write('cuts.jsonl.gz', '\n'.join(map(json.dumps, cuts)))
    listing = manifest.list_utterances(path)
    (utterance,) = listing.utterances
    self.assertEqual(utterance.utterance_id, 's1')
    clip = utterance.audio
    self.assertAlmostEqual(clip.start_sec, 0.1)
    self.assertAlmostEqual(clip.duration_sec, 0.1)
    # The second channel is silent.
    self.assertEqual(clip.channels, (1,))
    self.assertLess(np.max(np.abs(clip.read(collections.Counter()))), 3)
    self.assertEqual(listing.attributes, {'gender': {'ann': {'female'}}})
    self.assertEqual(
        [problem.reason for problem in listing.problems],
        [
            'has a supervision beyond its cut',
            'has not one recording',
            'has no transcript',
            "has audio of the kind 'command'",
        ],
    )

  def test_a_hugging_face_folder_is_read(self):
    if pyarrow is None:
      self.skipTest('needs the packages of requirements-datasets.txt')
    folder = self.write_arrow()
    self.check_listing(
        manifest.list_utterances(folder), speakers=('97', '97', '98', '98')
    )
    for audio_column, message in (
        ({'path': 'a/1.wav'}, "data-1.arrow: 'audio' has no field 'bytes'"),
        ({'bytes': '/etc/hosts', 'path': None}, 'it is not bytes'),
    ):
      table = pyarrow.table(
          {'audio': [audio_column], 'speaker': ['ann'], 'text': ['x']}
      )
      path = self.root / 'hugging/data-1.arrow'
      with pyarrow.ipc.new_stream(path, table.schema) as f:
        f.write_table(table)
      hugging_face._open.cache_clear()  # pylint: disable=protected-access
      with self.assertRaisesRegex(ValueError, message):
        listing = manifest.list_utterances(folder)
        listing.utterances[-1].audio.read(collections.Counter())
    (self.root / 'hugging/data-1.arrow').write_bytes(b'\xff\xff\xff\xff' * 9)
    hugging_face._open.cache_clear()  # pylint: disable=protected-access
    with self.assertRaisesRegex(ValueError, 'data-1.arrow is not a readable'):
      manifest.list_utterances(folder)
    (self.root / 'hugging/dataset_dict.json').write_text('{}')
    (self.root / 'hugging/test').mkdir()
    with self.assertRaisesRegex(ValueError, 'splits; say --manifest=test='):
      manifest.list_utterances(folder)

  def test_arrow_files_without_pyarrow_name_what_to_install(self):
    self.write('hf/state.json', '{"_data_files": [{"filename": "x.arrow"}]}')
    with mock.patch.dict('sys.modules', pyarrow=None):
      with self.assertRaisesRegex(ValueError, '-r requirements-datasets.txt'):
        manifest.list_utterances(str(self.root / 'hf'))

  def test_offsets_cut_and_durations_alone_do_not(self):
    path = self.write('m.csv', (
        'Path,Speaker,Text,Offset,Duration,Gender\n'
        'a/1.wav,ann,x,0.1,0.1,f\na/1.wav,ann,y,,0.1,f\na/1.wav,ann,z,0.2,,m\n'
    ))
    listing = manifest.list_utterances(path)
    lengths = []
    for utterance in listing.utterances:
      (record,) = utterances.encode(
          utterance, encoding='pcm'
      ).records
      lengths.append(record.num_samples)
    self.assertEqual(lengths, [1600, 4800, 1600])
    self.assertEqual(
        [u.utterance_id for u in listing.utterances],
        ['a/1.wav-100', 'a/1.wav', 'a/1.wav-200'],
    )
    self.assertEqual(listing.attributes, {'gender': {'ann': {'f', 'm'}}})

  # As spreadsheets of countries with a decimal comma save it.
  @parameterized.parameters('utf-8-sig', 'utf-16-le', 'utf-16-be')
  def test_a_table_with_semicolons_and_decimal_commas_is_read(self, encoding):
    text = (
        'audio;speaker;text;offset;duration;channel\r\n'
        'a/1.wav;ann;Grüß, x;0,05;0,1;0,0\r\n'
        ';;;;;\r\n;;\r\n'
        'b\\1.ogg;bob;"a; b";0,1;;1\r\n;;;;;\r\n'
    )
    data = text.encode(encoding)
    if encoding != 'utf-8-sig':
      data = '\ufeff'.encode(encoding) + data
    (self.root / 'm.csv').write_bytes(data)
    listing = manifest.list_utterances(str(self.root / 'm.csv'))
    self.assertEmpty(listing.problems)
    self.assertEqual(
        [
            (u.client_id, u.transcript, u.audio.path, u.audio.start_sec,
             u.audio.duration_sec, u.audio.channels)
            for u in listing.utterances
        ],
        [
            ('ann', 'Grüß, x', f'{self.root}/a/1.wav', 0.05, 0.1, (0,)),
            ('bob', 'a; b', f'{self.root}/b/1.ogg', 0.1, None, (1,)),
        ],
    )

  def test_a_table_of_windows_says_how_to_convert_it(self):
    (self.root / 'm.csv').write_bytes(
        'audio;speaker;text\na/1.wav;ann;Grüß\n'.encode('cp1252')
    )
    with self.assertRaisesRegex(
        ValueError, r'm.csv is not utf-8 after line \d, .*0xfc; .*-f CP1252 -t'
    ):
      manifest.list_utterances(str(self.root / 'm.csv'))

  def test_a_file_is_found_by_other_forms_of_its_name(self):
    names = ('Mu\u0308ller.wav', 'M\u00e4rz.wav', 'my file.wav', '50%20x.wav')
    for name in names:
      soundfile.write(self.root / name, _tone(0.1, 440), _RATE_HZ)
    rows = [
        ('M\u00fcller.wav', names[0]), ('Ma\u0308rz.wav', names[1]),
        ('my%20file.wav', names[2]), ('50%20x.wav', names[3]),
        ('.\\my file.wav', names[2]),
        (f'file://{self.root}/my%20file.wav', names[2]),
        (f'file:///{str(self.root)[1:]}/a/1.wav', 'a/1.wav'),
    ]
    path = self.write('m.jsonl', '\n'.join(
        json.dumps({'audio': name, 'speaker': f's{i}', 'text': 'x'})
        for i, (name, _) in enumerate(rows)
    ))
    found = [
        os.path.relpath(problem_or.audio.path, self.root)
        for problem_or in manifest.list_utterances(
            self.write('n.jsonl', pathlib.Path(path).read_text())
        ).utterances
    ]
    # Two speakers have 'my file.wav' as a whole, so all three are left out.
    self.assertEqual(found, [names[0], names[1], names[3], 'a/1.wav'])
    for outside in ('file:///etc/passwd', '%2E%2E/x.wav'):
      (self.root.parent / 'x.wav').touch()
      self.addCleanup((self.root.parent / 'x.wav').unlink, missing_ok=True)
      with self.assertRaisesRegex(ValueError, 'outside of'):
        manifest.list_utterances(self.write('m.jsonl', json.dumps(
            {'audio': outside, 'speaker': 'ann', 'text': 'x'}
        )))

  @parameterized.parameters(
      ('m.tsv', 'offset', '1.5 s', "offset: found '1.5 s', not seconds such"),
      # Where commas divide columns it may be a thousand.
      ('m.csv', 'offset', '1,500', "unusable offset: found '1,500', not sec"),
      ('m.tsv', 'channel', 'left', r"or a list as \[0, 1\]\): found 'left'"),
      ('m.tsv', 'sampling_rate', '16k', "rate: found '16k', not Hz"),
      ('m.tsv', 'end', '0,0', 'end: found .0.0., with offset 0.0 and duration'),
      ('m.tsv', 'audio', 'https://x.org/1.wav',
       "has audio at an address: found 'https://x.org/1.wav'; download"),
  )
  def test_unusable_values_are_shown(self, name, column, value, message):
    row = {'audio': 'a/1.wav', 'speaker': 'ann', 'text': 'x'} | {column: value}
    table = io.StringIO()
    csv.writer(table, delimiter=',' if name == 'm.csv' else '\t').writerows(
        [row.keys(), row.values()]
    )
    listing = manifest.list_utterances(self.write(name, table.getvalue()))
    (problem,) = listing.problems
    self.assertRegex(problem.detail, f'm..sv, line 2: .*{message}')
    # Those with other values are counted together.
    self.assertNotIn(value, problem.reason)

  def test_lists_of_json_are_read(self):
    rows = [
        {'audio': name, 'speaker': speaker, 'text': text}
        for name, speaker, text in _ROWS
    ]
    for indent in (None, 2):
      self.check_listing(manifest.list_utterances(
          self.write('m.json', json.dumps(rows, indent=indent))
      ))
    listing = manifest.list_utterances(
        self.write('m.json', json.dumps([rows[0], 5, rows[1]]))
    )
    self.assertLen(listing.utterances, 2)
    self.assertEqual(
        [p[1:3] for p in listing.problems],
        [('object 2', 'has a line that cannot be read')],
    )
    # Longer than a line of other files may be.
    rows = rows + [rows[0] | {'speaker': 'eve', 'text': 'x' * 1_100_000}]
    listing = manifest.list_utterances(
        self.write('m.json', json.dumps(rows))
    )
    self.assertLen(listing.utterances, 3)
    with self.assertRaisesRegex(ValueError, 'm.json is not valid JSON'):
      manifest.list_utterances(self.write('m.json', '[{"audio": 1},\n{]'))

  def test_an_id_of_kaldi_that_stands_twice_is_refused(self):
    for name, first, second in (
        ('wav.scp', 'a/1.wav a/1.wav', 'a/1.wav b/1.ogg'),
        ('text', 'a/1.wav x', 'a/1.wav y'),
        ('utt2spk', 'a/1.wav ann', 'a/1.wav bob'),
    ):
      with self.assertRaisesRegex(
          ValueError, f'{name}, line 2: a/1.wav stands there a second time'
      ):
        manifest.list_utterances(
            self.write_kaldi(**{name: f'{first}\n{second}'})
        )
    # The same line twice says nothing else.
    self.check_listing(manifest.list_utterances(
        self.write_kaldi(text='\n'.join(
            f'{r[0]} {r[2]}' for r in [_ROWS[0], *_ROWS]
        )),
        audio_dir=str(self.root),
    ))

  def test_spellings_of_a_speaker_are_told_or_merged(self):
    names = ['Agent 00', 'agent  00', '7', '007', '7.0', 'Bob', '70']
    paths = []
    for i, part in enumerate((names[:4], names[4:])):
      rows = [{'speaker': name, 'text': 'x'} for name in part]
      for row in rows:
        row['audio'] = f'{row["speaker"]}.wav'
      paths.append(self.write(f'{i}.jsonl', '\n'.join(map(json.dumps, rows))))
    # pandas makes numbers of a column with gaps; a gap is no speaker.
    paths.append(self.write(
        '2.jsonl', '{"audio": "8.wav", "text": "x", "speaker": 7.0}\n'
        '{"audio": "9.wav", "text": "x", "speaker": NaN}',
    ))

    def speakers(**settings):
      listings = [
          manifest.list_utterances(path, **settings) for path in paths
      ]
      self.assertEqual(
          [p.reason for each in listings for p in each.problems],
          ['has no speaker'],
      )
      return [u.client_id for each in listings for u in each.utterances]

    with self.assertLogs(level='WARNING') as logs:
      found = speakers(spellings={})
    self.assertEqual(found, [*names, '7.0'])
    self.assertIn(
        "different people: '007', '7'; 'Agent 00', 'agent  00'. --merge_speak",
        logs.output[0],
    )
    # A spelling of the first file.
    self.assertIn("'007', '7', '7.0'", logs.output[1])
    with self.assertNoLogs(level='WARNING'):
      found = speakers(spellings={}, merges_speakers=True)
    self.assertEqual(
        found, ['Agent 00'] * 2 + ['7'] * 3 + ['Bob', '70', '7']
    )

  def test_rows_that_say_too_little_are_problems(self):
    rows = [
        {'audio': 'a/1.wav', 'speaker': 'ann', 'text': 'x'},
        {'audio': 'a/1.wav', 'speaker': None, 'text': 'x'},
        {'audio': 'a/1.wav', 'speaker': True, 'text': 'x'},
        {'audio': 'a/1.wav', 'speaker': 5, 'text': None},
        {'audio': '', 'speaker': 5, 'text': 'x'},
        {'audio': 'a/1.wav', 'speaker': 5, 'text': 'x', 'offset': 'later'},
        {'audio': 'a\0/1.wav', 'speaker': 5, 'text': 'x'},
        [],
    ]
    # Only keys of the first row are read.
    rows[0]['offset'] = None
    text = '\n'.join(map(json.dumps, rows)) + '\n{"a": \n' + '[' * 10**5
    listing = manifest.list_utterances(self.write('m.json', text))
    self.assertLen(listing.utterances, 1)
    unreadable = ['has a line that cannot be read'] * 3
    self.assertEqual(
        [problem.reason for problem in listing.problems],
        ['has no speaker'] * 2
        + ['has no transcript', 'has no audio file', 'has an unusable offset',
           'has an unusable path', *unreadable],
    )

  @parameterized.parameters(
      ('m.tsv', 'audio\tspeaker\ttext\n../x.wav\tann\tx', 'line 2.*outside of'),
      ('m.tsv', 'audio\tspeaker\ttext\n/etc/x\tann\tx', 'line 2.*outside of'),
      ('m.tsv', 'audio\tspeaker\ttext\nout/x\tann\tx', 'line 2.*outside of'),
      ('m.tsv', 'audio\ttext\na\tb', r'no speaker \(speaker, .*but audio, te'),
      ('m.tsv', '', 'm.tsv has no audio .*but nothing'),
      ('m.tsv', 'a' * (10**6 + 1), 'm.tsv: line 1 goes beyond 1,000,000'),
      ('m.jsonl', '{"audio": "a"}', 'm.jsonl has no speaker'),
      ('m.xml', '', 'm.xml is not a supported manifest'),
      ('wav.scp', 'u sox x.wav - |', 'wav.scp: u is a command'),
      ('wav.scp', 'u feats.ark:17', 'wav.scp: u is a command or part'),
  )
  def test_unsafe_paths_are_refused(self, name, text, message):
    (self.root / 'out').symlink_to('/etc')
    if name == 'wav.scp':
      path = self.write_kaldi(**{name: text})
    else:
      path = self.write(name, text)
    with self.assertRaisesRegex(ValueError, message):
      manifest.list_utterances(path)

  def test_damaged_files_are_named(self):
    for name, data in (('m.tsv', b'\xff\xfe'), ('m.jsonl.gz', b'\x1f\x8b0')):
      (self.root / name).write_bytes(data)
      with self.assertRaisesRegex(ValueError, name):
        manifest.list_utterances(str(self.root / name))
    with self.assertRaisesRegex(ValueError, 'nothing.tsv is missing'):
      manifest.list_utterances(str(self.root / 'nothing.tsv'))
    os.mkfifo(self.root / 'pipe.tsv')
    with self.assertRaisesRegex(ValueError, 'pipe.tsv: is not a regular file'):
      manifest.list_utterances(str(self.root / 'pipe.tsv'))

  def listings(self, *texts: str):
    return {
        name: utterances.Listing(
            [utterances.Utterance('ann', str(i), text, 'x')]
        )
        for i, (name, text) in enumerate(zip(('train', 'dev'), texts))
    }

  def converted(self, *texts: str, **settings):
    characters, found = manifest.convert_transcripts(self.listings(*texts), **settings)
    return characters, {
        name: [u.transcript for u in listing.utterances]
        for name, listing in found.items()
    }, found

  def test_the_first_part_decides_the_alphabet(self):
    characters, found, listings = self.converted(
        'Süß, oder?  Ja!', 'Ça: 3 süßere', keeps=False
    )
    self.assertEqual(characters, " '-adejorsßü")
    self.assertEqual(found, {'train': ['süß oder ja'], 'dev': ['a süßere']})
    self.assertEqual(
        listings['dev'].utterances[0].changes, ['lost digits', 'lost letters']
    )
    characters, found, listings = self.converted(
        'Süß,  oder\u0301', 'Süß? ó', keeps=True
    )
    self.assertEqual(characters, ' ,Sdeoßüŕ')
    self.assertEqual(found, {'train': ['Süß, odeŕ'], 'dev': []})
    (problem,) = listings['dev'].problems
    self.assertEqual(problem.reason, 'has characters outside the tokens')
    characters, found, _ = self.converted('Ja!', 'ok', keeps=False, alphabet='JAOK')
    self.assertEqual(characters, " '-ajko")
    self.assertEqual(found, {'train': ['ja'], 'dev': ['ok']})

  def test_lower_case_follows_the_language(self):
    characters, found, _ = self.converted('IŞIK', 'İş', keeps=False, language='tr')
    self.assertEqual(found, {'train': ['ışık'], 'dev': ['ş']})
    self.assertEqual(characters, " '-kış".replace('ış', 'ış'))

  def test_changes_have_an_example_and_brackets_leave_a_row_out(self):
    characters, found, listings = self.converted(
        '[Lachen] Hallo.Wie geht es', 'Ja (leise)', keeps=False
    )
    self.assertEqual(characters, " '-aeghilostw")
    self.assertEqual(found, {'train': ['hallo wie geht es'], 'dev': []})
    self.assertEqual(listings['train'].examples, {
        f'transcripts {kind}': (
            "'[Lachen] Hallo.Wie geht es' becomes 'hallo wie geht es'"
        )
        for kind in (
            'had tags in brackets removed',
            'had words separated at marks without a space',
        )
    })
    (problem,) = listings['dev'].problems
    self.assertEqual(
        problem.reason, 'has brackets around what may be said or not'
    )
    self.assertRegex(problem.detail, r"1: 'Ja \(leise\)' has .*; write sounds")

  def test_turkish_letters_without_their_lower_case_are_told(self):
    with self.assertLogs(level='WARNING') as logs:
      self.converted('Işık ılık', 'ja', keeps=False)
    self.assertIn('--casing=tr', logs.output[-1])
    with self.assertNoLogs(level='WARNING'):
      self.converted(
          'abcdefghijklmnopqrstuvwxyzı', 'ja', keeps=False, language='tr'
      )

  def test_letters_that_happen_to_be_missing_are_named(self):
    pangram = 'Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich'
    with self.assertLogs(level='WARNING') as logs:
      self.converted(pangram.replace('j', ''), 'ja', keeps=False)
    self.assertLen(logs.output, 1)
    self.assertIn('no transcript of train has j,', logs.output[0])
    for name, transcript, alphabet in (
        ('none missing', pangram, None),
        ('named', 'das', 'abcdefghijklm'),
        ('another script', 'Добрый день', None),
    ):
      with self.subTest(name), self.assertNoLogs(level='WARNING'):
        self.converted(transcript, 'ja', keeps=False, alphabet=alphabet)

  def test_transcripts_in_other_letters_say_so(self):
    _, found, listings = self.converted('ja', '東京', keeps=False)
    self.assertEqual(found['dev'], [])
    (problem,) = listings['dev'].problems
    self.assertEqual(problem.reason, 'has no letter of the alphabet')
    self.assertIn('東京', problem.detail)

  def write_speakers(self, count: int) -> str:
    for i in range(count):
      soundfile.write(self.root / f'{i}.wav', _tone(1, 200 + i), _RATE_HZ)
    rows = [f'{i}.wav\ts{i}\tJa, {i}.' for i in range(count)]
    return self.write('m.tsv', '\n'.join(['audio\tspeaker\ttext', *rows]))

  def convert(self, *arguments):
    return in_process.run(
        'data_tools.manifest', f'--output_dir={self.root / "data"}',
        '--workers=0', *arguments,
    )

  def test_speakers_are_split_and_the_alphabet_is_reported(self):
    finished = self.convert(f'--manifest={self.write_speakers(21)}')
    self.assertEqual(finished.code, 0)
    self.assertRegex(finished.stderr, r'\A(\w+: utterance .*\n)+\Z')
    self.assertRegex(
        finished.stdout, r'(?s)train .* 17 .*dev .* 2 .*test .* 2 '
    )
    self.assertIn('data/corpus.gin\nWithout one', finished.stdout)
    # Each transcript is "Ja, 7.", or alike.
    self.assertIn('\nWrite numbers as words', finished.stdout)
    text = (self.root / 'data/corpus.gin').read_text()
    self.assertIn('CHARACTERS = " \'-aj"', text)
    self.assertRegex(text, "source = 'collected from .* of train: .* COVERED")
    for setting, part in (
        ('TRAIN_DIR', 'train'), ('PRIVATE_DIR', 'train'), ('DEV_DIR', 'dev'),
        ('TEST_DIR', 'test'),
    ):
      self.assertIn(f"{setting} = '{self.root / 'data' / part}'\n", text)
    loaded = [
        client_data.load(str(self.root / 'data' / part)).client_ids
        for part in ('train', 'dev', 'test')
    ]
    self.assertEqual([len(ids) for ids in loaded], [17, 2, 2])
    self.assertLen(set(sum(loaded, [])), 21)
    for path in (self.root / 'data').rglob('*'):
      self.assertEqual(path.stat().st_mode & 0o077, 0, path)
    before = (self.root / 'data/train/shard-00000.tfrecord').stat().st_mtime_ns
    self.assertEqual(
        self.convert(f'--manifest={self.root / "m.tsv"}').stdout,
        finished.stdout,
    )
    self.assertEqual(
        (self.root / 'data/train/shard-00000.tfrecord').stat().st_mtime_ns,
        before,
    )

  def test_named_manifests_are_splits(self):
    path = self.write_speakers(2)
    finished = self.convert(f'--manifest=train={path},validation={path}')
    self.assertEqual(finished.code, 0, finished.stderr)
    text = (self.root / 'data/corpus.gin').read_text()
    self.assertIn(f"DEV_DIR = '{self.root / 'data/validation'}'\n", text)
    self.assertNotIn('TEST_DIR', text)
    # The experiment takes more clients a round than there are.
    self.assertIn(
        f'own_recordings_whisper.gin \\\n'
        f'      --gin_file={self.root}/data/corpus.gin \\\n'
        '      --gin_param="COHORT_SIZE = 2"\n',
        finished.stdout,
    )
    for name in ('own_recordings', 'own_recordings_whisper'):
      experiment = experiment_files.read(f'gin/experiments/{name}.gin')
      self.assertIn('\nCOHORT_SIZE = 4\n', experiment)

  def test_parts_get_the_commands_that_fit_them(self):
    manifest_path = self.write_speakers(7)
    finished = self.convert(
        f'--manifest={manifest_path}',
        '--partition=public=2,private=rest,dev=1,test=1',
    )
    self.assertRegex(
        finished.stdout,
        r'(?s)public .*:\n  python bin/train_central.py --output_dir=runs/publ'
        r'.*few NOT PRIVATE .*:\n  python bin/train_federated.py .*INIT_FROM_RU'
        r'''N = 'runs/public'".*COHORT_SIZE = 3"''',
    )
    finished = in_process.run(
        'data_tools.manifest', f'--manifest={manifest_path}', '--workers=0',
        f'--output_dir={self.root / "my data"}',
    )
    self.assertIn(f"'{self.root}/my data/corpus.gin'\nWith", finished.stdout)
    finished = self.convert(
        f'--manifest={manifest_path}', '--partition=train=rest', '--overwrite'
    )
    self.assertIn('To train, add a dev split', finished.stdout)

  @parameterized.parameters(
      (5, []),
      (2, ['--partition=train=1,dev=1']),
      (7, ['--partition=public=2,private=rest,dev=1,test=1']),
  )
  def test_printed_commands_are_whole(self, count, arguments):
    finished = self.convert(
        f'--manifest={self.write_speakers(count)}', *arguments
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    for line in finished.stdout.splitlines():
      self.assertLessEqual(len(line.replace(str(self.root), '')), 150, line)
    joined = finished.stdout.replace(' \\\n', ' ')
    commands = [
        shlex.split(line)
        for line in joined.splitlines() if line.startswith('  python ')
    ]
    self.assertEqual(joined.count('python '), len(commands))
    self.assertLen(commands, 2 if 'public' in ' '.join(arguments) else 1)
    for _, program, *given in commands:
      values = lambda flag, given=given: [
          each.partition('=')[2] for each in given if each.startswith(flag)
      ]
      self.assertLen(values('--output_dir'), 1)

      def parse(*unused_arguments, **unused_options):
        launch._parse_flags(sys.argv)  # pylint: disable=protected-access

      with mock.patch.object(launch, 'run', parse):
        parsed = in_process.run(program, *given)
      self.assertEqual((parsed.code, parsed.stderr), (0, ''))
      paths = values('--gin_file')
      config.bind(
          experiment_files.program(paths[0]),
          gin_files=paths,
          gin_params=values('--gin_param'),
      )
      (cohort_size,) = re.findall(r'COHORT_SIZE = (\d+)', config.text()) or [0]
      self.assertLessEqual(int(cohort_size), count)

  def test_speakers_of_one_recording_are_said_to_be_no_people(self):
    told = 'train: most speakers have one recording: unless each is a different'
    path = self.write_speakers(6)
    self.assertIn(told, self.convert(f'--manifest={path}').stdout)
    # Half of the four in train have two.
    rows = pathlib.Path(path).read_text().splitlines()
    for i in range(6):
      soundfile.write(self.root / f'{i}b.wav', _tone(1, 300 + i), _RATE_HZ)
    more = [row.replace('.wav', 'b.wav') for row in rows[1:]]
    path = self.write('n.tsv', '\n'.join([*rows, *more]))
    finished = self.convert(f'--manifest={path}', '--overwrite')
    self.assertEqual(finished.code, 0)
    self.assertNotIn('one recording', finished.stdout)

  def test_silent_recordings_are_left_out_with_the_first_named(self):
    path = self.write_speakers(12)
    soundfile.write(self.root / '3.wav', np.zeros([16000, 2]), 16000)
    with open(path, 'a', encoding='utf-8') as f:
      f.write('\n1.wav\ts1\t(hm)')
    finished = self.convert(f'--manifest={path}', '--max_dropped=1')
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertRegex(finished.stdout, r'train: left out, is silent: 1 \(see')
    self.assertRegex(
        finished.stdout,
        r"said or not: 1 \(see dropped.tsv\). Such as: utterance 1.wav: '\(hm",
    )
    self.assertRegex(
        finished.stdout, r"lost digits: \d+. Such as: 'Ja, \d.' becomes 'ja'\n"
    )

  @parameterized.parameters((1, '1 speaker,'), (2, '2 speakers,'))
  def test_too_few_speakers_end_in_a_line_that_says_what_to_do(
      self, count, found
  ):
    finished = self.convert(f'--manifest={self.write_speakers(count)}')
    self.assertEqual(finished.code, 1)
    self.assertRegex(
        finished.stderr,
        rf'\Aerror: found {found} and three .*--manifest=train=.*\n\Z',
    )

  def test_recordings_of_two_parts_are_reported_and_not_in_dev(self):
    train = self.write_speakers(2)
    for i, name in enumerate(('same.wav', 'other.wav')):
      soundfile.write(self.root / name, _tone(1, 200 + 50 * i), _RATE_HZ)
    dev = self.write(
        'dev.tsv', 'audio\tspeaker\ttext\nsame.wav\teve\tJa\nother.wav\teve\tJa'
    )
    # Whichever is named first.
    arguments = [f'--manifest=dev={dev},train={train}']
    told = (
        'dev: 1 recordings have the same samples as recordings of train; '
        '--drop_copies --overwrite leaves them out of dev\n'
    )
    for _ in range(2):  # Also where the parts are there.
      self.assertIn(told, self.convert(*arguments).stdout)
    self.assertEqual(
        self.convert(*arguments, '--drop_copies', '--max_dropped=1').code, 1
    )
    finished = self.convert(
        *arguments, '--drop_copies', '--overwrite', '--max_dropped=1'
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertNotIn('same samples', finished.stdout)
    self.assertIn(
        'dev: left out, is a copy of another recording: 1', finished.stdout
    )
    sizes = [
        client_data.load(str(self.root / 'data' / part)).num_records
        for part in ('train', 'dev')
    ]
    self.assertEqual(sizes, [2, 1])

  def test_a_part_without_audio_keeps_no_other_from_being_written(self):
    path = self.write_speakers(3)
    dev = self.write('dev.tsv', 'audio\tspeaker\ttext\nno.wav\teve\tJa')
    finished = self.convert(f'--manifest=dev={dev},train={path}')
    self.assertEqual(finished.code, 1)
    self.assertRegex(
        finished.stderr,
        r'(?m)^error: Every utterance of .*/dev was left out, the first because: '
        '.*no.wav',
    )
    self.assertTrue((self.root / 'data/train/corpus.json').exists())
    # Nor does one of before stay, whose folders are others.
    self.assertFalse((self.root / 'data/corpus.gin').exists())
    soundfile.write(self.root / 'no.wav', _tone(1, 100), _RATE_HZ)
    self.assertEqual(
        self.convert(f'--manifest=dev={dev},train={path}').code, 0
    )
    self.assertTrue((self.root / 'data/corpus.gin').exists())
    (self.root / 'no.wav').unlink()
    finished = self.convert(f'--manifest=dev={dev},train={path}', '--overwrite')
    self.assertEqual(finished.code, 1)
    self.assertFalse((self.root / 'data/corpus.gin').exists())

  def test_more_than_a_tenth_left_out_is_an_error_after_the_rest(self):
    path = self.write_speakers(9)
    with open(path, 'a', encoding='utf-8') as f:
      f.write('\nno.wav\ts0\tJa')
    finished = self.convert(f'--manifest={path}', '--max_dropped=0.05')
    self.assertEqual(finished.code, 1)
    self.assertRegex(finished.stdout, 'left out, cannot be opened: 1 ')
    self.assertRegex(
        finished.stderr,
        r'\A(\w+: utterance .*\n)+error: 1 of 10 utterances were .*\n\Z',
    )
    self.assertTrue((self.root / 'data/train/corpus.json').exists())
    self.assertEqual(self.convert(f'--manifest={path}').code, 0)

  def test_exactly_the_allowed_share_left_out_is_not_an_error(self):
    path = self.write_speakers(7)
    with open(path, 'a', encoding='utf-8') as f:
      f.write(''.join(f'\nno{i}.wav\ts0\tJa' for i in range(15)))
    # 15 / 22 * 22 is below 15 in floating point.
    finished = self.convert(f'--manifest={path}', f'--max_dropped={15 / 22}')
    self.assertRegex(finished.stdout, 'left out, cannot be opened: 15 ')
    self.assertEqual(finished.code, 0, finished.stderr)

  @pytest.mark.slow
  def test_a_table_becomes_a_private_run_and_a_transcript(self):
    self.convert(f'--manifest={self.write_speakers(6)}')
    run = self.root / 'run'
    tiny = (*programs.TINY, 'NUM_ROUNDS = 2', 'EVALUATE_EVERY = 2')
    finished = in_process.run(
        'bin/train_federated.py',
        f'--output_dir={run}',
        '--gin_file=gin/experiments/own_recordings.gin',
        f'--gin_file={self.root / "data/corpus.gin"}',
        *(f'--gin_param={setting}' for setting in tiny),
    )
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertIn('NOT PRIVATE', finished.stdout)
    report = (run / run_dir.PRIVACY_REPORT).read_text()
    self.assertIn(
        'twice the privacy loss; most speakers have one recording: unless each',
        ' '.join(report.split()),
    )
    transcribed = in_process.run(
        'bin/transcribe.py', f'--run={run}', '--format=json',
        str(self.root / 'b/2.mp3'),
    )
    self.assertEqual(transcribed.code, 0, transcribed.stderr)
    (transcript,) = json.loads(transcribed.stdout)
    self.assertLessEqual(set(transcript['text']), set(" '-aj"))

  @parameterized.parameters(
      ((), 'error: --manifest is needed'),
      (('--manifest=a.tsv,x=b.tsv',), 'error: --manifest is .*NAME=FILE for'),
      (('--manifest=no.tsv',), 'error: no.tsv is missing'),
  )
  def test_bad_flags_end_in_a_line(self, arguments, message):
    finished = self.convert(*arguments)
    self.assertEqual(finished.code, 1)
    self.assertRegex(finished.stderr, rf'\A{message}.*\n\Z')
    self.assertFalse((self.root / 'data').exists())
