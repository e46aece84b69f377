"""The benchmarks run at a size that measures nothing and write figures."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import parameterized
import pytest

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
          'full_size',
          ('full_size', '--rounds=1'),
          lambda figures: [
              figures[part][figure]
              for part in ('round 1', 'save', 'restore')
              for figure in ('seconds', 'peak_gib', 'end_gib')
          ],
      ),
      (
          'dp_sgd',
          ('dp_sgd', '--batch=2', '--sec=1', '--repeats=1', '--frozen=0.5'),
          lambda figures: figures['ratios']['DP, 50% frozen'],
      ),
      (
          'local_step',
          ('local_step', '--batch=2', '--sec=1', '--repeats=1', '--bfloat16'),
          lambda figures: sum(
              figures['utilization'].values(), figures['ctc_ratios']
          ),
      ),
      (
          'jit',
          ('jit', '--repeats=1'),
          lambda figures: figures['ratios'] + figures['jit']['cpu_sec'],
      ),
      (
          'input_pipeline',
          ('input_pipeline', '--clients=2', '--repeats=1'),
          # What is prepared is a difference.
          lambda figures: [
              figures['padding'], *figures['audio_sec_per_sec']['cut']
          ],
      ),
  )
  def test_writes_positive_figures_at_one_size(self, arguments, select):
    self._check(arguments, select, flags=_TINY)

  @parameterized.named_parameters(
      (
          'aggregation',
          ('aggregation', '--sizes=1x32', '--repeats=1'),
          lambda figures: [
              share
              for size in figures
              if size.isdecimal()
              for shares in figures[size]['shares'].values()
              for share in shares
          ],
      ),
      (
          'noise',
          ('noise', '--size=1x32', '--repeats=1'),
          lambda figures: sum(figures['ratios'].values(), []),
      ),
      (
          'noise_of_mechanisms',
          (
              'noise', '--mechanisms=gaussian,blt,banded,distributed',
              '--size=1x32', '--num_clients=10', '--repeats=1',
          ),
          lambda figures: [
              ratio
              for mechanism in figures['by_mechanism'].values()
              for place in ('client', 'server')
              for ratio in mechanism[place]['ratios']
          ],
      ),
      (
          'noise_of_devices',
          (
              'noise', '--bits=16,20', '--num_clients=3',
              '--num_elements=1000',
          ),
          lambda figures: [
              value
              for row in figures['by_bits'].values()
              for value in (row['stated'], row['measured'])
          ],
      ),
      (
          'batches',
          ('batches', '--clients=50', '--rounds=1'),
          lambda figures: [
              value
              for row in (
                  *figures['passes'].values(), figures['seen'],
                  figures['shares'],
              )
              for value in row.values()
          ],
      ),
      (
          'reader',
          ('reader', '--clients=1', '--repeats=1'),
          lambda figures: [
              each
              for part in figures['parts'].values()
              for each in part['thread_sec']
          ],
      ),
      (
          'random_access',
          (
              'reader', '--records=200', '--step=4', '--speakers=3',
              '--sec=0.5', '--repeats=1',
          ),
          lambda figures: figures['read over the bytes of the examples'],
      ),
      (
          'start_up',
          ('start_up', '--sizes=1x8', '--repeats=1'),
          lambda figures: [
              figures['1x8'][0]['seconds'][part]
              # The first round's is a difference.
              for part in ('imports', 'process', 'compile', 'second round')
          ],
      ),
      (
          'growth',
          ('growth', '--cohorts=2', '--populations=100', '--devices=2',
           '--devices_cohort=2', '--rounds=1'),
          lambda figures: [
              figures['cohort']['2']['round_sec'],
              figures['population']['100']['load_sec'],
              figures['devices']['2']['round_sec'],
          ],
      ),
  )
  def test_writes_positive_figures_at_its_own_sizes(self, arguments, select):
    self._check(arguments, select, flags=())

  def _check(self, arguments, select, *, flags):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = os.path.join(folder, 'figures.json')
    program, *own_flags = arguments
    output = subprocess.run(
        [
            sys.executable,
            '-m',
            f'benchmarks.{program}',
            f'--json={path}',
            *flags,
            *own_flags,
        ],
        cwd=_ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    self.assertIn('|---|', output.stdout)
    figures = json.loads(pathlib.Path(path).read_text())
    self.assertNotEmpty(list(select(figures)))
    for value in select(figures):
      self.assertGreater(value, 0)
    self.assertGreaterEqual(figures['machine']['cpu_cores'], 1)
