"""Tests of tff_asr.execution.multi_device, on four logical CPU devices."""

import asyncio
import collections
import contextlib
import errno
import functools
import gc
import itertools
import os
import threading
import time
from typing import Any
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import logical_devices
from tests.execution import toys
from tff_asr.execution import client_round
from tff_asr.execution import client_trainer
from tff_asr.execution import compiler
from tff_asr.execution import context as context_lib
from tff_asr.execution import devices as devices_lib
from tff_asr.execution import graph
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.execution import reduction
from tff_asr.execution import scheduler

_CPUS = logical_devices.CPUS


def tearDownModule():
  native.stop()
  _build_native.cache_clear()


@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.execution.multi_device_test'


_install = tff.framework.get_context_stack().install
_build = toys.build_context
_invoke = toys.invoke


@functools.lru_cache
def _build_native():
  return native.build_sync_context(trust_network=True)


@contextlib.contextmanager
def _threads_of_ops(number, *, variable=''):
  """Six cores, and a process that chose a number of threads; 0: none."""
  threading_lib = tf.config.threading
  with (
      mock.patch.object(os, 'sched_getaffinity', lambda _: set(range(6))),
      mock.patch.dict(os.environ, {'TF_NUM_INTRAOP_THREADS': variable}),
      mock.patch.object(
          threading_lib, 'get_intra_op_parallelism_threads', lambda: number
      ),
      mock.patch.object(
          threading_lib, 'set_intra_op_parallelism_threads'
      ) as chosen,
  ):
    yield chosen


def _run(context, process, cohorts):
  """The state after one round a cohort, and the last metrics."""
  with _install(context):
    state = process.initialize()
    metrics = None
    for cohort in cohorts:
      output = process.next(state, cohort)
      state, metrics = output.state, output.metrics
  return state, metrics


def _arrays(structure):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(structure)]


@logical_devices.needed
class LearningProcessTest(parameterized.TestCase):

  def test_a_round_after_the_first_traces_nothing(self):
    process = toys.build_fed_avg_over_ids()
    graphs, initialize = [], tf.Graph.__init__

    def noted(graph, *args, **kwargs):
      graphs.append(graph)
      initialize(graph, *args, **kwargs)

    with _install(_build(devices=_CPUS[:2])):
      state = process.next(process.initialize(), ['a', 'b', 'c']).state
      with mock.patch.object(tf.Graph, '__init__', noted):
        process.next(state, ['a', 'b', 'c'])
    # Each new thread has an empty one.
    self.assertFalse(any(graph.get_operations() for graph in graphs))

  def test_no_tensor_of_a_round_waits_for_the_garbage_collector(self):
    process = toys.build_fed_avg_over_ids()
    with _install(_build(devices=_CPUS[:2])):
      state = process.next(process.initialize(), ['a', 'b', 'c']).state
      gc.collect()
      gc.disable()
      try:
        counts = []
        for _ in range(3):
          state = process.next(state, ['a', 'b', 'c']).state
          counts.append(
              sum(issubclass(type(o), tf.Tensor) for o in gc.get_objects())
          )
      finally:
        gc.enable()
    self.assertLen(set(counts), 1, counts)

  @parameterized.named_parameters(
      # Clients that are datasets, and ids with weighted fed-avg over them.
      ('dp', lambda: toys.build_dp_fed_avg(0.0), toys.build_dataset),
      ('client_ids', toys.build_fed_avg_over_ids, str),
  )
  def test_state_equals_native_with_the_same_bits_on_any_devices_and_threads(
      self, build_process, build_client
  ):
    process = build_process()
    cohorts = [[build_client(i) for i in ids] for ids in (range(7), (3, 4))]
    ours, *others = (
        _run(
            _build(
                devices=_CPUS[:num_devices],
                clients_per_device=per_device,
            ),
            process,
            cohorts,
        )
        for num_devices, per_device in (
            (1, 1), (4, 1), (2, 2), (1, 'auto')
        )
    )
    for other in others:
      for mine, theirs in zip(_arrays(ours), _arrays(other), strict=True):
        self.assertEqual(mine.tobytes(), theirs.tobytes())
    native_run = _run(_build_native(), process, cohorts)
    self.assertIs(type(ours[0]), type(native_run[0]))
    tf.nest.assert_same_structure(ours, native_run)
    for mine, theirs in zip(_arrays(ours), _arrays(native_run), strict=True):
      self.assertEqual(mine.dtype, theirs.dtype)
      if np.issubdtype(mine.dtype, np.floating):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
      else:
        np.testing.assert_array_equal(mine, theirs)
    self.assertTrue(
        np.any(_arrays(ours[0].global_model_weights.trainable)[0])
    )

  def test_evaluation_returns_metrics(self):
    evaluate = tff.learning.algorithms.build_fed_eval(toys.build_model)
    clients = [toys.build_dataset(0), toys.build_dataset(1)]
    _, metrics = _run(
        _build(devices=_CPUS[:2]), evaluate, [clients]
    )
    current = metrics['client_work']['eval']['current_round_metrics']
    # Zero weights predict 0: the mean absolute error is that of y.
    y = np.concatenate(
        [batch['y'] for client in clients for batch in client]
    )
    self.assertEqual(current['num_examples'], 16)
    self.assertAlmostEqual(
        current['mean_absolute_error'], np.mean(np.abs(y)), places=5
    )

  def test_analytics_run_as_in_native(self):
    count = tff.analytics.count_distinct
    process = count.create_federated_hyperloglog_computation()
    sketched = []
    for texts in ((['a', 'b', 'a'], ['a', 'c']), (['a'], ['a'])):
      clients = [tf.data.Dataset.from_tensor_slices(words) for words in texts]
      sketched.append(_invoke(process, clients))
      with _install(_build_native()):
        self.assertEqual(sketched[-1], process(clients))
    self.assertGreater(*sketched)

  @pytest.mark.slow
  def test_heavy_hitters_run(self):
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


