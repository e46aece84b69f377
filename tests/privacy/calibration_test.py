"""Tests for calibration."""

from unittest import mock

from absl.testing import parameterized
import numpy as np

from tff_asr.privacy import accounting
from tff_asr.privacy import calibration

# Correlated noise is calibrated by its strategy.
_KINDS = [
    kind
    for kind in accounting.SAMPLING_KINDS
    if kind not in accounting.MIN_SEP_KINDS
]


def _sampling(kind, cohort_size=10, population=100):
  if kind == 'full':
    cohort_size = population
  return accounting.Sampling(
      kind=kind, cohort_size=cohort_size, population=population
  )


def _epsilon(sampling, noise_multiplier, rounds, accountant='rdp'):
  event = accounting.compose([
      accounting.RoundGroup(
          sampling=sampling, noise_multiplier=noise_multiplier, count=rounds
      )
  ])
  return accounting.epsilon(event, delta=1e-5, accountant=accountant)


class HeadlineTest(parameterized.TestCase):

  def test_scale_finds_the_papers_headline(self):
    # sigma 10e-6 at S = 1024, K = 34,753, T = 2,006: at 204,800 of 6,950,600
    # epsilon is 4.44, so a target of 4.44 is reached at that size.
    rounds = accounting.RoundGroup(
        sampling=_sampling('poisson', 1024, 34_753),
        noise_multiplier=10e-6 * 1024,
        count=2006,
    )
    scale = calibration.smallest_scaled_run(
        [rounds], target_epsilon=4.4393389, delta=1e-9
    )
    self.assertAlmostEqual(scale.cohort_size, 204_800, delta=5)
    self.assertAlmostEqual(scale.population, 6_950_600, delta=200)
    self.assertAlmostEqual(scale.noise_multiplier, 2.048, delta=1e-4)


class CalibrationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Searches and checks by a quarter of the orders: these are the time.
    orders = accounting.ORDERS[::4]
    defaults = accounting.epsilon_and_order.__kwdefaults__
    self.enterContext(mock.patch.dict(defaults, orders=orders))
    self.enterContext(mock.patch.object(accounting, 'ORDERS', orders))

  @parameterized.product(
      kind=_KINDS, target_epsilon=(2.0, 8.0, 300.0)
  )
  def test_noise_is_the_smallest_within_the_target(self, kind, target_epsilon):
    sampling = _sampling(kind)
    noise = calibration.noise_multiplier_for_epsilon(
        target_epsilon, sampling=sampling, rounds=20, delta=1e-5
    )
    self.assertLessEqual(_epsilon(sampling, noise, 20), target_epsilon)
    self.assertGreater(
        _epsilon(sampling, noise * (1 - 2e-6), 20), target_epsilon
    )

  def test_noise_by_pld_is_lower_than_by_rdp(self):
    sampling = _sampling('full')
    arguments = dict(sampling=sampling, rounds=4, delta=1e-5)
    by_rdp = calibration.noise_multiplier_for_epsilon(3.0, **arguments)
    by_pld = calibration.noise_multiplier_for_epsilon(
        3.0, accountant='pld', **arguments
    )
    self.assertLess(by_pld, by_rdp)
    self.assertAlmostEqual(
        _epsilon(sampling, by_pld, 4, 'pld'), 3.0, delta=0.01
    )

  @parameterized.parameters(*_KINDS)
  def test_rounds_are_the_most_within_the_target(self, kind):
    sampling = _sampling(kind)
    rounds = calibration.rounds_for_epsilon(
        5.0, sampling=sampling, noise_multiplier=3.0, delta=1e-5
    )
    self.assertGreater(rounds, 1)
    self.assertLessEqual(_epsilon(sampling, 3.0, rounds), 5.0)
    self.assertGreater(_epsilon(sampling, 3.0, rounds + 1), 5.0)

  def test_no_round_and_endless_rounds(self):
    rounds = lambda noise_multiplier: calibration.rounds_for_epsilon(
        1.0,
        sampling=_sampling('poisson'),
        noise_multiplier=noise_multiplier,
        delta=1e-5,
    )
    self.assertEqual((rounds(0.0), rounds(0.01)), (0, 0))
    with self.assertRaisesRegex(ValueError, 'even after 10+ rounds'):
      rounds(1e9)

  @parameterized.parameters(
      (dict(delta=1e-30), 'No noise brings epsilon down'),
      (
          dict(sampling=_sampling('fixed_size'), accountant='pld'),
          'PLD cannot be used',
      ),
      (dict(target_epsilon=0), 'target_epsilon'),
      (dict(target_epsilon=-1.0), 'target_epsilon'),
  )
  def test_a_target_that_no_noise_reaches_is_an_error(self, changes, message):
    arguments = dict(
        target_epsilon=1e-4, sampling=_sampling('full'), rounds=1, delta=1e-5
    )
    with self.assertRaisesRegex(ValueError, message):
      calibration.noise_multiplier_for_epsilon(**arguments | changes)

  @parameterized.parameters(*_KINDS)
  def test_scale_is_the_smallest_with_the_noise_on_the_mean(self, kind):
    sampling = _sampling(kind)
    rounds = accounting.RoundGroup(
        sampling=sampling, noise_multiplier=0.3, count=20
    )
    scale = calibration.smallest_scaled_run(
        [rounds], target_epsilon=10.0, delta=1e-5
    )
    on_mean = rounds.noise_multiplier / sampling.cohort_size
    self.assertAlmostEqual(
        scale.noise_multiplier / scale.cohort_size, on_mean, places=12
    )
    self.assertLessEqual(scale.epsilon, 10.0)
    self.assertAlmostEqual(
        scale.cohort_size / scale.population, sampling.sampling_prob
    )
    smaller = accounting.Sampling(
        kind=kind,
        cohort_size=scale.cohort_size - 1,
        population=scale.population - round(1 / sampling.sampling_prob),
    )
    self.assertGreater(
        _epsilon(smaller, on_mean * smaller.cohort_size, 20), 10.0
    )

  @parameterized.product(
      cohort_size=(3, 7, 100), population=(101, 1009), target=(0.3, 3.0)
  )
  def test_growth_draws_no_client_more_often(
      self, cohort_size, population, target
  ):
    # Sizes with a fractional ratio: epsilon is for the returned sizes, and no
    # client is drawn more often than before.
    sampling = _sampling('poisson', cohort_size, population)
    rounds = accounting.RoundGroup(
        sampling=sampling, noise_multiplier=0.5, count=10
    )
    scale = calibration.smallest_scaled_run(
        [rounds], target_epsilon=target, delta=1e-5
    )
    self.assertGreater(scale.cohort_size, cohort_size)
    # In integers: scale.cohort_size / scale.population <= q, by a client less
    # it would not be.
    drawn = scale.cohort_size * population
    self.assertLessEqual(drawn, scale.population * cohort_size)
    self.assertGreater(drawn, (scale.population - 1) * cohort_size)
    grown = _sampling('poisson', scale.cohort_size, scale.population)
    self.assertAlmostEqual(
        _epsilon(grown, scale.noise_multiplier, 10), scale.epsilon
    )

  def test_groups_that_differ_grow_together_in_any_order(self):
    groups = [
        accounting.RoundGroup(
            sampling=_sampling('poisson', size, 1000),
            noise_multiplier=0.5,
            count=count,
        )
        for size, count in ((50, 10), (100, 5), (200, 20))
    ]
    factors = []
    for order in (groups, groups[1:] + groups[:1]):
      scale = calibration.smallest_scaled_run(
          order, target_epsilon=5.0, delta=1e-5
      )
      factors.append(scale.cohort_size / order[-1].sampling.cohort_size)
      alone = calibration.smallest_scaled_run(
          order[-1:], target_epsilon=5.0, delta=1e-5
      )
      self.assertGreater(scale.cohort_size, alone.cohort_size)
      self.assertLessEqual(scale.epsilon, 5.0)
      # A run within the target is its own scale.
      same = calibration.smallest_scaled_run(
          order, target_epsilon=1e9, delta=1e-5
      )
      self.assertEqual(
          (same.cohort_size, same.population, same.noise_multiplier),
          (order[-1].sampling.cohort_size, 1000, 0.5),
      )
    # One factor, except that cohorts (50 and more) are whole clients.
    np.testing.assert_allclose(factors, factors[0], rtol=0.02)

  @parameterized.parameters(
      ([0.0], 1e-5, 'Without noise'),
      ([], 1e-5, 'no rounds'),
      ([1.0], 1e-30, 'No size of cohort gives epsilon 0.0001'),
  )
  def test_an_unreachable_scale_is_an_error(self, noises, delta, message):
    groups = [
        accounting.RoundGroup(
            sampling=_sampling('full'), noise_multiplier=noise
        )
        for noise in noises
    ]
    with self.assertRaisesRegex(ValueError, message):
      calibration.smallest_scaled_run(groups, target_epsilon=1e-4, delta=delta)
