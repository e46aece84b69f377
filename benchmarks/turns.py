"""Times several functions in turn, so that disturbances affect all alike."""

from collections.abc import Callable, Hashable, Mapping, Sequence
import time
from typing import Any, TypeVar

from tff_asr import checks

_Name = TypeVar('_Name', bound=Hashable)


def measure(
    runs: Mapping[_Name, Callable[[], Any]],
    /,
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[_Name, list[float]]:
  """Seconds of each run in each turn.

  Args:
    runs: What is measured, by name; each must have finished its work when it
      returns.
    repeats: Turns that count, at least 1. One before them, in which functions
      are traced and compiled, does not.
    clock: Seconds so far; `time.process_time` has those of this process's CPUs,
      which other programs disturb less.

  Returns:
    For each name as many seconds as there are repeats; those of one place were
    measured one after the other.

  Raises:
    ValueError: repeats is out of range.
  """
  checks.positive_int(repeats=repeats)
  seconds = {name: [] for name in runs}
  for turn in range(repeats + 1):
    for name, run in runs.items():
      started = clock()
      run()
      if turn:
        seconds[name].append(clock() - started)
  return seconds


def ratios(
    numerators: Sequence[float], denominators: Sequence[float], /
) -> list[float]:
  """Turn by turn."""
  return [one / other for one, other in zip(numerators, denominators,
                                            strict=True)]