@logical_devices.needed
class ComputationTest(parameterized.TestCase):

  def test_sums_and_means(self):
    @tff.federated_computation(toys.CLIENT_FLOAT, toys.CLIENT_FLOAT)
    def two(a, b):
      return collections.OrderedDict(
          a=tff.federated_sum(a), b=tff.federated_mean(b, a)
      )

    mean = tff.federated_computation(
        lambda values: tff.federated_mean(values), toys.CLIENT_FLOAT
    )
    for comp, args, expected in (
        (toys.scaled_sum, (2.0, [1.0, 2.0, 4.0]), 14.0),
        (toys.scaled_sum, (2.0, []), 0.0),
        (mean, ([1.0, 2.0, 6.0],), 3.0),
        # b: (1 * 10 + 3 * 20) / 4 = 17.5.
        (two, ([1.0, 3.0], [10.0, 20.0]), dict(a=4.0, b=17.5)),
    ):
      result = _invoke(comp, *args, devices=_CPUS[:2], client_cost=np.sum)
      self.assertEqual(result, expected)

  def test_server_only_and_plain_computations(self):
    @tff.federated_computation(toys.SERVER_FLOAT)
    def server_only(value):
      return tff.federated_map(
          tff.tensorflow.computation(lambda x: x + 1.0), value
      )

    @tff.federated_computation(np.float32)
    def plain(value):
      return toys.scale(value, value), value

    self.assertEqual(_invoke(server_only, 1.0), 2.0)
    self.assertEqual(_invoke(toys.scale, 3.0, 4.0), 12.0)
    self.assertEqual(_invoke(plain, 3.0), (9.0, 3.0))

  def test_arguments_equal_at_all_clients_and_lists_of_elements(self):
    all_equal = tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True)
    sequences = tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)

    @tff.tensorflow.computation(tff.SequenceType(np.float32), np.float32)
    def work(numbers, factor):
      return factor * numbers.reduce(0.0, lambda total, one: total + one)

    @tff.federated_computation(all_equal, (sequences, toys.SERVER_FLOAT))
    def comp(factor, others):
      numbers, offset = others
      return (
          tff.federated_sum(tff.federated_map(work, (numbers, factor))),
          offset,
      )

    # 2 * (1 + 2) + 2 * 4 = 14, of lists and of a dataset.
    for last in ([4.0], tf.data.Dataset.from_tensors(4.0)):
      numbers = [[1.0, 2.0], [], last]
      found = _invoke(comp, 2.0, (numbers, 5.0), devices=_CPUS[:2])
      self.assertEqual(found, (14.0, 5.0))

  def test_results_without_placement(self):
    @tff.federated_computation(toys.CLIENT_FLOAT)
    def over_clients(values):
      nested = collections.OrderedDict(a='a', b=tff.federated_sum(values), c=())
      return 3, nested

    @tff.federated_computation(np.float32, toys.SERVER_FLOAT)
    def at_server(plain, placed):
      one = tff.federated_value(1, tff.SERVER)
      return placed, (toys.scale(plain, 2.0), one)

    self.assertEqual(
        _invoke(over_clients, [1.0, 2.0]), (3, dict(a=b'a', b=3.0, c=()))
    )
    self.assertEqual(_invoke(at_server, 4.0, 5.0), (5.0, (8.0, 1)))

  def test_tables_are_filled_on_every_device(self):
    @tff.tensorflow.computation(np.str_)
    def look_up(client_id):
      table = tf.lookup.StaticHashTable(
          tf.lookup.KeyValueTensorInitializer(['a', 'b'], [1.0, 10.0]), 0.0
      )
      return tf.ensure_shape(table.lookup(client_id), [])

    # 4 * 1 + 4 * 10 = 44.
    result = _invoke(toys.sum_of(look_up), ['a', 'b'] * 4, devices=_CPUS)
    self.assertEqual(result, 44.0)

  def test_variables_are_initialized_before_each_client_and_not_shared(self):
    @tff.tensorflow.computation(np.float32)
    def work(value):
      variable = tf.Variable(0.0)

      @tf.function
      def add():
        for _ in tf.range(2000):
          variable.assign_add(value)
        return variable.read_value()

      return add()

    values = [float(i) for i in range(12)]
    result = _invoke(
        toys.sum_of(work), values, devices=_CPUS[:2], clients_per_device=3
    )
    self.assertEqual(result, 2000 * sum(values))

  def test_a_clients_table_does_not_outlive_it(self):
    @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
    def count(tokens):
      table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
      added = table.insert(tokens, tf.ones_like(tokens, tf.int64))
      with tf.control_dependencies([added]):
        return table.size()

    clients = tff.FederatedType(count.type_signature.parameter, tff.CLIENTS)

    @tff.federated_computation(clients)
    def total_and_largest(tokens):
      counts = tff.federated_map(count, tokens)
      return tff.federated_sum(counts), tff.federated_max(counts)

    tokens = [['a', 'b'], ['c'], ['d', 'e', 'f']]
    for options in (dict(), dict(devices=_CPUS[:2], clients_per_device=2)):
      for _ in range(2):
        result = _invoke(total_and_largest, tokens, **options)
        self.assertEqual(tuple(result), (6, 3))

  def test_variables_are_set_from_arguments_on_any_device(self):
    @tff.tensorflow.computation(np.float32)
    def double(x):
      variable = tf.Variable(x)
      with tf.control_dependencies([variable.assign_add(x)]):
        return variable.read_value()

    @tff.federated_computation(toys.SERVER_FLOAT)
    def at_server(x):
      return tff.federated_map(double, x)

    for x in (3.0, 5.0):
      self.assertEqual(_invoke(double, x), 2 * x)
      self.assertEqual(_invoke(at_server, x), 2 * x)
      # 2 (x + 1) + 2 (x + 2).
      total = _invoke(toys.sum_of(double), [x + 1, x + 2])
      self.assertEqual(total, 4 * x + 6)

  def test_consecutive_maps_have_separate_variables(self):
    @tff.tensorflow.computation(np.float32)
    def add_one(x):
      variable = tf.Variable(tf.fill([3], x))
      with tf.control_dependencies([variable.assign_add([1.0, 1.0, 1.0])]):
        return variable.read_value()

    @tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
    def ten_times(y):
      variable = tf.Variable(y)
      with tf.control_dependencies([variable.assign(10.0 * y)]):
        return tf.reduce_sum(variable.read_value())

    def chained(x):
      return tff.federated_map(ten_times, tff.federated_map(add_one, x))

    at_server = tff.federated_computation(chained, toys.SERVER_FLOAT)
    at_clients = tff.federated_computation(
        lambda x: tff.federated_sum(chained(x)), toys.CLIENT_FLOAT
    )
    options = dict(devices=_CPUS[:2], clients_per_device=2)
    for _ in range(10):
      self.assertEqual(_invoke(at_server, 1.0), 60.0)
      # 30 (2 + 3 + 4 + 5).
      values = [1.0, 2.0, 3.0, 4.0]
      self.assertEqual(_invoke(at_clients, values, **options), 420.0)

  def test_an_op_that_would_share_state_between_clients_is_named(self):
    @tff.tensorflow.computation(np.int32)
    def work(x):
      queue = tf.queue.FIFOQueue(10, [tf.int32], [[]])
      with tf.control_dependencies([queue.enqueue(x)]):
        return queue.size()

    with self.assertRaisesRegex(
        compiler.UncompilableError, 'FIFOQueueV2.*from client to client'
    ):
      _invoke(toys.sum_of(work), [1, 2])

  def test_each_load_is_released_with_its_computation(self):
    store = context_lib.ComputationCache(lambda comp: object())
    comp = tff.tensorflow.computation(lambda: tf.constant(1))
    self.assertIs(store.get(comp), store.get(comp))
    self.assertLen(store._entries, 1)
    del comp
    gc.collect()
    self.assertEmpty(store._entries)


