import pathlib

from absl.testing import parameterized
import numpy as np
import soundfile

from data_tools import an4
from tests import cases


_TEXTS = ['<s> YES </s> (an251-fash-b)', 'RUBOUT T G (cen6-mkem-b)']


def _write_audio(path: pathlib.Path, **kwargs) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  soundfile.write(path, np.arange(-800, 800, dtype=np.int16), 16000, **kwargs)


class An4Test(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.source = pathlib.Path(self.root)
    (self.source / 'etc').mkdir()
    self.write_list(
        ['an4_clstk/fash/an251-fash-b', 'an4_clstk/mkem/cen6-mkem-b']
    )
    self.write_transcripts(_TEXTS)
    for name in ('fash/an251-fash-b', 'mkem/cen6-mkem-b'):
      _write_audio(self.source / f'wav/an4_clstk/{name}.sph', format='NIST')

  def write_list(self, lines):
    path = self.source / 'etc' / 'an4_train.fileids'
    path.write_text('\n'.join(lines) + '\n')

  def write_transcripts(self, lines):
    path = self.source / 'etc' / 'an4_train.transcription'
    path.write_text('\n'.join(lines) + '\n')

  def test_lists_utterances(self):
    listing = an4.list_utterances(self.source, split='train')
    self.assertEqual(
        [
            (u.client_id, u.utterance_id, u.transcript)
            for u in listing.utterances
        ],
        [
            ('fash', 'an251-fash-b', 'yes'),
            ('mkem', 'cen6-mkem-b', 'rubout t g'),
        ],
    )
    self.assertEmpty(listing.problems)

  def test_missing_parts(self):
    with self.assertRaisesRegex(ValueError, 'an4_test.fileids is missing'):
      an4.list_utterances(self.source, split='test')

  @parameterized.parameters(
      (1, ['B (cen6-mkem-b)'], 'has no transcript', 'an251-fash-b has no tr'),
      (2, [*_TEXTS, 'C (x)'], 'has no audio file', 'does not list utterance x'),
      (2, [*_TEXTS, _TEXTS[1]], 'occurs twice', 'cen6-mkem-b occurs twice'),
      (
          2, [*_TEXTS, 'YES'],
          'has a line that cannot be read', 'cannot read .*Y',
      ),
      (
          1, ['5 (an251-fash-b)', _TEXTS[1]],
          'has characters outside the tokens', "an251-fash-b: .*'5'",
      ),
  )
  def test_a_problem_of_a_transcript_is_named(
      self, num_left, texts, reason, detail
  ):
    self.write_transcripts(texts)
    self.check_problem(num_left, reason, detail)

  def test_a_problem_of_a_file_is_named(self):
    (self.source / 'wav/an4_clstk/fash/an251-fash-b.sph').unlink()
    self.check_problem(1, 'has no audio file', 'an251-fash-b.sph is listed but')
    self.write_list(['an251-fash-b', 'an4_clstk/mkem/cen6-mkem-b'])
    self.write_transcripts(_TEXTS[1:])
    self.check_problem(
        1, 'has a line that cannot be read', 'is not FOLDER/SPEAKER/NAME'
    )

  def check_problem(self, num_left, reason, detail):
    listing = an4.list_utterances(self.source, split='train')
    self.assertLen(listing.utterances, num_left)
    (problem,) = listing.problems
    self.assertEqual(problem.reason, reason)
    self.assertRegex(problem.detail, detail)
