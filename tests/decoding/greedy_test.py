"""Tests of tff_asr.decoding.greedy."""

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
    self.assertEqual(
        greedy.decode(logits, tokens=' abc'),
        hypothesis.Hypothesis(
            'aa b',
            [hypothesis.Word('aa', 1, 4), hypothesis.Word('b', 6, 7)],
        ),
    )

  def test_a_sentence_piece_may_end_one_word_and_begin_another(self):
    tokens = ('a', ' b', 'c d')
    self.assertEqual(
        greedy.decode(_logits(0, 3, 1, 2, vocab_size=4), tokens=tokens),
        hypothesis.Hypothesis(
            'a bc d',
            [
                hypothesis.Word('a', 0, 1),
                hypothesis.Word('bc', 2, 4),
                hypothesis.Word('d', 3, 4),
            ],
        ),
    )

  def test_no_frames(self):
    self.assertEqual(
        greedy.decode(np.zeros([0, 5], np.float32), tokens=' abc'),
        hypothesis.Hypothesis('', []),
    )

  def test_the_text_is_that_of_the_graph(self):
    tokenizer = tokenizer_lib.CharTokenizer(' abc')
    logits = np.random.default_rng(0).normal(size=[20, 30, 5])
    logits = logits.astype(np.float32)
    ids = ctc.greedy_decode(tf.constant(logits), tf.fill([20], 30)).to_list()
    self.assertEqual(
        [greedy.decode(each, tokens=tokenizer.tokens).text for each in logits],
        [tokenizer.decode(each).strip() for each in ids],
    )