@tff.tensorflow.computation(np.int32)
def _toil(client):
  """Returns the client after some 0.1 s; client 13 fails."""

  @tf.function
  def body(client):
    matrix = tf.eye(256)
    for _ in tf.range(100):
      matrix = tf.linalg.matmul(matrix, matrix)
    tf.debugging.assert_none_equal(client, 13, message='An unlucky client.')
    return client + tf.cast(matrix[0, 1], tf.int32)

  return body(client)


_sum_toil = toys.sum_of(_toil)


@contextlib.contextmanager
def _watch():
  """Yields a list: at each client's begin, those at work and their devices."""
  begin, at_work = client_round.ClientRound.begin, []

  def note(execution, position, device):
    begin(execution, position, device)
    begun = dict(execution.in_progress)
    at_work.append({each: place for each, (_, place) in begun.items()})

  with mock.patch.object(client_round.ClientRound, 'begin', note):
    yield at_work


@logical_devices.needed
class ScheduleTest(parameterized.TestCase):

  @parameterized.parameters(
      dict(devices=_CPUS[:2], clients_per_device=1),
      dict(devices=_CPUS[:1], clients_per_device=2),
  )
  def test_as_many_clients_overlap_as_there_are_threads(self, **options):
    with _watch() as at_work:
      self.assertEqual(_invoke(_sum_toil, [1, 2, 3, 4], **options), 10)
    self.assertLen(at_work, 4)
    self.assertEqual(set().union(*at_work), {0, 1, 2, 3})
    self.assertEqual(max(map(len, at_work)), 2)
    names = [f'/device:{name}' for name in options['devices']]
    for each in at_work:
      found = collections.Counter(each.values())
      self.assertContainsSubset(found, names)
      self.assertLessEqual(
          max(found.values()), options['clients_per_device']
      )

  def test_by_default_a_client_trains_on_each_core(self):
    with mock.patch.object(os, 'sched_getaffinity', lambda _: {0, 1, 2}):
      with _watch() as at_work:
        context = _build(devices=_CPUS[:1])
        with _install(context):
          self.assertEqual(_sum_toil([1, 2, 3, 4]), 10)
    self.assertEqual(max(map(len, at_work)), 3)
    self.assertEqual(context.runner.last_round.num_at_once, 3)

  @parameterized.named_parameters(
      # A client takes 3.5 + 0.5 of the half of 16 GiB.
      ('memory', ('/device:CPU:0',), 3.5, 2),
      ('cores', ('/device:CPU:0',), 0.5, 6),
      ('cores_of_devices', ('/device:CPU:0', '/device:CPU:1'), 0.5, 3),
      ('memory_of_devices', ('/device:CPU:0', '/device:CPU:1'), 1.5, 2),
      ('never_none', ('/device:CPU:0',), 100.0, 1),
      ('small_on_gpu', ('/device:GPU:0',), 0.1, 2),
      ('large_on_gpu', ('/device:GPU:0',), 1.0, 1),
  )
  def test_clients_at_once_follow(self, names, gib, expected):
    free = mock.Mock(available=16 * 2**30)
    chosen = devices_lib.DeviceSet(names, 'auto')
    with mock.patch.object(os, 'sched_getaffinity', lambda _: set(range(6))):
      with mock.patch.object(psutil, 'virtual_memory', lambda: free):
        self.assertEqual(
            chosen.num_at_once(tensor_bytes=int(gib * 2**30)), expected
        )
    fixed = devices_lib.DeviceSet(names, 5)
    self.assertEqual(fixed.num_at_once(tensor_bytes=2**40), 5)

  @parameterized.named_parameters(
      ('auto', dict(clients_per_device='auto'), 1),
      ('auto_with_few_clients', dict(cohort_size=2.5), 2),
      ('one_client', dict(clients_per_device=1), 6),
      ('two_clients', dict(clients_per_device=2), 3),
      ('two_devices', dict(devices=_CPUS[:2], clients_per_device=2), 1),
      ('more_clients_than_cores', dict(clients_per_device=7), 1),
      ('few_clients', dict(clients_per_device=3, cohort_size=2), 3),
      ('gpus', dict(devices=['GPU:0']), None),
  )
  def test_clients_at_once_share_the_cores(self, settings, threads):
    with _threads_of_ops(0) as chosen:
      devices_lib.share_cores(**settings)
    self.assertEqual(
        chosen.call_args_list, [] if threads is None else [mock.call(threads)]
    )

  @parameterized.named_parameters(
      ('in_python', 4, ''), ('in_the_environment', 0, '4')
  )
  def test_threads_that_were_chosen_stay(self, number, variable):
    with _threads_of_ops(number, variable=variable) as chosen:
      devices_lib.share_cores()
      chosen.assert_not_called()
      self.assertEqual(devices_lib.threads_per_op(), 4)

  def test_after_the_first_op_threads_stay(self):
    before = devices_lib.threads_per_op()
    tf.zeros([])
    _build(clients_per_device='auto')
    self.assertEqual(devices_lib.threads_per_op(), before)

  def test_costly_clients_start_first(self):
    with _watch() as at_work:
      _invoke(
          _sum_toil, [1, 3, 2], client_cost=float, clients_per_device=1
      )
    self.assertEqual([list(each) for each in at_work], [[1], [2], [0]])

  def test_failing_client_is_named_and_no_thread_is_left(self):
    context = _build(devices=_CPUS[:2])
    num_threads = threading.active_count()
    with _install(context):
      with self.assertRaisesRegex(
          client_round.ClientError, r'Client 2 of 6 .* failed on .*unlucky'
      ) as raised:
        _sum_toil([1, 2, 13, 4, 5, 6])
      self.assertEqual(raised.exception.position, 2)
      self.assertEqual(_sum_toil([1, 2]), 3)
    self.assertEqual(threading.active_count(), num_threads)

  def test_clients_that_fail_are_left_out_up_to_a_share(self):
    context = _build(devices=_CPUS[:2], max_failed_share=0.5)
    with _install(context):
      # 13 fails: the sum is that of the others.
      self.assertEqual(_sum_toil([1, 13, 3, 13]), 4)
      self.assertEqual(list(context.runner.last_round.failures), [1, 3])
      self.assertIn('An unlucky client.', context.runner.last_round.failures[1])
      with self.assertRaisesRegex(
          client_round.ClientError,
          r'^[23] clients failed, .*: Client [0-2] of 3',
      ):
        _sum_toil([13, 13, 13])
      # A share below one client is none.
      with self.assertRaisesRegex(
          client_round.ClientError, '^Client 0 of 1'
      ):
        _sum_toil([13])
      self.assertEqual(_sum_toil([1, 2]), 3)
      self.assertEmpty(context.runner.last_round.failures)
    # All are left out: an empty cohort.
    self.assertEqual(_invoke(_sum_toil, [13, 13], max_failed_share=1.0), 0)
    # .29 * 100 is below 29 in floating point.
    cohort = [13] * 29 + [1] * 71
    self.assertEqual(_invoke(_sum_toil, cohort, max_failed_share=0.29), 71)

  def test_a_client_in_one_of_two_sums_is_never_left_out(self):
    # Client 13 is in the first sum while the second waits for its division by
    # zero, which is not a check. Left out, it would still count in the first.
    @tff.tensorflow.computation(np.int64)
    def work(client):

      @tf.function
      def divide(client):
        matrix = tf.eye(256)
        for _ in tf.range(100):
          matrix = tf.linalg.matmul(matrix, matrix)
        return 7 // (13 - client + tf.cast(matrix[0, 1], tf.int64))

      return tf.fill([2], client), tf.fill([2], divide(client))

    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def comp(clients):
      first, second = tff.federated_map(work, clients)
      return tff.federated_sum(first), tff.federated_sum(second)

    context = _build(max_failed_share=1.0)
    with _install(context):
      first, second = comp([6, 12])
      # 7 // 7 + 7 // 1.
      self.assertEqual((list(first), list(second)), ([18] * 2, [8] * 2))
      with self.assertRaisesRegex(
          client_round.ClientError, 'Client 1 of 2 .*Part of a sum was added'
      ):
        comp([6, 13])

  @parameterized.named_parameters(
      ('plain', 'A cause. [[node]]', r'A cause. \[\[node\]\]'),
      (
          'of_a_graph',
          "Graph execution error:\n\nDetected at node 'x' defined at (most"
          ' recent call last):\n<stack traces unavailable>\nA cause.\n',
          'A cause.',
      ),
      (
          # Which it is depends on what other ops of the graph fail meanwhile.
          'of_several_ops',
          'Graph execution error:\n\n2 root error(s) found.\n  (0) INVALID_'
          'ARGUMENT:  assertion failed: [A cause.] [Condition x != y]\n\t '
          '[[{{node a}}]]\n  (1) INVALID_ARGUMENT:  assertion failed: [An'
          'other.]\n0 successful operations.\n0 derived errors ignored. [Op:f]',
          r'assertion failed: \[A cause.\] \[Condition .*',
      ),
      ('empty', '', 'no message'),
  )
  def test_error_of_a_client_keeps_its_cause(self, text, expected):
    # One at a time: the second client is the one that fails.
    context = _build(max_failed_share=0.5, clients_per_device=1)
    error = tf.errors.InvalidArgumentError(None, None, text)
    expected = f'InvalidArgumentError: {expected}$'
    with mock.patch.object(
        client_round.ClientRound,
        'get_client',
        side_effect=[[tf.constant(1)], error, error, error],
    ), _install(context):
      self.assertEqual(_sum_toil([1, 2]), 1)
      self.assertRegex(context.runner.last_round.failures[1], f'^{expected}')
      with self.assertRaisesRegex(
          client_round.ClientError, f'Client 0 of 2 .*: {expected}'
      ):
        _sum_toil([1, 2])

  def test_too_little_memory_is_not_the_clients_fault(self):
    error = tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating')
    with mock.patch.object(
        client_round.ClientRound, 'get_client', side_effect=error
    ):
      with self.assertRaisesRegex(
          client_round.ClientError, 'OOM when'
      ) as raised:
        _invoke(_sum_toil, [1, 2], max_failed_share=1.0)
    self.assertIs(raised.exception.__cause__, error)

  @pytest.mark.skipif(
      not os.path.exists('/dev/full'), reason='needs /dev/full, a full disk'
  )
  def test_a_full_disk_is_neither_the_clients_fault_nor_a_lack_of_memory(self):
    @tff.tensorflow.computation(np.float32)
    def work(value):
      write = tf.raw_ops.WriteFile(filename='/dev/full', contents='x')
      with tf.control_dependencies([write]):
        return tf.identity(value)

    with self.assertRaisesRegex(
        client_round.ClientError, 'No space left'
    ) as raised:
      _invoke(toys.sum_of(work), [1.0, 2.0], max_failed_share=1.0)
    self.assertEqual(
        client_round.exhausted_resource(
            raised.exception.__cause__
        ), errno.ENOSPC
    )

  def test_a_client_that_hangs_ends_the_round(self):
    released = threading.Event()
    self.addCleanup(released.set)

    def hang(*unused_args):
      released.wait()
      return [tf.constant(1.0)]

    def run():
      return _invoke(
          toys.scaled_sum,
          1.0,
          [1.0, 2.0],
          devices=_CPUS[:2],
          client_timeout_sec=1.0,
      )

    self.assertEqual(run(), 3.0)  # Compiles.
    with mock.patch.object(
        client_round.ClientRound, 'get_client', hang
    ):
      with self.assertRaisesRegex(
          client_round.ClientTimeoutError,
          r'position [01] of 2 .*CPU:. .*1 s \(CLIENT_TIMEOUT',
      ):
        run()
    released.set()
    self.assertEqual(run(), 3.0)

  def test_failure_outside_client_work_ends_the_round(self):
    @tff.tensorflow.computation
    def zero():
      with tf.control_dependencies([
          tf.debugging.Assert(tf.random.uniform([]) > 2.0, ['No zero.'])
      ]):
        return tf.constant(0.0)

    add = tff.tensorflow.computation(lambda a, b: a + b, np.float32, np.float32)
    report = tff.tensorflow.computation(lambda a: a, np.float32)
    comp = tff.federated_computation(
        lambda values: tff.federated_aggregate(
            values, zero(), add, add, report
        ),
        toys.CLIENT_FLOAT,
    )
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'No zero'):
      _invoke(comp, [1.0, 2.0, 3.0], devices=_CPUS[:2])


