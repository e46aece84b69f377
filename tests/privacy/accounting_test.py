"""Tests for accounting."""

import dataclasses
import itertools
import math

from absl.testing import parameterized
import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import stats

from tff_asr.privacy import accounting
from tff_asr.privacy import audit
from tff_asr.privacy import strategies

_ADD = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


_BLT = strategies.optimize(num_rounds=20, min_sep=4, num_buffers=2)
_BANDED = strategies.Toeplitz(output_scale=(2**29,), buf_decay=())


def _sampling(kind, cohort_size, population):
  return accounting.Sampling(
      kind=kind,
      cohort_size=cohort_size,
      population=population,
      min_sep=(
          population // cohort_size
          if kind in accounting.MIN_SEP_KINDS else None
      ),
  )


def _group(kind, cohort_size, population, noise_multiplier, count=1):
  return accounting.RoundGroup(
      sampling=_sampling(kind, cohort_size, population),
      noise_multiplier=noise_multiplier,
      count=count,
      strategy=dict(min_sep=_BLT, cyclic=_BANDED).get(kind),
  )


def _event(*group):
  return accounting.compose([_group(*group)])


def _epsilon(*group, delta=1e-5, accountant='rdp'):
  return accounting.epsilon(
      [_group(*group)], delta=delta, accountant=accountant
  )


