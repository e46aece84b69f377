"""Tests of tff_asr.programs.releases, with the programs that release by it.

The process of an evaluation is replaced by one whose people have known vectors:
the query, the keys, the ledger and the estimates are those of the program.
"""

import asyncio
import contextlib
import functools
import io
import itertools
import json
import math
import os
import secrets
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
from dp_accounting import pld
from dp_accounting import rdp
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests.learning import tiny
from tff_asr.aggregators import aggregation
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.learning import fed_evaluation
from tff_asr.learning import process as process_lib
from tff_asr.metrics import private_wer
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import privacy_report
from tff_asr.programs import count_release
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import private_evaluation
from tff_asr.programs import private_rounds
from tff_asr.programs import public_data
from tff_asr.storage import run_dir

_PEOPLE = 12
_COHORT = 6
_EPSILON, _DELTA = 2.0, 1e-3
_VECTORS = private_wer.PersonVectors(max_words=10, min_words=2, num_bins=5)
_KINDS = ('poisson', 'fixed_size', 'full')
# Kinds of sampling of the training and of an evaluation, and its rounds.
_CELLS = [
    (*kinds, num_rounds)
    for kinds in itertools.product(_KINDS, _KINDS)
    for num_rounds in (1, 3)
    if kinds not in (('poisson', 'fixed_size'), ('fixed_size', 'poisson'))
    and (kinds[1] != 'full' or num_rounds == 1)
]
# A search takes seconds.
_NOISE_MULTIPLIER = functools.cache(calibration.noise_multiplier_for_epsilon)


def _sampling(
    kind: str, population: int = _PEOPLE, cohort_size: int = _COHORT
) -> accounting.Sampling:
  return accounting.Sampling(
      kind=kind,
      cohort_size=population if kind == 'full' else cohort_size,
      population=population,
  )


