"""Tests of tff_asr.execution.graph."""

from collections.abc import Callable
from concurrent import futures
import dataclasses
import gc
import os
import pickle
from unittest import mock
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
import tensorflow_federated as tff

from tff_asr import sequential
from tff_asr.execution import graph
from tff_asr.text import tokenizer


def _build_adder(amount: float) -> graph.Graph:
  """Adds `amount` in a library function that is named 'helper'."""

  @tf.function
  def helper(x):
    return x + amount

  comp = tff.tensorflow.computation(helper, np.float32)
  serialized = graph.from_computation(comp)
  graph_def = tf.compat.v1.GraphDef.FromString(serialized.graph_def)
  (function,) = graph_def.library.function
  name = function.signature.name
  function.signature.name = 'helper'
  for node in graph_def.node:
    if 'f' in node.attr and node.attr['f'].func.name == name:
      node.attr['f'].func.name = 'helper'
      node.attr['_reference'].s = b'helper'
  return dataclasses.replace(
      serialized, graph_def=graph_def.SerializeToString()
  )


def _check(x: tf.Tensor) -> tf.Tensor:
  return tf.debugging.check_numerics(x, 'Bad.')


def _build_sum(
    *,
    in_place: tuple[bool, bool],
    check: Callable[[tf.Tensor], tf.Tensor] = _check,
) -> graph.Program:
  """Adds a checked vector (as int64), and 1 (or the vector again)."""
  total = tff.TensorType(np.int64, [2])
  second = total if in_place[1] else np.int32

  @tff.tensorflow.computation(tff.TensorType(np.float32, [2]))
  def work(x):
    checked = tf.cast(check(x), tf.int64)
    if in_place[1]:
      return tf.cast(x, tf.int64), checked
    return checked, tf.constant(1)

  return _adding(work, total, second, in_place=in_place)


def _adding(work, *types, in_place=(True, True)) -> graph.Program:
  """Adds the two parts that `work` returns, of these types, to two sums."""
  types = list(types)

  @tff.tensorflow.computation(types, types)
  def accumulate(sums, parts):
    return [sums[0] + parts[0], sums[1] + parts[1]]

  return graph.Program(
      tuple(map(graph.from_computation, (work, accumulate))),
      num_kept=2,
      in_place=in_place,
  )


def _memory_taken(run: Callable[[], object]) -> int:
  """Bytes that a call takes at its peak."""
  memory = tf.config.experimental.get_memory_info
  tf.config.experimental.reset_memory_stats('CPU:0')
  begin = memory('CPU:0')['current']
  run()
  return memory('CPU:0')['peak'] - begin


def _value(variable: tf.Tensor) -> list[int]:
  return graph.read_variable(variable, tf.int64).numpy().tolist()


def _has_memory_info() -> bool:
  try:
    return bool(tf.config.experimental.get_memory_info('CPU:0'))
  except ValueError:
    return False


