"""Tests of tff_asr.metrics.person_errors."""

import random

from absl.testing import parameterized
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.metrics import person_errors
from tff_asr.metrics import word_errors
from tff_asr.text import tokenizer as tokenizer_lib


class CountTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # One substitution and one insertion; no error.
      ('two_utterances', ['the cat sat', 'yes'], ['the cat sad down', 'yes'],
       2, 4),
      ('deleted', ['a b c'], ['b'], 2, 3),
      ('white_space', [' a\tb\n'], ['a  b'], 0, 2),
      ('nothing_said', ['', 'a'], ['b c', 'a'], 2, 1),
      ('nothing_recognised', ['a b'], [''], 2, 2),
      ('only_empty', ['', ''], ['', ''], 0, 0),
      ('all_references_empty', [''], ['a'], 1, 0),
      ('no_utterances', [], [], 0, 0),
      ('not_ascii', ['où est-il'], ['ou est-il'], 1, 2),
  )
  def test_by_hand(self, references, hypotheses, errors, words):
    counts = person_errors.count(
        tf.constant(references, tf.string), tf.constant(hypotheses, tf.string)
    )
    self.assertEqual((int(counts.errors), int(counts.words)), (errors, words))

  def test_equals_the_counts_by_alignment(self):
    generator = random.Random(1)
    text = lambda: ' '.join(
        generator.choices('abcd', k=generator.randrange(9))
    )
    for _ in range(50):
      references, hypotheses = ([text() for _ in range(4)] for _ in range(2))
      expected = word_errors.total(
          map(word_errors.count, references, hypotheses)
      )
      counts = person_errors.count(
          tf.constant(references), tf.constant(hypotheses)
      )
      self.assertEqual(
          (int(counts.errors), int(counts.words)),
          (expected.errors, expected.words),
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
    self.assertEqual(tuple(counts()), (2, 4))
