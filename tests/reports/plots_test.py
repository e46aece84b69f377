"""Tests of tff_asr.reports.plots: figures plot the values of the metrics."""

import math
import pathlib

import numpy as np

from tests import cases
from tests import fakes
from tests.reports import run_folders
from tff_asr.metrics import confidence
from tff_asr.privacy import privacy_report
from tff_asr.reports import plots
from tff_asr.reports import runs


def _plan(noise_multiplier: float) -> privacy_report.PrivacyReport:
  return privacy_report.plan(
      cohort_size=10, population=100, noise_multiplier=noise_multiplier,
      rounds=10,
  )


class PlotsTest(cases.TestCase):

  def read(self, name: str, **content) -> runs.Run:
    return run_folders.read(self.path(name), **content)

  def seed(self) -> runs.Run:
    return self.read('seed', **run_folders.SEED)

  def private(self, name: str = 'private', **content) -> runs.Run:
    return self.read(name, **dict(
        settings={'NUM_ROUNDS': '3', 'TARGET_EPSILON': '2000'},
        metrics=run_folders.PRIVATE_METRICS,
        privacy=run_folders.privacy(epsilon=1234.5),
    ) | content)

  def test_curves_have_the_values_of_the_metrics(self):
    both = [self.seed(), self.private()]
    rounds, steps = plots.word_error_rates(both).axes
    self.assertEqual(list(rounds.lines[0].get_xdata()), [3])
    self.assertEqual(list(rounds.lines[0].get_ydata()), [40])
    self.assertEqual(list(steps.lines[0].get_ydata()), [90, 80])
    figures = {
        plots.epsilons: [[400, 800, 1200], [2000, 2000]],
        # A round without clients has no mean.
        plots.norms: [[2, 1]],
        plots.clipped: [[75, 75, 75]],
        plots.noise: [[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]],
        plots.speakers: [[62.5, 75]],
    }
    for draw, curves in figures.items():
      (axes,) = draw(both).axes
      self.assertEqual([list(line.get_ydata()) for line in axes.lines], curves)
    (axes,) = plots.norms(both).axes
    self.assertEqual(list(axes.lines[0].get_xdata()), [1, 3])

  def test_each_run_is_in_the_legend_once(self):
    # The seed model has no loss on the dev set, the other run both.
    (legend,) = plots.losses([self.seed(), self.private()]).legends
    self.assertCountEqual(
        [text.get_text() for text in legend.get_texts()], ['seed', 'private']
    )

  def test_exact_metrics_and_no_others_are_marked(self):
    run = self.private()
    for draw, expected in (
        (plots.norms, ['before clipping (not private)']),
        (plots.clipped, ['clients (not private)']),
        (
            plots.noise,
            [
                'noise on the mean, expected',
                'signal: the mean without noise (not private)',
            ],
        ),
    ):
      (axes,) = draw([run]).axes
      self.assertEqual([line.get_label() for line in axes.lines], expected)

  def test_missing_metrics_give_no_plot(self):
    run = self.read('run')
    for draw in (
        plots.word_error_rates, plots.losses, plots.epsilons, plots.norms,
        plots.clipped, plots.noise, plots.speakers, plots.privacy_utility,
    ):
      self.assertIsNone(draw([run]))
    self.assertIsNone(plots.layers(run))

  def test_each_run_has_its_own_color(self):
    many = [self.read(str(number)) for number in range(12)]
    for some in (many[:10], many):
      self.assertLen({plots.color_of(some, run) for run in some}, len(some))

  def test_layers_are_means_over_rounds(self):
    run = self.private()
    run.layers.update(
        layer_norm={'a': {1: 1.0, 2: 3.0}, 'b': {1: math.nan, 2: 5.0}},
        clipped_layer_norm={'a': {1: 0.5}, 'b': {2: 2.0}},
        layer_clipped={'a': {1: 0.0, 2: 0.5}, 'b': {2: 1.0}},
    )
    left, right = plots.layers(run).axes
    self.assertEqual(list(left.lines[0].get_xdata()), [2.0, 5.0])
    self.assertEqual(list(left.lines[1].get_xdata()), [0.5, 2.0])
    self.assertEqual([bar.get_width() for bar in right.patches], [25, 100])
    labels = [label.get_text() for label in left.get_yticklabels()]
    self.assertEqual(labels, ['a', 'b'])

  def test_larger_populations_keep_the_noise_on_the_mean(self):
    larger = plots.epsilons_of_larger(self.private())
    self.assertEqual(
        list(larger), [100 * 10**n for n in range(1, 1 + len(larger))]
    )
    for population, epsilon in larger.items():
      # The same noise on the mean: 0.1 / 10; the same share of clients.
      expected = privacy_report.plan(
          cohort_size=population // 10,
          population=population,
          sigma_mean=0.01,
          rounds=20,
          delta=1e-3,
      )
      self.assertAlmostEqual(epsilon, expected.epsilon, places=6)
    # No further than to an epsilon of use.
    *_, before, last = larger.values()
    self.assertLessEqual(last, 1.0)
    self.assertGreater(before, 1.0)

  def test_runs_that_cannot_be_extrapolated(self):
    infinite = self.private('inf', privacy=run_folders.privacy(epsilon='inf'))
    self.assertEmpty(plots.epsilons_of_larger(infinite))
    self.assertIsNone(plots.privacy_utility([infinite]))
    several = run_folders.privacy()
    several['groups'] *= 2
    # The test set goes before the dev set.
    run = self.private('several', privacy=several, errors={'ann': (1, 4)})
    self.assertEmpty(plots.epsilons_of_larger(run))
    line, mark, *_ = plots.privacy_utility([run]).axes[0].lines
    for each in (line, mark):
      self.assertEqual(list(each.get_xydata()[0]), [1000.0, 25.0])

  def test_privacy_utility_marks_what_is_extrapolated(self):
    both = [
        self.private(),
        self.private('plain', privacy=run_folders.privacy(epsilon='inf')),
        self.private('unknown', metrics={}),
    ]
    (axes,) = plots.privacy_utility(both).axes
    self.assertIn('hollow: extrapolated', axes.get_title())
    self.assertIn(privacy_report.ASSUMED, axes.get_title())
    by_style = {
        line.get_fillstyle(): line
        for line in axes.lines if line.get_marker() == 'o'
    }
    self.assertEqual(list(by_style['full'].get_xdata()), [1234.5])
    self.assertEqual(list(by_style['full'].get_ydata()), [40.0])
    larger = plots.epsilons_of_larger(both[0])
    self.assertEqual(list(by_style['none'].get_xdata()), list(larger.values()))
    self.assertEqual(
        [text.get_text() for text in axes.texts],
        [f'{population:,}' for population in (100, *larger)],
    )
    labels = axes.get_legend_handles_labels()[1]
    self.assertEqual(labels, ['private', 'plain (no DP)'])

  def test_epsilon_falls_as_the_population_grows(self):
    plan = _plan(1.0)
    (axes,) = plots.epsilon_by_population([plan]).axes
    curve, mark, *_ = axes.lines
    self.assertEqual(list(mark.get_xydata()[0]), [100, plan.epsilon])
    self.assertEqual(list(curve.get_xdata()[[0, -1]]), [100, 1000])
    self.assertEqual(curve.get_ydata()[0], plan.epsilon)
    self.assertTrue(all(np.diff(curve.get_ydata()) < 0))
    with self.assertRaisesRegex(ValueError, 'no finite epsilon'):
      plots.epsilon_by_population([_plan(0.0)])

  def test_wer_against_numbers_with_a_panel_of_gaps(self):
    points = [plots.Point(1, 0.5, 0.1), plots.Point(4, 0.25, math.nan)]
    gap = confidence.Interval(0.1, 0.05, 0.2)
    left, right = plots.plot_wer_vs(
        {'a': points}, lines={'seed': 0.75}, gaps={4: gap}, label='clients'
    ).axes
    line, (curve, *_) = left.lines[0], left.containers[0]
    self.assertEqual(list(line.get_ydata()), [75, 75])
    self.assertEqual(list(curve.get_xdata()), [1, 4])
    self.assertEqual(list(curve.get_ydata()), [50, 25])
    self.assertEqual(left.get_xscale(), 'log')
    self.assertEqual(list(right.containers[0][0].get_ydata()), [10])
    ((low, high),) = right.containers[0][2][0].get_segments()
    np.testing.assert_allclose([low[1], high[1]], [5, 20])

  def test_only_points_with_the_same_x_are_shifted(self):
    point = lambda x: plots.Point(x, 0.5, math.nan)
    (axes,) = plots.plot_wer_vs(
        {'a': [point(4), point(5)], 'b': [point(4.1), point(5)]},
        lines={},
        gaps={},
        label='epsilon',
    ).axes
    (a, b) = (list(drawn[0].get_xdata()) for drawn in axes.containers)
    self.assertEqual([a[0], b[0]], [4, 4.1])
    self.assertLess(a[1], 5)
    self.assertGreater(b[1], 5)

  def test_wer_against_categories(self):
    points = [plots.Point(x, 0.5, math.nan) for x in ('LAMB', 'SGD')]
    (axes,) = plots.plot_wer_vs({'': points}, lines={}, gaps={}, label='y').axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    self.assertEqual(labels, ['LAMB', 'SGD'])
    path = self.path('x.png')
    plots.save(axes.figure, path)
    self.assertStartsWith(pathlib.Path(path).read_bytes(), b'\x89PNG')


class CorporaTest(cases.TestCase):

  def test_each_client_is_counted_by_its_minutes(self):
    folders = [
        fakes.write_split(self.path(name), counts)
        for name, counts in (('a', {'ann': 3, 'bob': 5}), ('b', {'cai': 1}))
    ]
    (axes,) = plots.audio_by_client(folders).axes
    _, labels = axes.get_legend_handles_labels()
    self.assertEqual([text.split(',')[0] for text in labels],
                     ['a: 2 clients', 'b: 1 clients'])
    heights = [patch.get_xy()[:, 1].max() for patch in axes.patches]
    self.assertEqual(max(heights[1:]), 1)
