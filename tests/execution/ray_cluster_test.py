"""Tests of tff_asr.execution.ray_cluster, on a Ray cluster of this machine."""

import asyncio
from concurrent import futures
import dataclasses
import functools
import io
import ipaddress
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil
import pytest
import soundfile
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests import seen
from tests.execution import toys
from tff_asr.aggregators import dp_mean
from tff_asr.execution import client_round
from tff_asr.execution import client_trainer
from tff_asr.execution import multi_device
from tff_asr.execution import native
from tff_asr.execution import ray_cluster
from tff_asr.execution import scheduler
from tff_asr.privacy import distributed
from tff_asr.privacy import keys

ray_cluster.require_token(None)  # Before Ray is imported.
try:
  import ray
  from tff_asr.execution import ray_worker
except ImportError:
  ray = None

_ROOT = pathlib.Path(__file__).parents[2]
_TIMEOUT_SEC = 300
_needs_ray = absltest.skipIf(
    ray is None,
    'Ray is not installed: pip install --no-deps -r requirements-ray.txt',
)
# Starts more than one cluster, or waits for what Ray finds out late.
_slow = pytest.mark.slow

# By number of workers: to start one takes half a minute.
_contexts = {}


def tearDownModule():
  _contexts.clear()
  if ray is not None:
    ray_cluster.stop()


_install = tff.framework.get_context_stack().install


def _context(num_workers: int = 2) -> tff.framework.SyncContext:
  """Returns a context that tests share."""
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_session

  if num_workers not in _contexts:
    # Room for contexts of 1 and 2 workers, and one more of three tests.
    ray_session.connect(None, num_cpus=6)
    _contexts[num_workers] = ray_cluster.build_sync_context(
        ray_cluster.Settings(num_workers=num_workers)
    )
  return _contexts[num_workers]


def _run(context, process, cohorts) -> list[np.ndarray]:
  """Returns the leaves of weights and optimizer after a round a cohort."""
  with _install(context):
    state = process.initialize()
    for cohort in cohorts:
      state = process.next(state, cohort).state
  leaves = tf.nest.flatten(
      [list(state.global_model_weights.trainable), state.finalizer]
  )
  return list(map(np.asarray, leaves))


def _actors(context):
  return list(context.runner.actors.values())


def _settings(context, **changes):
  """Changes the settings of a context's rounds in a `with` block."""
  runner = context.runner
  return mock.patch.object(
      runner, 'settings', dataclasses.replace(runner.settings, **changes)
  )


def _process_id(actor) -> int:
  return ray.get(actor.handle.__ray_call__.remote(lambda _: os.getpid()))


def _count_clients_at_work(unused_worker) -> None:
  """Makes an actor note how many clients train in it when one begins."""
  train, counts = client_trainer.ClientTrainer.train, []
  lock = threading.Lock()
  at_work = []

  def train_and_count(trainer, thread, positions, **options):
    with lock:
      at_work.extend(positions)
      counts.append(len(at_work))
    ordered = train(trainer, thread, positions, **options)
    with lock:
      for position in positions:
        at_work.remove(position)
    return ordered

  client_trainer.ClientTrainer.train = train_and_count
  client_trainer.counts = counts


def _get_counts(unused_worker) -> list[int]:
  """What `_count_clients_at_work` noted."""
  return client_trainer.counts


_NUM_WEIGHTS = 100_000  # Large enough to go through the object store.


@tff.tensorflow.computation(np.float32, np.str_)
def _gated_client(value, gate):
  """A client that returns vectors of floats and of integers.

  If its value is at least 10, it first waits for the file `gate`. To show that
  it waits it writes a file of that name followed by the value.
  """

  @tf.function
  def body(value, gate):
    looks = 0
    if value >= 10.0:
      tf.io.write_file(gate + tf.strings.as_string(value), '')
      while tf.equal(tf.size(tf.io.matching_files(gate)), 0):
        looks += 1
    steps = tf.range(_NUM_WEIGHTS, dtype=tf.float32)
    found = tf.sin(value * steps) + 0.0 * tf.cast(looks, tf.float32)
    whole = tf.cast(1e6 * found, tf.int64)
    return found, whole, tf.reverse(whole, [0])[:10]

  return body(value, gate)


@tff.federated_computation(
    tff.FederatedType(np.str_, tff.SERVER), toys.CLIENT_FLOAT
)
def _gated_sum(gate, values):
  gates = tff.federated_broadcast(gate)
  return tff.federated_sum(tff.federated_map(_gated_client, (values, gates)))


def bits_of_gated_sum(context, gate, values) -> bytes:
  """Returns the bits of `_gated_sum`: of an ordered sum and of exact ones."""
  with _install(context):
    leaves = tf.nest.flatten(list(_gated_sum(gate.path, values)))
  return b''.join(np.asarray(leaf).tobytes() for leaf in leaves)


class Gate:
  """A file for which clients of `_gated_sum` wait, in a temporary folder."""

  def __init__(self, *, is_open: bool = False):
    self._folder = tempfile.TemporaryDirectory()
    self.path = os.path.join(self._folder.name, 'gate')
    if is_open:
      self.open()

  def open(self) -> None:
    pathlib.Path(self.path).touch()

  def wait_for_clients(self, number: int) -> None:
    """Waits until this number of clients wait."""
    deadline = time.monotonic() + _TIMEOUT_SEC
    while len(os.listdir(self._folder.name)) < number:
      if time.monotonic() > deadline:
        raise TimeoutError('The clients did not come.')
      time.sleep(0.05)


