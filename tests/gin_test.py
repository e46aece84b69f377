"""Tests of gin/: every experiment parses and binds; some run on tiny shards."""

import asyncio
import contextlib
import functools
import io
import json
import os
import re
import tempfile
from typing import Any
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests import experiment_files
from tests import fakes
from tff_asr import config
from tff_asr import launch
from tff_asr.data import client_data
from tff_asr.execution import schedule
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.optimizers import schedules
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.programs import audit
from tff_asr.programs import central
from tff_asr.programs import federated

_TINY_MODEL = (
    'NUM_BLOCKS = 1',
    'DIM = 8',
    'MLP_DIM = 16',
    'NUM_HEADS = 2',
)


def _files(axis: str) -> list[str]:
  """The files of an axis that stand for themselves."""
  return [
      str(path.relative_to(experiment_files.ROOT))
      for path in sorted((experiment_files.ROOT / 'gin' / axis).glob('*.gin'))
      if '%gin.REQUIRED' not in path.read_text(encoding='utf-8')
  ]


class ExperimentsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in experiment_files.paths()
  )
  def test_binds_with_what_its_header_asks_for(self, path):
    _, left_open = experiment_files.bind_complete(path)
    for name in left_open:
      self.assertIn(
          name, experiment_files.read(path), 'It must say what it leaves open.'
      )

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in experiment_files.paths()
  )
  def test_begins_with_what_it_is(self, path):
    lines = experiment_files.read(path).splitlines()
    self.assertTrue(lines[0].startswith('# '))
    settings = [line for line in lines if line and not line.startswith('#')]
    self.assertEqual(settings[0], 'from __gin__ import dynamic_registration')
    self.assertLessEqual(len(settings), 25)

  def test_every_file_is_used_by_an_experiment_or_named_as_a_choice(self):
    used = set()
    for path in experiment_files.paths():
      used |= experiment_files.included(path)
    others = {
        str(path.relative_to(experiment_files.ROOT))
        for path in (experiment_files.ROOT / 'gin').rglob('*.gin')
    } - used
    self.assertContainsSubset(
        others,
        {
            'gin/client_optimizers/lamb.gin',
            'gin/client_optimizers/lars.gin',
            'gin/execution/native.gin',
            'gin/execution/ray.gin',
            'gin/models/conformer_300m.gin',
            'gin/models/conv.gin',
            'gin/models/transformer_1m.gin',
            'gin/optimizers/adagrad.gin',
            'gin/optimizers/adamw.gin',
            'gin/optimizers/sgd.gin',
            'gin/optimizers/yogi.gin',
            'gin/privacy/adaptive.gin',
            'gin/privacy/dp_ftrl.gin',
            'gin/privacy/partial_noise.gin',
            'gin/privacy/per_layer_rescaled.gin',
            'gin/privacy/per_layer_weighted.gin',
            'gin/privacy/per_module_dim.gin',
            'gin/programs/audit.gin',
            'gin/programs/recognize.gin',
            'gin/schedules/constant.gin',
            'gin/schedules/step.gin',
        },
    )

  @parameterized.parameters(*_files('optimizers'))
  def test_any_optimizer_trains_centrally_and_at_the_server(self, path):
    for experiment, settings in (
        ('quickstart_seed', {'LEARNING_RATE': 0.25, 'WARMUP_STEPS': 0}),
        ('quickstart_federated', {'SERVER_LEARNING_RATE': 0.25}),
    ):
      optimizer = config.bind(
          schedules.scheduled,
          gin_files=[f'gin/experiments/{experiment}.gin', path],
          gin_params=[f'{name} = {value}' for name, value in settings.items()],
      )()
      state = optimizer.initialize(tf.TensorSpec([2]))
      self.assertEqual(float(state['optimizer']['learning_rate']), 0.25)
      weights = tf.constant([3.0, 4.0])
      _, new_weights = optimizer.next(state, weights, tf.constant([0.1, -0.2]))
      self.assertTrue(np.all((new_weights < weights) == [True, False]))

  @parameterized.parameters(
      # 40 is where the experiment's decay starts, 20 rounds halve .6 times.
      ('constant', 0.01, 0.01, 0.01),
      ('exponential', 0.01, 0.01, 0.006),
      ('step', 0.01, 0.006, 0.0036),
  )
  def test_any_schedule_swaps_in(self, name, *expected):
    optimizer = config.bind(
        schedules.scheduled,
        gin_files=[
            'gin/experiments/quickstart_federated.gin',
            f'gin/schedules/{name}.gin',
        ],
        gin_params=['WARMUP_ROUNDS = 4'],
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

  @parameterized.parameters(
      *_files('models'),
      'gin/execution/gpu.gin',
      'gin/execution/native.gin',
      'gin/execution/ray.gin',
  )
  def test_other_choices_swap_in(self, path):
    config.bind(
        federated.train,
        gin_files=['gin/experiments/quickstart_federated.gin', path],
    )

  @parameterized.parameters(
      'gin/privacy/global.gin',
      'gin/privacy/per_layer_uniform.gin',
      'gin/privacy/per_layer_rescaled.gin',
      'gin/privacy/per_layer_weighted.gin',
      'gin/privacy/per_module_dim.gin',
      'gin/privacy/adaptive.gin',
      'gin/privacy/dp_ftrl.gin',
      'gin/privacy/partial_noise.gin',
  )
  def test_any_privacy_can_be_audited(self, path):
    params = ['NOISE_MULTIPLIER = 1.0']
    if path == 'gin/privacy/partial_noise.gin':
      params.append("NOISED_LAYERS = ('head',)")
    config.bind(
        audit.audit,
        gin_files=[
            'gin/experiments/quickstart_federated.gin',
            path,
            'gin/programs/audit.gin',
            'gin/programs/recognize.gin',
        ],
        gin_params=params,
    )

  def test_documented_conformers_have_their_parameters(self):
    # From the specs: no weight is allocated.
    rows = re.findall(
        r'^\| `(conformer_\w+\.gin)` .* ([\d,]+) \|$',
        experiment_files.read('docs/pretraining.md'),
        re.MULTILINE,
    )
    self.assertLen(rows, 2)
    for name, count in rows:
      files = [
          'gin/data/pipeline.gin',
          'gin/execution/cpu.gin',
          f'gin/models/{name}',
      ]
      model = config.bind(ctc.build, gin_files=files)()
      self.assertEqual(
          weights_lib.count(model.encoder.specs), int(count.replace(',', ''))
      )

  def test_an_axis_names_what_it_requires(self):
    for path in sorted((experiment_files.ROOT / 'gin').rglob('*.gin')):
      text = path.read_text(encoding='utf-8')
      required = re.findall(r'^(\w+) = %gin.REQUIRED', text, re.MULTILINE)
      if not required:
        continue
      header = text.split('from __gin__')[0]
      for name in required:
        self.assertIn(name, header, path)


class QuickstartTest(parameterized.TestCase):
  """The quickstart's experiments, tiny, one after the other."""

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())
    self.shards = functools.partial(os.path.join, self.root, 'shards')
    fakes.write_split(self.shards('public'), {'ann': 2, 'bob': 2})
    fakes.write_split(self.shards('private'), {'cai': 2, 'dee': 1, 'eve': 1})
    fakes.write_split(self.shards('dev'), {'fay': 2})

  def path(self, run: str) -> str:
    return os.path.join(self.root, run)

  def bind(self, experiment: str, *gin_params: str):
    path = f'gin/experiments/quickstart_{experiment}.gin'
    return config.bind(
        experiment_files.program(path),
        gin_files=[path],
        gin_params=[*_TINY_MODEL, *gin_params],
    )

  def train(self, experiment: str, *gin_params: str) -> dict[str, Any]:
    program = self.bind(
        experiment, f'DEV_DIR = {self.shards("dev")!r}', *gin_params
    )
    with contextlib.redirect_stdout(io.StringIO()):
      with contextlib.redirect_stderr(io.StringIO()):
        asyncio.run(
            program(
                output_dir=self.path(experiment), configuration=config.text()
            )
        )
    with open(
        os.path.join(self.path(experiment), 'results.json'), encoding='utf-8'
    ) as f:
      return json.load(f)

  def train_seed(self) -> None:
    results = self.train(
        'seed',
        f'TRAIN_DIR = {self.shards("public")!r}',
        'NUM_STEPS = 2',
        'EVALUATE_EVERY = 1',
    )
    self.assertEqual(list(results['dev_word_error_rate']), ['1', '2'])

  def train_federated(self, experiment: str, *gin_params: str):
    return self.train(
        experiment,
        f'PRIVATE_DIR = {self.shards("private")!r}',
        f'INIT_FROM_RUN = {self.path("seed")!r}',
        'NUM_ROUNDS = 2',
        'COHORT_SIZE = 2',
        'NUM_LOCAL_STEPS = 1',
        *gin_params,
    )

  def check_costs(self, build_blocks: mock.Mock) -> None:
    """Every round's clients cost their seconds of audio."""
    data = client_data.load(self.shards('private'))
    durations = [data.duration_sec(name) for name in data.client_ids]
    self.assertLen(set(durations), 3)
    self.assertEqual(build_blocks.call_count, 2)
    for call in build_blocks.call_args_list:
      self.assertCountEqual(call.kwargs['costs'], durations)

  def evaluate(self, *runs: str) -> list[dict[str, Any]]:
    program = self.bind(
        'evaluate',
        f'TEST_DIR = {self.shards("dev")!r}',
        f'RUNS = {[self.path(run) for run in runs]!r}',
    )
    with contextlib.redirect_stdout(io.StringIO()):
      with contextlib.redirect_stderr(io.StringIO()):
        return program()

  def test_seed_federated_dp_and_evaluation(self):
    self.train_seed()
    with mock.patch.object(
        schedule, 'build_blocks', wraps=schedule.build_blocks
    ) as build_blocks:
      results = self.train_federated(
          'federated_dp', 'BUILD_COHORTS = @cohorts.fixed_size',
          'COHORT_SIZE = 3',
      )
    self.check_costs(build_blocks)
    self.assertEqual(results['rounds'], 2)
    self.assertEqual(results['population'], 3)
    # Noise .0024 on the sum costs far more than 10.
    self.assertIn('NOT PRIVATE', json.dumps(results['privacy']))
    seed, federated_dp = self.evaluate('seed', 'federated_dp')
    self.assertEqual(seed['num_utterances'], 2)
    self.assertNotEqual(seed['loss'], federated_dp['loss'])
    saved = os.path.join(self.path('seed'), 'config.gin')
    # The saved configuration is the whole of it: it binds on its own.
    config.bind(central.train, gin_files=[saved])
    # Errors of the data come through gin as one line.
    with self.assertRaises(ValueError) as caught:
      self.bind('evaluate', "TEST_DIR = 'nowhere'", "RUNS = ['x']")()
    self.assertTrue(launch._is_users(caught.exception))
    self.assertEqual(
        launch.one_line(caught.exception).count('nowhere is not a folder'), 1
    )
    self.assertNotIn('configurable', launch.one_line(caught.exception))

  def test_any_optimizer_steps_at_the_clients(self):
    base = 'gin/experiments/quickstart_federated.gin'
    for files, expected in (
        # The server's momentum is not the clients'.
        ([base, 'gin/optimizers/sgd.gin'], {'learning_rate': 0.2}),
        (
            [base, 'gin/client_optimizers/lamb.gin'],
            {'learning_rate': 0.2, 'beta_1': 0.9, 'epsilon': 1e-3},
        ),
        (
            [base, 'gin/client_optimizers/lars.gin', 'gin/optimizers/lars.gin'],
            {'learning_rate': 0.2, 'momentum': 0.7, 'trust_coefficient': 1e-3},
        ),
    ):
      known = {
          'SGD_MOMENTUM': 0.9, 'CLIENT_LAMB_EPSILON': 1e-3,
          'LARS_MOMENTUM': 0.5, 'CLIENT_LARS_MOMENTUM': 0.7,
      }
      text = ''.join(map(experiment_files.read, files))
      build = config.bind(
          fed_avg.build,
          gin_files=files,
          gin_params=[
              *_TINY_MODEL,
              f'PRIVATE_DIR = {self.shards("private")!r}',
              *(f'{k} = {v}' for k, v in known.items() if f'\n{k} =' in text),
          ],
      )
      with mock.patch.object(
          client_update, 'build', side_effect=InterruptedError
      ) as build_work, self.assertRaises(InterruptedError):
        build()
      optimizer = build_work.call_args.kwargs['optimizer']
      hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([2])))
      self.assertEqual(hparams | expected, hparams)
      self.assertEqual('momentum' in hparams, 'momentum' in expected)

  @pytest.mark.slow
  def test_dp_ftrl_over_two_passes(self):
    # 3 clients, 1 a round: trees of 3 rounds; noise enough for a low epsilon.
    path = 'gin/experiments/quickstart_federated.gin'
    program = config.bind(
        federated.train,
        gin_files=[path, 'gin/privacy/dp_ftrl.gin'],
        gin_params=[
            *_TINY_MODEL,
            f'PRIVATE_DIR = {self.shards("private")!r}',
            f'DEV_DIR = {self.shards("dev")!r}',
            'INIT_FROM_RUN = None',
            'NUM_ROUNDS = 5',
            'COHORT_SIZE = 1',
            'NUM_LOCAL_STEPS = 1',
            'NOISE_MULTIPLIER = 20.0',
            'DELTA = 1e-5',
            'SAVE_EVERY = 2',
        ],
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      with contextlib.redirect_stderr(io.StringIO()):
        results = asyncio.run(
            program(output_dir=self.path('ftrl'), configuration=config.text())
        )
    tree = dp_accounting.SingleEpochTreeAggregationDpEvent
    event = dp_accounting.ComposedDpEvent([tree(20.0, 3), tree(20.0, 2)])
    self.assertAlmostEqual(
        results['privacy']['epsilon_rdp'],
        accounting.epsilon(event, delta=1e-5),
    )
    self.assertEqual(results['privacy']['neighbouring'], 'replace_special')
    self.assertIn('no assumption', printed.getvalue())

  @pytest.mark.slow
  def test_bad_data_settings_are_one_line(self):
    foreign = {f'zoe{number}': 1 for number in range(6)}
    fakes.write_split(self.shards('foreign'), foreign, transcript='naïve')
    for setting, message in (
        (
            f'PRIVATE_DIR = {self.shards("nothing")!r}',
            'nothing is not a folder',
        ),
        ('COHORT_SIZE = 4', 'cohort_size'),
        (f'PRIVATE_DIR = {self.shards("foreign")!r}', "not tokens: 'ï'"),
    ):
      program = self.bind(
          'federated',
          f'DEV_DIR = {self.shards("dev")!r}',
          f'PRIVATE_DIR = {self.shards("private")!r}',
          'INIT_FROM_RUN = None',
          setting,
      )
      with self.assertRaises(ValueError) as caught:
        asyncio.run(program(output_dir=self.path('x'), configuration=''))
      self.assertTrue(launch._is_users(caught.exception))
      self.assertIn(message, ' '.join(launch.lines(caught.exception)))
      self.assertFalse(os.path.exists(self.path('x')))


if __name__ == '__main__':
  absltest.main()