class LoadTest(absltest.TestCase):

  def test_functions_of_one_name_and_different_bodies_do_not_clash(self):
    one, two = (
        pickle.loads(pickle.dumps(graph.Program((_build_adder(n),)))).load()
        for n in (1.0, 2.0)
    )
    value = tf.constant(10.0)
    for _ in range(2):
      self.assertEqual(one(value), [11.0])
      self.assertEqual(two(value), [12.0])

  def test_string_attributes_follow_the_renaming(self):
    graph_def = graph._parse_renamed(_build_adder(1.0), 'fresh_')
    (function,) = graph_def.library.function
    self.assertEqual(function.signature.name, 'fresh_helper')
    (call,) = [n for n in graph_def.node if '_reference' in n.attr]
    self.assertEqual(call.attr['f'].func.name, 'fresh_helper')
    self.assertEqual(call.attr['_reference'].s, b'fresh_helper')

  def test_chained_graphs_feed_each_other(self):
    @tff.tensorflow.computation(np.float32, np.float32)
    def part(kept, x):
      return kept, kept - x, 5.0 * x

    # x + 1 = 11 feeds the second graph, 3 skips the first: 3 - 11 and 5 * 11.
    program = graph.Program(
        (_build_adder(1.0), graph.from_computation(part)),
        num_kept=1,
        first_output=1,
    )
    self.assertEqual(
        program.load()(tf.constant(3.0), tf.constant(10.0)), [-8.0, 55.0]
    )

  def test_sums_are_added_in_place_and_donated(self):
    variable = graph.make_variable(tf.constant([1, 2], tf.int64))
    program = _build_sum(in_place=(True, False))
    for _ in range(2):
      total, count = program.load()(variable, 5, tf.constant([10.0, 20.0]))
      self.assertIs(total, variable)
      self.assertEqual(count, 6)
    self.assertEqual(_value(variable), [21, 42])

    @tff.tensorflow.computation(tff.TensorType(np.int64, [2]))
    def double(total):
      return 2 * total

    finish = graph.Program(
        (graph.from_computation(double),), donated=(True,)
    ).load()
    (result,) = finish(variable)
    self.assertEqual(result.numpy().tolist(), [42, 84])
    self.assertEmpty(_value(variable))

  def test_the_graph_grows_linearly_with_donated_tensors(self):
    # Were each output to wait for each variable, edges would grow with the
    # square of the tensors.
    def count_edges(num_tensors: int) -> int:
      @tff.tensorflow.computation(
          [tff.TensorType(np.int64, [2])] * num_tensors
      )
      def double(totals):
        return [2 * total for total in totals]

      function = graph.Program(
          (graph.from_computation(double),), donated=(True,) * num_tensors
      ).load()
      nodes = function._function.graph.as_graph_def().node
      return sum(len(node.input) for node in nodes)

    self.assertLess(count_edges(40), 2.1 * count_edges(20))

  def test_no_part_is_added_if_the_check_of_another_fails(self):
    one, two = (graph.make_variable(tf.zeros([2], tf.int64)) for _ in range(2))
    add = _build_sum(in_place=(True, True)).load()
    with self.assertRaises(tf.errors.InvalidArgumentError):
      add(one, two, tf.constant([1.0, np.nan]))
    self.assertEqual(_value(one), [0, 0])
    add(one, two, tf.constant([1.0, 2.0]))
    self.assertEqual([_value(one), _value(two)], [[1, 2], [1, 2]])

  def test_a_partly_added_sum_raises_an_error(self):
    # A division by zero is not a check: nothing waits for it.
    one, two = (graph.make_variable(tf.zeros([2], tf.int64)) for _ in range(2))
    add = _build_sum(
        in_place=(True, True), check=lambda x: 2 // tf.cast(x, tf.int32)
    ).load()
    with self.assertRaises(graph.PartlyAddedError):
      add(one, two, tf.constant([1.0, 0.0]))

  def test_variables_leave_nothing_behind(self):
    add = _build_sum(in_place=(True, False)).load()
    zeros, part = tf.zeros([2], tf.int64), tf.constant([1.0, 2.0])
    kept = []
    for _ in range(3):
      for _ in range(50):
        add(graph.make_variable(zeros), 0, part)
      gc.collect()
      kept.append(sum(
          isinstance(each, (dict, weakref.ref)) for each in gc.get_objects()
      ))
    self.assertLess(kept[2] - kept[1], 50)

  def test_a_large_sum_takes_its_memory_once(self):
    if not _has_memory_info():
      self.skipTest('This allocator has no statistics.')
    # Other tests' threads may take some MB meanwhile: large, and the least of
    # several times.
    size = 2**22
    part = tff.TensorType(np.int64, [size])

    @tff.tensorflow.computation(np.int64)
    def work(x):
      return [tf.fill([size], x), tf.fill([size], x + 1)]

    add = _adding(work, part, part).load()
    totals = [graph.make_variable(tf.zeros([size], tf.int64)) for _ in range(2)]
    one = tf.constant(1, tf.int64)
    add(*totals, one)
    taken = [_memory_taken(lambda: add(*totals, one)) for _ in range(3)]
    # Both parts may be there at once, but no second copy of the sums.
    self.assertLess(min(taken), 2.5 * 8 * size)
    self.assertEqual([_value(total)[-1] for total in totals], [4, 8])

  def test_what_xla_computes_is_added_in_the_same_pass(self):
    if not _has_memory_info():
      self.skipTest('This allocator has no statistics.')
    # As above.
    size = 2**22
    part = tff.TensorType(np.int64, [size])

    @tf.function(autograph=False, jit_compile=True)
    def double(x):
      return tf.cast(2.0 * x, tf.int64)

    @tff.tensorflow.computation(tff.TensorType(np.float32, [size]), np.float32)
    def work(x, factor):
      # Its order would make the first one run alone, too.
      return sequential.sequential_map(
          lambda factor: double(factor * x), [1.0, factor]
      )

    add = _adding(work, part, part).load()
    totals = [graph.make_variable(tf.zeros([size], tf.int64)) for _ in range(2)]
    # Of 2 * 1.5 = 3 and 2 * -10.25 = -20.5, the second to -20.
    part, factor = tf.fill([size], 1.5), tf.constant(-10.25 / 1.5)
    taken = [
        _memory_taken(lambda: add(*totals, part, factor)) for _ in range(4)
    ]
    for total, expected in zip(totals, (12, -80)):
      np.testing.assert_array_equal(
          graph.read_variable(total, tf.int64), [expected] * size
      )
    # Two products, float32, and neither of the parts, int64.
    self.assertLess(min(taken), 2.5 * 4 * size)
    # Each of the equal functions is compiled once.
    called = [
        node.attr['f'].func.name
        for node in add._function.graph.as_graph_def().node
        if node.op == 'StatefulPartitionedCall'
    ]
    self.assertLen(called, 2)
    self.assertLen(set(called), 1)

  def test_a_process_refuses_to_add_in_less_exact_arithmetic(self):
    double = tf.function(lambda x: 2 * x, autograph=False, jit_compile=True)
    part = tff.TensorType(np.int64, [2])
    work = tff.tensorflow.computation(double, part)
    accumulate = tff.tensorflow.computation(lambda a, b: a + b, [part, part])
    program = graph.Program(
        tuple(map(graph.from_computation, (work, accumulate))),
        num_kept=1,
        in_place=(True,),
    )
    flags = '--xla_cpu_enable_fast_math=true'
    with mock.patch.dict(os.environ, XLA_FLAGS=flags):
      with self.assertRaisesRegex(ValueError, 'XLA_FLAGS.*leave it out'):
        variable = graph.make_variable(tf.constant([1, 2], tf.int64))
        program.load()(variable, tf.constant([3, 4], tf.int64))

  def test_a_part_with_another_use_is_computed_once_for_both(self):
    @tf.function(autograph=False, jit_compile=True)
    def double(x):
      return tf.cast(2.0 * x, tf.int64)

    @tff.tensorflow.computation(tff.TensorType(np.float32, [2]))
    def work(x):
      doubled = double(x)
      return doubled, tf.reduce_max(doubled)

    total = tff.TensorType(np.int64, [2])

    @tff.tensorflow.computation([total, np.int64], [total, np.int64])
    def accumulate(sums, parts):
      return [sums[0] + parts[0], tf.maximum(sums[1], parts[1])]

    variable = graph.make_variable(tf.constant([1, 2], tf.int64))
    with mock.patch.object(graph, '_build_compiled_add') as build:
      add = graph.Program(
          tuple(map(graph.from_computation, (work, accumulate))),
          num_kept=2,
          in_place=(True, False),
      ).load()
      _, largest = add(
          variable, tf.constant(3, tf.int64), tf.constant([1.0, 2.5])
      )
    build.assert_not_called()
    self.assertEqual(_value(variable), [3, 7])
    self.assertEqual(largest, 5)

  def test_a_large_program_runs_in_several_threads(self):
    # 20 x 16 MiB: above 256 MiB, what TensorFlow takes a CPU to have, it makes
    # variables of large sums, of one name in all calls.
    @tff.tensorflow.computation(tff.TensorType(np.float32, [2**22]))
    def add_many(x):
      return tf.reduce_sum(tf.add_n([tf.sin(x + float(i)) for i in range(20)]))

    function = graph.Program((graph.from_computation(add_many),)).load()
    ones = tf.ones([2**22])
    (expected,) = function(ones)
    with futures.ThreadPoolExecutor(4) as pool:
      results = list(pool.map(lambda _: function(ones)[0], range(12)))
    self.assertEqual([float(each) for each in results], [float(expected)] * 12)

  def test_only_what_the_outputs_need_is_run(self):
    @tff.tensorflow.computation(np.float32)
    def comp(x):
      return tf.debugging.check_numerics(x, 'Not needed.'), x + 1.0

    program = graph.Program((graph.from_computation(comp),), first_output=1)
    self.assertEqual(program.load()(tf.constant(np.inf)), [np.inf])

  def test_a_computation_that_is_not_a_graph_is_refused(self):
    comp = tff.federated_computation(
        lambda x: tff.federated_sum(x),  # pylint: disable=unnecessary-lambda
        tff.FederatedType(np.float32, tff.CLIENTS),
    )
    with self.assertRaisesRegex(ValueError, 'comp'):
      graph.from_computation(comp)


