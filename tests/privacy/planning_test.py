"""Tests for planning."""

import dataclasses
import math
import pathlib
import re
from unittest import mock

from absl.testing import parameterized
import numpy as np
import pytest

from tff_asr.privacy import accounting
from tff_asr.privacy import planning

_GOAL = planning.Goal(
    num_people=12_000,
    num_parameters=628_448,
    signal=0.22,
    epsilon=4.94,
    delta=1e-5,
)


def _run(signal_to_noise, share=0.0):
  """A measured run: without rounding, signal 1, noise 1 and r^2 rounds."""
  return planning.MeasuredRun(
      planning.PlannedRun(
          cohort_size=1,
          num_rounds=1,
          noise_multiplier=1 / signal_to_noise,
          num_parameters=1,
          signal=1.0,
      ),
      num_drawn=10**12,
      share=share,
  )


class RunTest(parameterized.TestCase):

  @parameterized.parameters(
      # Cohort, rounds; z, sqrt(628,448) z / S, sqrt(T) over that.
      (1000, 20, 0.800, 0.634, 7.05),
      (3000, 20, 1.355, 0.358, 12.49),
      # Exact Gaussian: 792.7 * 4.030 / 12,000 = .2662; 4.472 / .2662 = 16.8.
      (12_000, 20, 4.030, 0.2662, 16.80),
      (12_000, 5, 2.015, 0.1331, 16.80),
  )
  def test_noise_of_known_runs(self, cohort_size, num_rounds, z, noise, ratio):
    run = _GOAL.run(cohort_size=cohort_size, num_rounds=num_rounds)
    self.assertAlmostEqual(run.noise_multiplier, z, delta=0.001)
    self.assertAlmostEqual(run.noise, noise, delta=0.001)
    self.assertAlmostEqual(run.signal_to_noise, 0.22 * ratio, delta=0.005)
    # The noise suffices, and a hundredth less would not.
    kind = 'full' if cohort_size == 12_000 else 'poisson'
    sampling = accounting.Sampling(
        kind=kind, cohort_size=cohort_size, population=12_000
    )
    for factor, fits in ((1.0, True), (0.99, False)):
      group = accounting.RoundGroup(
          sampling=sampling,
          noise_multiplier=factor * run.noise_multiplier,
          count=num_rounds,
      )
      spent, _ = accounting.epsilon_by_pld([group], delta=1e-5, step=1e-3)
      self.assertEqual(spent <= 4.94, fits)

  def test_delta_is_a_tenth_of_one_over_the_people(self):
    goal = dataclasses.replace(_GOAL, delta=None)
    self.assertEqual(goal.used_delta, 0.1 / 12_000)
    self.assertEqual(_GOAL.used_delta, 1e-5)

  def test_without_noise_the_signal_to_noise_is_infinite(self):
    run = dataclasses.replace(_run(1.0).run, noise_multiplier=0.0)
    self.assertEqual(run.signal_to_noise, math.inf)
    self.assertEqual(planning.fit_curve().share(math.inf), 1.0)
    self.assertEqual(planning.fit_curve().share(0.0), 0.0)

  @parameterized.parameters(
      (dict(num_people=0), 'num_people'),
      (dict(num_parameters=-1), 'num_parameters'),
      (dict(signal=1.5), 'signal'),
      (dict(signal=math.nan), 'signal'),
      (dict(epsilon=0.0), 'epsilon'),
      (dict(delta=1.0), 'delta'),
      (dict(clients_per_sec=0.0), 'clients_per_sec'),
      (dict(max_hours=1.0), 'needs the speed'),
  )
  def test_bad_goals_are_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      dataclasses.replace(_GOAL, **changes)


