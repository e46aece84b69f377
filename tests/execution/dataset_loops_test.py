"""Tests of tff_asr.execution.dataset_loops."""

import collections
import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import logical_devices
from tests.execution import toys
from tff_asr.execution import compiler
from tff_asr.execution import graph
from tff_asr.execution import native

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


def _digits(dataset: tf.data.Dataset) -> tf.Tensor:
  """A number that depends on the order of a dataset of int64."""
  return dataset.reduce(
      np.int64(1), lambda state, value: (31 * state + value) % 1_000_003
  )


def _shuffled(**settings: bool) -> tf.data.Dataset:
  return tf.data.Dataset.range(20).shuffle(20, seed=7, **settings)


def _twice(dataset: tf.data.Dataset):
  return _digits(dataset), _digits(dataset)


def _derived():
  dataset = _shuffled()
  return (
      _digits(dataset.map(lambda value: value + 1).filter(lambda x: x > 3)),
      _digits(dataset),
      _digits(dataset.map(lambda value: value + 1)),
  )


def _reversed():
  return _twice(_shuffled())[::-1]


def _second_alone():
  return _twice(_shuffled())[1]


def _with_a_random_op():
  return _shuffled().map(
      lambda value: value + tf.random.uniform([], 0, 100, tf.int64, seed=3)
  )


def _function_twice():
  dataset, function = _shuffled(), tf.function(_digits)
  return function(dataset), function(dataset)


def _nested_functions():
  inner, dataset = tf.function(_digits), _shuffled()

  @tf.function
  def outer(dataset):
    return inner(dataset), _twice(dataset.map(lambda value: value + 1))

  return outer(dataset), inner(dataset)


def _shuffled_in_a_function():
  return tf.function(lambda: _twice(_shuffled()))()


def _loop():
  @tf.function
  def loop(dataset):
    total = np.int64(0)
    for _ in tf.range(3):
      total = 7 * total + _digits(dataset)
    return total

  dataset = _shuffled()
  return loop(dataset), _digits(dataset)


def _nested_reductions():
  dataset = _shuffled()
  return _digits(dataset), tf.data.Dataset.range(3).reduce(
      np.int64(1), lambda state, _: (7 * state + _digits(dataset)) % 1_000_003
  )


def _single_element():
  dataset = _shuffled()
  return dataset.batch(20).get_single_element(), *_twice(dataset)


_PROGRAMS = dict(
    one_dataset=lambda: _twice(_shuffled()),
    one_order=lambda: _twice(_shuffled(reshuffle_each_iteration=False)),
    repeated=lambda: _twice(_shuffled().repeat(3)),
    random_op=lambda: _twice(_with_a_random_op()),
    derived=_derived,
    results_reversed=_reversed,
    second_alone=_second_alone,
    function_twice=_function_twice,
    nested_functions=_nested_functions,
    shuffled_in_a_function=_shuffled_in_a_function,
    loop=_loop,
    nested_reductions=_nested_reductions,
    single_element=_single_element,
)
_NUM_CALLS = 40


@functools.lru_cache
def _build_native():
  return native.build_sync_context(trust_network=True)


def tearDownModule():  # pylint: disable=invalid-name
  native.stop()
  _build_native.cache_clear()


@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.execution.dataset_loops_test'


@logical_devices.needed
class ShuffleTest(parameterized.TestCase):

  def results(self, context, call, num_calls=_NUM_CALLS) -> set[str]:
    """The different results of calls in a context."""
    with tff.framework.get_context_stack().install(context):
      return {
          str([np.asarray(each).tolist() for each in tf.nest.flatten(call())])
          for _ in range(num_calls)
      }

  @parameterized.named_parameters(_PROGRAMS.items())
  def test_every_call_has_native_s_result(self, program):
    comp = tff.tensorflow.computation(program)
    expected = self.results(_build_native(), comp)
    self.assertLen(expected, 1)
    self.assertEqual(self.results(toys.build_context(), comp), expected)

  def test_so_have_clients_on_several_devices(self):
    @tff.tensorflow.computation(np.int64)
    def from_graph(number):
      return [number * each for each in _twice(_shuffled().repeat(2))]

    @tff.tensorflow.computation(np.int64)
    def from_function(number):
      # Both read one generator: TFF's worker lets chance decide which is first.
      return [number * each for each in _twice(tf.function(_shuffled)())]

    context = toys.build_context(devices=logical_devices.CPUS[:2])
    numbers = np.arange(1, 9).tolist()
    call = functools.partial(toys.sum_of(from_graph), numbers)
    expected = self.results(_build_native(), call, num_calls=5)
    self.assertLen(expected, 1)
    self.assertEqual(self.results(context, call), expected)
    call = functools.partial(toys.sum_of(from_function), numbers)
    in_order = [36 * int(each) for each in _twice(_shuffled())]
    self.assertEqual(self.results(context, call), {str(in_order)})

  def test_two_readings_of_an_argument_come_in_one_order(self):
    twice = tff.tensorflow.computation(_twice, tff.SequenceType(np.int64))
    functions = tff.tensorflow.computation(
        lambda dataset: (tf.function(_digits)(dataset), _digits(dataset)),
        tff.SequenceType(np.int64),
    )
    found = [
        # A dataset's generator goes on from call to call, so each has its own.
        self.results(toys.build_context(), lambda comp=comp: comp(_shuffled()))
        for comp in (twice, functions)
    ]
    # Both read it as eager code does.
    expected = str([int(each) for each in _twice(_shuffled())])
    self.assertEqual(found, [{expected}] * 2)


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