# Callables of a round, in about the order of their calls.
_ROUND = (
    (graph.LoadedProgram, '__call__'),
    (context_lib, 'trim_malloc'),
    (scheduler, 'group_clients'),
    (client_trainer.ClientTrainer, '__init__'),
    (threading.Thread, 'start'),
    (scheduler.Scheduler, 'acquire'),
    (client_trainer.ClientTrainer, 'train'),
    (compiler.ClientPrograms, 'split'),
    (compiler.ClientPrograms, 'join'),
    (client_round.ClientRound, 'begin'),
    (client_round.ClientRound, 'check_stop'),
    (scheduler.Scheduler, 'check_running'),
    (client_round.ClientRound, 'get_client'),
    (client_round.ClientRound, 'end'),
    (client_round.ClientRound, 'add_ordered'),
    (reduction.OrderedSum, 'add'),
    (scheduler.Scheduler, 'complete'),
    (client_trainer.ClientTrainer, 'flush'),
    (reduction, 'sum_over_devices'),
    (scheduler.Scheduler, 'wait_for_sums'),
    (reduction.OrderedSum, 'total'),
)


def _client_threads() -> list[str]:
  names = [thread.name for thread in threading.enumerate()]
  return [name for name in names if name.startswith('clients ')]


@logical_devices.needed
class FaultTest(parameterized.TestCase):
  """An error or an interrupt in any callable of a round ends the round."""

  def invoke(self) -> Any:
    """What a round returns or raises, within seconds."""
    outcome = []

    def run():
      try:
        outcome.append(_invoke(
            _sums(),
            [1.0, 2.0, 4.0],
            devices=_CPUS[:2],
            # So that threads that hang do not keep the tests from ending.
            client_timeout_sec=1000.0,
        ))
      except BaseException as error:  # pylint: disable=broad-exception-caught
        outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60.0)
    self.assertFalse(thread.is_alive(), 'The round hangs.')
    return outcome[0]

  @parameterized.product(
      error=(RuntimeError, KeyboardInterrupt, SystemExit), place=_ROUND
  )
  def test_a_fault_ends_the_round_and_leaves_no_thread(self, error, place):
    expected = self.invoke()
    self.assertEqual(expected, dict(exact=7, rounded=7.0))
    real = getattr(*place)
    # The first thread is the one of `invoke`.
    first = int(place[0] is threading.Thread)
    ended = 0
    # At each of the calls that a round has.
    for number in itertools.count(first):
      calls, raised = itertools.count(), error('injected')

      def call(*args, number=number, calls=calls, raised=raised, **kwargs):
        if next(calls) == number:
          raise raised
        return real(*args, **kwargs)

      with mock.patch.object(*place, call):
        found = self.invoke()
      if next(calls) <= number:  # The round had no such call.
        break
      self.assertEmpty(_client_threads())
      # A thread may fail when the sum is complete.
      if found != expected:
        self.assertIsInstance(found, BaseException, number)
        self.assertIn(raised, (found, found.__cause__))
        ended += 1
    self.assertGreater(ended, 0)
    self.assertEqual(self.invoke(), expected)

  def test_a_round_is_cancelled_at_any_of_its_awaits(self):

    async def program(number):
      with _install(multi_device.build_async_context()):
        task = asyncio.create_task(_sum_toil([1, 2, 3]))
        for _ in range(number):
          await asyncio.sleep(0)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
          await asyncio.wait_for(task, 20.0)

    for number in range(6):
      asyncio.run(program(number))
      self.assertEmpty(_client_threads())
    self.assertEqual(_invoke(toys.scaled_sum, 2.0, [1.0, 2.0]), 6.0)