def _vector(client_id: str) -> np.ndarray:
  """A person with 10 words, of which 0 to 4 are wrong."""
  errors = int(client_id[1:]) % 5
  return np.concatenate([
      [math.sqrt(0.4) * errors / 10, math.sqrt(0.1)],
      math.sqrt(0.5) * np.eye(6)[errors * 5 // 10],
  ]).astype(np.float32)


class _Process:
  """An evaluation's process of people with known vectors.

  Attributes:
    keys: The noise key of each round.
    noise: The noise on the sum of each round, in the order of `keys`.
  """

  def __init__(self, *, aggregator, vectors, **unused):
    self.keys, self.noise = [], []
    self._query = aggregator.build_query(tf.TensorSpec([vectors.size]))
    self.cohort_size = None

  async def initialize(self):
    state = tf.nest.map_structure(
        np.asarray, self._query.initial_global_state()
    )
    return process_lib.State(
        global_model_weights={},
        distributor=(),
        client_work=(),
        aggregator=aggregation.State(
            state, self._query.event(state).to_named_tuple()
        ),
        finalizer=np.zeros([_VECTORS.size], np.float32),
    )

  async def next(self, state, client_ids):
    query, query_state = self._query, private_rounds.query_state(state)
    self.keys.append(np.array(query_state.noise_key))
    vectors = [_vector(each) for each in client_ids]
    total = sum(
        (query.clip(query_state.l2_norm_clip, each)[0] for each in vectors),
        tf.zeros([_VECTORS.size], tf.int64),
    )
    noised, _, _ = query.get_noised_result(total, query_state)
    self.noise.append(noised.numpy() - np.sum(vectors, axis=0))
    return process_lib.Output(
        state._replace(
            finalizer=state.finalizer
            + np.float32(noised.numpy() / self.cohort_size)
        ),
        {},
    )


class _TestCase(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.data = self.people('people', _PEOPLE)
    self.enterContext(mock.patch.object(
        calibration, 'noise_multiplier_for_epsilon', _NOISE_MULTIPLIER
    ))
    # Few people: the limit on noise is set aside.
    self.enterContext(mock.patch.object(
        evaluation_rounds, 'MAX_HALF_WIDTH', 100.0
    ))

  def people(self, name, count):
    """Fake speakers p0, p1, ..."""
    return client_data_lib.load(fakes.write_split(
        self.path(name), {f'p{i}': 1 for i in range(count)}
    ))

  def finished_run(
      self, kind='poisson', *, name='run', noise=9.0, delta=_DELTA, data=None
  ):
    """The folder of a run that has charged three rounds."""
    data = data or self.data
    run = self.path(name)
    sampling = _sampling(kind, len(data.client_ids), min(
        _COHORT, len(data.client_ids)
    ))
    with run_dir.RunDir(run, configuration='') as folder:
      with ledger_lib.create(folder.file(run_dir.LEDGER)) as ledger:
        for i in range(3):
          ledger.append(fakes.charged_round(
              i, key=len(name), sampling=sampling, noise_multiplier=noise
          ))
        run_dir.write_privacy_report(
            run, privacy_report.of_ledger(ledger.contents, delta=delta)
        )
        folder.write_model(
            tiny.recognizer().initialize(tf.constant([1, 2])),
            tokens=fakes.tiny_tokenizer().identity,
            ledger=ledger.head,
        )
    public_data.write(run, [public_data.source(data, is_private=True)])
    return run

  def evaluate(
      self, run, kind='full', *, num_rounds=1, data=None, cohort_size=_COHORT,
      **changes
  ):
    """The figures, the process, and what was printed."""
    build = getattr(cohorts, kind)
    if kind != 'full':
      build = functools.partial(build, cohort_size=cohort_size)
    model, data = tiny.recognizer(), data or self.data
    settings = private_evaluation.PrivateEvaluation(**dict(
        runs=[run],
        model=model,
        pipeline=fakes.tiny_pipeline(model),
        client_data=data,
        context=mock.Mock(spec=tff.framework.AsyncContext),
        build_cohorts=build,
        epsilon=_EPSILON,
        num_rounds=num_rounds,
        vectors=_VECTORS,
    ) | changes)
    built = []

    def build_process(**arguments):
      process = _Process(**arguments)
      process.cohort_size = settings.cohorts.sampling.cohort_size
      built.append(process)
      return process

    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        mock.patch.object(fed_evaluation, 'build', build_process),
        mock.patch.object(
            client_data_lib, 'client_arguments', lambda _, chosen: chosen
        ),
        mock.patch.object(tff.framework, 'set_default_context'),
    ):
      results = asyncio.run(private_evaluation.evaluate(settings))
    return results, built[0], printed.getvalue()

  def lines(self, run):
    """The lines of rounds in a run's ledger that evaluations charged."""
    with open(os.path.join(run, run_dir.LEDGER), encoding='utf-8') as f:
      return [each for each in map(json.loads, f) if each.get('release')]

  def verdict(self, run):
    """Epsilon, delta and whether it is private, in a run's report."""
    report = run_dir.read_privacy_report(run)
    return report['epsilon'], report['delta'], report['private']


class MatrixTest(_TestCase):

  @parameterized.parameters(*_CELLS)
  def test_what_an_evaluation_costs_and_draws(self, training, kind, num_rounds):
    run = self.finished_run(training)
    drawn, token_bytes = [], secrets.token_bytes
    record = lambda count: drawn.append(token_bytes(count)) or drawn[-1]
    with (
        mock.patch.object(secrets, 'token_bytes', record),
        mock.patch.object(keys, 'from_seed', side_effect=AssertionError),
    ):
      found = [
          self.evaluate(run, kind, num_rounds=num_rounds, epsilon=epsilon,
                        allows_not_private=True)
          for epsilon in (_EPSILON, _EPSILON)
      ]
    lines = self.lines(run)
    self.assertLen(lines, 2 * num_rounds)

    # Its own charge, under the relation of the whole ledger: at most what was
    # asked, and not much less.
    z = lines[0]['cost']['noise_multiplier']
    self.assertEqual({each['cost']['noise_multiplier'] for each in lines}, {z})
    replaces = 'fixed_size' in (training, kind)
    gaussian = dp_accounting.GaussianDpEvent(z / 2 if replaces else z)
    relation = dp_accounting.NeighboringRelation
    if kind == 'fixed_size':
      accountant = rdp.RdpAccountant(
          neighboring_relation=relation.REPLACE_ONE
      )
      event = dp_accounting.SampledWithoutReplacementDpEvent(
          _PEOPLE, _COHORT, gaussian
      )
    else:
      accountant = pld.PLDAccountant(relation.ADD_OR_REMOVE_ONE)
      event = gaussian
      if kind == 'poisson':
        event = dp_accounting.PoissonSampledDpEvent(0.5, gaussian)
    accountant.compose(event, num_rounds)
    self.assertBetween(
        accountant.get_epsilon(_DELTA), 0.97 * _EPSILON, _EPSILON
    )

    # Each round has its own key, which follows from one that the system drew.
    used = []
    for evaluation, (_, process, _) in enumerate(found):
      self.assertLen(process.keys, num_rounds)
      used += process.keys
      identities = [
          each['identity'] for each in lines[evaluation * num_rounds:]
      ]
      chains = []
      for each in drawn:
        chain = [keys.from_bytes(each)]
        for _ in range(num_rounds - 1):
          chain.append(keys.derive(chain[-1], purpose='next round'))
        chains.append([
            keys.to_bytes(keys.derive(key, purpose=identity))
            for key, identity in zip(chain, identities)
        ])
      self.assertIn([keys.to_bytes(key) for key in process.keys], chains)
    self.assertLen({keys.to_bytes(key) for key in used}, 2 * num_rounds)
    noise = np.stack([
        each for _, process, _ in found for each in process.noise
    ])
    for first, second in itertools.combinations(noise, 2):
      self.assertGreater(np.abs(first - second).max(), 0.01 * z)
    # It is noise of the deviation that is charged: 16 or 48 draws.
    self.assertBetween(np.sqrt(np.mean(noise**2)) / z, 0.4, 1.8)

  @parameterized.parameters(
      ('poisson', 'fixed_size'), ('fixed_size', 'poisson')
  )
  def test_cohorts_without_a_common_relation_are_refused(self, training, kind):
    run = self.finished_run(training)
    with self.assertRaisesRegex(ValueError, 'cannot be composed'):
      self.evaluate(run, kind)
    self.assertEmpty(self.lines(run))
    self.assertLen(public_data.read(run), 1)

  @parameterized.parameters('poisson', 'fixed_size', 'full')
  def test_counts_cost_what_was_asked_after_any_training(self, training):
    run = self.finished_run(training, noise=30.0)
    with contextlib.redirect_stdout(io.StringIO()):
      released = count_release.release(
          run,
          [(each, np.array([0]), np.array([1])) for each in
           self.data.client_ids],
          corpus=self.path('people'),
          public_corpora=[],
          num_elements=4,
          epsilon=_EPSILON,
      )
    (line,) = self.lines(run)
    z = line['cost']['noise_multiplier']
    self.assertEqual((line['release'], released.stddev), ('counts', z))
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(
        z / (2 if training == 'fixed_size' else 1)
    ))
    self.assertBetween(
        accountant.get_epsilon(_DELTA), 0.97 * _EPSILON, _EPSILON
    )
    self.assertEqual(public_data.read(run)[-1].role, 'counted')


