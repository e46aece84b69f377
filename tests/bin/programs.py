"""Runs the programs of bin/ as their users do."""

import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]

TINY = ('NUM_BLOCKS = 1', 'DIM = 8', 'MLP_DIM = 16', 'NUM_HEADS = 2')
_TIMEOUT_SEC = 300


class Finished(NamedTuple):
  """How a program ended."""

  code: int
  stdout: str
  stderr: str


def run(
    program: str, *arguments: str, gin_params: tuple[str, ...] = ()
) -> Finished:
  """Runs `bin/PROGRAM.py` from the project's folder."""
  # Without what the tests set for themselves: the program has to be quiet on
  # its own.
  environment = {
      name: value
      for name, value in os.environ.items()
      if not name.startswith(('TF_', 'PYTHONWARNINGS'))
  }
  environment['PYTHONPATH'] = str(ROOT)
  finished = subprocess.run(
      [
          sys.executable,
          str(ROOT / 'bin' / f'{program}.py'),
          *arguments,
          *(f'--gin_param={gin_param}' for gin_param in gin_params),
      ],
      cwd=ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      timeout=_TIMEOUT_SEC,
      check=False,
  )
  return Finished(finished.returncode, finished.stdout, finished.stderr)
