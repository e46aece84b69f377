"""Tests of tff_asr.execution.scheduler and reduction."""

import collections
from concurrent import futures
import random
import threading

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import logical_devices
from tff_asr.execution import reduction
from tff_asr.execution import scheduler
from tff_asr.execution.scheduler import ClientGroup
from tff_asr.execution.scheduler import FlushSum


@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.execution.scheduler_test'


class GroupsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('cohort_order', 3, None, [(0, (0,)), (1, (1,)), (2, (2,))]),
      # Longest first, ties in cohort order.
      ('costs', 3, [1.0, 5.0, 1.0], [(0, (1,)), (1, (0,)), (2, (2,))]),
      ('empty', 0, None, []),
  )
  def test_a_group_has_one_client(self, num_clients, costs, expected):
    self.assertEqual(
        scheduler.group_clients(num_clients, costs=costs), expected
    )

  @parameterized.parameters((0, 0, 0), (32, 32, 1), (33, 17, 1), (100, 25, 4))
  def test_large_sums_are_in_at_most_32_groups(self, num, groups, last):
    found = scheduler.group_clients(num, is_large=True)
    self.assertLen(found, groups)
    self.assertLen(found[-1].positions if found else (), last)
    positions = [p for group in found for p in group.positions]
    self.assertEqual(positions, list(range(num)))

  @parameterized.parameters(float('nan'), float('inf'), -1.0)
  def test_bad_cost_is_named(self, cost):
    with self.assertRaisesRegex(ValueError, 'position 1'):
      scheduler.group_clients(2, costs=[1.0, cost])


def _build(num_clients, **options):
  return scheduler.Scheduler(scheduler.group_clients(num_clients), **options)


