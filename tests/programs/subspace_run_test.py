"""Tests of federated runs that train within a subspace (`models.subspace`)."""

import asyncio
import functools
import os
import tempfile
from typing import Any
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest

from tests import cases
from tests import fakes
from tests.learning import tiny
from tests.programs import runs
from tff_asr.data import client_data as client_data_lib
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import subspace
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import lamb
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import queries
from tff_asr.programs import dry_run
from tff_asr.programs import evaluation
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import federated
from tff_asr.programs import public_data
from tff_asr.storage import checkpoints
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

# A kernel of 320 inputs and 8 outputs; the head's 8 inputs stay whole.
_PLAIN = tiny.recognizer(dropout=0.1)
_KERNEL = 'front/kernel'
_RANK = 9
# Coordinates, the bias, the head.
_NUM_TRAINED = _RANK * 8 + 8 + 8 * 5 + 5
_FIXED = [f'{_KERNEL}/basis', f'{_KERNEL}/rest']


def _build(**settings: Any) -> dict[str, Any]:
  """Arguments of runs on four speakers."""
  return runs.federated(
      client_data_lib.load(fakes.shared_split(ann=2, bob=2, cai=1, dee=1)),
      build_query=functools.partial(
          queries.PerLayerClipSumQuery,
          l2_norm_clip=0.01,
          noise_multiplier=30.0,
          clipping=clipping_lib.Clipping(split='dim'),
      ),
      **settings,
  )


@functools.cache
def _shared() -> dict[str, Any]:
  model = subspace.build(model=_PLAIN, rank=_RANK, num_utterances=3)
  arguments = _build(model=model)
  return arguments | dict(
      num_rounds=3,
      delta=1e-5,
      save_every=1,
      keep_every=1,
      noise_seed=1,
      sampler_seed=1,
      evaluator=evaluation.Evaluator(
          model=model,
          pipeline=arguments['pipeline'],
          client_data=client_data_lib.load(fakes.shared_split(eve=3, fay=3)),
      ),
  )


def tearDownModule():
  _shared.cache_clear()


def _train(output_dir: str, **changes: Any) -> tuple[dict[str, Any], str]:
  return runs.train(
      federated.FederatedTraining,
      **_shared() | dict(output_dir=output_dir) | changes,
  )


class _Killed(BaseException):
  """Ends a run at once."""


def _state_weights(run: str, number: int) -> dict[str, np.ndarray]:
  """Weights of a saved state, by name."""
  folder = os.path.dirname(run_dir.newest_state_path(run))
  leaves = state_file.read_leaves(checkpoints.state_paths(folder)[number])
  start = 'process/global_model_weights/'
  return {
      name.removeprefix(start): value
      for name, value in leaves.items()
      if name.startswith(start)
  }


