import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from data_tools import transcripts


class TranscriptsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('RUBOUT  T G', 'rubout t g'),
      (' It\u2019s  a\twell-known ', "it's a well-known"),
      ('', ''),
  )
  def test_normalizes(self, text, expected):
    self.assertEqual(transcripts.normalize(text, name='u'), expected)
    self.assertEqual(transcripts.normalize(expected, name='u'), expected)

  @parameterized.parameters(
      ('room 5', "'5' .U.0035"), ('CAF\u00c9', 'U.00E9'), ('yes.', 'U.002E')
  )
  def test_other_characters_are_refused_by_name(self, text, character):
    with self.assertRaisesRegex(ValueError, f'utterance u-1: .*{character}'):
      transcripts.normalize(text, name='u-1')

  def test_files_that_cannot_be_read_are_named(self):
    folder = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )
    (folder / 'good').write_text(' one \n\ntwo', encoding='utf-8')
    (folder / 'latin').write_bytes(b'caf\xe9')
    self.assertEqual(
        transcripts.read_lines(str(folder / 'good')), ['one', '', 'two']
    )
    with self.assertRaisesRegex(ValueError, 'latin is not UTF-8'):
      transcripts.read_lines(str(folder / 'latin'))
    with self.assertRaisesRegex(ValueError, 'nothing is missing'):
      transcripts.read_lines(str(folder / 'nothing'))


if __name__ == '__main__':
  absltest.main()
