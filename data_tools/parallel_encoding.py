"""Encodes utterances in worker processes, in the order they are given.

    for outcome in parallel_encoding.encode(utterances, encoding='flac'):
      ...

If a file crashes its decoder, the worker process dies, which breaks the whole
`ProcessPoolExecutor`. The tasks that were in progress then run again in
new processes, one utterance at a time, so that only the file itself fails.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import process
import ctypes
import functools
import itertools
import multiprocessing
import os
import signal

from data_tools import utterances

TASK_SIZE = 16  # Utterances of a few seconds.
_TASKS_PER_WORKER = 3
_PR_SET_PDEATHSIG = 1
# malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 16 * 2**20

_Task = Sequence[utterances.Utterance]


def encode(
    items: Iterable[utterances.Utterance],
    *,
    num_workers: int | None = None,
    task_size: int = TASK_SIZE,
    encoding: str,
    max_utterance_sec: float | None = None,
) -> Iterator[utterances.Outcome]:
  """Yields `utterances.encode` of each item, in order.

  An item that crashes its process yields `utterances.CRASHED`.

  Args:
    items: What to encode. Audio that is a function is read in this process,
      unless it is a `functools.partial` of a module's function.
    num_workers: Processes; None: one for each core; 0: none besides this one.
    task_size: Items that a worker takes at once. The results of three tasks for
      each worker are held in memory.
    encoding: See `utterances.encode`.
    max_utterance_sec: See `utterances.encode`.
  """
  if num_workers is None:
    # Cores that this process may use, as in a container.
    num_workers = len(os.sched_getaffinity(0))
  run = functools.partial(
      _encode_task, encoding=encoding, max_utterance_sec=max_utterance_sec
  )
  tasks = _batched(items, task_size)
  if not num_workers:
    for task in tasks:
      yield from run(task)
    return
  pending: collections.deque[_Task] = collections.deque()
  running: collections.deque[futures.Future] = collections.deque()
  pool = _start_pool(num_workers)
  try:
    while True:
      # Bounds the results that wait for the writer.
      ahead = _TASKS_PER_WORKER * num_workers - len(pending)
      pending.extend(itertools.islice(tasks, ahead))
      if not pending:
        return
      for task in itertools.islice(pending, len(running), None):
        running.append(_submit(pool, run, task))
      task, future = pending.popleft(), running.popleft()
      try:
        outcomes = future.result()
      except process.BrokenProcessPool:
        pool.shutdown()
        # The pool does not say which task crashed it: try this one alone, and
        # start the others again.
        running.clear()
        outcomes = [_encode_alone(run, item) for item in task]
        pool = _start_pool(num_workers)
      yield from outcomes
  finally:
    # Tasks that have not begun need not run after an error.
    pool.shutdown(cancel_futures=True)


def _encode_task(task: _Task, **settings) -> list[utterances.Outcome]:
  """Encodes a task's utterances in this process."""
  return [utterances.encode(item, **settings) for item in task]


def _encode_alone(
    run: functools.partial, item: utterances.Utterance
) -> utterances.Outcome:
  """Encodes one utterance in a process that does nothing else."""
  with _start_pool(1) as pool:
    try:
      (outcome,) = _submit(pool, run, [item]).result()
      return outcome
    except process.BrokenProcessPool:
      return utterances.CRASHED


def _submit(
    pool: futures.Executor, run: functools.partial, task: _Task
) -> futures.Future:
  """Starts a task, or runs it here if it cannot be sent to a process."""
  if all(map(_can_be_sent, task)):
    try:
      return pool.submit(run, task)
    except process.BrokenProcessPool as e:  # By an earlier task.
      future = futures.Future()
      future.set_exception(e)
      return future
  future = futures.Future()
  future.set_result(run(task))
  return future


def _start_pool(num_workers: int) -> futures.ProcessPoolExecutor:
  """Returns a pool; its processes start with the first task."""
  return futures.ProcessPoolExecutor(
      num_workers,
      # A new interpreter would import the main program, and so TensorFlow, in
      # each worker. Workers run no TensorFlow, so a fork is safe.
      mp_context=multiprocessing.get_context('fork'),
      initializer=_set_up_worker,
  )


def _set_up_worker() -> None:
  """Makes a worker leave signals, output and its end to its parent."""
  # The parent gets Ctrl-C too, and decides what happens to the work.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  # If its parent was killed, a worker would wait for tasks forever.
  libc = ctypes.CDLL(None)
  libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  # Otherwise the kernel gets the memory of each array back, and clears it again
  # for the next one.
  libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
  libc.mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BYTES)
  # Decoders written in C print messages about broken files.
  null = os.open(os.devnull, os.O_RDWR)
  for descriptor in (0, 1, 2):
    os.dup2(null, descriptor)


def _can_be_sent(item: utterances.Utterance) -> bool:
  """False for audio that is a function, unless it is a partial."""
  return not callable(item.audio) or isinstance(item.audio, functools.partial)


def _batched(
    items: Iterable[utterances.Utterance], size: int
) -> Iterator[_Task]:
  """Items in tuples of `size`, the last one shorter."""
  iterator = iter(items)
  while batch := tuple(itertools.islice(iterator, size)):
    yield batch
