"""Tests of tff_asr.metrics.person_errors."""

import random

from absl.testing import parameterized
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.metrics import person_errors
from tff_asr.metrics import word_errors
from tff_asr.text import tokenizer as tokenizer_lib


class CountTest(parameterized.TestCase):

  # Errors, words, wrong sentences, sentences.
  @parameterized.named_parameters(
      # One substitution and one insertion; no error.
      ('two_utterances', ['the cat sat', 'yes'], ['the cat sad down', 'yes'],
       (2, 4, 1, 2)),
      ('deleted', ['a b c'], ['b'], (2, 3, 1, 1)),
      ('white_space', [' a\tb\n'], ['a  b'], (0, 2, 0, 1)),
      ('nothing_said', ['', 'a'], ['b c', 'a'], (2, 1, 1, 2)),
      ('nothing_recognised', ['a b'], [''], (2, 2, 1, 1)),
      ('only_empty', ['', ''], ['', ''], (0, 0, 0, 2)),
      ('all_references_empty', [''], ['a'], (1, 0, 1, 1)),
      ('no_utterances', [], [], (0, 0, 0, 0)),
      ('not_ascii', ['où est-il'], ['ou est-il'], (1, 2, 1, 1)),
      ('all_wrong', ['a', 'b', 'c d'], ['b', 'a', 'c'], (3, 4, 3, 3)),
  )
  def test_by_hand(self, references, hypotheses, expected):
    counts = person_errors.count(
        tf.constant(references, tf.string), tf.constant(hypotheses, tf.string)
    )
    self.assertEqual(tuple(map(int, counts)), expected)

  def test_equals_the_counts_by_alignment(self):
    generator = random.Random(1)
    text = lambda: ' '.join(
        generator.choices('abcd', k=generator.randrange(9))
    )
    for _ in range(50):
      references, hypotheses = ([text() for _ in range(4)] for _ in range(2))
      words, sentences = (
          word_errors.total(map(count, references, hypotheses))
          for count in (word_errors.count, word_errors.count_sentences)
      )
      counts = person_errors.count(
          tf.constant(references), tf.constant(hypotheses)
      )
      self.assertEqual(
          tuple(map(int, counts)),
          (words.errors, words.words, sentences.errors, sentences.words),
      )

  def test_runs_in_the_native_runtime(self):
    tff.backends.native.set_sync_local_cpp_execution_context()

    @tff.tensorflow.computation
    def counts():
      tokenizer = tokenizer_lib.CharTokenizer('ab ')
      ids = tf.RaggedTensor.from_row_lengths([0, 2, 1, 1], [3, 0, 1])
      return person_errors.count(
          tf.constant(['a b', 'b', 'a']), tokenizer.decode_batch(ids)
      )

    # 'a b', '' and 'b' were recognised.
    self.assertEqual(tuple(counts()), (2, 4, 2, 3))
