"""Tests of experiments.pretraining: rows, claims, and its report."""

import math
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest

from experiments import pretraining
from tests import cases
from tff_asr.models import weights as weights_lib


class RowsTest(absltest.TestCase):

  def test_rows_and_claims_name_each_other(self):
    labels = [row.label for row in pretraining.build_rows()]
    self.assertCountEqual(labels, set(labels))
    for claim in pretraining.build_claims():
      self.assertContainsSubset(claim.weights, ['warm start', *labels])
      self.assertAlmostEqual(sum(claim.weights.values()), 0)
    others = {pretraining._NOTHING, 'warm start'}
    self.assertContainsSubset(set(pretraining._TUNED) - others, labels)
    self.assertContainsSubset(
        set(pretraining._TUNED.values()) - {None}, pretraining._TUNED
    )

  def test_noise_is_its_norm_over_the_clip(self):
    # sqrt(10,000) z C / 32 = 4 C.
    self.assertAlmostEqual(
        pretraining.noise_of(4.0, num_parameters=10_000, batch_size=32), 1.28
    )

  def test_batches_are_compared_at_one_epsilon(self):
    rows = {row.label: row for row in pretraining.build_rows()}
    found = [
        pretraining.epsilon_of(rows[label].noise, rows[label].batch_size)
        for label in ('noise 1', 'batch 8', 'batch 128')
    ]
    np.testing.assert_allclose(found, found[0], rtol=1e-4)
    self.assertEqual(pretraining.epsilon_of(0.0, 32), math.inf)

  def test_rows_freeze_their_share(self):
    specs = pretraining.build_model().specs
    scores = {name: float(i) for i, name in enumerate(sorted(specs))}
    for row in pretraining.build_rows():
      frozen = pretraining.frozen_of(row, scores, specs, seed=1)
      share = sum(math.prod(specs[name].shape) for name in frozen)
      # Tensors are frozen whole.
      self.assertAlmostEqual(
          share / weights_lib.num_parameters(specs), row.share, delta=0.25
      )


class ReportTest(absltest.TestCase):

  def test_claims_are_judged_by_differences_within_seeds(self):
    # Gains .2, .3, .4: mean .3, Student's 4.303 x .1 / sqrt(3) = .248. Noise 1
    # is .1 worse once and better twice: .2 / 3, and 4.303 x .153 / sqrt(3).
    losses = [
        {'warm start': 4.0, 'noiseless': 3.8, 'noise 1': 3.9},
        {'warm start': 3.0, 'noiseless': 2.7, 'noise 1': 2.6},
        {'warm start': 5.0, 'noiseless': 4.6, 'noise 1': 4.4},
    ]
    text = pretraining.report(
        {
            str(seed): {'losses': found}
            for seed, found in enumerate(losses, 1)
        },
        pretraining.build_rows(),
    )
    lines = [' '.join(line.split()) for line in text.splitlines()]
    self.assertIn(
        '| noiseless | 3.700 | -0.300 (-0.548 to -0.052) | 3 | 0 | infinite |',
        lines,
    )
    self.assertIn(
        '| Noise 1 costs. | not decided: +0.067 (-0.313 to +0.446) |', lines
    )
    self.assertIn('| noise 4 | not run | | | | |', lines)

  def test_word_errors_are_compared_over_speakers_and_seeds(self):
    # Of three speakers with 10 words each. The gain is 2 errors of each with
    # one seed, 4 with the other: .3, with a variance of .02 / 2 over seeds and
    # none over speakers; Student's 4.303 x .1.
    nothing = [(6, 10), (7, 10), (8, 10)]
    tuned = lambda gain: {
        'no pre-training': nothing,
        'warm start': [(errors - gain, words) for errors, words in nothing],
    }
    text = pretraining.report(
        {
            '1': {
                'losses': {},
                'errors': tuned(2) | {'noiseless': [(3, 10), (4, 10), (5, 10)]},
            },
            '2': {'losses': {}, 'errors': tuned(4)},
            '3': {'losses': {}},
        },
        pretraining.build_rows(),
    )
    lines = [' '.join(line.split()) for line in text.splitlines()]
    self.assertIn('| no pre-training | 70.0 | | | 2 |', lines)
    self.assertIn('| noise 1 | not run | | | |', lines)
    # Of one seed: an error fewer than the warm start of each speaker.
    self.assertIn(
        '| noiseless | 40.0 | -10.0 (-10.0 to -10.0) | warm start | 1 |', lines
    )
    # Gains of .2 and .4: variance .02 / 2 with one degree of freedom, whose
    # Student's quantile is 12.706. Speakers gain alike.
    self.assertIn(
        '| warm start | 40.0 | -30.0 (-157.1 to +97.1) | no pre-training | 2 |',
        lines,
    )


@pytest.mark.slow
class MiniatureTest(cases.TestCase):

  def test_a_row_is_trained_and_judged(self):
    patches = {
        '_SPEAKERS': {'public': 2, 'private': 520, 'dev': 2, 'test': 1},
        '_UTTERANCES': {'public': 20, 'private': 2, 'dev': 1, 'test': 1},
        '_WARM_STEPS': 1,
        '_STEPS': 1,
        '_TUNING_SPEAKERS': {'public': 2, 'private': 1, 'dev': 1, 'test': 2},
        '_TUNING_UTTERANCES': {'public': 3, 'private': 1, 'dev': 1, 'test': 1},
        '_TUNING_STEPS': 2,
    }
    for name, value in patches.items():
      self.enterContext(mock.patch.object(pretraining, name, value))
    miniature = pretraining.Miniature(self.path('data'))
    weights, squares = miniature.warm_start(1)
    self.assertTrue(all(value > 0 for value in squares.values()))
    row = pretraining.Row(label='x', noise=1.0, share=0.5)
    trained = miniature.train(row, 1)
    self.assertNotEqual(miniature.loss(trained), miniature.loss(weights))
    errors = miniature.tuning.errors(trained, 1)
    self.assertLen(errors, 2)
    self.assertTrue(all(words > 0 for _, words in errors))
    # The encoder is taken.
    zeros = {name: np.zeros_like(value) for name, value in trained.items()}
    self.assertNotEqual(
        miniature.tuning.trained(zeros, 1)['head/kernel'].numpy().tobytes(),
        miniature.tuning.trained(trained, 1)['head/kernel'].numpy().tobytes(),
    )
    # What is above the cutoff is gone.
    sound = np.sin(np.arange(16000) * 2 * np.pi * 5000 / 16000) * 1000
    narrow = pretraining._narrow(sound.astype(np.int16))
    self.assertLess(np.abs(narrow).max(), 20)