class SubspaceRunTest(cases.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.seed = os.path.join(cls.folder, 'seed')
    cls.seed_weights = {
        name: value.numpy()
        for name, value in _PLAIN.initialize([4, 5]).items()
    }
    with run_dir.RunDir(cls.seed, configuration='') as folder:
      folder.write_model(cls.seed_weights, tokens=' abc')
    cls.whole = os.path.join(cls.folder, 'whole')
    cls.results, cls.printed = _train(cls.whole, init_from_run=cls.seed)

  def read(self, run: str) -> weights_lib.Weights:
    return run_dir.read_model(run, model=_PLAIN, tokens=' abc')

  def test_only_coordinates_of_a_public_subspace_change(self):
    first, last = (_state_weights(self.whole, number) for number in (0, 3))
    for name in _FIXED:
      np.testing.assert_array_equal(last[name], first[name])
    changed = {
        name for name in first if not np.array_equal(first[name], last[name])
    }
    self.assertEqual(changed, first.keys() - set(_FIXED))
    basis = first[f'{_KERNEL}/basis'].astype(np.float64)
    np.testing.assert_allclose(basis.T @ basis, np.eye(_RANK), atol=1e-6)
    np.testing.assert_allclose(
        first[f'{_KERNEL}/coordinates'],
        basis.T @ self.seed_weights[_KERNEL],
        atol=1e-6,
    )
    # 3 of the utterances, the first ones, of both speakers.
    moment, seen = 0.0, 0
    for batch in _shared()['pipeline'].evaluation_batches(
        evaluation.examples_of(_shared()['evaluator'].client_data)
    ):
      for name, features, length in zip(
          batch['utterance_id'].numpy(),
          batch['features'].numpy(),
          batch['feature_lengths'].numpy(),
      ):
        seen += 1
        if name in (b'eve-0', b'eve-1', b'fay-0'):
          # The inputs of the kernel are 4 frames at a time.
          rows = features[: length // 4 * 4].reshape(-1, 320).astype('f8')
          moment = moment + rows.T @ rows
    self.assertEqual(seen, 6)
    expected, share = subspace.principal_directions(moment, rank=_RANK)
    np.testing.assert_allclose(basis, expected, atol=1e-3)
    self.assertIn(
        f"{_KERNEL} ({share:.1%} of the inputs' squared norm)", self.printed
    )

  def test_the_model_is_a_plain_one_and_that_of_the_last_state(self):
    weights, last = self.read(self.whole), _state_weights(self.whole, 3)
    self.assertEqual([*weights], sorted(_PLAIN.specs))
    basis = last[f'{_KERNEL}/basis'].astype(np.float64)
    np.testing.assert_allclose(
        weights[_KERNEL],
        last[f'{_KERNEL}/rest'] + basis @ last[f'{_KERNEL}/coordinates'],
        atol=1e-6,
    )
    change = weights[_KERNEL] - self.seed_weights[_KERNEL]
    self.assertGreater(np.linalg.norm(change), 1e-3)
    outside = change - basis @ basis.T @ change
    self.assertLess(np.linalg.norm(outside), 1e-3 * np.linalg.norm(change))
    for name in ('front/bias', 'head/kernel', 'head/bias'):
      np.testing.assert_array_equal(weights[name], last[name])

  def test_sizes_are_of_what_is_trained(self):
    self.assertEqual(
        self.results['bytes_per_client_and_round'],
        {'download_bytes': 4 * _NUM_TRAINED, 'upload_bytes': 4 * _NUM_TRAINED},
    )
    self.assertEqual(self.results['frozen'], [])
    self.assertEqual(
        self.results['subspace'], {'kernels': [_KERNEL], 'rank': _RANK}
    )
    whole = weights_lib.num_parameters(_PLAIN.specs)
    ratio = np.sqrt(_NUM_TRAINED / whole)
    text = (
        f'{_NUM_TRAINED} coordinates and weights are trained in place of '
        f'{whole:,} parameters; the norm of noise is {ratio:.3f} of what'
    )
    self.assertIn(f'freeze: {text}', self.printed)
    described = asyncio.run(dry_run.describe(runs.build(
        federated.FederatedTraining,
        **_shared(),
        output_dir=self.path('dry'),
        init_from_run=self.seed,
    )))
    self.assertRegex(described, f'parameters: +{whole:,}\n')
    self.assertRegex(described, f'trained: +{text}')

  def test_noise_is_added_to_coordinates_only(self):
    # (D)^(1/2) z C over the cohort size.
    expected = np.sqrt(_NUM_TRAINED) * 30.0 * 0.01 / 2
    for row in runs.metrics(self.whole):
      self.assertAlmostEqual(
          float(row['aggregator/noise_norm']), expected, places=5
      )

  def test_the_dev_set_counts_as_data_that_the_model_reveals(self):
    dev = client_data_lib.corpus_of(_shared()['evaluator'].client_data).path
    self.assertIn(
        (False, dev),
        [(each.is_private, each.folder) for each in
         public_data.read(self.whole)],
    )

  def test_a_stopped_run_resumes_with_its_subspace_as_if_it_had_not(self):
    run, step = self.path('run'), federated.FederatedTraining.step
    calls = []

    async def kill_third(*args):
      calls.append(args)
      if len(calls) == 3:
        raise _Killed
      return await step(*args)

    with mock.patch.object(federated.FederatedTraining, 'step', kill_third):
      with self.assertRaises(_Killed):
        _train(run, init_from_run=self.seed)
    self.assertEqual(runs.charged(run), 2)
    # The dev data may be gone: nothing is computed from them.
    with mock.patch.object(subspace, 'fit', side_effect=AssertionError):
      _, printed = _train(run, init_from_run=self.seed)
    self.assertNotIn('subspace:', printed)
    self.assertEqual(runs.charged(run), 3)
    expected = _state_weights(self.whole, 3)
    found = _state_weights(run, 3)
    self.assertEqual([*found], [*expected])
    for name, value in expected.items():
      np.testing.assert_array_equal(found[name], value, name)
    for name, value in self.read(self.whole).items():
      np.testing.assert_array_equal(self.read(run)[name], value, name)

  def test_a_run_may_start_from_a_run_within_a_subspace(self):
    again = self.path('again')
    _train(again, init_from_run=self.whole, num_rounds=1)
    self.assertEqual(runs.charged(again), 4)
    first = _state_weights(again, 0)
    np.testing.assert_allclose(
        first[f'{_KERNEL}/rest']
        + first[f'{_KERNEL}/basis'] @ first[f'{_KERNEL}/coordinates'],
        self.read(self.whole)[_KERNEL],
        atol=1e-6,
    )

  @pytest.mark.slow
  def test_private_evaluations_are_of_the_whole_model(self):
    evaluations = evaluation_rounds.TrainingEvaluation(
        every=1, noise=evaluation_rounds.EvaluationNoise(noise_multiplier=1.0)
    )
    with mock.patch.object(evaluation_rounds, 'MAX_HALF_WIDTH', 100.0):
      _train(
          self.path('run'),
          init_from_run=self.seed,
          num_rounds=1,
          private_evaluation=evaluations,
      )
    self.assertEqual(runs.charged(self.path('run')), 2)

  def test_a_seed_model_and_public_speech_are_needed(self):
    with self.assertRaisesRegex(ValueError, 'needs a seed model.*INIT_FROM_'):
      _train(self.path('run'))
    with self.assertRaisesRegex(ValueError, 'EVALUATOR is None'):
      _train(self.path('run'), init_from_run=self.seed, evaluator=None)
    with self.assertRaisesRegex(ValueError, 'contains no trained model'):
      _train(self.path('run'), init_from_run=self.path('nothing'))
    self.assertFalse(os.path.exists(self.path('run')))

  def test_an_audit_s_model_is_drawn_and_has_random_subspaces(self):
    _train(self.path('run'), evaluator=None, num_rounds=1)
    basis = _state_weights(self.path('run'), 0)[f'{_KERNEL}/basis']
    np.testing.assert_allclose(basis.T @ basis, np.eye(_RANK), atol=1e-6)

  def test_freezing_more_leaves_the_subspace_frozen(self):
    model = _shared()['model']
    for frozen, problem in (
        (('front/.*', 'head/.*'), 'nothing is left to train'),
        ((_KERNEL,), "'front/kernel' is found in none"),
    ):
      with self.assertRaisesRegex(ValueError, problem):
        fed_avg.build(
            model=model,
            pipeline=_shared()['pipeline'],
            client_data=_shared()['client_data'],
            aggregator=fakes.clipped_mean(cohort_size=2, clip=1.0),
            server_optimizer=lamb.build_lamb(0.01),
            local=client_update.LocalTraining(learning_rate=0.1, num_steps=1),
            seed=1,
            frozen=frozen,
        )


if __name__ == '__main__':
  absltest.main()
