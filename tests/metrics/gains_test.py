"""Tests of tff_asr.metrics.gains."""

from absl.testing import absltest
import numpy as np

from tff_asr.metrics import gains


class SummarizeTest(absltest.TestCase):

  def test_by_hand(self):
    # Ten people of 10 words, and one without words, who does not count.
    before = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5]
    after = [0, 1, 1, 1, 4, 5, 6, 7, 8, 4, 0]
    found = gains.summarize(before, after, words=[10] * 10 + [0])
    self.assertEqual((found.num_people, found.num_words), (10, 100))
    self.assertAlmostEqual(found.rate_before, 0.45)
    # 45 errors less 1, 2 and 5; the errors of the last person are left out.
    self.assertAlmostEqual(found.rate_after, 0.37)
    self.assertAlmostEqual(found.mean_after, 0.37)
    self.assertAlmostEqual(found.difference.estimate, -0.13)
    # Nine gaps of one person: 0.9, 1.8, ... tenths of a word.
    np.testing.assert_allclose(
        found.deciles_before, np.arange(1, 10) * 0.09, rtol=1e-9
    )
    # Before, the last of the ten is the worst; after, the last but one.
    self.assertAlmostEqual(found.worst_tenth_before, 0.9)
    self.assertAlmostEqual(found.worst_tenth_after, 0.8)
    self.assertAlmostEqual(found.share_better, 0.3)
    self.assertAlmostEqual(found.share_worse, 0.0)

  def test_people_count_alike_in_means_and_by_words_in_rates(self):
    found = gains.summarize([1, 10], [0, 20], words=[1, 99])
    self.assertAlmostEqual(found.rate_after, 0.2)
    self.assertAlmostEqual(found.mean_after, 10 / 99)
    self.assertEqual((found.share_better, found.share_worse), (0.5, 0.5))

  def test_without_words_there_is_no_rate(self):
    with self.assertRaisesRegex(ValueError, 'words must have'):
      gains.summarize([1], [0], words=[0])


class WorstTenthTest(absltest.TestCase):

  def test_is_a_tenth_of_the_people_by_rate_and_at_least_one(self):
    self.assertAlmostEqual(gains.worst_tenth([1, 2], [1, 100]), 1.0)
    errors = np.arange(20)
    # The two worst of twenty, over their words.
    self.assertAlmostEqual(
        gains.worst_tenth(errors[::-1], [20] * 20), 37 / 40
    )


if __name__ == '__main__':
  absltest.main()
