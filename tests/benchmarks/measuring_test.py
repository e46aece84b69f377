"""Turns, their ratios, memory of a process, and toy runs that learn."""

import os

from absl.testing import absltest
import numpy as np

from benchmarks import own_process
from benchmarks import toy_runs
from benchmarks import turns
from tests import cases
from tff_asr.storage import model_file
from tff_asr.storage import run_dir


class TurnsTest(absltest.TestCase):

  def test_runs_take_turns_and_the_first_turn_does_not_count(self):
    ran = []
    seconds = turns.measure(
        {name: lambda name=name: ran.append(name) for name in 'ab'}, repeats=2
    )
    self.assertEqual(ran, ['a', 'b'] * 3)
    self.assertEqual({name: len(found) for name, found in seconds.items()},
                     {'a': 2, 'b': 2})

  def test_ratios_and_shares_are_turn_by_turn(self):
    self.assertEqual(turns.ratios([6.0, 2.0], [3.0, 4.0]), [2.0, 0.5])
    # 12 units in 1, 2 and 3 s are paces of 12, 6 and 4; of 24, 24 and 4 that is
    # .5, .25 and 1.
    self.assertEqual(
        turns.shares_of_paces(12.0, [1.0, 2.0, 3.0], [24.0, 24.0, 4.0]),
        [0.5, 0.25, 1.0],
    )


class OwnProcessTest(absltest.TestCase):

  def test_peak_is_at_least_what_was_filled_and_begins_anew(self):
    filled = np.ones(2**28, np.uint8)
    self.assertGreater(own_process.peak_gib(), filled.nbytes / 2**30)
    del filled
    own_process.reset_peak()
    self.assertAlmostEqual(
        own_process.peak_gib(), own_process.resident_gib(), delta=0.05
    )


class ToyRunsTest(cases.TestCase):

  def test_steps_change_every_weight_of_a_central_run(self):
    corpus, run = self.path('corpus'), self.path('run')
    toy_runs.write_corpus(corpus)
    models = []
    for num_steps in (2, 4):
      with toy_runs.quiet():
        toy_runs.train_central(corpus, run, num_rounds=num_steps)
      models.append(model_file.read(os.path.join(run, run_dir.MODEL)))
    before, after = models
    for name, weights in before.items():
      if np.issubdtype(weights.dtype, np.floating):
        self.assertFalse(np.array_equal(weights, after[name]), name)
