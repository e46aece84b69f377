"""Tests of evaluations of private people between the rounds of a training.

The rounds themselves are tested with those of `private_evaluation`.
"""

import asyncio
from collections.abc import Callable
import dataclasses
import functools
import json
import os
from typing import Any, NamedTuple
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
from dp_accounting import pld
from dp_accounting import rdp
import numpy as np
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests.learning import tiny
from tests.programs import runs
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.metrics import private_wer
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import privacy_report
from tff_asr.privacy import queries
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import federated
from tff_asr.programs import training_loop
from tff_asr.storage import run_dir

_CLIENTS = {'ann': 2, 'bob': 2, 'cai': 1, 'dee': 1}
_TRAINING_NOISE, _EVALUATION_NOISE = 30.0, 20.0
_DELTA = 1e-5
# The class itself, which `_train` replaces by what shares its instances.
_BUILD = evaluation_rounds.EvaluationRounds
_VECTORS = private_wer.PersonVectors(max_words=6, min_words=2, num_bins=4)


@functools.lru_cache
def _shared() -> dict[str, Any]:
  """Arguments of all runs."""
  return runs.federated(
      client_data_lib.load(fakes.shared_split(**_CLIENTS)),
      build_query=functools.partial(
          queries.PerLayerClipSumQuery,
          l2_norm_clip=0.01,
          noise_multiplier=_TRAINING_NOISE,
      ),
      model=tiny.recognizer(),
  )


@functools.lru_cache
def _rounds(
    noise: evaluation_rounds.EvaluationNoise, sampling: accounting.Sampling
) -> evaluation_rounds.EvaluationRounds:
  """Rounds that runs share: to trace them takes seconds."""
  return _BUILD(
      model=_shared()['model'],
      pipeline=_shared()['pipeline'],
      client_data=_shared()['client_data'],
      noise=noise,
      sampling=sampling,
  )


def tearDownModule():
  _rounds.cache_clear()
  _shared.cache_clear()


class _State(NamedTuple):
  """What an evaluation reads of a `run_state.RunState`."""

  process: Any
  data_position: int


class _Killed(BaseException):
  """Ends a run at once; errors and interrupts save what there is."""


class _OtherSums(tff.framework.AsyncContext):
  """A context on which evaluations come out with another sum."""

  async def invoke(self, comp, arg):
    output = await _shared()['context'].invoke(comp, arg)
    total = getattr(getattr(output, 'state', None), 'finalizer', None)
    if np.shape(total) != (_VECTORS.size,):
      return output
    return output._replace(state=output.state._replace(finalizer=total + 1))


def _settings(**changes) -> evaluation_rounds.TrainingEvaluation:
  """Evaluations after every second round."""
  return evaluation_rounds.TrainingEvaluation(**dict(
      every=2,
      noise=evaluation_rounds.EvaluationNoise(
          noise_multiplier=_EVALUATION_NOISE, vectors=_VECTORS
      ),
  ) | changes)


def _train(output_dir: str, **changes) -> tuple[dict[str, Any], str]:
  """Results, and what was printed.

  Two people are too few for any figure: the limit is set aside.
  """
  arguments = _shared() | dict(
      output_dir=output_dir,
      num_rounds=4,
      delta=_DELTA,
      save_every=10,
      private_evaluation=_settings(),
  ) | changes
  with (
      mock.patch.object(evaluation_rounds, 'MAX_HALF_WIDTH', 100.0),
      mock.patch.object(
          evaluation_rounds,
          'EvaluationRounds',
          lambda *, noise, sampling, **_: _rounds(noise, sampling),
      ),
  ):
    return runs.train(federated.FederatedTraining, **arguments)


