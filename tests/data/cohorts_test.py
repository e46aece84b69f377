"""Tests for cohorts."""

import collections
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import stats
import tensorflow_federated as tff

from tests import reference
from tff_asr.data import cohorts
from tff_asr.privacy import keys

_KEY = keys.from_seed(0)


def _ids(count):
  return [f'{i:06}' for i in range(count)]


def _take(iterator, count):
  return [iterator.select() for _ in range(count)]


def _builders():
  return (
      ('poisson', cohorts.poisson, dict(cohort_size=5)),
      ('fixed_size', cohorts.fixed_size, dict(cohort_size=5)),
      ('shuffled_passes', cohorts.shuffled_passes, dict(cohort_size=5)),
  )


class CohortsTest(parameterized.TestCase):

  @parameterized.named_parameters(*_builders())
  def test_is_a_data_source_of_ids(self, build, kwargs):
    source = build(_ids(20), key=_KEY, **kwargs)
    self.assertIsInstance(source, tff.program.FederatedDataSource)
    iterator = source.iterator()
    self.assertIsInstance(iterator, tff.program.FederatedDataSourceIterator)
    expected = tff.FederatedType(np.str_, tff.CLIENTS)
    self.assertEqual(source.federated_type, expected)
    self.assertEqual(iterator.federated_type, expected)
    for cohort in _take(iterator, 20):
      self.assertContainsSubset(cohort, _ids(20))
      self.assertEqual(cohort, sorted(set(cohort)))

  @parameterized.named_parameters(*_builders())
  def test_restored_iterator_continues_exactly(self, build, kwargs):
    source = build(_ids(20), key=_KEY, **kwargs)
    expected = _take(source.iterator(), 10)
    iterator = source.iterator()
    _take(iterator, 4)
    state = iterator.state
    self.assertEqual((state.key.dtype, state.key.shape), (np.int32, (4,)))
    self.assertEqual(state.round_num.dtype, np.int64)
    # Another source, with another key of its own: the state's key counts.
    other = build(_ids(20), **kwargs)
    self.assertEqual(_take(other.iterator(state), 6), expected[4:])
    self.assertEqual(state.round_num, 4)  # not advanced by its iterator

  @parameterized.named_parameters(*_builders())
  def test_cohort_depends_on_key_and_round_only(self, build, kwargs):
    ids = _ids(50)
    source = build(ids, key=_KEY, **kwargs)
    expected = _take(source.iterator(), 5)
    shuffled = build(ids[::-1], key=_KEY, **kwargs)
    self.assertEqual(_take(shuffled.iterator(), 5), expected)
    last = source.iterator(cohorts.CohortState(_KEY, np.int64(4)))
    self.assertEqual(last.select(), expected[4])
    other = build(ids, key=keys.from_seed(1), **kwargs)
    self.assertNotEqual(_take(other.iterator(), 5), expected)

  @parameterized.named_parameters(*_builders())
  def test_serialized_iterator_continues(self, build, kwargs):
    iterator = build(_ids(20), key=_KEY, **kwargs).iterator()
    _take(iterator, 3)
    copy = cohorts.CohortIterator.from_bytes(iterator.to_bytes())
    self.assertEqual(copy, iterator)
    self.assertEqual(_take(copy, 5), _take(iterator, 5))

  @parameterized.named_parameters(*_builders())
  def test_drawn_keys_differ(self, build, kwargs):
    draws = [_take(build(_ids(200), **kwargs).iterator(), 5) for _ in range(2)]
    self.assertNotEqual(*draws)  # flake rate below 1e-20

  def test_rounds_use_disjoint_blocks(self):
    # Counter blocks of one round, seen through Philox itself: the word stream
    # of round t never meets that of round t + 1.
    streams = [
        np.random.Philox(
            key=keys.to_uint64(_KEY),
            counter=np.array([0, t, 0, 0], np.uint64),
        ).random_raw(4096)
        for t in range(8)
    ]
    self.assertLen(np.unique(np.concatenate(streams)), 8 * 4096)
    # And cohorts are made of these very words.
    words = streams[3][:100]
    source = cohorts.poisson(_ids(100), cohort_size=25, key=_KEY)
    cohort = source.iterator(cohorts.CohortState(_KEY, np.int64(3))).select()
    self.assertEqual(
        cohort, [_ids(100)[i] for i in np.flatnonzero(words < 2**62)]
    )
    source = cohorts.fixed_size(_ids(100), cohort_size=3, key=_KEY)
    cohort = source.iterator(cohorts.CohortState(_KEY, np.int64(3))).select()
    self.assertEqual(
        cohort, [_ids(100)[i] for i in sorted(np.argsort(words)[:3])]
    )

  @parameterized.parameters((3, 1), (7, 3), (50, 20))
  def test_poisson_cohorts_are_the_numpy_twin_s(self, population, cohort_size):
    source = cohorts.poisson(
        _ids(population), cohort_size=cohort_size, key=_KEY
    )
    expected = [
        reference.poisson_cohort(
            _ids(population),
            sampling_prob=cohort_size / population,
            key=keys.to_uint64(_KEY),
            round_num=round_num,
        )
        for round_num in range(40)
    ]
    self.assertEqual(_take(source.iterator(), 40), expected)

  def test_poisson_inclusion_is_binomial(self):
    # Seeded. Unseeded, each of the 3 tests would fail once in 10^4.
    population, size, rounds = 200, 7, 2000
    source = cohorts.poisson(_ids(population), cohort_size=size, key=_KEY)
    drawn = _take(source.iterator(), rounds)
    rate = size / population
    total = sum(map(len, drawn))
    pvalue = stats.binomtest(total, population * rounds, rate).pvalue
    self.assertGreater(pvalue, 1e-4)
    # The size of a cohort varies as that of independent clients.
    variance = np.var([len(cohort) for cohort in drawn])
    statistic = variance / (population * rate * (1 - rate)) * rounds
    self.assertBetween(
        statistic, *stats.chi2.interval(1 - 1e-4, rounds - 1)
    )
    # No client is favoured.
    counts = np.unique(list(itertools.chain(*drawn)), return_counts=True)[1]
    expected = rounds * rate
    statistic = ((counts - expected) ** 2).sum() / (expected * (1 - rate))
    self.assertLen(counts, population)
    self.assertBetween(statistic, *stats.chi2.interval(1 - 1e-4, population))

  def test_rate_test_can_fail(self):
    # 5 % more clients than declared are noticed by the test above.
    total = round(200 * 2000 * 7 / 200 * 1.05)
    self.assertLess(stats.binomtest(total, 200 * 2000, 7 / 200).pvalue, 1e-4)

  def test_poisson_rounds_are_independent(self):
    source = cohorts.poisson(_ids(500), cohort_size=250, key=_KEY)
    drawn = [set(cohort) for cohort in _take(source.iterator(), 200)]
    both = sum(len(a & b) for a, b in zip(drawn, drawn[1:]))
    # Seeded; unseeded it would fail once in 10^4.
    pvalue = stats.binomtest(both, 500 * 199, 0.25).pvalue
    self.assertGreater(pvalue, 1e-4)

  def test_poisson_gives_empty_cohorts(self):
    source = cohorts.poisson(_ids(4), cohort_size=1, key=_KEY)
    sizes = [len(cohort) for cohort in _take(source.iterator(), 200)]
    # (3/4)^4 = 0.32 of them; binomial, seeded.
    pvalue = stats.binomtest(sizes.count(0), 200, 0.75**4).pvalue
    self.assertGreater(pvalue, 1e-4)

  def test_fixed_size_draws_each_subset_equally_often(self):
    source = cohorts.fixed_size(_ids(5), cohort_size=2, key=_KEY)
    drawn = [tuple(cohort) for cohort in _take(source.iterator(), 5000)]
    counts = [
        drawn.count(pair) for pair in itertools.combinations(_ids(5), 2)
    ]
    self.assertEqual(sum(counts), 5000)
    # Seeded; unseeded it would fail once in 10^4.
    self.assertGreater(stats.chisquare(counts).pvalue, 1e-4)

  def test_a_pass_takes_each_client_once_and_leaves_the_rest_of_a_cohort(self):
    # 22 clients, 5 a round: 4 rounds a pass, 2 clients wait.
    source = cohorts.shuffled_passes(_ids(22), cohort_size=5, key=_KEY)
    self.assertEqual(source.sampling.rounds_per_pass, 4)
    rounds = _take(source.iterator(), 12)
    passes = [rounds[i : i + 4] for i in (0, 4, 8)]
    for one_pass in passes:
      self.assertEqual([len(cohort) for cohort in one_pass], [5] * 4)
      self.assertLen(set(itertools.chain(*one_pass)), 20)
    # Each pass has an order of its own; those alike: below 1e-10.
    self.assertNotEqual(passes[0], passes[1])
    self.assertNotEqual(passes[1], passes[2])

  def test_passes_place_each_client_anywhere_equally_often(self):
    # 4 clients, 1 a round: in 2000 passes each of the 24 orders 83 times.
    source = cohorts.shuffled_passes(_ids(4), cohort_size=1, key=_KEY)
    iterator = source.iterator()
    orders = collections.Counter(
        tuple(itertools.chain(*_take(iterator, 4))) for _ in range(2000)
    )
    self.assertLen(orders, 24)
    # Of a fixed key; a new one would fail 1 time in 1,000.
    self.assertGreater(stats.chisquare(list(orders.values())).pvalue, 1e-3)

  def test_everyone(self):
    source = cohorts.everyone(_ids(7)[::-1])
    self.assertEqual(_take(source.iterator(), 2), [_ids(7)] * 2)
    self.assertEqual(source.sampling.kind, 'full')
    full = cohorts.poisson(_ids(7), cohort_size=7, key=_KEY)
    self.assertEqual(full.iterator().select(), _ids(7))

  def test_sampling_is_declared(self):
    for build, kind in (
        (cohorts.poisson, 'poisson'), (cohorts.fixed_size, 'fixed')
    ):
      sampling = build(_ids(20), cohort_size=5).sampling
      self.assertEqual(
          (sampling.kind, sampling.cohort_size, sampling.population),
          (kind, 5, 20),
      )

  def test_other_number_of_clients_is_refused(self):
    iterator = cohorts.fixed_size(_ids(20), cohort_size=5).iterator()
    self.assertLen(iterator.select(5), 5)
    with self.assertRaisesRegex(ValueError, 'cohort size is 5 .* k=6'):
      iterator.select(6)
    self.assertEqual(iterator.state.round_num, 1)

  @parameterized.named_parameters(*_builders())
  def test_cohort_above_the_population_is_refused(self, build, kwargs):
    with self.assertRaisesRegex(ValueError, 'cohort_size is 5 .* 4'):
      build(_ids(4), **kwargs)

  @parameterized.named_parameters(
      ('repeated', ['a', 'b', 'a'], "repeat: 'a'"),
      ('empty', [], 'at least one id'),
      ('one_string', 'abc', 'sequence'),
      ('number', ['a', 1], 'found 1'),
      ('blank', ['a', ''], "found ''"),
  )
  def test_bad_ids_are_refused(self, client_ids, message):
    with self.assertRaisesRegex(ValueError, message):
      cohorts.poisson(client_ids, cohort_size=1)
    with self.assertRaisesRegex(ValueError, message):
      cohorts.everyone(client_ids)

  @parameterized.parameters(-1, 1.5)
  def test_bad_round_is_refused(self, round_num):
    source = cohorts.everyone(_ids(2))
    with self.assertRaisesRegex(ValueError, 'round_num'):
      source.iterator(cohorts.CohortState(_KEY, round_num))

  def test_bad_key_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'key'):
      cohorts.poisson(_ids(2), cohort_size=1, key=np.zeros(4))

  def test_a_million_clients(self):
    source = cohorts.fixed_size(_ids(10**6), cohort_size=1000, key=_KEY)
    self.assertLen(source.iterator().select(), 1000)


if __name__ == '__main__':
  absltest.main()
