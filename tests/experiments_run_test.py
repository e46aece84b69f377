"""Every experiment at toy size: two rounds (or steps) on fake speech.

Slow, as each is traced separately. The default suite has six of the
quickstart's, in `gin_test`.
"""

import asyncio
from collections.abc import Sequence
import contextlib
import csv
import os
import re
import shutil
import tempfile
from typing import Any
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest

from tests import experiment_files
from tests import fakes
from tff_asr import config
from tff_asr.pretrained import features
from tff_asr.programs import central
from tff_asr.programs import evaluation
from tff_asr.programs import federated
from tff_asr.programs import pretraining
from tff_asr.programs import training_loop
from tff_asr.storage import model_file
from tff_asr.storage import run_dir
from tools.pretrained_parity import random_folders

_MODEL = ('NUM_BLOCKS = 1', 'DIM = 8')
_TRANSFORMER = ('MLP_DIM = 16', 'NUM_HEADS = 2')
_TINY = {
    central.CentralTraining: (
        *_MODEL,
        "TRAIN_DIR = 'public'",
        "DEV_DIR = 'dev'",
        'NUM_STEPS = 2',
        'NUM_LOADERS = 2',  # There are few utterances.
        'EVALUATE_EVERY = 1',
    ),
    evaluation.evaluate: (*_MODEL, "TEST_DIR = 'dev'"),
    federated.FederatedTraining: (
        *_MODEL,
        "PRIVATE_DIR = 'private'",
        "DEV_DIR = 'dev'",
        'NUM_ROUNDS = 2',
        'COHORT_SIZE = 2',
        'NUM_LOCAL_STEPS = 1',
        'TARGET_EPSILON = None',
        'EVALUATE_EVERY = 2',
    ),
    pretraining.Pretraining: (
        *_MODEL,
        "TRAIN_DIR = 'public'",
        "DEV_DIR = 'dev'",
        'NUM_STEPS = 2',
        'BATCH_SIZE = 2',
        'EVALUATE_EVERY = 2',
    ),
}
_PUBLIC_HEAD = (
    'NUM_BLOCKS = 1',
    'DIM = 8',
    "PRETRAINED = 'public_model'",
    'MAX_UTTERANCE_SEC = 2.0',
)
_MASKED = (
    'NUM_CODES = 16',
    'MASK_PROB = 0.1',  # Fake utterances are short.
)
_SPEAKERS = {
    # Same as PRIVATE_DIR: a folder that both read has no speaker of the seed.
    'TRAIN_DIR': {'cai': 2, 'dee': 1, 'eve': 1},
    'PRIVATE_DIR': {'cai': 2, 'dee': 1, 'eve': 1},
    'DEV_DIR': {'fay': 2},
    'TEST_DIR': {'fay': 2},
}
_LEFT_OPEN = ('NOISE_MULTIPLIER = 0.01', 'L2_NORM_CLIP = 0.1')


