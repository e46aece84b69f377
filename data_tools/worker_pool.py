"""Worker processes that encode utterances, in order, a few tasks ahead.

The processes are new Pythons that run `work`, not forks: they do not load
TensorFlow, so they start in a fraction of a second, and an utterance that makes
a decoder crash ends its process and not the program.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import concurrent.futures
import functools
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from typing import Any

from data_tools import utterances

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PROGRAM = 'from data_tools import worker_pool; worker_pool.work()'
# Utterances of some seconds.
TASK_SIZE = 16
_TASKS_AHEAD = 3  # A worker.
_END_SEC = 5.0
_READY = b'ready'


class WorkerPool:
  """Processes that encode utterances; a context manager.

  Utterances that cannot be sent to another process (audio that is a function)
  are encoded in this one; a `functools.partial` of a module's function can.
  """

  def __init__(self, num_workers: int | None = None):
    """Creates a pool; processes start with their first task.

    Args:
      num_workers: Processes; by default one a core, 0 for none but this.
    """
    if num_workers is None:
      num_workers = len(os.sched_getaffinity(0))
    self._num_workers = num_workers
    self._threads = concurrent.futures.ThreadPoolExecutor(max(1, num_workers))
    self._local = threading.local()
    self._lock = threading.Lock()
    self._processes: set[subprocess.Popen] = set()
    self._is_closed = False

  def __enter__(self) -> 'WorkerPool':
    return self

  def __exit__(self, *_) -> None:
    with self._lock:
      self._is_closed = True
      for process in self._processes:
        process.kill()
    self._threads.shutdown(cancel_futures=True)
    for process in list(self._processes):
      self._forget(process)

  def encode(
      self,
      items: Iterable[utterances.Utterance],
      *,
      task_size: int = TASK_SIZE,
      **settings,
  ) -> Iterator[utterances.Outcome]:
    """Yields `utterances.encode(item, **settings)` for each item, in order.

    One that ends its process gives `utterances.CRASHED`.

    Args:
      items: What to encode.
      task_size: Items that a worker takes at once. Results of three tasks a
        worker are held in memory.
      **settings: encoding and max_utterance_sec.

    Raises:
      RuntimeError: If a worker cannot start, has a defect, or is killed.
    """
    waiting = _batched(items, task_size)
    run = functools.partial(
        self._run, functools.partial(utterances.encode, **settings)
    )
    running = [
        self._threads.submit(run, task)
        for task in itertools.islice(
            waiting, _TASKS_AHEAD * max(1, self._num_workers)
        )
    ]
    try:
      while running:
        yield from running.pop(0).result()
        for task in itertools.islice(waiting, 1):
          running.append(self._threads.submit(run, task))
    finally:
      for future in running:
        future.cancel()

  def _run(
      self, encode: Callable[..., utterances.Outcome], items: Sequence[Any]
  ) -> list[utterances.Outcome]:
    """Runs one task in this thread's process."""
    if not self._num_workers or not all(map(_can_be_sent, items)):
      return [encode(item) for item in items]
    try:
      return self._ask(encode, items)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
      if self._is_closed:
        raise
    if len(items) == 1:
      return [utterances.CRASHED]
    # One of them ended the process: which, is found by asking one by one.
    return [
        result
        for item in items
        for result in self._run(encode, [item])
    ]

  def _ask(
      self, encode: Callable[..., utterances.Outcome], items: Sequence[Any]
  ) -> list[utterances.Outcome]:
    """Sends a task to this thread's process and waits for its results."""
    process = getattr(self._local, 'process', None)
    if process is None:
      process = self._local.process = self._start()
    try:
      pickle.dump((encode, items), process.stdin)
      process.stdin.flush()
      results, defect = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as e:
      self._local.process = None
      code = self._forget(process)
      if code == -signal.SIGKILL and not self._is_closed:
        # No decoder does that; to blame the file would lose good audio.
        raise RuntimeError(
            'A worker process was killed (SIGKILL), as the system does when'
            ' memory runs out; give the same command again with fewer'
            ' --workers.'
        ) from e
      raise
    if defect is not None:
      raise RuntimeError(f'A worker failed:\n{defect}')
    return results

  def _start(self) -> subprocess.Popen:
    """Starts a worker process."""
    paths = [_ROOT, os.environ.get('PYTHONPATH', '')]
    with self._lock:
      if self._is_closed:
        raise EOFError('The pool is closed.')
      process = subprocess.Popen(
          [sys.executable, '-c', _PROGRAM],
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          env=dict(
              os.environ,
              PYTHONPATH=os.pathsep.join(p for p in paths if p),
              # The processes share the cores already.
              OPENBLAS_NUM_THREADS='1',
          ),
      )
      self._processes.add(process)
    # One that ends before it is ready would pass for one that a file crashed.
    if process.stdout.read(len(_READY)) != _READY:
      code = process.wait()
      self._forget(process)
      if self._is_closed:
        raise EOFError('The pool is closed.')
      raise RuntimeError(
          f'A worker process ended with code {code} before it was ready: '
          f'{sys.executable} -c {_PROGRAM!r} says why.'
      )
    return process

  def _forget(self, process: subprocess.Popen) -> int:
    """Ends a process and closes its pipes; returns its own exit code."""
    try:
      if not self._is_closed:
        process.wait(timeout=_END_SEC)  # Its pipe has ended: so does it.
    except subprocess.TimeoutExpired:
      pass
    ended = process.poll()
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
      try:
        pipe.close()
      except BrokenPipeError:
        pass
    with self._lock:
      self._processes.discard(process)
    return 0 if ended is None else ended


def work() -> None:
  """The loop of a worker process.

  Reads pickled (function, items) from standard input and writes pickled
  (results, one an item; traceback of a defect or None) to standard output,
  after `_READY`. Ends when its input ends, which
  also happens when its parent is killed.
  """
  # Ctrl-C goes to the parent too, which decides what becomes of the work.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  source = os.fdopen(os.dup(0), 'rb')
  sink = os.fdopen(os.dup(1), 'wb')
  # Decoders written in C print what they think of a broken file.
  nothing = os.open(os.devnull, os.O_RDWR)
  for descriptor in (0, 1, 2):
    os.dup2(nothing, descriptor)
  sink.write(_READY)
  sink.flush()
  while True:
    try:
      function, items = pickle.load(source)
    except EOFError:
      return
    results, defect = [], None
    try:
      results = [function(item) for item in items]
    except Exception:  # pylint: disable=broad-exception-caught
      defect = traceback.format_exc()
    pickle.dump((results, defect), sink, protocol=pickle.HIGHEST_PROTOCOL)
    sink.flush()


def _can_be_sent(item: utterances.Utterance) -> bool:
  """False for audio that is a function, unless it is a partial."""
  return not callable(item.audio) or isinstance(item.audio, functools.partial)


def _batched(items: Iterable[Any], size: int) -> Iterator[Sequence[Any]]:
  """Items in tuples of `size`, the last one shorter."""
  iterator = iter(items)
  while batch := tuple(itertools.islice(iterator, size)):
    yield batch
