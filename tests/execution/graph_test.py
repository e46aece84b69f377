"""Tests of tff_asr.execution.graph."""

from concurrent import futures
import dataclasses
import pickle

from absl.testing import absltest
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.execution import compiler
from tff_asr.execution import graph


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

    # x + 1 = 11 goes on, and 3 passes it by: 3 - 11 and 5 * 11.
    program = graph.Program(
        (_build_adder(1.0), graph.from_computation(part)),
        num_kept=1,
        first_output=1,
    )
    self.assertEqual(
        program.load()(tf.constant(3.0), tf.constant(10.0)), [-8.0, 55.0]
    )

  def test_it_runs_in_several_threads_however_much_memory_it_takes(self):
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

  def test_round_pickles_piece_by_piece(self):
    comp = tff.federated_computation(
        lambda x: tff.federated_sum(x),  # pylint: disable=unnecessary-lambda
        tff.FederatedType(np.float32, tff.CLIENTS),
    )
    with self.assertRaisesRegex(ValueError, 'comp'):
      graph.from_computation(comp)
    compiled = compiler.compile_computation(comp)
    clients = pickle.loads(pickle.dumps(compiled.clients))
    work, zero, merge, finish = (
        program.load()
        for program in (
            clients.work, clients.zero, clients.merge_ordered,
            pickle.loads(pickle.dumps(compiled.finish)),
        )
    )
    # Two blocks: (1 + 2) and (4), 7 together.
    first = work(*work(*zero(), tf.constant(1.0)), tf.constant(2.0))
    second = work(*zero(), tf.constant(4.0))
    self.assertEqual(finish(*merge(*first, *second)), [7.0])
