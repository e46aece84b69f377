"""Tests of tff_asr.privacy.noise."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import dp_accounting
import numpy as np

from tff_asr.privacy import accounting
from tff_asr.privacy import noise as noise_lib


class NoiseTest(parameterized.TestCase):

  def test_conventions_by_hand(self):
    # The paper's 3e-6 at S = 1024: z = 0.003072, at a client
    # 3e-6 * sqrt(1024) = 9.6e-5.
    for value, given in ((3e-6, 'mean'), (0.003072, 'sum'), (9.6e-5, 'client')):
      noise = noise_lib.convert(value, given=given, cohort_size=1024)
      self.assertAlmostEqual(noise.on_mean, 3e-6, places=15)
      self.assertAlmostEqual(noise.on_sum, 0.003072, places=12)
      self.assertAlmostEqual(noise.at_client, 9.6e-5, places=13)

  def test_conventions_agree_with_drawn_noise(self):
    noise = noise_lib.convert(0.5, given='client', cohort_size=9)
    drawn = np.random.default_rng(0).normal(0, 0.5, [200_000, 9])
    # Seeded; unseeded, 1 % is 6 standard errors.
    self.assertAlmostEqual(drawn.sum(1).std() / noise.on_sum, 1, delta=0.01)
    self.assertAlmostEqual(drawn.mean(1).std() / noise.on_mean, 1, delta=0.01)

  def test_gaussians_combine_as_their_events_do(self):
    # (3^-2 + 4^-2)^-1/2 = 12 / 5.
    self.assertAlmostEqual(noise_lib.combine_gaussians([3.0, 4.0]), 2.4)
    self.assertEqual(noise_lib.combine_gaussians([3.0]), 3.0)
    self.assertEqual(noise_lib.combine_gaussians([3.0, 0.0]), 0.0)
    self.assertAlmostEqual(
        noise_lib.combine_gaussians([1e-200, 1e-200]), 1e-200 / math.sqrt(2)
    )
    together = accounting.epsilon(
        dp_accounting.GaussianDpEvent(2.4), delta=1e-5
    )
    apart = accounting.epsilon(
        dp_accounting.ComposedDpEvent(
            [dp_accounting.GaussianDpEvent(z) for z in (3.0, 4.0)]
        ),
        delta=1e-5,
    )
    self.assertAlmostEqual(together, apart)

  def test_bad_arguments_are_named(self):
    with self.assertRaisesRegex(ValueError, 'given'):
      noise_lib.convert(1.0, given='total', cohort_size=2)
    with self.assertRaisesRegex(ValueError, 'value'):
      noise_lib.convert(-1.0, given='sum', cohort_size=2)
    with self.assertRaisesRegex(ValueError, 'noise_multipliers'):
      noise_lib.combine_gaussians([])


if __name__ == '__main__':
  absltest.main()
