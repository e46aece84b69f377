"""Tests of tff_asr.reports.plots: figures plot the values of the metrics."""

import dataclasses
import math
import pathlib

import numpy as np

from tests import cases
from tests import fakes
from tests.reports import run_folders
from tff_asr.privacy import privacy_report
from tff_asr.reports import plots
from tff_asr.reports import runs
from tff_asr.reports import style
from tff_asr.reports import tables


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
        plots.update_norms: [[2, 1]],
        plots.clipped: [[75, 75, 75]],
        plots.noise: [[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]],
        plots.speakers: [[62.5, 75]],
    }
    for draw, curves in figures.items():
      lines = [line for axes in draw(both).axes for line in axes.lines]
      self.assertEqual([list(line.get_ydata()) for line in lines], curves)
    (axes,) = plots.update_norms(both).axes
    self.assertEqual(list(axes.lines[0].get_xdata()), [1, 3])

  def test_people_before_and_after_they_adapt(self):
    plain = self.seed()
    run = dataclasses.replace(
        plain,
        personalization={
            'gains': [{'num_utterances': None}],
            'people': {
                'ann': dict(words=10, errors=[5, 1], num_adapted=[0, 2]),
                'bob': dict(words=10, errors=[2, 3], num_adapted=[0, 2]),
                'cai': dict(words=10, errors=[9, 9], num_adapted=[0, 0]),
            },
        },
    )
    (axes,) = plots.personalization([run]).axes
    before, after = axes.lines
    # Each curve from best to worst: bob is first, then ann.
    np.testing.assert_allclose(before.get_ydata(), [20, 50])
    np.testing.assert_allclose(after.get_ydata(), [10, 30])
    self.assertEqual(
        ' '.join(axes.figure.get_suptitle().split()),
        'Their own copy of the model makes fewer errors for 1 of 2 people, and '
        'more for 1',
    )
    self.assertIsNone(plots.personalization([plain]))

  def test_norms_of_one_size_do_not_look_like_changes(self):
    # From .1 to .2 the axis fits the values; one value has a factor of 4.
    run = self.private()
    low, high = plots.noise([run]).axes[0].get_ylim()
    self.assertBetween(low, 0.05, 0.1)
    self.assertBetween(high, 0.2, 0.4)
    run = dataclasses.replace(run, metrics={'delta_norm': {1: 1.0}})
    (axes,) = plots.update_norms([run]).axes
    np.testing.assert_allclose(axes.get_ylim(), (0.5, 2.0))

  def test_curves_of_one_panel_are_named_at_their_ends(self):
    figure = plots.epsilons([self.private()])
    self.assertEqual(figure.legends, [])
    (axes,) = figure.axes
    named = [text for text in axes.texts if text.get_text() == 'private']
    self.assertLen(named, 1)
    # At the height of the last point, on the axis as it is in the end.
    (_, height) = axes.transAxes.inverted().transform(
        axes.transData.transform((0, axes.lines[0].get_ydata()[-1]))
    )
    self.assertAlmostEqual(named[0].xy[1], height, places=3)

  def test_each_run_is_in_the_legend_once(self):
    (legend,) = plots.training_losses([self.seed(), self.private()]).legends
    self.assertCountEqual(
        [text.get_text() for text in legend.get_texts()], ['seed', 'private']
    )

  def test_exact_metrics_and_no_others_are_marked(self):
    run = self.private()
    for draw, expected in (
        (plots.update_norms, ['before clipping (exact)']),
        (plots.clipped, ['clients (exact)']),
        (plots.losses, ['']),
        (plots.training_losses, ['(exact)']),
        (
            plots.noise,
            [
                'noise on the mean, expected',
                'signal: the mean without noise (exact)',
            ],
        ),
    ):
      titles = [
          # Wrapped to the width of the panel.
          ' '.join(axes.get_title().split())
          for axes in draw([run]).axes if axes.lines
      ]
      self.assertEqual(titles, expected)

  def test_missing_metrics_give_no_plot(self):
    run = self.read('run')
    for draw in (
        plots.word_error_rates, plots.losses, plots.epsilons, plots.update_norms,
        plots.clipped, plots.noise, plots.speakers, plots.privacy_utility,
    ):
      self.assertIsNone(draw([run]))
    self.assertIsNone(plots.layers(run))

  def test_a_mechanism_has_its_color_whatever_the_order(self):
    noised = run_folders.privacy(noise_multiplier=0.8)
    rounds = {'NUM_ROUNDS': '3'}
    of = {
        'public': self.seed(),
        'no DP': self.private(privacy=run_folders.privacy(noise_multiplier=0)),
    }
    for name, settings in (
        ('dim', {'CLIP_SPLIT': "'dim'"}),
        ('global', {'CLIP_SPLIT': "'global'"}),
        ('BLT', {'NOISE_PROCESS': '@blt.BltNoise()'}),
        ('distributed', {'BUILD_QUERY': '@distributed.DistributedSumQuery'}),
    ):
      of[name] = self.private(name, settings=rounds | settings, privacy=noised)
    self.assertEqual({plots.mechanism(run): run for run in of.values()}, of)
    for some in (list(of.values()), list(of.values())[::-1]):
      for name, run in of.items():
        self.assertEqual(plots.color_of(some, run), style.COLORS[name])
    again = dataclasses.replace(of['dim'], name='again')
    self.assertNotIn(
        plots.color_of([*of.values(), again], again),
        [style.COLORS[name] for name in of],
    )

  def test_noised_rates_over_rounds_have_intervals(self):
    self.assertIsNone(plots.noised_word_error_rates([self.private()]))
    name = 'noised_word_error_rate'
    run = self.private('evaluated', metrics={
        'epsilon': {1: 1.0, 2: 2.0, 3: 3.0},
        name: {1: 0.5, 3: 0.25},
        f'{name}_low': {1: 0.4, 3: 0.125},
        f'{name}_high': {1: 0.6, 3: 0.375},
    })
    (axes,) = plots.noised_word_error_rates([run]).axes
    self.assertEqual(list(axes.lines[0].get_xdata()), [1, 3])
    self.assertEqual(list(axes.lines[0].get_ydata()), [50, 25])
    (area,) = axes.collections
    corners = {tuple(each) for each in area.get_paths()[0].vertices}
    self.assertContainsSubset(
        {(1, 40), (1, 60), (3, 12.5), (3, 37.5)}, corners
    )

  def test_private_evaluations_are_histograms_with_error_bars(self):
    plain = self.seed()
    self.assertIsNone(plots.private_evaluations([plain]))
    run = run_folders.with_private_evaluation(plain)
    (axes,) = plots.private_evaluations([plain, run]).axes
    bars, errors = axes.containers
    if len(bars) != 4:
      bars, errors = errors, bars
    self.assertEqual([bar.get_height() for bar in bars], [100, 190, 0, 3])
    self.assertEqual([bar.get_x() for bar in bars], [0, 25, 50, 75])
    _, _, (lines,) = errors
    ends = [segment[:, 1].tolist() for segment in lines.get_segments()]
    # A count is at least 0.
    self.assertEqual(ends, [[95, 105], [185, 195], [0, 5], [0, 8]])

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

  def test_norms_by_block_are_side_by_side(self):
    federated, central = self.private(), self.seed()
    federated.layers.update(
        layer_norm={
            # A mean of 3; with the bias a part of norm 5.
            'block_00/ln1/scale': {1: 2.0, 2: 4.0},
            'block_00/ln1/bias': {1: 4.0},
            'block_01/ln1/scale': {1: 0.5},
            'block_01/w1': {1: math.nan, 2: 0.25},
            'head/bias': {1: 9.0},
        },
        layer_gradient_norm={'block_01/w1': {1: 0.75}},
    )
    central.layers.update(layer_gradient_norm={'block_00/w1': {20: 0.125}})
    figure = plots.norms_by_block([federated, central])
    deltas, empty, local, steps = figure.axes
    self.assertFalse(empty.axison)
    self.assertEqual(
        [
            [(line.get_label(), list(line.get_xdata()), list(line.get_ydata()))
             for line in axes.lines]
            for axes in (deltas, local, steps)
        ],
        [
            [('ln1', [0, 1], [5.0, 0.5]), ('w1', [1], [0.25])],
            [('w1', [1], [0.75])],
            [('w1', [0], [0.125])],
        ],
    )
    # Of ln1, 5 / .5; of the parts, sqrt(5 * .5) / .25.
    self.assertEqual(
        ' '.join(figure.get_suptitle().split()),
        'Norms differ up to 6.3 times between the parts of a block, and up to '
        '10.0 times between the blocks',
    )
    self.assertIsNone(plots.norms_by_block([self.private('other')]))
    self.assertEqual(
        tables.norms_by_block_part([federated, central]),
        [
            ['norm', federated.name, central.name],
            ["clients' deltas: ln1", '2.8', ''],
            ["clients' deltas: w1", '0.25', ''],
            ['gradients: w1', '0.75', '0.12'],
        ],
    )

  def test_privacy_utility_has_a_mark_or_a_line_for_each_run(self):
    runs_of_both_kinds = [
        # The test set goes before the dev set.
        self.private(errors={'ann': (1, 4)}),
        self.private('plain', privacy=run_folders.privacy(epsilon='inf')),
        self.private('unknown', metrics={}),
    ]
    (axes,) = plots.privacy_utility(runs_of_both_kinds).axes
    mark, line, _ = axes.lines
    self.assertEqual(mark.get_xydata().tolist(), [[1234.5, 25.0]])
    self.assertEqual(list(line.get_ydata()), [40, 40])
    labels = axes.get_legend_handles_labels()[1]
    self.assertEqual(labels, ['private', 'plain (no DP)'])
    self.assertIsNone(plots.privacy_utility(runs_of_both_kinds[1:]))

  def test_epsilon_falls_as_the_population_grows(self):
    plan = _plan(1.0)
    (axes,) = plots.epsilon_by_population([plan]).axes
    curve, mark, *_ = axes.lines
    self.assertEqual(list(mark.get_xydata()[0]), [100, plan.epsilon])
    self.assertEqual(list(curve.get_xdata()[[0, -1]]), [100, 1000])
    self.assertEqual(curve.get_ydata()[0], plan.epsilon)
    self.assertTrue(all(np.diff(curve.get_ydata()) < 0))
    # Epsilon is below 10 from the fewest people on.
    self.assertEqual(
        axes.figure.get_suptitle().splitlines()[0],
        'Epsilon 10 takes cohorts of 10 and about 100 people',
    )
    with self.assertRaisesRegex(ValueError, 'no finite epsilon'):
      plots.epsilon_by_population([_plan(0.0)])

  def test_points_over_numbers_with_lines(self):
    points = [plots.Point(1, 50, 10), plots.Point(4, 25, math.nan)]
    axes, *others = plots.plot_points(
        {'first': {'a': points}, **{str(n): {'a': points} for n in range(3)}},
        lines={'seed': 75},
        label='clients',
        value_label='WER %',
    ).axes
    self.assertEqual([each.axison for each in others], [True] * 3 + [False] * 2)
    line, (curve, _, (bars,)) = axes.lines[0], axes.containers[0]
    self.assertEqual(list(line.get_ydata()), [75, 75])
    self.assertEqual(list(curve.get_xdata()), [1, 4])
    self.assertEqual(list(curve.get_ydata()), [50, 25])
    np.testing.assert_allclose(bars.get_segments()[0][:, 1], [40, 60])
    self.assertEqual(axes.get_xscale(), 'log')
    self.assertEqual(axes.get_title(), 'first')

  def test_only_points_with_the_same_x_are_shifted(self):
    point = lambda x: plots.Point(x, 50, math.nan)
    (axes,) = plots.plot_points(
        {'': {
            'a': [point(4), point(5)], 'b': [point(4.1), point(5)]
        }},
        label='epsilon',
        value_label='WER %',
    ).axes
    (a, b) = (list(drawn[0].get_xdata()) for drawn in axes.containers)
    self.assertEqual([a[0], b[0]], [4, 4.1])
    self.assertLess(a[1], 5)
    self.assertGreater(b[1], 5)

  def test_points_over_categories(self):
    points = [plots.Point(x, 50, math.nan) for x in ('LAMB', 'SGD')]
    (axes,) = plots.plot_points(
        {'': {'': points}}, label='y', value_label='WER %'
    ).axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    self.assertEqual(labels, ['LAMB', 'SGD'])
    path = self.path('x.png')
    plots.save(axes.figure, path)
    self.assertStartsWith(pathlib.Path(path).read_bytes(), b'\x89PNG')

  def test_points_over_epsilon_end_at_no_dp_with_their_names(self):
    (axes,) = plots.plot_over_epsilon(
        {
            'from scratch': [(math.inf, 5), (0, 25), (5, 18)],
            'from scratch, with LM': [(0, 7), (5, 4.9)],
        },
        value_label='WER %',
        title='DP costs 13 points.',
    ).axes
    self.assertEqual(axes.figure.get_suptitle(), 'DP costs 13 points.')
    first, second = axes.lines
    self.assertEqual(list(first.get_ydata()), [25, 18, 5])
    self.assertEqual(list(first.get_xdata()), [0, 5, 11.5])
    self.assertEqual(first.get_color(), second.get_color())
    self.assertNotEqual(first.get_linestyle(), second.get_linestyle())
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    self.assertEqual(ticks, ['0', '2', '4', '6', '8', '10', 'no DP'])
    self.assertIsNone(axes.get_legend())
    names = {text.get_text(): text.xy[1] for text in axes.texts}
    self.assertEqual(list(names), ['from scratch, with LM', 'from scratch'])
    # Apart from each other, though the curves end at 5 and 4.9.
    scratch, with_lm = names['from scratch'], names['from scratch, with LM']
    self.assertGreater(scratch, with_lm + 0.05)


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
