"""Tests for cohorts."""

import collections
import functools
import itertools

from absl.testing import parameterized
import numpy as np
from scipy import stats

from tests import fakes
from tests import reference
from tff_asr.data import cohorts
from tff_asr.privacy import keys

_KEY = keys.from_seed(0)
_BUILDERS = (
    ('poisson', cohorts.poisson),
    ('fixed_size', cohorts.fixed_size),
    ('min_sep', functools.partial(cohorts.min_sep, min_sep=2)),
    ('cyclic', functools.partial(cohorts.cyclic, min_sep=2)),
)


def _ids(count):
  return [f'{i:06}' for i in range(count)]


def _draw(source, count, state=None):
  """The cohorts of rounds from a state, or from round 0, on."""
  state = source.initial_state() if state is None else state
  found = []
  for _ in range(count):
    cohort, state = source.draw(state)
    found.append(cohort)
  return found


class CohortsTest(parameterized.TestCase):

  @parameterized.named_parameters(*_BUILDERS)
  def test_a_cohort_has_distinct_sorted_ids(self, build):
    source = build(_ids(20), cohort_size=5)
    sampling = source.sampling
    self.assertEqual((sampling.cohort_size, sampling.population), (5, 20))
    for cohort in _draw(source, 20):
      self.assertContainsSubset(cohort, _ids(20))
      self.assertEqual(cohort, sorted(set(cohort)))

  @parameterized.named_parameters(*_BUILDERS)
  def test_a_cohort_is_a_function_of_clients_key_and_round(self, build):
    ids = _ids(50)
    expected = _draw(build(ids, cohort_size=20, key=_KEY), 10)
    # Not of the order of the ids, nor of the rounds drawn before. The key of a
    # state counts, not that of the source.
    another_key = build(ids[::-1], cohort_size=20, key=keys.from_seed(1))
    for start in (0, 4, 9):
      state = another_key.initial_state()._replace(
          key=_KEY, round_num=np.int64(start)
      )
      self.assertEqual(
          _draw(another_key, 10 - start, state), expected[start:]
      )
      _, after = another_key.draw(state)
      self.assertEqual(after.round_num, start + 1)
      np.testing.assert_array_equal(after.key, _KEY)
    # Another round and another key, drawn or given, give another cohort.
    drawn = [
        *expected,
        *_draw(another_key, 10),
        *_draw(build(ids, cohort_size=20), 10),
    ]
    self.assertLen(set(map(tuple, drawn)), 30)

  def test_fixed_size_cohorts_are_the_smallest_of_their_round_s_words(self):
    words = np.array(
        [reference.chacha20_words(_KEY, i, [3, 0, 3]) for i in range(13)],
        np.uint64,
    ).ravel()[:100]
    source = cohorts.fixed_size(_ids(100), cohort_size=3, key=_KEY)
    cohort, _ = source.draw(cohorts.CohortState(_KEY, np.int64(3)))
    chosen = sorted(np.argsort(words)[:3])
    self.assertEqual(cohort, [_ids(100)[i] for i in chosen])

  @parameterized.parameters((3, 1), (7, 3), (50, 20))
  def test_poisson_cohorts_are_the_numpy_twin_s(self, population, cohort_size):
    source = cohorts.poisson(
        _ids(population), cohort_size=cohort_size, key=_KEY
    )
    expected = [
        reference.poisson_cohort(
            _ids(population),
            sampling_prob=cohort_size / population,
            key=_KEY,
            round_num=round_num,
        )
        for round_num in range(40)
    ]
    self.assertEqual(_draw(source, 40), expected)

  def test_poisson_clients_join_independently(self):
    # Seeded. Unseeded, each of the tests would fail once in 10^4.
    population, size, rounds = 200, 7, 2000
    source = cohorts.poisson(_ids(population), cohort_size=size, key=_KEY)
    drawn = _draw(source, rounds)
    rate = size / population
    pvalue = lambda count, trials, rate: stats.binomtest(
        count, trials, rate
    ).pvalue
    total = sum(map(len, drawn))
    self.assertGreater(pvalue(total, population * rounds, rate), 1e-4)
    # 5 % more clients would be noticed.
    more = round(population * rounds * rate * 1.05)
    self.assertLess(pvalue(more, population * rounds, rate), 1e-4)
    # The size of a cohort varies as that of independent clients: 8 in 10,000
    # are empty.
    variance = np.var([len(cohort) for cohort in drawn])
    statistic = variance / (population * rate * (1 - rate)) * rounds
    self.assertBetween(
        statistic, *stats.chi2.interval(1 - 1e-4, rounds - 1)
    )
    self.assertIn([], drawn)
    # No client is favoured.
    counts = np.unique(list(itertools.chain(*drawn)), return_counts=True)[1]
    expected = rounds * rate
    statistic = ((counts - expected) ** 2).sum() / (expected * (1 - rate))
    self.assertLen(counts, population)
    self.assertBetween(statistic, *stats.chi2.interval(1 - 1e-4, population))
    # Nor does a round depend on the one before.
    both = sum(len(set(a) & set(b)) for a, b in zip(drawn, drawn[1:]))
    pairs = population * (rounds - 1)
    self.assertGreater(pvalue(both, pairs, rate**2), 1e-4)

  @parameterized.parameters((_BUILDERS[1][1], 1), (_BUILDERS[2][1], 2))
  def test_each_subset_of_those_whose_turn_it_is_comes_equally_often(
      self, build, num_groups
  ):
    # A group's turn is that of its ids, whatever the key.
    ids = _ids(5 * num_groups)
    drawn = _draw(build(ids, cohort_size=2, key=_KEY), 5000)
    for group in range(num_groups):
      counts = collections.Counter(map(tuple, drawn[group::num_groups]))
      members = ids[group::num_groups]
      self.assertCountEqual(counts, itertools.combinations(members, 2))
      # Seeded; unseeded it would fail once in 10^4.
      self.assertGreater(stats.chisquare(list(counts.values())).pvalue, 1e-4)

  @parameterized.parameters((22, 5, 4), (22, 5, 3), (22, 5, 1), (7, 1, 7))
  def test_no_client_takes_part_twice_within_min_sep(
      self, population, cohort_size, separation
  ):
    source = cohorts.min_sep(
        _ids(population), cohort_size=cohort_size, min_sep=separation,
        key=_KEY,
    )
    last, closest, joined = {}, [], collections.Counter()
    num_rounds = 30 * separation + 1
    for number, cohort in enumerate(_draw(source, num_rounds)):
      self.assertLen(cohort, cohort_size)
      closest += [number - last[each] for each in cohort if each in last]
      last.update(dict.fromkeys(cohort, number))
      joined.update(cohort)
    # It is kept, and no more than it.
    self.assertEqual(min(closest), separation)
    self.assertLessEqual(max(joined.values()), 31)
    # All take part.
    self.assertLen(joined, population)

  @parameterized.parameters(cohorts.min_sep, cohorts.cyclic)
  def test_a_state_with_groups_of_other_clients_is_refused(self, build):
    build = functools.partial(build, cohort_size=2, min_sep=3)
    # All clients move to the previous group, and its turn comes too soon.
    before, after = build(_ids(12)), build([*_ids(12)[1:], 'zoe'])
    state = before.initial_state()
    self.assertEqual(before.sampling, after.sampling)
    for other in (after, build(_ids(13))):
      with self.assertRaisesRegex(ValueError, 'are others than those'):
        other.draw(state)
    build(_ids(12)[::-1]).draw(state)

  def test_clients_of_a_cycle_join_independently(self):
    source = cohorts.cyclic(
        _ids(10), cohort_size=2, min_sep=3, key=_KEY
    )
    self.assertAlmostEqual(source.sampling.sampling_prob, 0.6)
    drawn = _draw(source, 6000)
    for group in range(3):
      members = _ids(10)[group::3]
      turns = drawn[group::3]
      self.assertContainsSubset(set(itertools.chain(*turns)), members)
      # Every subset of a group, as often as its coins say.
      counts = collections.Counter(map(tuple, turns))
      subsets = [
          subset
          for size in range(len(members) + 1)
          for subset in itertools.combinations(members, size)
      ]
      expected = [
          2000 * 0.6 ** len(subset) * 0.4 ** (len(members) - len(subset))
          for subset in subsets
      ]
      # Of a fixed key; a new one would fail 1 time in 1,000.
      self.assertGreater(
          stats.chisquare([counts[each] for each in subsets], expected).pvalue,
          1e-4,
      )
    # All of a group, where its coins always say so, whatever the key: the
    # separation outlives it.
    for key in map(keys.from_seed, range(3)):
      whole = cohorts.cyclic(
          _ids(9), cohort_size=3, min_sep=3, key=key
      )
      for number, cohort in enumerate(_draw(whole, 4)):
        self.assertEqual(cohort, _ids(9)[number % 3 :: 3])

  def test_a_min_sep_that_the_clients_do_not_allow_is_refused(self):
    with self.assertRaisesRegex(ValueError, '22 clients make only 4 cohorts'):
      cohorts.min_sep(_ids(22), cohort_size=5, min_sep=5)

  def test_the_largest_min_sep_is_that_of_whole_cohorts(self):
    data = fakes.client_data({f'c{number:02}': 1 for number in range(11)})
    self.assertEqual(
        cohorts.largest_min_sep(client_data=data, cohort_size=2), 5
    )
    with self.assertRaisesRegex(ValueError, 'only 11 private clients'):
      cohorts.largest_min_sep(client_data=data, cohort_size=12)

  def test_full_takes_all_clients(self):
    source = cohorts.full(_ids(7)[::-1])
    self.assertEqual(_draw(source, 2), [_ids(7)] * 2)
    full = cohorts.poisson(_ids(7), cohort_size=7, key=_KEY)
    self.assertEqual(_draw(full, 1), [_ids(7)])

  @parameterized.named_parameters(
      ('too_few', ['a', 'b'], "cohort_size is 3 .* 2"),
      ('repeated', ['a', 'b', 'a'], r"repeat: \['a'\]"),
      ('empty', [], 'at least one id'),
      ('one_string', 'abc', 'sequence'),
      ('number', ['a', 1, 'b'], 'found 1'),
      ('blank', ['a', '', 'b'], "found ''"),
  )
  def test_bad_ids_are_refused(self, client_ids, message):
    for _, build in _BUILDERS:
      with self.assertRaisesRegex(ValueError, message):
        build(client_ids, cohort_size=3)

  def test_bad_round_or_key_is_refused(self):
    source = cohorts.full(_ids(2))
    for round_num in (-1, 1.5):
      with self.assertRaisesRegex(ValueError, 'round_num'):
        source.draw(cohorts.CohortState(_KEY, round_num))
    with self.assertRaisesRegex(ValueError, 'key'):
      cohorts.poisson(_ids(2), cohort_size=1, key=np.zeros(4))
