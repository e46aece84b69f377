"""Starts and ends every program: quiet libraries, signals, one-line errors.

A program imports this first, because libraries print warnings while they load,
calls `install_early_sigint`, imports the rest, and ends in `run(main)`:

    from tff_asr import launch

    launch.install_early_sigint(__name__)

    from tff_asr.programs import federated

    if __name__ == '__main__':
      launch.run(main)
"""

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Sequence
import contextlib
import ctypes
import functools
import gc
import logging as python_logging
import os
import re
import signal
import sys
import traceback
import types
from typing import TypeVar
import warnings

from absl import app
from absl import flags
from absl import logging
import psutil

from tff_asr import checks

# TensorFlow reads these when it is loaded. oneDNN's kernels are faster on
# processors without AVX-512, too, where TensorFlow 2.14 leaves them off.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
# Libraries warn of their own deprecated calls, which users cannot change.
warnings.simplefilter('ignore')

_Result = TypeVar('_Result')
_Handler = Callable[[int, types.FrameType | None], None] | int | None

_RESUME = 'the same command continues from the last saved state.'
_WORDS = {signal.SIGINT: 'interrupted', signal.SIGTERM: 'terminated'}
# Where a wheel has the programs; a working copy has them in bin/.
_INSTALLED_PROGRAMS = os.path.join(os.path.dirname(__file__), 'bin')
_HELP = frozenset({'--help', '-help', '-h', '--helpshort'})
# TensorFlow wraps the message of a check in a graph in these.
_NODE = re.compile(r'\{\{function_node [^}]*\}\} ')
_ASSERTION = re.compile(r'assertion failed: \[(.*?)\](?= |$)')
_NATIVE = re.compile(r'Failed to run computation: (assertion failed: \[.*?\])')
_MISSING_FLAG = re.compile(r'Flag --(\w+) must have a value other than None')


def install_early_sigint(name: str) -> None:
  """Lets Ctrl-C end the program at once until `run` takes over.

  Imports take seconds. A KeyboardInterrupt in one of them prints a long
  traceback, or is lost in a library that catches it.

  Args:
    name: The caller's `__name__`; imported modules leave the handler alone.
  """
  # `nohup` ignores the signal, and so must the program.
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN and name == '__main__':
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(
    main: Callable[[Sequence[str]], None],
    *,
    after_interrupt: str = _RESUME,
    arguments: str | None = None,
    more_help: Callable[[Sequence[str]], str] | None = None,
) -> None:
  """Runs a program's `main` under absl.

  - An error that the user can fix (a wrong flag or setting, a missing file)
    becomes one line on standard error and exit code 1; `checks.Problems` become
    a line each. `--verbosity=1` adds the traceback.
  - Any other exception is a defect and keeps its traceback.
  - The first Ctrl-C or SIGTERM cancels the work, which saves what it must, and
    ends with one line and exit code 130 or 143. The second ends the program at
    once. No process is left behind.
  - `TimeoutError` (something hangs) also ends the program at once.

  Args:
    main: The program; gets the arguments that are not flags.
    after_interrupt: The line for an interrupted user.
    arguments: The arguments that are not flags, such as 'FILE'; None: the
      program takes none.
    more_help: What --help says after the flags, from the command line.
  """
  logging.set_verbosity(logging.WARNING)
  python_logging.getLogger('tensorflow').setLevel(python_logging.ERROR)
  # asyncio would print the error of a round a second time, at length.
  python_logging.getLogger('asyncio').setLevel(python_logging.CRITICAL)
  # absl may end the program before it calls main.
  atexit.register(drop_default_context)
  _keep_memory()

  app.run(
      functools.partial(
          run_with_user_errors,
          main,
          after_interrupt=after_interrupt,
          arguments=arguments,
      ),
      flags_parser=functools.partial(_parse_flags, more_help=more_help),
  )


def run_with_user_errors(
    main: Callable[[Sequence[str]], None],
    argv: Sequence[str],
    *,
    after_interrupt: str = _RESUME,
    arguments: str | None = None,
) -> None:
  """Runs `main(argv)` with the errors and signals of `run`."""
  if len(argv) > 1 and arguments is None:
    sys.exit(f'error: unexpected argument {argv[1]!r}; see --help.')
  if len(argv) == 1 and arguments is not None:
    sys.exit(f'error: no {arguments} was given; see --help.')
  interrupts = _Interrupts(after_interrupt)
  before = interrupts.install()
  try:
    main(argv)
  except KeyboardInterrupt:
    signal_num = interrupts.first or signal.SIGINT
    sys.stderr.write(f'{_WORDS[signal_num]}: {after_interrupt}\n')
    sys.exit(128 + signal_num)
  except TimeoutError as error:
    # Python would wait for the threads that hang.
    _abandon(f'error: {_one_line(error)}', code=1)
  except Exception as error:  # pylint: disable=broad-exception-caught
    if not is_user_error(error):
      raise
    if flags.FLAGS.verbosity > 0:
      traceback.print_exc()
    sys.exit('\n'.join(f'error: {line}' for line in error_lines(error)))
  finally:
    drop_default_context()
    for signal_num, handler in before.items():
      signal.signal(signal_num, handler)


def run_async(coroutine: Coroutine[object, object, _Result]) -> _Result:
  """Runs a coroutine to its end, as `asyncio.run`; within `run`'s main.

  The first Ctrl-C or SIGTERM cancels it, so that it ends where it awaits.

  Raises:
    KeyboardInterrupt: A signal ended it.
  """
  interrupts = signal.getsignal(signal.SIGTERM)
  if not isinstance(interrupts, _Interrupts):
    return asyncio.run(coroutine)

  async def cancellable() -> _Result:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    # Wakes the loop, which may be waiting in a selector.
    interrupts.end = lambda: loop.call_soon_threadsafe(task.cancel)
    return await coroutine

  try:
    return asyncio.run(cancellable())
  except asyncio.CancelledError:
    raise KeyboardInterrupt() from None
  finally:
    interrupts.end = None