class SchedulerTest(parameterized.TestCase):
  """By hand: group n has the client at position n."""

  def test_workers_train_all_groups_and_then_flush_their_sums(self):
    tasks = _build(3)
    first, second = tasks.acquire('a'), tasks.acquire('b')
    self.assertEqual([first, second], [ClientGroup(0, (0,)), (1, (1,))])
    tasks.complete('a', first)
    third = tasks.acquire('a')
    self.assertEqual(third, ClientGroup(2, (2,)))
    tasks.complete('b', second)
    flush_b = tasks.acquire('b')
    self.assertEqual(flush_b, FlushSum(frozenset([1])))
    tasks.complete('b', flush_b, 'sum of b')
    tasks.complete('a', third)
    flush_a = tasks.acquire('a')
    self.assertEqual(flush_a, FlushSum(frozenset([0, 2])))
    tasks.complete('a', flush_a, 'sum of a')
    self.assertEqual(
        tasks.wait_for_sums(), [('sum of b', {1}), ('sum of a', {0, 2})]
    )

  def test_the_last_of_a_workers_threads_flushes_the_sum_of_all(self):
    tasks = _build(2)
    first, second = tasks.acquire('w'), tasks.acquire('w')
    tasks.complete('w', first)
    with futures.ThreadPoolExecutor(1) as threads:
      other_thread = threads.submit(tasks.acquire, 'w')
      with self.assertRaises(futures.TimeoutError):  # One still trains.
        other_thread.result(timeout=0.1)
      tasks.complete('w', second)
      self.assertEqual(tasks.acquire('w'), FlushSum(frozenset([0, 1])))
      tasks.stop()
      self.assertIsNone(other_thread.result())

  def test_groups_summed_by_a_lost_worker_are_dispatched_again(self):
    tasks = _build(3)
    first, second, third = (tasks.acquire('gone') for _ in range(3))
    tasks.complete('gone', first)
    tasks.fail('gone', second)
    # Another thread of it completes a group: the sum is lost all the same.
    tasks.complete('gone', third)
    self.assertTrue(tasks.was_completed(first))
    self.assertFalse(tasks.was_completed(second))
    again = [tasks.acquire('other') for _ in range(3)]
    self.assertEqual(again, [first, second, third])

  def test_a_worker_that_is_lost_while_it_flushes_loses_its_groups_once(self):
    tasks = _build(1)
    group = tasks.acquire('gone')
    tasks.complete('gone', group)
    flush = tasks.acquire('gone')
    tasks.fail('gone', flush)
    self.assertEqual(tasks.acquire('other'), group)
    # Its late result does not count.
    tasks.complete('gone', flush, 'late')
    tasks.complete('other', group)
    tasks.complete('other', tasks.acquire('other'), 'whole')
    self.assertEqual(tasks.wait_for_sums(), [('whole', {0})])

  def test_a_flushed_sum_that_is_lost_costs_its_own_groups(self):
    tasks = _build(2)
    for worker in 'ab':
      tasks.complete(worker, tasks.acquire(worker))
    for worker in 'ab':
      tasks.complete(worker, tasks.acquire(worker), f'sum of {worker}')
    lost, kept = tasks.wait_for_sums()
    tasks.fail_sum(lost)
    again = tasks.acquire('b')
    self.assertEqual({again.number}, lost.groups)
    tasks.complete('b', again)
    tasks.complete('b', tasks.acquire('b'), 'again')
    self.assertEqual(tasks.wait_for_sums(), [kept, ('again', lost.groups)])

  def test_more_groups_come_without_waiting_until_none_is_left(self):
    tasks = _build(3)
    first = tasks.acquire('a')
    self.assertEqual(tasks.num_waiting(), 2)
    second, third = tasks.acquire_more('a'), tasks.acquire_more('a')
    self.assertEqual([first, second, third], [(n, (n,)) for n in range(3)])
    self.assertIsNone(tasks.acquire_more('a'))
    for task in (first, second, third):
      tasks.complete('a', task)
    self.assertEqual(tasks.acquire('a'), FlushSum(frozenset([0, 1, 2])))
    tasks.stop()
    self.assertIsNone(tasks.acquire_more('a'))
    # Large results wait for their turn, so they come one by one.
    tasks = _build(9, max_ahead=4)
    tasks.acquire('a')
    self.assertIsNone(tasks.acquire_more('a'))

  def test_groups_in_progress_at_a_loss_run_alone_and_the_others_do_not(self):
    tasks = _build(5)
    done = [tasks.acquire('gone'), tasks.acquire_more('gone')]
    for task in done:
      tasks.complete('gone', task)
    lost = [tasks.acquire('gone'), tasks.acquire_more('gone')]
    for task in lost:
      tasks.fail('gone', task, counts=False)
    self.assertEqual(tasks.num_waiting(), 5)
    # Those of its sum come together.
    again = [tasks.acquire('a'), tasks.acquire_more('a')]
    self.assertEqual(again, done)
    self.assertFalse(any(map(tasks.is_suspect, again)))
    for task in lost:
      self.assertIsNone(tasks.acquire_more('a'))
      self.assertEqual(tasks.acquire('b'), task)
      self.assertTrue(tasks.is_suspect(task))
    self.assertEqual(tasks.acquire_more('a'), (4, (4,)))

  def test_a_client_that_loses_three_workers_ends_the_round(self):
    tasks = _build(1)
    for worker in range(9):  # Workers that were lost before they began.
      tasks.fail(worker, tasks.acquire(worker), counts=False)
    for worker in (9, 10):
      tasks.fail(worker, tasks.acquire(worker))
    with self.assertRaisesRegex(
        scheduler.WorkerLostError, r'positions \(0,\) lost its worker 3 times'
    ):
      tasks.fail(11, tasks.acquire(11))

  def test_a_sum_that_is_lost_three_times_ends_the_round(self):
    tasks = _build(1)
    for _ in range(2):
      tasks.complete('w', tasks.acquire('w'))
      tasks.complete('w', tasks.acquire('w'), 'sum')
      tasks.fail_sum(*tasks.wait_for_sums())
    tasks.complete('w', tasks.acquire('w'))
    tasks.complete('w', tasks.acquire('w'), 'sum')
    with self.assertRaises(scheduler.WorkerLostError):
      tasks.fail_sum(*tasks.wait_for_sums())

  def test_dispatch_stays_close_to_the_first_incomplete_group(self):
    tasks = _build(100, max_ahead=4)
    taken = [tasks.acquire(n) for n in range(4)]
    waiting = threading.Thread(target=tasks.acquire, args=('w',), daemon=True)
    waiting.start()
    tasks.complete(1, taken[1])
    waiting.join(timeout=0.1)
    self.assertTrue(waiting.is_alive())
    tasks.complete(0, taken[0])
    waiting.join(timeout=10)
    self.assertFalse(waiting.is_alive())

  def test_stop_wakes_all_that_wait(self):
    tasks = _build(1)
    tasks.acquire(0)
    with futures.ThreadPoolExecutor(2) as threads:
      for_task = threads.submit(tasks.acquire, 1)
      for_sums = threads.submit(tasks.wait_for_sums)
      tasks.stop()
    self.assertIsNone(for_task.result())
    self.assertIsInstance(for_sums.exception(), scheduler.RoundStopped)
    self.assertTrue(tasks.is_over())
    with self.assertRaises(scheduler.RoundStopped):
      tasks.check_running()