class EstimateTest(_TestCase):
  """The helper and its caller: `PersonVectors` and `EvaluationRounds`."""

  def rounds(
      self, kind, *, population, cohort_size, noise_multiplier,
      vectors=_VECTORS,
  ):
    with mock.patch.object(fed_evaluation, 'build'):
      return evaluation_rounds.EvaluationRounds(
          model=None,
          pipeline=None,
          client_data=None,
          sampling=_sampling(kind, population, cohort_size),
          noise=evaluation_rounds.EvaluationNoise(
              noise_multiplier=noise_multiplier, vectors=vectors
          ),
      )

  def estimate(self, rounds, total, num_rounds=1):
    """What a noised sum of all rounds shows."""
    state = mock.Mock(
        finalizer=np.float32(total / rounds.sampling.cohort_size)
    )
    return rounds.estimate(state, num_rounds=num_rounds)

  @parameterized.parameters(
      ('full', 1), ('poisson', 1), ('poisson', 3), ('fixed_size', 1),
      ('fixed_size', 3),
  )
  def test_95_of_100_intervals_hold_and_none_is_wider_than_needed(
      self, kind, num_rounds
  ):
    # Of 1,000 draws 920 to 980: more than 4 standard deviations.
    population, cohort_size, z = 400, 120, 2.0
    generator = np.random.default_rng(17)
    rate = generator.integers(0, 11, population) * generator.integers(
        0, 2, population
    ) / 10
    vectors = np.concatenate([
        math.sqrt(0.4) * rate[:, np.newaxis],
        np.full([population, 1], math.sqrt(0.1)),
        math.sqrt(0.5) * np.eye(21)[
            np.minimum((20 * rate + 0.5).astype(int), 19)
        ],
    ], axis=1)
    rounds = self.rounds(
        kind, population=population, cohort_size=cohort_size,
        noise_multiplier=z,
        vectors=private_wer.PersonVectors(max_words=10, min_words=2),
    )
    hits, estimates, widths = 0, [], []
    for _ in range(1000):
      total = generator.normal(0, z * math.sqrt(num_rounds), 23)
      for _ in range(num_rounds):
        if kind == 'poisson':
          chosen = generator.random(population) < cohort_size / population
        elif kind == 'fixed_size':
          chosen = generator.permutation(population)[:cohort_size]
        else:
          chosen = slice(None)
        total += vectors[chosen].sum(axis=0)
      found = self.estimate(rounds, total, num_rounds).word_error_rate
      hits += found.low <= rate.mean() <= found.high
      estimates.append(found.estimate)
      widths.append(found.high - found.low)
    self.assertBetween(hits, 920, 980)
    needed = 2 * 1.96 * np.std(estimates)
    self.assertBetween(np.mean(widths) / needed, 0.9, 1.15)

  @parameterized.parameters(
      ('full', 1, 40), ('fixed_size', 1, 10), ('fixed_size', 3, 30),
      # Only the expected number of Poisson cohorts is public.
      ('poisson', 3, None),
  )
  def test_the_public_number_of_people_is_used(self, kind, num_rounds, public):
    # Noise has added people: 25, 20 and 5 of 3 bins; the bin of too few words
    # is far below zero, so that all people are in the histogram.
    total = np.array([5.0, 9.0, *(math.sqrt(0.5) * np.array(
        [25.0, 20.0, 5.0, -90.0, -90.0, -90.0]
    ))])
    rounds = self.rounds(
        kind, population=40, cohort_size=10, noise_multiplier=1.0
    )
    found = self.estimate(rounds, total, num_rounds)
    # Without a public number, that of the noised bins: negative, so nobody.
    self.assertAlmostEqual(sum(found.histogram), public or 0, places=3)