@_slow
@_needs_ray
class LearningProcessTest(parameterized.TestCase):

  def test_state_equals_multi_device_for_any_number_of_workers(self):
    process = toys.build_dp_fed_avg(0.0)
    cohorts = [[toys.build_dataset(i) for i in range(11)]] * 3
    expected = _run(multi_device.build_sync_context(), process, cohorts)
    found, *others = (
        _run(_context(number), process, cohorts) for number in (2, 2, 1)
    )
    for mine, other in zip(found, expected, strict=True):
      self.assertLessEqual(
          np.linalg.norm(mine - other), 1e-5 * np.linalg.norm(other)
      )
    self.assertTrue(np.any(found[0]))
    for again in others:
      for mine, other in zip(found, again, strict=True):
        self.assertEqual(mine.tobytes(), other.tobytes())

  def test_secure_sums_have_the_bits_of_multi_device(self):
    process = tff.learning.algorithms.build_weighted_fed_avg(
        toys.build_model,
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=tff.learning.secure_aggregator(
            clipping=False, zeroing=False
        ),
    )
    cohorts = [[toys.build_dataset(i) for i in range(4)]] * 2
    here, found = (
        _run(context, process, cohorts)
        for context in (multi_device.build_sync_context(), _context(2))
    )
    for mine, other in zip(found, here, strict=True):
      self.assertEqual(mine.tobytes(), other.tobytes())
    self.assertTrue(np.any(found[0]))

  def test_devices_draw_their_noise_in_workers(self):
    update = tff.TensorType(np.float32, [30])
    process = dp_mean.build_distributed(
        build_query=functools.partial(
            distributed.DistributedSumQuery,
            l2_norm_clip=2.0,
            noise_multiplier=0.7,
            num_clients=4,
            max_failed_share=0.25,
            bits=17,
        ),
        cohort_size=4,
    ).create(update, tff.TensorType(np.int64))
    results = []
    for context in (multi_device.build_sync_context(), _context(2)):
      with _install(context):
        state = fakes.set_noise_key(
            process.initialize(), keys.from_seed(1)
        )
        output = process.next(
            state, [np.ones(30, np.float32)] * 4, [np.int64(n) for n in range(4)]
        )
        results.append(np.asarray(output.result))
    here, found = results
    self.assertEqual(here.tobytes(), found.tobytes())


@_needs_ray
class ComputationTest(parameterized.TestCase):

  def invoke(self, comp, *args):
    with _install(_context()):
      return comp(*args)

  def test_sum_and_local_computation(self):
    self.assertEqual(self.invoke(toys.scaled_sum, 2.0, []), 0.0)
    self.assertEqual(self.invoke(toys.scale, 3.0, 4.0), 12.0)
    # 2 * (1 + 2 + 4) = 14.
    self.assertEqual(self.invoke(toys.scaled_sum, 2.0, [1.0, 2.0, 4.0]), 14.0)

  def test_lists_of_elements_reach_the_workers_as_datasets(self):
    @tff.tensorflow.computation(
        tff.SequenceType(tff.TensorType(np.float32, [None]))
    )
    def work(batches):
      return batches.reduce(0.0, lambda total, b: total + tf.reduce_sum(b))

    # A full batch and a smaller one, a client without any: 1 + 2 + 4 + 8 = 15.
    clients = [[[1.0, 2.0], [4.0]], [], [[8.0]]]
    self.assertEqual(self.invoke(toys.sum_of(work), clients), 15.0)

  def test_one_sum_a_worker_goes_to_the_store(self):
    weights = tff.TensorType(np.float32, [_NUM_WEIGHTS])

    @tff.tensorflow.computation(np.float32, weights)
    def work(value, model):
      return tf.cast(value * model, tf.int64), tf.reduce_sum(value * model)

    @tff.federated_computation(
        tff.FederatedType(weights, tff.SERVER), toys.CLIENT_FLOAT
    )
    def comp(model, values):
      models = tff.federated_broadcast(model)
      return tff.federated_sum(tff.federated_map(work, (values, models)))

    model = np.ones(_NUM_WEIGHTS, np.float32)
    values = [float(i) for i in range(40)]
    total, _ = self.invoke(comp, model, values)
    self.assertEqual(set(total.numpy()), {780})
    # The model, at most two sums that fit into int32, and a measurement a
    # client.
    found = _context().runner.last_round.store_bytes
    self.assertIn(found - 160, [8 * _NUM_WEIGHTS, 12 * _NUM_WEIGHTS])

  @_slow
  def test_an_actor_trains_several_clients_at_once(self):
    @tff.tensorflow.computation(np.float32)
    def work(value):
      # It ends by itself: two that wait for a file leave TensorFlow's two
      # threads to each other.
      return tf.while_loop(
          lambda step, _: step < 3000,
          lambda step, matrix: (step + 1, tf.linalg.matmul(matrix, matrix)),
          (0, tf.eye(200)),
      )[1][0, 0] * value

    _context(1)  # Starts the cluster.
    context = ray_cluster.build_sync_context(
        ray_cluster.Settings(
            num_workers=1, clients_per_device=2, op_libraries=()
        )
    )
    (actor,) = _actors(context)
    ray.get(actor.handle.__ray_call__.remote(_count_clients_at_work))
    with _install(context):
      self.assertEqual(toys.sum_of(work)([1.0, 2.0, 3.0, 4.0]), 10.0)
    counts = ray.get(actor.handle.__ray_call__.remote(_get_counts))
    self.assertLen(counts, 4)
    self.assertEqual(max(counts), 2)

  def test_flac_is_decoded_in_the_workers(self):
    import tensorflow_io as tfio  # pylint: disable=g-import-not-at-top

    waveform = np.array([100, -3, 20], np.int16)
    file = io.BytesIO()
    soundfile.write(file, waveform, 16000, format='FLAC')

    @tff.tensorflow.computation(np.str_)
    def decode(audio):
      samples = tfio.audio.decode_flac(audio, dtype=tf.int16)
      return tf.reduce_sum(tf.cast(samples, tf.int32))

    found = self.invoke(toys.sum_of(decode), [file.getvalue()] * 2)
    self.assertEqual(found, 2 * 117)

  def test_clients_that_fail_are_named_or_left_out_and_the_workers_live(self):
    with _install(context := _context()):
      with self.assertRaisesRegex(
          client_round.ClientError,
          r'^Client 2 of 6 .* failed on /device:CPU:0 of node .*unlucky',
      ) as raised:
        toys.scaled_sum(1.0, [1.0, 2.0, 13.0, 4.0, 5.0, 6.0])
      self.assertEqual(raised.exception.position, 2)
      self.assertIsInstance(raised.exception.__cause__, tf.errors.OpError)
      with _settings(context, max_failed_share=0.5):
        self.assertEqual(toys.scaled_sum(1.0, [1.0, 13.0, 13.0, 4.0]), 5.0)
        self.assertEqual(list(context.runner.last_round.failures), [1, 2])
        with self.assertRaisesRegex(
            client_round.ClientError, '^2 clients failed, for example'
        ):
          toys.scaled_sum(1.0, [13.0, 13.0, 3.0])


