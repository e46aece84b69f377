"""A small group of findings, from shards to its report, by the real programs."""

import contextlib
import io
import os
import pathlib
import re
import tempfile
from unittest import mock

from absl.testing import absltest
import pytest

from tests import fakes
from tff_asr.findings import experiments
from tff_asr.findings import groups
from tff_asr.findings import jobs
from tff_asr.findings import program

_ROOT = pathlib.Path(__file__).parents[2]
_TINY = experiments.Model(
    settings={'NUM_BLOCKS': 1, 'DIM': 8, 'MLP_DIM': 16, 'NUM_HEADS': 2}
)
_SEED = experiments.Recipe(
    name='seed',
    program=experiments.CENTRAL,
    experiment='an4_seed',
    settings={'NUM_STEPS': 2, 'EVALUATE_EVERY': 1},
    model=_TINY,
    speakers='public',
)
_FEDERATED = experiments.Recipe(
    name='federated',
    program=experiments.FEDERATED,
    experiment='an4_dp_global',
    settings={
        'NUM_ROUNDS': 2,
        'COHORT_SIZE': 2,
        'BUILD_COHORTS': '@cohorts.fixed_size',
        'NOISE_MULTIPLIER': 0.5,
    },
    model=_TINY,
    parent=_SEED,
)
_GROUP = experiments.Group(
    name='x',
    title='Tiny',
    question='Does it run?',
    rows=(
        experiments.Row(label='seed', recipe=_SEED, seeds=(None,)),
        experiments.Row(
            label='federated',
            recipe=_FEDERATED,
            seeds=(1,),
            rates=(0.01, 0.02),
            against='seed',
        ),
    ),
    columns=(
        'epsilon', 'deployed', 'noise / signal', 'utterances', 'MB', 'rate'
    ),
    deployment=(2_000, 1_000_000),
)


@pytest.mark.slow
class FindingsRunTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())
    self.folders = jobs.Folders(
        bin_dir=str(_ROOT / 'bin'),
        data_dir=os.path.join(self.root, 'data'),
        runs_dir=os.path.join(self.root, 'runs'),
    )
    for number, speakers in enumerate(('public', 'private', 'dev', 'test')):
      fakes.write_split(
          self.folders.shards(speakers), {f'ann{number}': 2, f'bob{number}': 2}
      )

  def run_all(self) -> list[str]:
    """What it says; the report is in `report`."""
    self.report = os.path.join(self.root, 'results.md')
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
      for name in ('ALL', 'IN_REPORT'):
        stack.enter_context(mock.patch.object(groups, name, (_GROUP,)))
      stack.enter_context(contextlib.redirect_stdout(printed))
      program.run(
          group_names=['x'], folders=self.folders, report=self.report
      )
    return printed.getvalue().splitlines()

  def test_trains_decodes_reports_and_keeps_what_is_there(self):
    lines = self.run_all()
    begun = [line for line in lines if line.startswith('begun')]
    # Of the rates' runs either may be the first.
    self.assertCountEqual(
        begun,
        [
            'begun seed',
            'begun federated_rate0.01_1',
            'begun federated_rate0.02_1',
            'begun evaluate_x_0',
        ],
    )
    with open(self.report, encoding='utf-8') as f:
      text = f.read()
    cells = [
        [cell.strip() for cell in line.split('|')[1:-1]]
        for line in text.splitlines()
        if re.match(r'\| (seed|federated) ', line)
    ]
    # Two steps of two utterances of two speakers; two rounds of as many.
    seed, federated = cells
    self.assertEqual(seed[-6:], ['', '', '', '8', '', ''])
    self.assertEqual(federated[3], 'seed')
    self.assertRegex(federated[-1], r'^0\.0[12] \(an end of those tried\)$')
    for cell in federated[4:-1]:
      self.assertRegex(cell, r'\d')
    self.assertEqual(self.run_all(), [f'{self.report} is written.'])


if __name__ == '__main__':
  absltest.main()
