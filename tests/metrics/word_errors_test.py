"""Tests of tff_asr.metrics.word_errors."""

import math
import random

from absl.testing import parameterized
import numpy as np

from tff_asr.metrics import confidence
from tff_asr.metrics import word_errors


class AlignTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (
          'each_kind',
          'one two three',
          'one to three four',
          [
              ('equal', 'one', 'one'),
              ('substitute', 'two', 'to'),
              ('equal', 'three', 'three'),
              ('insert', '', 'four'),
          ],
      ),
      ('deleted', 'a b', 'a', [('equal', 'a', 'a'), ('delete', 'b', '')]),
      ('nothing_said', '', 'a b', [('insert', '', 'a'), ('insert', '', 'b')]),
      ('neither', '', '', []),
      ('white_space', ' a\tb\n', 'a  b', [
          ('equal', 'a', 'a'), ('equal', 'b', 'b'),
      ]),
  )
  def test_by_hand(self, reference, hypothesis, expected):
    self.assertEqual(word_errors.align(reference, hypothesis), expected)

  def test_pairs_contain_both_texts_with_the_fewest_errors(self):
    generator = random.Random(1)
    for _ in range(200):
      reference, hypothesis = (
          generator.choices('abcd', k=generator.randrange(8)) for _ in range(2)
      )
      pairs = word_errors.align(' '.join(reference), ' '.join(hypothesis))
      self.assertEqual(
          [pair.reference for pair in pairs if pair.kind != 'insert'], reference
      )
      self.assertEqual(
          [pair.hypothesis for pair in pairs if pair.kind != 'delete'], hypothesis
      )
      for pair in pairs:
        self.assertEqual(pair.kind == 'equal', pair.reference == pair.hypothesis)
      self.assertEqual(
          word_errors.count(' '.join(reference), ' '.join(hypothesis)).errors,
          _distance(reference, hypothesis),
      )


def _distance(reference: list[str], hypothesis: list[str]) -> int:
  """Levenshtein's."""
  row = list(range(len(hypothesis) + 1))
  for number, word in enumerate(reference, 1):
    before, row = row, [number]
    for place, other in enumerate(hypothesis):
      row.append(min(
          before[place] + (word != other), before[place + 1] + 1, row[place] + 1
      ))
  return row[-1]


class CharactersTest(parameterized.TestCase):

  # Substitutions, deletions, insertions, characters of the reference.
  @parameterized.parameters(
      ('the cat', 'the cad', (1, 0, 0, 7)),
      # The space is a character.
      ('the cat', 'thecat', (0, 1, 0, 7)),
      ('a b', 'a  b x', (0, 0, 2, 3)),
      (' a\tb\n', 'a b', (0, 0, 0, 3)),
      ('', 'ab', (0, 0, 2, 0)),
      ('ü', 'u', (1, 0, 0, 1)),
  )
  def test_by_hand(self, reference, hypothesis, expected):
    self.assertEqual(
        word_errors.count_characters(reference, hypothesis), expected
    )


class SentencesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('the cat sat', 'the cat sat', 0),
      (' the\tcat\n', 'the  cat', 0),
      ('the cat', 'the cat sat', 1),
      # Two errors are one wrong sentence.
      ('the cat sat', 'a cat sad', 1),
      ('cat', 'Cat', 1),
      ('', 'a', 1),
      ('a', '', 1),
      ('', '', 0),
  )
  def test_by_hand(self, reference, hypothesis, wrong):
    found = word_errors.count_sentences(reference, hypothesis)
    self.assertEqual(found, (wrong, 0, 0, 1))

  def test_rate_and_interval_over_speakers_by_hand(self):
    said = {
        'ann': [('a b', 'a b'), ('c', 'd'), ('e f', 'f e')],
        'bob': [('a', 'a')],
    }
    found = {
        name: word_errors.total(
            word_errors.count_sentences(*pair) for pair in pairs
        )
        for name, pairs in said.items()
    }
    self.assertEqual(found['ann'], (2, 0, 0, 3))
    # Two of four; Bob alone has none wrong, Ann alone two of three.
    np.testing.assert_allclose(
        confidence.rate(*zip(*((e.errors, e.words) for e in found.values()))),
        (2 / 4, 0, 2 / 3),
    )


class CountTest(parameterized.TestCase):

  # Aligned by hand: substitutions, deletions, insertions, words.
  @parameterized.named_parameters(
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
      ('case_counts', 'Cat', 'cat', (1, 0, 0, 1)),
      ('hyphens_join', "it's well-known", 'its well known', (2, 0, 1, 2)),
  )
  def test_by_hand(self, reference, hypothesis, expected):
    self.assertEqual(tuple(word_errors.count(reference, hypothesis)), expected)

  # Characters, spaces among them: o to a; two insertions; a space deleted.
  @parameterized.parameters(
      ('cot', 'cat', (1, 0, 0, 3)),
      ('cat', ' cat ', (0, 0, 2, 3)),
      ('a cat', 'acat', (0, 1, 0, 5)),
      ('  ', '', (0, 2, 0, 2)),
      ('', 'ab', (0, 0, 2, 0)),
      ('', '', (0, 0, 0, 0)),
  )
  def test_tokens_by_hand(self, reference, hypothesis, expected):
    ids = [list(map(ord, text)) for text in (reference, hypothesis)]
    found = word_errors.count_tokens(*ids)
    self.assertEqual(tuple(found), expected)

  def test_the_published_rate_by_hand(self):
    # 1 of 2 words wrong and 0 of 6: (1/2 * 4 + 0 * 8) / (4 + 8), not 1 / 8.
    errors = [
        word_errors.WordErrors(1, 0, 0, 2), word_errors.WordErrors(words=6),
        word_errors.WordErrors(insertions=3),
    ]
    self.assertAlmostEqual(word_errors.published_rate(errors), 1 / 6)
    # With four rows that fill a batch: 2 / (12 + 4).
    self.assertAlmostEqual(
        word_errors.published_rate(errors, num_fill_rows=4), 1 / 8
    )
    self.assertTrue(
        math.isnan(word_errors.published_rate(errors[2:], num_fill_rows=8))
    )

  def test_rates_by_hand(self):
    # (2 + 1 + 1) / 8.
    self.assertEqual(word_errors.WordErrors(2, 1, 1, 8).rate, 0.5)
    self.assertEqual(word_errors.count('a', 'b c d').rate, 3.0)
    self.assertTrue(math.isnan(word_errors.count('', 'a').rate))

  def test_total_weighs_utterances_by_their_words(self):
    # 1 of 1 wrong and 0 of 3: a quarter, not a half.
    total = word_errors.total(
        word_errors.count(*pair) for pair in (('a', 'b'), ('a b c', 'a b c'))
    )
    self.assertEqual(total, word_errors.WordErrors(1, 0, 0, 4))
    self.assertEqual(total.rate, 0.25)
    self.assertEqual(
        word_errors.total([(1, 2, 3, 4), (10, 20, 30, 40)]), (11, 22, 33, 44)
    )
    self.assertEqual(word_errors.total([]), word_errors.WordErrors())
