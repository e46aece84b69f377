"""Execution of a round's clients: what its threads share, and their errors.

A client that fails is left out of the round, as if it were not in the cohort,
until more than `RoundExecution.max_failed` have failed. Too little memory, a
full disk and the like (`shortage`) are not the client's fault and always end
the round.

A client whose work hangs (a device or a file system does not answer) ends the
round, too, if there is a time limit. Nothing can end the work itself: its
thread stays behind, and the program should end.
"""

from collections.abc import Callable, Sequence
import dataclasses
import errno
import os
import re
import threading
import time
from typing import Any

import tensorflow as tf

from tff_asr.execution import compiler
from tff_asr.execution import graph
from tff_asr.execution import reduction
from tff_asr.execution import scheduler

# How often the time limit is looked at, and what part of it may pass between.
_WATCH_SEC = 1.0
_WATCH_PART = 0.1

# Full disks, and too many open files.
_NOT_MEMORY = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
# TensorFlow begins the text of an error with such lines, which say nothing.
_HEADING = re.compile(
    r'Graph execution error|Detected at node|<stack traces'
    r'|\d+ root error\(s\) found'
)
_NUMBER_AND_CODE = re.compile(r'\(\d+\) \w+:\s*')


class ClientError(RuntimeError):
  """One client's work failed; `position` is its place in the cohort."""

  def __init__(self, message: str, *, position: int):
    super().__init__(message)
    self.position = position


def shortage(error: BaseException | None) -> int | None:
  """Which resource of the machine has run out, as an errno; else None.

  TensorFlow raises ResourceExhaustedError for all of them: too little memory
  (ENOMEM), a full disk (ENOSPC), a quota (EDQUOT), too many open files (EMFILE,
  ENFILE). Only its text tells them apart.
  """
  if isinstance(error, MemoryError):
    return errno.ENOMEM
  if isinstance(error, OSError):
    return error.errno if error.errno in (errno.ENOMEM, *_NOT_MEMORY) else None
  if isinstance(error, tf.errors.OpError):
    for number in _NOT_MEMORY:
      if os.strerror(number) in str(error):
        return number
    if isinstance(error, tf.errors.ResourceExhaustedError):
      return errno.ENOMEM
  return None


class HungError(TimeoutError):
  """A client's work took longer than the time limit, and may hang forever."""


