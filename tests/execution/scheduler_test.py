"""Tests of tff_asr.execution.scheduler."""

import threading

from absl.testing import absltest

from tests.execution import stopping
from tff_asr.execution import reduction
from tff_asr.execution import schedule
from tff_asr.execution import scheduler


def _build(num_blocks: int, *, num_workers: int = 1, merges: bool = True):
  return scheduler.TaskBoard(
      schedule.build_blocks(num_blocks, block_size=1),
      merges=reduction.plan(num_blocks) if merges else (),
      num_workers=num_workers,
  )


def _work(board: scheduler.TaskBoard, task) -> None:
  """Puts a block's number, or the parts of a merge."""
  if isinstance(task, reduction.Merge):
    board.put(task, board.get_parts(task))
  else:
    board.put(task, task.number)


def _work_all(board: scheduler.TaskBoard) -> list[int]:
  """Numbers of the tasks that were dealt, in order."""
  numbers = []
  while (task := board.take()) is not None:
    numbers.append(task.number)
    _work(board, task)
  return numbers


class TaskBoardTest(absltest.TestCase):

  def test_merges_are_dealt_as_soon_as_their_parts_are_there(self):
    board = _build(10)
    # Sum 10 of blocks 0 to 7 comes before block 8.
    self.assertEqual(_work_all(board), [*range(8), 10, 8, 9, 11, 12])
    self.assertEqual(board.results(), [[list(range(8)), [8, 9]]])

  def test_without_merges_every_block_is_an_output(self):
    board = _build(3, merges=False)
    self.assertEqual(_work_all(board), [0, 1, 2])
    self.assertEqual(board.results(), [0, 1, 2])

  def test_one_block_is_the_total(self):
    board = _build(1)
    self.assertEqual(_work_all(board), [0])
    self.assertEqual(board.results(), [0])

  def test_unmerged_blocks_are_bounded(self):
    board = _build(100, num_workers=2)
    window = reduction.FAN_IN + 2 * 2
    taken = [board.take() for _ in range(window)]
    waiting = threading.Thread(target=board.take, daemon=True)
    waiting.start()
    waiting.join(timeout=0.1)
    self.assertTrue(waiting.is_alive())
    for task in taken[:8]:
      _work(board, task)
    waiting.join(timeout=10)  # It takes the merge.
    self.assertFalse(waiting.is_alive())

  def test_task_of_a_lost_worker_is_dealt_next(self):
    board = _build(10)
    first = board.take()
    board.take()
    board.give_back(first)
    self.assertEqual(board.take(), first)

  def test_task_that_loses_every_worker_ends_the_round(self):
    board = _build(2)
    for _ in range(2):
      board.give_back(board.take())
    with self.assertRaisesRegex(
        scheduler.WorkerLostError, r'positions \(0,\) lost its worker 3 times'
    ):
      board.give_back(board.take())

  def test_a_worker_that_was_lost_before_says_nothing_of_the_task(self):
    board = _build(2)
    for _ in range(9):
      board.give_back(board.take(), counts=False)
    self.assertEqual(board.take().number, 0)

  def test_lost_sum_is_made_again_with_all_that_it_was_made_of(self):
    board = _build(10)
    numbers = []
    while (task := board.take()).number != 12:
      numbers.append(task.number)
      _work(board, task)
    board.lose(10)
    self.assertEqual(_work_all(board), [*range(8), 10, 12])
    self.assertEqual(board.results(), [[list(range(8)), [8, 9]]])

  def test_lost_block_is_made_again_alone(self):
    board = _build(3)
    for _ in range(3):
      _work(board, board.take())
    self.assertEqual(board.take().number, 3)
    board.lose(1)
    self.assertEqual(_work_all(board), [1, 3])
    self.assertEqual(board.results(), [[0, 1, 2]])

  def test_stop_wakes_workers_and_whoever_waits_for_results(self):
    board = _build(1)
    board.take()
    stopped = stopping.stopped_calls(
        board, (board.take, board.results)
    )
    self.assertLen(stopped, 2)
    self.assertTrue(board.is_over())


if __name__ == '__main__':
  absltest.main()