class EpsilonTest(parameterized.TestCase):

  @parameterized.parameters(
      (204_800, 69_506_000, 0.6144, 2034, 6.29),
      (204_800, 6_950_600, 2.048, 2006, 4.22),
  )
  def test_pld_of_the_paper_s_headlines(
      self, cohort_size, population, noise_multiplier, rounds, expected
  ):
    # RDP of these: published_tables_test.
    found = _epsilon(
        'poisson', cohort_size, population, noise_multiplier, rounds,
        delta=1e-9, accountant='pld',
    )
    self.assertAlmostEqual(found, expected, delta=0.005)

  def test_the_best_of_ten_runs_costs_as_stated(self):
    # docs/privacy.md, "Tuning": ten runs on average, only the best is shown.
    one = _event('poisson', 51_200, 1_737_650, 5.12, 2006)
    best = dp_accounting.dp_event.RepeatAndSelectDpEvent(one, mean=10, shape=1)
    for event, expected in ((one, 1.55), (best, 2.71)):
      found = rdp.RdpAccountant().compose(event).get_epsilon(1e-9)
      self.assertAlmostEqual(found, expected, delta=0.005)

  def test_fixed_size_is_accounted_under_replace_one(self):
    # q = .01, z = 1, T = 1000, delta = 1e-6: 23.3. With the noise over C
    # instead of 2 C it would be 4.0.
    for noise_multiplier, expected in ((1.0, 23.3), (2.0, 4.0)):
      found = _epsilon(
          'fixed_size', 1000, 100_000, noise_multiplier, 1000, delta=1e-6
      )
      self.assertAlmostEqual(found, expected, delta=0.05)

  def test_full_participation_is_the_exact_gaussian_within_its_bounds(self):
    # T rounds of noise z are one of noise z / sqrt(T). Its exact delta is
    # Phi(1/2s - e s) - exp(e) Phi(-1/2s - e s) (Balle & Wang 2018).
    def exact_delta(epsilon, sigma):
      first = stats.norm.cdf(0.5 / sigma - epsilon * sigma)
      second = stats.norm.cdf(-0.5 / sigma - epsilon * sigma)
      return first - math.exp(epsilon) * second

    by_pld = _epsilon('full', 50, 50, 8.0, 16, accountant='pld')
    by_rdp = _epsilon('full', 50, 50, 8.0, 16)
    self.assertAlmostEqual(exact_delta(by_pld, 2.0), 1e-5, delta=1e-8)
    self.assertLess(exact_delta(by_rdp, 2.0), 1e-5)
    self.assertLess(by_rdp, 1.2 * by_pld)

  @parameterized.parameters((3.0, 100), (10.0, 1000))
  def test_convolved_losses_are_as_accurate_as_stated(self, noise, rounds):
    # Sampling that takes all but one in 1e12 is none, but is composed by FFT.
    group = _group('poisson', 10**12 - 1, 10**12, noise, rounds)
    for delta in (1e-5, 1e-9):
      exact = audit.gaussian_epsilon(math.sqrt(rounds) / noise, delta=delta)
      found, _ = accounting.epsilon_by_pld([group], delta=delta)
      self.assertGreater(found, exact - accounting.EPSILON_ERROR)
      self.assertLess(found, exact + 1e-3)

  @parameterized.parameters(('poisson', 1.0), ('fixed_size', 2.0))
  def test_sampling_is_never_dearer_than_no_sampling(self, kind, noise):
    # dp_accounting's bound without replacement alone exceeds it at 99 of 100.
    full = _epsilon('full', 100, 100, 1.0, 10)
    for cohort_size in (1, 25, 99):
      self.assertLessEqual(_epsilon(kind, cohort_size, 100, noise, 10), full)
    self.assertAlmostEqual(_epsilon(kind, 100, 100, noise, 10), full, places=9)

  @parameterized.product(
      kind=accounting.SAMPLING_KINDS, noise_multiplier=(0.0, 1e-160, 1e-9)
  )
  def test_no_noise_is_infinite(self, kind, noise_multiplier):
    cohort_size = 10 if kind == 'full' else 2
    group = _group(kind, cohort_size, 10, noise_multiplier)
    self.assertEqual(accounting.epsilon([group], delta=1e-5), math.inf)

  @parameterized.parameters('poisson', 'fixed_size', 'full')
  def test_huge_and_tiny_noise_are_ordered(self, kind):
    # Rounding makes dp_accounting raise, or report 0, at some of these.
    cohort_size = 1000 if kind == 'full' else 10
    values = [
        _epsilon(kind, cohort_size, 1000, z, 10, delta=1e-9)
        for z in (1e-7, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6, 1e9, 1e100)
    ]
    self.assertTrue(np.isfinite(values).all())
    self.assertEqual(values, sorted(values, reverse=True))
    self.assertGreater(values[0], 1e9)

  def test_the_leading_bound_is_pld_s_where_it_takes_the_rounds(self):
    for count in (20, 2000):
      rounds = [_group('poisson', 100, 10_000, 1.0, count)]
      by_rdp = accounting.epsilon(rounds, delta=1e-5)
      exact = accounting.epsilon(rounds, delta=1e-5, accountant='pld')
      found = accounting.leading_epsilon(rounds, delta=1e-5)
      # A coarser grid: an upper bound, and no more than a thousandth above.
      self.assertBetween(found / exact, 1, 1.001)
      self.assertGreater(by_rdp / exact, 1.05)
      # RDP answers where it can, in no time.
      between = (exact + by_rdp) / 2
      for target, expected in ((by_rdp + 1, by_rdp), (between, found)):
        self.assertAlmostEqual(
            accounting.leading_epsilon(rounds, delta=1e-5, target=target),
            expected,
            delta=1e-3 * exact,
        )
    rounds = [_group('fixed_size', 100, 10_000, 1.0, 20)]
    self.assertEqual(
        accounting.leading_epsilon(rounds, delta=1e-5),
        accounting.epsilon(rounds, delta=1e-5),
    )
    for noise, expected in ((0.0, math.inf), (1.0, 0.0)):
      rounds = [_group('poisson', 10, 100, noise, 0 if noise else 1)]
      self.assertEqual(
          accounting.leading_epsilon(rounds, delta=1e-5), expected
      )

  def test_no_rounds_cost_nothing(self):
    for accountant in accounting.ACCOUNTANTS:
      self.assertEqual(
          _epsilon('poisson', 1, 10, 1.0, 0, accountant=accountant), 0
      )

  @parameterized.parameters(*accounting.SAMPLING_KINDS)
  def test_the_largest_numbers_that_are_taken_have_an_epsilon(self, kind):
    size = 10**99
    count = 10**4 if kind in accounting.MIN_SEP_KINDS else 10**12
    most = _epsilon(
        kind, size if kind == 'full' else 1, size, 1e100, count, delta=5e-324
    )
    self.assertBetween(most, 0, 100)

  @parameterized.parameters(
      *((dict(delta=delta), 'delta') for delta in (0, 1, -0.1, 2, math.nan)),
      (dict(delta=0.1, accountant='moments'), 'accountant'),
  )
  def test_bad_arguments_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      _epsilon('poisson', 1, 10, 1.0, 1, **arguments)


class PldAvailabilityTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (
          'without_replacement', ('fixed_size', 1, 10, 5.0, 1),
          'found SampledWithout',
      ),
      ('large_epsilon', ('poisson', 250, 1000, 0.03, 100), 'above 100'),
      ('tiny_noise', ('poisson', 1, 10**15, 0.05, 1), 'below 0.1'),
      ('tiny_q', ('poisson', 1, 10**18, 0.5, 10**7), 'dp_accounting fails'),
  )
  def test_pld_is_refused_with_the_reason(self, arguments, reason):
    with self.assertRaisesRegex(ValueError, f'PLD cannot be used: .*{reason}'):
      _epsilon(*arguments, accountant='pld')

  def test_pld_is_refused_where_its_rounding_shows(self):
    with self.assertRaisesRegex(ValueError, 'PLD .*delta below 1e-09'):
      _epsilon('poisson', 1, 10, 1.0, 1, delta=0.9e-9, accountant='pld')


class SamplerErrorTest(parameterized.TestCase):

  def test_noise_that_ends_is_charged_to_delta(self):
    # Delta grows by at most 1e-20 2^-213 exp(epsilon), which exceeds 2^-53 of
    # delta from an epsilon of 136.2 on.
    def cost(count, error):
      group = _group('full', 10, 10, 1.0, count=count)
      group = dataclasses.replace(group, sampler_epsilon=error / count)
      return accounting.epsilon([group], delta=1e-9)

    self.assertBetween(cost(120, 0.0), 120, 130)
    self.assertEqual(cost(120, 1e-20), cost(120, 0.0))
    self.assertBetween(cost(128, 1e-20), 135, 136.2)
    self.assertBetween(cost(130, 0.0), 136.2, 137)
    self.assertEqual(cost(130, 1e-20), math.inf)
    # Up to where exp(epsilon) is beyond a float, and further.
    for num in (400, 700, 900, 1000, 10_000):
      self.assertEqual(cost(num, 1e-20), math.inf)

  def test_errors_of_the_sampler_add_to_epsilon_of_either_accountant(self):
    group = _group('poisson', 100, 10_000, 2.0, count=50)
    inexact = dataclasses.replace(group, sampler_epsilon=1e-4)
    for accountant in accounting.ACCOUNTANTS:
      exact, found = (
          accounting.epsilon(
              [group, each], delta=1e-6,
              accountant=accountant,
          )
          for each in (group, inexact)
      )
      self.assertAlmostEqual(found - exact, 50 * 1e-4)
    self.assertEqual(accounting.epsilon(
        [dataclasses.replace(inexact, count=0)], delta=1e-6
    ), 0)


