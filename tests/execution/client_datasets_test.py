import collections
import itertools
import threading
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
import tensorflow_federated as tff

from tests.execution import toys
from tff_asr.execution import client_datasets
from tff_asr.execution import compiler
from tff_asr.execution import graph
from tff_asr.execution import multi_device
from tff_asr.execution import prefetch
from tff_asr.execution import round_worker


def _split(work):
  """Of `<id, factor> -> ...`, with the id as the client's value."""
  comp = tff.tensorflow.computation(work, np.str_, np.float32)
  whole = graph.from_computation(comp)
  return whole, *client_datasets.split(whole, client_inputs=whole.inputs[:1])


def _levels(client_id):
  """1, 2, ..., n for the id 'n'."""
  size = tf.strings.to_number(client_id, tf.int64)
  return tf.data.Dataset.range(1, size + 1).map(
      lambda level: tf.cast(level, tf.float32)
  )


def _sum(dataset):
  return dataset.reduce(tf.constant(0.0), lambda total, level: total + level)


class SplitTest(parameterized.TestCase):

  def test_the_parts_do_what_the_whole_does_with_the_dataset_they_are_given(
      self,
  ):
    def work(client_id, factor):
      return factor * _sum(_levels(client_id).batch(2).unbatch())

    whole, rest, read = _split(work)
    read, rest = read.program.load(), graph.Program((rest,)).load()
    # 3 (1 + 2 + 3 + 4), and of the client '2' under the name of '4'.
    self.assertEqual(rest('4', 3.0, *read('4')), [30.0])
    self.assertEqual(rest('4', 3.0, *read('2')), [9.0])
    self.assertEqual(graph.Program((whole,)).load()('4', 3.0), [30.0])

  def test_several_datasets_and_their_elements(self):
    def work(client_id, factor):
      texts = _levels(client_id).map(
          lambda level: collections.OrderedDict(
              text=tf.strings.as_string(level), two=tf.stack([level, level])
          )
      )
      length = texts.reduce(
          tf.constant(0),
          lambda total, text: total + tf.strings.length(text['text']),
      )
      return factor * _sum(_levels(client_id)) + tf.cast(length, tf.float32)

    _, rest, read = _split(work)
    self.assertCountEqual(
        read.elements,
        [
            (tf.TensorSpec([], tf.float32),),
            (tf.TensorSpec([], tf.string), tf.TensorSpec([2], tf.float32)),
        ],
    )
    datasets = read.program.load()('2')
    # 10 (1 + 2) and the characters of 1.000000 and 2.000000.
    outputs = graph.Program((rest,)).load()('2', 10.0, *datasets)
    self.assertEqual(outputs, [46.0])

  @parameterized.named_parameters(
      (
          'of_what_is_broadcast',
          lambda client_id, factor: _sum(
              _levels(client_id).map(lambda level: level * factor)
          ),
      ),
      (
          'that_is_shuffled',
          lambda client_id, _: _sum(_levels(client_id).shuffle(2).take(1)),
      ),
      (
          'with_draws_in_its_function',
          lambda client_id, _: _sum(
              _levels(client_id).map(lambda level: level + tf.random.normal([]))
          ),
      ),
      (
          'with_truncated_draws_in_its_function',
          lambda client_id, _: _sum(
              _levels(client_id).map(
                  lambda level: level + tf.random.truncated_normal([])
              )
          ),
      ),
      (
          'with_python_in_its_function',
          lambda client_id, _: _sum(
              _levels(client_id).map(
                  lambda level: tf.ensure_shape(
                      tf.numpy_function(lambda x: x, [level], tf.float32), []
                  )
              )
          ),
      ),
      ('of_none', lambda client_id, factor: factor),
  )
  def test_no_split_for_a_dataset(self, work):
    whole, rest, read = _split(work)
    self.assertIsNone(read)
    self.assertIs(rest, whole)

  def test_all_ops_that_draw_are_known(self):
    # Those with a seed, which makes them draw alike in each session and not in
    # each pass; and three without.
    drawing = {'NonDeterministicInts', 'RecordInput', 'SamplingDataset'}
    for name in dir(tf.raw_ops):
      op = op_def_registry.get(name)
      if op and {'seed', 'seed2'} & {each.name for each in op.attr}:
        drawing.add(name)
    drawing.remove('ComputeAccidentalHits')  # It takes a seed for nothing.
    self.assertGreater(len(drawing), 30)
    known = client_datasets._VARYING_OP.search
    self.assertEqual(list(itertools.filterfalse(known, drawing)), [])

  def test_a_fixed_seed_in_the_op_is_no_hindrance(self):
    def work(client_id, _):
      return _sum(
          _levels(client_id).map(
              lambda level: level + tf.random.stateless_normal([], [1, 2])
          )
      )

    _, _, read = _split(work)
    self.assertIsNotNone(read)

  def test_a_dataset_that_reads_a_variable_is_not_split_off(self):
    def work(client_id, factor):
      total = tf.Variable(factor)
      return _sum(_levels(client_id).map(lambda level: level * total))

    self.assertIsNone(_split(work)[2])

  def test_variables_of_the_work_stay_there(self):
    def work(client_id, factor):
      total = tf.Variable(factor)
      added = total.assign_add(_sum(_levels(client_id)))
      with tf.control_dependencies([added]):
        return total.read_value()

    whole, rest, read = _split(work)
    (dataset,) = read.program.load()('4')
    # 10 + (1 + 2 + 3 + 4).
    for _ in range(2):
      self.assertEqual(
          graph.Program((whole,)).load()('4', 10.0), [20.0]
      )
      self.assertEqual(
          graph.Program((rest,)).load()('4', 10.0, dataset), [20.0]
      )


