"""Tests of tff_asr.privacy.privacy_report."""

import dataclasses
import itertools
import json
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from tests import cases
from tests import fakes
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger
from tff_asr.privacy import privacy_report
from tff_asr.privacy import strategies

_STRATEGIES = {
    'min_sep': strategies.optimize(num_rounds=200, min_sep=100),
    'cyclic': strategies.optimize_banded(num_rounds=200, num_bands=4),
}
# Most reports are of the same rounds.
_PLD_ONCE = fakes.pld_once()


def setUpModule():  # pylint: disable=invalid-name
  _PLD_ONCE.start()


def tearDownModule():  # pylint: disable=invalid-name
  _PLD_ONCE.stop()


def _rounds(
    kind='poisson', cohort_size=10, population=1000, noise=2.0, count=9
):
  return accounting.RoundGroup(
      sampling=accounting.Sampling(
          kind=kind,
          cohort_size=cohort_size,
          population=population,
          min_sep=(
              100 if kind in accounting.MIN_SEP_KINDS else None
          ),
      ),
      noise_multiplier=noise,
      count=count,
      strategy=_STRATEGIES.get(kind),
  )


def _noised(group, num_elements):
  """The group, with the norm of the noise of D elements."""
  return dataclasses.replace(
      group, noise_norm=math.sqrt(num_elements) * group.noise_multiplier
  )


def _report(
    *rounds, delta=1e-4, l2_norm_clip=0.01, unit='speaker', **kwargs
):
  details = (
      'adaptive_layers', 'public_inputs', 'public_model', 'public_check',
      'tokens', 'layer_noise', 'has_layer_clips',
  )
  report = privacy_report.PrivacyReport(
      rounds=rounds,
      delta=delta,
      privacy_unit=unit,
      details=privacy_report.TrainingDetails(
          l2_norm_clip=l2_norm_clip,
          **{name: kwargs.pop(name) for name in details if name in kwargs},
      ),
      **kwargs,
  )
  assert max(map(len, str(report).split('\n'))) <= 80
  json.dumps(report.fields, allow_nan=False)
  return report


def _joined(report):
  """The text without its wrapping."""
  return ' '.join(str(report).split())


