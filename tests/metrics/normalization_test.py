"""Tests of tff_asr.metrics.normalization."""

from absl.testing import parameterized

from tff_asr.metrics import normalization
from tff_asr.metrics import word_errors


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
  )
  def test_word_errors_by_hand(self, rules, reference, hypothesis, errors):
    pair = normalization.normalize(reference, hypothesis, rules=rules)
    self.assertEqual(word_errors.count(*pair).errors, errors)

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
