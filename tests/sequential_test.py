"""Tests of tff_asr.sequential."""

from absl.testing import absltest
import tensorflow as tf

from tff_asr import sequential


class SequentialMapTest(absltest.TestCase):

  def test_each_element_waits_for_the_results_of_the_one_before(self):
    begun = []

    @tf.function(autograph=False)
    def add(left, right):
      def add_one(a, b):
        begun.append(tf.square(a))
        return {'sum': begun[-1] + b, 'none': None}

      results = sequential.sequential_map(add_one, left, right)
      return [each['sum'] for each in results]

    found = add(list(map(tf.constant, (1, 2, 3))), [4, 5, 6])
    self.assertEqual([int(x) for x in found], [1 + 4, 4 + 5, 9 + 6])
    self.assertEqual(
        [[op.type for op in x.op.control_inputs] for x in begun],
        [[], ['AddV2'], ['AddV2']],
    )

  def test_ops_that_an_iterator_creates_wait_too(self):
    drawn = []

    def draw(given):
      for _ in range(2):
        drawn.append(tf.negative(given))
        yield drawn[-1]

    @tf.function(autograph=False)
    def square(given):
      return sequential.sequential_map(tf.square, draw(given))

    self.assertEqual([int(x) for x in square(tf.constant(3))], [9, 9])
    self.assertEqual(
        [[op.type for op in x.op.control_inputs] for x in drawn],
        [[], ['Square']],
    )

  def test_sequences_have_one_length(self):
    with self.assertRaises(ValueError):
      sequential.sequential_map(lambda a, b: a, [1, 2], [1])