def _run(
    path: str, output_dir: str, *further: str, files: Sequence[str] = ()
) -> Any:
  """Runs the program with further parameters and files."""
  program = experiment_files.program(path)
  _, left_open = experiment_files.bind_complete(path)
  gin_params = [
      *_TINY[program],
      *(param for param in _LEFT_OPEN if param.split(' =')[0] in left_open),
  ]
  configuration = config.text()
  if experiment_files.pretrains(path):
    gin_params.extend(_MASKED)
  # A seed model has the tokens of its language, a pre-trained one has none; to
  # fine-tune, its encoder is enough.
  seed = 'seed' if "LANGUAGE = 'en'" in configuration else 'seed_fr'
  if 'PRETRAINED = ' in configuration and experiment_files.pretrains(path):
    gin_params = [each for each in gin_params if each not in _MODEL]
    gin_params.append("PRETRAINED = 'public_waveforms'")
    random_folders.write('public_waveforms', random_folders.TINY_20_MS)
  elif 'PRETRAINED = ' in configuration:
    # The front end computes features of the audio.
    seed = 'seed_public_head'
    gin_params = [each for each in gin_params if each not in _MODEL]
    gin_params.extend(_PUBLIC_HEAD)
    if output_dir != seed:
      _write_public_head(seed)
  elif 'MLP_DIM = ' in configuration:
    gin_params.extend(_TRANSFORMER)
  else:
    seed = 'seed_conv'
  is_conformer = 'FRONT_CHANNELS' in configuration
  if is_conformer:
    seed = 'conformer' if program is evaluation.evaluate else 'pretrained'
    gin_params.append('FRONT_CHANNELS = 2')
  if experiment_files.name(path).startswith(('ls_', 'cv_')):
    # From the folders that the file names.
    gin_params = [each for each in gin_params if '_DIR = ' not in each]
    gin_params += [
        each for each in ("PRIVATE_DIR = 'private'", "TRAIN_DIR = 'public'")
        if re.search(rf"^{each.split(' = ')[0]} = %[A-Z]", configuration, re.M)
    ]
    _lay_out(configuration, seed)
    seed = (re.findall("^INIT_FROM_RUN = '(.+)'$", configuration, re.M) or [
        seed
    ])[0]
  if 'cyclic' in configuration:
    # Three clients make no more cohorts than these.
    gin_params += ['COHORT_SIZE = 1', 'NUM_BANDS = 2']
  if path.endswith('_private.gin'):  # Warm-started from a model of `public`.
    gin_params.append("TRAIN_DIR = 'private'")
  if "SCORES_RUN = '" in configuration:
    gin_params.append("SCORES_RUN = 'pretrained'")
  if re.search("INIT_FROM_RUN = ['%]", configuration):
    gin_params.append(f'INIT_FROM_RUN = {seed!r}')
  if program is evaluation.evaluate:
    gin_params.append(f'RUNS = {[seed]!r}')
  gin_params.extend(further)
  bound = config.bind(
      program, gin_files=[path, *files], gin_params=gin_params
  )
  # A file: the native worker is given it, too.
  with (
      open(os.devnull, 'w', encoding='utf-8') as silent,
      contextlib.redirect_stdout(silent),
      contextlib.redirect_stderr(silent),
  ):
    if program is evaluation.evaluate:
      return bound()
    return asyncio.run(training_loop.run(
        bound(output_dir=output_dir, configuration=config.text())
    ))


def _write_public_head(seed: str) -> None:
  """A public model for utterances of 2 s, and a run of a head on it."""
  if not os.path.isdir('public_model'):
    random_folders.write(
        'public_model',
        random_folders.TINY['whisper'] | dict(max_source_positions=100),
    )
    _run('gin/experiments/an4_whisper_seed.gin', seed)


def _lay_out(configuration: str, seed: str) -> None:
  """Shards and the seed model where a configuration looks for them."""
  for name, speakers in _SPEAKERS.items():
    for folder in re.findall(rf"^{name} = '(.+)'$", configuration, re.M):
      if not os.path.isdir(folder):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        fakes.write_split(folder, speakers)
  for run in re.findall("^INIT_FROM_RUN = '(.+)'$", configuration, re.M):
    shutil.copytree(seed, run, dirs_exist_ok=True)


def setUpModule():
  """Shards and a seed model, in a folder that the tests run in."""
  setUpModule.before = os.getcwd()
  setUpModule.root = tempfile.mkdtemp()
  os.chdir(setUpModule.root)
  setUpModule.cache = mock.patch.dict(
      os.environ, {features.CACHE_VARIABLE: os.path.abspath('cache')}
  )
  setUpModule.cache.start()
  fakes.write_split('public', {'ann': 2, 'bob': 2})
  fakes.write_split('private', {'cai': 2, 'dee': 1, 'eve': 1})
  fakes.write_split('dev', {'fay': 2})
  _run('gin/experiments/quickstart_seed.gin', 'seed_conv')
  path = 'gin/experiments/an4_seed.gin'
  transformer = {'files': ('gin/models/transformer_toy.gin',)}
  _run(path, 'seed', *_TRANSFORMER, **transformer)
  _run(path, 'seed_fr', *_TRANSFORMER, "LANGUAGE = 'fr'", **transformer)
  _run('gin/experiments/pretrain_mini_public.gin', 'pretrained')
  _run('gin/experiments/finetune_mini_an4.gin', 'conformer')