@functools.lru_cache
def _sums() -> tff.Computation:
  """A sum that is exact in any order, and one that is not."""

  @tff.tensorflow.computation(np.float32)
  def exact(value):
    return tf.cast(value, tf.int64)

  return tff.federated_computation(
      lambda values: collections.OrderedDict(
          exact=tff.federated_sum(tff.federated_map(exact, values)),
          rounded=tff.federated_sum(values),
      ),
      toys.CLIENT_FLOAT,
  )


@logical_devices.needed
class EventLoopTest(absltest.TestCase):

  def test_sync_context_inside_a_running_loop(self):
    async def cell():
      return _invoke(toys.scaled_sum, 2.0, [1.0, 2.0])

    self.assertEqual(asyncio.run(cell()), 6.0)

  def test_async_context_leaves_the_loop_free_and_is_cancelled(self):
    async def program():
      with _install(multi_device.build_async_context()):
        task = asyncio.create_task(_sum_toil([1, 2, 3]))
        ticks = 0
        while not task.done():
          await asyncio.sleep(0.01)
          ticks += 1
        self.assertEqual(await task, 6)
        self.assertGreater(ticks, 5)
        task = asyncio.create_task(_sum_toil([1] * 100))
        await asyncio.sleep(0.2)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
          await task

    start_sec = time.monotonic()
    asyncio.run(program())
    # A hundred clients take 10 s: it ends after the one in work.
    self.assertLess(time.monotonic() - start_sec, 8.0)

  def test_program_context_takes_the_async_context(self):
    process = toys.build_fed_avg_over_ids()
    cohorts = [['0', '1'], ['2', '3']]
    one = _build(devices=_CPUS[:1], clients_per_device=1)
    expected = _run(one, process, cohorts)[0]

    async def program():
      context = tff.program.NativeFederatedContext(
          multi_device.build_async_context(
              multi_device.Settings(devices=_CPUS[:2])
          )
      )
      with _install(context):
        state = process.initialize()
        for cohort in cohorts:
          output = process.next(state, cohort)
          state = output.state
        return await tff.program.materialize_value(state)

    found = asyncio.run(program())
    for a, b in zip(_arrays(expected), _arrays(found), strict=True):
      self.assertEqual(a.tobytes(), b.tobytes())


