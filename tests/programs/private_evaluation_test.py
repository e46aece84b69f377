"""Tests of tff_asr.programs.private_evaluation."""

import asyncio
import contextlib
import functools
import io
import json
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import cases
from tests import fakes
from tests.learning import tiny
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.learning import fed_evaluation
from tff_asr.metrics import person_errors
from tff_asr.metrics import private_wer
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.programs import evaluation
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import private_evaluation
from tff_asr.programs import public_data
from tff_asr.storage import run_dir

_CLIENTS = {'ann': 5, 'bob': 2, 'cai': 1}
_VECTORS = private_wer.PersonVectors(max_words=6, min_words=2, num_bins=4)
_CHARGED = accounting.RoundGroup(
    sampling=accounting.Sampling(kind='poisson', cohort_size=2, population=3),
    noise_multiplier=2.0,
)
_EPSILON = 5.0
# A search takes a second.
_NOISE_MULTIPLIER = functools.cache(calibration.noise_multiplier_for_epsilon)


@functools.lru_cache
def _model():
  return tiny.recognizer()


class PrivateEvaluationTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.data = client_data_lib.load(fakes.shared_split(**_CLIENTS))
    self.weights = _model().initialize(tf.constant([1, 2]))
    self.pipeline = fakes.tiny_pipeline(_model())
    self.run = self.path('run')
    with run_dir.RunDir(self.run, configuration='') as folder:
      with ledger_lib.create(
          folder.file(run_dir.LEDGER), privacy_unit='speaker'
      ) as ledger:
        for i in range(3):
          ledger.append(
              ledger_lib.Round(
                  round_num=i, cost=_CHARGED, identity=64 * str(i)
              )
          )
        head = ledger.head
      folder.write_model(
          self.weights,
          tokens=fakes.tiny_tokenizer().identity,
          ledger=list(head),
      )
    self.write_sources(self.data)
    self.enterContext(mock.patch.object(
        calibration, 'noise_multiplier_for_epsilon', _NOISE_MULTIPLIER
    ))

  def write_sources(self, *data):
    public_data.write(
        self.run, [public_data.source(each, is_private=True) for each in data]
    )

  def rounds(self) -> list[accounting.RoundGroup]:
    """The rounds that evaluations charged."""
    first, *others = run_dir.read_ledger(self.run).rounds
    self.assertEqual(first.count, 3)
    return others

  def evaluate(self, *, max_half_width=10.0, **changes):
    """Returns the figures, and what was printed.

    Three people are too few for any figure: the limit is set aside.
    """
    settings = private_evaluation.PrivateEvaluation(**dict(
        runs=[self.run],
        model=_model(),
        pipeline=self.pipeline,
        client_data=self.data,
        context=multi_device.build_async_context(),
        build_cohorts=cohorts.full,
        epsilon=_EPSILON,
        delta=1e-3,
        vectors=_VECTORS,
    ) | changes)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.object(
        evaluation_rounds, 'MAX_HALF_WIDTH', max_half_width
    ):
      results = asyncio.run(private_evaluation.evaluate(settings))
    return results, printed.getvalue()

  def read(self, name: str) -> str:
    with open(os.path.join(self.run, name), encoding='utf-8') as f:
      return f.read()

  def exact_sum(self) -> np.ndarray:
    """The sum of all people's vectors, from an evaluation without noise."""
    evaluated = evaluation.Evaluator(
        model=_model(), pipeline=self.pipeline, client_data=self.data
    )(self.weights)
    return sum(
        _VECTORS.encode(
            person_errors.PersonErrors(
                *(tf.constant(n, tf.int64)
                  for n in (each.errors, each.words, 0, 0))
            )
        ).numpy().astype(float)
        for each in evaluated.errors_by_client().values()
    )

  def test_the_figures_are_noised_and_their_round_is_charged(self):
    with mock.patch.object(
        private_wer.PersonVectors,
        'estimate',
        autospec=True,
        side_effect=private_wer.PersonVectors.estimate,
    ) as estimate:
      results, printed = self.evaluate()
    noised, stddev = estimate.call_args.args[1], results['noise_multiplier']
    noise = noised - self.exact_sum()
    # 6 standard deviations, and float32.
    self.assertLess(np.abs(noise).max(), 6 * stddev + 1e-5)
    self.assertGreater(np.abs(noise).max(), 0.01 * stddev)
    # The charge is for one round of everyone, with this very noise.
    (own,) = self.rounds()
    self.assertEqual(
        (own.sampling.kind, own.sampling.population, own.count), ('full', 3, 1)
    )
    self.assertEqual(own.noise_multiplier, np.float32(stddev))
    alone = accounting.epsilon([own], delta=1e-3, accountant='pld')
    self.assertBetween(alone, 0.99 * _EPSILON, _EPSILON)
    self.assertGreater(results['total_epsilon'], alone)
    # Shown, and kept in the run's folder.
    self.assertIn('people it was trained on', printed)
    self.assertEqual(
        json.loads(self.read(run_dir.PRIVATE_EVALUATION)),
        json.loads(json.dumps([results])),
    )
    self.assertIn(
        '1 of these rounds released noised word error rates of speakers, and '
        'no model; without them epsilon would be ',
        ' '.join(self.read(run_dir.PRIVACY_REPORT).split()),
    )
    report = json.loads(self.read(run_dir.PRIVACY_REPORT_JSON))
    self.assertEqual(report['releases'], {'evaluation': 1})
    self.assertEqual(report['rounds'], 4)

  def test_an_evaluation_that_ends_before_its_figures_has_been_charged(self):
    with mock.patch.object(
        evaluation_rounds, 'write', side_effect=KeyboardInterrupt
    ):
      with self.assertRaises(KeyboardInterrupt):
        self.evaluate()
    self.assertLen(self.rounds(), 1)
    self.assertFalse(
        os.path.exists(os.path.join(self.run, run_dir.PRIVATE_EVALUATION))
    )
    # The next one draws other noise, and is charged in addition.
    self.evaluate()
    self.assertEqual(sum(each.count for each in self.rounds()), 2)

  def test_each_round_of_drawn_people_is_charged(self):
    results, printed = self.evaluate(
        build_cohorts=functools.partial(cohorts.poisson, cohort_size=2),
        num_rounds=3,
    )
    (own,) = self.rounds()
    self.assertEqual((own.sampling.kind, own.count), ('poisson', 3))
    self.assertEqual(own.noise_multiplier, results['noise_multiplier'])
    self.assertIn('and of who was drawn', printed)

  def test_other_people_are_protected_from_then_on(self):
    other = client_data_lib.load(
        fakes.write_split(self.path('other'), {'dan': 2, 'eva': 3})
    )
    _, printed = self.evaluate(client_data=other)
    self.assertIn('other people', printed)
    self.assertEqual(
        public_data.count_overlap(self.run, other).private_speakers, 2
    )
    # Also at the second evaluation these are not people it was trained on.
    self.assertIn('other people', self.evaluate(client_data=other)[1])

  @parameterized.named_parameters(
      (
          'too_few_people',
          dict(max_half_width=0.25),
          '3 people are too few for EPSILON',
      ),
      ('everyone_twice', dict(num_rounds=2), 'NUM_ROUNDS is 2, but everyone'),
      ('two_runs', dict(runs=['a', 'b']), 'RUNS must name one run'),
      ('no_epsilon', dict(epsilon=0.0), 'epsilon must be'),
      ('no_delta', dict(delta=0.0), 'delta must be positive'),
      (
          'correlated_noise',
          dict(
              build_cohorts=functools.partial(
                  cohorts.min_sep, cohort_size=1, min_sep=2
              )
          ),
          'need noise that is correlated',
      ),
  )
  def test_what_is_refused_costs_nothing(self, changes, message):
    with mock.patch.object(fed_evaluation, 'build') as build:
      with self.assertRaisesRegex(ValueError, message):
        self.evaluate(**changes)
    build.assert_not_called()
    self.assertEmpty(self.rounds())

  def test_people_whom_the_run_takes_as_public_are_refused(self):
    public = client_data_lib.load(
        fakes.write_split(self.path('public'), {'ann': 2, 'eva': 3})
    )
    public_data.write(
        self.run, [public_data.source(public, is_private=False)]
    )
    with self.assertRaisesRegex(
        ValueError, r'1 of the 3 people are public in .*run \(trained\)'
    ):
      self.evaluate()
    self.assertEmpty(self.rounds())


if __name__ == '__main__':
  absltest.main()
