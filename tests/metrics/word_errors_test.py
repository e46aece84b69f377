import math

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr.metrics import word_errors


class AlignTest(parameterized.TestCase):

  # Aligned by hand: substitutions, deletions, insertions, words.
  @parameterized.named_parameters(
      ('equal', 'a cat sat', 'a cat sat', (0, 0, 0, 3)),
      ('substitution', 'a cat sat', 'a hat sat', (1, 0, 0, 3)),
      ('deletion', 'a cat sat', 'a sat', (0, 1, 0, 3)),
      ('insertion', 'a cat sat', 'a fat cat sat', (0, 0, 1, 3)),
      # The to a, quick deleted, fox to box, over inserted: 4 in all; without
      # deletion and insertion it would be five.
      (
          'all',
          'the quick brown fox jumps',
          'a brown box jumps over',
          (2, 1, 1, 5),
      ),
      ('nothing_heard', 'a cat sat', '', (0, 3, 0, 3)),
      ('nothing_said', '', 'a cat', (0, 0, 2, 0)),
      ('neither', '', '', (0, 0, 0, 0)),
      ('blanks_said', '  ', 'cat', (0, 0, 1, 0)),
      ('blanks_heard', 'cat', '  ', (0, 1, 0, 1)),
      ('case_counts', 'Cat', 'cat', (1, 0, 0, 1)),
      ('extra_spaces', ' a  cat ', 'a cat', (0, 0, 0, 2)),
      ('tabs_and_lines', 'a\tcat\nsat', 'a cat sat', (0, 0, 0, 3)),
      ('hyphens_join', "it's well-known", 'its well known', (2, 0, 1, 2)),
  )
  def test_by_hand(self, reference, hypothesis, expected):
    self.assertEqual(tuple(word_errors.align(reference, hypothesis)), expected)


class WordErrorsTest(absltest.TestCase):

  def test_rate_by_hand(self):
    # (2 + 1 + 1) / 8.
    self.assertEqual(word_errors.WordErrors(2, 1, 1, 8).errors, 4)
    self.assertEqual(word_errors.WordErrors(2, 1, 1, 8).rate, 0.5)

  def test_rate_may_exceed_1(self):
    self.assertEqual(word_errors.align('a', 'b c d').rate, 3.0)

  def test_rate_without_words_is_nan(self):
    self.assertTrue(math.isnan(word_errors.align('', 'a').rate))
    self.assertTrue(math.isnan(word_errors.WordErrors().rate))

  def test_total_weighs_utterances_by_their_words(self):
    # 1 of 1 wrong and 0 of 3: a quarter, not a half.
    total = word_errors.total(
        [word_errors.align('a', 'b'), word_errors.align('a b c', 'a b c')]
    )
    self.assertEqual(total, word_errors.WordErrors(1, 0, 0, 4))
    self.assertEqual(total.rate, 0.25)

  def test_sums_are_word_errors(self):
    total = word_errors.WordErrors(1, 2, 3, 4) + word_errors.WordErrors(
        10, 20, 30, 40
    )
    self.assertEqual(total, word_errors.WordErrors(11, 22, 33, 44))
    self.assertIsInstance(total, word_errors.WordErrors)

  def test_total_of_nothing_is_zero(self):
    self.assertEqual(word_errors.total([]), word_errors.WordErrors())
    self.assertEqual(
        word_errors.total(iter([word_errors.WordErrors(words=1)])).words, 1
    )


if __name__ == '__main__':
  absltest.main()
