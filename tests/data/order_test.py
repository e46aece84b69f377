"""Tests of tff_asr.data.order."""

import collections
import math
import time

from absl.testing import parameterized
import numpy as np
from scipy import stats

from tff_asr.data import order
from tff_asr.privacy import keys

# The smallest of about 20 p-values below, all of fixed seeds.
_LEAST_P = 1e-4
_LARGE = 70_000


def _order(num_records: int, seed: int = 0) -> order.Order:
  return order.Order(num_records, key=keys.from_seed(seed))


class OrderTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 7, 1000, 65_536, 65_537, _LARGE)
  def test_a_pass_has_each_record_once_and_ends(self, num_records):
    whole = _order(num_records).positions(3, 0, num_records)
    np.testing.assert_array_equal(np.sort(whole), np.arange(num_records))
    self.assertEmpty(_order(num_records).positions(3, num_records, 5))
    self.assertLen(_order(num_records).positions(3, num_records - 1, 5), 1)

  @parameterized.parameters(1000, _LARGE)
  def test_any_stretch_alone_is_that_of_the_whole_pass(self, num_records):
    found = _order(num_records)
    whole = found.positions(5, 0, num_records)
    for start, count in ((0, 1), (17, 64), (num_records - 3, 9), (999, 1)):
      np.testing.assert_array_equal(
          found.positions(5, start, count), whole[start : start + count]
      )

  def test_a_far_place_of_a_large_corpus_costs_milliseconds(self):
    # Pass 100,000 over Libri-Light's records.
    started = time.process_time()
    found = _order(14_000_000).positions(100_000, 13_000_000, 512)
    self.assertLess(time.process_time() - started, 0.5)
    self.assertLen(set(found.tolist()), 512)
    self.assertLess(max(found), 14_000_000)

  @parameterized.parameters(300, _LARGE)
  def test_no_two_passes_nor_keys_share_an_order(self, num_records):
    # Two keys, two passes, in two orders of asking.
    orders = {}
    for pairs in ([(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 1), (0, 1), (0, 0)]):
      for seed, pass_num in pairs:
        found = _order(num_records, seed).positions(pass_num, 0, 200)
        known = orders.setdefault((seed, pass_num), found)
        np.testing.assert_array_equal(known, found)
    for one in orders:
      for other in orders:
        if one != other:
          # Records at the same place: by chance .7 of 200 at n = 300.
          same = np.sum(orders[one] == orders[other])
          self.assertLess(same, 8, (one, other))

  @parameterized.parameters(2, 3, 4, 5)
  def test_each_order_of_few_records_is_as_likely_as_another(self, num_records):
    found = _order(num_records)
    counts = collections.Counter(
        tuple(found.positions(pass_num, 0, num_records).tolist())
        for pass_num in range(6000)
    )
    counts = list(counts.values())
    self.assertLen(counts, math.factorial(num_records))
    self.assertGreater(stats.chisquare(counts).pvalue, _LEAST_P)

  @parameterized.parameters(17, 1000, _LARGE)
  def test_places_steps_and_pairs_are_uniform(self, num_records):
    found = _order(num_records, seed=7)
    first = np.array(
        [found.positions(pass_num, 0, 3) for pass_num in range(3000)]
    )
    fractions = (first + 0.5) / num_records
    bins = min(num_records, 16)
    # Records of a bin, for a number that bins do not divide.
    sizes = np.bincount(np.arange(num_records) * bins // num_records)
    for place in range(3):
      counts = np.bincount(first[:, place] * bins // num_records)
      expected = sizes / num_records * len(first)
      self.assertGreater(stats.chisquare(counts, expected).pvalue, _LEAST_P)
    for one, other in ((0, 1), (0, 2), (1, 2)):
      step = (first[:, other] - first[:, one]) % num_records
      dither = np.random.default_rng(0).random(len(step))
      uniform = (step - 1 + dither) / (num_records - 1)
      self.assertGreater(stats.kstest(uniform, 'uniform').pvalue, _LEAST_P)
      quarters = (4 * fractions[:, [one, other]]).astype(int)
      counts = np.bincount(quarters @ [4, 1], minlength=16)
      if num_records > 100:  # Of few, a pair in one quarter is rarer.
        self.assertGreater(stats.chisquare(counts).pvalue, _LEAST_P)
    # And from pass to pass.
    lag = stats.spearmanr(first[:-1, 0], first[1:, 0]).pvalue
    self.assertGreater(lag, _LEAST_P)

  def test_bad_arguments_are_named(self):
    with self.assertRaisesRegex(ValueError, 'num_records'):
      _order(0)
    with self.assertRaisesRegex(ValueError, 'pass_num'):
      _order(3).positions(-1, 0, 1)
