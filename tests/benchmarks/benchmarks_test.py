"""The benchmarks run at a toy size and write their figures."""

import json
import os
import pathlib
import subprocess
import sys

from absl.testing import parameterized
import pytest

from tests import cases

_ROOT = os.path.join(os.path.dirname(__file__), '..', '..')
_TINY = '--num_blocks=1 --dim=32 --repeats=1'


@pytest.mark.slow
class BenchmarksTest(cases.TestCase):

  @parameterized.named_parameters(
      (
          'execution',
          f'execution --cohort=2 --local_steps=1 {_TINY}',
          lambda figures: figures['ratios']['multi_device'],
      ),
      (
          'full_size',
          'full_size --rounds=1 --num_blocks=1 --dim=32',
          lambda figures: [
              figures[part][figure]
              for part in ('round 1', 'save', 'restore')
              for figure in ('seconds', 'peak_gib', 'end_gib')
          ],
      ),
      (
          'dp_sgd',
          f'dp_sgd --batch=2 --sec=1 --frozen=0.5 {_TINY}',
          lambda figures: [
              *figures['ratios']['DP, 50% frozen'],
              figures['peak_gib']['DP, 50% frozen'],
          ],
      ),
      (
          'local_step',
          f'local_step --batch=2 --sec=1 --bfloat16 {_TINY}',
          lambda figures: sum(
              figures['utilization'].values(), figures['ctc_ratios']
          ),
      ),
      (
          'noise',
          'noise --size=1x32 --repeats=1',
          lambda figures: sum(figures['ratios'].values(), []),
      ),
      (
          'noise_of_mechanisms',
          'noise --mechanisms=gaussian,blt,banded,distributed --size=1x32'
          ' --num_clients=10 --repeats=1',
          lambda figures: [
              ratio
              for mechanism in figures['by_mechanism'].values()
              for place in ('client', 'server')
              for ratio in mechanism[place]['ratios']
          ],
      ),
      (
          'noise_of_devices',
          'noise --bits=16,20 --num_clients=3 --num_elements=1000',
          lambda figures: [
              value
              for row in figures['by_bits'].values()
              for value in (row['stated'], row['measured'])
          ],
      ),
      (
          'public_round',
          'public_round --model=toy --num_clients=1 --local_steps=1'
          ' --repeats=1',
          lambda figures: [*figures['ratios'], *figures['peak_gib'].values()],
      ),
      (
          'batches',
          'batches --clients=50 --rounds=1',
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
          'population',
          'population --clients=60 --records=2 --cohort=20 --repeats=1',
          lambda figures: [
              figures[name][0]
              for name in ('load, s', 'draw, ms', 'locate, ms')
          ],
      ),
      (
          'ray_driver',
          'ray_driver --workers=4 --cohort=20 --repeats=1',
          lambda figures: sum(figures['20'].values(), []),
      ),
      (
          'reader',
          'reader --clients=1 --repeats=1',
          lambda figures: figures['figures']['thread_sec'],
      ),
      (
          'random_access',
          'reader --records=200 --step=4 --speakers=3 --sec=0.5 --repeats=1',
          lambda figures: figures['read over the bytes of the examples'],
      ),
  )
  def test_writes_positive_figures(self, command, select):
    path = self.path('figures.json')
    program, *flags = command.split()
    output = subprocess.run(
        [
            sys.executable,
            '-m',
            f'benchmarks.{program}',
            f'--json={path}',
            *flags,
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
