"""Tests of tff_asr.storage.run_lock."""

import os
import subprocess
import sys
import tempfile

from absl.testing import absltest

from tff_asr.storage import run_lock

_HOLD = (
    'import sys\n'
    'from tff_asr.storage import run_lock\n'
    'lock = run_lock.RunLock(sys.argv[1])\n'
    'print("held", flush=True)\n'
    'sys.stdin.read()\n'
)


class RunLockTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())

  def test_a_second_run_is_refused_with_the_first_ones_process(self):
    first = run_lock.RunLock(self.folder)
    for call in (run_lock.RunLock, run_lock.check_free):
      with self.assertRaisesRegex(
          run_lock.InUseError,
          rf'in use by process {os.getpid()} on .*take another output_dir',
      ):
        call(self.folder)
    first.release()
    run_lock.check_free(self.folder)
    run_lock.RunLock(self.folder).release()

  def test_it_ends_with_its_process_however_that_ends(self):
    process = subprocess.Popen(
        [sys.executable, '-c', _HOLD, self.folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    self.addCleanup(process.stdin.close)
    self.addCleanup(process.stdout.close)
    self.assertEqual(process.stdout.readline(), b'held\n')
    with self.assertRaisesRegex(run_lock.InUseError, f' {process.pid} on '):
      run_lock.RunLock(self.folder)
    process.kill()
    process.wait()
    run_lock.RunLock(self.folder).release()

  def test_a_look_writes_nothing(self):
    run_lock.check_free(self.folder)
    run_lock.check_free(os.path.join(self.folder, 'absent'))
    self.assertEmpty(os.listdir(self.folder))


if __name__ == '__main__':
  absltest.main()
