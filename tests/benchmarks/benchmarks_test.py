"""The benchmarks run, at a size that measures nothing, and write their figures."""

import json
import os
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import pytest

# BUILD data: //benchmarks:cohort_memory //benchmarks:execution
# BUILD data: //benchmarks:dp_sgd //benchmarks:full_size

_ROOT = os.path.join(os.path.dirname(__file__), '..', '..')
_TINY = ('--num_blocks=1', '--dim=32')


@pytest.mark.slow
class BenchmarksTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (
          'execution',
          ('execution', '--cohort=2', '--local_steps=1', '--repeats=1'),
          lambda figures: figures['ratios']['multi_device'],
      ),
      (
          'cohort_memory',
          ('cohort_memory', '--cohorts=1,2'),
          lambda figures: figures['peak_gib'].values(),
      ),
      (
          'full_size',
          ('full_size', '--rounds=1'),
          lambda figures: [figures['save'], figures['restore']],
      ),
      (
          'dp_sgd',
          ('dp_sgd', '--batch=2', '--sec=1', '--repeats=1', '--vectorized=1',
           '--frozen=0.5'),
          lambda figures: figures['ratios']['DP, n = 1, 50% frozen'],
      ),
  )
  def test_writes_positive_figures(self, arguments, select):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = os.path.join(folder, 'figures.json')
    program, *flags = arguments
    output = subprocess.run(
        [
            sys.executable,
            '-m',
            f'benchmarks.{program}',
            f'--json={path}',
            *_TINY,
            *flags,
        ],
        cwd=_ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    self.assertIn('|---|', output.stdout)
    with open(path, encoding='utf-8') as f:
      figures = json.load(f)
    self.assertNotEmpty(list(select(figures)))
    for value in select(figures):
      self.assertGreater(value, 0)
    self.assertGreaterEqual(figures['machine']['cpu_cores'], 1)


if __name__ == '__main__':
  absltest.main()
