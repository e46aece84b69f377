"""Programs one after another or several at a time, each on its own processors.

What is to be run is asked anew whenever there is room, so that a job can depend
on what others have written. A job writes to its own log; all of them are ended
when this is interrupted.
"""

from collections.abc import Callable, Iterable
import os
import subprocess
import time
from typing import NamedTuple

from tff_asr import checks

_POLL_SEC = 0.1
# What a program may take to save its state and end.
_ENDING_SEC = 60


class Job(NamedTuple):
  """A program to be run.

  Attributes:
    name: Unlike those of all other jobs.
    command: Program and arguments.
    log: File that gets what it prints, after what is there.
  """

  name: str
  command: tuple[str, ...]
  log: str


class Ended(NamedTuple):
  """How a job ended: status 0 if all went well."""

  job: Job
  status: int
  seconds: float


class _Running(NamedTuple):
  """A started job."""

  job: Job
  process: subprocess.Popen
  started: float


def run(
    wanted: Callable[[frozenset[str]], Iterable[Job]],
    *,
    num_at_once: int,
    on_start: Callable[[Job], None] = lambda job: None,
    on_end: Callable[[Ended], None] = lambda ended: None,
) -> list[str]:
  """Runs jobs until none is wanted that has not been run.

  With several at a time the processors that this process may use are divided
  among them, so that each has as many threads as it has processors.

  Args:
    wanted: Gets the names of jobs that failed; returns those that could be
      started now, the most urgent first. Those that run or have ended may be
      among them: none is run twice.
    num_at_once: Jobs that run at a time.
    on_start: Called with a job that has just been started.
    on_end: Called with a job that has ended.

  Returns:
    Names of the jobs that failed: ended with another status than 0.
  """
  checks.positive_int(num_at_once=num_at_once)
  processors = sorted(os.sched_getaffinity(0))
  shares = [
      processors[i::num_at_once] or processors for i in range(num_at_once)
  ]
  running: dict[int, _Running] = {}
  begun: set[str] = set()
  failed: list[str] = []
  has_changed = True
  try:
    while True:
      for slot, share in enumerate(shares):
        # What is wanted depends on what has ended.
        if slot in running or not has_changed:
          continue
        candidates = wanted(frozenset(failed))
        job = next((job for job in candidates if job.name not in begun), None)
        if job is None:
          break
        begun.add(job.name)
        running[slot] = _start(job, share)
        on_start(job)
      has_changed = False
      if not running:
        return failed
      for slot, (job, process, started) in list(running.items()):
        status = process.poll()
        if status is None:
          continue
        del running[slot]
        has_changed = True
        if status:
          failed.append(job.name)
        on_end(Ended(job, status, time.monotonic() - started))
      time.sleep(_POLL_SEC)
  finally:
    _end([each.process for each in running.values()])


def _start(job: Job, processors: list[int]) -> _Running:
  """Starts a job on some processors."""
  everything = os.sched_getaffinity(0)
  folder = os.path.dirname(job.log)
  os.makedirs(folder, exist_ok=True)
  with open(job.log, 'ab') as log:
    # What is started inherits it, and TensorFlow makes its threads by it.
    os.sched_setaffinity(0, processors)
    try:
      process = subprocess.Popen(
          job.command,
          stdin=subprocess.DEVNULL,
          stdout=log,
          stderr=subprocess.STDOUT,
          # Ctrl-C is for this process, which ends the others, once.
          start_new_session=True,
      )
    finally:
      os.sched_setaffinity(0, everything)
  return _Running(job, process, time.monotonic())


def _end(processes: list[subprocess.Popen]) -> None:
  """Asks programs to end, and kills those that do not."""
  for process in processes:
    process.terminate()
  deadline = time.monotonic() + _ENDING_SEC
  for process in processes:
    try:
      process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()