@_slow
@_needs_ray
class LossTest(absltest.TestCase):

  def test_a_killed_worker_changes_no_bit_and_is_replaced(self):
    context = _context(2)
    values = [float(i) for i in range(20)]

    def run(gate):
      return bits_of_gated_sum(context, gate, values)

    gate = Gate()
    expected = run(Gate(is_open=True))
    before = [_process_id(actor) for actor in _actors(context)]
    with futures.ThreadPoolExecutor() as threads:
      found = threads.submit(run, gate)
      gate.wait_for_clients(2)  # One on each worker.
      os.kill(before[0], signal.SIGKILL)
      gate.open()
      self.assertEqual(found.result(), expected)
    # The replacement takes part as soon as TensorFlow is loaded.
    deadline = time.monotonic() + _TIMEOUT_SEC
    while not _actors(context)[0].wait():
      self.assertLess(time.monotonic(), deadline)
    self.assertEqual(run(gate), expected)
    after = [_process_id(actor) for actor in _actors(context)]
    self.assertNotEqual(before[0], after[0])
    self.assertEqual(before[1], after[1])

  def test_a_client_that_ends_its_worker_or_hangs_is_tried_three_times(self):
    # An end stands for a client that takes more memory than there is.
    @tff.tensorflow.computation(np.float32)
    def crash(value):
      def abort():
        end = tf.raw_ops.Abort(exit_without_error=True)
        with tf.control_dependencies([end]):
          return tf.identity(value)

      return tf.cond(value > 0, abort, lambda: value)

    @tff.tensorflow.computation(np.float32)
    def hang(value):
      return tf.while_loop(
          lambda value: value > 0, lambda value: value, [value]
      )[0]

    context = _context(1)
    for work, limit in ((crash, None), (hang, 5.0)):
      comp = toys.sum_of(work)
      with _install(context):
        self.assertEqual(comp([0.0]), 0.0)  # Compiles, without a limit.
        with _settings(
            context, client_timeout_sec=limit
        ), self.assertRaisesRegex(
            ConnectionError, r'positions \(0,\) lost its worker 3 times'
        ):
          comp([1.0, 2.0])

  def test_a_lost_machine_changes_no_bit(self):
    # A head without workers and two nodes, of which one is taken away with
    # the partial sums that it holds.
    lines = _run_on_cluster(0, """
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        context = build()
        print('workers', len(these._actors(context)))
        values = [float(i) for i in range(20)]

        def run(gate):
          return these.bits_of_gated_sum(context, gate, values)

        expected = run(these.Gate(is_open=True))
        sent = context.runner.last_round.store_bytes
        print('bytes', sent - 20 * 4 * these._NUM_WEIGHTS)
        gate = these.Gate()
        with futures.ThreadPoolExecutor() as threads:
          found = threads.submit(run, gate)
          gate.wait_for_clients(2)
          cluster.remove_node(nodes[0], allow_graceful=False)
          gate.open()
          print('equal', found.result() == expected)
    """)
    # Measurements aside: two sums of 100,010 elements as int32.
    self.assertContainsSubset(
        ['workers 2', 'bytes 800080', 'equal True'], lines
    )

  def test_a_lost_machine_with_a_flushed_sum_changes_no_bit(self):
    lines = _run_on_cluster(0, """
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        context = build()
        values = [float(i) for i in range(20)]
        gate = these.Gate(is_open=True)
        expected = these.bits_of_gated_sum(context, gate, values)
        wait_for_sums = scheduler.Scheduler.wait_for_sums
        def lose_one(*arguments):
          sums = wait_for_sums(*arguments)
          if nodes:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
          return sums
        scheduler.Scheduler.wait_for_sums = lose_one
        fail_sum = scheduler.Scheduler.fail_sum
        def note(tasks, lost):
          print('lost')
          fail_sum(tasks, lost)
        scheduler.Scheduler.fail_sum = note
        nodes.pop()
        found = these.bits_of_gated_sum(context, gate, values)
        print('equal', found == expected)
    """)
    self.assertEqual(lines.count('lost'), 1, lines)
    self.assertIn('equal True', lines)

  def test_many_sums_are_added_by_tasks(self):
    # With a lower limit of what one task or this process adds.
    lines = _run_on_cluster(0, """
        from tff_asr.execution import ray_runner
        ray_runner._FAN_IN = 2
        for _ in range(2):
          cluster.add_node(num_cpus=2)
        context = build(num_workers=4)
        values = [float(i) for i in range(20)]
        gate = these.Gate(is_open=True)
        many = these.bits_of_gated_sum(context, gate, values)
        ray_runner._FAN_IN = 8
        print('equal', these.bits_of_gated_sum(context, gate, values) == many)
    """)
    self.assertIn('equal True', lines)

  def test_machines_join_and_leave_between_rounds(self):
    lines = _run_on_cluster(1, """
        context = build()
        values = [10.0 + i for i in range(6)]

        def run(gate):
          return these.bits_of_gated_sum(context, gate, values)

        expected = run(these.Gate(is_open=True))
        print('workers', len(these._actors(context)))
        node = cluster.add_node(num_cpus=1)
        gate = these.Gate()
        with futures.ThreadPoolExecutor() as threads:
          found = threads.submit(run, gate)
          gate.wait_for_clients(2)  # On two workers.
          gate.open()
          print('joined', found.result() == expected)
        cluster.remove_node(node, allow_graceful=False)
        print('left', run(gate) == expected)
        # Ray takes a while to see that it is gone.
        while len(these._actors(context)) > 1:
          run(gate)
        print('workers', len(these._actors(context)))
    """)
    # Ray tells at length, in between, how its machine ended.
    found = [
        line for line in lines if line.startswith(('workers', 'joined', 'left'))
    ]
    self.assertEqual(
        found, ['workers 1', 'joined True', 'left True', 'workers 1'], lines
    )

  def test_losing_a_machine_of_many_workers_loses_no_client(self):
    # Its idle workers find out one after another, each with a task in hand.
    # No such loss may count against its task: three would end the round.
    lines = _run_on_cluster(0, """
        fail = scheduler.Scheduler.fail
        def note(*arguments, counts=True):
          # In one piece: several threads print.
          print(f'lost {counts}\\n', end='')
          fail(*arguments, counts=counts)
        scheduler.Scheduler.fail = note
        nodes = [cluster.add_node(num_cpus=n) for n in (1, 4)]
        tff.framework.set_default_context(build(num_workers=5))
        print('before', these.toys.scaled_sum(2.0, [1.5] * 5))
        cluster.remove_node(nodes[1], allow_graceful=False)
        for _ in range(3):
          print('after', these.toys.scaled_sum(2.0, [1.5] * 5))
    """)
    totals = [line for line in lines if line.endswith(' 15.0')]
    self.assertEqual(totals, ['before 15.0'] + 3 * ['after 15.0'], lines)
    losses = {line for line in lines if line.startswith('lost')}
    self.assertEqual(losses, {'lost False'}, lines)