def _epsilon(
    num_rounds: int,
    num_evaluations: int,
    build_accountant: Callable[
        [], dp_accounting.PrivacyAccountant
    ] = pld.PLDAccountant,
) -> float:
  """Epsilon of rounds and evaluations, composed by dp_accounting itself."""
  accountant = build_accountant()
  sampler_epsilon = 0.0
  for noise_multiplier, count in (
      (_TRAINING_NOISE, num_rounds), (_EVALUATION_NOISE, num_evaluations)
  ):
    if count:
      # 2 of 4 clients are expected in a round.
      accountant.compose(
          dp_accounting.PoissonSampledDpEvent(
              0.5, dp_accounting.GaussianDpEvent(noise_multiplier)
          ),
          count,
      )
    sampler_epsilon += count * queries.sampler_epsilon(
        noise_multiplier,
        num_elements=weights_lib.num_parameters(_shared()['model'].specs),
    )
  return accountant.get_epsilon(_DELTA) + sampler_epsilon


class EvaluationRoundsTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.run = self.path('run')

  def file(self, name: str) -> str:
    return os.path.join(self.run, name)

  def evaluations(self, run: str = '') -> list[dict[str, Any]]:
    path = os.path.join(run or self.run, run_dir.PRIVATE_EVALUATION)
    with open(path, encoding='utf-8') as f:
      return json.load(f)

  def charged(self) -> tuple[int, int]:
    """Rounds of training and evaluations in the ledger."""
    contents = run_dir.read_ledger(self.run)
    evaluations = contents.releases.get('evaluation', ())
    in_all, released = (
        sum(group.count for group in groups)
        for groups in (contents.rounds, evaluations)
    )
    return in_all - released, released

  def test_evaluations_are_released_and_charged_with_the_training(self):
    results, printed = _train(self.run)
    self.assertEqual(self.charged(), (4, 2))
    # Each has its own draw: no two sums are over one cohort.
    with open(self.file('ledger.jsonl'), encoding='utf-8') as f:
      _, *lines = map(json.loads, f)
    self.assertEqual(
        [(line['round_num'], line.get('release')) for line in lines],
        [(0, None), (1, None), (2, 'evaluation'),
         (3, None), (4, None), (5, 'evaluation')],
    )
    self.assertEqual(lines[2]['cost']['noise_multiplier'], _EVALUATION_NOISE)

    rows = runs.metrics(self.run)
    for row, counts in zip(rows, [(1, 0), (2, 1), (3, 1), (4, 2)], strict=True):
      # PLD leads, on a grid that is coarser than the report's, RDP is beside it.
      self.assertBetween(
          float(row['epsilon']) / _epsilon(*counts), 1 - 1e-9, 1.001
      )
      self.assertAlmostEqual(
          float(row['epsilon_rdp']),
          _epsilon(*counts, rdp.RdpAccountant),
          places=9,
      )
      self.assertEqual(
          row['noised_word_error_rate_low'] != '', counts[0] % 2 == 0
      )
    self.assertNotIn('not_private', ''.join(rows[0]))
    second, fourth = self.evaluations()
    for row, found in ((rows[1], second), (rows[3], fourth)):
      self.assertEqual(int(row['round']), found['round'])
      self.assertEqual(
          float(row['noised_word_error_rate_high']),
          found['word_error_rate']['high'],
      )
      counts = found['round'], found['round'] // 2
      self.assertAlmostEqual(found['total_epsilon'], _epsilon(*counts), places=6)
      # Without this evaluation.
      self.assertAlmostEqual(
          found['epsilon_before'], _epsilon(counts[0], counts[1] - 1), places=6
      )
      self.assertBetween(found['epsilon'] / _epsilon(0, 1), 1 - 1e-9, 1.001)
      self.assertTrue(found['private'])
      self.assertTrue(found['trained_on'])
    self.assertEqual(list(results['noised_word_error_rate_low']), [2, 4])
    self.assertRegex(printed, r'private people WER .* \(round 4\)')

    privacy = results['privacy']
    self.assertAlmostEqual(privacy['epsilon_pld'], _epsilon(4, 2), places=6)
    self.assertEqual(privacy['releases'], {'evaluation': 2})
    with open(self.file('privacy_report.txt'), encoding='utf-8') as f:
      report = ' '.join(f.read().split())
    self.assertIn(
        '2 of these rounds released noised word error rates of speakers, and '
        'no model; without them epsilon would be '
        f'{privacy_report.format_epsilon(_epsilon(4, 0))}',
        report,
    )

  def test_the_newest_model_is_evaluated(self):
    with mock.patch.object(
        _BUILD, 'initialize', autospec=True, side_effect=_BUILD.initialize
    ) as initialize:
      _train(self.run, num_rounds=2)
    _, evaluated = initialize.call_args.args
    released = run_dir.read_model(
        self.run, model=_shared()['model'], tokens=' abc'
    )
    for name, value in released.items():
      np.testing.assert_array_equal(evaluated[name], value)

  def test_a_killed_evaluation_is_repeated_in_the_same_bits(self):
    seeds = dict(noise_seed=1, sampler_seed=2)
    whole = self.path('whole')
    _train(whole, **seeds)
    # Charged, and killed before anything of it is written.
    write = evaluation_rounds.write

    def kill(run, fields):
      if fields['round'] == 4:
        raise _Killed
      write(run, fields)

    with mock.patch.object(evaluation_rounds, 'write', kill):
      with self.assertRaises(_Killed):
        _train(self.run, **seeds)
    self.assertEqual(self.charged(), (4, 2))
    self.assertLen(self.evaluations(), 1)
    # Only the beginning was saved: all four rounds and both evaluations again.
    _train(self.run, **seeds)
    self.assertEqual(self.charged(), (4, 2))
    self.assertEqual(self.evaluations(), self.evaluations(whole))
    for rows in zip(runs.metrics(self.run), runs.metrics(whole), strict=True):
      for row in rows:
        del row['not_private/seconds']
      self.assertEqual(*rows)
    first, second = (
        run_dir.read_model(each, model=_shared()['model'], tokens=' abc')
        for each in (whole, self.run)
    )
    for name, value in first.items():
      self.assertEqual(value.tobytes(), second[name].tobytes(), name)

  def test_an_evaluation_with_another_sum_is_charged_again(self):
    with mock.patch.object(evaluation_rounds, 'write', side_effect=_Killed):
      with self.assertRaises(_Killed):
        _train(self.run)
    self.assertEqual(self.charged(), (2, 1))
    with self.assertLogs('absl', 'WARNING') as logs:
      _train(self.run, num_rounds=2, context=_OtherSums())
    self.assertIn('had another result', ''.join(logs.output))
    self.assertEqual(self.charged(), (2, 2))
    self.assertLen(self.evaluations(), 1)

  def test_the_target_covers_the_evaluation_that_is_due_after_a_round(self):
    # Enough for a fourth round, but not for the evaluation after it.
    target = (_epsilon(4, 1) + _epsilon(4, 2)) / 2
    results, _ = _train(self.run, target_epsilon=target)
    self.assertEqual(results['rounds'], 3)
    self.assertEqual(self.charged(), (3, 1))
    # Nor for the very first.
    with self.assertRaisesRegex(ValueError, 'after the first round epsilon'):
      _train(
          self.path('other'),
          private_evaluation=_settings(every=1),
          target_epsilon=1.001 * _epsilon(1, 0),
      )
    self.assertFalse(os.path.exists(self.path('other')))

  def test_an_evaluation_beyond_a_lowered_target_is_left_out(self):
    initialize, calls = _BUILD.initialize, []

    async def kill(*arguments):
      calls.append(arguments)
      # The first call is the plan's.
      if len(calls) > 1:
        raise _Killed
      return await initialize(*arguments)

    with mock.patch.object(_BUILD, 'initialize', kill):
      with self.assertRaises(_Killed):
        _train(self.run)
    self.assertEqual(self.charged(), (2, 0))
    with self.assertLogs('absl', 'WARNING') as logs:
      results, _ = _train(self.run, target_epsilon=1.001 * _epsilon(2, 0))
    self.assertIn('after round 2 is left out', ''.join(logs.output))
    self.assertEqual((results['rounds'], self.charged()), (2, (2, 0)))

  def test_the_cohort_of_an_evaluation_that_is_left_out_is_passed_over(self):
    # Else the next round of training would have it; and the evaluation, too,
    # if a run that is resumed with a higher target repeats what went before.
    async def initialize(unused_weights):
      return 'process'

    opened = mock.Mock()
    opened.evaluation_after.return_value.rounds.initialize = initialize
    opened.private.fits_budget.return_value = False
    opened.training.sample.side_effect = lambda at: (['ann'], at + 1)
    found, metrics = asyncio.run(training_loop._evaluate_people(
        opened, _State(process=mock.Mock(), data_position=5), 2
    ))
    self.assertEqual((found.data_position, metrics), (6, {}))

  @parameterized.parameters('min_sep', 'cyclic')
  def test_cohorts_of_correlated_noise_are_refused(self, kind):
    with self.assertRaisesRegex(
        ValueError, f'the {kind} cohorts of the training need noise that'
    ):
      self.plan(sampling=accounting.Sampling(
          kind=kind, cohort_size=2, population=100, min_sep=10
      ))

  def test_a_model_that_writes_no_text_is_refused(self):
    pipeline = dataclasses.replace(_shared()['pipeline'], tokenizer=None)
    with self.assertRaisesRegex(ValueError, 'the model writes no text'):
      self.plan(pipeline=pipeline)

  def plan(self, **changes) -> None:
    asyncio.run(evaluation_rounds.plan(_settings(), **dict(
        model=_shared()['model'],
        pipeline=_shared()['pipeline'],
        client_data=_shared()['client_data'],
        sampling=accounting.Sampling(
            kind='poisson', cohort_size=2, population=4
        ),
        weights={},
    ) | changes))

  def test_a_training_without_noise_is_refused(self):
    state = runs.process_state(
        {},
        query_state=(),
        event=dp_accounting.GaussianDpEvent(0.0),
    )
    training = runs.build(
        federated.FederatedTraining,
        **_shared() | dict(
            output_dir=self.run, num_rounds=1, private_evaluation=_settings()
        ),
    )
    with self.assertRaisesRegex(ValueError, 'the training is NOT PRIVATE'):
      asyncio.run(training.plan_evaluations(state))

  def test_an_evaluation_whose_noise_anyone_can_draw_has_no_epsilon(self):
    _train(self.run, noise_seed=3)
    found = self.evaluations()[0]
    self.assertEqual((found['epsilon'], found['total_epsilon']), ('inf', 'inf'))

  def test_cohorts_too_small_for_the_noise_are_refused(self):
    with self.assertRaisesRegex(
        ValueError,
        r'2 people are too few for EVALUATION_NOISE_MULTIPLIER = 20: the noise '
        r'alone would move the word error rate by 4383 points \(95 %\)\. Lower '
        r'it to about 0.11, or raise COHORT_SIZE',
    ):
      # 1.96 * 20 * hypot(1 / sqrt(.4), .5 / sqrt(.1)) / 2 = 43.8.
      runs.train(federated.FederatedTraining, **_shared() | dict(
          output_dir=self.run, num_rounds=1, private_evaluation=_settings()
      ))
    self.assertFalse(os.path.exists(self.run))

  def test_a_rate_that_is_not_known_is_left_out_of_metrics(self):
    # Of all noise and no words.
    found = _VECTORS.estimate(np.zeros(_VECTORS.size), stddev=1.0)
    metrics = evaluation_rounds.metrics(found)
    self.assertEqual(metrics, {
        'noised_word_error_rate_low': 0.0, 'noised_word_error_rate_high': 1.0,
    })
    self.assertEqual(
        evaluation_rounds.describe_metrics(metrics),
        'WER not known (0.0 to 100.0)',
    )
    self.assertEqual(evaluation_rounds.describe_metrics({'epsilon': 1.0}), '')

  @parameterized.parameters(
      (dict(every=0), 'private_evaluate_every'),
      (
          dict(noise=evaluation_rounds.EvaluationNoise(noise_multiplier=0.0)),
          'evaluation_noise_multiplier',
      ),
  )
  def test_bad_settings_are_named(self, changes, name):
    with self.assertRaisesRegex(ValueError, name):
      _settings(**changes)

  def test_everyone_is_evaluated_where_everyone_trains(self):
    _train(self.run, num_rounds=2, build_cohorts=cohorts.full)
    (found,) = self.evaluations()
    self.assertEqual(
        found['sampling'],
        {'kind': 'full', 'cohort_size': 4, 'population': 4},
    )


if __name__ == '__main__':
  absltest.main()
