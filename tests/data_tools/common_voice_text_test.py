from absl.testing import absltest
from absl.testing import parameterized

from data_tools import common_voice_text
from tff_asr.text import alphabets

_EN = alphabets.LETTERS['en']
_FR = alphabets.LETTERS['fr']


class CommonVoiceTextTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('case', 'What is the forecast', 'what is the forecast'),
      ('punctuation', 'Yes, he said: "No!"', 'yes he said no'),
      ('apostrophe', "it's", "it's"),
      ('typographic_apostrophe', 'it’s James’ dog', "it's james' dog"),
      # Beside punctuation it is a quotation mark.
      ('quotation_mark', '‘Stop’, he said.', "'stop he said"),
      ('hyphen', 'a well-known man', 'a well-known man'),
      ('hyphen_as_dash', 'wait - what -no- yes', 'wait what no yes'),
      ('dash', 'wait—what – now', 'wait what now'),
      ('slash', 'and/or', 'and or'),
      ('spaces', ' a\t b\u00a0c  ', 'a b c'),
      ('nothing', '?!', ''),
  )
  def test_english(self, text, expected):
    found, changes = common_voice_text.normalize(text, letters=_EN)
    self.assertEqual(found, expected)
    self.assertEmpty(changes)

  @parameterized.named_parameters(
      ('accents', 'Über Señor naïve', 'uber senor naive', 'transliterated'),
      ('ligature', 'Æon', 'aeon', 'transliterated'),
      ('digits', 'room 5', 'room', 'lost digits'),
      ('symbols', 'a + b', 'a b', 'lost symbols'),
      # Punctuation to Unicode, words to people.
      ('and', 'AT&T', 'att', 'lost symbols'),
      ('percent', 'half a % @home', 'half a home', 'lost symbols'),
  )
  def test_what_english_loses_is_told(self, text, expected, change):
    found, changes = common_voice_text.normalize(text, letters=_EN)
    self.assertEqual(found, expected)
    self.assertLen(changes, 1)
    self.assertIn(change, changes[0])

  def test_french_and_german_keep_the_letters_of_all_three(self):
    found, changes = common_voice_text.normalize(
        'L’été où Zoë naïvement «grüßt» le cœur', letters=_FR
    )
    self.assertEqual(found, "l'été où zoë naïvement grüßt le cœur")
    self.assertEmpty(changes)
    # Composed and decomposed letters are the same.
    self.assertEqual(
        common_voice_text.normalize('voila\u0300', letters=_FR)[0], 'voilà'
    )
    found, changes = common_voice_text.normalize('Łódź', letters=_FR)
    self.assertEqual(found, 'lodz')
    self.assertEqual(changes, [common_voice_text.TRANSLITERATED])

  def test_letters_of_another_language(self):
    letters = common_voice_text.letters_of(['Žluťoučký kůň!', 'PES 5'])
    self.assertEqual(letters, ''.join(sorted('žluťočkýůňpes')))
    self.assertEqual(
        common_voice_text.normalize('Žluťoučký kůň!', letters=letters)[0],
        'žluťoučký kůň',
    )


class AlphabetsTest(absltest.TestCase):

  def test_published_sets(self):
    self.assertEqual(
        alphabets.characters('en'), " 'abcdefghijklmnopqrstuvwxyz-"
    )
    # 29, 4 German letters and 16 French ones, of which ü is both.
    self.assertLen(set(alphabets.characters('fr')), 29 + 4 + 16 - 1)
    self.assertContainsSubset('öäüßàâæçéèêëîïôœùûüÿ', alphabets.LETTERS['de'])
    self.assertEqual(alphabets.characters('fr'), alphabets.characters('de'))
    with self.assertRaisesRegex(ValueError, "language .*'xx'"):
      alphabets.characters('xx')


if __name__ == '__main__':
  absltest.main()
