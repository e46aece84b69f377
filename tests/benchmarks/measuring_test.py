"""Turns, their ratios, memory, and toy runs that learn."""

import os

from absl.testing import absltest
import numpy as np
import pytest

from benchmarks import memory
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
    self.assertEqual(turns.ratios([6.0, 2.0], [3.0, 4.0]), [2.0, 0.5])


class MemoryTest(absltest.TestCase):

  def test_peak_covers_the_filled_memory_and_is_reset(self):
    filled = np.ones(2**28, np.uint8)
    self.assertGreater(memory.peak_gib(), filled.nbytes / 2**30)
    del filled
    memory.reset_peak()
    self.assertAlmostEqual(memory.peak_gib(), memory.resident_gib(), delta=0.05)


@pytest.mark.slow
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