def _build_mutable_table():
  table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
  return table.insert, table.size


def _build_table_of_vectors():
  table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, [0, 0])
  return (
      lambda keys, values: table.insert(keys, tf.stack([values] * 2, axis=1)),
      table.size,
  )


def _build_dense_table():
  table = tf.lookup.experimental.DenseHashTable(
      tf.string, tf.int64, -1, empty_key='', deleted_key='-'
  )
  return table.insert, table.size


def _build_variable():
  # Of as many elements as keys were put.
  variable = tf.Variable(tf.zeros([0], tf.int64), shape=[None])
  return (
      lambda keys, values: variable.assign(
          tf.concat([variable, values], axis=0), read_value=False
      ),
      lambda: tf.size(variable.read_value(), tf.int64),
  )


_KEPT = {
    'MutableHashTableV2': _build_mutable_table,
    'MutableHashTableOfTensorsV2': _build_table_of_vectors,
    'MutableDenseHashTableV2': _build_dense_table,
    'VarHandleOp': _build_variable,
}


def _build_counter(kind: str) -> tff.Computation:
  """The number of keys in a container of this kind after putting some."""

  @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
  def count(keys):
    put, size = _KEPT[kind]()
    with tf.control_dependencies([put(keys, tf.ones_like(keys, tf.int64))]):
      return size()

  return count


