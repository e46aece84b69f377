"""What every program does around its work: quiet libraries, clear errors.

Import this first: the libraries print some of their warnings while they are
being loaded. A program then calls `begin`, imports the rest, and ends in
`run(main)`.
"""

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Mapping, Sequence
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
from typing import Any
import warnings

from absl import app
from absl import flags
from absl import logging

from tff_asr import checks
from tff_asr import help_text

# Read by TensorFlow's C++ part when it is loaded.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Likewise: kernels of oneDNN, which TensorFlow 2.14 leaves off on processors
# without AVX-512, where they are faster, too.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
# Read when it first uses a GPU, of which it would otherwise take all memory; a
# call would come too late wherever something was traced before.
os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
warnings.simplefilter('ignore')

# What a shell reports of a program that a signal ended.
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM
_WORDS = {signal.SIGINT: 'interrupted', signal.SIGTERM: 'terminated'}
_RESUME = 'the same command goes on from what was saved last.'
# What TensorFlow puts around the message of a check in a graph.
_NODE = re.compile(r'\{\{function_node [^}]*\}\} ')
_ASSERTION = re.compile(r'assertion failed: \[(.*?)\](?= |$)')
_NATIVE = re.compile(r'Failed to run computation: (assertion failed: \[.*?\])')
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_HELP = frozenset({'--help', '-help', '-h', '--helpshort'})
# How absl says that a flag was not given.
_MISSING_FLAG = re.compile(r'Flag --(\w+) must have a value other than None')


def begin(name: str) -> None:
  """Until `run`, Ctrl-C and SIGTERM end the program at once, with a line.

  A program calls it before the imports that take seconds. Left to Python, an
  interrupt in one of them is a long traceback, or is lost: libraries being
  loaded swallow it. Nothing has been begun that could be left half done.

  Args:
    name: The caller's `__name__`; where it is imported, nothing is done.
  """
  if name != '__main__':
    return
  for signal_num in _WORDS:
    # Not where it is ignored, as under nohup.
    if signal.getsignal(signal_num) in _PYTHONS:
      signal.signal(signal_num, _end_at_once)


# What Python starts with.
_PYTHONS = (signal.default_int_handler, signal.SIG_DFL)


def _end_at_once(signal_num: int, unused_frame: types.FrameType | None) -> None:
  os.write(sys.__stderr__.fileno(), f'{_WORDS[signal_num]}.\n'.encode())
  os._exit(128 + signal_num)  # pylint: disable=protected-access