class _FakeRunner:
  """A runner of one slot, in which fake actors follow each other."""

  def __init__(self, num_actors):
    # They have never answered, so they are asked first.
    self.all = [
        mock.Mock(devices=['CPU:0'], answered_sec=-np.inf)
        for _ in range(num_actors)
    ]
    self.actors = {'slot': self.all[0]}
    successors = iter(self.all[1:])

    def replace(slot, lost, error):
      del lost, error
      self.actors[slot] = next(successors)

    self.replace = mock.Mock(side_effect=replace)


def _serve(
    runner, *, num_clients=1, group_sec=None, get_client=lambda _: [], **options
):
  """Serves actors without Ray until the last one, or until all is flushed."""
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.execution import ray_runner

  tasks = scheduler.Scheduler(scheduler.group_clients(num_clients))
  complete = tasks.complete

  def complete_and_stop(worker, task, value=None):
    complete(worker, task, value)
    if isinstance(task, scheduler.FlushSum):
      tasks.stop()

  this_round = mock.Mock(
      scheduler=tasks,
      errors={},
      store_bytes=0,
      get_client_on_host=get_client,
      **(dict(timeout_sec=None) | options),
  )
  this_round.stop.is_set.return_value = False
  with mock.patch.object(tasks, 'complete', complete_and_stop):
    ray_runner._RayRound(
        runner,
        this_round,
        ray_runner._RayPrograms(0, None, group_sec),
        None,
        num_threads=1,
        server_device='',
    ).serve('slot', 0)
  return this_round


@_needs_ray
class LostWorkerTest(parameterized.TestCase):
  """Workers that count as lost; Ray itself is replaced by fakes."""

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.object(ray, 'wait', return_value=([1], [])))

  @parameterized.parameters('ObjectStoreFullError', 'OutOfDiskError', '')
  def test_three_workers_that_cannot_use_their_store_end_the_round(self, name):
    error = getattr(ray.exceptions, name) if name else OSError
    runner = _FakeRunner(4)
    with mock.patch.object(ray, 'get', side_effect=error('full')):
      with self.assertRaisesRegex(scheduler.WorkerLostError, '3 times'):
        _serve(runner)
    self.assertEqual(runner.replace.call_count, 3)

  @parameterized.parameters('ObjectStoreFullError', 'OutOfDiskError')
  def test_three_workers_without_room_for_a_result_end_the_round(self, name):
    runner = _FakeRunner(4)
    error = getattr(ray.exceptions, name)('full')
    # Each worker answers the ping.
    with mock.patch.object(ray, 'get', side_effect=3 * [None, error]):
      with self.assertRaisesRegex(scheduler.WorkerLostError, '3 times'):
        _serve(runner)
    self.assertEqual(runner.replace.call_count, 3)

  @parameterized.parameters('ObjectStoreFullError', 'OutOfDiskError')
  def test_a_full_store_of_this_machine_is_one_line(self, name):
    # pylint: disable-next=g-import-not-at-top
    from tff_asr.execution import ray_runner

    error = getattr(ray.exceptions, name)('full')
    with mock.patch.object(ray, 'put', side_effect=error):
      with self.assertRaisesRegex(OSError, f'{name}.*--object-store-memory'):
        ray_runner._put(1)

  def test_a_worker_that_does_not_answer_a_ping_in_time_is_replaced(self):
    runner = _FakeRunner(2)
    _, successor = runner.all
    successor.wait.return_value = False  # It does not start.
    ray.wait.side_effect = 100 * [([], [])] + [([1], [])]
    with (
        mock.patch.object(time, 'monotonic', side_effect=range(300)),
        mock.patch.object(ray, 'get'),
    ):
      _serve(runner, timeout_sec=5.0)
    runner.replace.assert_called_once()
    self.assertLess(ray.wait.call_count, 20)


