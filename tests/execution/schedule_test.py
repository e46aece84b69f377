"""Tests of tff_asr.execution.schedule."""

import threading

from absl.testing import absltest
from absl.testing import parameterized

from tests.execution import stopping
from tff_asr.execution import schedule


class BlocksTest(parameterized.TestCase):

  def test_cohort_order_without_costs(self):
    self.assertEqual(
        schedule.build_blocks(5, block_size=2),
        [(0, (0, 1)), (1, (2, 3)), (2, (4,))],
    )

  def test_longest_first_with_ties_in_cohort_order(self):
    blocks = schedule.build_blocks(4, block_size=2, costs=[1.0, 5.0, 1.0, 7.0])
    self.assertEqual(blocks, [(0, (3, 1)), (1, (0, 2))])

  def test_empty_cohort_has_no_blocks(self):
    self.assertEmpty(schedule.build_blocks(0, block_size=3))

  @parameterized.named_parameters(
      ('num_clients', dict(num_clients=-1), 'num_clients'),
      ('block_size', dict(block_size=0), 'block_size'),
      ('too_few_costs', dict(costs=[1.0]), 'costs'),
      ('nan', dict(costs=[1.0, float('nan')]), 'position 1'),
      ('negative', dict(costs=[-1.0, 2.0]), 'position 0'),
  )
  def test_bad_argument_is_named(self, changes, message):
    arguments = dict(num_clients=2, block_size=1, costs=None) | changes
    with self.assertRaisesRegex(ValueError, message):
      schedule.build_blocks(arguments.pop('num_clients'), **arguments)


class BoardTest(absltest.TestCase):

  def test_results_come_in_block_order(self):
    blocks = schedule.build_blocks(3, block_size=1)
    board = schedule.Board(blocks, window=3)
    taken = [board.take() for _ in range(4)]
    self.assertEqual(taken, [*blocks, None])
    for block in reversed(blocks):
      board.put(block, block.number * 10)
    self.assertEqual(list(board.results()), [0, 10, 20])

  def test_no_block_is_dealt_beyond_the_window(self):
    blocks = schedule.build_blocks(3, block_size=1)
    board = schedule.Board(blocks, window=2)
    board.put(board.take(), 'first')
    board.take()
    third = []
    worker = threading.Thread(target=lambda: third.append(board.take()))
    worker.start()
    worker.join(timeout=0.1)
    self.assertEmpty(third)
    results = board.results()
    next(results)
    worker.join(timeout=0.1)
    self.assertEmpty(third)  # The first is handed out, not merged yet.
    board.put(blocks[1], 'second')
    next(results)
    worker.join(timeout=10)
    self.assertEqual(third, [blocks[2]])

  def test_upcoming_blocks_are_those_that_take_returns_next(self):
    board = schedule.Board(schedule.build_blocks(4, block_size=1), window=4)
    self.assertEqual(board.take().number, 0)
    self.assertEqual([b.number for b in board.upcoming(2)], [1, 2])
    self.assertEqual([b.number for b in board.upcoming(9)], [1, 2, 3])
    self.assertEqual(board.take().number, 1)

  def test_stop_wakes_workers_and_merger(self):
    board = schedule.Board(schedule.build_blocks(2, block_size=1), window=1)
    board.take()
    stopped = stopping.stopped_calls(
        board, (board.take, lambda: next(board.results()))
    )
    self.assertLen(stopped, 2)
    with self.assertRaises(schedule.Stopped):
      board.check_running()


if __name__ == '__main__':
  absltest.main()
