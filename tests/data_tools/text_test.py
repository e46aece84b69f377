from absl.testing import parameterized

from data_tools import text as text_lib
from tff_asr.text import tokenizer

_EN = tokenizer.LETTERS['en']
_FR = tokenizer.LETTERS['fr']


class CommonVoiceTextTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('case', 'What is the forecast', 'what is the forecast'),
      ('punctuation', 'Yes, he said: "No!"', 'yes he said no'),
      ('apostrophe', "it's", "it's"),
      ('typographic_apostrophe', 'it’s James’ dog', "it's james' dog"),
      # Next to punctuation it is a quotation mark.
      ('quotation_mark', '‘Stop’, he said.', "'stop he said"),
      ('hyphen', 'a well-known man', 'a well-known man'),
      ('hyphen_as_dash', 'wait - what -no- yes', 'wait what no yes'),
      ('dash', 'wait—what – now', 'wait what now'),
      ('slash', 'and/or', 'and or'),
      ('spaces', ' a\t b\u00a0c  ', 'a b c'),
      ('nothing', '?!', ''),
  )
  def test_english(self, text, expected):
    found, changes = text_lib.normalize_common_voice(text, letters=_EN)
    self.assertEqual(found, expected)
    self.assertEmpty(changes)

  # As in the published code: nothing is left of them.
  @parameterized.parameters(
      ('wait—what – now', 'waitwhat now'),
      ('and/or', 'andor'),
      ('a well-known man', 'a well-known man'),
      ('wait - what', 'wait what'),
  )
  def test_dashes_and_slashes_may_be_dropped(self, text, expected):
    found, changes = text_lib.normalize_common_voice(
        text, letters=_EN, dashes='drop'
    )
    self.assertEqual(found, expected)
    self.assertEmpty(changes)
    with self.assertRaisesRegex(ValueError, "dashes must be one of .*'keep'"):
      text_lib.normalize_common_voice(text, letters=_EN, dashes='keep')

  @parameterized.named_parameters(
      ('accents', 'Über Señor naïve', 'uber senor naive', 'transliterated'),
      ('ligature', 'Æon', 'aeon', 'transliterated'),
      ('digits', 'room 5', 'room', 'lost digits'),
      ('symbols', 'a + b', 'a b', 'lost symbols'),
      # Punctuation to Unicode, words to people.
      ('and', 'AT&T', 'att', 'lost symbols'),
      ('percent', 'half a % @home', 'half a home', 'lost symbols'),
  )
  def test_changes_of_english_text_are_reported(self, text, expected, change):
    found, changes = text_lib.normalize_common_voice(text, letters=_EN)
    self.assertEqual(found, expected)
    self.assertLen(changes, 1)
    self.assertIn(change, changes[0])

  def test_french_and_german_keep_the_letters_of_all_three(self):
    found, changes = text_lib.normalize_common_voice(
        'L’été où Zoë naïvement «grüßt» le cœur', letters=_FR
    )
    self.assertEqual(found, "l'été où zoë naïvement grüßt le cœur")
    self.assertEmpty(changes)
    # Composed and decomposed letters are the same.
    self.assertEqual(
        text_lib.normalize_common_voice('voila\u0300', letters=_FR)[0], 'voilà'
    )
    found, changes = text_lib.normalize_common_voice('Łódź', letters=_FR)
    self.assertEqual(found, 'lodz')
    self.assertEqual(changes, [text_lib.TRANSLITERATED])

  def test_letters_of_another_language(self):
    letters = text_lib.letters_of(['Žluťoučký kůň!', 'PES 5'])
    self.assertEqual(letters, ''.join(sorted('žluťočkýůňpes')))
    self.assertEqual(
        text_lib.normalize_common_voice('Žluťoučký kůň!', letters=letters)[0],
        'žluťoučký kůň',
    )

  @parameterized.parameters(
      # Turkish I has no dot, and keeps having none.
      ('IŞIK İstanbul ılık', 'tr', 'ışık istanbul ılık', []),
      ('IŞIK İstanbul ılık', 'az', 'ışık istanbul ılık', []),
      ('Light İstanbul', '', 'light istanbul', []),
      # Ligatures, digraphs, full width, positional forms, half width.
      ('ﬁnd oﬀ', '', 'find off', [text_lib.PLAIN_FORMS]),
      ('ǅungla', 'hr', 'džungla', [text_lib.PLAIN_FORMS]),
      ('ＡＢＣ', '', 'abc', [text_lib.PLAIN_FORMS]),
      ('\ufefb', 'ar', '\u0644\u0627', [text_lib.PLAIN_FORMS]),
      ('ｶﾞｽ', 'ja', 'ガス', [text_lib.PLAIN_FORMS]),
      # These have compatibility forms, too, and stay as they are.
      ('\u0e01\u0e33', 'th', '\u0e01\u0e33', []),
      ('Ο ΟΔΟΣ', 'el', 'ο οδος', []),
  )
  def test_lower_case_and_plain_forms(self, text, language, expected, changes):
    letters = text_lib.letters_of([text], language=language)
    self.assertEqual(
        text_lib.normalize_common_voice(
            text, letters=letters, language=language
        ),
        (expected, changes),
    )
    self.assertEqual(
        letters, ''.join(sorted(set(expected.replace(' ', ''))))
    )

  def test_final_sigma_is_plain_where_the_letters_lack_it(self):
    alphabet = text_lib.letters_of(['ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ'])
    self.assertNotIn('ς', alphabet)
    self.assertEqual(
        text_lib.normalize_common_voice('Ο ΔΡΟΜΟΣ', letters=alphabet),
        ('ο δρομοσ', [text_lib.FINAL_SIGMA]),
    )

  # What Unidecode makes of them; the rule is the published code's.
  _UNIDECODE = {
      'é': 'e', 'ù': 'u', 'œ': 'oe', '\u0300': '', '’': "'", '‘': "'",
      '—': '--', '‐': '-', '…': '...', '\u00a0': ' ', '東': 'Dong ',
      '京': 'Jing ', '²': '2', 'ł': 'l', 'ß': 'ss', 'ü': 'u',
  }

  @parameterized.parameters(
      # Decomposed letters lose their accents, a tab joins.
      ('voila\u0300', 'voila', ['lost letters']),
      ('tab\there', 'tabhere', []),
      ('a\u00a0b  c ', 'a b c', []),
      ('東京', 'dong jing', ['had letters transliterated']),
      # Only ’ is an apostrophe, and not next to punctuation.
      ('‘Stop’, he said.', 'stop he said', []),
      ("it’s James’ l'été…’x", "it's james' l'été'x", []),
      ('James’-', 'james-', []),
      ('a ’\u0300b', 'a b', ['lost letters']),
      ('and/or—a‐b well-known a -b- c', 'andorab well-known a b c', []),
      ('Łù x² 5 + @', 'lù x', [
          'had letters transliterated', 'lost digits', 'lost symbols'
      ]),
  )
  def test_as_published(self, text, expected, changes):
    transliterate = lambda c: self._UNIDECODE.get(c, c)
    self.assertEqual(
        text_lib.normalize_as_published(
            text, letters=_FR, transliterate=transliterate
        ),
        (expected, changes),
    )

  def test_published_scripts_end_in_english_letters(self):
    found, changes = text_lib.normalize_as_published(
        'Œuf où ß',
        letters=_EN,
        transliterate=lambda c: self._UNIDECODE.get(c, c),
    )
    self.assertEqual(found, 'oeuf ou ss')
    self.assertEqual(changes, [text_lib.TRANSLITERATED])


class EnglishTest(parameterized.TestCase):

  @parameterized.parameters(
      ('RUBOUT  T G', 'rubout t g'),
      (' It\u2019s  a\twell-known ', "it's a well-known"),
      ('', ''),
  )
  def test_normalizes(self, text, expected):
    self.assertEqual(text_lib.normalize_english(text, name='u'), expected)
    self.assertEqual(text_lib.normalize_english(expected, name='u'), expected)

  @parameterized.parameters(
      ('room 5', "'5' .U.0035"), ('CAF\u00c9', 'U.00E9'), ('yes.', 'U.002E')
  )
  def test_other_characters_are_refused_by_name(self, text, character):
    with self.assertRaisesRegex(ValueError, f'utterance u-1: .*{character}'):
      text_lib.normalize_english(text, name='u-1')