class StateTest(parameterized.TestCase):

  @parameterized.parameters(*_KEPT)
  def test_nothing_is_kept_between_calls_or_threads(self, kind):
    comp = _build_counter(kind)
    section = tff.framework.serialize_computation(comp).tensorflow
    made = tf.compat.v1.GraphDef.FromString(section.graph_def.value)
    self.assertIn(kind, {node.op for node in made.node})
    count = graph.Program((graph.from_computation(comp),)).load()
    keys = [tf.constant([f'{n}_{i}' for i in range(n)]) for n in range(1, 9)]
    with futures.ThreadPoolExecutor(4) as pool:
      sizes = list(pool.map(lambda each: int(count(each)[0]), 4 * keys))
    self.assertEqual(sizes, 4 * list(range(1, 9)))

  def test_variables_are_set_from_the_arguments_of_the_call(self):
    @tff.tensorflow.computation(np.float32)
    def comp(x):
      one, two = tf.Variable(x), tf.Variable(10.0 * x)
      with tf.control_dependencies([one.assign_add(1.0)]):
        return one.read_value(), two.read_value()

    program = graph.Program((graph.from_computation(comp),)).load()
    for x in (3.0, 5.0):
      self.assertEqual(program(tf.constant(x)), [x + 1.0, 10.0 * x])

  def test_initial_values_may_depend_on_other_variables_and_random_ops(self):
    # Each node runs once: y is one draw, wherever it is used.
    @tff.tensorflow.computation(np.float32)
    def comp(x):
      one = tf.Variable(tf.fill([3], x))
      with tf.control_dependencies([one.assign_add([1.0, 1.0, 1.0])]):
        y = one.read_value() + tf.random.uniform([])
      two = tf.Variable(y)
      with tf.control_dependencies([two.assign_add(y)]):
        return y, two.read_value() - 2.0 * y

    program = graph.Program((graph.from_computation(comp),)).load()
    for _ in range(20):
      y, difference = program(tf.constant(5.0))
      self.assertBetween(float(y[0]), 6.0, 7.0)
      np.testing.assert_array_equal(difference, np.zeros(3))

  def test_a_variable_that_is_set_from_another_waits_for_it(self):
    @tff.tensorflow.computation(np.float32)
    def comp(x):
      one = tf.Variable(x)
      return tf.Variable(2.0 * one.read_value()).read_value()

    program = graph.Program((graph.from_computation(comp),)).load()
    for _ in range(20):
      self.assertEqual(program(tf.constant(5.0)), [10.0])

  def test_constant_resources_of_two_functions_are_distinct(self):
    graph_def = tf.compat.v1.GraphDef()
    for name in ('first', 'second'):
      function = graph_def.library.function.add()
      function.signature.name = name
      node = function.node_def.add(name='model', op='SentencepieceOp')
      node.attr['shared_name'].s = b''
    serialized = dataclasses.replace(
        _build_adder(1.0), graph_def=graph_def.SerializeToString()
    )
    names = {
        function.node_def[0].attr['shared_name'].s
        for function in graph._parse_renamed(
            serialized, 'fresh_'
        ).library.function
    }
    self.assertLen(names, 2)

  def test_only_what_is_used_is_initialized(self):
    # As in the part of a graph that takes only some of its arguments.
    @tff.tensorflow.computation(np.float32, np.float32)
    def comp(x, y):
      return tf.Variable(x) + 1.0, tf.Variable(y) + 2.0

    whole = graph.from_computation(comp)
    part = dataclasses.replace(
        whole,
        inputs=whole.inputs[:1],
        specs=whole.specs[:1],
        outputs=whole.outputs[:1],
    )
    self.assertEqual(graph.Program((part,)).load()(tf.constant(3.0)), [4.0])

  def test_tables_are_initialized_by_the_arguments_of_the_call(self):
    @tff.tensorflow.computation(np.int64)
    def comp(value):
      table = tf.lookup.StaticHashTable(
          tf.lookup.KeyValueTensorInitializer(['a'], [value]), -1
      )
      return table.lookup(tf.constant('a'))

    program = graph.Program((graph.from_computation(comp),)).load()
    for value in (3, 5):
      self.assertEqual(program(tf.constant(value, tf.int64)), [value])

  def test_variables_are_freed_after_the_call(self):
    if not _has_memory_info():
      self.skipTest('This allocator has no statistics.')
    size = 2**22

    @tff.tensorflow.computation(np.float32)
    def comp(x):
      return tf.reduce_sum(tf.Variable(tf.fill([size], x)))

    program = graph.Program((graph.from_computation(comp),)).load()
    memory = lambda: tf.config.experimental.get_memory_info('CPU:0')['current']
    program(tf.constant(1.0))
    before = memory()
    for _ in range(8):
      program(tf.constant(1.0))
    # Other tests' threads may take some MB meanwhile.
    self.assertLess(memory() - before, 4 * 4 * size)

  def test_every_op_with_a_named_state_is_made_fresh_or_found(self):
    # All ops of TensorFlow, and of the library that the tokenizers load.
    self.assertTrue(tokenizer.CharTokenizer)
    ops = op_def_pb2.OpList.FromString(
        pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    ).op
    fresh, constant = set(), set()
    for op in ops:
      names = {attribute.name for attribute in op.attr}
      if not names & {'container', 'shared_name'}:
        continue
      with self.subTest(op.name):
        graph_def = tf.compat.v1.GraphDef()
        node = graph_def.node.add(name='node', op=op.name)
        for name in names & {'container', 'shared_name'}:
          node.attr[name].s = b'name'
        graph._make_state_fresh(graph_def)
        if found := graph.find_shared_state(graph_def):
          self.assertEqual(found, (op.name,))
          self.assertEqual(node.op, op.name)
        elif node.op == op.name and op.name != 'VarHandleOp':
          constant.add(op.name)
        else:
          fresh.add(op.name)
          self.assertNotIn(b'name', [each.s for each in node.attr.values()])
        # In a function there is no fresh one for each call of the program.
        inner = tf.compat.v1.GraphDef()
        function = inner.library.function.add()
        function.node_def.add(name='node', op=op.name)
        graph._make_state_fresh(inner)
        self.assertEqual(
            graph.find_shared_state(inner),
            () if op.name in constant else (op.name,),
        )
    self.assertEqual(fresh, {*_KEPT, 'HashTableV2'})
    self.assertEqual(constant, {'SentencepieceOp'})

  def test_a_queue_begins_empty_in_each_call(self):
    @tff.tensorflow.computation(np.int32)
    def comp(x):
      queue = tf.queue.FIFOQueue(10, [tf.int32], [[]])
      with tf.control_dependencies([queue.enqueue(x)]):
        return queue.size()

    serialized = graph.from_computation(comp)
    self.assertEqual(serialized.shared_state, ('FIFOQueueV2',))
    program = graph.Program((serialized,)).load()
    for _ in range(3):
      self.assertEqual(program(tf.constant(1)), [1])
