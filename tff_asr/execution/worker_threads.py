"""The threads of a round: started together, ended together, errors named.

A client that fails is left out of the round, as if it were not in the cohort,
as long as no more fail than `RoundExecution.max_failed`. Memory that does not suffice
is no client's fault, and ends the round in any case.

A client whose work hangs (a device or a file system that does not answer) ends
the round, too, where there is a time limit. Nothing can end the work itself: a
thread stays behind, and the program should end.
"""

from collections.abc import Callable, Sequence
import threading
import time
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from tff_asr.execution import schedule

# How often the time limit is looked at, and what part of it may pass between.
_WATCH_SEC = 1.0
_WATCH_PART = 0.1


class ClientError(RuntimeError):
  """One client's work failed; `position` is its place in the cohort."""

  def __init__(self, message: str, *, position: int):
    super().__init__(message)
    self.position = position


class HungError(TimeoutError):
  """A client's work took longer than the time limit, and may hang forever."""


class ClientInterval(NamedTuple):
  """When and where one client's work ran.

  Attributes:
    position: the client's place in the cohort.
    device: the logical device, such as '/device:CPU:1'.
    start_sec: when its work was started, on the clock of `time.monotonic`.
    end_sec: when its function returned (a GPU may still be computing).
    waited_sec: how much of this its worker waited for the client's data.
  """

  position: int
  device: str
  start_sec: float
  end_sec: float
  waited_sec: float


class Board(Protocol):
  """What the threads of a round take their work from."""

  def stop(self) -> None:
    """Ends the round for everyone."""


class RoundExecution:
  """What the threads of one round share.

  Attributes:
    clients: a tuple of values for each client.
    board: deals the work.
    stop: set from outside to end the round between clients.
    max_failed: how many clients may fail.
    timeout_sec: how long a client's work may take, or None.
    timeline: a `ClientInterval` for each client that is done.
    errors: a client's position to its error and where it happened.
    failure: an error outside any client's work.
    is_failed: whether clients' errors have ended the round.
    begun: a client's position to when and where its work was begun, while it
      goes on.
  """

  def __init__(
      self,
      *,
      clients: Sequence[tuple],
      board: Board,
      stop: threading.Event,
      max_failed: int = 0,
      timeout_sec: float | None = None,
  ):
    self.clients = clients
    self.board = board
    self.stop = stop
    self.max_failed = max_failed
    self.timeout_sec = timeout_sec
    self.timeline = []
    self.errors = {}
    self.failure = None
    self.is_failed = False
    self.begun = {}

  @property
  def failures(self) -> dict[int, str]:
    """What clients failed of, by position; of one that was left out, too."""
    return {
        position: _explain(error)
        for position, (error, _) in sorted(self.errors.items())
    }

  def fail(self, position: int, error: Exception, place: str) -> None:
    """Records a client's error; ends the round for everyone if it must.

    Raises:
      schedule.Stopped: the round has ended.
    """
    self.errors[position] = (error, place)
    if len(self.errors) > self.max_failed or isinstance(
        error, (MemoryError, tf.errors.ResourceExhaustedError)
    ):
      self.is_failed = True
      self.board.stop()
      raise schedule.Stopped() from error


def run(
    cohort: RoundExecution,
    workers: Sequence[Callable[[], None]],
    consume: Callable[[], Any],
) -> Any:
  """Returns what `consume` makes of the work of all `workers`.

  Args:
    cohort: what they share.
    workers: each runs in a thread of its own, until the work is done or it
      raises `schedule.Stopped`. Client errors go to `cohort.fail`; any other
      exception of a worker ends the round, too, and is raised here.
    consume: waits for the results, in this thread.

  Raises:
    ClientError: a client failed, or more of them than may.
    HungError: a client took longer than it may; its thread goes on.
    RuntimeError: the round was cancelled through `cohort.stop`.
  """
  threads = [
      threading.Thread(
          target=_work,
          args=(cohort, worker),
          name=f'clients {number}',
          # One that hangs does not keep the program from its end.
          daemon=cohort.timeout_sec is not None,
      )
      for number, worker in enumerate(workers)
  ]
  started = []
  ended = threading.Event()
  if cohort.timeout_sec is not None:
    threading.Thread(
        target=_watch, args=(cohort, ended), name='watch clients', daemon=True
    ).start()
  try:
    for thread in threads:
      thread.start()
      started.append(thread)
    return consume()
  except schedule.Stopped:
    pass
  except BaseException:
    cohort.stop.set()
    raise
  finally:
    ended.set()
    cohort.board.stop()
    for thread in started:
      while thread.is_alive() and not isinstance(cohort.failure, HungError):
        thread.join(None if cohort.timeout_sec is None else _WATCH_SEC)
  if cohort.is_failed:
    raise _client_error(cohort)
  if cohort.failure is not None:
    raise cohort.failure from None
  raise RuntimeError('The round was cancelled.')


def _work(cohort: RoundExecution, worker: Callable[[], None]) -> None:
  """A worker's thread."""
  try:
    worker()
  except schedule.Stopped:
    pass
  except Exception as error:  # pylint: disable=broad-exception-caught
    # Whoever waits for this worker's task would wait forever.
    cohort.failure = error
    cohort.board.stop()


def _watch(cohort: RoundExecution, ended: threading.Event) -> None:
  """The thread that ends the round when a client takes too long."""
  limit = cohort.timeout_sec
  while not ended.wait(min(_WATCH_SEC, _WATCH_PART * limit)):
    now = time.monotonic()
    for position, (begun_sec, place) in list(cohort.begun.items()):
      if now - begun_sec > limit:
        cohort.failure = HungError(
            f'The client at position {position} of {len(cohort.clients)} has '
            f'been at work on {place} for more than {limit:g} s '
            '(CLIENT_TIMEOUT_SEC): the device or the disk hangs, or the limit '
            'is too low.'
        )
        cohort.board.stop()
        return


def _client_error(cohort: RoundExecution) -> ClientError:
  """The error of a round that clients' errors have ended."""
  # Several may have failed at once: name the first, whichever was faster. One
  # for want of memory ended the round, whatever else was left out before.
  position = min(
      cohort.errors,
      key=lambda each: (
          not isinstance(
              cohort.errors[each][0],
              (MemoryError, tf.errors.ResourceExhaustedError),
          ),
          each,
      ),
  )
  error, place = cohort.errors[position]
  text = (
      f'Client {position} of {len(cohort.clients)} (counting from 0) failed on '
      f'{place}: {_explain(error)}'
  )
  if len(cohort.errors) > 1:
    text = f'{len(cohort.errors)} clients failed, one of them thus: {text}'
  raised = ClientError(text, position=position)
  raised.__cause__ = error
  return raised


def _explain(error: Exception) -> str:
  """An error's type and reason."""
  return f'{type(error).__name__}: {_find_reason(error)}'


def _find_reason(error: Exception) -> str:
  """The line of an error that tells what happened."""
  for line in str(error).splitlines():
    line = line.strip()
    if line and not line.startswith(
        ('Graph execution error', 'Detected at node', '<stack traces')
    ):
      return line
  return 'no message'
