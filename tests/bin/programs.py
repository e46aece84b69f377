"""Runs the programs of bin/ as their users do."""

from collections.abc import Callable
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import psutil

from tests import fakes

ROOT = pathlib.Path(__file__).parents[2]

TINY = ('NUM_BLOCKS = 1', 'DIM = 8')
# Leaves two layers of the quickstart's model to train, which trace faster. For
# federated runs in tests that do not depend on the layers.
FROZEN = "FROZEN = ('front/.*', 'block_.*', 'norm/.*')"
_TIMEOUT_SEC = 300


def write_tiny(folder: str) -> tuple[str, ...]:
  """Writes corpora, and returns settings that train on them in seconds.

  Args:
    folder: Gets the corpus of three people to train on; a corpus of two others
      to evaluate on is written next to it.

  Returns:
    Gin parameters for the quickstart's federated experiments.
  """
  shards = fakes.write_split(folder, {'ann': 1, 'bob': 2, 'cai': 1})
  dev = fakes.write_split(f'{folder}_dev', {'dan': 1, 'eve': 1})
  return TINY + (
      f'PRIVATE_DIR = {shards!r}',
      f'DEV_DIR = {dev!r}',
      'INIT_FROM_RUN = None',
      'COHORT_SIZE = 2',
      'NUM_LOCAL_STEPS = 1',
      # Three people cannot be private.
      'TARGET_EPSILON = None',
  )


class Finished(NamedTuple):
  """The end of a program in this process (`in_process`)."""

  code: int
  stdout: str
  stderr: str


class Ended(NamedTuple):
  """The end of a program, and the processes that outlived it (`run`)."""

  code: int
  stdout: str
  stderr: str
  left: list[str]
  seconds: float


def run(
    program: str,
    *arguments: str,
    gin_params: tuple[str, ...] = (),
    send: signal.Signals | None = None,
    when: Callable[[psutil.Process], bool] = lambda _: True,
) -> Ended:
  """Runs `bin/PROGRAM.py` in a separate session, to the end of its pipes.

  Args:
    program: Name of the program.
    *arguments: Its flags.
    gin_params: Its gin parameters.
    send: A signal to send to the program, or None.
    when: Tells of the running process when to send it.

  Returns:
    How it ended, with all processes of its session that were left (they are
    killed), and the seconds since the signal or since its start.
  """
  process = subprocess.Popen(
      [
          sys.executable,
          str(ROOT / 'bin' / f'{program}.py'),
          *arguments,
          *(f'--gin_param={gin_param}' for gin_param in gin_params),
      ],
      cwd=ROOT,
      env=_environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
  )
  started = time.monotonic()
  try:
    if send is not None:
      seen = psutil.Process(process.pid)
      while not when(seen) and process.poll() is None:
        if time.monotonic() - started > _TIMEOUT_SEC:
          raise TimeoutError(f'{program} came not as far as it should.')
        time.sleep(0.1)
      started = time.monotonic()
      # Ctrl-C on a terminal goes to the whole group, `kill` to one process.
      deliver = os.killpg if send == signal.SIGINT else os.kill
      deliver(process.pid, send)
    # Returns when the last process that holds the pipes has closed them.
    stdout, stderr = process.communicate(timeout=_TIMEOUT_SEC)
    seconds = time.monotonic() - started
  finally:
    left = _session(process.pid)
    for other in left:
      other.kill()
  return Ended(
      process.returncode,
      stdout,
      stderr,
      [f'{other.pid} {other.name()}' for other in left],
      seconds,
  )


def _session(session: int) -> list[psutil.Process]:
  """The running processes of a session."""
  found = []
  for process in psutil.process_iter():
    try:
      if os.getsid(process.pid) == session and (
          process.status() != psutil.STATUS_ZOMBIE
      ):
        found.append(process)
    except (ProcessLookupError, psutil.NoSuchProcess):
      pass
  return found


def _environment() -> dict[str, str]:
  """The environment without the tests' settings, as a user has it."""
  environment = {
      name: value
      for name, value in os.environ.items()
      if not name.startswith(('TF_', 'PYTHONWARNINGS'))
  }
  return environment | {'PYTHONPATH': str(ROOT)}
