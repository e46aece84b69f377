"""Flags and clocks of the programs that take turns; see `turns`."""

from collections.abc import Callable, Mapping
import time

from absl import flags
import numpy as np

from benchmarks.baselines import job as job_lib

JOB = flags.DEFINE_string('job', None, 'Folder of the job.', required=True)
COUNT = flags.DEFINE_integer(
    'count', 2, 'Steps or rounds that count.', lower_bound=1
)
# The first is checked; graphs are traced in it.
WARM_UPS = flags.DEFINE_integer(
    'warm_ups', 1, 'Rounds before those that count.', lower_bound=1
)
_FIRST = flags.DEFINE_string(
    'first', None, 'File for the weights after the first round.'
)


def time_steps(step: Callable[[], float]) -> None:
  """Takes local steps, and says of each its seconds and its loss.

  One before them, in which functions are traced and compiled, does not count.

  Args:
    step: Takes a step and waits for it; returns its mean loss.
  """
  for number in range(COUNT.value + 1):
    started = time.monotonic()
    loss = step()
    seconds = time.monotonic() - started
    if number:
      job_lib.say(seconds=seconds, loss=loss)


class RoundClock:
  """Says what each round took, and saves the weights after the first."""

  def __init__(self):
    self._num_rounds = 0
    self._first_seconds = 0.0
    self.start()

  def start(self) -> None:
    """A round begins now, not when the one before ended."""
    self._started = time.monotonic()

  def end(self, export: Callable[[], Mapping[str, np.ndarray]]) -> None:
    """A round has ended, and the next one begins.

    Args:
      export: Gives the weights by our names; its time is not counted.
    """
    seconds = time.monotonic() - self._started
    if not self._num_rounds:
      np.savez(_FIRST.value, **export())
      self._first_seconds = seconds
    if self._num_rounds >= WARM_UPS.value:
      job_lib.say(seconds=seconds, first_seconds=self._first_seconds)
    self._num_rounds += 1
    self.start()
