"""Tests of tff_asr.reports.privacy_utility."""

import math
import os
import tempfile

from absl.testing import absltest

from tests.reports import run_folders
from tff_asr.privacy import epsilon_report
from tff_asr.reports import privacy_utility
from tff_asr.reports import run_record


class PrivacyUtilityTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())

  def read(self, name: str, **content) -> run_record.Run:
    folder = run_folders.write(
        os.path.join(self.root, name),
        **dict(
            settings={'NUM_ROUNDS': '20'},
            metrics={'dev_word_error_rate': {10: 0.5, 20: 0.4}},
        )
        | content,
    )
    (run,) = run_record.read([folder])
    return run

  def test_own_point_is_measured_and_larger_populations_are_extrapolated(self):
    run = self.read('run', privacy=run_folders.privacy(epsilon=1234.5))
    own, *others = privacy_utility.points(run)
    self.assertEqual(own, (1234.5, 0.4, 100, False))
    self.assertNotEmpty(others)
    for growth, point in zip((10, 100, 1000, 10_000, 100_000), others):
      # The same noise on the mean: 0.1 / 10; the same share of clients.
      expected = epsilon_report.solve(
          cohort_size=10 * growth,
          population=100 * growth,
          sigma_mean=0.01,
          rounds=20,
          delta=1e-3,
      )
      self.assertEqual(point.population, 100 * growth)
      self.assertAlmostEqual(point.epsilon, expected.epsilon, places=6)
      self.assertEqual(point.word_error_rate, 0.4)
      self.assertTrue(point.is_extrapolated)
    # No further than to an epsilon of use.
    self.assertLessEqual(others[-1].epsilon, 1.0)
    self.assertGreater(others[-2].epsilon, 1.0)

  def test_a_run_without_noise_is_not_extrapolated(self):
    run = self.read('run', privacy=run_folders.privacy(epsilon='inf'))
    self.assertEqual(
        privacy_utility.points(run), [(math.inf, 0.4, 100, False)]
    )

  def test_rounds_of_several_kinds_are_not_extrapolated(self):
    privacy = run_folders.privacy()
    privacy['groups'] *= 2
    run = self.read('run', privacy=privacy)
    self.assertLen(privacy_utility.points(run), 1)

  def test_the_test_set_goes_before_the_dev_set(self):
    run = self.read('run', errors={'ann': (1, 4)})
    self.assertEqual(privacy_utility.word_error_rate(run), (0.25, 'test set'))
    self.assertEqual(privacy_utility.points(run), [])
    other = self.read('other')
    self.assertEqual(privacy_utility.word_error_rate(other), (0.4, 'dev set'))
    none = self.read('none', metrics={'epsilon': {1: 2.0}})
    self.assertIsNone(privacy_utility.word_error_rate(none))

  def test_the_picture_marks_what_is_extrapolated(self):
    runs = [
        self.read('dp', privacy=run_folders.privacy(epsilon=1234.5)),
        self.read('plain', privacy=run_folders.privacy(epsilon='inf')),
    ]
    axes = privacy_utility.draw(runs).axes[0]
    self.assertIn('hollow: extrapolated', axes.get_title())
    self.assertIn(epsilon_report.ASSUMED, axes.get_title())
    by_style = {line.get_fillstyle(): line for line in axes.lines
                if line.get_marker() == 'o'}
    self.assertEqual(list(by_style['full'].get_xdata()), [1234.5])
    self.assertEqual(list(by_style['full'].get_ydata()), [40.0])
    self.assertEqual(
        list(by_style['none'].get_xdata()),
        [p.epsilon for p in privacy_utility.points(runs[0])[1:]],
    )
    labels = axes.get_legend_handles_labels()[1]
    self.assertEqual(labels, ['dp', 'plain (no DP)'])

  def test_without_a_finite_epsilon_there_is_no_picture(self):
    run = self.read('run', privacy=run_folders.privacy(epsilon='inf'))
    self.assertIsNone(privacy_utility.draw([run]))


if __name__ == '__main__':
  absltest.main()
