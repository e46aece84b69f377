"""A small study of experiments, from shards to its report, by real programs."""

import contextlib
import io

import pytest

from experiments import design
from experiments import jobs
from experiments import run
from tests import cases
from tests import fakes
from tests.experiments import tiny

_TINY = design.Model(settings={'NUM_BLOCKS': 1, 'DIM': 8})
_SEED = tiny.SEED.but(
    'seed', {'NUM_STEPS': 2, 'EVALUATE_EVERY': 1}, model=_TINY
)
_FEDERATED = tiny.FEDERATED.but(
    'federated',
    {
        'NUM_ROUNDS': 2,
        'COHORT_SIZE': 2,
        'BUILD_COHORTS': '@cohorts.fixed_size',
        'NOISE_MULTIPLIER': 0.5,
    },
    experiment='an4_dp',
    model=_TINY,
    parent=_SEED,
)
_STUDY = tiny.study(
    design.Row('seed', _SEED, seeds=(None,)),
    tiny.row(recipe=_FEDERATED, seeds=(1, 2)),
    columns=('epsilon', 'seconds'),
)


@pytest.mark.slow
class RunTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.report = self.path('results.md')
    self.folders = jobs.Folders(
        self.path('data'), self.path('runs'), tiny.suite(_STUDY)
    )
    for number, speakers in enumerate(('public', 'private', 'dev', 'test')):
      fakes.write_split(
          self.folders.shards(speakers), {f'ann{number}': 2, f'bob{number}': 2}
      )

  def run_all(self) -> list[str]:
    """What it says."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      run.run(
          ['x'],
          folders=self.folders,
          report=self.report,
          source=None,
          num_at_once=2,
      )
    return printed.getvalue().splitlines()

  def test_trains_decodes_reports_and_keeps_what_is_there(self):
    lines = self.run_all()
    self.assertEqual(
        [line for line in lines if line.startswith('x: ')],
        [
            'x: seed',
            'x: federated_1, federated_2',
            'x: evaluate_x_0',
        ],
    )
    with open(self.report, encoding='utf-8') as f:
      seed, federated = [
          [cell.strip() for cell in line.split('|')[1:-1]]
          for line in f
          if line.startswith(('| seed ', '| federated '))
      ]
    self.assertEqual(seed[-2], '')
    self.assertEqual(federated[3], 'seed')
    for cell in federated[4:]:
      self.assertRegex(cell, r'\d')
    self.assertEqual(self.run_all(), [f'{self.report} is written.'])
