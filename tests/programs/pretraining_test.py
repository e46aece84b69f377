"""Tests of tff_asr.programs.pretraining and its parts."""

import dataclasses
import functools
import json
import os
import tempfile
from typing import Any
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import fakes
from tests.learning import tiny
from tests.models import calls
from tests.programs import runs
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import examples as examples_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import layer_freeze
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import keys
from tff_asr.privacy import queries
from tff_asr.programs import pretraining
from tff_asr.programs import warm_start
from tff_asr.storage import run_dir


_CLIENTS = {'ann': 3, 'bob': 2, 'cai': 1}


_MODEL = tiny.predictor()


def _pipeline(**options) -> pipeline_lib.Pipeline:
  return fakes.tiny_pipeline(_MODEL, **options)


def _build_query(noise_multiplier: float = 1.0):
  return functools.partial(
      queries.PerLayerClipSumQuery,
      l2_norm_clip=0.1,
      noise_multiplier=noise_multiplier,
      clipping=clipping_lib.Clipping(split='dim'),
  )


class PretrainTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.data = client_data_lib.load(fakes.shared_split(**_CLIENTS))
    _, cls.printed = cls.run_program(
        'public',
        build_query=None,
        measured_clips=[1e9],
        num_steps=2,
        sampler_seed=None,
        noise_seed=None,
        evaluator=pretraining.MaskedEvaluator(
            model=_MODEL, pipeline=_pipeline(), client_data=cls.data
        ),
    )

  @classmethod
  def path(cls, name: str) -> str:
    return os.path.join(cls.root, name)

  @classmethod
  def arguments(cls, name: str, **changes) -> dict[str, Any]:
    return dict(
        output_dir=cls.path(name),
        configuration='SEED = 3\n',
        model=_MODEL,
        pipeline=_pipeline(),
        client_data=cls.data,
        optimizer=tff.learning.optimizers.build_adam(0.01),
        batch_size=3,
        num_steps=3,
        seed=3,
        build_query=_build_query(),
        evaluate_every=2,
        save_every=2,
        noise_seed=4,
        sampler_seed=5,
    ) | changes

  @classmethod
  def run_program(cls, name: str, **changes):
    """Results, and what was printed, of a run."""
    return runs.train(pretraining.Pretraining, **cls.arguments(name, **changes))

  def weights(self, name: str) -> dict[str, np.ndarray]:
    return run_dir.read_model(self.path(name), model=_MODEL, tokens='')

  def test_a_public_run_scores_layers_and_charges_nothing(self):
    with open(self.path('public/results.json'), encoding='utf-8') as f:
      results = json.load(f)
    self.assertEqual(results['population'], 6)
    self.assertBetween(results['dev_accuracy']['2'], 0, 1)
    self.assertFalse(os.path.exists(self.path('public/ledger.jsonl')))
    scores = warm_start.read_scores(
        self.path('public'), specs=_MODEL.specs
    )
    self.assertAlmostEqual(sum(scores.values()), 1, places=6)
    self.assertTrue(all(score > 0 for score in scores.values()))
    # All six examples are measured, with the last weights.
    self.assertIn('C = 1e+09 clips 0% of 6 public gradients', self.printed)
    path = self.path('public/gradient_norms.csv')
    with open(path, encoding='utf-8') as f:
      self.assertLen(f.readlines(), 2 + len(_MODEL.specs))

  def test_the_layers_of_the_lowest_scores_are_frozen_and_do_not_change(self):
    results, printed = self.run_program(
        'frozen',
        init_from_run=self.path('public'),
        freeze=layer_freeze.LayerFreeze(share=0.5),
        num_steps=1,
    )
    specs = _MODEL.specs
    scores = warm_start.read_scores(self.path('public'), specs=specs)
    self.assertEqual(
        results['frozen'],
        layer_freeze.LayerFreeze(share=0.5).choose(scores, specs),
    )
    trained = sorted(scores[n] for n in specs if n not in results['frozen'])
    self.assertLessEqual(
        max(scores[name] for name in results['frozen']), trained[0]
    )
    self.assertIn(
        f'freeze: {len(results["frozen"])} of {len(specs)} tensors', printed
    )
    before, after = self.weights('public'), self.weights('frozen')
    for name in specs:
      self.assertEqual(
          np.array_equal(before[name], after[name]),
          name in results['frozen'],
          name,
      )

  @parameterized.parameters(
      (dict(gradient_mode='per_batch', build_query=_build_query()), 'per_batch'),
      (dict(measured_clips=[0.1, 0.0]), 'measured_clips'),
  )
  def test_bad_settings_are_named_before_anything_is_written(
      self, changes, message
  ):
    with self.assertRaisesRegex(ValueError, message):
      self.run_program('bad', **changes)
    self.assertFalse(os.path.exists(self.path('bad')))

  def test_duplicate_private_recordings_are_refused(self):
    # Eight copies are eight draws of one recording, and one is charged.
    (example,) = fakes.examples('ann', 1)
    spoken = [example | {'utterance_id': str(number)} for number in range(8)]
    folder = fakes.write_examples(self.path('copies'), spoken)
    data = client_data_lib.load(folder)
    with self.assertRaisesRegex(
        ValueError, f'^{folder} has 7 copies .* 8 that are the same.*--drop_cop'
    ):
      self.run_program('bad', client_data=data)
    self.run_program(
        'public_copies',
        client_data=data,
        build_query=None,
        num_steps=1,
        sampler_seed=None,
        noise_seed=None,
    )
    fakes.write_examples(folder, spoken, drop_copies=True, overwrite=True)
    data = client_data_lib.load(folder)
    self.assertEqual(data.num_records, 1)
    self.run_program('dropped', client_data=data, batch_size=1, num_steps=1)
    unknown = dataclasses.replace(data.corpus, origin={})
    with mock.patch.object(
        client_data_lib.SpeechClientData, 'corpus', unknown
    ), self.assertRaisesRegex(ValueError, 'does not record whether'):
      self.run_program('bad', client_data=data, batch_size=1)
    self.assertFalse(os.path.exists(self.path('bad')))

  def test_public_runs_of_other_seeds_draw_other_batches(self):
    public = dict(build_query=None, sampler_seed=None, noise_seed=None)
    drawn = []
    for seed in (3, 4, 3):
      training = runs.build(
          pretraining.Pretraining,
          **self.arguments('unused', seed=seed, **public),
      )
      position, batches = training.init_data_position(), []
      for _ in range(9):
        batch, position = training.sample(position)
        batches.append(tuple(batch))
      drawn.append(tuple(batches))
    self.assertEqual(drawn[0], drawn[2])
    self.assertNotEqual(drawn[0], drawn[1])


