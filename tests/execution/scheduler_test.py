"""Tests of tff_asr.execution.scheduler and reduction."""

import collections
from concurrent import futures
import random
import threading

from absl.testing import parameterized
import tensorflow as tf

from tests import logical_devices
from tff_asr.execution import reduction
from tff_asr.execution import scheduler


@logical_devices.absent
class OwnProcessTest(logical_devices.OwnProcessTestCase):
  MODULE = 'tests.execution.scheduler_test'


class BlocksTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('cohort_order', 3, None, [(0, (0,)), (1, (1,)), (2, (2,))]),
      # Longest first, ties in cohort order.
      ('costs', 3, [1.0, 5.0, 1.0], [(0, (1,)), (1, (0,)), (2, (2,))]),
      ('empty', 0, None, []),
  )
  def test_a_block_has_one_client(self, num_clients, costs, expected):
    self.assertEqual(scheduler.cut(num_clients, costs=costs), expected)

  @parameterized.parameters((0, 0, 0), (32, 32, 1), (33, 17, 1), (100, 25, 4))
  def test_large_sums_are_of_at_most_32_blocks(self, num, blocks, last):
    found = scheduler.cut(num, is_large=True)
    self.assertLen(found, blocks)
    self.assertLen(found[-1].positions if found else (), last)
    positions = [p for block in found for p in block.positions]
    self.assertEqual(positions, list(range(num)))

  @parameterized.parameters(float('nan'), float('inf'), -1.0)
  def test_bad_cost_is_named(self, cost):
    with self.assertRaisesRegex(ValueError, 'position 1'):
      scheduler.cut(2, costs=[1.0, cost])


def _build(num_blocks, *, num_parts=1, **options):
  tasks = scheduler.Scheduler(scheduler.cut(num_blocks), **options)
  tasks.num_parts = num_parts
  return tasks


class _Worker:
  """Adds numbers of blocks, as a bag, which shows each that came twice.

  Its sums have as many parts as the scheduler says, all with the same bag.
  """

  def __init__(self, tasks, name='w', place=''):
    self.tasks, self.name, self.place = tasks, name, place
    self.sum = collections.Counter()

  def take(self):
    return self.tasks.take(self.name, self.place)

  def do(self, task):
    result = None
    if isinstance(task, scheduler.Block):
      self.sum[task.number] += 1
    elif isinstance(task, scheduler.HandOver):
      result = [self.sum] * self.tasks.num_parts
      self.sum = collections.Counter()
    else:
      result = [
          sum(parts, collections.Counter())
          for parts in zip(*(each.value for each in task.sums))
      ]
      if task.part is not None:
        result = result[task.part]
    self.tasks.put(self.name, task, result, self.place)

  def work(self):
    """Kinds of the tasks that were dealt, in order."""
    kinds = []
    while (task := self.take()) is not None:
      kinds.append(type(task))
      self.do(task)
    return kinds


