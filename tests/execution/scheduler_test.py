"""Tests of tff_asr.execution.scheduler and reduction."""

from concurrent import futures
import random
import threading

from absl.testing import parameterized

from tff_asr.execution import reduction
from tff_asr.execution import scheduler


class BlocksTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('cohort_order', 5, None, [(0, (0, 1)), (1, (2, 3)), (2, (4,))]),
      # Longest first, ties in cohort order.
      ('costs', 4, [1.0, 5.0, 1.0, 7.0], [(0, (3, 1)), (1, (0, 2))]),
      ('empty', 0, None, []),
  )
  def test_blocks_of_two(self, num_clients, costs, expected):
    blocks = scheduler.build_blocks(num_clients, block_size=2, costs=costs)
    self.assertEqual(blocks, expected)

  @parameterized.parameters(float('nan'), float('inf'), -1.0)
  def test_bad_cost_is_named(self, cost):
    with self.assertRaisesRegex(ValueError, 'position 1'):
      scheduler.build_blocks(2, block_size=1, costs=[1.0, cost])


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


def _build(num_blocks, *, max_unmerged=10):
  return scheduler.Scheduler(
      scheduler.build_blocks(num_blocks, block_size=1),
      max_unmerged=max_unmerged,
  )


def _work(tasks, task) -> None:
  """Puts a block's number, or the sum of two as text."""
  if isinstance(task, reduction.Merge):
    left, right = tasks.get_parts(task)
    tasks.put(task, f'({left} {right})')
  else:
    tasks.put(task, str(task.number))


def _work_all(tasks) -> list[int]:
  """Numbers of the tasks that were dealt, in order."""
  numbers = []
  while (task := tasks.take()) is not None:
    numbers.append(task.number)
    _work(tasks, task)
  return numbers


class SchedulerTest(parameterized.TestCase):

  def test_order_of_merging_by_hand(self):
    tasks = _build(10)
    # A merge is dealt as soon as its parts are there. Sums 10 to 16 are those
    # of blocks 0 to 7, 17 that of 8 and 9, 18 the total.
    self.assertEqual(
        _work_all(tasks),
        [0, 1, 10, 2, 11, 3, 12, 4, 13, 5, 14, 6, 15, 7, 16, 8, 9, 17, 18],
    )
    self.assertEqual(tasks.result(), '((((((((0 1) 2) 3) 4) 5) 6) 7) (8 9))')

  @parameterized.product(
      num_blocks=(1, 2, 7, 8, 9, 10, 63, 65, 130), num_workers=(1, 2, 5)
  )
  def test_total_does_not_depend_on_workers_order_or_losses(
      self, num_blocks, num_workers
  ):
    draws = random.Random(num_blocks * 10 + num_workers)
    tasks = _build(num_blocks, max_unmerged=2 * num_workers)

    def work():
      while (task := tasks.take()) is not None:
        chance = draws.random()
        if chance < 0.1:
          tasks.retry(task, counts=False)
        elif chance < 0.2 and isinstance(task, reduction.Merge):
          tasks.recompute(draws.choice(task.parts))
        else:
          _work(tasks, task)

    with futures.ThreadPoolExecutor(num_workers) as threads:
      working = [threads.submit(work) for _ in range(num_workers)]
    for worker in working:
      worker.result()
    self.assertTrue(tasks.is_over())
    self.assertEqual(tasks.result(), _fold(list(map(str, range(num_blocks)))))

  def test_unmerged_blocks_are_bounded(self):
    tasks = _build(100, max_unmerged=4)
    taken = [tasks.take() for _ in range(4)]
    waiting = threading.Thread(target=tasks.take, daemon=True)
    waiting.start()
    waiting.join(timeout=0.1)
    self.assertTrue(waiting.is_alive())
    for task in taken[:2]:
      _work(tasks, task)
    waiting.join(timeout=10)  # It takes the merge.
    self.assertFalse(waiting.is_alive())

  def test_upcoming_blocks_are_those_that_take_returns_next(self):
    tasks = _build(4)
    self.assertEqual(tasks.take().number, 0)
    self.assertEqual([b.number for b in tasks.upcoming(2)], [1, 2])
    self.assertEqual([b.number for b in tasks.upcoming(9)], [1, 2, 3])
    self.assertEqual(tasks.take().number, 1)

  def test_task_that_loses_every_worker_ends_the_round(self):
    tasks = _build(2)
    first = tasks.take()
    for _ in range(9):  # Workers that were lost before.
      tasks.retry(first, counts=False)
      self.assertEqual(tasks.take(), first)
    for _ in range(2):
      tasks.retry(first)
      self.assertEqual(tasks.take(), first)
    with self.assertRaisesRegex(
        scheduler.WorkerLostError, r'positions \(0,\) lost its worker 3 times'
    ):
      tasks.retry(first)

  def test_what_is_lost_is_made_again_with_all_that_it_was_made_of(self):
    tasks = _build(10)
    numbers = []
    while (task := tasks.take()).number != 18:
      numbers.append(task.number)
      _work(tasks, task)
    tasks.recompute(17)
    self.assertEqual(_work_all(tasks), [8, 9, 17, 18])

  def test_stop_wakes_workers_and_whoever_waits_for_the_result(self):
    tasks = _build(1)
    tasks.take()
    with futures.ThreadPoolExecutor(2) as threads:
      waiting = [threads.submit(call) for call in (tasks.take, tasks.result)]
      tasks.stop()
    for call in waiting:
      self.assertIsInstance(call.exception(), scheduler.Stopped)
    self.assertTrue(tasks.is_over())
    with self.assertRaises(scheduler.Stopped):
      tasks.check_running()