def _take_over() -> None:
  """Ends what `begin` began."""
  if signal.getsignal(signal.SIGINT) is _end_at_once:
    signal.signal(signal.SIGINT, signal.default_int_handler)
  if signal.getsignal(signal.SIGTERM) is _end_at_once:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run(
    main: Callable[[Sequence[str]], None],
    *,
    after_interrupt: str = _RESUME,
    arguments: str | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> None:
  """Runs a program's `main` under absl.

  An error that its user can mend (a wrong flag or setting, a missing file)
  becomes one line on standard error and exit code 1, several of them
  (`checks.Problems`) a line each; with `--verbosity=1` the traceback comes too.
  Any other exception is a defect and keeps its traceback.

  Ctrl-C and SIGTERM end the program after what it cannot leave half done, with
  one line that says how to go on and exit code 130 or 143. A second one ends it
  at once; files are written so that this does no damage. No process is left
  behind either way. Where something hangs for good (`TimeoutError`), the
  program ends after its line as at a second signal.

  Args:
    main: The program; gets the arguments that are not flags.
    after_interrupt: What an interrupted user is told.
    arguments: What the arguments that are not flags are, such as 'FILE'; None:
      the program takes none.
    groups: Headings of --help to the names of the flags under them; see
      `help_text`.
  """
  logging.set_verbosity(logging.WARNING)
  python_logging.getLogger('tensorflow').setLevel(python_logging.ERROR)
  # It repeats a round's error, which ends the program with a line, at length.
  python_logging.getLogger('asyncio').setLevel(python_logging.CRITICAL)
  # Also where absl ends the program before main begins.
  atexit.register(drop_default_context)
  _keep_memory()
  app.run(
      _explain_errors(
          main, after_interrupt=after_interrupt, arguments=arguments
      ),
      flags_parser=functools.partial(parse_flags, groups=groups),
  )


def _keep_memory() -> None:
  """Has glibc keep the memory of freed tensors for the next ones.

  It gives large pieces back to the system at once, and fetching them anew, page
  by page, took a tenth of a round's CPU time at 86M parameters.
  """
  try:
    mallopt = ctypes.CDLL(None).mallopt
  except (AttributeError, OSError):
    return  # Not glibc.
  # Older versions know no larger threshold than 32 MiB.
  if not mallopt(_M_MMAP_THRESHOLD, 2**30):
    mallopt(_M_MMAP_THRESHOLD, 2**25)
  mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def parse_flags(
    argv: Sequence[str], *, groups: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
  """Parses flags; bad ones end the program with a line and exit code 1.

  --help prints what `help_text` makes of the program's docstring and flags, and
  ends it with exit code 0.
  """
  if not _HELP.isdisjoint(argv[1:]):
    sys.stdout.write(
        help_text.text(
            sys.modules['__main__'].__doc__ or '',
            defined=flags.FLAGS.get_key_flags_for_module(argv[0]),
            groups=groups,
        )
    )
    sys.exit(0)
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    message = one_line(error)
    if missing := _MISSING_FLAG.search(message):
      message = f'--{missing[1]} is needed and was not given; see --help.'
    sys.exit(f'error: {message}')


def _explain_errors(
    main: Callable[[Sequence[str]], None],
    *,
    after_interrupt: str = _RESUME,
    arguments: str | None = None,
) -> Callable[[Sequence[str]], None]:
  """Wraps main."""

  def wrapped(argv: Sequence[str]) -> None:
    if len(argv) > 1 and arguments is None:
      sys.exit(f'error: unexpected argument {argv[1]!r}; see --help.')
    if len(argv) == 1 and arguments is not None:
      sys.exit(f'error: no {arguments} was given; see --help.')
    _take_over()
    interrupts = _Interrupts(after_interrupt)
    before = interrupts.install()
    try:
      main(argv)
    except KeyboardInterrupt:
      terminated = interrupts.first == signal.SIGTERM
      word = 'terminated' if terminated else 'interrupted'
      sys.stderr.write(f'{word}: {after_interrupt}\n')
      sys.exit(_TERMINATED if terminated else _INTERRUPTED)
    except TimeoutError as error:
      # Threads that hang would keep Python from its end.
      _abandon(f'error: {one_line(error)}', code=1)
    except Exception as error:  # pylint: disable=broad-exception-caught
      if not _is_users(error):
        raise
      if flags.FLAGS.verbosity > 0:
        traceback.print_exc()
      sys.exit('\n'.join(f'error: {line}' for line in lines(error)))
    finally:
      drop_default_context()
      for signal_num, handler in before.items():
        signal.signal(signal_num, handler)

  return wrapped


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
  """Runs a coroutine to its end, as `asyncio.run`; within `run`'s main.

  The first Ctrl-C or SIGTERM cancels it, so that it ends where it awaits.

  Raises:
    KeyboardInterrupt: A signal ended it.
  """
  interrupts = signal.getsignal(signal.SIGTERM)
  if not isinstance(interrupts, _Interrupts):
    return asyncio.run(coroutine)

  async def cancellable() -> Any:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    interrupts.end = lambda: loop.call_soon_threadsafe(task.cancel)
    return await coroutine

  try:
    return asyncio.run(cancellable())
  except asyncio.CancelledError:
    raise KeyboardInterrupt() from None
  finally:
    interrupts.end = None


class _Interrupts:
  """Handler of signals: the first one ends the work, the second the program.

  Attributes:
    first: The signal that came first, or None.
    end: Ends the work; None: a KeyboardInterrupt does.
  """

  def __init__(self, after_interrupt: str):
    self._after_interrupt = after_interrupt
    self.first = None
    self.end = None

  def install(self) -> dict[signal.Signals, Any]:
    """Takes the signals over; returns the handlers that they had."""
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, self)}
    # Not where it is ignored, as under nohup.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
      before[signal.SIGINT] = signal.signal(signal.SIGINT, self)
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
  children = []
  for thread in os.listdir('/proc/self/task'):
    try:
      with open(f'/proc/self/task/{thread}/children', encoding='ascii') as file:
        children += map(int, file.read().split())
    except OSError:
      pass  # A thread that has ended, or a system that does not tell.
  for child in children:
    try:
      os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
      pass
  os.write(sys.__stderr__.fileno(), f'{line}\n'.encode())
  os._exit(code)  # pylint: disable=protected-access


def drop_default_context() -> None:
  """Lets go of TFF's context while Python can still end what it started.

  Left to the interpreter's end, its destructor fails with a message, or leaves
  its worker process behind.
  """
  federated = sys.modules.get('tensorflow_federated')
  if federated is None:
    return

  class NoContext(federated.framework.SyncContext):

    def invoke(self, comp, arg):
      raise RuntimeError('The program has ended.')

  federated.framework.set_default_context(NoContext())
  gc.collect()


def lines(error: BaseException) -> list[str]:
  """What went wrong, a line each; a single one unless it is `Problems`."""
  if isinstance(error, checks.Problems):
    return [one_line(message) for message in error.messages]
  if isinstance(error, OSError) and error.strerror:
    # Without the number, which tells its users nothing.
    place = f'{error.filename}: ' if error.filename else ''
    return [one_line(f'{place}{error.strerror}')]
  return [one_line(error)]


def one_line(error: BaseException | str) -> str:
  """The error's message on one line, without traces that libraries append."""
  lines = []
  text = str(error)
  if native := _NATIVE.search(text):
    text = native[1]
  for line in text.splitlines():
    # gin and TensorFlow append where it happened.
    if line.lstrip().startswith(('In call to configurable', '[[{{', '[Op:')):
      break
    lines.append(line.strip())
  text = ' '.join(line for line in lines if line) or type(error).__name__
  return _ASSERTION.sub(r'\1', _NODE.sub('', text))


def _is_users(error: BaseException) -> bool:
  """Whether the error is one for the program's user."""
  if isinstance(error, (ValueError, OSError)):
    return True
  # Errors raised inside a graph or by an execution context carry the messages
  # of checks on data. Looked up late: importing TensorFlow takes seconds.
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
    return True
  # The native context's: the message of a check, in the worker's program.
  if 'Failed to run computation: assertion failed' in str(error):
    return True
  cause = error.__cause__
  return isinstance(error, RuntimeError) and cause is not None and _is_users(
      cause
  )