class MaskedEvaluatorTest(parameterized.TestCase):

  def evaluator(self, model):
    return pretraining.MaskedEvaluator(
        model=model,
        pipeline=_pipeline(),
        client_data=client_data_lib.load(fakes.shared_split(**_CLIENTS)),
    )

  def test_evaluations_repeat_exactly_and_without_dropout(self):
    weights = _MODEL.initialize(tf.constant([1, 2]))
    evaluate = self.evaluator(tiny.predictor(dropout=0.5))
    first = evaluate(weights)
    self.assertEqual(evaluate(weights).metrics(), first.metrics())
    without = self.evaluator(_MODEL)(weights)
    self.assertEqual(without.metrics(), first.metrics())

  def test_each_utterance_has_its_own_masks_and_noise(self):
    weights = _MODEL.initialize(tf.constant([1, 2]))
    evaluate = self.evaluator(_MODEL)
    with calls.recorded_seeds() as fixed:
      _MODEL.quantizer.labels(tf.zeros([1, 8, 80]), tf.constant([8]))
    self.addCleanup(tf.config.run_functions_eagerly, False)
    tf.config.run_functions_eagerly(True)
    with calls.recorded_seeds() as seeds:
      evaluate(weights)
    # Of six utterances a seed is split, into one of masks and one of noise.
    seeds = [seed for seed in seeds if seed not in fixed]
    self.assertLen(seeds, 6 * 3)
    self.assertLen(set(seeds), 6 * 3)


class ExamplesTest(parameterized.TestCase):

  def _source(self, **options) -> examples_lib.ExampleSampler:
    return examples_lib.ExampleSampler(
        client_data_lib.load(fakes.shared_split(**_CLIENTS)),
        pipeline=_pipeline(**options),
        batch_size=3,
        key=keys.from_seed(1),
    )

  def _names(self, source, numbers) -> list[str]:
    return sorted(
        name.decode()
        for batch in source.batches(numbers)
        for name in batch['utterance_id'].numpy()
    )

  def test_numbers_follow_the_order_of_clients_and_utterances(self):
    source = self._source()
    self.assertEqual(source.sampling.population, 6)
    every = ['ann-0', 'ann-1', 'ann-2', 'bob-0', 'bob-1', 'cai-0']
    for number, name in enumerate(every):
      self.assertEqual(self._names(source, [number]), [name])
    self.assertEqual(self._names(source, [1, 3, 5]), every[1::2])
    self.assertEqual(self._names(source, []), [])

  def test_draws_are_poisson_and_resume(self):
    source = self._source()
    state, sizes, second = source.initial_state(), [], None
    counts = np.zeros(6)
    for round_num in range(400):
      if round_num == 1:
        second = state
      numbers, state = source.draw(state)
      counts[numbers] += 1
      sizes.append(len(numbers))
    # Binomial(400, 1/2): stddev 10. Sizes vary, as those of cohorts must.
    self.assertTrue(np.all(np.abs(counts - 200) < 45), counts)
    self.assertGreater(len(set(sizes)), 4)
    numbers, _ = source.draw(second)
    self.assertLen(numbers, sizes[1])

  def test_features_do_not_depend_on_the_other_examples_of_a_step(self):
    source = self._source()

    def features(numbers):
      return {
          name: frames[:length]
          for batch in source.batches(numbers)
          for name, frames, length in zip(
              batch['utterance_id'].numpy(),
              batch['features'].numpy(),
              batch['feature_lengths'].numpy(),
          )
      }

    together = features(list(range(6)))
    self.assertLen(together, 6)
    for number in range(6):
      for name, alone in features([number]).items():
        np.testing.assert_array_equal(alone, together[name])

  def test_too_long_examples_add_nothing(self):
    # The fake utterances have .5 to 1.5 seconds.
    source = self._source(max_utterance_sec=1.0)
    found = self._names(source, list(range(6)))
    self.assertBetween(len(found), 1, 5)
