"""Tests for calibration."""

from unittest import mock

from absl.testing import parameterized

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
  group = accounting.RoundGroup(
      sampling=sampling, noise_multiplier=noise_multiplier, count=rounds
  )
  return accounting.epsilon([group], delta=1e-5, accountant=accountant)


class CalibrationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Searches and checks by a quarter of the orders: these are the time.
    orders = accounting.ORDERS[::4]
    defaults = accounting.rdp_epsilon_and_order.__kwdefaults__
    self.enterContext(mock.patch.dict(defaults, orders=orders))
    self.enterContext(mock.patch.object(accounting, 'ORDERS', orders))

  @parameterized.product(
      kind=_KINDS, target_epsilon=(2.0, 8.0, 300.0)
  )
  def test_noise_is_the_smallest_within_the_target(self, kind, target_epsilon):
    sampling = _sampling(kind)
    noise = calibration.noise_multiplier_for_epsilon(
        target_epsilon,
        sampling=sampling,
        rounds=20,
        delta=1e-5,
        accountant='rdp',
    )
    self.assertLessEqual(_epsilon(sampling, noise, 20), target_epsilon)
    self.assertGreater(
        _epsilon(sampling, noise * (1 - 2e-6), 20), target_epsilon
    )

  def test_noise_by_pld_is_lower_than_by_rdp(self):
    sampling = _sampling('full')
    arguments = dict(sampling=sampling, rounds=4, delta=1e-5)
    by_rdp, by_pld, leading = (
        calibration.noise_multiplier_for_epsilon(
            3.0, accountant=accountant, **arguments
        )
        for accountant in ('rdp', 'pld', None)
    )
    self.assertEqual(leading, by_pld)
    self.assertLess(by_pld, by_rdp)
    self.assertAlmostEqual(
        _epsilon(sampling, by_pld, 4, 'pld'), 3.0, delta=0.01
    )

  @parameterized.parameters(*_KINDS)
  def test_rounds_are_the_most_within_the_target(self, kind):
    sampling = _sampling(kind)
    rounds = calibration.rounds_for_epsilon(
        5.0,
        sampling=sampling,
        noise_multiplier=3.0,
        delta=1e-5,
        accountant='rdp',
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
        accountant='rdp',
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

  @parameterized.product(cohort_size=(3, 7, 100), population=(101, 1009))
  def test_growth_draws_no_client_more_often(self, cohort_size, population):
    # Sizes with a fractional ratio.
    rounds = accounting.RoundGroup(
        sampling=_sampling('poisson', cohort_size, population),
        noise_multiplier=0.5,
    )
    grown = calibration.scale_cohort(
        rounds, cohort_size=5 * cohort_size + 1
    ).sampling
    # In integers: q does not grow, and by a client less it would.
    drawn = grown.cohort_size * population
    self.assertLessEqual(drawn, grown.population * cohort_size)
    self.assertGreater(drawn, (grown.population - 1) * cohort_size)
