"""Memory of this process, and measurements in processes of their own."""

import pathlib
import re
import subprocess
import sys


def peak_gib() -> float:
  """This process's largest resident memory since `reset_peak`, GiB."""
  # Not ru_maxrss: a process inherits the one of who started it.
  return _status_gib('VmHWM')


def resident_gib() -> float:
  """This process's resident memory now, GiB."""
  return _status_gib('VmRSS')


def reset_peak() -> None:
  """`peak_gib` begins anew from what is resident now."""
  pathlib.Path('/proc/self/clear_refs').write_text('5', encoding='ascii')


def _status_gib(name: str) -> float:
  """A size of Linux's account of this process, GiB."""
  status = pathlib.Path('/proc/self/status').read_text(encoding='ascii')
  kib = re.search(rf'^{name}:\s+(\d+) kB$', status, re.MULTILINE)[1]
  return int(kib) / 2**20


def measure(program: str, /, **flags: object) -> str:
  """Runs a benchmark in a process of its own; returns its last line.

  Args:
    program: Name of the benchmark.
    **flags: Its flags.

  Raises:
    SystemExit: It failed, and has said why.
  """
  finished = subprocess.run(
      [
          sys.executable,
          '-m',
          f'benchmarks.{program}',
          *(f'--{name}={value}' for name, value in flags.items()),
      ],
      check=False,
      stdout=subprocess.PIPE,
      text=True,
  )
  if finished.returncode:
    sys.exit(finished.returncode)
  return finished.stdout.splitlines()[-1]