class CurveTest(parameterized.TestCase):

  def test_points_on_a_curve_give_it_back(self):
    # r^2 / (r^2 + 2^2): .2 at 1, .5 at 2, .8 at 4.
    curve = planning.fit_curve((_run(1.0, 0.2), _run(2.0, 0.5), _run(4.0, 0.8)))
    self.assertAlmostEqual(curve.middle, 2.0, places=4)
    self.assertAlmostEqual(curve.power, 2.0, places=4)
    # The measurement's own error is left: 2 * 1.2 / 15.1.
    self.assertAlmostEqual(curve.error, 0.159, places=3)
    self.assertAlmostEqual(curve.share(4.0), 0.8, places=4)
    self.assertAlmostEqual(curve.signal_to_noise(0.8), 4.0, places=3)
    self.assertAlmostEqual(curve.lowest, 1.0)
    self.assertAlmostEqual(curve.highest, 4.0)

  def test_the_error_has_what_points_differ_from_the_curve(self):
    points = (_run(1.0, 0.2), _run(2.0, 0.4), _run(2.0, 0.6), _run(4.0, 0.8))
    curve = planning.fit_curve(points)
    # Residuals .1 and -.1, two degrees of freedom: a deviation of .1.
    self.assertAlmostEqual(
        curve.error, 2 * math.hypot(0.1, 1.2 / 15.1), places=3
    )

  def test_the_measured_runs_are_within_the_stated_error(self):
    curve = planning.fit_curve()
    # Least squares: no constants near by have smaller residuals.
    squares = lambda curve: sum(
        (each.share - curve.share(each.signal_to_noise)) ** 2
        for each in planning.MEASURED_RUNS
    )
    for changes in (
        dict(middle=0.98 * curve.middle), dict(middle=1.02 * curve.middle),
        dict(power=0.98 * curve.power), dict(power=1.02 * curve.power),
    ):
      self.assertGreater(squares(curve._replace(**changes)), squares(curve))
    for each in planning.MEASURED_RUNS:
      self.assertLess(
          abs(each.share - curve.share(each.signal_to_noise)), curve.error
      )

  def test_few_drawn_clients_are_noise_of_a_measured_run(self):
    # Noise .8, and 1 / sqrt(n) = .6 of n = 1 / .36 clients: together 1.
    run = dataclasses.replace(_run(1.0).run, noise_multiplier=0.8)
    measured = planning.MeasuredRun(run, num_drawn=1 / 0.36, share=0.5)
    self.assertAlmostEqual(measured.signal_to_noise, 1.0)


class PlanTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Noise that follows a rule, so that no search is needed: z = sqrt(T).
    self.enterContext(mock.patch.object(
        planning,
        '_noise_multiplier',
        lambda sampling, rounds, epsilon, delta: math.sqrt(rounds) / epsilon,
    ))
    # And a curve that new measurements do not change.
    curve = planning.Curve(
        middle=1.5, power=2.0, error=0.12, lowest=0.5, highest=4.0
    )
    self.enterContext(
        mock.patch.object(planning, 'fit_curve', lambda: curve)
    )

  def test_rows_fit_the_hours_and_the_best_one_is_cheap(self):
    goal = dataclasses.replace(
        _GOAL, epsilon=1.0, signal=0.5, clients_per_sec=10.0, max_hours=2.0
    )
    plan = goal.plan(cohort_sizes=[1000, 2000, 12_000, 20_000], rounds=[10, 40])
    # 72,000 visits.
    self.assertEqual(
        [(run.cohort_size, run.num_rounds) for run in plan.runs],
        [(1000, 10), (2000, 10), (1000, 40)],
    )
    # Signal to noise: S signal / sqrt(D), whatever the rounds.
    self.assertEqual(
        (plan.best.cohort_size, plan.best.num_rounds), (2000, 10)
    )
    self.assertAlmostEqual(plan.best.signal_to_noise, 1000 / math.sqrt(628_448))
    self.assertAlmostEqual(goal.hours(plan.best), 20_000 / 36_000)
    table = plan.table()
    self.assertEqual(
        [row[-1] for row in table], ['', '', 'recommended', '']
    )
    self.assertEqual(table[1][:4], ['12,000', '1,000', '10', '3.162'])

  def test_a_cheaper_row_of_the_same_share_is_recommended(self):
    plan = _GOAL.plan(cohort_sizes=[12_000], rounds=[10, 20])
    self.assertEqual(plan.best.num_rounds, 10)
    self.assertLen(plan.runs, 2)

  @parameterized.parameters(
      (12_000, [300, 1000, 3000, 10_000, 12_000]),
      (1_000_000, [1000, 3000, 10**4, 3 * 10**4, 10**5, 3 * 10**5, 10**6]),
      (31, [10, 30, 31]),
      (1, [1]),
  )
  def test_default_cohorts_end_with_everyone(self, num_people, expected):
    goal = dataclasses.replace(_GOAL, num_people=num_people)
    sizes = sorted({run.cohort_size for run in goal.plan().runs})
    self.assertEqual(sizes, expected)

  def test_no_row_is_an_error(self):
    goal = dataclasses.replace(_GOAL, clients_per_sec=1.0, max_hours=1.0)
    with self.assertRaisesRegex(ValueError, 'smaller --cohort_sizes'):
      goal.plan(cohort_sizes=[12_000])

  def test_people_for_a_share(self):
    # S signal epsilon / sqrt(D) is the signal to noise, so
    # N = 792.75 * middle / (.22 * 4.94).
    expected = 792.75 * 1.5 / (0.22 * 4.94)
    found = _GOAL.people_for(0.5, num_rounds=20)
    self.assertBetween(found, expected, 1.12 * expected)
    # In an hour, 180 people take part in each of 20 rounds, however many there
    # are.
    goal = dataclasses.replace(_GOAL, clients_per_sec=1.0, max_hours=1.0)
    self.assertIsNone(goal.people_for(0.5, num_rounds=20))

  def test_words(self):
    plan = _GOAL.plan(cohort_sizes=[1100], rounds=[20])
    # 1,100 * .22 * 4.94 / 792.75 = 1.508: r^2 / (r^2 + 1.5^2) = .503.
    self.assertEqual(
        plan.words,
        'Epsilon 4.94 by PLD at delta 1e-05, 12,000 people. With 20 rounds of '
        '1,100, expect about half of what training without privacy would gain '
        '(50%, 38% to 62%).',
    )
    plan = _GOAL.plan(cohort_sizes=[100], rounds=[20])
    # .137: .0083. For a half, 1,095 people: 1,100.
    self.assertIn(
        'With 20 rounds of 100, at this size private training will not help '
        '(share of the gain: 1%, 0% to 13%, extrapolated from runs of a signal '
        'to noise of 0.5 to 4); 1,100 people, all of them in each round, would '
        'gain 50%.',
        plan.words,
    )
    plan = _GOAL.plan(cohort_sizes=[1100], rounds=[20], share=0.8)
    # At 3.0.
    self.assertIn('(50%, 38% to 62%); 2,200 people, all of them in each', plan.words)
    goal = dataclasses.replace(_GOAL, clients_per_sec=1.0, max_hours=1.0)
    plan = goal.plan(cohort_sizes=[100], rounds=[20])
    self.assertIn('; no number of people and 1 hours would gain 50%.', plan.words)
    self.assertEqual(
        (plan.fields['people'], plan.fields['share']), (None, 0.5)
    )

  def test_the_range_grows_with_the_error_of_the_signal(self):
    # The share moves by 2 * .5 * .5 times the relative error of the signal:
    # hypot(.12, 2 * .5 * .2) = .233.
    self.assertIn(
        '(50%, 27% to 73%)', planning.expectation(1.5, signal_error=0.2)
    )
    self.assertIn(
        '(50%, 0% to 100%)', planning.expectation(1.5, signal_error=math.inf)
    )


