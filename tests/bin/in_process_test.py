"""Programs in this process leave it as it was."""

import signal

from absl.testing import absltest

from tests.bin import in_process


class InProcessTest(absltest.TestCase):

  def test_signals_are_handled_as_before(self):
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in signals]
    # Ends before it has taken the signals over itself.
    finished = in_process.run('bin/report.py', '--nonsense')
    self.assertEqual(finished.code, 1)
    self.assertEqual([signal.getsignal(number) for number in signals], before)
