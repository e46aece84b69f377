import collections
import itertools
import threading
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
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
      ('of_none', lambda client_id, factor: factor),
  )
  def test_no_split_for_a_dataset(self, work):
    whole, rest, read = _split(work)
    self.assertIsNone(read)
    self.assertIs(rest, whole)

  def test_a_fixed_seed_in_the_op_is_no_hindrance(self):
    def work(client_id, _):
      return _sum(
          _levels(client_id).map(
              lambda level: level + tf.random.stateless_normal([], [1, 2])
          )
      )

    _, _, read = _split(work)
    self.assertIsNotNone(read)

  def test_no_split_for_work_with_variables(self):
    def work(client_id, factor):
      total = tf.Variable(factor)
      added = total.assign_add(_sum(_levels(client_id)))
      with tf.control_dependencies([added]):
        return total.read_value()

    self.assertIsNone(_split(work)[2])


@tff.tensorflow.computation(np.str_)
def _total(client_id):
  return toys.build_dataset_from_id(client_id).reduce(
      tf.constant(0.0), lambda total, batch: total + tf.reduce_sum(batch['x'])
  )


@tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
def _total_of_all(client_ids):
  return tff.federated_sum(tff.federated_map(_total, client_ids))


class RoundTest(parameterized.TestCase):

  def _run(self, client_ids, **options):
    context = multi_device.build_sync_context(multi_device.Settings(**options))
    with tff.framework.get_context_stack().install(context):
      total = _total_of_all(client_ids)
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
    get_work = round_worker.ClientFunctions.get_work
    overlaps = []

    def read_and_tell(reader, position):
      datasets = read_client(reader, position)
      read[client_ids[position]].set()
      return datasets

    def get_waiting_work(functions, thread):
      work = get_work(functions, thread)

      def wait_and_work(*tensors):
        # The last ones have nobody to wait for.
        if (number := next(num_working) + 1) < len(client_ids):
          overlaps.append(read[client_ids[number]].wait(60))
        return work(*tensors)

      return wait_and_work

    with (
        mock.patch.object(prefetch.Reader, '_read_client', read_and_tell),
        mock.patch.object(
            round_worker.ClientFunctions, 'get_work', get_waiting_work
        ),
    ):
      self._run(client_ids, **options)
    self.assertEqual(overlaps, [True] * 4)

  def test_clients_that_are_datasets_are_not_read(self):
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def total(dataset):
      return _sum(dataset)

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def comp(datasets):
      return tff.federated_sum(tff.federated_map(total, datasets))

    self.assertIsNone(compiler.compile_computation(comp).clients.read)