def tearDownModule():
  setUpModule.cache.stop()
  os.chdir(setUpModule.before)
  shutil.rmtree(setUpModule.root)


@pytest.mark.slow
class ExperimentsRunTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (experiment_files.name(path), path) for path in experiment_files.paths()
  )
  def test_two_rounds(self, path):
    run = experiment_files.name(path)
    results = _run(path, run)
    if experiment_files.program(path) is evaluation.evaluate:
      (found,) = results
      self.assertEqual(found['num_utterances'], 2)
      self.assertGreater(found['loss'], 0)
      return
    with open(
        os.path.join(run, 'metrics.csv'), encoding='utf-8', newline=''
    ) as f:
      rows = list(csv.DictReader(f))
    self.assertEqual([row['round'] for row in rows], ['1', '2'])
    if 'dev_word_error_rate' not in results:
      self.assertTrue(experiment_files.pretrains(path))
      self.assertEqual(list(results['dev_loss']), [2])
      return
    self.assertGreater(float(rows[1]['dev_loss']), 0)
    self.assertEqual(list(results['dev_word_error_rate'])[-1], 2)

  @parameterized.named_parameters(
      (
          'as_published', 'cv_en_dp_from_ls', [],
          ['gin/experiments/as_published.gin'],
      ),
      (
          'as_published_global', 'cv_en_dp_from_ls',
          ["CLIP_SPLIT = 'global'", 'NOISE_MULTIPLIER = 0.0'],
          ['gin/experiments/as_published.gin'],
      ),
      (
          'as_published_passes', 'cv_federated', [],
          ['gin/experiments/as_published.gin'],
      ),
      (
          'published_numerics', 'ls_central_100', [],
          ['gin/experiments/published_numerics.gin'],
      ),
      (
          'no_noise', 'cv_en_dp_from_ls',
          [
              "CLIP_SPLIT = 'uniform'", 'NOISE_MULTIPLIER = 0.0',
              'L2_NORM_CLIP = 0.001',
          ],
          [],
      ),
      (
          'noise_on_some_layers', 'cv_en_dp_from_ls',
          ["NOISE_FACTORS = {'/ln[12]/': 1, '': 0}"], [],
      ),
      (
          'heavier_layers', 'cv_en_dp_from_ls',
          [
              "CLIP_WEIGHTS = {'/w[12]$': 3.16227766}",
              'NOISE_MULTIPLIER = 0.003072',
          ],
          ['gin/privacy/per_layer_weighted.gin'],
      ),
      ('fed_prox', 'ls_federated_960', ['PROXIMAL_WEIGHT = 0.1'], []),
      (
          'post_norm', 'ls_federated_100',
          ["NORM = 'post'", 'WARMUP_ROUNDS = 1000', 'COHORT_SIZE = 1'], [],
      ),
      ('no_spec_augment', 'cv_federated', ['AUGMENT = None'], []),
      (
          'adagrad', 'cv_federated', ['SERVER_LEARNING_RATE = 0.003'],
          ['gin/optimizers/adagrad.gin'],
      ),
      (
          'ls_central_100_narrow', 'ls_central_100', [],
          ['gin/models/transformer_narrow.gin'],
      ),
  )
  def test_two_rounds_of_a_row_of_the_recipe(self, name, params, files):
    run = self.id().rpartition('_recipe_')[2]
    results = _run(
        f'gin/experiments/{name}.gin', f'row_{run}', *params, files=files
    )
    self.assertEqual(list(results['dev_word_error_rate'])[-1], 2)

  @parameterized.parameters(
      ('gpu', ("ACTIVATION_DTYPE = 'float32'", 'JIT = False')),
      # This machine may have a network.
      ('native', ('TRUST_NETWORK = True',)),
  )
  def test_two_rounds_of_another_encoder(self, context, params):
    results = _run(
        'gin/experiments/quickstart_federated_dp.gin',
        f'conv_{context}',
        'INIT_FROM_RUN = None',
        *params,
        files=[
            'gin/models/conv.gin', f'gin/execution/{context}.gin',
        ],
    )
    self.assertEqual(results['rounds'], 2)
