"""Tests for statement."""

import json
import math

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr.privacy import accounting
from tff_asr.privacy import statement


def _rounds(
    kind='poisson', cohort_size=10, population=1000, noise=2.0, count=9
):
  return accounting.RoundGroup(
      sampling=accounting.Sampling(
          kind=kind, cohort_size=cohort_size, population=population
      ),
      noise_multiplier=noise,
      count=count,
  )


def _build(*rounds, delta=1e-4, l2_norm_clip=0.01, **kwargs):
  return statement.build(
      rounds, delta=delta, l2_norm_clip=l2_norm_clip, **kwargs
  )


def _joined(built):
  """The text without its wrapping."""
  return ' '.join(str(built).split())


class StatementTest(parameterized.TestCase):

  def test_private_run(self):
    built = _build(_rounds())
    event = accounting.compose([_rounds()])
    by_rdp = accounting.epsilon(event, delta=1e-4)
    by_pld = accounting.epsilon(event, delta=1e-4, accountant='pld')
    self.assertTrue(built.private)
    self.assertNotIn('NOT PRIVATE', str(built))
    self.assertEqual(built.epsilon, min(by_rdp, by_pld))
    fields = built.fields
    self.assertEqual(fields['epsilon_rdp'], by_rdp)
    self.assertEqual(fields['epsilon_pld'], by_pld)
    self.assertEqual(fields['neighbouring'], 'add_or_remove_one')
    self.assertEqual(fields['rounds'], 9)

  def test_states_everything_that_a_reader_needs(self):
    text = _joined(_build(_rounds()))
    for words in (
        'central', 'trusted server', 'speaker: all recordings of one client',
        'add or remove one speaker', 'seed model', 'dev set',
        'number of speakers', 'hyperparameters', 'Poisson', '1,000 speakers',
        'probability 0.01', '10 expected', 'delta 0.0001', 'clip 0.01',
        'noise multiplier 2 ', 'epsilon (RDP)', 'epsilon (PLD)',
        'not charged', 'float32', 'not private; the guarantee is of the models',
    ):
      self.assertIn(words, text)

  @parameterized.parameters('poisson', 'fixed', 'full')
  def test_lines_fit_and_fields_are_json(self, kind):
    size = 1000 if kind == 'full' else 10
    for noise in (0.0, 0.001, 3.0):
      built = _build(
          _rounds(kind, size, noise=noise), _rounds(kind, size, noise=4.0),
          fixed_seeds=['NOISE_SEED', 'SAMPLER_SEED'], delta=0.5,
      )
      for line in built.lines:
        self.assertLessEqual(len(line), 80)
        self.assertNotIn('\n', line)
      json.dumps(built.fields, allow_nan=False)

  def test_fixed_size_is_stated_as_replace_one_without_pld(self):
    built = _build(_rounds('fixed', noise=5.0))
    self.assertIn('replace one speaker by another', _joined(built))
    self.assertIn('drawn without replacement', _joined(built))
    self.assertIn('(PLD) not computed: it takes Poisson', _joined(built))
    self.assertIsNone(built.fields['epsilon_pld'])

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
    self.assertGreater(scale['cohort_size'], 102_400)
    self.assertLess(scale['cohort_size'], 204_800)
    self.assertIn(f'{scale["cohort_size"]:,} of', _joined(built))
    self.assertIn('WER assumed, not measured', _joined(built))

  @parameterized.named_parameters(
      ('noise', _rounds(noise=0.0), {}, 'NOT PRIVATE: no noise is added, or not to all layers'),
      ('clip', _rounds(), dict(l2_norm_clip=math.inf), 'are not clipped'),
      ('noise_seed', _rounds(), dict(fixed_seeds=['NOISE_SEED']),
       'NOT PRIVATE: NOISE_SEED fixes a key'),
      ('sampler_seed', _rounds(), dict(fixed_seeds=['SAMPLER_SEED']),
       'NOT PRIVATE: SAMPLER_SEED fixes a key'),
  )
  def test_not_private_says_why(self, rounds, kwargs, message):
    built = _build(rounds, **kwargs)
    self.assertFalse(built.private)
    self.assertFalse(built.fields['private'])
    self.assertIn(message, _joined(built))
    # It is said before any number.
    self.assertTrue(built.lines[1].startswith('NOT PRIVATE'))

  def test_without_noise_epsilon_is_infinite(self):
    built = _build(_rounds(noise=0.0), _rounds())
    self.assertEqual(built.epsilon, math.inf)
    self.assertEqual(built.fields['epsilon'], 'inf')
    self.assertIn('epsilon (RDP) infinite', _joined(built))
    self.assertIsNone(built.fields['scale_for_target_epsilon'])

  def test_delta_above_one_over_population_is_warned_about(self):
    self.assertIn(
        'WARNING: delta 0.002 is above', _joined(_build(_rounds(), delta=2e-3))
    )
    self.assertNotIn('WARNING', str(_build(_rounds(), delta=1e-3)))

  def test_default_delta_is_below_one_over_population(self):
    for population in (1, 3, 40, 34_753):
      self.assertLess(
          statement.default_delta(population), 1 / population
      )

  def test_nothing_released_yet(self):
    built = _build(_rounds(count=0))
    self.assertEqual(built.epsilon, 0)
    self.assertIn('No round was released yet', built.lines[1])
    self.assertNotIn('NOT PRIVATE', str(built))
    self.assertIn('NOT PRIVATE', str(_build(_rounds(count=0, noise=0.0))))

  @parameterized.parameters(
      (0.2001, '0.201'), (10.0, '10'), (10.01, '10.1'), (7.2227, '7.23'),
      (0.0, '0'), (math.inf, 'infinite'), (999.5, '1e+03'), (123.0, '123'),
  )
  def test_printed_epsilon_is_never_below_the_real_one(self, value, text):
    # pylint: disable-next=protected-access
    self.assertEqual(statement.number(value), text)

  @parameterized.named_parameters(
      ('delta', dict(delta=0.0), 'delta'),
      ('clip', dict(l2_norm_clip=0.0), 'l2_norm_clip'),
      ('target', dict(target_epsilon=-1.0), 'target_epsilon'),
  )
  def test_bad_arguments_are_named(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      _build(_rounds(), **kwargs)

  def test_no_groups_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'rounds must have'):
      _build()


if __name__ == '__main__':
  absltest.main()
