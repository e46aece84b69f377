"""Tests of tff_asr.execution.scheduler and reduction."""

import collections
from concurrent import futures
import heapq
import itertools
import random
import threading
import types
from unittest import mock

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
    elif isinstance(task, scheduler.Merge):
      parts = (each.parts[task.part] for each in task.sums)
      result = sum(parts, collections.Counter())
    self.tasks.put(self.name, task, result)

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
    self.assertEqual(tasks.result(), ({0: 1, 1: 1, 2: 1},))

  @parameterized.product(
      num_blocks=(1, 9, 130), num_workers=(1, 5, 30), num_parts=(1, 3)
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
    self.assertEqual(tasks.result(), (total,) * num_parts)

  def _handed_over(self, places, *, num_parts=1, server_place=None):
    """Workers of these places that have handed over a block each."""
    tasks = _build(len(places), num_parts=num_parts)
    tasks.server_place = server_place
    workers = [_Worker(tasks, n, place) for n, place in enumerate(places)]
    for _ in range(2):
      for worker in workers:
        worker.do(worker.take())
    return tasks, workers

  def test_a_place_waits_for_its_own_workers_alone(self):
    tasks = _build(5, num_parts=2)
    workers = [_Worker(tasks, n, place) for n, place in enumerate('aabbb')]
    blocks = [worker.take() for worker in workers]
    for number in (0, 1, 2, 3):
      workers[number].do(blocks[number])
      workers[number].do(workers[number].take())
    self.assertEqual(tasks.poll(0, 'a').places, {'a'})
    self.assertIsNone(tasks.poll(2, 'b'))
    # Its last worker is lost; another has the block now, and it waits for that.
    tasks.lose(4, blocks[4])
    self.assertEqual(tasks.poll(1, 'a'), blocks[4])
    self.assertEqual(tasks.poll(2, 'b').places, {'b'})

  def test_the_server_s_place_adds_no_part_unless_it_is_alone(self):
    tasks, workers = self._handed_over('ab', num_parts=3, server_place='a')
    self.assertIsNone(tasks.poll(0, 'a'))
    merges = [workers[1].take(), workers[1].take()]
    self.assertIsNone(tasks.poll(1, 'b'))  # Two at a time.
    for merge in merges:
      tasks.lose(1, merge, counts=False)
    self.assertEqual(workers[0].work(), [scheduler.Merge] * 3)
    self.assertEqual(tasks.result(), ({0: 1, 1: 1},) * 3)

  def test_a_lost_sum_costs_its_own_blocks_and_merged_ones_none(self):
    tasks, workers = self._handed_over('abcdefghi', num_parts=2)
    merges = [tasks.poll(n, 'abcdefghi'[n]) for n in range(9)]
    first, second = filter(None, merges)
    workers[merges.index(first)].do(first)
    tasks.lose_sum(merges.index(second), second, 1)
    # The first part's result is of no use.
    loser = workers[0]
    again = loser.take()
    self.assertEqual({again.number}, second.sums[1].blocks)
    loser.do(again)
    loser.do(loser.take())
    merges = [tasks.poll(n, 'abcdefghi'[n]) for n in range(9)]
    for number, merge in enumerate(merges):
      if merge:
        workers[number].do(merge)
    # The result's parts were in both places, and one was lost.
    merges = [tasks.poll(n, 'abcdefghi'[n]) for n in range(9)]
    total = next(filter(None, merges))
    self.assertTrue(total.is_total)
    (index,) = [n for n, each in enumerate(total.sums) if each.merged]
    tasks.lose_sum(merges.index(total), total, index)
    with futures.ThreadPoolExecutor(9) as threads:
      kinds = list(threads.map(_Worker.work, workers))
    self.assertEqual(set(sum(kinds, [])), {scheduler.Merge})
    self.assertEqual(tasks.result(), ({n: 1 for n in range(9)},) * 2)

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
    self.assertEqual(tasks.result(), ({0: 1, 1: 1, 2: 1},))

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


class _Bell:
  """A condition that notes who would be woken."""

  def __init__(self, lock):
    del lock
    self.has_rung = False

  def notify_all(self):
    self.has_rung = True


class _Rounds:
  """A round by a simulated clock, on machines of several workers and threads.

  A sum's part is the bag of its blocks, its place, and the number of machines
  that had this place before: a machine that is lost takes its sums with it.

  Attributes:
    carried: what links have carried, in sums, by ('from' or 'to', place).
    end: when the round ended.
  """

  def __init__(self, machines, num_blocks, seconds, **settings):
    """Plans a round.

    Args:
      machines: of each, the number of its workers.
      num_blocks: to train.
      seconds: how long a task takes, by place and task.
      **settings: attributes of the scheduler, window, num_threads of a worker.
    """
    self._num_threads = settings.pop('num_threads', 1)
    window = settings.pop('window', None)
    fakes = types.SimpleNamespace(Condition=_Bell, RLock=threading.RLock)
    self._patch = mock.patch.object(scheduler, 'threading', fakes)
    with self._patch:
      self.tasks = scheduler.Scheduler(
          scheduler.cut(num_blocks), window=window
      )
    for name, value in settings.items():
      setattr(self.tasks, name, value)
    self._seconds = seconds
    self._events = []
    self._numbers = itertools.count()
    self._sums = {}  # Of workers that are there: by (place, number).
    self._idle = set()  # Threads: (worker, number).
    self._in_hands = {}
    self._generation = collections.Counter()
    self.carried = collections.Counter()
    self.end = None
    with self._patch:
      for place, count in enumerate(machines):
        for _ in range(count):
          self.join(f'{place}')

  def at(self, when, function, *arguments):
    heapq.heappush(
        self._events, (when, next(self._numbers), function, arguments)
    )

  def join(self, place):
    """A worker comes."""
    worker = place, next(self._numbers)
    self._sums[worker] = collections.Counter()
    self._idle |= {(worker, thread) for thread in range(self._num_threads)}
    self.tasks._changed[place].has_rung = True

  def lose(self, worker):
    """A worker is lost; each thread notices it by its task, or the next one."""
    self._sums.pop(worker, None)
    for thread in list(self._in_hands):
      if thread[0] == worker:
        self.tasks.lose(worker, self._in_hands.pop(thread), counts=False)
        self._idle = {each for each in self._idle if each[0] != worker}

  def lose_machine(self, place):
    self._generation[place] += 1
    for worker in list(self._sums):
      if worker[0] == place:
        self.lose(worker)

  @property
  def workers(self):
    return list(self._sums)

  def run(self):
    """Runs the round, and checks that nobody waits for nothing."""
    with self._patch:
      now = 0.0
      while not self.tasks.is_over():
        self._deal(now)
        assert self._events, 'Everyone waits, and no one has a task.'
        now, _, function, arguments = heapq.heappop(self._events)
        function(*arguments)
      self.end = now
      return self.tasks.result()

  def _deal(self, now):
    """Whoever is woken asks; then nobody else would have got a task."""
    bells = self.tasks._changed
    while rung := {place for place, bell in bells.items() if bell.has_rung}:
      for place in rung:
        bells[place].has_rung = False
      for thread in sorted(self._idle):
        if thread[0][0] in rung:
          self._ask(thread, now)
    for worker, _ in self._idle:
      assert self.tasks.poll(worker, worker[0]) is None, (
          'A task waits that nobody was woken for.'
      )

  def _ask(self, thread, now):
    worker, _ = thread
    if thread not in self._idle or not (
        task := self.tasks.poll(worker, worker[0])
    ):
      return
    self._in_hands[thread] = task
    if worker not in self._sums:
      self.lose(worker)
      return
    self._idle.remove(thread)
    self.at(
        now + self._seconds(worker[0], task), self._finish, thread, task
    )

  def _finish(self, thread, task):
    if self._in_hands.get(thread) is not task:
      return
    del self._in_hands[thread]
    self._idle.add(thread)
    (worker, _), place = thread, thread[0][0]
    self.tasks._changed[place].has_rung = True  # The thread itself asks.
    part = None
    if isinstance(task, scheduler.Block):
      self._sums[worker][task.number] += 1
    elif isinstance(task, scheduler.HandOver):
      part = [
          (self._sums[worker], place, self._generation[place])
      ] * self.tasks.num_parts
      self._sums[worker] = collections.Counter()
    else:
      if (lost := self._lost_sum(task)) is not None:
        self.tasks.lose_sum(worker, task, lost)
        return
      part = self._add(task, place)
    self.tasks.put(worker, task, part)

  def _lost_sum(self, merge):
    for index, each in enumerate(merge.sums):
      _, place, generation = each.parts[merge.part]
      if self._generation[place] != generation:
        return index
    return None

  def _add(self, merge, place):
    total = collections.Counter()
    server = self.tasks.server_place
    is_here = len(merge.sums) == 1 or merge.places == {server}
    target = server if merge.is_total and is_here else place
    sums = [merge.sums[index] for index in merge.order]
    # If all places begin at once, each fetches from another one.
    assert sums[0].places[merge.part] == merge.place
    for each in sums:
      bag, source, _ = each.parts[merge.part]
      total += bag
      self._carry(source, target)
    if merge.is_total:
      self._carry(target, server)
    return total, place, self._generation[place]

  def _carry(self, source, target):
    if source != target:
      self.carried['from', source] += 1 / self.tasks.num_parts
      self.carried['to', target] += 1 / self.tasks.num_parts


class RoundsTest(parameterized.TestCase):

  def _check(self, rounds, num_blocks):
    parts = [bag for bag, *_ in rounds.run()]
    self.assertEqual(
        parts, [{n: 1 for n in range(num_blocks)}] * rounds.tasks.num_parts
    )

  @parameterized.parameters(range(100))
  def test_a_random_round_ends_with_each_block_once(self, seed):
    draws = random.Random(seed)
    machines = [
        draws.randint(1, 8) for _ in range(draws.choice([1, 2, 3, 8, 12, 30]))
    ]
    machines.append(1)  # Never lost.
    slowness = [draws.choice([0.0, 1.0, 1.0, 20.0]) for _ in range(40)]
    num_blocks = draws.randint(1, 3 * sum(machines))
    rounds = _Rounds(
        machines,
        num_blocks,
        lambda place, _: slowness[int(place)] * draws.expovariate(1),
        num_parts=draws.choice([1, 3, 28]),
        num_threads=draws.choice([1, 1, 3]),
        window=draws.choice([None, None, 2, 2 * sum(machines)]),
        server_place=draws.choice([None, '0', 'elsewhere']),
    )
    for worker in draws.sample(rounds.workers[:-1], len(machines) - 1):
      when = draws.expovariate(1 / 5)
      rounds.at(when, rounds.lose, worker)
      if draws.random() < 0.5:
        rounds.at(when + draws.random(), rounds.join, worker[0])
    for place in range(len(machines) - 1):
      if draws.random() < 0.3:
        when = draws.expovariate(1 / 5)
        rounds.at(when, rounds.lose_machine, f'{place}')
        if draws.random() < 0.3:
          rounds.at(when + draws.random(), rounds.join, f'{place}')
    self._check(rounds, num_blocks)

  @parameterized.product(
      num_machines=(2, 3, 5, 8), num_workers=(1, 3, 8), seed=(0, 1, 2)
  )
  def test_a_link_carries_one_sum_each_way(
      self, num_machines, num_workers, seed
  ):
    draws = random.Random(seed)
    machines = [num_workers] * num_machines
    rounds = _Rounds(
        machines,
        10 * sum(machines),
        lambda place, _: (1 + int(place)) * draws.random(),
        num_parts=scheduler.count_parts(sum(machines), num_machines),
        server_place='1',
    )
    self._check(rounds, 10 * sum(machines))
    # Shares are rounded to parts.
    self.assertLessEqual(max(rounds.carried.values()), 1.08)
    self.assertEqual(
        round(rounds.carried['to', '1'], 6), 1.0, 'the total is gathered'
    )

  @parameterized.parameters((9, 2), (30, 2), (64, 2), (128, 3))
  def test_with_more_machines_a_link_carries_a_sum_a_level(
      self, num_machines, most
  ):
    draws = random.Random(num_machines)
    rounds = _Rounds(
        [2] * num_machines,
        2 * num_machines,
        lambda *_: draws.uniform(0.9, 1.1),
        num_parts=scheduler.count_parts(2 * num_machines, num_machines),
        server_place='0',
    )
    self._check(rounds, 2 * num_machines)
    self.assertLessEqual(max(rounds.carried.values()), 1.08 * most)

  def test_all_workers_add_at_once(self):
    # A second a task: a block, a hand-over, 28 parts of eight sums on each
    # machine by its eight workers, 4 s, and those parts of what is left by
    # seven machines, two at a time, 2 s.
    rounds = _Rounds(
        [8] * 8, 64, lambda *_: 1.0, num_parts=28, server_place='0'
    )
    self._check(rounds, 64)
    self.assertEqual(rounds.end, 8.0)


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