def _sent(actor) -> list[list[tuple[int, ...]]]:
  """The groups' positions, in each call of `train`."""
  return [
      [group.positions for group in call.args[2]]
      for call in actor.handle.train.remote.call_args_list
  ]


@_needs_ray
class TaskTest(parameterized.TestCase):
  """Tasks of several groups; Ray itself is replaced by fakes."""

  def setUp(self):
    super().setUp()
    for name, value in (
        ('wait', mock.Mock(return_value=([1], []))),
        # A reference is its value here, or the error that it raises.
        ('get', mock.Mock(side_effect=self._get)),
    ):
      self.enter_context(mock.patch.object(ray, name, value))

  def _get(self, value):
    if isinstance(value, Exception):
      raise value
    return value

  def _train(self, key, thread, groups):
    """An actor that answers at once; a group's result is its position."""
    del key, thread
    return ray_worker.TrainReport(
        [],
        [[np.float32(group.positions[0])] for group in groups],
        self.group_sec * len(groups),
    )

  def _build(self, num_actors, group_sec=0.001):
    self.group_sec = group_sec
    runner = _FakeRunner(num_actors)
    for actor in runner.all:
      actor.answered_sec = time.monotonic()
      actor.handle.train.remote.side_effect = self._train
      actor.handle.flush.options().remote.return_value = 1, 'sum'
    return runner

  @parameterized.parameters(
      # The driver needs 2 ms for a task, as long as two groups take. A worker
      # has at most half of what is left, rounded up. The first one compiles.
      (None, 0.001, [1, 4, 2, 2, 1]),
      (0.0005, 0.0005, [5, 4, 1]),
      # A second of work, rounded up.
      (0.3, 0.3, [4, 3, 1, 1, 1]),
      (5.0, 5.0, 10 * [1]),
  )
  def test_cheap_groups_come_together_in_order(self, at_first, then, sizes):
    runner = self._build(1, then)
    this_round = _serve(runner, num_clients=10, group_sec=at_first)
    sent = _sent(runner.all[0])
    self.assertEqual(list(map(len, sent)), sizes)
    self.assertEqual(sum(sent, []), [(n,) for n in range(10)])
    added = [call.args for call in this_round.add_ordered.call_args_list]
    self.assertEqual(
        [(number, float(*leaves)) for number, leaves in added],
        [(n, n) for n in range(10)],
    )
    runner.replace.assert_not_called()

  def test_large_values_come_alone(self):
    runner = self._build(1)
    values = [tf.zeros(2**18 + 1)]  # Of four bytes each.
    _serve(runner, num_clients=4, group_sec=0.001, get_client=lambda _: values)
    self.assertEqual(_sent(runner.all[0]), [[(n,)] for n in range(4)])

  def test_an_actor_is_asked_after_silence_only(self):
    for silent_sec, count in ((0.0, 0), (60.0, 1)):
      runner = self._build(1)
      (actor,) = runner.all
      actor.answered_sec -= silent_sec
      _serve(runner, num_clients=3)
      self.assertEqual(actor.ping.call_count, count)
      self.assertLess(time.monotonic() - actor.answered_sec, 50.0)

  def test_a_group_that_loses_its_workers_is_found_among_others(self):
    # Of four that come together, the one at position 3 ends its worker.
    runner = self._build(5)
    for actor in runner.all:
      actor.handle.train.remote.side_effect = lambda *args: (
          ray.exceptions.WorkerCrashedError()
          if any(group.positions == (3,) for group in args[2])
          else self._train(*args)
      )
    with self.assertRaisesRegex(
        scheduler.WorkerLostError, r'positions \(3,\) lost its worker 3 times'
    ):
      _serve(runner, num_clients=9, group_sec=0.001)
    together, *alone = map(_sent, runner.all)
    self.assertEqual(together, [[(n,) for n in range(4)]])
    # The first loss does not count: the actor was not asked before.
    self.assertEqual(alone[0], [[(n,)] for n in range(4)])
    self.assertEqual(alone[1][-1], [(3,)])
    self.assertEqual(
        [actor.ping.call_count for actor in runner.all], [0, 4, 4, 4, 0]
    )

  def test_a_hung_task_is_noticed_at_twice_the_limit_of_a_client(self):
    runner = self._build(2)
    runner.all[1].wait.return_value = False  # It does not start.
    waits = []
    ray.wait.side_effect = lambda *_, **__: waits.append(1) or ([], [])
    with mock.patch.object(
        time, 'monotonic', side_effect=map(float, range(1000))
    ):
      for actor in runner.all:
        actor.answered_sec = 0.0
      _serve(runner, num_clients=50, group_sec=0.01, timeout_sec=20.0)
    runner.replace.assert_called_once()
    self.assertBetween(len(waits), 35, 45)


