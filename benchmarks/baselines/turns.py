"""Programs that take turns, each in its own virtual environment.

A turn starts a program, lets it measure, and ends with it: no two are there at
the same time. The order of the first turn is that of the next ones.

make_venvs.sh makes the virtual environments; our own programs run in the
environment of this process.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple, Optional

from benchmarks import memory
from benchmarks.baselines import job as job_lib

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
# Settings of a user's shell; all use all cores that this process may use.
_SETTINGS = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
  """A program to measure.

  Attributes:
    venv: Name of its virtual environment; None: ours.
    program: Module of this package.
    flags: Flags of the program, in addition to those of the turn.
    launcher: A module that runs the program's, with its flags; `-m` follows.
  """

  venv: Optional[str]
  program: str
  flags: tuple[str, ...] = ()
  launcher: tuple[str, ...] = ()

  def python(self) -> str:
    """Its interpreter."""
    if self.venv is None:
      return sys.executable
    return os.path.join(_ROOT, '.venvs', self.venv, 'bin', 'python')


class Turn(NamedTuple):
  """Result of a turn.

  Attributes:
    figures: What the program has said, in order.
    peak_gib: PSS of it and of all processes that it started, at most.
    total_sec: Seconds from start to end.
  """

  figures: list[dict[str, Any]]
  peak_gib: float
  total_sec: float


def select(
    names: list[str], baselines: dict[str, Baseline], *, flag: str
) -> dict[str, Baseline]:
  """The baselines of these names.

  Args:
    names: Names of baselines, in any order.
    baselines: All there are.
    flag: Where the names come from.

  Returns:
    Those, in the order of `baselines`.

  Raises:
    ValueError: A name is unknown, or its virtual environment is not there.
  """
  for name in names:
    if name not in baselines:
      raise ValueError(
          f'--{flag} takes {", ".join(baselines)}, found {name!r}.'
      )
    if not os.path.exists(baselines[name].python()):
      raise ValueError(
          f'{name} needs a virtual environment: run benchmarks/baselines/'
          f'make_venvs.sh {baselines[name].venv}, or leave it out of --{flag}.'
      )
  return {name: found for name, found in baselines.items() if name in names}


def medians(turns: Mapping[str, Sequence[Turn]]) -> dict[str, list[float]]:
  """Median seconds of each turn's figures, by name."""
  return {
      name: [
          statistics.median(figure['seconds'] for figure in turn.figures)
          for turn in own
      ]
      for name, own in turns.items()
  }


def take(
    baseline: Baseline,
    *,
    name: str,
    flags: list[str],
    timeout_sec: float = 1800.0,
) -> Turn:
  """Runs a baseline's program once.

  Args:
    baseline: The baseline.
    name: Name of the baseline, for messages.
    flags: Flags of this turn.
    timeout_sec: Until the program is ended.

  Returns:
    What it said and needed.

  Raises:
    RuntimeError: It failed, or said nothing.
  """
  mark = f'{os.getpid()}.{time.monotonic_ns()}'
  environment = {
      key: value for key, value in os.environ.items() if key not in _SETTINGS
  }
  environment |= {memory.VARIABLE: mark, 'PYTHONPATH': _ROOT}
  started = time.monotonic()
  with memory.Peak(mark) as peak:
    done = subprocess.run(
        [
            baseline.python(),
            *(('-m', *baseline.launcher) if baseline.launcher else ()),
            '-m',
            f'benchmarks.baselines.{baseline.program}',
            *baseline.flags,
            *flags,
        ],
        cwd=_ROOT,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout_sec,
    )
  total_sec = time.monotonic() - started
  figures = job_lib.read_figures(done.stdout)
  if done.returncode or not figures:
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    raise RuntimeError(
        f'{name} ended with code {done.returncode} and {len(figures)} figures: '
        f'{said[-1] if said else "it said nothing"}'
    )
  return Turn(figures, peak.gib, total_sec)
