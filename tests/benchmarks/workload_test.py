import subprocess
import sys

from absl.testing import absltest
import numpy as np

from benchmarks import workload


class PeakTest(absltest.TestCase):

  def test_it_is_at_least_what_was_filled(self):
    filled = np.ones(2**28, np.uint8)
    self.assertGreater(workload.peak_gib(), filled.nbytes / 2**30)

  def test_it_begins_anew(self):
    filled = np.ones(2**28, np.uint8)
    del filled
    before = workload.peak_gib()
    workload.reset_peak()
    self.assertLess(workload.peak_gib(), before - 0.2)
    self.assertBetween(
        workload.peak_gib() - workload.resident_gib(), 0, 0.1
    )

  def test_it_is_not_that_of_who_started_the_process(self):
    filled = np.ones(2**31, np.uint8)
    program = 'from benchmarks import workload; print(workload.peak_gib())'
    output = subprocess.run(
        [sys.executable, '-c', program],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    self.assertLess(float(output.stdout), filled.nbytes / 2**30)


if __name__ == '__main__':
  absltest.main()