class ComposeTest(parameterized.TestCase):

  def test_events_are_those_of_the_sampling(self):
    gaussian = dp_accounting.GaussianDpEvent
    for kind, cohort_size, expected in (
        (
            'poisson', 1,
            dp_accounting.PoissonSampledDpEvent(0.25, gaussian(3.0)),
        ),
        (
            'fixed_size', 1,
            dp_accounting.SampledWithoutReplacementDpEvent(4, 1, gaussian(1.5)),
        ),
        ('full', 4, gaussian(3.0)),
    ):
      self.assertEqual(
          _event(kind, cohort_size, 4, 3.0),
          dp_accounting.SelfComposedDpEvent(expected, 1),
      )

  def test_groups_that_differ_all_count_in_any_order(self):
    groups = [
        _group('poisson', 1, 4, 1.0, 2),
        _group('poisson', 2, 4, 1.0, 3),
        _group('poisson', 1, 4, 2.0, 5),
        _group('poisson', 1, 8, 1.0, 7),
    ]
    # Rounds add what each costs at an order; then delta adds once:
    # log((a - 1) / a) - (log(delta) + log(a)) / (a - 1) (Canonne et al. 2020).
    at_order = lambda rounds, order: accounting.rdp_epsilon_and_order(
        rounds, delta=1e-5, orders=[order]
    )[0]
    of_delta = math.log(7 / 8) - (math.log(1e-5) + math.log(8)) / 7
    expected = sum(
        at_order([group], 8.0) - of_delta
        for group in groups
    )
    for order in itertools.permutations(groups):
      event = accounting.compose([*order, order[0]])
      self.assertEqual(
          [part.count for part in event.events],
          [2 * order[0].count, *(group.count for group in order[1:])],
      )
      self.assertAlmostEqual(
          at_order(order, 8.0) - of_delta, expected
      )

  def test_each_sequence_is_a_separate_group(self):
    # Twice the same is two Gaussians, not one of twice the rounds.
    alone = _event('min_sep', 3, 12, 4.0, 6).event
    group = _group('min_sep', 3, 12, 4.0, 6)
    self.assertEqual(
        accounting.compose([group, group]),
        dp_accounting.SelfComposedDpEvent(alone, 2),
    )

  def test_noise_and_cohorts_that_do_not_go_together_are_refused(self):
    for kind, strategy in (('min_sep', None), ('poisson', _BLT)):
      with self.assertRaisesRegex(ValueError, f'not go with {kind} cohorts'):
        accounting.RoundGroup(
            sampling=_sampling(kind, 1, 4), noise_multiplier=1.0,
            strategy=strategy,
        )

  def test_full_rounds_among_fixed_ones_are_under_replace_one(self):
    rounds = [_group('full', 4, 4, 2.0), _group('fixed_size', 1, 4, 2.0)]
    self.assertEqual(accounting.neighboring_relation(rounds[:1]), _ADD)
    self.assertEqual(accounting.neighboring_relation(rounds), _REPLACE)
    event = accounting.compose(rounds)
    self.assertEqual(
        event.events[0].event, dp_accounting.GaussianDpEvent(1.0)
    )

  @parameterized.parameters(
      ('poisson', 'fixed_size'), ('poisson', 'min_sep'),
      ('fixed_size', 'min_sep'),
      ('full', 'min_sep'),
  )
  def test_samplings_without_a_relation_in_common_are_refused(self, *kinds):
    rounds = [_group(kind, 4, 4, 1.0) for kind in kinds]
    with self.assertRaisesRegex(
        ValueError, f'{min(kinds)} .* and {max(kinds)} .* cannot be composed'
    ):
      accounting.compose(rounds)

  def test_a_sequence_costs_one_gaussian_by_its_sensitivity(self):
    # 12 clients, 3 a round: in 6 rounds one takes part in rounds 0 and 4.
    column = _BLT.coefficients(6)
    column[4:] += _BLT.coefficients(2)
    self.assertEqual(
        _event('min_sep', 3, 12, 4.0, 6),
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.GaussianDpEvent(4.0 / np.linalg.norm(column)), 1
        ),
    )
    self.assertEqual(
        _event('min_sep', 3, 12, 0.0, 6).event,
        dp_accounting.NonPrivateDpEvent(),
    )
    self.assertEqual(
        _event('min_sep', 3, 12, 4.0, 0), dp_accounting.NoOpDpEvent()
    )

  def _cyclic(self, count, *, noise=2.0, strategy=_BANDED):
    return accounting.compose([accounting.RoundGroup(
        sampling=accounting.Sampling(
            kind='cyclic', cohort_size=3, population=20, min_sep=2
        ),
        noise_multiplier=noise,
        count=count,
        strategy=strategy,
    )])

  def test_cyclic_cohorts_cost_a_sampled_gaussian_each_cycle(self):
    # Bands 1, 1/2; a probability of 2 * 3 / 20.
    gaussian = dp_accounting.GaussianDpEvent(2.0 / math.sqrt(1.25))
    for count, cycles in ((2, 1), (5, 3), (6, 3)):
      self.assertEqual(
          self._cyclic(count),
          dp_accounting.SelfComposedDpEvent(
              dp_accounting.PoissonSampledDpEvent(0.3, gaussian), cycles
          ),
      )

  def test_cyclic_cohorts_need_no_more_bands_than_the_cycle(self):
    more = strategies.Toeplitz(output_scale=(2, 1), buf_decay=())
    for strategy, found in ((more, '3'), (_BLT, 'BLT')):
      with self.assertRaisesRegex(ValueError, f'2 bands, found {found}'):
        self._cyclic(1, strategy=strategy)

  @parameterized.parameters(
      ('min_sep', 12, 4, _BLT, 2.0, 6), ('cyclic', 20, 2, _BANDED, 1.0, 4)
  )
  def test_losses_of_correlated_rounds_are_those_of_their_gaussians(
      self, kind, population, separation, strategy, noise, num_rounds
  ):
    # Monte Carlo of the privacy loss: a client sends 1 in its two rounds, if
    # its coins say so, for one number, or nothing. Densities of x + C^-1 w.
    group = accounting.RoundGroup(
        sampling=accounting.Sampling(
            kind=kind, cohort_size=3, population=population,
            min_sep=separation,
        ),
        noise_multiplier=noise,
        count=num_rounds,
        strategy=strategy,
    )
    prob = group.sampling.sampling_prob if kind == 'cyclic' else 1.0
    covariance = noise**2 * strategy.covariance(num_rounds)
    generator = np.random.default_rng(0)
    sums = np.zeros([400_000, num_rounds])
    sums[:, ::separation] = generator.random([len(sums), 2]) < prob
    draws = sums + generator.multivariate_normal(
        np.zeros(num_rounds), covariance, size=len(sums)
    )
    inverse, ratio = np.linalg.inv(covariance), 0.0
    for coins in itertools.product((0, 1), repeat=2):
      one = np.zeros(num_rounds)
      one[::separation] = coins
      weight = prob ** sum(coins) * (1 - prob) ** (2 - sum(coins))
      ratio += weight * np.exp(draws @ inverse @ one - one @ inverse @ one / 2)
    delta = 0.05
    found = accounting.epsilon(
        [group], delta=delta, accountant='pld'
    )
    excess = np.maximum(0, 1 - np.exp(found) / ratio).mean()
    # Four standard errors of the mean: under 2 % of it. Seeded.
    self.assertAlmostEqual(excess / delta, 1, delta=0.02)

  @parameterized.named_parameters(
      ('kind', dict(kind='uniform', cohort_size=1, population=2), 'kind'),
      (
          'size', dict(kind='fixed_size', cohort_size=0, population=2),
          'cohort_size',
      ),
      (
          'separation',
          dict(kind='min_sep', cohort_size=1, population=2),
          'min_sep belongs to min_sep and cyclic cohorts',
      ),
      (
          'larger', dict(kind='fixed_size', cohort_size=3, population=2),
          '3 .* 2',
      ),
      (
          'groups',
          dict(kind='cyclic', cohort_size=3, population=10, min_sep=4),
          'make only 3 cohorts',
      ),
      ('full', dict(kind='full', cohort_size=1, population=2), '1 of .* 2'),
      ('float', dict(kind='fixed_size', cohort_size=1.5, population=2), '1.5'),
      (
          'huge', dict(kind='poisson', cohort_size=1, population=10**400),
          'population must be between',
      ),
  )
  def test_bad_sampling_is_refused(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      accounting.Sampling(**arguments)

  @parameterized.parameters(
      *(
          (dict(noise_multiplier=noise), 'noise_multiplier')
          for noise in (-1.0, math.nan, math.inf, 1e200)
      ),
      (dict(sampler_epsilon=math.inf), 'sampler_epsilon'),
      (dict(count=-1), 'count must be'),
      (dict(count=10**400), 'count of rounds must be between'),
  )
  def test_bad_rounds_are_refused(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      accounting.RoundGroup(**{
          **dict(sampling=_sampling('full', 2, 2), noise_multiplier=1.0),
          **arguments,
      })


class SecureSumsTest(parameterized.TestCase):

  def group(self, kind='min_sep', count=20, **changes):
    sampling = accounting.Sampling(
        kind=kind,
        cohort_size=changes.pop('cohort_size', 10),
        population=120 if kind != 'full' else 10,
        min_sep=12 if kind in accounting.MIN_SEP_KINDS else None,
    )
    secure_sum = accounting.SecureSumParams(**{
        **dict(bits=16, num_clients=10, min_clients=8), **changes
    })
    return accounting.RoundGroup(
        sampling=sampling,
        noise_multiplier=1.3,
        count=count,
        secure_sum=secure_sum,
    )

  def test_separated_rounds_cost_one_gaussian_a_participation(self):
    # Rounds 0 to 19, 12 apart: twice at most.
    for count, times in ((1, 1), (12, 1), (13, 2), (20, 2), (25, 3)):
      group = self.group(count=count)
      self.assertAlmostEqual(group.sensitivity, math.sqrt(times))
      self.assertAlmostEqual(
          accounting.epsilon([group], delta=1e-5),
          _epsilon('full', 10, 10, 1.3, times),
          places=9,
      )

  def test_fixed_cohorts_cost_what_they_do_with_a_trusted_server(self):
    group = self.group('fixed_size')
    trusted = dataclasses.replace(group, secure_sum=None)
    self.assertEqual(
        accounting.compose([group]), accounting.compose([trusted])
    )

  @parameterized.parameters('poisson', 'full', 'cyclic')
  def test_other_cohorts_are_refused(self, kind):
    with self.assertRaisesRegex(ValueError, f'not go with {kind} cohorts'):
      self.group(kind)

  @parameterized.parameters(
      (dict(cohort_size=9), 'cohorts have 9: set both'),
      (dict(min_clients=11), '11 of 10 clients cannot survive'),
      (dict(min_clients=0), 'min_clients'),
      (dict(bits=0), 'bits'),
  )
  def test_bad_arguments(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      self.group(**changes)
