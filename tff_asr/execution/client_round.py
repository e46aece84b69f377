"""The clients' part of a round: state shared by threads, and clients' errors.

A client that fails is left out of the round, as if it were not in the cohort,
until more than `ClientRound.max_failed` have failed. Too little memory, a full
disk and the like (`exhausted_resource`) are never the client's fault and always
end the round.

With a time limit, a client that hangs (because a device or a file system does
not answer) ends the round, too. Python cannot end the work itself: its
thread is left behind, and the program should exit.
"""

from collections.abc import Callable, Sequence
import dataclasses
import errno
import os
import re
import threading
import time

import numpy as np
import tensorflow as tf

from tff_asr.execution import compiler
from tff_asr.execution import graph
from tff_asr.execution import reduction
from tff_asr.execution import scheduler

# How often the time limit is checked: in seconds, and as a share of the limit.
_WATCH_SEC = 1.0
_WATCH_SHARE = 0.1

# Full disks, and too many open files.
_NOT_MEMORY = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
# Lines without information, with which TensorFlow begins an error's text.
_HEADING = re.compile(
    r'Graph execution error|Detected at node|<stack traces'
    r'|\d+ root error\(s\) found'
)
_NUMBER_AND_CODE = re.compile(r'\(\d+\) \w+:\s*')


class ClientError(RuntimeError):
  """One client's work failed; `position` is its position in the cohort."""

  def __init__(self, message: str, *, position: int):
    super().__init__(message)
    self.position = position


def exhausted_resource(error: BaseException | None) -> int | None:
  """Returns which resource of the machine has run out, as an errno, or None."""
  if isinstance(error, MemoryError):
    return errno.ENOMEM
  if isinstance(error, OSError):
    return error.errno if error.errno in (errno.ENOMEM, *_NOT_MEMORY) else None
  # TensorFlow raises ResourceExhaustedError for too little memory (ENOMEM), a
  # full disk (ENOSPC), a quota (EDQUOT) and too many open files (EMFILE,
  # ENFILE). Only the text of the error differs.
  if isinstance(error, tf.errors.OpError):
    for number in _NOT_MEMORY:
      if os.strerror(number) in str(error):
        return number
    if isinstance(error, tf.errors.ResourceExhaustedError):
      return errno.ENOMEM
  return None


class ClientTimeoutError(TimeoutError):
  """A client's work took longer than the time limit; it may hang forever."""