def drop_default_context() -> None:
  """Drops TFF's context before the interpreter shuts down.

  During shutdown its destructor fails with a message, or leaves its worker
  process behind.
  """
  # Not imported here: programs without it start in a second.
  federated = sys.modules.get('tensorflow_federated')
  if federated is None:
    return

  class NoContext(federated.framework.SyncContext):

    def invoke(self, comp, arg):
      raise RuntimeError('The program has ended.')

  federated.framework.set_default_context(NoContext())
  # The old context is in reference cycles: collected now, not at shutdown.
  gc.collect()


class _Interrupts:
  """Handler of signals: the first ends the work, the second the program.

  Attributes:
    first: The signal that came first, or None.
    end: Ends the work; None: a KeyboardInterrupt does.
  """

  def __init__(self, after_interrupt: str):
    self._after_interrupt = after_interrupt
    self.first = None
    self.end = None

  def install(self) -> dict[signal.Signals, _Handler]:
    """Handles the signals; returns their former handlers."""
    before = {
        # Programs in the background ignore SIGINT; that is kept.
        signal_num: signal.getsignal(signal_num)
        for signal_num in _WORDS
        if signal.getsignal(signal_num) is not signal.SIG_IGN
    }
    for signal_num in before:
      signal.signal(signal_num, self)
    return before

  def __call__(
      self, signal_num: int, unused_frame: types.FrameType | None
  ) -> None:
    if self.first is not None:
      _abandon(
          f'{_WORDS[signal_num]} twice, ended at once: {self._after_interrupt}',
          code=128 + signal_num,
      )
    self.first = signal_num
    if self.end is None:
      raise KeyboardInterrupt()
    self.end()


def _abandon(line: str, *, code: int) -> None:
  """Ends the program and its children at once, with a line."""
  ray_session = sys.modules.get('tff_asr.execution.ray_session')
  if ray_session is not None:  # Otherwise the end of Ray prints another line.
    ray_session.announce_end()
  for child in psutil.Process().children():
    with contextlib.suppress(psutil.NoSuchProcess):
      # Ray and TFF start processes, which would outlive this one.
      child.kill()
  os.write(sys.__stderr__.fileno(), f'{line}\n'.encode())
  # Without Python's shutdown, which would wait for threads that hang.
  os._exit(code)  # pylint: disable=protected-access


def _keep_memory() -> None:
  """Makes glibc keep the memory of freed tensors for the next ones.

  Getting large blocks from the system again, page by page, took a tenth of a
  round's CPU time at 86M parameters.
  """
  libc = ctypes.CDLL(None)
  if hasattr(libc, 'mallopt'):  # glibc's alone.
    # M_MMAP_THRESHOLD; older versions allow no more than 32 MiB.
    if not libc.mallopt(-3, 2**30):
      libc.mallopt(-3, 2**25)
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD.


def error_lines(error: BaseException) -> list[str]:
  """Returns the lines to print for an error: one, or one for each problem.

      >>> error_lines(FileNotFoundError(2, 'No such file', 'recordings'))
      ['recordings: No such file']
  """
  if isinstance(error, checks.Problems):
    return [_one_line(message) for message in error.messages]
  if isinstance(error, OSError) and error.strerror:
    # Without the number, which says nothing to users.
    prefix = f'{error.filename}: ' if error.filename else ''
    return [_one_line(f'{prefix}{error.strerror}')]
  return [_one_line(error)]


def _one_line(error: BaseException | str) -> str:
  """The error's message on one line, without traces that libraries append."""
  text = str(error)
  if native := _NATIVE.search(text):
    text = native[1]
  # gin and TensorFlow append where it happened.
  text = re.split(r'^\s*(?:In call to configurable|\[\[\{\{|\[Op:)', text,
                  maxsplit=1, flags=re.MULTILINE)[0]
  text = ' '.join(text.split()) or type(error).__name__
  return _ASSERTION.sub(r'\1', _NODE.sub('', text))


def is_user_error(error: BaseException) -> bool:
  """Whether the user can fix the error; any other is a defect."""
  if isinstance(error, (ValueError, OSError)):
    return True
  # Checks on data raise these in a graph. TensorFlow takes seconds to import.
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
    return True
  if _NATIVE.search(str(error)):  # A check in the native context's worker.
    return True
  # TFF wraps the error of a client in a RuntimeError.
  cause = error.__cause__
  if not isinstance(error, RuntimeError) or cause is None:
    return False
  return is_user_error(cause)


def _parse_flags(
    argv: Sequence[str],
    *,
    more_help: Callable[[Sequence[str]], str] | None = None,
) -> list[str]:
  """Parses flags; bad ones end the program with a line and exit code 1."""
  if not _HELP.isdisjoint(argv[1:]):
    about = sys.modules['__main__'].__doc__
    if os.path.dirname(os.path.abspath(argv[0])) == _INSTALLED_PROGRAMS:
      about = re.sub(r'python bin/(\w+)\.py', r'tff-asr \1', about)
    print(about, flags.FLAGS.main_module_help())
    if more_help is not None:
      print(f'\n{more_help(argv)}')
    sys.exit(0)
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    message = _one_line(error)
    if missing := _MISSING_FLAG.search(message):
      message = f'--{missing[1]} is needed and was not given; see --help.'
    sys.exit(f'error: {message}')
