"""Runs programs in this process: what takes seconds to import is imported."""

import contextlib
import io
import os
import runpy
import sys
from typing import NamedTuple
from unittest import mock

from absl import flags

from tests.bin import programs
from tff_asr import launch


class Finished(NamedTuple):
  """How a program ended."""

  code: int
  stdout: str
  stderr: str


def run(program: str, *arguments: str) -> Finished:
  """Runs a program as `python` would, from its flags to its exit code.

  Args:
    program: `bin/NAME.py`, or a module such as `data_tools.an4`.
    *arguments: Its flags.
  """
  known = set(flags.FLAGS)
  stdout, stderr = io.StringIO(), io.StringIO()
  code = 0
  with contextlib.ExitStack() as stack:
    stack.enter_context(mock.patch.object(sys, 'argv', [program, *arguments]))
    # The session's tests go on with TFF's contexts.
    stack.enter_context(mock.patch.object(launch, 'drop_default_context'))
    stack.enter_context(contextlib.redirect_stdout(stdout))
    stack.enter_context(contextlib.redirect_stderr(stderr))
    try:
      if program.endswith('.py'):
        runpy.run_path(os.path.join(programs.ROOT, program), run_name='__main__')
      else:
        runpy.run_module(program, run_name='__main__')
    except SystemExit as e:
      code = e.code or 0
    finally:
      flags.FLAGS.unparse_flags()
      flags.FLAGS.remove_flag_values(set(flags.FLAGS) - known)
  if isinstance(code, str):
    stderr.write(f'{code}\n')  # As Python does.
    code = 1
  return Finished(code, stdout.getvalue(), stderr.getvalue())
