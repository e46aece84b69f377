"""The threads of a round: started together, ended together, errors named."""

from collections.abc import Callable, Sequence
import threading
from typing import Any, NamedTuple, NoReturn, Protocol

from tff_asr.execution import schedule


class ClientError(RuntimeError):
  """One client's work failed; `position` is its place in the cohort."""

  def __init__(self, message: str, *, position: int):
    super().__init__(message)
    self.position = position


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


class Cohort:
  """What the threads of one round share.

  Attributes:
    clients: a tuple of values for each client.
    board: deals the work.
    stop: set from outside to end the round between clients.
    timeline: a `ClientInterval` for each client that is done.
    errors: a client's position to its error and where it happened.
    failure: an error outside any client's work.
  """

  def __init__(
      self, *, clients: Sequence[tuple], board: Board, stop: threading.Event
  ):
    self.clients = clients
    self.board = board
    self.stop = stop
    self.timeline = []
    self.errors = {}
    self.failure = None

  def fail(self, position: int, error: Exception, place: str) -> NoReturn:
    """Records a client's error, and ends the round for everyone."""
    self.errors[position] = (error, place)
    self.board.stop()
    raise schedule.Stopped() from error


def run(
    cohort: Cohort,
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
    ClientError: a client failed.
    RuntimeError: the round was cancelled through `cohort.stop`.
  """
  threads = [
      threading.Thread(
          target=_work, args=(cohort, worker), name=f'clients {number}'
      )
      for number, worker in enumerate(workers)
  ]
  started = []
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
    cohort.board.stop()
    for thread in started:
      thread.join()
  if cohort.errors:
    # Several may have failed at once: name the first, whichever was faster.
    position = min(cohort.errors)
    error, place = cohort.errors[position]
    raise ClientError(
        f'Client {position} of {len(cohort.clients)} (counting from 0) failed '
        f'on {place}: {type(error).__name__}: {_find_reason(error)}',
        position=position,
    ) from error
  if cohort.failure is not None:
    raise cohort.failure from None
  raise RuntimeError('The round was cancelled.')


def _work(cohort: Cohort, worker: Callable[[], None]) -> None:
  """A worker's thread."""
  try:
    worker()
  except schedule.Stopped:
    pass
  except Exception as error:  # pylint: disable=broad-exception-caught
    # Whoever waits for this worker's task would wait forever.
    cohort.failure = error
    cohort.board.stop()


def _find_reason(error: Exception) -> str:
  """The line of an error that tells what happened."""
  for line in str(error).splitlines():
    line = line.strip()
    if line and not line.startswith(
        ('Graph execution error', 'Detected at node', '<stack traces')
    ):
      return line
  return 'no message'
