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


if __name__ == '__main__':
  absltest.main()
