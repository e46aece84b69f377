"""Four logical CPU devices for a test module.

TensorFlow's first op fixes the devices of a process. If another module ran an
op first, a module that needs these devices runs in a separate process:

    @logical_devices.absent
    class OwnProcessTest(logical_devices.OwnProcessTestCase):
      MODULE = 'tests.execution.this_test'

    @logical_devices.needed
    class SomeTest(absltest.TestCase):
      ...
"""

import pathlib
import subprocess
import sys

from absl.testing import absltest
import tensorflow as tf

CPUS = ('CPU:0', 'CPU:1', 'CPU:2', 'CPU:3')


def _configure() -> bool:
  """Makes the devices; whether that was still possible."""
  try:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices('CPU')[0],
        [tf.config.LogicalDeviceConfiguration()] * len(CPUS),
    )
  except RuntimeError:
    return False
  return True


_CONFIGURED = _configure()

needed = absltest.skipUnless(
    _CONFIGURED, 'Run by OwnProcessTest, in a separate process.'
)
absent = absltest.skipIf(_CONFIGURED, 'This process has the devices.')


class OwnProcessTestCase(absltest.TestCase):
  """Runs a test module in a separate process."""

  MODULE: str

  def test_module_passes_in_a_separate_process(self):
    finished = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '--pyargs', self.MODULE],
        cwd=pathlib.Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    self.assertEqual(finished.returncode, 0, finished.stdout[-5000:])
