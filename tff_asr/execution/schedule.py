"""Which clients form a block, and which block runs when.

A cohort is cut into blocks of a fixed size: in the order of the cohort, or,
where each client's cost is known, by falling cost (ties in cohort order).
Blocks are dealt in the order of their numbers, so longest first, each to the
next free worker, and their partial sums are merged in an order fixed by these
numbers (`merging`). Neither the blocks nor that order depend on how many
workers there are or which is faster, so the result is the same to the bit.

Partial sums waiting for their turn to be merged take memory: a worker does not
start a block that is more than a window ahead of the last merged one, so they
do not grow with the cohort.
"""

from collections.abc import Iterator, Sequence
import math
import threading
from typing import Any, NamedTuple

from tff_asr import checks


class Block(NamedTuple):
  """Clients that one worker trains one after another into one sum.

  Attributes:
    number: place in the order of dealing and of merging, from 0.
    positions: the clients' positions in the cohort, in order of training.
  """

  number: int
  positions: tuple[int, ...]


def build_blocks(
    num_clients: int,
    *,
    block_size: int,
    costs: Sequence[float] | None = None,
) -> list[Block]:
  """Returns the blocks of a cohort.

  Args:
    num_clients: size of the cohort, at least 0.
    block_size: clients a block, at least 1; the last block may be smaller.
    costs: a finite number of at least 0 for each client, such as seconds of
      audio; None keeps the order of the cohort.

  Raises:
    ValueError: an argument out of range, or not one cost a client.
  """
  checks.non_negative_int(num_clients=num_clients)
  checks.positive_int(block_size=block_size)
  order = list(range(num_clients))
  if costs is not None:
    if len(costs) != num_clients:
      raise ValueError(
          f'costs must hold one number a client, found {len(costs)} for '
          f'{num_clients} clients.'
      )
    for position, cost in enumerate(costs):
      if not math.isfinite(cost) or cost < 0:
        raise ValueError(
            f'costs must be finite and at least 0, found {cost!r} for the '
            f'client at position {position}.'
        )
    order.sort(key=lambda position: -costs[position])
  return [
      Block(number, tuple(order[start : start + block_size]))
      for number, start in enumerate(range(0, num_clients, block_size))
  ]


class Stopped(Exception):  # pylint: disable=g-bad-exception-name
  """Raised in a worker, or in the merger, when the round has ended early."""


class Board:
  """Deals blocks to workers and hands their results back in block order.

  Workers call `take` and `put`; one merger iterates `results`. All methods are
  thread-safe.
  """

  def __init__(self, blocks: Sequence[Block], *, window: int):
    """Deals `blocks`, at most `window` of them ahead of the merger."""
    checks.positive_int(window=window)
    self._blocks = blocks
    self._window = window
    self._next_block = 0
    self._num_merged = 0
    self._results = {}
    self._stopped = False
    self._changed = threading.Condition()

  def take(self) -> Block | None:
    """Returns the next block, waiting for the window; None if none is left.

    Raises:
      Stopped: `stop` was called.
    """
    with self._changed:
      while (
          not self._stopped
          and self._next_block < len(self._blocks)
          and self._next_block >= self._num_merged + self._window
      ):
        self._changed.wait()
      self._check_running()
      if self._next_block == len(self._blocks):
        return None
      self._next_block += 1
      return self._blocks[self._next_block - 1]

  def upcoming(self, count: int) -> Sequence[Block]:
    """The next `count` blocks that `take` will return, or what is left."""
    with self._changed:
      return self._blocks[self._next_block : self._next_block + count]

  def put(self, block: Block, result: Any) -> None:
    """Hands in the result of a block."""
    with self._changed:
      self._results[block.number] = result
      self._changed.notify_all()

  def results(self) -> Iterator[Any]:
    """Yields each block's result in block order, waiting for it.

    A block counts as merged when the next one is asked for.

    Raises:
      Stopped: `stop` was called.
    """
    for block in self._blocks:
      with self._changed:
        while not self._stopped and block.number not in self._results:
          self._changed.wait()
        self._check_running()
        result = self._results.pop(block.number)
      yield result
      del result
      with self._changed:
        self._num_merged += 1
        self._changed.notify_all()

  def stop(self) -> None:
    """Ends the round: everyone waiting, and every later call, is stopped."""
    with self._changed:
      self._stopped = True
      self._changed.notify_all()

  def check_running(self) -> None:
    """Raises Stopped once `stop` was called; for use between clients."""
    with self._changed:
      self._check_running()

  def _check_running(self) -> None:
    if self._stopped:
      raise Stopped()
