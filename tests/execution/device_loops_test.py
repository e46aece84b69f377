"""Tests of tff_asr.execution.device_loops."""

import collections
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.execution import toys
from tff_asr.execution import compiler
from tff_asr.execution import device_loops
from tff_asr.execution import graph
from tff_asr.execution import multi_device


def _find_ops(comp):
  """Ops of the client's work."""
  found = collections.Counter()
  for part in compiler.compile_computation(comp).clients.work.graphs:
    graph_def = tf.compat.v1.GraphDef.FromString(part.graph_def)
    for nodes in graph.bodies(graph_def):
      found.update(node.op for node in nodes)
  return found


def _sum_of(work, type_spec):
  """The sum of `work` over clients."""
  return tff.federated_computation(
      lambda values: tff.federated_sum(tff.federated_map(work, values)),
      tff.FederatedType(type_spec, tff.CLIENTS),
  )


def _invoke(comp, *args):
  context = multi_device.build_sync_context()
  with tff.framework.get_context_stack().install(context):
    return comp(*args)


@tff.tensorflow.computation(np.str_)
def _reduce_ids(client_id):
  """Two reductions of a dataset made of an id, one within a function."""
  dataset = toys.build_dataset_from_id(client_id)
  scale = tf.strings.to_number(client_id)

  @tf.function
  def total(dataset):
    # A state of two parts, of which one grows, and a captured value.
    rows, first = dataset.reduce(
        (tf.zeros([0, 1]), 0.0),
        lambda state, batch: (
            tf.concat([state[0], batch['y']], axis=0),
            state[1] + scale * batch['x'][0, 0],
        ),
    )
    return tf.reduce_sum(rows) + first

  count = dataset.reduce(np.int64(0), lambda state, _: state + 1)
  return total(dataset), count


class DeviceLoopsTest(parameterized.TestCase):

  def test_values_are_those_of_the_reduction(self):
    comp = _sum_of(_reduce_ids, np.str_)
    ops = _find_ops(comp)
    self.assertNotIn('ReduceDataset', ops)
    self.assertEqual(ops['While'], 2)
    total, count = _invoke(comp, ['3', '5'])
    expected = 0.0
    for client_id in ('3', '5'):
      for batch in toys.build_dataset_from_id(client_id):
        expected += np.sum(batch['y']) + float(client_id) * batch['x'][0, 0]
    self.assertAlmostEqual(total, expected, places=3)
    self.assertEqual(count, 4)

  def test_an_empty_dataset_keeps_the_state(self):
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def work(values):
      return values.reduce(7.0, lambda state, value: state + value)

    comp = _sum_of(work, tff.SequenceType(np.float32))
    datasets = [tf.data.Dataset.from_tensor_slices(tf.range(n * 1.0))
                for n in (0, 3)]
    self.assertEqual(_invoke(comp, datasets), 7.0 + 7.0 + 3.0)

  def test_training_of_tffs_own_algorithm_keeps_its_bits(self):
    def train():
      # With variables, in a function, by the default loop.
      process = tff.learning.algorithms.build_weighted_fed_avg(
          toys.build_model, tff.learning.optimizers.build_sgdm(0.1)
      )
      state = _invoke(process.initialize)
      clients = [toys.build_dataset(number) for number in range(3)]
      output = _invoke(process.next, state, clients)
      weights = output.state.global_model_weights.trainable
      return _find_ops(process.next), [w.numpy().tobytes() for w in weights]

    ops, converted = train()
    with mock.patch.object(device_loops, 'convert', lambda work: work):
      ops_before, reduced = train()
    self.assertIn('ReduceDataset', ops_before)
    self.assertNotIn('ReduceDataset', ops)
    self.assertEqual(converted, reduced)

  def test_a_model_in_a_datasets_function_is_said(self):
    def train(kind, matrix):
      @tff.tensorflow.computation(tff.SequenceType(np.float32))
      def work(values):
        step = lambda total, x: total + (
            tf.linalg.trace(tf.ones([2, 2]) @ tf.fill([2, 2], x))
            if matrix else x
        )
        if kind == 'scan':
          values = values.scan(0.0, lambda s, x: (step(s, x), step(s, x)))
        elif kind == 'map':
          values = values.map(lambda x: step(0.0, x))
        else:
          return values.reduce(0.0, step)
        return values.reduce(0.0, lambda total, x: total + x)

      return _sum_of(work, tff.SequenceType(np.float32))

    for kind, op in (('scan', 'ScanDataset'), ('map', 'MapDataset')):
      with self.assertLogs(level='WARNING') as logs:
        compiler.compile_computation(train(kind, matrix=True))
      self.assertLen(logs.output, 1)
      self.assertRegex(logs.output[0], f'{op}.* computes .*MatMul.* host')
    with self.assertNoLogs(level='WARNING'):
      for kind in ('scan', 'map'):
        compiler.compile_computation(train(kind, matrix=False))
      compiler.compile_computation(train('reduce', matrix=True))

  def test_analytics_run(self):
    process = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=10, string_max_bytes=10, max_words_per_user=8,
    )
    clients = [
        tf.data.Dataset.from_tensor_slices(words).batch(1)
        for words in (['a', 'b', 'a'], ['a', 'c'])
    ]
    found = _invoke(process, clients)
    counts = dict(zip(
        found.heavy_hitters.tolist(), found.heavy_hitters_counts.numpy()
    ))
    self.assertEqual(counts, {b'a': 3, b'b': 1, b'c': 1})
