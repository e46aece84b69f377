"""Every experiment at toy size: two rounds (or steps) on fake speech.

Slow, as each is traced anew. The default suite has three of them, a seed
model, a federated run with noise and an evaluation, in `gin_test`.
"""

import asyncio
from collections.abc import Sequence
import contextlib
import csv
import os
import shutil
import tempfile
from typing import Any

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from tests import experiment_files
from tests import fakes
from tff_asr import config
from tff_asr.programs import central
from tff_asr.programs import evaluation
from tff_asr.programs import federated
from tff_asr.programs import pretraining
from tff_asr.programs import training_loop

_MODEL = ('NUM_BLOCKS = 1', 'DIM = 8', 'MLP_DIM = 16', 'NUM_HEADS = 2')
_TINY = {
    central.CentralTraining: (
        *_MODEL,
        "TRAIN_DIR = 'public'",
        "DEV_DIR = 'dev'",
        'NUM_STEPS = 2',
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
        'EVALUATE_EVERY = 2',
    ),
    pretraining.Pretraining: (
        *_MODEL,
        "TRAIN_DIR = 'public'",
        "DEV_DIR = 'dev'",
        'NUM_STEPS = 2',
        'BATCH_SIZE = 2',
        'EVALUATE_EVERY = 2',
        'NUM_CODES = 16',
        # Fake utterances are short.
        'MASK_PROB = 0.1',
    ),
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
  # A seed model has the tokens of its language, a pre-trained one has none; to
  # fine-tune, its encoder is enough.
  seed = 'seed' if "LANGUAGE = 'en'" in configuration else 'seed_fr'
  is_conformer = 'FRONT_CHANNELS' in configuration
  if is_conformer:
    seed = 'conformer' if program is evaluation.evaluate else 'pretrained'
    gin_params.append('FRONT_CHANNELS = 2')
  if "SCORES_RUN = '" in configuration:
    gin_params.append("SCORES_RUN = 'pretrained'")
  if "INIT_FROM_RUN = '" in configuration:
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


def setUpModule():
  """Shards and a seed model, in a folder that the tests run in."""
  setUpModule.before = os.getcwd()
  setUpModule.root = tempfile.mkdtemp()
  os.chdir(setUpModule.root)
  fakes.write_split('public', {'ann': 2, 'bob': 2})
  fakes.write_split('private', {'cai': 2, 'dee': 1, 'eve': 1})
  fakes.write_split('dev', {'fay': 2})
  path = 'gin/experiments/quickstart_seed.gin'
  _run(path, 'seed')
  _run(path, 'seed_fr', "LANGUAGE = 'fr'")
  _run('gin/experiments/pretrain_mini_public.gin', 'pretrained')
  _run('gin/experiments/finetune_mini_an4.gin', 'conformer')


def tearDownModule():
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
    if experiment_files.program(path) is pretraining.Pretraining:
      self.assertEqual(list(results['dev_loss']), [2])
      return
    self.assertGreater(float(rows[1]['dev_loss']), 0)
    self.assertEqual(list(results['dev_word_error_rate'])[-1], 2)

  @parameterized.parameters('multi_device', 'native')
  def test_two_rounds_of_another_encoder(self, context):
    results = _run(
        'gin/experiments/quickstart_federated_dp.gin',
        f'conv_{context}',
        'INIT_FROM_RUN = None',
        files=[
            'gin/models/conv.gin', f'gin/execution/{context}.gin',
        ],
    )
    self.assertEqual(results['rounds'], 2)


if __name__ == '__main__':
  absltest.main()
