"""Tests of gin/: every file binds; the quickstart's experiments run, tiny."""

import asyncio
from collections.abc import Callable
import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from tests import cases
from tests import experiment_files
from tests import fakes
from tff_asr import config
from tff_asr import launch
from tff_asr.data import client_data
from tff_asr.execution import scheduler
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import schedules
from tff_asr.privacy import accounting
from tff_asr.programs import audit
from tff_asr.programs import central
from tff_asr.programs import federated
from tff_asr.programs import training_loop

_TINY_MODEL = ('NUM_BLOCKS = 1', 'DIM = 8')
_FEDERATED = 'gin/experiments/quickstart_federated.gin'
_FILES = experiment_files.every_file()
# Files that users include in an experiment.
_SWAPS = [
    path
    for path in _FILES
    if path.split('/')[1] not in ('experiments', 'programs')
    and '%gin.REQUIRED' not in experiment_files.read(path)
]
_PRIVACY = [path for path in _SWAPS if path.startswith('gin/privacy/')]
# An audit needs noise.
_AUDITED = set(_PRIVACY) - {'gin/privacy/none.gin'}


class FilesTest(parameterized.TestCase):

  @parameterized.parameters(*experiment_files.paths())
  def test_an_experiment_binds_with_what_its_header_asks_for(self, path):
    header, settings = experiment_files.read(path).split('from __gin__')
    self.assertStartsWith(header, '# ')
    self.assertLessEqual(len(re.findall('\n+', settings)), 25)
    _, left_open = experiment_files.bind_complete(path)
    for name in left_open:
      self.assertIn(name, header, 'The header must say what is left open.')

  @parameterized.parameters(*experiment_files.paths())
  def test_an_experiment_reads_at_most_twelve_files(self, path):
    self.assertLessEqual(len(experiment_files.included(path)), 12)

  def test_a_header_names_what_the_file_requires(self):
    for path in _FILES:
      header, settings = experiment_files.read(path).split('from __gin__')
      for name in re.findall(r'^(\w+) = %gin.REQUIRED', settings, re.MULTILINE):
        self.assertIn(name, header, path)

  @parameterized.parameters(*_SWAPS)
  def test_a_swap_binds_in_an_experiment(self, path):
    params = ['NOISE_MULTIPLIER = 1.0'] if path in _PRIVACY else []
    config.bind(
        federated.FederatedTraining,
        gin_files=[_FEDERATED, path],
        gin_params=params,
    )

  @parameterized.parameters(*sorted(_AUDITED))
  def test_any_privacy_can_be_audited(self, path):
    config.bind(
        audit.audit,
        gin_files=[_FEDERATED, path, 'gin/programs/audit.gin'],
        gin_params=['NOISE_MULTIPLIER = 1.0'],
    )

  @parameterized.parameters(
      *(path for path in _SWAPS if path.startswith('gin/optimizers/'))
  )
  def test_any_optimizer_trains_centrally_and_at_the_server(self, path):
    for experiment, settings in (
        ('quickstart_seed', ['LEARNING_RATE = 0.25', 'WARMUP_STEPS = 0']),
        ('quickstart_federated', ['SERVER_LEARNING_RATE = 0.25']),
    ):
      optimizer = config.bind(
          schedules.scheduled,
          gin_files=[f'gin/experiments/{experiment}.gin', path],
          gin_params=settings,
      )()
      state = optimizer.initialize(tf.TensorSpec([2]))
      self.assertEqual(float(state['optimizer']['learning_rate']), 0.25)
      weights = tf.constant([3.0, 4.0])
      _, new_weights = optimizer.next(state, weights, tf.constant([0.1, -0.2]))
      self.assertTrue(np.all((new_weights < weights) == [True, False]))

  @parameterized.product(
      experiment_and_unit=(
          ('quickstart_federated', 'ROUNDS', 'SERVER_'),
          ('quickstart_seed', 'STEPS', ''),
      ),
      name_and_rates=(
          # Decay starts at 40, and 20 rounds are one step of it.
          ('constant', 0.01, 0.01, 0.01),
          ('exponential', 0.01, 0.01, 0.006),
          ('step', 0.01, 0.006, 0.0036),
      ),
  )
  def test_any_schedule_swaps_in(self, experiment_and_unit, name_and_rates):
    experiment, unit, prefix = experiment_and_unit
    name, *expected = name_and_rates
    optimizer = config.bind(
        schedules.scheduled,
        gin_files=[
            f'gin/experiments/{experiment}.gin', f'gin/schedules/{name}.gin'
        ],
        gin_params=[
            f'{prefix}LEARNING_RATE = 0.01',
            'DECAY_START = 40',
            'DECAY_RATE = 0.6',
            f'DECAY_{unit} = 20',
            f'WARMUP_{unit} = 4',
        ],
    )()
    rates, state = [], optimizer.initialize(tf.TensorSpec([]))
    for _ in range(61):
      rates.append(float(state['optimizer']['learning_rate']))
      state, _ = optimizer.next(state, tf.constant(1.0), tf.constant(0.0))
    np.testing.assert_allclose(
        [rates[0], rates[39], rates[40], rates[60]],
        [0.0025, *expected],
        rtol=1e-5,
    )

  def test_documented_conformers_have_their_parameters(self):
    rows = re.findall(
        r'^\| `(conformer_\w+\.gin)` .* ([\d,]+) \|$',
        experiment_files.read('docs/pretraining.md'),
        re.MULTILINE,
    )
    self.assertLen(rows, 2)
    for name, count in rows:
      axes = ('data/pipeline.gin', 'execution/gpu.gin', f'models/{name}')
      # From the specs: no weight is allocated.
      model = config.bind(ctc.build, gin_files=[f'gin/{x}' for x in axes])()
      self.assertEqual(
          weights_lib.num_parameters(model.encoder.specs), int(
              count.replace(',', '')
          )
      )