class SchedulerTest(parameterized.TestCase):

  def test_a_worker_hands_over_one_sum(self):
    tasks = _build(3)
    block = scheduler.Block
    self.assertEqual(
        _Worker(tasks).work(),
        [block, block, block, scheduler.HandOver, scheduler.Merge],
    )
    self.assertEqual(tasks.result(), [{0: 1, 1: 1, 2: 1}])

  @parameterized.product(
      num_blocks=(1, 2, 9, 65, 130),
      num_workers=(1, 2, 5, 30),
      num_parts=(1, 3),
  )
  def test_each_block_counts_once_whatever_is_lost(
      self, num_blocks, num_workers, num_parts
  ):
    draws = random.Random(num_blocks * 10 + num_workers)
    tasks = _build(num_blocks, window=2 * num_workers, num_parts=num_parts)

    def work(number):
      # A lost worker is followed by another, with a name of its own.
      worker = _Worker(tasks, (number, 0), f'{number % 4}')
      while (task := worker.take()) is not None:
        chance = draws.random()
        if chance < 0.05:
          tasks.lose(worker.name, task, counts=False)
          worker = _Worker(tasks, (number, worker.name[1] + 1), worker.place)
        elif chance < 0.2 and isinstance(task, scheduler.Merge):
          tasks.lose_sum(worker.name, task, draws.randrange(len(task.sums)))
        else:
          worker.do(task)

    with futures.ThreadPoolExecutor(num_workers) as threads:
      working = [threads.submit(work, n) for n in range(num_workers)]
    for worker in working:
      worker.result()
    self.assertTrue(tasks.is_over())
    total = {n: 1 for n in range(num_blocks)}
    self.assertEqual(tasks.result(), [total] * num_parts)

  def test_many_sums_are_merged_by_eight_those_of_one_place_first(self):
    tasks = _build(20)
    workers = [_Worker(tasks, n, f'{n % 2}') for n in range(20)]
    for worker in workers:
      worker.do(worker.take())
    for worker in workers:
      worker.do(worker.take())
    merges = [workers[0].take(), workers[1].take()]
    for place, merge in enumerate(merges):
      self.assertLen(merge.sums, 8)
      self.assertEqual({part.place for part in merge.sums}, {f'{place}'})
      workers[place].do(merge)
    # 4 and these 2 are few enough for the total.
    total = workers[0].take()
    self.assertTrue(total.is_total)
    self.assertLen(total.sums, 6)

  def _handed_over(self, places, *, num_parts):
    """Workers of these places that have handed over a block each."""
    tasks = _build(len(places), num_parts=num_parts)
    workers = [_Worker(tasks, n, place) for n, place in enumerate(places)]
    for _ in range(2):
      for worker in workers:
        worker.do(worker.take())
    return tasks, workers

  def test_each_place_adds_another_part_and_one_joins_them(self):
    tasks, workers = self._handed_over('aab', num_parts=2)
    merges = [workers[0].take(), workers[2].take()]
    for merge in merges:
      self.assertLen(merge.sums, 3)
      self.assertFalse(merge.is_total)
    self.assertCountEqual([merge.part for merge in merges], [0, 1])
    # All are in work, and a place has but one at a time.
    self.assertIsNone(tasks.poll(1, 'a'))
    tasks.lose(0, merges[0])
    self.assertIsNone(tasks.poll(2, 'b'))
    workers[2].do(merges[1])
    again = workers[2].take()
    self.assertEqual(again.part, merges[0].part)
    workers[2].do(again)
    total = workers[1].take()
    self.assertTrue(total.is_total)
    self.assertLen(total.sums, 1)
    workers[1].do(total)
    self.assertEqual(tasks.result(), [{0: 1, 1: 1, 2: 1}] * 2)

  def test_sums_of_one_place_are_merged_there_in_one(self):
    _, workers = self._handed_over('aa', num_parts=2)
    merge = workers[0].take()
    self.assertIsNone(merge.part)
    self.assertFalse(merge.is_total)
    workers[0].do(merge)
    self.assertTrue(workers[1].take().is_total)

  def test_a_lost_sum_costs_its_own_blocks_and_merged_ones_none(self):
    tasks, workers = self._handed_over('ab', num_parts=2)
    first, second = workers[0].take(), workers[1].take()
    workers[0].do(first)
    tasks.lose_sum(1, second, 1)
    # The first part's result is of no use.
    loser = workers['ab'.index(second.sums[1].place)]
    again = loser.take()
    self.assertEqual({again.number}, second.sums[1].blocks)
    loser.do(again)
    loser.do(loser.take())
    for _ in range(2):
      for worker in workers:
        worker.do(worker.take())
      # Its parts were in both places, and one was lost.
      total = workers[0].take()
      self.assertTrue(total.is_total)
      tasks.lose_sum(0, total, 0)
    kinds = workers[0].work() + workers[1].work()
    self.assertEqual(set(kinds), {scheduler.Merge})
    self.assertEqual(tasks.result(), [{0: 1, 1: 1}] * 2)

  def test_a_worker_with_two_threads_hands_over_what_both_have_done(self):
    tasks = _build(2)
    first, second = (tasks.take('w') for _ in range(2))
    tasks.put('w', first)
    waiting = threading.Thread(
        target=lambda: hand_overs.append(tasks.take('w')), daemon=True
    )
    hand_overs = []
    waiting.start()
    waiting.join(timeout=0.1)
    self.assertEmpty(hand_overs)  # The other block is in work.
    tasks.put('w', second)
    waiting.join(timeout=10)
    self.assertEqual(hand_overs, [scheduler.HandOver(frozenset([0, 1]))])

  def test_what_a_lost_worker_has_summed_is_dealt_again(self):
    tasks = _build(3)
    worker = _Worker(tasks, 'gone')
    worker.do(worker.take())
    late, taken = worker.take(), worker.take()
    tasks.lose('gone', taken)
    # Another thread of it hands in a block: the sum is gone all the same.
    tasks.put('gone', late)
    self.assertTrue(tasks.was_done(tasks._blocks[0]))
    self.assertFalse(tasks.was_done(taken))
    other = _Worker(tasks, 'other')
    self.assertEqual(other.work().count(scheduler.Block), 3)
    self.assertEqual(tasks.result(), [{0: 1, 1: 1, 2: 1}])

  def test_dealing_is_not_far_ahead_of_what_is_done(self):
    tasks = _build(100, window=4)
    taken = [tasks.take(n) for n in range(4)]
    waiting = threading.Thread(target=tasks.take, args=('w',), daemon=True)
    for task in (taken[1], None, taken[0]):
      if task is None:
        waiting.start()
        waiting.join(timeout=0.1)
        self.assertTrue(waiting.is_alive())
      else:
        tasks.put(task.number, task)
    waiting.join(timeout=10)
    self.assertFalse(waiting.is_alive())

  def test_upcoming_blocks_are_those_that_take_returns_next(self):
    tasks = _build(4)
    self.assertEqual(tasks.take('w').number, 0)
    self.assertEqual([b.number for b in tasks.upcoming(2)], [1, 2])
    self.assertEqual([b.number for b in tasks.upcoming(9)], [1, 2, 3])
    self.assertEqual(tasks.take('w').number, 1)

  def test_task_that_loses_every_worker_ends_the_round(self):
    tasks = _build(2)
    for number in range(9):  # Workers that were lost before.
      tasks.lose(number, tasks.take(number), counts=False)
    for number in range(9, 11):
      tasks.lose(number, tasks.take(number))
    first = tasks.take(11)
    with self.assertRaisesRegex(
        scheduler.WorkerLostError, r'positions \(0,\) lost its worker 3 times'
    ):
      tasks.lose(11, first)

  def test_stop_wakes_workers_and_whoever_waits_for_the_result(self):
    tasks = _build(1)
    tasks.take(0)
    with futures.ThreadPoolExecutor(2) as threads:
      waiting = [
          threads.submit(*call) for call in ((tasks.take, 1), (tasks.result,))
      ]
      tasks.stop()
    for call in waiting:
      self.assertIsInstance(call.exception(), scheduler.Stopped)
    self.assertTrue(tasks.is_over())
    with self.assertRaises(scheduler.Stopped):
      tasks.check_running()