@dataclasses.dataclass(eq=False, kw_only=True)
class ClientRound:
  """The clients' part of one call of a computation; a `ClientMonitor`.

  Attributes:
    program: the computation.
    clients: a tuple of values for each client.
    broadcast: what `prepare` returned.
    scheduler: assigns the client groups to workers.
    ordered: the sum that depends on the order of the client groups, or None.
    stop: set from outside to end the round between clients.
    max_failed: how many clients may fail.
    timeout_sec: how long a client's work may take, or None.
    store_bytes: bytes that were put into an object store.
    errors: a client's position to its error and where it happened.
    failure: an error outside any client's work.
    is_failed: whether clients' errors have ended the round.
    in_progress: when and where each client that now trains began, by position.
  """

  program: compiler.FederatedProgram
  clients: Sequence[tuple]
  broadcast: Sequence[tf.Tensor]
  scheduler: scheduler.Scheduler
  ordered: reduction.OrderedSum | None
  stop: threading.Event
  max_failed: int = 0
  timeout_sec: float | None = None
  store_bytes: int = 0
  errors: dict[int, tuple[Exception, str]] = dataclasses.field(
      default_factory=dict
  )
  failure: BaseException | None = None
  is_failed: bool = False
  in_progress: dict[int, tuple[float, str]] = dataclasses.field(
      default_factory=dict
  )

  @property
  def failures(self) -> dict[int, str]:
    """Causes of clients' failures, by position, those left out included."""
    return {
        position: _explain(error)
        # Sorted, so that the log does not depend on which thread failed first.
        for position, (error, _) in sorted(self.errors.items())
    }

  def get_client(self, position: int) -> list[tf.Tensor]:
    """Returns a client's values as flat tensors."""
    return self.program.arguments.client.flatten(
        self.clients[position], name='client value'
    )

  def get_client_on_host(
      self, position: int
  ) -> list[tf.Tensor | np.ndarray | np.generic | bytes]:
    """Returns a client's flat values, to be sent elsewhere."""
    return self.program.arguments.client.flatten_to_host(
        self.clients[position], name='client value'
    )

  def begin(self, position: int, device: str) -> None:
    """Records that a client begins; raises RoundStopped after the round."""
    self.check_stop()
    self.scheduler.check_running()
    # Not wall-clock time, which may jump. Entries of a dict are set atomically,
    # so the watching thread needs no lock.
    self.in_progress[position] = time.monotonic(), device

  def fail(
      self,
      position: int,
      error: Exception,
      device: str,
      *,
      is_repeated: bool = False,
  ) -> None:
    """Records a client's error; ends the round if it must.

    Args:
      position: the client's position in the cohort.
      error: what its work raised.
      device: where.
      is_repeated: whether the client's work succeeded before, on a worker that
        was lost. It cannot be left out then: it is in the ordered sum.

    Raises:
      scheduler.RoundStopped: the round has ended.
    """
    self.in_progress.pop(position, None)
    self.errors[position] = (error, device)
    if (
        is_repeated
        or len(self.errors) > self.max_failed
        or exhausted_resource(error) is not None
        or isinstance(error, graph.PartlyAddedError)
    ):
      self.is_failed = True
      self.scheduler.stop()
      raise scheduler.RoundStopped() from error

  def end(self, position: int) -> None:
    """Records that a client is done, or left out."""
    self.in_progress.pop(position, None)

  def add_ordered(
      self, number: int, leaves: Sequence[tf.Tensor | np.ndarray]
  ) -> None:
    """Adds a client group's part of the sum that depends on the order."""
    if self.ordered is not None:
      self.ordered.add(number, leaves)

  def check_stop(self) -> None:
    """Ends the round if it was cancelled."""
    if self.stop.is_set():
      self.scheduler.stop()

  def run(
      self,
      calls: Sequence[Callable[[], None]],
      get_sum: Callable[[], Sequence[tf.Tensor]],
      *,
      timeout_sec: float | None = None,
  ) -> list[tf.Tensor]:
    """Returns the sum over all clients, on which all `calls` work.

    Args:
      calls: each runs in a separate thread until the round is over. An
        exception (client errors go to `fail`) ends the round.
      get_sum: waits for the scheduler's sums, in the calling thread, and
        returns the total of the exact leaves.
      timeout_sec: how long a client may take; None: forever.

    Raises:
      ClientError: a client failed, or more of them than `max_failed`.
      ClientTimeoutError: a client took too long; its thread is left behind.
      RuntimeError: the round was cancelled through `stop`.
    """
    started = []
    ended = threading.Event()
    if timeout_sec is not None:
      threading.Thread(
          target=self._watch, args=(timeout_sec, ended), daemon=True
      ).start()
    try:
      for number, call in enumerate(calls):
        thread = threading.Thread(
            target=self._work,
            args=(call,),
            name=f'clients {number}',
            # A hung daemon thread does not keep the program from exiting.
            daemon=timeout_sec is not None,
        )
        thread.start()
        # Only these are joined: starting a thread may fail, or be interrupted.
        started.append(thread)
      exact = get_sum()
      ordered = [] if self.ordered is None else self.ordered.total()
      return self.program.clients.join(exact, ordered)
    except scheduler.RoundStopped:
      pass
    except BaseException:  # KeyboardInterrupt, for example.
      self.stop.set()
      raise
    finally:
      ended.set()
      self.scheduler.stop()
      for thread in started:
        while thread.is_alive() and not self.is_hung:
          # With a limit, in steps: a hung thread is not waited for.
          thread.join(timeout_sec and _WATCH_SEC)
    if self.is_failed:
      raise self._client_error()
    if self.failure is not None:
      raise self.failure from None
    raise RuntimeError('The round was cancelled.')

  @property
  def is_hung(self) -> bool:
    """Whether a client took longer than the time limit."""
    return isinstance(self.failure, ClientTimeoutError)

  def _work(self, call: Callable[[], None]) -> None:
    """Runs a call in this thread."""
    try:
      call()
    except scheduler.RoundStopped:
      pass
    # Without this, other threads would wait forever for this one's task; also
    # for what ends a program, which Python prints and forgets in a thread.
    except BaseException as error:  # pylint: disable=broad-exception-caught
      self.failure = error
      self.scheduler.stop()

  def _watch(self, limit: float, ended: threading.Event) -> None:
    """Ends the round when a client takes too long."""
    while not ended.wait(min(_WATCH_SEC, _WATCH_SHARE * limit)):
      now = time.monotonic()
      # A copy, because other threads change the dict meanwhile.
      for position, (begun_sec, device) in list(self.in_progress.items()):
        if now - begun_sec > limit:
          self.failure = ClientTimeoutError(
              f'The client at position {position} of {len(self.clients)} has '
              f'been at work on {device} for more than {limit:g} s '
              '(CLIENT_TIMEOUT_SEC): the device or the disk hangs, or the limit'
              ' is too low.'
          )
          self.scheduler.stop()
          return

  def _client_error(self) -> ClientError:
    """Returns the error of a round that clients' errors have ended."""
    # Several may have failed at once. Name a shortage first, which ends any
    # round, then the first by position: the message must not depend on speed.
    _, position = min(
        (exhausted_resource(error) is None, position)
        for position, (error, _) in self.errors.items()
    )
    error, device = self.errors[position]
    text = (
        f'Client {position} of {len(self.clients)} (counting from 0) failed on '
        f'{device}: {_explain(error)}'
    )
    if len(self.errors) > 1:
      text = f'{len(self.errors)} clients failed, for example: {text}'
    raised = ClientError(text, position=position)
    raised.__cause__ = error
    return raised


def _explain(error: Exception) -> str:
  """Returns an error's type, and the first line of its text with the cause."""
  lines = map(str.strip, str(error).splitlines())
  reasons = (line for line in lines if line and not _HEADING.match(line))
  reason = next(reasons, 'no message')
  if numbered := _NUMBER_AND_CODE.match(reason):
    reason = reason[numbered.end() :]
  return f'{type(error).__name__}: {reason}'