class WarningTest(parameterized.TestCase):

  @parameterized.product(
      kind=('reduce', 'scan', 'map'), is_model=(True, False)
  )
  def test_a_models_work_on_the_host_of_gpus_is_named(self, kind, is_model):
    def step(total, level):
      matrix = tf.fill([2, 2], level)
      return total + tf.reduce_sum(matrix @ matrix if is_model else matrix)

    def work(client_id, factor):
      levels = _levels(client_id)
      if kind == 'reduce':
        return factor * levels.reduce(0.0, step)
      if kind == 'scan':
        levels = levels.scan(0.0, lambda s, x: (step(s, x), step(s, x)))
      else:
        levels = levels.map(lambda x: step(0.0, x))
      return factor * _sum(levels)

    whole, rest, read = _split(work)
    with self.assertNoLogs(level='WARNING'):
      client_datasets.warn_on_gpus([whole], ['/device:CPU:0'])
    # What is read ahead is named, too.
    graphs = [*read.program.graphs, rest]
    gpus = ['/device:GPU:0', '/device:GPU:1']
    if not is_model:
      with self.assertNoLogs(level='WARNING'):
        client_datasets.warn_on_gpus(graphs, gpus)
      return
    with self.assertLogs(level='WARNING') as logs:
      client_datasets.warn_on_gpus(graphs, gpus)
    self.assertLen(logs.output, 1)
    self.assertRegex(
        logs.output[0],
        rf'{kind.capitalize()}Dataset\) computes MatMul.*DATASET_ITERATOR'
        r' \(build_fed_recon ',
    )

  def test_it_is_given_once_a_computation_with_the_devices_of_its_context(self):
    context = multi_device.build_sync_context()
    with (
        mock.patch.object(client_datasets, 'warn_on_gpus') as warn,
        tff.framework.get_context_stack().install(context),
    ):
      for _ in range(2):
        _total_of_all(['1'])
    warn.assert_called_once()
    (graphs, devices), _ = warn.call_args
    self.assertLen(graphs, 3)  # What reads, works and adds.
    self.assertEqual(list(devices), ['/device:CPU:0'])


@tff.tensorflow.computation(np.str_)
def _total(client_id):
  return toys.build_dataset_from_id(client_id).reduce(
      tf.constant(0.0), lambda total, batch: total + tf.reduce_sum(batch['x'])
  )


_total_of_all = toys.sum_of(_total)


class RoundTest(parameterized.TestCase):

  def _run(self, client_ids, **options):
    total = toys.invoke(_total_of_all, client_ids, **options)
    # Level k comes of the id 'k' through a table.
    expected = sum(
        tf.reduce_sum(tf.random.stateless_normal([8, 3], [int(level), 0]))
        for level in client_ids
    )
    self.assertAlmostEqual(total, float(expected), places=4)

  def test_tables_are_filled_for_reading_too(self):
    programs = compiler.compile_computation(_total_of_all).clients
    self.assertIsNotNone(programs.read)
    self._run(['2', '5', '3'])

  @parameterized.parameters(
      dict(),
      dict(clients_per_device=2),
  )
  def test_the_next_clients_data_are_read_while_one_trains(self, **options):
    client_ids = ['1', '2', '3', '4', '5']
    read = {client_id: threading.Event() for client_id in client_ids}
    num_working = itertools.count()
    read_client = prefetch.Reader._read_client
    load = round_worker.ClientFunctions.__init__
    overlaps = []

    def read_and_tell(reader, position):
      datasets = read_client(reader, position)
      read[client_ids[position]].set()
      return datasets

    def load_waiting_work(functions, programs):
      load(functions, programs)
      work = functions.work

      def wait_and_work(*tensors):
        # The last ones have no other client to wait for.
        if (number := next(num_working) + 1) < len(client_ids):
          overlaps.append(read[client_ids[number]].wait(60))
        return work(*tensors)

      functions.work = wait_and_work

    prefetch.CLIENT_CACHE.clear()
    with (
        mock.patch.object(prefetch.Reader, '_read_client', read_and_tell),
        mock.patch.object(
            round_worker.ClientFunctions, '__init__', load_waiting_work
        ),
    ):
      context = multi_device.build_sync_context(
          multi_device.Settings(**options)
      )
      with tff.framework.get_context_stack().install(context):
        _total_of_all(client_ids)
    self.assertEqual(overlaps, [True] * 4)

  def test_data_of_each_client_and_computation_are_its_own(self):
    # Ids whose datasets stay in memory between rounds.
    levels = tff.tensorflow.computation(
        lambda client_id: _sum(_levels(client_id)), np.str_
    )
    comp = toys.sum_of(levels)
    for _ in range(2):
      # 1, and 1 + ... + 5.
      for client_id, total in (('1', 1.0), ('5', 15.0)):
        self._run([client_id])
        self.assertEqual(toys.invoke(comp, [client_id]), total)

  def test_clients_that_are_datasets_are_not_read(self):
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def total(dataset):
      return _sum(dataset)

    programs = compiler.compile_computation(toys.sum_of(total)).clients
    self.assertIsNone(programs.read)
