"""Tests of tff_asr.privacy.epsilon_report."""

import itertools
import json

from absl.testing import absltest
from absl.testing import parameterized

from tff_asr.privacy import accounting
from tff_asr.privacy import epsilon_report

_PLAN = dict(cohort_size=1000, population=100_000, delta=1e-6)


class SolveTest(parameterized.TestCase):

  def test_any_two_of_noise_epsilon_and_rounds_give_the_third(self):
    forward = epsilon_report.solve(noise_multiplier=1.0, rounds=1000, **_PLAN)
    self.assertEqual(forward.solved_for, 'epsilon')
    self.assertAlmostEqual(forward.epsilon, 2.44, delta=0.005)
    noise = epsilon_report.solve(
        target_epsilon=forward.epsilon, rounds=1000, **_PLAN
    )
    self.assertEqual(noise.solved_for, 'noise_multiplier')
    self.assertAlmostEqual(noise.rounds[0].noise_multiplier, 1.0, places=5)
    self.assertLessEqual(noise.epsilon, forward.epsilon)
    rounds = epsilon_report.solve(
        target_epsilon=forward.epsilon, noise_multiplier=1.0, **_PLAN
    )
    self.assertEqual(rounds.solved_for, 'rounds')
    self.assertEqual(rounds.rounds[0].count, 1000)

  def test_noise_on_the_mean_is_noise_on_the_sum_over_the_cohort(self):
    # The paper's 3e-6 at S = 1024: z = 0.003072.
    (group,) = epsilon_report.solve(
        cohort_size=1024, population=34_753, sigma_mean=3e-6, rounds=1
    ).rounds
    self.assertAlmostEqual(group.noise_multiplier, 0.003072, places=12)

  def test_settings_reach_the_accounting(self):
    plan = dict(noise_multiplier=1.0, rounds=1000, **_PLAN)
    fixed = epsilon_report.solve(sampling='fixed_size', **plan)
    self.assertAlmostEqual(fixed.epsilon, 23.3, delta=0.05)
    self.assertEqual(
        epsilon_report.fields(fixed)['neighbouring'], 'replace_one'
    )
    by_pld = epsilon_report.solve(accountant='pld', **plan)
    self.assertLess(by_pld.epsilon, epsilon_report.solve(**plan).epsilon)
    self.assertIsNone(by_pld.order)
    by_default = epsilon_report.solve(**plan | dict(delta=None))
    self.assertEqual(by_default.delta, 1e-6)

  @parameterized.named_parameters(
      ('one', dict(rounds=1), 'two of .*; found rounds'),
      ('none', dict(), 'found none of them'),
      (
          'three',
          dict(rounds=1, noise_multiplier=1.0, target_epsilon=1.0),
          'found .*target_epsilon, rounds',
      ),
      (
          'two_noises',
          dict(rounds=1, noise_multiplier=1.0, sigma_mean=1.0),
          'give one of them',
      ),
      ('rounds', dict(rounds=-1, noise_multiplier=1.0), 'rounds'),
      ('target', dict(rounds=1, target_epsilon=0.0), 'target_epsilon'),
      ('noise', dict(rounds=1, sigma_mean=-1.0), 'noise_multiplier'),
      (
          'accountant',
          dict(rounds=1, noise_multiplier=1.0, accountant='x'),
          'accountant',
      ),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      epsilon_report.solve(**arguments, **_PLAN)


class ExtrapolateTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    # The paper's run with the noise of its first headline.
    self.plan = epsilon_report.solve(
        cohort_size=1024, population=34_753, sigma_mean=3e-6, rounds=2006,
        delta=1e-9,
    )

  def test_keeps_the_noise_on_the_mean_and_q(self):
    (row,) = epsilon_report.extrapolate(self.plan, cohort_sizes=[204_800])
    (group,) = row.rounds
    self.assertEqual(group.sampling.population, 6_950_600)
    self.assertAlmostEqual(group.noise_multiplier, 0.6144)
    self.assertEqual(group.count, 2006)
    self.assertAlmostEqual(row.epsilon, 41.9, delta=0.05)

  def test_populations_are_combined_with_the_cohorts_that_they_hold(self):
    rows = epsilon_report.extrapolate(
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

  def test_what_cannot_be_shown_is_said(self):
    with self.assertRaisesRegex(ValueError, 'no population of .10. holds'):
      epsilon_report.extrapolate(self.plan, populations=[10])
    with self.assertRaisesRegex(ValueError, 'cohort size 0'):
      epsilon_report.extrapolate(self.plan, cohort_sizes=[0])
    sampling = accounting.Sampling(
        kind='poisson', cohort_size=1, population=10
    )
    mixed = epsilon_report.of_rounds(
        [
            accounting.RoundGroup(sampling=sampling, noise_multiplier=noise)
            for noise in (1.0, 2.0)
        ],
        delta=1e-3,
    )
    with self.assertRaisesRegex(ValueError, '2 kinds of rounds'):
      epsilon_report.extrapolate(mixed, populations=[100])

  def test_sizes_as_people_write_them(self):
    self.assertEqual(
        epsilon_report.parse_sizes(['204800', '204_800', '2e5']),
        [204_800, 204_800, 200_000],
    )
    for text in ('x', '1.5', 'inf', 'nan', ''):
      with self.assertRaisesRegex(ValueError, 'not a whole number'):
        epsilon_report.parse_sizes([text])


class RenderTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.plan = epsilon_report.solve(
        noise_multiplier=1.0, rounds=100, **_PLAN
    )

  def test_json_has_the_fields_that_programs_read(self):
    fields = json.loads(
        epsilon_report.render([self.plan], output_format='json')
    )
    expected = dict(
        epsilon=self.plan.epsilon, delta=1e-6, noise_multiplier=1.0,
        sampling_probability=0.01, rounds=100, accountant='rdp',
        neighbouring='add_or_remove_one', private=True, sigma_mean=0.001,
    )
    self.assertEqual(fields, fields | expected)

  def test_grown_rows_say_that_error_rates_are_assumed(self):
    rows = [
        self.plan, *epsilon_report.extrapolate(self.plan, cohort_sizes=[2000])
    ]
    _, _, given, grown, _ = epsilon_report.render(rows).splitlines()
    self.assertIn('as given', given)
    self.assertIn('WER assumed, not measured', grown)
    given, grown = json.loads(
        epsilon_report.render(rows, output_format='json')
    )
    self.assertNotIn('word_error_rate', given)
    self.assertEqual(grown['word_error_rate'], epsilon_report.ASSUMED)

  def test_a_delta_of_one_over_the_population_is_not_private(self):
    plan = dict(noise_multiplier=9.0, rounds=1, cohort_size=10)
    for population in (10, 49, 1000, 10**9):
      solve = lambda delta, population=population: epsilon_report.solve(
          delta=delta, population=population, **plan
      )
      at, below = solve(1 / population), solve(0.999 / population)
      self.assertTrue(epsilon_report.fields(below)['private'])
      self.assertFalse(epsilon_report.fields(at)['private'])
      self.assertIn(
          'NOT PRIVATE: delta is', epsilon_report.render([at])
      )
    # A population that grows above 1 / delta takes the promise along.
    small = epsilon_report.solve(delta=1e-4, population=1000, **plan)
    table = epsilon_report.render(
        [small, *epsilon_report.extrapolate(small, populations=[9000, 10_000])]
    )
    self.assertEqual(
        ['NOT PRIVATE' in line for line in table.splitlines()],
        [False, False, False, False, True, False],
    )

  def test_without_noise_or_secret_keys_it_says_not_private(self):
    fixed = epsilon_report.of_rounds(
        self.plan.rounds, delta=1e-6, invalidations=['NOISE_SEED fixes a key']
    )
    bare = epsilon_report.solve(noise_multiplier=0.0, rounds=1, **_PLAN)
    # No growth mends fixed keys.
    grown = epsilon_report.extrapolate(fixed, cohort_sizes=[5000])
    for results, reason in (
        ([bare], 'no noise is added, or not to all layers'),
        ([fixed], 'NOISE_SEED fixes a key'),
        ([fixed, *grown], 'NOISE_SEED fixes a key'),
    ):
      text = epsilon_report.render(results)
      self.assertIn(f'NOT PRIVATE: {reason}', text)
      self.assertGreaterEqual(text.count('infinite'), len(results))
      for result in results:
        fields = epsilon_report.fields(result)
        self.assertEqual(fields['epsilon'], 'inf')
        self.assertFalse(fields['private'])

  def test_groups_that_differ_all_count_in_any_order(self):
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
    expected = accounting.epsilon(accounting.compose(groups), delta=1e-6)
    for order in itertools.permutations(groups):
      result = epsilon_report.of_rounds(order, delta=1e-6)
      fields = epsilon_report.fields(result)
      self.assertAlmostEqual(fields['epsilon'], expected)
      self.assertEqual(fields['rounds'], 15)
      self.assertEqual(fields['population'], 1000)
      for name in ('noise_multiplier', 'cohort_size', 'sigma_mean'):
        self.assertIsNone(fields[name])
      for words in ('3, poisson: 10 of', '5, poisson: 20 of', '7, poisson'):
        self.assertIn(words, epsilon_report.render([result]))

  def test_unknown_formats_and_no_rounds_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'format'):
      epsilon_report.render([self.plan], output_format='xml')
    with self.assertRaisesRegex(ValueError, 'no rounds'):
      epsilon_report.of_rounds([], delta=0.1)