class VerdictTest(_TestCase):

  def test_a_release_to_more_people_takes_a_delta_that_suits_them(self):
    # 3 people trained it: their default delta is above 1 / 60.
    few, many = self.people('few', 3), self.people('many', 60)
    run = self.finished_run('full', data=few, delta=0.1 / 3)
    results, _, printed = self.evaluate(run, data=many)
    self.assertEqual(results['delta'], 0.1 / 60)
    self.assertEqual(self.verdict(run)[1:], (0.1 / 60, True))
    self.assertEqual(results['delta_before'], 0.1 / 3)
    self.assertRegex(
        printed,
        r'privacy of .*run: epsilon [\d.]+ \(at delta 0\.0333333\) -> '
        r'[\d.]+ at delta 0\.00166667: private\n',
    )
    # A delta that suits both stays.
    other = self.finished_run('full', name='other', data=few, delta=1e-4)
    self.assertEqual(self.evaluate(other, data=many)[0]['delta'], 1e-4)

  @parameterized.named_parameters(
      ('delta', dict(delta=0.5), r'delta is 0\.5, not below 1 / population'),
      ('epsilon', dict(epsilon=20.0), r'epsilon is 2\d\.?\d*, above 10'),
  )
  def test_a_guarantee_ends_only_where_that_is_asked_for(self, changes, reason):
    run = self.finished_run()
    before = self.verdict(run)
    self.assertTrue(before[-1])
    with self.assertRaisesRegex(
        ValueError,
        rf'epsilon [\d.]+.* -> [\d.]+ at delta .*: NOT PRIVATE: {reason}.*; '
        'nothing is charged yet.*ALLOW_NOT_PRIVATE',
    ):
      self.evaluate(run, **changes)
    # Nothing is charged, listed or written.
    self.assertEqual(self.verdict(run), before)
    self.assertEmpty(self.lines(run))
    self.assertLen(public_data.read(run), 1)
    results, _, printed = self.evaluate(
        run, allows_not_private=True, **changes
    )
    self.assertLen(self.lines(run), 1)
    self.assertFalse(self.verdict(run)[-1])
    self.assertEqual(
        (results['private_before'], results['private']), (True, False)
    )
    self.assertAlmostEqual(results['epsilon_before'], before[0])
    self.assertRegex(results['verdict'], f'NOT PRIVATE: .*{reason}')
    # Beforehand and in the end.
    self.assertEqual(printed.count('NOT PRIVATE'), 2)
    # Where nothing is promised, nothing ends.
    self.evaluate(run, **changes)

  def test_the_outlook_is_what_the_report_then_says(self):
    run = self.finished_run()
    before = self.verdict(run)
    results, _, printed = self.evaluate(run)
    after = self.verdict(run)
    self.assertEqual(results['total_epsilon'], after[0])
    words = [privacy_report.format_epsilon(x[0]) for x in (before, after)]
    self.assertIn(f'epsilon {words[0]} -> {words[1]} at delta 0.001', printed)
    self.assertEqual(results['private'], after[-1])

  def test_a_ledger_that_promises_nothing_is_not_charged(self):
    run = self.finished_run()
    path, head = run_dir.ledger_of_model(run)
    with mock.patch.object(
        ledger_lib.Ledger, 'contents', ledger_lib.read(
            path, head=head
        )._replace(invalidations=('a fixed key',))
    ):
      with self.assertRaisesRegex(ValueError, r'NOT PRIVATE \(a fixed key\)'):
        self.evaluate(run)