@dataclasses.dataclass(eq=False, kw_only=True)
class RoundExecution:
  """The clients' part of one call of a computation; a `round_worker.Monitor`.

  Attributes:
    compiled: the computation.
    functions: what the runner's `load_clients` made of it.
    clients: a tuple of values for each client.
    broadcast: what `prepare` returned.
    scheduler: deals the blocks of clients.
    ordered: the sum that depends on the order of its blocks, or None.
    stop: set from outside to end the round between clients.
    max_failed: how many clients may fail.
    timeout_sec: how long a client's work may take, or None.
    store_bytes: bytes that were put into an object store.
    errors: a client's position to its error and where it happened.
    failure: an error outside any client's work.
    is_failed: whether clients' errors have ended the round.
    begun: when and where each client now in work began, by position.
  """

  compiled: compiler.Round
  functions: Any
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
  failure: Exception | None = None
  is_failed: bool = False
  begun: dict[int, tuple[float, str]] = dataclasses.field(default_factory=dict)

  @property
  def failures(self) -> dict[int, str]:
    """Causes of clients' failures, by position, those left out included."""
    return {
        position: _explain(error)
        for position, (error, _) in sorted(self.errors.items())
    }

  def get_client(self, position: int) -> list[tf.Tensor]:
    """A client's values as flat tensors."""
    return self.compiled.arguments.client.flatten(
        self.clients[position], name='client value'
    )

  def begin(self, position: int, device: str) -> None:
    """Records that a client begins; raises Stopped if the round has ended."""
    self.check_stop()
    self.scheduler.check_running()
    self.begun[position] = time.monotonic(), device

  def fail(
      self,
      position: int,
      error: Exception,
      device: str,
      *,
      is_repeated: bool = False,
  ) -> None:
    """Records a client's error; ends the round for everyone if it must.

    Args:
      position: the client's place in the cohort.
      error: what its work raised.
      device: where.
      is_repeated: whether the client's work went well before, on a worker that
        was lost. Then it cannot be left out: it is in the ordered sum.

    Raises:
      scheduler.Stopped: the round has ended.
    """
    self.begun.pop(position, None)
    self.errors[position] = (error, device)
    if (
        is_repeated
        or len(self.errors) > self.max_failed
        or shortage(error) is not None
        or isinstance(error, graph.PartlyAddedError)
    ):
      self.is_failed = True
      self.scheduler.stop()
      raise scheduler.Stopped() from error

  def end(self, position: int) -> None:
    """Records that a client is done, or left out."""
    self.begun.pop(position, None)

  def add_ordered(self, number: int, leaves: Sequence[tf.Tensor]) -> None:
    """Adds a block's leaves whose sum depends on the order."""
    if self.ordered is not None:
      self.ordered.add(number, leaves)

  def total(self, exact: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The total of all blocks, of the exact leaves' and the ordered one."""
    ordered = [] if self.ordered is None else self.ordered.total()
    return self.compiled.clients.join(exact, ordered)

  def check_stop(self) -> None:
    """Ends the round if it was cancelled."""
    if self.stop.is_set():
      self.scheduler.stop()

  def run(
      self,
      calls: Sequence[Callable[[], None]],
      *,
      timeout_sec: float | None = None,
  ) -> Any:
    """Returns the result of the scheduler, worked on by all `calls`.

    Args:
      calls: each runs in a thread of its own, until the work is done or it
        raises `scheduler.Stopped`. Client errors go to `fail`; any other
        exception ends the round, too, and is raised here.
      timeout_sec: how long a client may take; None: forever.

    Raises:
      ClientError: a client failed, or more of them than may.
      HungError: a client took longer than it may; its thread goes on.
      RuntimeError: the round was cancelled through `stop`.
    """
    # With a time limit threads are daemons, so a hung one cannot keep the
    # program from its end.
    threads = [
        threading.Thread(
            target=self._work,
            args=(call,),
            name=f'clients {number}',
            daemon=timeout_sec is not None,
        )
        for number, call in enumerate(calls)
    ]
    started = []
    ended = threading.Event()
    if timeout_sec is not None:
      threading.Thread(
          target=self._watch, args=(timeout_sec, ended), daemon=True
      ).start()
    try:
      for thread in threads:
        thread.start()
        started.append(thread)
      return self.scheduler.result()
    except scheduler.Stopped:
      pass
    except BaseException:
      self.stop.set()
      raise
    finally:
      ended.set()
      self.scheduler.stop()
      for thread in started:
        while thread.is_alive() and not isinstance(self.failure, HungError):
          thread.join(None if timeout_sec is None else _WATCH_SEC)
    if self.is_failed:
      raise self._client_error()
    if self.failure is not None:
      raise self.failure from None
    raise RuntimeError('The round was cancelled.')

  def _work(self, call: Callable[[], None]) -> None:
    """A thread."""
    try:
      call()
    except scheduler.Stopped:
      pass
    except Exception as error:  # pylint: disable=broad-exception-caught
      # Another thread may wait for this one's task, and would wait forever.
      self.failure = error
      self.scheduler.stop()

  def _watch(self, limit: float, ended: threading.Event) -> None:
    """The thread that ends the round when a client takes too long."""
    while not ended.wait(min(_WATCH_SEC, _WATCH_PART * limit)):
      now = time.monotonic()
      for position, (begun_sec, place) in list(self.begun.items()):
        if now - begun_sec > limit:
          self.failure = HungError(
              f'The client at position {position} of {len(self.clients)} has '
              f'been at work on {place} for more than {limit:g} s '
              '(CLIENT_TIMEOUT_SEC): the device or the disk hangs, or the limit'
              ' is too low.'
          )
          self.scheduler.stop()
          return

  def _client_error(self) -> ClientError:
    """The error of a round that clients' errors have ended."""
    # Several may have failed at once: name the first by position, so that the
    # message does not depend on speed. A shortage ended the round, so report it
    # first.
    _, position = min(
        (shortage(error) is None, position)
        for position, (error, _) in self.errors.items()
    )
    error, place = self.errors[position]
    text = (
        f'Client {position} of {len(self.clients)} (counting from 0) failed on '
        f'{place}: {_explain(error)}'
    )
    if len(self.errors) > 1:
      text = f'{len(self.errors)} clients failed, one of them thus: {text}'
    raised = ClientError(text, position=position)
    raised.__cause__ = error
    return raised


def _explain(error: Exception) -> str:
  """An error's type, and the first line of its text that tells the cause."""
  lines = map(str.strip, str(error).splitlines())
  reasons = (line for line in lines if line and not _HEADING.match(line))
  reason = next(reasons, 'no message')
  if numbered := _NUMBER_AND_CODE.match(reason):
    reason = reason[numbered.end() :]
  return f'{type(error).__name__}: {reason}'