@_needs_ray
class LostReportTest(absltest.TestCase):
  """The second of two reports of a worker is lost with its machine."""

  def _lose_second_report(self, get_client):
    """Serves two clients; returns the round, and both workers."""
    # A reference is its value here.
    lost = object()
    report = ray_worker.TrainReport([], [[np.float32(1.0)]], 1.0)
    runner = _FakeRunner(2)
    first, second = runner.all
    first.handle.train.remote.side_effect = [report, lost]
    second.handle.train.remote.side_effect = [report, report]
    second.handle.flush.options().remote.return_value = 1, 'sum'

    def get(value):
      if value is lost:
        raise ray.exceptions.ObjectLostError('00', None, '')
      return value

    with (
        mock.patch.object(ray, 'wait', return_value=([1], [])),
        mock.patch.object(ray, 'get', side_effect=get),
    ):
      this_round = _serve(runner, num_clients=2, get_client=get_client)
    runner.replace.assert_called_once()
    return this_round, first, second

  def test_all_groups_of_the_lost_worker_run_again(self):
    this_round, first, second = self._lose_second_report(lambda position: [])
    this_round.fail.assert_not_called()
    (flushed,) = this_round.scheduler.wait_for_sums()
    self.assertEqual(flushed.value, 'sum')
    trained = [
        [positions for call in _sent(actor) for positions in call]
        for actor in (first, second)
    ]
    self.assertEqual(trained, [[(0,), (1,)], [(0,), (1,)]])

  def test_a_client_that_is_in_the_ordered_sum_is_not_left_out_of_the_other(
      self,
  ):
    # Clients 0 and 1, and both again; the first one cannot be read again.
    error = OSError('gone')
    this_round, _, _ = self._lose_second_report(
        mock.Mock(side_effect=[[], [], error, []])
    )
    this_round.fail.assert_called_once_with(
        0, error, mock.ANY, is_repeated=True
    )


@_needs_ray
class KindTest(absltest.TestCase):
  """Machines that come and go, without Ray."""

  # Resources by the identifier of a machine.
  _HEAD = {56 * '1': dict(CPU=4)}
  _GPUS = {56 * '2': dict(CPU=4, GPU=2)}
  _OTHERS = {56 * '3': dict(CPU=4, GPU=1)}

  def setUp(self):
    super().setUp()
    # pylint: disable-next=g-import-not-at-top
    from tff_asr.execution import ray_runner

    self._runner_lib = ray_runner
    for where, name, value in (
        (ray_runner.ray_session, 'connect', mock.Mock()),
        (ray_runner, 'Actor', self._build_actor),
        (ray, 'nodes', lambda: self._nodes),
    ):
      self.enter_context(mock.patch.object(where, name, value))

  def _build_actor(self, options, unused_settings):
    return mock.Mock(devices=['CPU:0'], options=options)

  def _build(self, nodes):
    self._set(nodes)
    return self._runner_lib.RayRunner(ray_cluster.Settings())

  def _set(self, nodes):
    self._nodes = [
        dict(NodeID=node, Resources=resources, Alive=True)
        for node, resources in nodes.items()
    ]

  def _count_gpus(self, runner):
    """The first digit of each actor's machine, and the actor's GPUs."""
    return sorted(
        (node[0], actor.options['num_gpus'])
        for (node, _), actor in runner.actors.items()
    )

  def test_a_context_started_on_cpus_stays_on_cpus(self):
    runner = self._build(self._HEAD)
    self.assertEqual(self._count_gpus(runner), [('1', 0)])
    self._set(self._HEAD | self._GPUS)
    for _ in range(2):
      runner._fill_slots()
      self.assertEqual(self._count_gpus(runner), [('1', 0), ('2', 0)])

  def test_a_context_started_on_gpus_waits_for_them(self):
    runner = self._build(self._HEAD | self._GPUS)
    own = [('2', 1), ('2', 1)]
    self.assertEqual(self._count_gpus(runner), own)
    actors = dict(runner.actors)
    lost = list(actors.values())[1]
    # A replacement that has no machine to start on.
    lost.devices = None
    self._set(self._HEAD)
    runner._fill_slots()
    self.assertEqual(runner.actors, actors)
    self._set(self._HEAD | self._OTHERS)
    runner._fill_slots()
    self.assertEqual(self._count_gpus(runner), [('2', 1), ('3', 1)])
    lost.end.assert_called_once_with()

  def test_a_cluster_without_room_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'room for 0 workers with 1 CPUs'):
      self._build({56 * '1': dict(CPU=0)})


@_needs_ray
class NetworkTest(absltest.TestCase):

  def test_a_cluster_of_this_machine_listens_on_the_loopback_address(self):
    _context()
    native.stop()  # Another module's worker listens on all addresses.

    def look(process):
      return {
          (connection.laddr.ip, process.name())
          for connection in process.net_connections('inet')
          if connection.status == psutil.CONN_LISTEN
      }

    addresses = set().union(*seen.of_processes(look))
    self.assertNotEmpty(addresses)
    for address, process_name in addresses:
      parsed = ipaddress.ip_address(address)
      mapped = getattr(parsed, 'ipv4_mapped', None)
      self.assertTrue((mapped or parsed).is_loopback, (address, process_name))

  def test_sockets_are_in_a_folder_that_only_its_owner_can_enter(self):
    _context()

    def look(process):
      return {
          connection.laddr
          for connection in process.net_connections('unix')
          if connection.laddr.startswith('/')
      }

    paths = set().union(*seen.of_processes(look))
    self.assertContainsSubset(
        {'raylet', 'plasma_store'}, map(os.path.basename, paths)
    )
    for path in paths:
      self.assertLessEqual(len(path), 107)
      modes = {
          str(folder): stat.S_IMODE(found.st_mode)
          for folder in pathlib.Path(path).parents
          if (found := folder.stat()).st_uid == os.getuid()
      }
      self.assertIn(0o700, modes.values(), modes)

  def test_a_cluster_of_this_machine_refuses_calls_without_its_token(self):
    _context()
    address = ray.get_runtime_context().gcs_address
    call = 'import sys; from ray._raylet import GcsClient; print(GcsClient('
    call += 'address=sys.argv[1]).internal_kv_put(b"x", b"y", True, None, 5))'
    others = {'none': {}, 'wrong': {'RAY_AUTH_MODE': 'token'}}
    others['wrong']['RAY_AUTH_TOKEN'] = 64 * 'x'
    others['right'] = {
        name: value
        for name, value in os.environ.items()
        if name.startswith('RAY_AUTH')
    }
    found = {}
    for name, environment in others.items():
      left = {k: v for k, v in os.environ.items() if 'RAY_AUTH' not in k}
      ended = subprocess.run(
          [sys.executable, '-c', call, address], env=left | environment,
          capture_output=True, text=True, check=False, timeout=_TIMEOUT_SEC,
      )
      found[name] = ended.returncode, 'AuthenticationError' in ended.stderr
    self.assertEqual(
        found, {'none': (1, True), 'wrong': (1, True), 'right': (0, False)}
    )
    # Other users see command lines.
    token = os.environ['RAY_AUTH_TOKEN']
    for line in seen.of_processes(psutil.Process.cmdline):
      self.assertNotIn(token, ' '.join(line))