class ReportTest(parameterized.TestCase):

  @parameterized.parameters(
      ('min_sep', 'The guarantee also holds against the server'),
      ('fixed_size', 'the server knows which clients were sampled'),
  )
  def test_says_what_a_server_of_secure_sums_sees(self, kind, words):
    secure = dataclasses.replace(
        _rounds(kind, noise=0),
        noise_multiplier=2.0,
        strategy=None,
        secure_sum=accounting.SecureSumParams(
            bits=16, num_clients=10, min_clients=8
        ),
    )
    report = _report(secure)
    text = _joined(report)
    for each in (
        words, 'distributed differential privacy', 'SIMULATED',
        'only their noised sum, 16 bits per element', 'of the noise of 8 of 10',
        'who drops out', 'a device that drops out adds no noise',
    ):
      self.assertIn(each, text)
    self.assertNotIn('updates before noise is added', text)
    # Additional rounds of a trusted server are reported.
    if kind == 'fixed_size':
      text = _joined(_report(secure, _rounds(kind)))
      self.assertIn('In other rounds, the server sees the updates', text)

  def test_the_first_three_lines_are_the_verdict(self):
    first, second, third = str(_report(_rounds())).split('\n')[:3]
    self.assertRegex(
        first, r'^Privacy report: \(0\.\d+, 0.0001\)-differential privacy$'
    )
    self.assertRegex(
        second, r'^Epsilon: [\d.]+ by PLD, [\d.]+ by RDP at '
        'delta 0.0001$',
    )
    self.assertEqual(
        third, 'Privacy unit: speaker; neighbouring relation: add or remove '
        'one speaker',
    )

  def test_states_everything_that_a_reader_needs(self):
    report = _report(_rounds())
    text = _joined(report)
    for words in (
        'central', 'trusted server', 'all recordings of one client',
        # No seed model and no dev set where there is none.
        'public the number of speakers, all hyperparameters', 'Poisson',
        '1,000 speakers', 'clip 0.01 (L2 norm of what one speaker adds',
        'probability 0.01', '10 expected',
        'rounds 9;', 'noise multiplier 2 (on the sum', '0.2 on the mean',
        'NOT COVERED choosing hyperparameters by looking at private data',
        'a run ends when too many clients of a round fail',
        'a client hangs (CLIENT_TIMEOUT_SEC) or runs out of memory',
        'it does not start when a private transcript has a character that is',
        'assumptions the number of rounds was settled before the first',
    ):
      self.assertIn(words, text)
    by_rdp = accounting.epsilon([_rounds()], delta=1e-4)
    by_pld = accounting.epsilon([_rounds()], delta=1e-4, accountant='pld')
    self.assertTrue(report.private)
    self.assertNotIn('NOT PRIVATE', text)
    self.assertNotIn('device', text)
    self.assertEqual(report.epsilon, min(by_rdp, by_pld))
    expected = dict(
        epsilon_rdp=by_rdp, epsilon_pld=by_pld, rounds=9,
        neighbouring_relation='add_or_remove_one', delta=1e-4,
        l2_norm_clip=0.01,
    )
    self.assertEqual(report.fields, report.fields | expected)

  def test_says_where_tokens_come_from(self):
    report = _report(_rounds(), tokens='pieces of a public text')
    self.assertIn(' tokens pieces of a public text ', _joined(report))
    self.assertEqual(report.fields['tokens'], 'pieces of a public text')
    self.assertNotIn(' tokens ', _joined(_report(_rounds())))

  def test_groups_that_differ_all_count_in_any_order(self):
    groups = [
        _rounds(noise=2.0, count=9),
        _rounds(noise=3.0, count=20, population=500),
        _rounds(noise=1.5, count=4, cohort_size=25, population=2000),
    ]
    epsilon = accounting.epsilon(groups, delta=1e-3)
    for order in (groups, groups[1:] + groups[:1]):
      report = _report(*order, delta=1e-3)
      self.assertAlmostEqual(report.fields['epsilon_rdp'], epsilon)
      self.assertEqual(report.fields['rounds'], 33)
      # 1 / population of the largest.
      self.assertIn('NOT PRIVATE: delta is 0.001, not below 1 / population '
                    '(0.0005)', _joined(report))
      self.assertEqual(
          [
              (group['noise_multiplier'], group['rounds'], group['population'])
              for group in report.fields['groups']
          ],
          [
              (group.noise_multiplier, group.count, group.sampling.population)
              for group in order
          ],
      )
      for words in ('9; ', '20; ', '4; ', '500 speakers', '2,000 speakers'):
        self.assertIn(words, _joined(report))
      # One group without noise leaves no guarantee, wherever it stands.
      for place in range(4):
        broken = [*order[:place], _rounds(noise=0.0), *order[place:]]
        report = _report(*broken)
        self.assertEqual(report.epsilon, math.inf)
        self.assertEqual(report.fields['epsilon'], 'inf')
        self.assertIn('Epsilon: infinite by RDP', _joined(report))

  @parameterized.parameters(
      (
          'fixed_size', 10, 'replace one speaker with another',
          'without replacement', 'by PLD not computed: it takes Poisson',
      ),
      (
          'min_sep', 10, "zero-out: one speaker's updates are replaced by zeros",
          'at most once in any 100 consecutive rounds and once in all',
          'BLT, 3 buffers',
          '(secrets.safetensors) is as sensitive as the updates',
          'moves all rounds together by 1.',
      ),
      (
          'cyclic', 5, 'zero-out',
          'in one of every 100 rounds, once in all',
          'joins independently with probability 0.5, 5 expected',
          'banded, 3 buffers',
          '(secrets.safetensors) is as sensitive as the updates',
          'clips each time it joins',
      ),
      ('full', 1000, 'full participation: all 1,000 speakers'),
  )
  def test_other_sampling_is_stated_with_its_relation(
      self, kind, cohort_size, *words
  ):
    report = _report(_rounds(kind, cohort_size, noise=5.0))
    self.assertEqual(report.fields['epsilon_pld'] is None, kind == 'fixed_size')
    for each in words:
      self.assertIn(each, _joined(report))

  def test_one_buffer_and_several_rounds_of_a_client_are_counted_in_words(self):
    group = dataclasses.replace(
        _rounds('min_sep', noise=5.0, count=201),
        strategy=strategies.Toeplitz(
            output_scale=(2**29,), buf_decay=(2**29,)
        ),
    )
    found = _joined(_report(group))
    self.assertIn('(BLT, 1 buffer)', found)
    self.assertIn('rounds and 3 times in all', found)

  def test_large_epsilon_is_not_private(self):
    # The paper's sigma 10e-6: epsilon 1.1e7 in the run.
    report = _report(
        _rounds('poisson', 1024, 34_753, noise=0.01024, count=2006),
        delta=1e-9,
    )
    self.assertFalse(report.private)
    self.assertRegex(_joined(report), r'NOT PRIVATE: epsilon is 1\.0\de\+07')
    self.assertIn('RDP gives epsilon', _joined(report))

  @parameterized.parameters(
      (_rounds(noise=0.0), {}, 'no noise is added, or not to all layers'),
      (_rounds(), dict(l2_norm_clip=math.inf), 'updates are not clipped'),
      (_rounds(), dict(invalidations=('its key is known',)), 'its key is known'),
      (_rounds(), dict(invalidations=('A', 'B')), 'A; B'),
  )
  def test_not_private_says_why_before_any_number(
      self, rounds, kwargs, message
  ):
    report = _report(rounds, **kwargs)
    self.assertEqual((report.private, report.fields['private']), (False, False))
    self.assertRegex(_joined(report), f'NOT PRIVATE: {message}')
    self.assertStartsWith(str(report), 'Privacy report: NOT PRIVATE')

  @parameterized.parameters(
      (
          dict(inherited=4, public_inputs=('the seed model', 'the dev set')),
          'public the seed model, the dev set, the number of speakers, all '
          'hyperparameters, except what earlier runs are charged for',
      ),
      (
          dict(
              public_inputs=('the dev set',),
              public_model=dict(
                  name='whisper-tiny.en',
                  licence='MIT',
                  source='a package',
                  sha256='1a5afae0' * 8,
              ),
          ),
          r'public public model whisper-tiny.en \(licence MIT, SHA-256 '
          r'1a5afae01a5afae0\.\.\.; its own training data are not covered\), '
          'the dev set, the number of speakers',
      ),
      (dict(inherited=4), '4 of these rounds belong to runs'),
      (
          dict(inherited=4, later=3),
          'this one started from, 3 of them charged after it began; what those '
          'runs charge after this report was written is counted when it is',
      ),
      (
          dict(unread=('x/ledger.jsonl',)),
          'WARNING: what x/ledger.jsonl charged after this run began is not',
      ),
      (dict(inherited=9, l2_norm_clip=None), 'all of these rounds belong to'),
      (dict(l2_norm_clip=None), 'clip that of the inherited rounds'),
      (
          dict(other_units=(privacy_report.PrivacyReport(
              rounds=(_rounds(),), delta=1e-4, privacy_unit='example'
          ),)),
          'each example is protected.* hyperparameters, except what earlier ',
      ),
      (dict(unit='example'), 'norm of what one example adds to a sum'),
      (dict(adaptive_layers=7), 'after the last round; 7 clips follow'),
      (
          dict(notes=(ledger.Note('exact_metrics', 4),)),
          'WARNING: exact .* from round 5 of the .*do not publish them',
      ),
      (
          dict(notes=(ledger.Note('length_changed', 20),)),
          r'WARNING: the end of the run .* changed, first after 20 charged',
      ),
      (
          dict(invalidations=('A',)),
          r'Epsilon: infinite; [\d.]+ by PLD.* if nothing invalidated it',
      ),
      (dict(delta=1e-3), 'NOT PRIVATE: delta is 0.001, not below 1 / pop'),
      (
          dict(notes=(ledger.Note('copied', 1_005),)),
          'WARNING: .*a copy or was restored .noticed after 1,005 charged',
      ),
      (dict(unit='example'), 'unit covers one recording; a speaker with'),
  )
  def test_each_circumstance_is_stated(self, changes, words):
    self.assertRegex(_joined(_report(_rounds(), **changes)), words)
    self.assertNotRegex(_joined(_report(_rounds(), delta=9.99e-4)), words)

  def test_an_end_that_models_decide_breaks_delta_and_is_not_promised(self):
    # Losses of 1 to 512 rounds of all clients at z = 8, with steps
    # N(1 / (2 z^2), 1 / z^2). Ending a run as soon as its loss exceeds
    # epsilon by .3 (or never) exceeds delta, 1e-2, which each number of rounds
    # alone keeps. Standard errors are below 2e-4.
    generator, loss, before = np.random.default_rng(1), np.zeros(200_000), 0
    ended, broken = np.zeros(loss.shape, bool), 0.0
    for count in 2 ** np.arange(10):
      steps = int(count) - before
      loss += generator.normal(steps / 128, math.sqrt(steps) / 8, loss.shape)
      before = int(count)
      group = _rounds(
          kind='full', cohort_size=1000, noise=8.0, count=before
      )
      epsilon = accounting.epsilon(
          [group], delta=1e-2, accountant='pld'
      )
      over = np.maximum(0, -np.expm1(epsilon - loss))
      self.assertLess(over.mean(), 1.1e-2)
      now = (loss > epsilon + 0.3) & ~ended
      broken += over[now].sum() / loss.size
      ended |= now
    self.assertGreater(broken, 2e-2)
    (assumed,) = _report(group).fields['assumptions']
    self.assertIn('settled before the first', assumed)

  def test_noise_over_the_clip_by_hand(self):
    # The quickstart's: sqrt(628,448) .8 / 1,000 = .6342, sqrt(20) / .6342.
    quickstart = _rounds(cohort_size=1000, population=12_000, noise=0.8,
                         count=20)
    report = _report(_noised(quickstart, 628_448), delta=1e-5)
    self.assertIn('noise / C 0.634 a round, the norm of', _joined(report))
    self.assertIn('sqrt(rounds) / (noise / C) is 7.05 ', _joined(report))
    self.assertIn(
        'Noise / C a round: 0.634; sqrt(rounds) / (noise / C): 7.05\n',
        f'{report.summary}\n',
    )
    (group,) = report.fields['groups']
    self.assertAlmostEqual(group['noise_over_clip'], 0.6342, places=4)
    self.assertAlmostEqual(report.fields['rounds_over_noise'], 7.0517, places=3)
    # Ledgers may lack the norm: D is not guessed.
    unknown = _report(quickstart, delta=1e-5)
    self.assertIn('noise / C not known: sqrt(D) x 0.0008', _joined(unknown))
    self.assertNotIn('noise of the run', _joined(unknown))
    self.assertIn('a round: not known; sqrt', unknown.summary)
    self.assertIsNone(unknown.fields['rounds_over_noise'])

  def test_noise_of_rounds_that_differ_adds_up(self):
    # 100 elements, z 2, cohorts of 10: 2 a round. z 1: 1 a round. The sum has
    # the variance 4 x 4 + 9 = 25: 13 rounds / 5.
    groups = [_noised(_rounds(noise=2.0, count=4), 100),
              _noised(_rounds(noise=1.0, count=9), 100)]
    report = _report(*groups)
    self.assertEqual(report.noise_over_clip, [2.0, 1.0])
    self.assertAlmostEqual(report.rounds_over_noise, 2.6)
    self.assertIn(
        'C over the noise of the mean update of all rounds is 2.6 ',
        _joined(report),
    )
    # One of them is not known, so the whole is not.
    self.assertIsNone(_report(groups[0], _rounds()).rounds_over_noise)
    # What released no model has no part in it: sqrt(4) / 2.
    report = _report(
        *groups, releases={'counts': (groups[1],)}, delta=1e-4
    )
    self.assertEqual(report.noise_over_clip, [2.0])
    self.assertAlmostEqual(report.rounds_over_noise, 1.0)
    self.assertEqual(
        _report(_noised(_rounds(noise=0.0), 100)).fields['rounds_over_noise'],
        'inf',
    )

  def test_correlated_noise_over_the_clip_by_hand(self):
    # c = 1, 1/2, so C^-1 = 1, -1/2: the rounds' noise has variances 1 and 5/4,
    # and their sum 1 + 1/4. 100 elements, z 5, cohorts of 5: 10 before.
    half = strategies.Toeplitz(output_scale=(2**29,), buf_decay=())
    group = dataclasses.replace(
        _noised(_rounds('cyclic', 5, noise=5.0, count=2), 100), strategy=half
    )
    self.assertAlmostEqual(group.noise_over_clip, 10 * math.sqrt(9 / 8))
    self.assertAlmostEqual(group.noise_of_sum, 10 * math.sqrt(5 / 4))
    report = _report(group)
    self.assertAlmostEqual(
        report.rounds_over_noise, 2 / (10 * math.sqrt(5 / 4))
    )
    for words in (
        '10.6 a round', '10 without correlation',
        'C over the noise of the mean update of all rounds is 0.179 ',
    ):
      self.assertIn(words, _joined(report))
    # As the covariance of longer sequences has it.
    for kind, size in (('min_sep', 10), ('cyclic', 5)):
      group = _noised(_rounds(kind, size, noise=5.0, count=50), 100)
      covariance = group.strategy.covariance(50)
      draw = 50 / size
      self.assertAlmostEqual(
          group.noise_over_clip, draw * math.sqrt(np.trace(covariance) / 50)
      )
      self.assertAlmostEqual(
          group.noise_of_sum, draw * math.sqrt(covariance.sum())
      )
      # Two sequences share no noise.
      self.assertAlmostEqual(
          _report(group, group).rounds_over_noise,
          100 / (math.sqrt(2) * group.noise_of_sum),
      )

  def test_noise_by_layer_is_stated(self):
    noise = {'a/w': 0.3, 'a/b': 0.02, 'c': 0.1}
    report = _report(_rounds(), layer_noise=noise, has_layer_clips=True)
    self.assertIn(
        'noise by layer a round, for 3 layers: 0.02 (a/b) to 0.3 (a/w), each '
        'over its own clip C_h ', _joined(report),
    )
    self.assertEqual(report.fields['layer_noise'], noise)
    self.assertIn(
        'each over C: all layers are clipped as one',
        _joined(_report(_rounds(), layer_noise=noise)),
    )
    equal = dict.fromkeys('ab', 0.6342)
    self.assertIn(
        'noise by layer 0.634 a round for each of 2 layers',
        _joined(_report(_rounds(), layer_noise=equal, has_layer_clips=True)),
    )
    self.assertIn('noise by layer not known', _joined(_report(_rounds())))

  def test_details_of_a_report_are_read_again(self):
    report = _report(_rounds(), layer_noise={'a': 0.5}, has_layer_clips=True)
    self.assertEqual(
        privacy_report.TrainingDetails.of_fields(report.fields), report.details
    )
    plan = dataclasses.replace(report, details=None)
    self.assertIsNone(privacy_report.TrainingDetails.of_fields(plan.fields))

  def test_nothing_released_yet(self):
    report = _report(_rounds(count=0))
    self.assertEqual(report.epsilon, 0)
    self.assertIn('no round is released yet', str(report).split('\n')[0])
    self.assertNotIn('NOT PRIVATE', str(report))
    self.assertIn('NOT PRIVATE', str(_report(_rounds(count=0, noise=0.0))))

  @parameterized.parameters(
      (0.2001, '0.201'), (10.0, '10'), (10.01, '10.1'), (7.2227, '7.23'),
      (0.0, '0'), (math.inf, 'infinite'), (999.5, '1e+03'), (123.0, '123'),
      (7e-5, '7e-05'),
  )
  def test_printed_epsilon_is_never_below_the_real_one(self, value, text):
    self.assertEqual(privacy_report.format_epsilon(value), text)

  def test_bad_arguments_are_named(self):
    with self.assertRaisesRegex(ValueError, 'delta'):
      _report(_rounds(), delta=0.0)
    with self.assertRaisesRegex(ValueError, 'rounds must have'):
      _report()


