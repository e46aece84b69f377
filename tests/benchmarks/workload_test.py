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
    before, after, resident = _print_of(
        'import numpy as np\n'
        'from benchmarks import workload\n'
        'filled = np.ones(2**28, np.uint8)\n'
        'del filled\n'
        'print(workload.peak_gib())\n'
        'workload.reset_peak()\n'
        'print(workload.peak_gib(), workload.resident_gib())\n'
    )
    self.assertLess(after, before - 0.2)
    self.assertAlmostEqual(after, resident, delta=0.05)

  def test_it_is_not_that_of_who_started_the_process(self):
    filled = np.ones(2**31, np.uint8)
    (peak,) = _print_of(
        'from benchmarks import workload; print(workload.peak_gib())'
    )
    self.assertLess(peak, filled.nbytes / 2**30)


def _print_of(program: str) -> list[float]:
  """The numbers that a program of its own process prints."""
  output = subprocess.run(
      [sys.executable, '-c', program],
      check=True,
      stdout=subprocess.PIPE,
      text=True,
  )
  return list(map(float, output.stdout.split()))


if __name__ == '__main__':
  absltest.main()
