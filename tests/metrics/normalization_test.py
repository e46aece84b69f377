"""Tests of tff_asr.metrics.normalization."""

import importlib.util
import sys
from unittest import mock

from absl.testing import parameterized
import pytest

from tff_asr.metrics import normalization
from tff_asr.metrics import word_errors

needs_package = pytest.mark.skipif(
    importlib.util.find_spec('whisper_normalizer') is None,
    reason='needs the packages of requirements-whisper-normalizer.txt',
)


class NormalizationTest(parameterized.TestCase):

  # Rules, reference, hypothesis, and the word errors that remain.
  @parameterized.parameters(
      ([], 'a-b c', 'a b c', 2),
      (['hyphens'], 'a-b c', 'a b c', 0),
      (['hyphens'], 'ab c', 'a b c', 2),
      (['digits'], 'room four two', 'room 42', 0),
      (['digits'], 'room 4 2', 'room four two', 0),
      # Digits one by one: 'four two'.
      (['digits'], 'forty two', '42', 1),
      (['compounds'], 'every one is here', 'everyone is here', 0),
      (['compounds'], 'everyone is here', 'every one is here', 0),
      (['compounds'], 'is every one', 'is everyone', 0),
      # Other letters: all errors count.
      (['compounds'], 'every one is', 'everyane is', 2),
      (['compounds'], 'a bc d', 'ab cd', 0),
      (['compounds'], 'a b', '', 2),
      (['compounds'], '', 'a b', 2),
      # Hyphens first: the compound is seen then.
      (['compounds', 'hyphens'], 'well-known', 'wellknown', 0),
      (['compounds'], 'well-known', 'wellknown', 1),
      (['case'], 'Ändern wir BOB', 'ändern wir bob', 0),
      (['case'], 'Bob, wait', 'bob wait', 1),
      (['punctuation'], '"Yes," he said...', 'Yes he said', 0),
      (['punctuation'], 'Yes, he', 'yes he', 1),
      # A word is not joined to the next one.
      (['punctuation'], 'yes,no', 'yes no', 0),
      (['punctuation'], 'one – two ¿tres?', 'one two tres', 0),
      (['punctuation'], "don’t", "don't", 0),
      (['punctuation'], "don't", 'dont', 1),
      (['punctuation'], "the boys' 'coat'", 'the boys coat', 0),
      (['punctuation'], 'well-known - yes-', 'well-known yes', 0),
      (['punctuation', 'hyphens'], 'well-known - yes', 'well known yes', 0),
  )
  def test_word_errors_by_hand(self, rules, reference, hypothesis, errors):
    pair = normalization.normalize(reference, hypothesis, rules=rules)
    self.assertEqual(word_errors.count(*pair).errors, errors)

  # Twenty sentences, with the results that Whisper's paper describes.
  @needs_package
  @parameterized.parameters(
      ("I'm sure it won't rain.", 'i am sure it will not rain'),
      ("They've said we're late.", 'they have said we are late'),
      ("He'd been there; she'd gone.", 'he had been there she had gone'),
      ('Mr. Smith met Dr. Jones.', 'mister smith met doctor jones'),
      ('Mrs. Lee saw Prof. Kay.', 'missus lee saw professor kay'),
      ('It costs twenty-five dollars.', 'it costs $25'),
      ('It costs $2.50.', 'it costs $2.50'),
      ('ten thousand and one nights', '10001 nights'),
      ('in nineteen eighty four', 'in 1984'),
      ('the twenty first century', 'the 21st century'),
      ('one of the two', 'one of the 2'),
      ('fifty percent of 1,000 people', '50% of 1000 people'),
      ('My favourite colour is grey.', 'my favorite color is gray'),
      ('They realised the centre closed.', 'they realized the center closed'),
      ('Uh, well, um, yes, hmm.', 'well yes'),
      ('[music] Good morning (laughs).', 'good morning'),
      ('A café in São Paulo', 'a cafe in sao paulo'),
      ('state-of-the-art — really?', 'state of the art really'),
      ("Let's see what you're gonna do",
       'let us see what you are going to do'),
      ('call four oh two five', 'call 4025'),
      # What it gets wrong, as docs/using.md says.
      ("Earth's inclination", 'earth is inclination'),
      ("Monday morning at five o'clock.", 'monday morning at 50 clock'),
      ('If you’ve been crying', 'if you ve been crying'),
  )
  def test_english_by_hand(self, text, expected):
    self.assertEqual(
        normalization.normalize(text, expected, rules=['english']),
        (expected, expected),
    )

  @needs_package
  def test_english_includes_case_and_punctuation(self):
    text = '"Yes," said Ann: he\'s 5\'11", isn\'t he?'
    alone, _ = normalization.normalize(text, '', rules=['english'])
    self.assertEqual(alone, 'yes said ann he is 5 11 is not he')
    self.assertEqual(
        normalization.normalize(
            text, '', rules=['punctuation', 'english', 'case']
        ),
        (alone, ''),
    )
    # After english: 'ten two' is '102', whose digits are spelled then.
    self.assertEqual(
        normalization.normalize('Ten two!', '102', rules=['digits', 'english']),
        (' one  zero  two ', ' one  zero  two '),
    )

  def test_english_without_its_package_is_refused_in_one_line(self):
    normalization._english_normalizer.cache_clear()
    self.addCleanup(normalization._english_normalizer.cache_clear)
    with mock.patch.dict(sys.modules, {'whisper_normalizer': None}):
      with self.assertRaises(ValueError) as caught:
        normalization.check(['case', 'english'])
      # The other rules do not need it.
      normalization.check(['case', 'punctuation'])
    self.assertEqual(
        str(caught.exception),
        'the rule english needs a further package; install it with: pip '
        'install --no-deps -r requirements-whisper-normalizer.txt',
    )

  def test_a_rule_may_change_the_number_of_words(self):
    reference, _ = normalization.normalize('a-b 12', '', rules=['hyphens'])
    self.assertEqual(reference, 'a b 12')
    # Compounds never change the reference, so rates keep their words.
    self.assertEqual(
        normalization.normalize('a b', 'ab', rules=['compounds']),
        ('a b', 'a b'),
    )

  def test_unknown_rules(self):
    with self.assertRaisesRegex(ValueError, "rule must be one of.*'hyphen'"):
      normalization.check(['hyphen'])
    with self.assertRaisesRegex(ValueError, 'must be a list of names'):
      normalization.check('hyphens')
