import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from tff_asr.metrics import contrast


class IntervalTest(parameterized.TestCase):

  def test_by_hand(self):
    # d = 20 / 20; residuals -1 and 1; variance 2 / 1 * 2 / 400 = .01; Student's
    # quantile of one degree of freedom: 12.706.
    found = contrast.interval([9, 11], [10, 10])
    np.testing.assert_allclose(
        found, (1.0, 1 - 12.706 * 0.1, 1 + 12.706 * 0.1), rtol=1e-4
    )

  def test_seeds_add_their_variance(self):
    found = contrast.interval([9, 11], [10, 10], seed_variance=0.03)
    self.assertAlmostEqual(found.high - found.estimate, 12.706 * 0.2, places=3)

  def test_long_speakers_count_more(self):
    # d = 12 / 40; residuals 6 - 3 and 6 - 9; variance 2 * 18 / 1600.
    found = contrast.interval([6, 6], [10, 30])
    self.assertAlmostEqual(found.estimate, 0.3)
    self.assertAlmostEqual(
        found.estimate - found.low, 12.706 * math.sqrt(36) / 40, places=3
    )

  def test_what_all_speakers_have_in_common_is_sure(self):
    found = contrast.interval([1, 2, 3], [10, 20, 30])
    np.testing.assert_allclose(found, (0.1, 0.1, 0.1))

  def test_it_covers_the_truth_as_often_as_it_says(self):
    generator = np.random.default_rng(1)
    num_covering, num_trials = 0, 2000
    for _ in range(num_trials):
      seeds = generator.normal(0, 0.02)
      words = generator.integers(50, 90, 10)
      gaps = words * (generator.normal(0.1, 0.03, 10) + seeds)
      found = contrast.interval(gaps, words, seed_variance=0.02**2)
      num_covering += found.low <= 0.1 <= found.high
    # Student's quantile is for the speakers alone: too wide, if anything.
    self.assertBetween(num_covering / num_trials, 0.94, 0.985)

  @parameterized.parameters(
      (([1], [10]), {}, 'at least two'),
      (([1, 2], [10]), {}, 'found 2 and 1 of 10 words'),
      (([1, 2], [0, 0]), {}, 'of 0 words'),
      (([1, 2], [1, 2]), {'seed_variance': -1}, 'seed_variance'),
      (([1, 2], [1, 2]), {'confidence': 1.5}, 'confidence'),
  )
  def test_bad_arguments(self, arguments, options, message):
    with self.assertRaisesRegex(ValueError, message):
      contrast.interval(*arguments, **options)


if __name__ == '__main__':
  absltest.main()
