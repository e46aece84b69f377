"""Tests of tff_asr.decoding.greedy."""

import math

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tff_asr.decoding import greedy
from tff_asr.decoding import hypothesis
from tff_asr.models import ctc
from tff_asr.text import tokenizer as tokenizer_lib


def _logits(*tokens: int, vocab_size: int) -> np.ndarray:
  return np.eye(vocab_size, dtype=np.float32)[list(tokens)]


class GreedyTest(absltest.TestCase):

  def test_words_lie_in_the_frames_that_emit_their_letters(self):
    # ' abc' and the blank 4: ' a-a', a long space, 'bb', a space at the end.
    logits = _logits(0, 1, 4, 1, 0, 0, 2, 2, 0, vocab_size=5)
    (found,) = greedy.decode(logits, tokens=' abc')
    self.assertEqual(found.text, 'aa b')
    self.assertEqual(
        [each[:3] for each in found.words], [('aa', 1, 4), ('b', 6, 7)]
    )

  def test_a_sentence_piece_may_end_one_word_and_begin_another(self):
    tokens = ('a', ' b', 'c d')
    (found,) = greedy.decode(_logits(0, 3, 1, 2, vocab_size=4), tokens=tokens)
    self.assertEqual(found.text, 'a bc d')
    self.assertEqual(
        [each[:3] for each in found.words],
        [('a', 0, 1), ('bc', 2, 4), ('d', 3, 4)],
    )

  def test_confidences_and_score_by_hand(self):
    # 'a' with .5, a blank, 'b' with .8 that lasts, a space, 'c' with .9.
    probs = np.full([6, 5], 0.01)
    best = (1, 4, 2, 2, 0, 3)
    shares = (0.5, 0.96, 0.8, 0.3, 0.6, 0.9)
    for frame, (token, share) in enumerate(zip(best, shares)):
      probs[frame] = (1 - share) / 4
      probs[frame, token] = share
    # Logits may have any offset.
    (found,) = greedy.decode(np.log(probs) + 7.0, tokens=' abc')
    self.assertEqual(found.text, 'ab c')
    np.testing.assert_allclose(
        [each.confidence for each in found.words], [math.sqrt(0.5 * 0.8), 0.9]
    )
    self.assertAlmostEqual(found.score, math.log(math.prod(shares)))

  def test_no_frames(self):
    self.assertEqual(
        greedy.decode(np.zeros([0, 5], np.float32), tokens=' abc'),
        [hypothesis.Hypothesis('', [], 0.0)],
    )

  def test_the_text_is_that_of_the_graph(self):
    tokenizer = tokenizer_lib.CharTokenizer(' abc')
    logits = np.random.default_rng(0).normal(size=[20, 30, 5])
    logits = logits.astype(np.float32)
    ids = ctc.greedy_decode(tf.constant(logits), tf.fill([20], 30)).to_list()
    self.assertEqual(
        [
            greedy.decode(each, tokens=tokenizer.tokens)[0].text
            for each in logits
        ],
        [tokenizer.decode(each).strip() for each in ids],
    )
