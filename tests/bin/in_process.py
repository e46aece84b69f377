"""Runs programs in this process, which has already imported TensorFlow."""

from collections.abc import Iterator
import contextlib
import io
import os
import pathlib
import runpy
import signal
import sys
from unittest import mock

from absl import flags

# Its flags are those of several programs, and defined once.
from data_tools import conversion  # pylint: disable=unused-import
from tests.bin import programs
from tff_asr import launch


def run(program: str, *arguments: str) -> programs.Finished:
  """Runs a program as `python` would, from its flags to its exit code.

  Args:
    program: `bin/NAME.py`, or a module such as `data_tools.an4`.
    *arguments: Its flags.
  """
  path = os.path.join(programs.ROOT, program)
  if not program.endswith('.py'):
    path = os.path.join(programs.ROOT, *program.split('.')) + '.py'
  stdout, stderr = io.StringIO(), io.StringIO()
  code = 0
  with contextlib.ExitStack() as stack:
    stack.enter_context(mock.patch.object(sys, 'argv', [program, *arguments]))
    stack.enter_context(mock.patch.dict(os.environ))
    # A program can import modules of its folder.
    stack.enter_context(
        mock.patch.object(sys, 'path', [os.path.dirname(path), *sys.path])
    )
    # The session's tests go on with TFF's contexts.
    stack.enter_context(mock.patch.object(launch, 'drop_default_context'))
    stack.enter_context(own_flags(path))
    # A program that ends before `launch.run` leaves its early handler.
    for signal_num in (signal.SIGINT, signal.SIGTERM):
      stack.callback(signal.signal, signal_num, signal.getsignal(signal_num))
    stack.enter_context(contextlib.redirect_stdout(stdout))
    stack.enter_context(contextlib.redirect_stderr(stderr))
    try:
      if program.endswith('.py'):
        runpy.run_path(path, run_name='__main__')
      else:
        runpy.run_module(program, run_name='__main__', alter_sys=True)
    except SystemExit as e:
      code = e.code or 0
  if isinstance(code, str):
    stderr.write(f'{code}\n')  # As Python does.
    code = 1
  return programs.Finished(code, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def own_flags(path: str) -> Iterator[None]:
  """Lets a program define its flags, as if no other were imported."""
  values = flags.FLAGS
  before = {
      name: {
          key: list(item) if isinstance(item, list) else item
          for key, item in value.items()
      } if isinstance(value, dict) else value
      for name, value in vars(values).items()
  }
  source = pathlib.Path(path).read_text()
  for module, defined in list(values.flags_by_module_dict().items()):
    if f'import {module.rpartition(".")[2]}\n' in source:
      for flag in defined:
        flag.unparse()
    elif module.startswith(
        ('data_tools.', 'experiments.', 'benchmarks.', 'tools.')
    ):
      values.remove_flag_values([flag.name for flag in list(defined)])
  known = set(values.flags_by_module_dict())
  try:
    yield
  finally:
    # Modules of flags define them again when they are imported again.
    for module in set(values.flags_by_module_dict()) - known:
      parent, _, name = module.rpartition('.')
      # bin/training.py has no parent.
      if sys.modules.pop(module, None) is not None and parent:
        vars(sys.modules[parent]).pop(name, None)
    values.unparse_flags()
    vars(values).clear()
    vars(values).update(before)
