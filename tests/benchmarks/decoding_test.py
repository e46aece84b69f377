"""Error rates and ranks of confidences, by hand."""

import math

from absl.testing import absltest
import numpy as np

from benchmarks import decoding
from tff_asr.decoding import hypothesis

_LOGITS = np.zeros([1, 2], np.float32)


def _judge(*utterances):
  """Judges utterances: reference, and (word, confidence) of each word found."""
  found = iter([words for _, words in utterances])

  def decode(logits):
    del logits
    words = next(found)
    return [
        hypothesis.Hypothesis(
            ' '.join(text for text, _ in words),
            [hypothesis.Word(text, 0, 1, score) for text, score in words],
            0.0,
        )
    ]

  return decoding.judge([(text, _LOGITS) for text, _ in utterances], decode)


class JudgeTest(absltest.TestCase):

  def test_pairs_of_right_and_wrong_words(self):
    rate, above = _judge(
        # Right .9 and .5. Wrong .5, in place of c.
        ('a b c', [('a', 0.9), ('b', 0.5), ('x', 0.5)]),
        # Right .3 and .4. Wrong .2, inserted. d, deleted, has no confidence.
        ('d e f', [('e', 0.3), ('f', 0.4), ('y', 0.2)]),
    )
    # A substitution, a deletion and an insertion, of 6 words.
    self.assertAlmostEqual(rate, 3 / 6)
    # Above .5: .9, and the tie by half; above .2: all four.
    self.assertAlmostEqual(above, (1 + 0.5 + 4) / 8)

  def test_without_wrong_words_nothing_is_ranked(self):
    rate, above = _judge(('a b', [('a', 0.9), ('b', 0.5)]))
    self.assertEqual(rate, 0)
    self.assertTrue(math.isnan(above))


if __name__ == '__main__':
  absltest.main()