class LineageTest(_TestCase):

  def test_a_child_s_report_has_what_its_parent_released_later(self):
    parent = self.finished_run()
    child = self.path('child')
    with run_dir.RunDir(child, configuration='') as folder:
      with private_rounds.create_ledger(
          folder, [run_dir.ledger_of_model(parent)]
      ) as ledger:
        ledger.append(fakes.charged_round(
            0, key=77, sampling=_sampling('poisson'), noise_multiplier=9.0
        ))
    report = lambda run: privacy_report.of_ledger(
        run_dir.read_ledger(run), delta=_DELTA
    )
    before = report(child)
    self.evaluate(parent)
    after, alone = report(child), report(parent)
    self.assertEqual(
        (before.num_rounds, after.num_rounds, after.later), (4, 5, 1)
    )
    # All that was released of these people: more than either stated.
    self.assertGreater(after.epsilon, max(before.epsilon, alone.epsilon))
    rounds = [*run_dir.read_ledger(parent).rounds, accounting.RoundGroup(
        sampling=_sampling('poisson'), noise_multiplier=9.0
    )]
    self.assertAlmostEqual(
        after.epsilon,
        privacy_report.PrivacyReport(
            rounds=tuple(rounds), delta=_DELTA
        ).epsilon,
        places=6,
    )
    text = ' '.join(str(after).split())
    self.assertIn(
        '4 of these rounds belong to runs that this one started from, 1 of '
        'them charged after it began;',
        text,
    )
    self.assertEqual(after.fields['later_rounds'], 1)
    self.assertIn('1 of these rounds released noised word error rates', text)
    os.rename(parent, self.path('moved'))
    gone = report(child)
    self.assertEqual(gone.num_rounds, 4)
    (warning,) = gone.fields['warnings']
    self.assertIn(
        f'what {parent}/ledger.jsonl charged after this run began is not '
        'counted',
        warning,
    )
    self.assertIn(warning, gone.summary)

  def test_the_default_delta_is_of_the_largest_inherited_population(self):
    parent = self.finished_run()
    child = self.path('child')
    with run_dir.RunDir(child, configuration='') as folder:
      with private_rounds.create_ledger(
          folder, [run_dir.ledger_of_model(parent)]
      ) as ledger:
        for population, delta in ((3, 0.1 / _PEOPLE), (60, 0.1 / 60)):
          runner = private_rounds.PrivateRoundRunner(
              ledger=ledger,
              noise=private_rounds.NoiseState(keys.draw(), np.int64(0)),
              sampling=_sampling('poisson', population, 1),
              configuration='',
              settings=private_rounds.PrivacySettings(),
          )
          self.assertEqual(runner.delta, delta)


if __name__ == '__main__':
  absltest.main()
