"""Tests of tff_asr.programs.audit: canaries in tiny federated runs."""

import asyncio
import contextlib
import functools
import io
import json
import os
import tempfile

from absl.testing import absltest
import pytest

from tests import fakes
from tff_asr import config
from tff_asr.privacy import accounting
from tff_asr.privacy import queries
from tff_asr.programs import audit

_NUM_CANARIES = 60
_NUM_PEOPLE = 2
_NOISE = 2.0
_NUM_ROUNDS = 2
_EXPERIMENT = [
    'gin/experiments/quickstart_federated_dp.gin', 'gin/programs/audit.gin',
]


def _setUpModule() -> str:
  root = tempfile.TemporaryDirectory()
  _shards.root = root
  return fakes.write_split(
      os.path.join(root.name, 'private'), {'ann': 1, 'bob': 1}
  )


@functools.lru_cache
def _shards() -> str:
  """The people's shards."""
  return _setUpModule()


def tearDownModule():
  if _shards.cache_info().currsize:
    _shards.root.cleanup()
    _shards.cache_clear()


def _run(output_dir: str, *gin_params: str) -> tuple[dict, str]:
  """An audit in which everyone joins each round; its result and its text."""
  everyone = _NUM_CANARIES + _NUM_PEOPLE
  program = config.bind(
      audit.audit,
      gin_files=_EXPERIMENT,
      gin_params=[
          'NUM_BLOCKS = 1', 'DIM = 16', 'MLP_DIM = 64', 'NUM_HEADS = 2',
          f'PRIVATE_DIR = {_shards()!r}',
          f'DEV_DIR = {_shards()!r}',
          'INIT_FROM_RUN = None',
          f'NUM_ROUNDS = {_NUM_ROUNDS}',
          f'COHORT_SIZE = {everyone}',
          'NUM_LOCAL_STEPS = 1',
          f'NUM_CANARIES = {_NUM_CANARIES}',
          f'NOISE_MULTIPLIER = {_NOISE}',
          'DELTA = 1e-5',
          *gin_params,
      ],
  )
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    with contextlib.redirect_stderr(io.StringIO()):
      found = asyncio.run(
          program(output_dir=output_dir, configuration=config.text())
      )
  return found, printed.getvalue()


class AuditTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = self.enterContext(tempfile.TemporaryDirectory())
    self.run = os.path.join(root, 'audit')

  @pytest.mark.slow
  def test_finds_about_what_is_accounted_when_all_join(self):
    found, printed = _run(self.run)
    # Poisson with probability 1 is full participation.
    exact = accounting.epsilon(
        accounting.compose([
            accounting.RoundGroup(
                sampling=accounting.Sampling(
                    kind='full', cohort_size=1, population=1
                ),
                noise_multiplier=_NOISE,
                count=_NUM_ROUNDS,
            )
        ]),
        delta=1e-5,
        accountant='pld',
    )
    self.assertAlmostEqual(found['accounted_epsilon'], exact, delta=0.01)
    # Its scatter is (4.3 + .7) / sqrt(60) = .65: within 4 of them. Keys are
    # new each time; flake rate 1e-4.
    self.assertAlmostEqual(found['epsilon'], exact, delta=2.6)
    self.assertFalse(found['exceeds_accounted'])
    self.assertEqual(found['population'], _NUM_CANARIES + _NUM_PEOPLE)
    with open(os.path.join(self.run, 'audit.json'), encoding='utf-8') as f:
      self.assertEqual(json.load(f), json.loads(json.dumps(found)))
    self.assertIn('audit: epsilon', printed)
    # A model that canaries helped to train is not left behind.
    self.assertFalse(os.path.exists(os.path.join(self.run, 'model.state')))

  @pytest.mark.slow
  def test_broken_noise_and_broken_clipping_are_found(self):
    keyed_stddev = queries.keyed_stddev
    clip = queries.PerLayerClipSumQuery.clip

    def without_the_largest_layer(self, params, record):
      clipped, measured = clip(self, params, record)
      # With fewer dimensions than canaries they would hide in each other.
      name = max(record, key=lambda name: record[name].shape.num_elements())
      return clipped | {name: record[name]}, measured

    for target, name, broken in (
        (queries, 'keyed_stddev', lambda state: keyed_stddev(state) / 20),
        (
            queries.PerLayerClipSumQuery,
            'clip',
            without_the_largest_layer,
        ),
    ):
      run = f'{self.run}_{name}'
      with absltest.mock.patch.object(target, name, broken):
        with self.assertRaisesRegex(
            ValueError, 'clipping, noise or sampling is broken'
        ):
          _run(run)
      with open(os.path.join(run, 'audit.json'), encoding='utf-8') as f:
        found = json.load(f)
      self.assertTrue(found['exceeds_accounted'])
      self.assertGreater(found['epsilon'], 3 * found['accounted_epsilon'])


if __name__ == '__main__':
  absltest.main()
