"""Tests of tff_asr.reports.style: one look, and names that stay apart."""

import io

from absl.testing import parameterized
from matplotlib import image
import numpy as np

from tff_asr.reports import style


class StyleTest(parameterized.TestCase):

  def test_figures_have_the_style_also_in_ticks_made_as_they_are_drawn(self):
    figure, panel = style.figure(title='All is well.')
    panel.plot([0, 1], [0, 3])
    figure.savefig(io.BytesIO(), format='png')
    self.assertEqual(panel.xaxis.label.get_size(), 12)
    for tick in panel.yaxis.get_major_ticks():
      self.assertEqual(tick.label1.get_size(), 11.5)
      self.assertEqual(tick.gridline.get_color(), '#dddfe4')
    self.assertEqual(panel.lines[0].get_color(), style.PALETTE[0])
    self.assertFalse(panel.spines['top'].get_visible())

  def test_a_saved_figure_has_the_pixels_of_the_style(self):
    figure, _ = style.figure(width=4, height=2)
    png = io.BytesIO()
    figure.savefig(png, format='png')
    png.seek(0)
    self.assertEqual(image.imread(png).shape[:2], (220, 440))

  @parameterized.parameters(1.1, 3.7, 12.5, 27.9, 74)
  def test_ticks_are_round_numbers(self, top):
    _, panel = style.figure()
    panel.plot([0, 1], [0, top])
    step = np.diff(panel.get_yticks())[0]
    leading = float(f'{step:e}'.partition('e')[0])
    self.assertIn(leading, (1, 2, 5))

  def test_mechanisms_in_one_figure_have_different_colors(self):
    for names in (
        ('dim', 'global', 'uniform', 'no DP', 'central'),
        ('dim', 'BLT', 'banded', 'distributed', 'no DP', 'public'),
    ):
      self.assertLen({style.COLORS[name] for name in names}, len(names))

  @parameterized.parameters(
      ([0.1, 0.5], [0.1, 0.5]),
      # Both around their mean.
      ([0.5, 0.5], [0.45, 0.55]),
      # The third comes too close to the first two, which were moved.
      ([0.5, 0.5, 0.6], [13 / 30, 16 / 30, 19 / 30]),
      ([0.0, 0.5, 0.52], [0.0, 0.46, 0.56]),
      ([], []),
  )
  def test_heights_are_spread_by_hand(self, heights, expected):
    np.testing.assert_allclose(style.spread(heights, gap=0.1), expected)

  def test_curves_are_named_where_they_end(self):
    _, panel = style.figure()
    panel.set(ylim=(1, 100), yscale='log')
    panel.plot([1, 2], [5, 10], label='a')
    panel.errorbar([1, 2], [1, 100], yerr=1, label='b')
    panel.axhline(10, label='c')
    style.name_curves(panel)
    names = {text.get_text(): text for text in panel.texts}
    self.assertEqual(names['b'].xy[1], 1)
    self.assertEqual(names['a'].get_color(), panel.lines[0].get_color())
    # Equal heights, half way on a logarithmic axis.
    a, c = names['a'].xy[1], names['c'].xy[1]
    self.assertAlmostEqual((a + c) / 2, 0.5)
    self.assertGreater(abs(a - c), 0.04)
    self.assertEmpty(panel.figure.legends)

  def test_many_curves_share_a_legend(self):
    figure, panel = style.figure()
    for number in range(9):
      panel.plot([0, 1], [0, number], label=str(number))
    style.name_curves(panel)
    self.assertEmpty(panel.texts)
    (legend,) = figure.legends
    self.assertLen(legend.get_texts(), 9)

  def test_titles_of_panels_are_wrapped_to_their_width(self):
    figure, panels = style.figure(1, 3)
    for panel in panels:
      style.set_panel_title(panel, 'signal: the mean of 5 $ without noise')
    figure.savefig(io.BytesIO(), format='png')
    ends = [panel.title.get_window_extent() for panel in panels]
    for left, right in zip(ends, ends[1:]):
      self.assertLess(left.x1, right.x0)
    self.assertIn(r'\$', panels[0].get_title())