_PLAN = dict(cohort_size=1000, population=100_000, delta=1e-6)


class PlanTest(parameterized.TestCase):

  def test_any_two_of_noise_epsilon_and_rounds_give_the_third(self):
    forward = privacy_report.plan(noise_multiplier=1.0, rounds=1000, **_PLAN)
    self.assertAlmostEqual(forward.epsilon, 2.44, delta=0.005)
    noise = privacy_report.plan(
        target_epsilon=forward.epsilon, rounds=1000, **_PLAN
    )
    self.assertAlmostEqual(noise.rounds[0].noise_multiplier, 1.0, places=5)
    self.assertLessEqual(noise.epsilon, forward.epsilon)
    rounds = privacy_report.plan(
        target_epsilon=forward.epsilon, noise_multiplier=1.0, **_PLAN
    )
    self.assertEqual(rounds.rounds[0].count, 1000)

  def test_pld_leads_and_rdp_stands_beside_it(self):
    plan = dict(target_epsilon=4.0, rounds=20) | _PLAN
    of_rdp, found = (
        privacy_report.plan(accountant=accountant, **plan)
        for accountant in ('rdp', None)
    )
    self.assertEqual(found.epsilon, found.epsilon_pld)
    self.assertBetween(found.epsilon, 0.998 * 4, 4)
    self.assertGreater(found.epsilon_rdp, 4)
    noise, of_rdp = (
        report.rounds[0].noise_multiplier for report in (found, of_rdp)
    )
    self.assertBetween(of_rdp / noise, 1.05, 1.2)
    # It does not take these cohorts.
    fixed = privacy_report.plan(
        accountant=None, sampling='fixed_size', **plan
    )
    self.assertIsNone(fixed.epsilon_pld)
    self.assertLessEqual(fixed.epsilon, 4)

  def test_settings_reach_the_accounting(self):
    plan = dict(noise_multiplier=1.0, rounds=1000, **_PLAN)
    fixed = privacy_report.plan(sampling='fixed_size', **plan)
    self.assertAlmostEqual(fixed.epsilon, 23.3, delta=0.05)
    self.assertEqual(
        fixed.fields['neighbouring_relation'], 'replace_one'
    )
    by_pld = privacy_report.plan(accountant='pld', **plan)
    self.assertLess(by_pld.epsilon, privacy_report.plan(**plan).epsilon)
    by_default = privacy_report.plan(**plan | dict(delta=None))
    self.assertEqual(by_default.delta, 1e-6)

  @parameterized.named_parameters(
      ('one', dict(rounds=1), 'two of .*; found rounds'),
      ('none', dict(), 'found none of them'),
      (
          'three',
          dict(rounds=1, noise_multiplier=1.0, target_epsilon=1.0),
          'found .*target_epsilon, rounds',
      ),
      ('rounds', dict(rounds=-1, noise_multiplier=1.0), 'rounds'),
      ('target', dict(rounds=1, target_epsilon=0.0), 'target_epsilon'),
      ('noise', dict(rounds=1, noise_multiplier=-1.0), 'noise_multiplier'),
      (
          'accountant',
          dict(rounds=1, noise_multiplier=1.0, accountant='x'),
          'accountant',
      ),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      privacy_report.plan(**arguments, **_PLAN)


class ExtrapolateTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    # The paper's run with the noise of its first headline.
    self.plan = privacy_report.plan(
        cohort_size=1024, population=34_753, noise_multiplier=0.003072,
        rounds=2006, delta=1e-9,
    )

  def test_keeps_the_noise_on_the_mean_and_q(self):
    (row,) = privacy_report.extrapolate(self.plan, cohort_sizes=[204_800])
    (group,) = row.rounds
    self.assertEqual(group.sampling.population, 6_950_600)
    self.assertAlmostEqual(group.noise_multiplier, 0.6144)
    self.assertEqual(group.count, 2006)
    self.assertAlmostEqual(row.epsilon, 41.9, delta=0.05)

  def test_populations_are_combined_with_the_cohorts_that_they_hold(self):
    rows = privacy_report.extrapolate(
        self.plan,
        cohort_sizes=[1024, 204_800],
        populations=[100_000, 69_506_000],
    )
    self.assertEqual(
        [
            (row.rounds[0].sampling.cohort_size,
             row.rounds[0].sampling.population)
            for row in rows
        ],
        [(1024, 100_000), (1024, 69_506_000), (204_800, 69_506_000)],
    )

  def test_impossible_extrapolations_are_errors(self):
    with self.assertRaisesRegex(ValueError, 'no population of .10. holds'):
      privacy_report.extrapolate(self.plan, populations=[10])
    with self.assertRaisesRegex(ValueError, 'cohort_size'):
      privacy_report.extrapolate(self.plan, cohort_sizes=[0])
    sampling = accounting.Sampling(
        kind='poisson', cohort_size=1, population=10
    )
    mixed = privacy_report.PrivacyReport(
        rounds=tuple(
            accounting.RoundGroup(sampling=sampling, noise_multiplier=noise)
            for noise in (1.0, 2.0)
        ),
        delta=1e-3,
    )
    with self.assertRaisesRegex(ValueError, '2 kinds of rounds'):
      privacy_report.extrapolate(mixed, populations=[100])


class OutputTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.plan = privacy_report.plan(
        noise_multiplier=1.0, rounds=100, **_PLAN
    )

  def write(self, num_rounds, name='ledger.jsonl', **options):
    """Writes a ledger of this many rounds; returns its path and head."""
    path = self.path(name)
    with ledger.create(path, **options) as opened:
      for number in range(num_rounds):
        opened.append(fakes.charged_round(number))
      return path, opened.head

  def test_json_has_the_fields_that_programs_read(self):
    fields = json.loads(privacy_report.to_json([self.plan]))
    expected = dict(
        epsilon=self.plan.epsilon, epsilon_rdp=self.plan.epsilon, delta=1e-6,
        neighbouring_relation='add_or_remove_one', private=True, rounds=100,
    )
    self.assertEqual(fields, fields | expected)
    (group,) = fields['groups']
    self.assertEqual(group, dict(
        kind='poisson', cohort_size=1000, population=100_000,
        sampling_prob=0.01, noise_multiplier=1.0, sigma_mean=0.001, rounds=100,
        noise_over_clip=None,
    ))
    self.assertIsNone(fields['rounds_over_noise'])

  def test_grown_rows_say_that_error_rates_are_assumed(self):
    rows = [
        self.plan, *privacy_report.extrapolate(self.plan, cohort_sizes=[2000])
    ]
    _, _, given, grown, _ = privacy_report.plan_table(rows).splitlines()
    self.assertIn('as given', given)
    self.assertIn('WER assumed, not measured', grown)
    self.assertLen(json.loads(privacy_report.to_json(rows)), 2)

  def test_a_delta_of_one_over_the_population_is_not_private(self):
    plan = dict(noise_multiplier=9.0, rounds=1, cohort_size=10)
    for population in (10, 49, 1000, 10**9):
      solve = lambda delta, population=population: privacy_report.plan(
          delta=delta, population=population, **plan
      )
      at, below = solve(1 / population), solve(0.999 / population)
      self.assertTrue(below.private)
      self.assertFalse(at.private)
      self.assertIn('NOT PRIVATE: delta is', str(at))
    # A population that grows above 1 / delta loses the guarantee.
    small = privacy_report.plan(delta=1e-4, population=1000, **plan)
    table = privacy_report.plan_table(
        [small, *privacy_report.extrapolate(small, populations=[9000, 10_000])]
    )
    self.assertEqual(
        ['NOT PRIVATE' in line for line in table.splitlines()],
        [False, False, False, False, True, False],
    )

  def test_without_noise_or_secret_keys_it_says_not_private(self):
    fixed = dataclasses.replace(
        self.plan, invalidations=('NOISE_SEED fixes a key',)
    )
    bare = privacy_report.plan(noise_multiplier=0.0, rounds=1, **_PLAN)
    # A larger cohort does not make a fixed key secret.
    (grown,) = privacy_report.extrapolate(fixed, cohort_sizes=[5000])
    for report, reason in (
        (bare, 'no noise is added, or not to all layers'),
        (fixed, 'NOISE_SEED fixes a key'),
        (grown, 'NOISE_SEED fixes a key'),
    ):
      self.assertIn(f'NOT PRIVATE: {reason}', str(report))
      self.assertIn('infinite', str(report))
      self.assertEqual(report.fields['epsilon'], 'inf')
    table = privacy_report.plan_table([fixed, grown])
    self.assertIn('NOT PRIVATE: NOISE_SEED fixes a key', table)
    self.assertEqual(table.count('infinite'), 2)

  def test_groups_that_differ_cost_the_same_in_any_order(self):
    groups = [
        accounting.RoundGroup(
            sampling=accounting.Sampling(
                kind='poisson', cohort_size=cohort_size, population=1000
            ),
            noise_multiplier=noise,
            count=count,
        )
        for cohort_size, noise, count in (
            (10, 1.0, 3), (20, 2.0, 5), (10, 3.0, 7)
        )
    ]
    expected = accounting.epsilon(groups, delta=1e-6)
    for order in itertools.permutations(groups):
      report = privacy_report.PrivacyReport(
          rounds=order, delta=1e-6, accountant='rdp'
      )
      self.assertAlmostEqual(report.epsilon, expected)
      self.assertEqual(report.num_rounds, 15)

  def test_a_run_of_pretraining_is_extrapolated_in_its_unit(self):
    path, _ = self.write(2, privacy_unit='example')
    report = privacy_report.of_ledger(ledger.read(path))
    text = privacy_report.plan_table(
        [report, *privacy_report.extrapolate(report, cohort_sizes=[1000])]
    )
    # 10 of 1,000 with z = 1: a hundred times as many of as many more, with as
    # much noise on the mean.
    self.assertIn('| 10 | 1,000 | 0.01 | 2 | 0.1 | 1 |', text)
    self.assertIn('| 1,000 | 100,000 | 0.01 | 2 | 0.1 | 100 |', text)
    self.assertIn('privacy unit: example;', text)

  def test_each_privacy_unit_has_a_separate_report(self):
    parent = self.write(1, 'pretrained.jsonl', privacy_unit='example')
    path, _ = self.write(3, privacy_unit='speaker', parents=[parent])
    report = privacy_report.of_ledger(ledger.read(path), delta=1e-5)
    (other,) = report.other_units
    self.assertEqual((report.privacy_unit, report.num_rounds), ('speaker', 3))
    self.assertEqual((other.privacy_unit, other.num_rounds), ('example', 1))
    self.assertLess(other.epsilon, report.epsilon)
    # Delta is the speakers'; examples have their own population.
    self.assertEqual((report.delta, other.delta), (1e-5, 1e-4))
    self.assertEqual(str(report).count('Privacy report'), 2)
    (fields,) = report.fields['other_units']
    self.assertEqual(fields, other.fields)

  def test_the_default_delta_is_of_the_largest_population(self):
    populations = (1000, 20_000, 300)
    for order in (populations, populations[1:] + populations[:1]):
      rounds = [
          _rounds(population=population) for population in order
      ]
      self.assertEqual(
          privacy_report.delta_or_default(None, rounds), 0.1 / 20_000
      )
      self.assertEqual(privacy_report.delta_or_default(1e-3, rounds), 1e-3)
    with self.assertRaisesRegex(ValueError, 'no rounds'):
      privacy_report.delta_or_default(None, [])
