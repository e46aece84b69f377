"""Tests of tff_asr.programs.audit: tiny federated runs, sound and broken."""

import asyncio
import contextlib
import dataclasses
import io
import json
import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from tests import cases
from tests import fakes
from tff_asr import config
from tff_asr.privacy import accounting
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import queries
from tff_asr.privacy import strategies
from tff_asr.programs import audit

_NUM_CANARIES = 60
_NUM_PEOPLE = 2
_NOISE = 2.0
_NUM_ROUNDS = 2
# Clips that change by powers of two.
_ADAPTIVE_BLT = [
    'NUM_ROUNDS = 6', 'COHORT_SIZE = 15', 'CLIP_LEARNING_RATE = 2.0',
]
_EXPERIMENT = 'gin/experiments/quickstart_federated_dp.gin'


def _run(
    output_dir: str,
    *gin_params: str,
    privacy: str = 'gin/privacy/per_layer_dim.gin',
) -> tuple[dict, str, str]:
  """An audit in which everyone joins each round: result, text and error."""
  everyone = _NUM_CANARIES + _NUM_PEOPLE
  program = config.bind(
      audit.audit,
      gin_files=[_EXPERIMENT, privacy, 'gin/programs/audit.gin'],
      gin_params=[
          'NUM_BLOCKS = 1', 'DIM = 16',
          f'PRIVATE_DIR = {fakes.shared_split(ann=1, bob=1)!r}',
          f'NUM_ROUNDS = {_NUM_ROUNDS}',
          f'COHORT_SIZE = {everyone}',
          'NUM_LOCAL_STEPS = 1',
          f'NUM_CANARIES = {_NUM_CANARIES}',
          f'NOISE_MULTIPLIER = {_NOISE}',
          'DELTA = 1e-5',
          'TARGET_EPSILON = None',
          *gin_params,
      ],
  )
  error = ''
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    with contextlib.redirect_stderr(io.StringIO()):
      try:
        asyncio.run(program(
            output_dir=output_dir, configuration=config.text(), model_spec=''
        ))
      except audit.AuditError as raised:
        error = str(raised)
  with open(os.path.join(output_dir, 'audit.json'), encoding='utf-8') as f:
    return json.load(f), printed.getvalue(), error


def _fails(found: dict) -> list[str]:
  """Names of the tests that fail."""
  return [test['name'] for test in found['tests'] if test['fails']]


def _broken(change_state=None, change_sums=None):
  """`get_noised_result` that takes another state, or returns other sums.

  change_sums gets the noised sums and those with hardly any noise, by name.
  """
  honest = queries.PerLayerClipSumQuery.get_noised_result
  silenced = lambda state: state._replace(noise_multiplier=tf.constant(1e-20))

  def get_noised_result(self, sums, state):
    noised, new_state, event = honest(self, sums, state)
    if change_state is not None:
      noised, _, _ = honest(self, sums, change_state(state))
    if change_sums is not None:
      noised = change_sums(noised, honest(self, sums, silenced(state))[0])
    return noised, new_state, event

  return absltest.mock.patch.object(
      queries.PerLayerClipSumQuery, 'get_noised_result', get_noised_result
  )


def _reused():
  """The same noise in each round."""
  return _broken(lambda state: state._replace(
      noise_key=tf.ones_like(state.noise_key),
      counter=tf.zeros_like(state.counter),
  ))


def _halved():
  """Noise of half the deviation, and the event of all of it."""
  return _broken(lambda state: state._replace(
      noise_multiplier=state.noise_multiplier / 2
  ))


def _missing():
  """No noise in a layer of 16 elements."""
  return _broken(
      change_sums=lambda noised, plain: (
          noised | {'front/bias': plain['front/bias']}
      )
  )


def _unclipped():
  """The largest layer at a thousand times its clip."""
  clip = queries.PerLayerClipSumQuery.clip

  def broken(self, params, record):
    clipped, measured = clip(self, params, record)
    name = max(record, key=lambda name: record[name].shape.num_elements())
    return clipped | {name: 1000 * clipped[name]}, measured

  return absltest.mock.patch.object(
      queries.PerLayerClipSumQuery, 'clip', broken
  )


def _missing_in_an_element():
  """No noise in one of the largest layer's elements."""

  def restore(noised, plain):
    name = max(noised, key=lambda name: noised[name].shape.num_elements())
    shape = noised[name].shape
    is_first = tf.range(shape.num_elements()) < 1
    return noised | {
        name: tf.where(
            tf.reshape(is_first, shape), plain[name], noised[name]
        )
    }

  return _broken(change_sums=restore)


def _forgotten():
  """Correlated noise that never cancels earlier noise."""
  process = correlated_noise.CorrelatedNoise
  next_noise = process.next

  def broken(self, drawn, buffers, global_state):
    return next_noise(self, drawn, tf.zeros_like(buffers), global_state)

  return absltest.mock.patch.object(process, 'next', broken)


def _in_powers_of_two():
  """Buffers in units that do not scale with adaptive clips."""
  return absltest.mock.patch.object(
      adaptive_query.AdaptiveClipSumQuery, 'grid_follows_clip', False
  )


class AuditTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.run = self.path('audit')

  def test_too_few_canaries_are_refused_at_once(self):
    with self.assertRaisesRegex(ValueError, 'raise NUM_CANARIES'):
      _run(self.run, 'NUM_CANARIES = 20')
    self.assertFalse(os.path.exists(self.run))

  def test_less_noise_than_is_charged_fails_for_certain(self):
    for noise, p_value in (([2.0, 1.9], 0.0), ([2.0, 2.1], 1.0)):
      test = audit.charged_noise_test(noise, charged=2.0)
      self.assertEqual(test.p_value, p_value)
    # z as float32, and the same from the clip and the deviation.
    self.assertEqual(
        audit.charged_noise_test([1.0999999], charged=1.1).p_value, 1.0
    )

  def test_the_covariance_of_noise_is_the_ledger_s(self):
    strategy = strategies.optimize(num_rounds=4, min_sep=2)
    group = accounting.RoundGroup(
        sampling=accounting.Sampling(
            kind='min_sep', cohort_size=1, population=2, min_sep=2
        ),
        noise_multiplier=1.0,
        count=4,
        strategy=strategy,
    )
    found = audit.noise_covariance([group], num_rounds=4)
    np.testing.assert_array_equal(found, strategy.covariance(4))
    independent = accounting.RoundGroup(
        sampling=accounting.Sampling(
            kind='full', cohort_size=2, population=2
        ),
        noise_multiplier=1.0,
        count=4,
    )
    found = audit.noise_covariance([independent], num_rounds=4)
    np.testing.assert_array_equal(found, np.eye(4))
    restarted = [dataclasses.replace(group, count=count) for count in (1, 3)]
    with self.assertRaisesRegex(ValueError, r'charges \[1, 3\].*Audit again'):
      audit.noise_covariance(restarted, num_rounds=4)

  @pytest.mark.slow
  def test_an_honest_run_holds_and_measures_about_what_is_accounted(self):
    found, printed, _ = _run(self.run)
    with self.assertRaisesRegex(ValueError, 'an audit cannot be resumed'):
      _run(self.run)
    self.assertFalse(found['fails'], printed)
    self.assertEqual(found['rounds'], _NUM_ROUNDS)
    # Poisson with probability 1 is full participation.
    exact = accounting.epsilon(
        [accounting.RoundGroup(
            sampling=accounting.Sampling(
                kind='full', cohort_size=1, population=1
            ),
            noise_multiplier=_NOISE,
            count=_NUM_ROUNDS,
        )],
        delta=1e-5,
        accountant='pld',
    )
    self.assertAlmostEqual(found['accounted_epsilon'], exact, delta=0.01)
    # Its scatter is (4.3 + .7) / sqrt(26) = 1: within 4 of them. Keys are new
    # each time; flake rate 1e-4.
    self.assertAlmostEqual(found['estimate']['epsilon'], exact, delta=4)
    self.assertLess(found['bound']['epsilon'], exact)
    self.assertEqual(found['population'], _NUM_CANARIES + _NUM_PEOPLE)
    for test in found['tests']:
      self.assertRegex(printed, rf'(?m)^{test["name"]} .* holds ')
    self.assertIn('with 95% confidence', printed)
    # A model that canaries helped to train is not left behind.
    self.assertNotIn('model.safetensors', os.listdir(self.run))

  @parameterized.named_parameters(
      ('adaptive', 'adaptive', ['NUM_ROUNDS = 3', 'COHORT_SIZE = 31']),
      ('correlated', 'blt', ['NUM_ROUNDS = 6', 'COHORT_SIZE = 15']),
      ('banded', 'banded', ['NUM_ROUNDS = 6', 'COHORT_SIZE = 10']),
      ('adaptive_correlated', 'adaptive_blt', _ADAPTIVE_BLT),
      (
          'adaptive_banded',
          'adaptive_banded',
          ['NUM_ROUNDS = 6', 'COHORT_SIZE = 10', 'CLIP_LEARNING_RATE = 2.0'],
      ),
      (
          'distributed',
          'distributed',
          ['NUM_ROUNDS = 6', 'COHORT_SIZE = 15', 'BITS = 20'],
      ),
      (
          'fixed_size',
          'per_module_dim',
          ['COHORT_SIZE = 31', 'BUILD_COHORTS = @cohorts.fixed_size'],
      ),
  )
  @pytest.mark.slow
  def test_honest_runs_of_other_mechanisms_hold(self, name, settings):
    found, printed, _ = _run(
        self.run, *settings, privacy=f'gin/privacy/{name}.gin'
    )
    self.assertFalse(found['fails'], printed)

  @parameterized.named_parameters(
      ('noise_reused', _reused, 'rounds'),
      ('noise_halved', _halved, 'layers'),
      ('noise_missing_in_a_small_layer', _missing, 'layers'),
      ('noise_missing_in_an_element', _missing_in_an_element, 'elements'),
      ('a_layer_not_clipped', _unclipped, 'sums'),
  )
  @pytest.mark.slow
  def test_a_defect_is_found(self, broken, name):
    with broken():
      found, printed, error = _run(self.run, 'NUM_ROUNDS = 4')
    self.assertIn(name, _fails(found), printed)
    self.assertRegex(printed, rf'(?m)^{name} .* FAILS ')
    self.assertRegex(error, rf'the audit fails \(.*{name}')

  @parameterized.named_parameters(
      ('buffers_forgotten', _forgotten),
      ('buffers_in_units_that_clips_do_not_scale', _in_powers_of_two),
  )
  @pytest.mark.slow
  def test_a_defect_of_correlated_noise_under_adaptive_clips_is_found(
      self, broken
  ):
    with broken():
      found, printed, _ = _run(
          self.run, *_ADAPTIVE_BLT, privacy='gin/privacy/adaptive_blt.gin'
      )
    self.assertIn('rounds', _fails(found), printed)
