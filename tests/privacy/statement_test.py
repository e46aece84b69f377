"""Tests of tff_asr.privacy.statement."""

import dataclasses
import json
import math

from absl.testing import parameterized
import numpy as np

from tests import fakes
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger
from tff_asr.privacy import statement
from tff_asr.privacy import strategies

_STRATEGIES = {
    'min_sep': strategies.optimize(num_rounds=200, min_sep=100),
    'cyclic': strategies.optimize_banded(num_rounds=200, num_bands=4),
}
# Most statements are of the same rounds.
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


def _build(*rounds, delta=1e-4, l2_norm_clip=0.01, **kwargs):
  built = statement.build(
      rounds, delta=delta, l2_norm_clip=l2_norm_clip, **kwargs
  )
  # Whatever is stated fits a page and JSON.
  assert max(map(len, built.lines)) <= 80 and '\n' not in ''.join(built.lines)
  json.dumps(built.fields, allow_nan=False)
  return built


def _joined(built):
  """The text without its wrapping."""
  return ' '.join(str(built).split())


class StatementTest(parameterized.TestCase):

  @parameterized.parameters(
      ('min_sep', 'The guarantee is against the server, too'),
      ('fixed_size', 'the server knows whom sampling took'),
  )
  def test_says_what_a_server_of_secure_sums_sees(self, kind, words):
    secure = dataclasses.replace(
        _rounds(kind, noise=0),
        noise_multiplier=2.0,
        strategy=None,
        secure_sum=accounting.SecureSum(
            bits=16, num_clients=10, min_clients=8
        ),
    )
    built = _build(secure)
    text = _joined(built)
    for each in (
        words, 'distributed differential privacy', 'SIMULATED',
        'their noised sum alone, 16 bits an element', 'of the noise of 8 of 10',
        'sum of discrete Gaussians', 'who drops out',
        'NOT COVERED: a run ends', 'a device that drops out brings no noise',
    ):
      self.assertIn(each, text)
    self.assertNotIn('updates before noise is added', text)
    self.assertEqual(
        built.fields['model'], 'distributed, secure sums (simulated)'
    )
    # Rounds of a trusted server beside them are told.
    if kind == 'fixed_size':
      text = _joined(_build(secure, _rounds(kind)))
      self.assertIn('In other rounds, the server sees the updates', text)

  def test_states_everything_that_a_reader_needs(self):
    built = _build(_rounds())
    text = _joined(built)
    for words in (
        'central', 'trusted server', 'speaker: all recordings of one client',
        'add or remove one speaker',
        # No seed model and no dev set where there is none.
        'public the number of speakers, all hyperparameters', 'Poisson',
        '1,000 speakers', 'clip 0.01 (L2 norm of what one speaker adds',
        'upper bounds up to rounding in float64, which is less than 0.0001',
        'probability 0.01', '10 expected', 'delta 0.0001', 'clip 0.01',
        'rounds 9;', 'noise multiplier 2 (on the sum', '0.2 on the mean',
        'epsilon (RDP)', 'epsilon (PLD)', 'not charged',
        'whole steps of a public grid',
        'NOT COVERED: a run ends when more clients of a round fail than may',
        'one hangs (CLIENT_TIMEOUT_SEC) or lacks memory',
        'it does not begin when a private transcript has a character that is',
        'assumed the number of rounds was settled before the first',
        'only such as follow from the settings, the ledger and the released',
        'within epsilon 10 as it is',
    ):
      self.assertIn(words, text)
    event = accounting.compose([_rounds()])
    by_rdp = accounting.epsilon(event, delta=1e-4)
    by_pld = accounting.epsilon(event, delta=1e-4, accountant='pld')
    self.assertTrue(built.private)
    self.assertNotIn('NOT PRIVATE', text)
    self.assertNotIn('device', text)
    self.assertEqual(built.epsilon, min(by_rdp, by_pld))
    expected = dict(
        epsilon_rdp=by_rdp, epsilon_pld=by_pld, rounds=9,
        neighbouring='add_or_remove_one', delta=1e-4, l2_norm_clip=0.01,
    )
    self.assertEqual(built.fields, built.fields | expected)

  def test_says_where_tokens_come_from(self):
    built = _build(_rounds(), tokens='pieces of a public text')
    self.assertIn(' tokens pieces of a public text ', _joined(built))
    self.assertEqual(built.fields['tokens'], 'pieces of a public text')
    self.assertNotIn(' tokens ', _joined(_build(_rounds())))

  def test_groups_that_differ_all_count_in_any_order(self):
    groups = [
        _rounds(noise=2.0, count=9),
        _rounds(noise=3.0, count=20, population=500),
        _rounds(noise=1.5, count=4, cohort_size=25, population=2000),
    ]
    epsilon = accounting.epsilon(accounting.compose(groups), delta=1e-3)
    for order in (groups, groups[1:] + groups[:1]):
      built = _build(*order, delta=1e-3)
      self.assertAlmostEqual(built.fields['epsilon_rdp'], epsilon)
      self.assertEqual(built.fields['rounds'], 33)
      # 1 / population of the largest.
      self.assertIn('NOT PRIVATE: delta is 0.001, not below 1 / population '
                    '(0.0005)', _joined(built))
      self.assertEqual(
          [
              (group['noise_multiplier'], group['rounds'], group['population'])
              for group in built.fields['groups']
          ],
          [
              (group.noise_multiplier, group.count, group.sampling.population)
              for group in order
          ],
      )
      for words in ('9; ', '20; ', '4; ', '500 speakers', '2,000 speakers'):
        self.assertIn(words, _joined(built))
      # One group without noise leaves no guarantee, wherever it stands.
      for place in range(4):
        broken = [*order[:place], _rounds(noise=0.0), *order[place:]]
        built = _build(*broken)
        self.assertEqual(built.epsilon, math.inf)
        self.assertEqual(built.fields['epsilon'], 'inf')
        self.assertIn('epsilon (RDP) infinite', _joined(built))
        self.assertIsNone(built.fields['scale_for_target_epsilon'])

  @parameterized.parameters(
      (
          'fixed_size', 10, 'replace one speaker by another',
          'drawn without replacement', '(PLD) not computed: it takes Poisson',
      ),
      (
          'min_sep', 10, 'replace one speaker by nobody',
          'at most once in any 100 rounds in a row, 1 times in all',
          'BLT, 3 buffers',
          '(secrets.safetensors) is as sensitive as the updates',
          'moves all rounds together by 1.',
      ),
      (
          'cyclic', 5, 'replace one speaker by nobody',
          'in every 100th round, 1 times in all',
          'joins independently with probability 0.5, 5 expected',
          'banded, 3 buffers',
          '(secrets.safetensors) is as sensitive as the updates',
          'clips each time it joins',
      ),
      ('full', 1000, 'everyone: all 1,000 speakers'),
  )
  def test_other_sampling_is_stated_with_its_relation(
      self, kind, cohort_size, *words
  ):
    built = _build(_rounds(kind, cohort_size, noise=5.0))
    self.assertEqual(built.fields['epsilon_pld'] is None, kind == 'fixed_size')
    for each in words:
      self.assertIn(each, _joined(built))

  def test_large_epsilon_is_not_private_and_extrapolated(self):
    # The paper's sigma 10e-6: epsilon 1.1e7 in the run.
    built = _build(
        _rounds('poisson', 1024, 34_753, noise=0.01024, count=2006),
        delta=1e-9,
    )
    self.assertFalse(built.private)
    self.assertRegex(_joined(built), r'NOT PRIVATE: epsilon is 1\.0\de\+07')
    self.assertIn('RDP gives epsilon', _joined(built))
    scale = built.fields['scale_for_target_epsilon']
    # 12.6 at 102,400 and 4.44 at 204,800.
    self.assertBetween(scale['cohort_size'], 102_400, 204_800)
    self.assertIn(f'{scale["cohort_size"]:,} of', _joined(built))
    self.assertIn('WER assumed, not measured', _joined(built))

  @parameterized.parameters(
      (_rounds(noise=0.0), {}, 'no noise is added, or not to all layers'),
      (_rounds(), dict(l2_norm_clip=math.inf), 'updates are not clipped'),
      (_rounds(), dict(invalidations=['its key is known']), 'its key is known'),
      (_rounds(), dict(invalidations=['A', 'B']), r'A; B\.'),
  )
  def test_not_private_says_why_before_any_number(
      self, rounds, kwargs, message
  ):
    built = _build(rounds, **kwargs)
    self.assertEqual((built.private, built.fields['private']), (False, False))
    self.assertRegex(_joined(built), f'NOT PRIVATE: {message}')
    self.assertStartsWith(built.lines[1], 'NOT PRIVATE')

  @parameterized.parameters(
      (
          dict(inherited=4, inputs=['the seed model', 'the dev set']),
          'public the seed model, the dev set, the number of speakers, all '
          'hyperparameters, but for what is charged of earlier runs',
      ),
      (dict(inherited=4), '4 of these rounds are of the runs'),
      (dict(inherited=9, l2_norm_clip=None), 'all of these rounds are of'),
      (dict(l2_norm_clip=None), 'clip that of the runs that are counted'),
      (dict(apart=['a', 'b']), 'each a and each b is protected'),
      (dict(apart=['a']), 'hyperparameters, but for what is charged of'),
      (dict(unit='example'), 'norm of what one example adds to a sum'),
      (dict(adaptive_layers=7), 'after the last round; 7 clips follow'),
      (
          dict(notes=[ledger.Note('exact_metrics', 4)]),
          'WARNING: exact .* from round 5 of the .*exact and NOT COVERED',
      ),
      (
          dict(notes=[ledger.Note('length_changed', 20)]),
          r'WARNING: where the run ends .* anew, first after 20 charged rounds',
      ),
      (dict(invalidations=['A']), r'\(RDP\) [\d.]+, if that were not so'),
      (dict(invalidations=['A']), 'within epsilon 10 as it is, if that were not so'),
      (dict(delta=1e-3), 'NOT PRIVATE: delta is 0.001, not below 1 / pop'),
      (
          dict(notes=[ledger.Note('copied', 3), ledger.Note('copied', 1_005)]),
          'WARNING: .*a copy or was restored .noticed after 3 and 1,005 ch',
      ),
      (dict(unit='example'), 'example: one recording; a speaker with'),
  )
  def test_each_circumstance_is_stated(self, changes, words):
    self.assertRegex(_joined(_build(_rounds(), **changes)), words)
    self.assertNotRegex(_joined(_build(_rounds(), delta=9.99e-4)), words)

  def test_an_end_that_models_decide_breaks_delta_and_is_not_promised(self):
    # Losses of 1 to 512 rounds of everyone at z = 8, whose steps are
    # N(1 / (2 z^2), 1 / z^2). Whoever ends a run as soon as its loss is above
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
          accounting.compose([group]), delta=1e-2, accountant='pld'
      )
      over = np.maximum(0, -np.expm1(epsilon - loss))
      self.assertLess(over.mean(), 1.1e-2)
      now = (loss > epsilon + 0.3) & ~ended
      broken += over[now].sum() / loss.size
      ended |= now
    self.assertGreater(broken, 2e-2)
    (assumed,) = _build(group).fields['assumed']
    self.assertIn('settled before the first', assumed)

  def test_nothing_released_yet(self):
    built = _build(_rounds(count=0))
    self.assertEqual(built.epsilon, 0)
    self.assertIn('No round was released yet', built.lines[1])
    self.assertNotIn('NOT PRIVATE', str(built))
    self.assertIn('NOT PRIVATE', str(_build(_rounds(count=0, noise=0.0))))

  @parameterized.parameters(
      (0.2001, '0.201'), (10.0, '10'), (10.01, '10.1'), (7.2227, '7.23'),
      (0.0, '0'), (math.inf, 'infinite'), (999.5, '1e+03'), (123.0, '123'),
      (5e-324, '1e-307'),
  )
  def test_printed_epsilon_is_never_below_the_real_one(self, value, text):
    self.assertEqual(statement.number(value), text)

  @parameterized.parameters(
      (dict(delta=0.0), 'delta'),
      (dict(l2_norm_clip=0.0), 'l2_norm_clip'),
  )
  def test_bad_arguments_are_named(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      _build(_rounds(), **kwargs)
    with self.assertRaisesRegex(ValueError, 'rounds must have'):
      _build()
