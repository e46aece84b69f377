"""Tests of tff_asr.execution.dataset_loops."""

import collections

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import toys
from tff_asr.execution import compiler
from tff_asr.execution import graph

_FLOATS = tff.SequenceType(np.float32)


def _ops(program: graph.Program) -> collections.Counter[str]:
  """How often each op is in a program's graphs and their functions."""
  return collections.Counter(
      node.op
      for each in program.graphs
      for nodes in graph.node_lists(
          tf.compat.v1.GraphDef.FromString(each.graph_def)
      )
      for node in nodes
  )


def _run(
    comp: tff.Computation, *arguments: tf.Tensor, num_loops: int = 1
) -> list[np.ndarray]:
  """The results of a computation with as many loops, and no reduction."""
  program = graph.Program((graph.from_computation(comp),))
  ops = _ops(program)
  assert ops['While'] == num_loops and not ops['ReduceDataset'], ops
  return [output.numpy() for output in program.load()(*arguments)]


def _variant(*values: float) -> tf.Tensor:
  dataset = tf.data.Dataset.from_tensor_slices(np.array(values, np.float32))
  return tf.data.experimental.to_variant(dataset)


@tff.tensorflow.computation(_FLOATS, np.float32)
def _count_and_scale(dataset, factor):
  """The number of elements, and their sum after 1 times a captured value."""
  return dataset.reduce(
      (0, 1.0), lambda state, value: (state[0] + 1, state[1] + factor * value)
  )


class ResultTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # 1 + 10 (2 + 3).
      ('two_elements', [2.0, 3.0], [2, 51.0]),
      ('one_element', [2.0], [1, 21.0]),
      ('none', [], [0, 1.0]),
  )
  def test_a_state_of_two_parts(self, values, expected):
    found = _run(_count_and_scale, _variant(*values), tf.constant(10.0))
    self.assertEqual(found, expected)

  def test_the_order_is_the_dataset_s(self):
    @tff.tensorflow.computation(_FLOATS)
    def read_digits(dataset):
      return dataset.reduce(0.0, lambda state, digit: 10 * state + digit)

    self.assertEqual(_run(read_digits, _variant(1.0, 2.0, 3.0)), [123.0])

  def test_it_may_be_in_a_function_and_its_result_be_used_there(self):
    @tf.function
    def mean(dataset):
      total, count = dataset.reduce(
          (0.0, 0.0), lambda state, value: (state[0] + value, state[1] + 1.0)
      )
      return total / count

    comp = tff.tensorflow.computation(mean, _FLOATS)
    self.assertEqual(_run(comp, _variant(1.0, 2.0, 6.0)), [3.0])

  def test_two_in_a_graph_are_two_loops(self):
    @tff.tensorflow.computation(_FLOATS)
    def sum_and_product(dataset):
      return (
          dataset.reduce(0.0, lambda state, value: state + value),
          dataset.reduce(1.0, lambda state, value: state * value),
      )

    found = _run(sum_and_product, _variant(2.0, 3.0, 4.0), num_loops=2)
    self.assertEqual(found, [9.0, 24.0])

  def test_one_within_another(self):
    @tff.tensorflow.computation(_FLOATS)
    def sum_of_sums(dataset):
      # To each element is added 0 + 1 + 2.
      return dataset.reduce(
          0.0,
          lambda state, value: state + value + tf.data.Dataset.range(3).reduce(
              0.0, lambda inner, index: inner + tf.cast(index, tf.float32)
          ),
      )

    found = _run(sum_of_sums, _variant(10.0, 20.0), num_loops=2)
    self.assertEqual(found, [36.0])

  def test_elements_of_several_parts_and_unknown_sizes(self):
    @tff.tensorflow.computation(
        tff.SequenceType(tff.types.tensorflow_to_type(toys.ELEMENT_SPEC))
    )
    def sum_parts(dataset):
      return dataset.reduce(
          (0.0, 0.0),
          lambda state, batch: (
              state[0] + tf.reduce_sum(batch['x']),
              state[1] + tf.reduce_sum(batch['y']),
          ),
      )

    dataset = tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(
            x=np.ones([5, 3], np.float32), y=np.full([5, 1], 2, np.float32)
        )
    ).batch(4)  # A batch of 4, and one of 1.
    found = _run(sum_parts, tf.data.experimental.to_variant(dataset))
    self.assertEqual(found, [15.0, 10.0])


class EffectTest(absltest.TestCase):

  def test_a_variable_is_read_after_the_last_step(self):
    @tff.tensorflow.computation(_FLOATS)
    def sum_into_variable(dataset):
      variable = tf.Variable(0.0)

      @tf.function
      def body():
        def step(state, value):
          variable.assign_add(value)
          return state + 1

        count = dataset.reduce(0, step)
        return count, variable.read_value()

      return body()

    variant = _variant(*range(100))
    self.assertEqual(_run(sum_into_variable, variant), [100, 4950.0])

  def test_a_failing_step_fails_the_call(self):
    @tff.tensorflow.computation(_FLOATS)
    def check(dataset):
      return dataset.reduce(
          0.0,
          lambda state, value: state + tf.debugging.check_numerics(value, 'Bad.')
      )

    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'Bad'):
      _run(check, _variant(1.0, np.nan))


class TrainingTest(absltest.TestCase):

  def test_training_in_a_reduction_has_the_bits_of_training_in_a_loop(self):
    weights = []
    for loop in tff.learning.LoopImplementation:
      process = tff.learning.algorithms.build_weighted_fed_avg(
          toys.build_model,
          client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1, 0.9),
          server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
          loop_implementation=loop,
      )
      program = compiler.compile_computation(process.next)
      self.assertNotIn('ReduceDataset', _ops(program.clients.work))
      state = toys.invoke(process.initialize)
      clients = [toys.build_dataset(seed) for seed in (1, 2, 3)]
      for _ in range(2):
        state = toys.invoke(process.next, state, clients).state
      weights.append(
          tf.nest.flatten(toys.invoke(process.get_model_weights, state))
      )
    self.assertLen(weights, 2)
    for loop, reduction in zip(*weights, strict=True):
      np.testing.assert_array_equal(loop, reduction)


if __name__ == '__main__':
  absltest.main()