class LossesTest(parameterized.TestCase):
  """Rounds in which workers and sums are lost at random."""

  @parameterized.product(
      num_clients=(1, 9, 130),
      num_workers=(1, 5, 30),
      num_threads=(1, 2),
      is_bounded=(False, True),
  )
  def test_every_client_is_in_the_sum_exactly_once(
      self, num_clients, num_workers, num_threads, is_bounded
  ):
    chance = random.Random(num_clients * 10 + num_workers)
    tasks = _build(
        num_clients, max_ahead=2 * num_workers if is_bounded else None
    )

    def serve(worker):
      """One thread of a worker. A lost worker is followed by another one."""
      while (task := tasks.acquire(worker)) is not None:
        taken = [task]
        if isinstance(task, ClientGroup) and not tasks.is_suspect(task):
          for _ in range(chance.randrange(4)):
            if (more := tasks.acquire_more(worker)) is not None:
              taken.append(more)
        if chance.random() < 0.05:
          worker.is_lost = True
        if worker.is_lost:
          for each in taken:
            tasks.fail(worker, each, counts=False)
          worker = worker.get_successor()
        elif isinstance(task, ClientGroup):
          for each in taken:
            worker.sum[each.number] += 1
          for each in taken:
            tasks.complete(worker, each)
        else:
          flushed, worker.sum = worker.sum, collections.Counter()
          tasks.complete(worker, task, flushed)

    with futures.ThreadPoolExecutor(num_workers * num_threads) as threads:
      for worker in [_Worker() for _ in range(num_workers)]:
        for _ in range(num_threads):
          threads.submit(serve, worker)
      sums = tasks.wait_for_sums()
      if num_clients > 1:
        tasks.fail_sum(sums[0])
        sums = tasks.wait_for_sums()
      tasks.stop()
    total = sum((each.value for each in sums), collections.Counter())
    self.assertEqual(total, {n: 1 for n in range(num_clients)})


class _Worker:
  """Counts how often each group is in its running sum."""

  def __init__(self):
    self.sum = collections.Counter()
    self.is_lost = False
    self._successor = None
    self._lock = threading.Lock()

  def get_successor(self):
    """The same one for all threads."""
    with self._lock:
      self._successor = self._successor or _Worker()
      return self._successor


def _record_addition(left, right):
  return tf.strings.join(['(', left, ' ', right, ')'])[tf.newaxis]


class OrderedSumTest(parameterized.TestCase):

  def test_groups_are_added_from_left_to_right_in_any_order_of_arrival(self):
    for arrival in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
      total = reduction.OrderedSum(_record_addition)
      for number in arrival:
        total.add(number, [str(number)])
      self.assertEqual(total.total(), [b'(((0 1) 2) 3)'])

  def test_a_group_that_arrives_again_is_added_once(self):
    total = reduction.OrderedSum(_record_addition)
    for number in (0, 0, 2, 2, 1, 1, 0):
      total.add(number, [str(number)])
    self.assertEqual(total.total(), [b'((0 1) 2)'])

  def test_numpy_adds_the_bits_that_tensorflow_adds(self):
    generator = np.random.default_rng(1)
    groups = [
        [
            np.float32(generator.normal() * 10.0 ** generator.integers(-9, 9)),
            generator.normal(size=[3, 2]).astype(np.float32),
            generator.normal(size=[5]),
            generator.integers(-2**62, 2**62, [4]),
            np.zeros([0], np.int32),
            np.float32(3e38),  # Overflows without a warning.
        ]
        for _ in range(40)
    ]
    merge = tf.function(lambda *leaves: [
        left + right for left, right in zip(leaves[:6], leaves[6:])
    ])
    totals = []
    for add in (merge, reduction.add_arrays):
      ordered = reduction.OrderedSum(add)
      for number, leaves in enumerate(groups):
        ordered.add(number, list(map(tf.constant, leaves)))
      totals.append(ordered.total())
    for one, other, leaf in zip(*totals, groups[0], strict=True):
      self.assertIsInstance(other, tf.Tensor)
      self.assertEqual(one.numpy().tobytes(), other.numpy().tobytes())
      self.assertEqual((other.dtype, other.shape), (leaf.dtype, leaf.shape))
    self.assertEqual(float(totals[1][-1]), np.inf)


@logical_devices.needed
class AddDevicesTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 3, 4)
  def test_the_sum_of_all_devices_is_on_the_first(
      self, num_devices
  ):
    for _ in range(2):  # The second time nothing is traced.
      sums = {}
      for number in range(num_devices):
        device = f'/device:CPU:{number}'
        with tf.device(device):
          sums[device] = [
              tf.constant([2**40 + number, -number, 7], tf.int64),
              tf.constant(10**number),
              tf.zeros([0, 3], tf.int64),
          ]
      found = reduction.sum_over_devices(sums)
      last = num_devices - 1
      # 0 + 1 + ... and 1 + 10 + ...
      self.assertEqual(
          found[0].numpy().tolist(),
          [
              num_devices * 2**40 + last * num_devices // 2,
              -last * num_devices // 2,
              7 * num_devices,
          ],
      )
      self.assertEqual(int(found[1]), int('1' * num_devices))
      self.assertEqual(found[2].shape, [0, 3])
      for leaf in found:
        self.assertEndsWith(leaf.device, 'CPU:0')
      self.assertEmpty(sums)