class PageTest(parameterized.TestCase):

  @pytest.mark.slow
  def test_the_rows_of_the_page_are_those_of_the_planner(self):
    page = pathlib.Path(__file__).parents[2] / 'docs' / 'planning.md'
    rows = re.findall(
        r'^\| ([\d,]+) +\| ([\d,]+) +\| (\d+) +\| ([\d.]+) +\| ([\d.]+) +'
        r'\| ([\d.]+) +\| ([\d.]+) +\| - +\| (\d+)% ',
        page.read_text('utf-8'),
        re.MULTILINE,
    )
    self.assertLen(rows, 12)
    for people, cohort_size, rounds, *texts in rows:
      goal = planning.Goal(
          num_people=int(people.replace(',', '')),
          num_parameters=628_448,
          signal=float(texts[2]),
          epsilon=1.0,
      )
      run = goal.run(
          cohort_size=int(cohort_size.replace(',', '')), num_rounds=int(rounds)
      )
      found = (
          f'{run.noise_multiplier:.3f}', f'{run.noise:.2g}',
          f'{run.signal:.3f}', f'{run.signal_to_noise:.2f}',
          f'{100 * planning.fit_curve().share(run.signal_to_noise):.0f}',
      )
      self.assertEqual(found, tuple(texts))


class SignalTest(parameterized.TestCase):

  def test_two_vectors_by_hand(self):
    # (3, 4) and (1, 2): the product is 11.
    found, error = planning.squared_norm_of_mean(
        np.array([[3, 4], [1, 2]], np.float32)
    )
    self.assertAlmostEqual(found, 11.0)
    self.assertEqual(error, math.inf)

  def test_three_vectors_by_hand(self):
    # Products 2, 3 and 6: mean 11 / 3. Without each: 6, 3, 2, of mean 11 / 3;
    # 2 / 3 of the squares (49 + 4 + 25) / 9 is 5.78, the root 2.404.
    found, error = planning.squared_norm_of_mean(
        np.array([[1.0], [2.0], [3.0]])
    )
    self.assertAlmostEqual(found, 11 / 3)
    self.assertAlmostEqual(error, math.sqrt(2 / 3 * 78 / 9))

  def test_the_estimate_is_not_biased_and_its_error_is_right(self):
    # Norm of the mean .3, of the deviations 1; 2,000 draws of ten vectors. The
    # plain square of the mean would be .09 + .1.
    generator = np.random.default_rng(1)
    drawn = generator.normal(size=[2000, 10, 25]) / 5
    drawn[:, :, 0] += 0.3
    found, errors = zip(*map(planning.squared_norm_of_mean, drawn))
    # The mean's own standard error is .0013: 4 of them (1 in 16,000).
    self.assertAlmostEqual(np.mean(found), 0.09, delta=0.005)
    self.assertBetween(
        np.sqrt(np.mean(np.square(errors))) / np.std(found), 0.9, 1.25
    )

  def test_one_vector_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'need two'):
      planning.squared_norm_of_mean(np.ones([1, 3]))

  def test_the_law_is_the_root_of_the_utterances(self):
    law = planning.fit_law(
        [1, 2, 4], squares=[0.01, 0.02, 0.04], errors=[0.001, 0.001, 0.001]
    )
    self.assertAlmostEqual(law.of_one, 0.1)
    # 2 a da = .001 * 7 / 21.
    self.assertAlmostEqual(law.relative_error, 0.001 / 3 / 0.02)
    self.assertAlmostEqual(law.signal(9), 0.3)
    self.assertEqual(law.signal(1000), 1.0)

  def test_precise_counts_weigh_more(self):
    law = planning.fit_law([1, 4], squares=[0.01, 0.16], errors=[1e-5, 1.0])
    self.assertAlmostEqual(law.of_one, 0.1, places=5)
    law = planning.fit_law([1, 4], squares=[0.01, 0.16], errors=[1.0, 1e-5])
    self.assertAlmostEqual(law.of_one, 0.2, places=5)

  def test_no_signal(self):
    law = planning.fit_law([1], squares=[-0.01], errors=[0.1])
    self.assertEqual(law, (0.0, math.inf))
    self.assertIn('will not help', planning.expectation(0.0, signal_error=math.inf))
