import io
import pathlib
import shutil
import sys
import tarfile
from unittest import mock

import numpy as np
import soundfile

from data_tools import common_voice
from data_tools import conversion
from tests import cases
from tff_asr.data import client_data

_HEADER = 'client_id\tpath\tsentence\tup_votes\tlocale\n'


def _clip(rate_hz: int = 48000, seconds: float = 0.5) -> bytes:
  """A 440 Hz tone as MP3."""
  time = np.arange(int(rate_hz * seconds)) / rate_hz
  buffer = io.BytesIO()
  soundfile.write(
      buffer, 0.3 * np.sin(2 * np.pi * 440 * time), rate_hz, format='MP3'
  )
  return buffer.getvalue()


class CommonVoiceTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.source = pathlib.Path(self.root)
    (self.source / 'clips').mkdir()
    self.lines = []
    for i, client_id in enumerate(['bob', 'ann', 'bob']):
      self.add(client_id, f'cv_{i}', f'Sentence {"ABC"[i]}.')

  def add(self, client_id, name, sentence, clip=None):
    self.lines.append(f'{client_id}\t{name}.mp3\t{sentence}\t2\ten\n')
    clip = _clip() if clip is None else clip
    (self.source / 'clips' / f'{name}.mp3').write_bytes(clip)

  def write_tsv(self, split='train'):
    (self.source / f'{split}.tsv').write_text(_HEADER + ''.join(self.lines))

  def list(self, **settings):
    self.write_tsv()
    return common_voice.list_utterances(self.source, split='train', **settings)

  def convert(self, **settings):
    self.write_tsv()
    return conversion.convert(
        common_voice.corpus('en'),
        source_dir=self.source,
        output_dir=self.source / 'out',
        splits=['train'],
        num_workers=0,
        **settings,
    )['train']

  def texts(self, **settings):
    return [u.transcript for u in self.list(**settings).utterances]

  def test_a_client_is_a_client_id(self):
    listed, problems, attributes, _ = self.list()
    self.assertEqual(
        [(u.client_id, u.utterance_id, u.transcript) for u in listed],
        [
            ('bob', 'cv_0', 'sentence a'),
            ('ann', 'cv_1', 'sentence b'),
            ('bob', 'cv_2', 'sentence c'),
        ],
    )
    self.assertEmpty(problems)
    self.assertEmpty(attributes)

  def said(self, columns: str, *rows: str):
    """Attributes that rows of a client_id and values give."""
    lines = ['\t'.join(['path', 'sentence', 'client_id', columns])]
    for i, row in enumerate(rows):
      (self.source / f'clips/r{i}.mp3').write_bytes(b'')
      lines.append(f'r{i}.mp3\tWords\t{row}')
    (self.source / 'rows.tsv').write_text('\n'.join(lines) + '\n')
    return common_voice.list_utterances(
        self.source, split='rows'
    ).attributes

  def test_attributes_of_speakers_come_from_their_rows(self):
    # Releases differ in columns and words.
    self.assertEqual(
        self.said(
            'age\tgender\taccent',
            'ann\ttwenties\tfemale\tus',
            'ann\tthirties\t\tus',
            'bob\t\tmale\t',
        ),
        {
            'gender': {'ann': {'female'}, 'bob': {'male'}},
            'age': {'ann': {'twenties', 'thirties'}},
            'accent': {'ann': {'us'}},
        },
    )
    self.assertEqual(
        self.said(
            'gender\taccents',
            'ann\tfemale_feminine\tIndia and South Asia (India)',
            'ann\tfemale\t',
            'bob\tmale_masculine\t',
            'cai\tdo_not_wish_to_say\t',
            'dee\tnon-binary\t',
        ),
        {
            'gender': {
                'ann': {'female'}, 'bob': {'male'}, 'dee': {'non-binary'}
            },
            'accent': {'ann': {'India and South Asia (India)'}},
        },
    )

  def test_another_language_is_refused(self):
    with self.assertRaisesRegex(
        ValueError, "cv_0.mp3 of locale 'en', but --language is 'fr'; set --lan"
    ):
      self.list(language='fr')
    # Releases without the column are taken at their word.
    self.lines = [line.replace('\ten\n', '\t\n') for line in self.lines]
    self.assertLen(self.list(language='fr').utterances, 3)

  def test_a_release_is_searched_for_the_language(self):
    root = self.source / 'release'
    for language in ('de', 'en', 'fr'):
      shutil.copytree(self.source / 'clips', root / language / 'clips')
      lines = ''.join(self.lines).replace('\ten\n', f'\t{language}\n')
      (root / language / 'train.tsv').write_text(_HEADER + lines)
      (root / 'archives').mkdir(exist_ok=True)
      path = root / f'archives/cv-corpus-1.0-{language}.tar.gz'
      with tarfile.open(path, 'w:gz') as tar:
        tar.add(root / language, f'cv-corpus-1.0/{language}')
    for source in (root, root / 'archives'):
      for language in ('fr', 'en'):
        output = source / f'out_{language}'
        conversion.convert(
            common_voice.corpus(language),
            source_dir=source,
            output_dir=output,
            splits=['train'],
            num_workers=0,
        )
        corpus = client_data.load(output / 'train').corpus
        self.assertEqual(corpus.origin['corpus'], f'Common Voice {language}')
    with self.assertRaisesRegex(
        ValueError, 'no train.tsv, nor any other .tsv file; set'
    ):
      conversion.convert(
          common_voice.corpus('it'),
          source_dir=root / 'archives',
          output_dir=root / 'out_it',
          splits=['train'],
      )

  def test_dashes_become_spaces_or_nothing(self):
    self.add('cai', 'cv_3', 'And/or')
    self.assertEqual(self.texts()[3], 'and or')
    self.assertEqual(self.texts(dashes='drop')[3], 'andor')
    self.write_tsv()
    dropping = common_voice.corpus('en', dashes='drop')
    listed = dropping.list_utterances(self.source, split='train')
    self.assertEqual(listed.utterances[3].transcript, 'andor')

  def test_unidecode_is_the_user_s_choice(self):
    self.add('cai', 'cv_3', 'Kraków—x\u0142')
    exact = dict(dashes='drop', transliteration='unidecode')
    # None: importing it fails, whether or not it is installed.
    with mock.patch.dict(sys.modules, unidecode=None):
      for listing in (self.texts, lambda **kw: common_voice.corpus('en', **kw)):
        with self.assertRaisesRegex(ValueError, 'needs the package Unidecode,'):
          listing(**exact)
      with self.assertRaisesRegex(ValueError, 'add --dashes=drop'):
        self.texts(transliteration='unidecode')
      with self.assertRaisesRegex(ValueError, 'transliteration must be one of'):
        self.texts(transliteration='icu')
    fake = mock.Mock(unidecode=lambda c: {'ó': 'Q', '—': '--'}.get(c, c))
    with mock.patch.dict(sys.modules, unidecode=fake):
      self.assertEqual(self.texts(**exact)[3], 'krakqwx')

  def test_letters_of_another_language_are_those_of_all_its_splits(self):
    for split, text in (('dev', 'Ač'), ('train', 'Bé')):
      self.lines = []
      self.add('a', f'of_{split}', text)
      self.lines = [line.replace('\ten\n', '\tcs\n') for line in self.lines]
      self.write_tsv(split)
    for letters, expected in ((None, ['ač', 'bé']), ('abc', ['ac', 'b'])):
      listed = [
          utterance
          for split in ('dev', 'train')
          for utterance in common_voice.list_utterances(
              self.source, split=split, language='cs', letters=letters
          ).utterances
      ]
      self.assertEqual([u.transcript for u in listed], expected)
      self.assertEqual([bool(u.changes) for u in listed], [bool(letters)] * 2)

  def test_quotes_and_tabs(self):
    self.lines = []
    # As releases that quote write it, and as others do.
    self.add('a', 'q0', '"He called it ""home"" today."')
    self.add('a', 'q1', '"Home" is a word')
    self.add('a', 'q2', 'It is called "home"')
    self.add('a', 'q3', '"Open at the end')
    self.add('a', 'q4', '"A tab\tin ""it"""')
    self.assertEqual(
        self.texts(),
        [
            'he called it home today',
            'home is a word',
            'it is called home',
            'open at the end',
            'a tab in it',
        ],
    )

  def test_each_problem_has_its_reason(self):
    self.add('ann', 'broken', 'Words', b'no MP3' * 100)
    self.add('ann', 'cut_off', 'Words', _clip(seconds=2)[:2000])
    self.add('ann', 'empty_file', 'Words', b'')
    self.add('ann', 'no_words', '!?')
    self.add('', 'of_nobody', 'Words')
    self.add('bob', 'cv_1', 'Again')
    self.add('eve', 'other_rate', 'Café 5', _clip(44100))
    self.lines.append('eve\tmissing.mp3\tWords\t2\ten\n')
    self.lines.append('eve\tcv_9.mp3\tToo\tmany\ttabs\tin this\n')
    summary = self.convert()
    broken = {
        'is not readable audio': 1,
        'is truncated': 1,
    }
    self.assertEqual(
        {k: n for k, n in summary['dropped'].items() if k not in broken},
        {
            'has a line that cannot be read': 1,
            'has an empty transcript': 1,
            'has no audio file': 1,
            'has no client_id': 1,
            'is empty': 1,
            'occurs twice': 1,
        },
    )
    # Which of the two a decoder finds in the file that was cut off, depends.
    self.assertEqual(
        sum(summary['dropped'].get(reason, 0) for reason in broken), 2
    )
    self.assertEqual(summary['num_utterances'], 4)
    self.assertEqual(
        summary['changed'],
        {
            'files in MP3 MPEG_LAYER_III were rounded to 16 bits': 4,
            'files of 44100 Hz were resampled to 16000 Hz': 1,
            'files of 48000 Hz were resampled to 16000 Hz': 3,
            'transcripts had letters transliterated': 1,
            'transcripts lost digits': 1,
        },
    )
    lines = (self.source / 'out/train/dropped.tsv').read_text().splitlines()
    self.assertLen(lines, 1 + sum(summary['dropped'].values()))
    with self.assertRaisesRegex(ValueError, 'line 13 has 6 fields instead of'):
      self.convert(strict=True)

  def test_missing_parts(self):
    self.write_tsv()
    with self.assertRaisesRegex(ValueError, 'no dev.tsv, but train.tsv;'):
      common_voice.list_utterances(self.source, split='dev')
    (self.source / 'dev.tsv').write_text('a\tb\n')
    with self.assertRaisesRegex(ValueError, "no column 'client_id', but a, b"):
      common_voice.list_utterances(self.source, split='dev')