# By mechanism: how cohorts are drawn, and settings for two rounds.
_CORRELATED = {
    'blt': ('min_sep', {}),
    'banded': ('cyclic', dict(NUM_BANDS=2, MIN_SEP=2)),
}


def _traced_once() -> Callable[..., Any]:
  """As `client_update.build`, which traces equal work on equal data once."""
  build, built = client_update.build, {}

  def build_once(*, local, pipeline, **arguments):
    # Of one module's tests: the pipeline's settings do not differ.
    optimizer = local.build_optimizer(local.learning_rate)
    key = str((
        dataclasses.replace(local, build_optimizer=type(optimizer)),
        sorted(vars(optimizer).items()),
        pipeline.read.__self__._folder,
        arguments['broadcast_type'],
        arguments['examples_type'],
        sorted(arguments['frozen']),
    ))
    if key not in built:
      built[key] = build(local=local, pipeline=pipeline, **arguments)
    return built[key]

  return build_once


class QuickstartTest(cases.TestCase):
  """The quickstart's experiments, tiny, one after the other."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    shards = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.shards = functools.partial(os.path.join, shards)
    fakes.write_split(cls.shards('public'), {'ann': 2, 'bob': 2})
    fakes.write_split(cls.shards('private'), {'cai': 2, 'dee': 1, 'eve': 1})
    fakes.write_split(cls.shards('dev'), {'fay': 2})
    cls.enterClassContext(
        mock.patch.object(client_update, 'build', _traced_once())
    )

  def bind(self, name: str, *swaps: str, **settings):
    path = f'gin/experiments/quickstart_{name}.gin'
    params = [f'{key} = {value}' for key, value in settings.items()]
    return config.bind(
        experiment_files.program(path),
        gin_files=[path, *swaps],
        gin_params=[*_TINY_MODEL, *params],
    )

  def train(self, name: str, *swaps: str, **settings) -> dict[str, Any]:
    """Trains into a folder of the experiment's name; the results."""
    program = self.bind(
        name, *swaps, DEV_DIR=repr(self.shards('dev')), **settings
    )
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
      asyncio.run(training_loop.run(
          program(output_dir=self.path(name), configuration=config.text())
      ))
    results = os.path.join(self.path(name), 'results.json')
    return json.loads(pathlib.Path(results).read_text())

  def train_two_rounds(
      self, name: str, *swaps: str, **settings
  ) -> dict[str, Any]:
    """The same from scratch with the private speakers; one a round.

    Without a dev set, and two layers train; all of them do in
    `test_seed_federated_dp_and_evaluation`.
    """
    defaults = dict(
        EVALUATOR=None,
        FROZEN=('front/.*', 'block_.*', 'norm/.*'),
        PRIVATE_DIR=repr(self.shards('private')),
        INIT_FROM_RUN=None,
        NUM_ROUNDS=2,
        COHORT_SIZE=1,
        NUM_LOCAL_STEPS=1,
        TARGET_EPSILON=None,
    )
    return self.train(name, *swaps, **(defaults | settings))

  def evaluate(self, test_dir: str, *runs: str) -> list[dict[str, Any]]:
    runs = [self.path(run) for run in runs]
    program = self.bind('evaluate', TEST_DIR=repr(test_dir), RUNS=repr(runs))
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
      return program()

  def test_seed_federated_dp_and_evaluation(self):
    results = self.train(
        'seed',
        TRAIN_DIR=repr(self.shards('public')),
        NUM_STEPS=2,
        EVALUATE_EVERY=1,
    )
    self.assertEqual(list(results['dev_word_error_rate']), ['1', '2'])
    with mock.patch.object(
        scheduler, 'group_clients', wraps=scheduler.group_clients
    ) as cut:
      results = self.train(
          'federated_dp',
          PRIVATE_DIR=repr(self.shards('private')),
          INIT_FROM_RUN=repr(self.path('seed')),
          BUILD_COHORTS='@cohorts.fixed_size',
          NUM_ROUNDS=2,
          COHORT_SIZE=3,
          NUM_LOCAL_STEPS=1,
          TARGET_EPSILON=None,
          EVALUATOR=None,  # It is evaluated below.
      )
    # Every round's clients cost their seconds of audio.
    data = client_data.load(self.shards('private'))
    durations = [data.duration_sec(name) for name in data.client_ids]
    self.assertLen(set(durations), 3)
    self.assertEqual(cut.call_count, 2)
    for call in cut.call_args_list:
      self.assertCountEqual(call.kwargs['costs'], durations)
    self.assertEqual(results['rounds'], 2)
    self.assertEqual(results['population'], 3)
    self.assertEqual(results['privacy']['neighbouring_relation'], 'replace_one')
    # Three speakers cannot have less than 10.
    self.assertIn('NOT PRIVATE', json.dumps(results['privacy']))
    seed, federated_dp = self.evaluate(
        self.shards('dev'), 'seed', 'federated_dp'
    )
    self.assertEqual(seed['num_utterances'], 2)
    self.assertNotEqual(seed['loss'], federated_dp['loss'])
    # The saved configuration is the whole of it: it binds on its own.
    saved = os.path.join(self.path('seed'), 'config.gin')
    config.bind(central.CentralTraining, gin_files=[saved])
    # Errors of the data come through gin as one line.
    with self.assertRaises(ValueError) as caught:
      self.evaluate('nowhere', 'seed')
    self.assertEqual(
        launch.error_lines(caught.exception)[0].count(
            'nowhere is not a folder'
        ), 1
    )

  @pytest.mark.slow
  def test_a_model_trained_within_a_subspace_is_evaluated_as_its_seed_is(self):
    self.train(
        'seed',
        TRAIN_DIR=repr(self.shards('public')),
        NUM_STEPS=2,
        EVALUATOR=None,
        DROPOUT=0.1,
    )
    results = self.train(
        'federated_dp',
        'gin/models/subspace.gin',
        PRIVATE_DIR=repr(self.shards('private')),
        INIT_FROM_RUN=repr(self.path('seed')),
        NUM_ROUNDS=1,
        COHORT_SIZE=3,
        TARGET_EPSILON=None,
        SUBSPACE_RANK=5,
        DROPOUT=0.0,
    )
    self.assertEqual(results['subspace'], {
        'kernels': ['block_00/kernel', 'front/kernel', 'head/kernel'],
        'rank': 5,
    })
    # float32: 5 coordinates for each of 16, 16 and 30 outputs; 30 and 2 x 16
    # biases, 2 norms of 8 values, scale and bias of the inputs.
    self.assertEqual(
        results['bytes_per_client_and_round']['upload_bytes'],
        4 * (5 * (16 + 16 + 30) + 30 + 2 * 16 + 2 * 2 * 8 + 2),
    )
    seed, found = self.evaluate(self.shards('dev'), 'seed', 'federated_dp')
    self.assertNotEqual(seed['loss'], found['loss'])
    self.assertAlmostEqual(
        found['loss'], results['dev_loss']['1'], places=4
    )

  def test_clients_without_transcripts_train_with_noise(self):
    self.train(
        'seed',
        TRAIN_DIR=repr(self.shards('public')),
        NUM_STEPS=2,
        EVALUATOR=None,
        DROPOUT=0.05,
    )
    speakers = {'cai': 2, 'dee': 1, 'eve': 1}
    fakes.write_split(self.path('unknown'), speakers, transcript='Grüße!')
    fakes.write_examples(
        self.path('none'),
        [
            example | {'transcript': None}
            for client_id, count in speakers.items()
            for example in fakes.examples(client_id, count)
        ],
    )
    settings = dict(
        INIT_FROM_RUN=repr(self.path('seed')),
        NUM_ROUNDS=2,
        COHORT_SIZE=3,
        BUILD_COHORTS='@cohorts.fixed_size',
        SUBSPACE_RANK=5,
        TARGET_EPSILON=None,
    )
    seeds = dict(NOISE_SEED=1, SAMPLER_SEED=1)

    def train(shards, **changes):
      self.train(
          'federated_pseudo',
          PRIVATE_DIR=repr(shards),
          **settings | dict(MIN_CONFIDENCE=0.0) | changes,
      )
      run = pathlib.Path(self.path('federated_pseudo'))
      names, first, *_ = (run / 'metrics.csv').read_text().splitlines()
      shutil.rmtree(run)
      return {
          name: value
          for name, value in zip(names.split(','), first.split(','))
          if name.startswith('not_private/') and name != 'not_private/seconds'
      }

    row = train(self.shards('private'), **seeds)
    # All that the model says anything about are trained on.
    self.assertEqual(
        (row['not_private/num_utterances'], row['not_private/num_left_out']),
        ('4.0', '0.0'),
    )
    # Losses and norms before the noise, which follows the corpus.
    self.assertIn('not_private/signal_norm', row)
    self.assertEqual(train(self.path('unknown'), **seeds), row)
    # How many are left out is private, and not shown with secret keys.
    self.assertEmpty(train(self.path('none')))
    with self.assertRaisesRegex(ValueError, 'characters that are not tokens'):
      train(self.path('unknown'), PSEUDO_LABELS=False)
    with self.assertRaisesRegex(ValueError, 'compares with transcripts'):
      self.train(
          'federated_pseudo',
          'gin/programs/private_evaluation_rounds.gin',
          PRIVATE_DIR=repr(self.path('none')),
          PRIVATE_EVALUATE_EVERY=1,
          EVALUATION_NOISE_MULTIPLIER=1.0,
          **settings,
      )

  def test_a_subspace_is_what_clients_train(self):
    with mock.patch.object(
        client_update, 'build', side_effect=InterruptedError
    ) as build_work, self.assertRaises(InterruptedError):
      config.bind(
          fed_avg.build,
          gin_files=[_FEDERATED, 'gin/models/subspace.gin'],
          gin_params=[
              *_TINY_MODEL,
              f'PRIVATE_DIR = {self.shards("private")!r}',
              'SUBSPACE_RANK = 7',
              "SUBSPACE_KERNELS = 'block_.*/kernel$'",
              "FROZEN = ('front/.*',)",
          ],
      )()
    given = build_work.call_args.kwargs
    self.assertEqual(given['model'].kernels, ('block_00/kernel',))
    self.assertEqual(given['model'].rank, 7)
    self.assertEqual(given['frozen'], [
        'block_00/kernel/basis', 'block_00/kernel/rest', 'front/bias',
        'front/input_bias', 'front/input_scale', 'front/kernel',
    ])

  def test_a_test_runs_each_mechanism_that_is_compared(self):
    self.assertEqual(
        {
            name
            for path in experiment_files.paths()
            if (name := experiment_files.name(path)).startswith(
                'quickstart_federated_'
            )
        },
        {
            f'quickstart_federated_{name}'
            # A subspace changes what is noised, pseudo-labels what is learned,
            # not the mechanism.
            for name in (
                'dp', 'subspace', 'pseudo', 'distributed', *_CORRELATED
            )
        },
    )

  @parameterized.parameters(*_CORRELATED)
  def test_correlated_noise(self, name):
    kind, settings = _CORRELATED[name]
    results = self.train_two_rounds(f'federated_{name}', **settings)
    self.assertEqual(results['rounds'], 2)
    kinds = {group['kind'] for group in results['privacy']['groups']}
    self.assertEqual(kinds, {kind})

  def test_clips_adapt_with_blt_noise(self):
    self.adapt_clips('blt')

  @pytest.mark.slow
  def test_clips_adapt_with_banded_noise(self):
    self.adapt_clips('banded')

  def adapt_clips(self, name):
    kind, settings = _CORRELATED[name]
    results = self.train_two_rounds(
        'federated_dp',
        f'gin/privacy/adaptive_{name}.gin',
        NOISE_MULTIPLIER=1.7,
        **settings,
    )
    privacy = results['privacy']
    (group,) = privacy['groups']
    self.assertEqual((results['rounds'], group['kind']), (2, kind))
    self.assertGreater(privacy['adaptive_layers'], 1)

  def test_adaptive_clips_alone_do_not_take_correlated_noise(self):
    # The later file says that noise is independent, the cohorts are of BLT.
    with self.assertRaisesRegex(ValueError, 'gin/privacy/adaptive_blt.gin'):
      self.train_two_rounds(
          'federated_blt', 'gin/privacy/adaptive.gin', NOISE_MULTIPLIER=1.7
      )

  def test_devices_add_the_noise(self):
    results = self.train_two_rounds('federated_distributed', COHORT_SIZE=3)
    privacy = results['privacy']
    (group,) = privacy['groups']
    self.assertEqual(group['kind'], 'min_sep')
    self.assertEqual(
        group['secure_sum'],
        {'bits': 16, 'num_clients': 3, 'min_clients': 3},
    )
    # In both rounds: as one Gaussian of 1.3 / sqrt(2).
    self.assertAlmostEqual(group['sensitivity'], 2**0.5)
    expected = accounting.epsilon([accounting.RoundGroup(
        sampling=accounting.Sampling(kind='full', cohort_size=1, population=1),
        noise_multiplier=1.3 / 2**0.5,
    )], delta=1e-5)
    self.assertAlmostEqual(privacy['epsilon_rdp'], expected, places=5)
    stated = pathlib.Path(
        self.path('federated_distributed'), 'privacy_report.txt'
    ).read_text()
    for words in ('distributed differential privacy', 'SIMULATED', '16 bits'):
      self.assertIn(words, ' '.join(stated.split()))

  def test_devices_noise_needs_cohorts_of_one_size(self):
    with self.assertRaisesRegex(ValueError, 'does not go with poisson'):
      self.train_two_rounds(
          'federated_distributed',
          COHORT_SIZE=3,
          BUILD_COHORTS='@cohorts.poisson',
      )

  @parameterized.parameters(
      # The server's momentum is not the clients'.
      (['gin/optimizers/sgd.gin'], {'SGD_MOMENTUM': 0.9}, {}),
      (
          ['gin/client_optimizers/lamb.gin'],
          {'CLIENT_LAMB_EPSILON': 1e-3},
          {'beta_1': 0.9, 'epsilon': 1e-3},
      ),
      (
          ['gin/client_optimizers/lamb.gin', 'gin/optimizers/lamb.gin'],
          {'LAMB_BETA_1': 0.5, 'CLIENT_LAMB_BETA_1': 0.7},
          {'beta_1': 0.7},
      ),
      (
          ['gin/client_optimizers/lars.gin', 'gin/optimizers/lars.gin'],
          {'LARS_MOMENTUM': 0.5, 'CLIENT_LARS_MOMENTUM': 0.7},
          {'momentum': 0.7, 'trust_coefficient': 1e-3},
      ),
  )
  def test_any_optimizer_steps_at_the_clients(self, files, settings, expected):
    build = config.bind(
        fed_avg.build,
        gin_files=[_FEDERATED, *files],
        gin_params=[
            *_TINY_MODEL,
            f'PRIVATE_DIR = {self.shards("private")!r}',
            *(f'{name} = {value}' for name, value in settings.items()),
        ],
    )
    with mock.patch.object(
        client_update, 'build', side_effect=InterruptedError
    ) as build_work, self.assertRaises(InterruptedError):
      build()
    local = build_work.call_args.kwargs['local']
    optimizer = local.build_optimizer(local.learning_rate)
    hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([2])))
    expected = {'learning_rate': 0.2, **expected}
    self.assertEqual(hparams | expected, hparams)
    self.assertEqual('momentum' in hparams, 'momentum' in expected)
