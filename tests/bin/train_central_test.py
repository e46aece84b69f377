"""Tests of bin/train_central.py and bin/evaluate.py, as processes."""

import os

import pytest

from tests import cases
from tests import fakes
from tests.bin import programs


class TrainAndEvaluateTest(cases.TestCase):

  @pytest.mark.slow
  def test_a_trained_model_is_evaluated(self):
    shards = fakes.write_split(self.path('shards'), {'ann': 2})
    dev = fakes.write_split(self.path('dev'), {'bob': 2})
    run = self.path('run')
    trained = programs.run(
        'train_central',
        f'--output_dir={run}',
        '--gin_file=gin/experiments/quickstart_seed.gin',
        gin_params=programs.TINY
        + (
            f'TRAIN_DIR = {shards!r}',
            f'DEV_DIR = {dev!r}',
            'NUM_STEPS = 2',
        ),
    )
    self.assertEqual(trained.code, 0, trained.stderr)
    self.assertEqual(trained.stdout, '')
    for line in trained.stderr.splitlines():
      self.assertRegex(line, r'^central: step [12] of 2, loss ')
    evaluated = programs.run(
        'evaluate',
        '--gin_file=gin/experiments/quickstart_evaluate.gin',
        gin_params=programs.TINY
        + (f'TEST_DIR = {dev!r}', f'RUNS = [{run!r}]'),
    )
    self.assertEqual(evaluated.code, 0, evaluated.stderr)
    self.assertRegex(
        evaluated.stdout, r'run: WER \d+\.\d\d % \(TER .* %\) of \d+ words of 1'
    )
    for line in evaluated.stderr.splitlines():
      self.assertRegex(line, r'^evaluate: utterance [12] of 2')
    self.assertTrue(os.path.exists(os.path.join(run, 'test.json')))