def _fold(sums: list[str]) -> str:
  """The total by the rule: neighbours up to eight from left to right."""
  if len(sums) == 1:
    return sums[0]
  above = []
  for start in range(0, len(sums), 8):
    total, *others = sums[start : start + 8]
    for other in others:
      total = f'({total} {other})'
    above.append(total)
  return _fold(above)


class OrderedSumTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 7, 8, 9, 10, 63, 64, 65, 130, 520)
  def test_the_order_is_that_of_the_numbers_whoever_is_first(self, num_blocks):
    draws = random.Random(num_blocks)
    numbers = draws.sample(range(num_blocks), num_blocks)
    # Some come again, from workers that did the work of lost ones.
    numbers += draws.choices(numbers, k=num_blocks // 4)
    total = reduction.OrderedSum(lambda left, right: [f'({left} {right})'])
    for number in numbers:
      total.add(number, [str(number)])
    self.assertEqual(total.total(), [_fold(list(map(str, range(num_blocks))))])

  def test_by_hand(self):
    total = reduction.OrderedSum(lambda left, right: [f'({left} {right})'])
    for number in range(10):
      total.add(number, [f'{number}'])
    self.assertEqual(total.total(), ['((((((((0 1) 2) 3) 4) 5) 6) 7) (8 9))'])


@logical_devices.needed
class AddDevicesTest(parameterized.TestCase):

  @parameterized.product(all_reduce=(False, True), num_devices=(1, 2, 3, 4))
  def test_the_sum_of_all_devices_lies_on_the_first(
      self, all_reduce, num_devices
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
      found = reduction.add_devices(sums, all_reduce=all_reduce)
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