@_slow
@_needs_ray
class EventLoopTest(absltest.TestCase):

  def test_a_cancelled_round_ends_and_the_next_one_runs(self):
    _context(1)  # Starts the cluster.
    context = ray_cluster.build_async_context(
        ray_cluster.Settings(num_workers=1, op_libraries=())
    )

    async def program():
      with _install(context):
        gate = Gate()
        task = asyncio.create_task(_gated_sum(gate.path, [10.0] * 100))
        await asyncio.to_thread(gate.wait_for_clients, 1)
        start_sec = time.monotonic()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
          await task
        self.assertLess(time.monotonic() - start_sec, 5.0)
        gate.open()
        # The worker dropped the rest of the cancelled round.
        self.assertEqual(await toys.scaled_sum(2.0, [1.0]), 2.0)

    asyncio.run(program())


def _run_program(program: str) -> list[str]:
  """Output of a Python program until the last holder of its stdout ends."""
  with tempfile.TemporaryDirectory(prefix='ray_', dir='/tmp') as folder:
    finished = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(program)],
        cwd=_ROOT,
        env=os.environ | {
            'RAY_TMPDIR': folder,
            'PYTHONPATH': str(_ROOT),
            'TF_CPP_MIN_LOG_LEVEL': '3',
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # It sends a Ctrl-C to all of its group.
        text=True,
        timeout=_TIMEOUT_SEC,
        check=False,
    )
  lines = finished.stdout.splitlines()
  return lines + [f'stderr {line}' for line in finished.stderr.splitlines()]


_CLUSTER = """
    from concurrent import futures
    import os
    from ray import cluster_utils
    import tensorflow_federated as tff
    from tests.execution import ray_cluster_test as these
    from tff_asr.execution import ray_cluster, ray_session, scheduler

    # Set for clusters of one machine, and too late here to matter to Ray.
    del os.environ['RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER']
    cluster = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args=dict(num_cpus=NUM_CPUS, include_dashboard=False))
    # Now, to the head: the node of a program cannot be taken away.
    ray_session.connect(cluster.address, num_cpus=1)

    def build(**settings):
      return ray_cluster.build_sync_context(ray_cluster.Settings(
          address=cluster.address, op_libraries=(), **settings))
"""
_STOP = """
    ray_cluster.stop()
    cluster.shutdown()
"""


def _run_on_cluster(num_cpus: int, program: str) -> list[str]:
  """Output of a program on a cluster of nodes of this machine.

  Args:
    num_cpus: of the first node, the head.
    program: builds contexts by `build()`, and adds nodes to `cluster`.
  """
  lines = _run_program(
      textwrap.dedent(_CLUSTER).replace('NUM_CPUS', str(num_cpus))
      + textwrap.dedent(program)
      + textwrap.dedent(_STOP)
  )
  return [line.strip() for line in lines]


def _is_running(process_id: int) -> bool:
  try:
    return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


_PROGRAM = """
    import os, signal, threading
    import psutil
    from tff_asr import launch
    import tensorflow_federated as tff
    from tests.execution import ray_cluster_test as these
    from tff_asr.execution import ray_cluster, ray_session

    tff.framework.set_default_context(ray_cluster.build_sync_context(
        ray_cluster.Settings(num_workers=1, op_libraries=())))
    print('result', these.toys.scaled_sum(2.0, [1.0, 2.0]))
    for pid, name in these.seen.of_processes(lambda p: (p.pid, p.name()))[1:]:
      print('process', pid, name)
    print('folder', ray_session._watch.folder, flush=True)
    def end(): LAST_LINE
    launch.run(lambda argv: end())
"""
_CTRL_C = """
      gate = these.Gate()
      def interrupt():
        gate.wait_for_clients(1)
        os.killpg(os.getpgrp(), signal.SIGINT)
      threading.Thread(target=interrupt).start()
      these._gated_sum(gate.path, [10.0])
"""


