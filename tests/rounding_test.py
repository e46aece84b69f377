"""Tests of tff_asr.rounding."""

from absl.testing import absltest

from tff_asr import rounding


class WholeTest(absltest.TestCase):

  def test_percents_of_counts_are_those_of_integers(self):
    wrong = [
        (percent, count)
        for percent in range(101)
        for count in range(1001)
        if rounding.whole(percent / 100 * count) != percent * count // 100
    ]
    self.assertEmpty(wrong)

  def test_milliseconds_are_whole_samples(self):
    for milliseconds in range(1, 60_001):
      self.assertEqual(
          rounding.whole(milliseconds / 1000 * 16_000), 16 * milliseconds
      )

  def test_fractions_beyond_rounding_errors_are_rounded_down(self):
    for number, expected in (
        (0.0, 0), (0.999, 0), (28.9999, 28), (29.0001, 29), (1e6 - 0.01, 999999)
    ):
      self.assertEqual(rounding.whole(number), expected)
