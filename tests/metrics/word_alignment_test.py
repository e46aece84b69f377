"""Tests of tff_asr.metrics.word_alignment."""

import random

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr.metrics import word_alignment
from tff_asr.metrics import word_errors

_EQUAL = word_alignment.EQUAL
_SUBSTITUTED = word_alignment.SUBSTITUTED
_DELETED = word_alignment.DELETED
_INSERTED = word_alignment.INSERTED


class WordAlignmentTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('equal', 'a b', 'a b', [(_EQUAL, 'a', 'a'), (_EQUAL, 'b', 'b')]),
      (
          'each_kind',
          'one two three',
          'one to three four',
          [
              (_EQUAL, 'one', 'one'),
              (_SUBSTITUTED, 'two', 'to'),
              (_EQUAL, 'three', 'three'),
              (_INSERTED, '', 'four'),
          ],
      ),
      ('deleted', 'a b', 'a', [(_EQUAL, 'a', 'a'), (_DELETED, 'b', '')]),
      ('nothing_heard', 'a', '', [(_DELETED, 'a', '')]),
      ('nothing_said', '', 'a b', [(_INSERTED, '', 'a'), (_INSERTED, '', 'b')]),
      ('neither', '', '', []),
      ('white_space', ' a\tb ', 'a  b', [
          (_EQUAL, 'a', 'a'), (_EQUAL, 'b', 'b'),
      ]),
  )
  def test_by_hand(self, reference, hypothesis, expected):
    self.assertEqual(word_alignment.align(reference, hypothesis), expected)

  def test_spells_both_and_counts_as_word_errors_do(self):
    generator = random.Random(1)
    for _ in range(200):
      reference, hypothesis = (
          ' '.join(generator.choices('abcd', k=generator.randrange(8)))
          for _ in range(2)
      )
      pairs = word_alignment.align(reference, hypothesis)
      self.assertEqual(
          [pair.reference for pair in pairs if pair.kind != _INSERTED],
          reference.split(),
      )
      self.assertEqual(
          [pair.heard for pair in pairs if pair.kind != _DELETED],
          hypothesis.split(),
      )
      kinds = [pair.kind for pair in pairs]
      errors = word_errors.align(reference, hypothesis)
      self.assertEqual(kinds.count(_SUBSTITUTED), errors.substitutions)
      self.assertEqual(kinds.count(_DELETED), errors.deletions)
      self.assertEqual(kinds.count(_INSERTED), errors.insertions)


if __name__ == '__main__':
  absltest.main()