@_slow
@_needs_ray
class EndOfProgramTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('normal', 'pass', []),
      (
          'exception',
          "raise ValueError('the end')",
          ['stderr error: the end'],
      ),
      (
          'ctrl_c_in_a_round',
          _CTRL_C,
          [
              'stderr interrupted: the same command continues from the '
              'last saved state.'
          ],
      ),
  )
  def test_no_process_and_no_folder_is_left_and_ray_prints_nothing(
      self, last_line, expected
  ):
    lines = _run_program(_PROGRAM.replace('LAST_LINE', last_line))
    self.assertIn('result 6.0', lines)
    _check_that_nothing_is_left(self, lines)
    printed = [
        line
        for line in lines
        # Ray's own, after half a minute, whatever is set:
        # https://github.com/ray-project/ray/issues/59665
        if line.startswith('stderr') and 'metrics exporter agent' not in line
    ]
    self.assertEqual(printed, expected)


def _check_that_nothing_is_left(test, lines) -> None:
  """Checks the processes and the folder that a program's output names."""
  processes = [line.split() for line in lines if line.startswith('process')]
  test.assertContainsSubset(
      {'raylet', 'gcs_server'}, [name for _, _, name, *_ in processes], lines
  )
  for _, process_id, name, *_ in processes:
    test.assertFalse(_is_running(int(process_id)), name)
  (folder,) = [line.split()[1] for line in lines if line.startswith('folder')]
  test.assertFalse(os.path.exists(folder))


# With a worker, and one of Ray's processes killed while the store is in use.
_KILLED = """
    import os, signal
    import psutil
    from tff_asr import launch  # First: it silences warnings of libraries.
    from tff_asr.execution import ray_cluster
    ray_cluster.require_token(None)
    import ray
    from tff_asr.execution import ray_session

    ray_session.connect(None, num_cpus=1)
    ray.get(ray.remote(lambda: 1).remote())
    processes = psutil.Process().children(recursive=True)
    for process in processes:
      print('process', process.pid, process.name())
    print('folder', ray_session._watch.folder, flush=True)
    def kill(name):
      next(each for each in processes if each.name() == name).kill()
      while True:
        ray.put(bytes(1_000_000))
    KILL
"""
_ABRUPT_END = (
    'stderr error: this program or Ray on this machine ended abruptly (killed, '
    'crashed or out of memory): the same command continues from the last saved '
    'state.'
)


@_needs_ray
class KilledTest(absltest.TestCase):

  def check(self, kill, expected):
    lines = _run_program(_KILLED.replace('KILL', kill))
    _check_that_nothing_is_left(self, lines)
    printed = [
        line
        for line in lines
        # Ray's own lines begin with their time.
        if line.startswith('stderr') and not line.startswith('stderr [')
    ]
    self.assertEqual(printed, expected)

  def test_a_killed_raylet_ends_the_program_with_a_line_and_leaves_nothing(
      self,
  ):
    self.check("kill('raylet')", [_ABRUPT_END])

  @_slow
  def test_a_killed_gcs_ends_the_program_with_a_line_and_leaves_nothing(self):
    self.check("kill('gcs_server')", [_ABRUPT_END])

  @_slow
  def test_a_killed_program_leaves_a_line_and_nothing_else(self):
    self.check('os.kill(os.getpid(), signal.SIGKILL)', [_ABRUPT_END])

  @_slow
  def test_a_program_that_was_interrupted_twice_leaves_nothing(self):
    self.check("launch._abandon('at once', code=130)", ['stderr at once'])


class BadArgumentTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('address', dict(address='ray://host:1')),
      ('num_workers', dict(num_workers=0)),
      ('cpus_per_worker', dict(cpus_per_worker=0)),
      ('required_paths', dict(required_paths='shards')),
      ('op_libraries', dict(op_libraries='tensorflow_text')),
  )
  def test_setting_is_named(self, options):
    with self.assertRaisesRegex(ValueError, next(iter(options))):
      ray_cluster.Settings(**options)

  def test_missing_ray_says_what_to_install(self):
    with mock.patch.dict(sys.modules, {'ray': None}):
      with self.assertRaisesRegex(ValueError, 'install .*requirements-ray.txt'):
        ray_cluster.build_sync_context()


@_needs_ray
class BadClusterTest(absltest.TestCase):

  @_slow
  def test_missing_libraries_and_cpus_are_named(self):
    _context()
    for options, message in (
        (
            dict(op_libraries=['no_such_library']),
            rf'^Node {os.uname().nodename} .* cannot import .no_such_library',
        ),
        (dict(num_workers=99), '^num_workers is 99'),
    ):
      settings = ray_cluster.Settings(**(dict(num_workers=1) | options))
      with self.assertRaisesRegex(ValueError, message) as raised:
        ray_cluster.build_sync_context(settings)
      self.assertNotIn('\n', str(raised.exception))

  def test_a_worker_with_other_code_is_refused(self):
    _context()  # Starts the cluster.
    with tempfile.TemporaryDirectory() as folder:
      shutil.copytree(_ROOT / 'tff_asr/execution', f'{folder}/execution')
      here = pathlib.Path(folder, 'execution/ray_worker.py')
      here.write_text(f'{here.read_text("utf-8")}# Changed.\n', 'utf-8')
      # Workers have what this process has loaded; it finds other files.
      with mock.patch.object(ray_worker, '__file__', str(here)):
        with self.assertRaisesRegex(
            ValueError,
            rf'^Node {os.uname().nodename} .* differs from the program: '
            r"this project's sources [0-9a-f]+ instead of [0-9a-f]+; put",
        ):
          ray_cluster.build_sync_context(
              ray_cluster.Settings(num_workers=1, op_libraries=())
          )

  @_slow
  def test_a_missing_cluster_is_named(self):
    lines = _run_program("""
        from tff_asr import launch
        from tff_asr.execution import ray_cluster
        launch.run(lambda argv: ray_cluster.build_sync_context(
            ray_cluster.Settings(address='127.0.0.1:1')))
    """)
    self.assertLen(lines, 1)
    self.assertRegex(lines[0], "no Ray cluster to join at '127.0.0.1:1'")