@logical_devices.needed
class BadArgumentTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('clients_per_device', dict(clients_per_device=0), 'clients_per_device'),
      ('memory', dict(gpu_memory_mb=0), 'gpu_memory_mb'),
      ('split_by_auto', dict(gpu_memory_mb=100), 'as a number'),
      ('share', dict(max_failed_share=1.5), 'max_failed_share'),
      ('timeout', dict(client_timeout_sec=0), 'client_timeout_sec'),
      ('no_device', dict(devices=[]), 'devices'),
      ('string', dict(devices='CPU:0'), 'devices'),
      ('absent', dict(devices=['GPU:7']), 'GPU:7'),
      ('twice', dict(devices=['CPU:0', '/CPU:0']), 'devices'),
      ('nonsense', dict(devices=['quantum']), 'quantum'),
  )
  def test_setting_is_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      multi_device.build_sync_context(multi_device.Settings(**options))

  @parameterized.named_parameters(
      ('dtype', ([np.float64(1.0)],), 'float64'),
      ('shape', ([np.zeros(2, np.float32)],), r'shape \(2,\)'),
      ('no_list', (np.float32(1.0),), 'list with one value for each client'),
  )
  def test_client_values_are_checked(self, args, message):
    with self.assertRaisesRegex(
        (TypeError, client_round.ClientError), message
    ):
      _invoke(toys.scaled_sum, 1.0, *args)
