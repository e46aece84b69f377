"""Tests of tff_asr.privacy.epsilon_plot."""

import os
import tempfile

from absl.testing import absltest
from matplotlib import image

from tff_asr.privacy import epsilon_plot
from tff_asr.privacy import epsilon_report


def _plan(noise_multiplier):
  return epsilon_report.solve(
      cohort_size=100, population=10_000, noise_multiplier=noise_multiplier,
      rounds=10, delta=1e-6,
  )


class EpsilonPlotTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = os.path.join(folder, 'epsilon.png')

  def test_draws_a_picture_that_depends_on_the_epsilons(self):
    pictures = []
    for noise_multiplier in (1.0, 2.0):
      epsilon_plot.draw([_plan(noise_multiplier)], path=self.path)
      pictures.append(image.imread(self.path))
    self.assertEqual(pictures[0].shape, pictures[1].shape)
    self.assertTrue((pictures[0] != pictures[1]).any())

  def test_without_a_finite_epsilon_there_is_nothing_to_draw(self):
    with self.assertRaisesRegex(ValueError, 'no finite epsilon'):
      epsilon_plot.draw([_plan(0.0)], path=self.path)
    self.assertFalse(os.path.exists(self.path))

  def test_the_grid_has_both_ends(self):
    self.assertEqual(
        epsilon_plot._grid(100, 1000), [100, 146, 215, 316, 464, 681, 1000]
    )
    self.assertEqual(epsilon_plot._grid(7, 7), [7])


if __name__ == '__main__':
  absltest.main()
