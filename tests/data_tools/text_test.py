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


# A transcript as people write it, in what language, what it becomes, and which
# changes are counted.
_WRITTEN = [
    # English.
    ('en', 'Hello.How are you?', 'hello how are you', [text_lib.SEPARATED]),
    ('en', 'foo_bar and/or', 'foo bar and or', [text_lib.SEPARATED]),
    ('en', 'well--known, well-known', 'well known well-known',
     [text_lib.SEPARATED]),
    ('en', '-no wait- - th- yes', 'no wait th yes', []),
    ('en', "She said 'stop' now", 'she said stop now', [text_lib.QUOTES]),
    ('en', '‘Stop!’, he said.', 'stop he said', [text_lib.QUOTES]),
    ('en', "``Stop'' he said", 'stop he said', [text_lib.QUOTES]),
    ('en', "it's James’ dog, 'tis", "it's james' dog 'tis", []),
    ('en', "James'. It’s. O＇Neil", "james' it's o'neil", []),
    ('en', "the ' end, '' too", 'the end too', [text_lib.QUOTES]),
    ('en', '[laughter] ok', 'ok', [text_lib.TAGS]),
    ('en', 'so {um} <noise> [[cough]] <i>yes</i>', 'so yes', [text_lib.TAGS]),
    ('en', 'a < b', 'a b', [text_lib.LOST_SYMBOLS]),
    ('en', ':) ok ( )', 'ok', []),
    ('en', 'is 66610, and it', 'is and it', [text_lib.LOST_DIGITS]),
    ('en', "the '90s", 'the s', [text_lib.LOST_DIGITS]),
    ('en', 'AT&T', 'at t', [text_lib.LOST_SYMBOLS, text_lib.SEPARATED]),
    ('en', 'co\u00adop\u200b \u202aok\ufe0f', 'coop ok', [text_lib.INVISIBLE]),
    # German.
    ('de', 'Hallo.Wie geht es', 'hallo wie geht es', [text_lib.SEPARATED]),
    ('de', 'Ja,nein', 'ja nein', [text_lib.SEPARATED]),
    ('de', 'z.B. E-Mail', 'z b e-mail', [text_lib.SEPARATED]),
    ('de', '‚Halt!‘, „rief“ »er« Ein- und Ausgang',
     'halt rief er ein und ausgang', [text_lib.QUOTES]),
    # French.
    ('fr', 'L’été, où est-ce\u202f? « Aujourd’hui »',
     "l'été où est-ce aujourd'hui", []),
    ('fr', 'Oui…non', 'oui non', [text_lib.SEPARATED]),
    # Turkish.
    ('tr', "IŞIK,İstanbul'da", "ışık istanbul'da", [text_lib.SEPARATED]),
    # Arabic: tatweel, marks of direction, its own punctuation and digits.
    ('ar', 'مرحبـــا', 'مرحبا', [text_lib.TATWEEL]),
    ('ar', 'نعم،لا؟', 'نعم لا', [text_lib.SEPARATED]),
    ('ar', '\u200fنعم ٣', 'نعم', [text_lib.INVISIBLE, text_lib.LOST_DIGITS]),
    # Hindi: vowel signs and viramas are no marks between words.
    ('hi', 'नमस्ते।आप कैसे हैं?', 'नमस्ते आप कैसे हैं', [text_lib.SEPARATED]),
    ('hi', "उसने 'नमस्ते' कहा [हँसी]", 'उसने नमस्ते कहा',
     [text_lib.QUOTES, text_lib.TAGS]),
    # Chinese has no spaces, and gets none.
    ('zh', '你好，世界。', '你好世界', []),
    ('zh', '你好——世界，ok.yes', '你好世界 ok yes', [text_lib.SEPARATED]),
    ('zh', '二〇二四 「好」 【笑】', '二〇二四 好', [text_lib.TAGS]),
    # Catalan, Hebrew.
    ('ca', 'col·lecció', 'collecció', []),
    ('he', 'צה״ל', 'צהל', []),
]


class WrittenTextTest(parameterized.TestCase):

  @parameterized.parameters(*_WRITTEN)
  def test_what_people_write(self, language, text, expected, kinds):
    letters = text_lib.letters_of(
        list(text_lib.cleaned([text])), language=language
    )
    found, changes = text_lib.normalize_written(
        text, letters=letters, language=language
    )
    self.assertEqual(found, expected)
    self.assertCountEqual(changes, kinds)
    # The letters are those of the words, and of nothing that was taken out.
    self.assertEqual(
        letters, ''.join(sorted(set(expected) - set(" '-")))
        if language != 'en' else letters,
    )
    again, changes = text_lib.normalize_written(
        expected, letters=letters, language=language
    )
    self.assertEqual((again, changes), (expected, []))

  @parameterized.parameters(
      '(laughs) ok', 'He came (as always) late', 'he came（总是）late',
      '((I think)) so', 'Schüler(innen)', 'wo[r]d', 'ok[laughter]', '{b}c',
  )
  def test_what_may_be_said_or_not_is_refused(self, text):
    with self.assertRaisesRegex(
        text_lib.BracketsError, 'has brackets around what may be said or not'
    ):
      text_lib.clean(text)
    self.assertEmpty(list(text_lib.cleaned([text])))

  def test_text_files_are_counted_with_the_shortest_example(self):
    found, changes = text_lib.sentences(
        ['Is 66610, and it', 'is 5', '', 'Yes (no)', '[hm]'], normalises=True
    )
    self.assertEqual(found, ['is and it', 'is'])
    self.assertEqual(changes.remarks('x.txt'), [
        "x.txt: lines had tags in brackets removed: 1, as '[hm]' becomes ''",
        'x.txt: lines left out, has brackets around what may be said or not: 1,'
        " as 'Yes (no)'",
        "x.txt: lines lost digits: 2, as 'is 5' becomes 'is'",
    ])
    # As data_tools.manifest, given the letters and the language.
    self.assertEqual(
        text_lib.sentences(
            ['IŞIK é'], normalises=True, alphabet='ışk', language='tr'
        )[0],
        ['ışık'],
    )
    kept, changes = text_lib.sentences(['Is  5', ''], normalises=False)
    self.assertEqual((kept, changes.remarks('x')), (['Is 5'], []))

  def test_tatweel_is_no_letter_of_common_voice(self):
    letters = text_lib.letters_of(['مرحبـا'])
    self.assertNotIn('ـ', letters)
    self.assertEqual(
        text_lib.normalize_common_voice('مرحبـا', letters=letters),
        ('مرحبا', [text_lib.TATWEEL]),
    )


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
