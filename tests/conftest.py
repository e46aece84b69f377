"""Set-up of the whole test session: devices, quiet libraries, no orphans."""

import ctypes
import gc
import signal
import sys

import psutil
import pytest

from tff_asr import launch  # First: sets up TensorFlow before it is loaded.

# Makes the devices when it is imported. TensorFlow's first op fixes them, and
# any module may run one while it is being imported.
from tests import logical_devices  # pylint: disable=unused-import


# What a script starts in the background ignores it, and so would the programs
# that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


_SLOW_TIMEOUT_SEC = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  for item in items:
    if item.get_closest_marker('slow'):
      item.add_marker(pytest.mark.timeout(_SLOW_TIMEOUT_SEC))


@pytest.fixture(autouse=True)
def same_tff_context():
  """Gives the next test the TFF context that this one found.

  A program that runs in the test's process sets a different context.
  """
  tff = sys.modules.get('tensorflow_federated')
  if tff is None:
    yield
    return
  before = tff.framework.get_context_stack().current
  yield
  if tff.framework.get_context_stack().current is not before:
    tff.framework.set_default_context(before)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
  """Frees the graphs that a slow test has traced.

  TensorFlow keeps the kernels of all functions that were called, some 200 MB of
  a model's training: ninety experiments in one process took all memory.
  """
  if item.get_closest_marker('slow') and 'tensorflow' in sys.modules:
    from tensorflow.python.eager import context  # pylint: disable=g-import-not-at-top

    gc.collect()
    context.context().clear_kernel_cache()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
  """Ends TFF's worker; fails the session if another process was left."""
  launch.drop_default_context()
  if 'tensorflow_federated' in sys.modules:
    from tff_asr.execution import native  # pylint: disable=g-import-not-at-top

    native.stop()
  left = [
      child
      for child in psutil.Process().children(recursive=True)
      if child.status() != psutil.STATUS_ZOMBIE
  ]
  for child in left:
    sys.stderr.write(f'\nA test left process {child.pid} ({child.name()}).\n')
    child.kill()
  if left and session.exitstatus == pytest.ExitCode.OK:
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
