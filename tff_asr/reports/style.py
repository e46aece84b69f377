"""The look of figures: one style file, colours of mechanisms, names at curves.

figures.mplstyle sets sizes, grids and colours. Figures that `figure` creates
have them; with pyplot, as in the notebooks:

    plt.style.use(style.PATH)

pyplot is not used here, because it looks for a display.
"""

from collections.abc import Iterable, Mapping, Sequence
import os
import textwrap
from typing import NamedTuple

import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import axis as axis_lib
from matplotlib import figure as figure_lib
from matplotlib import ticker
import numpy as np

PATH = os.path.join(os.path.dirname(__file__), 'figures.mplstyle')
_RC = matplotlib.rc_params_from_file(PATH, use_default_template=False)

PALETTE: Sequence[str] = tuple(_RC['axes.prop_cycle'].by_key()['color'])
GRAY = '#6b717d'
COLORS: Mapping[str, str] = {
    'dim': PALETTE[0],  # Clipping by layer, which most runs use.
    'Poisson': PALETTE[0],
    'global': PALETTE[1],
    'uniform': PALETTE[2],
    'BLT': PALETTE[3],
    'banded': PALETTE[4],
    'distributed': PALETTE[5],
    'no DP': PALETTE[6],
    'federated': PALETTE[6],  # Without DP.
    'public': '#4b5260',
    'central': '#4b5260',
}
"""Colours of mechanisms by their names in tables and settings."""

SMALL_TEXT = _RC['legend.fontsize']
# Curves that have their names at their ends; more share a legend.
_MAX_NAMED_CURVES = 8
_LEGEND_COLUMNS = 5
# Of a legend's text, and of a title's.
_CHARACTERS_PER_INCH, _TITLE_CHARACTERS_PER_INCH = 12, 10.5

Figure = figure_lib.Figure


class _Styled(Figure):
  """A figure of the style; matplotlib makes some of its ticks when it draws."""

  def draw(self, renderer: object) -> None:
    with matplotlib.rc_context(_RC):
      super().draw(renderer)


class _End(NamedTuple):
  """The right end of a curve.

  Attributes:
    name: Of the curve.
    height: Its height, 0 at the bottom of the panel and 1 at the top.
    color: Its colour.
  """

  name: str
  height: float
  color: str


def figure(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = _RC['figure.figsize'][0],
    height: float = _RC['figure.figsize'][1],
    title: str = '',
    **options: object,
) -> tuple[Figure, axes_lib.Axes | np.ndarray]:
  """Creates a figure and its panels.

  Args:
    rows: Rows of panels.
    columns: Columns of panels.
    width: Inches.
    height: Inches.
    title: What the figure shows, in a sentence.
    **options: As `Figure.subplots`.

  Returns:
    The figure, and its panels as `Figure.subplots` returns them.
  """
  with matplotlib.rc_context(_RC):
    # The style's layout makes room for what is outside of the panels.
    created = _Styled(figsize=(width, height))
    panels = created.subplots(rows, columns, **options)
  for panel in np.atleast_1d(panels).flat:
    for axis in (panel.xaxis, panel.yaxis):
      axis.set_major_locator(ticker.MaxNLocator('auto', steps=[1, 2, 5, 10]))
  set_title(created, title)
  return created, panels


def set_title(drawn: Figure, text: str) -> None:
  """Sets what a figure shows, wrapped; empty: nothing."""
  if text:
    width = int(_TITLE_CHARACTERS_PER_INCH * drawn.get_figwidth())
    drawn.suptitle(
        '\n'.join(textwrap.fill(line, width) for line in text.splitlines()),
        x=0.01, ha='left', fontsize=_RC['figure.titlesize'],
    )


def set_panel_title(panel: axes_lib.Axes, text: str) -> None:
  """Sets the title of a panel, wrapped to its width; dollars are escaped."""
  width = panel.get_position().width * panel.figure.get_figwidth()
  wrapped = textwrap.fill(
      escape(text), max(1, int(_CHARACTERS_PER_INCH * width))
  )
  panel.set_title(wrapped, fontsize=SMALL_TEXT)


def escape(name: str) -> str:
  """Escapes dollars, which matplotlib would parse as formulas."""
  return name.replace('$', r'\$')


def name_curves(panel: axes_lib.Axes) -> None:
  """Writes the labels of curves at their right ends; of many, in a legend.

  Args:
    panel: The panel; it is complete.
  """
  lines = {}
  for handle, label in zip(*panel.get_legend_handles_labels()):
    # Points with error bars are a container whose first member is the line.
    lines.setdefault(label, handle[0] if isinstance(handle, tuple) else handle)
  if len(lines) > _MAX_NAMED_CURVES:
    legend(panel.figure, [panel])
    return
  x = panel.get_xlim()[1]
  panel.get_ylim()  # Brings the limits up to date.
  ends = []
  for label, line in lines.items():
    _, height = panel.transLimits.transform(
        panel.transScale.transform((x, line.get_ydata()[-1]))
    )
    ends.append(_End(label, height, line.get_color()))
  ends.sort(key=lambda end: end.height)
  panel_height = panel.get_position().height * panel.figure.get_figheight()
  heights = spread(
      [end.height for end in ends], gap=1.3 * SMALL_TEXT / 72 / panel_height
  )
  for end, height in zip(ends, heights):
    panel.annotate(
        end.name, (1.015, height), xycoords='axes fraction', color=end.color,
        fontsize=SMALL_TEXT, va='center', annotation_clip=False,
    )


def spread(heights: Sequence[float], *, gap: float) -> list[float]:
  """Moves heights apart to at least a gap, each group around its mean.

  Args:
    heights: Ascending.
    gap: The smallest difference.

  Returns:
    The heights, ascending.
  """
  # Means and sizes of groups; a group is its heights at equal gaps.
  groups: list[tuple[float, int]] = []
  for height in heights:
    mean, size = height, 1
    while groups:
      below, count = groups[-1]
      if mean - gap * (size - 1) / 2 >= below + gap * (count + 1) / 2:
        break
      groups.pop()
      mean = (mean * size + below * count) / (size + count)
      size += count
    groups.append((mean, size))
  return [
      mean + gap * (number - (size - 1) / 2)
      for mean, size in groups
      for number in range(size)
  ]


def legend(drawn: Figure, panels: Iterable[axes_lib.Axes]) -> None:
  """Adds one legend for all panels, below them."""
  handles = {}
  for panel in panels:
    for handle, text in zip(*panel.get_legend_handles_labels()):
      # One entry for a run that is in several panels.
      handles.setdefault(text, handle)
  if handles:
    # As many columns of the longest name, with its mark, as have room.
    widest = max(map(len, handles)) + 6
    room = int(_CHARACTERS_PER_INCH * drawn.get_figwidth() / widest)
    drawn.legend(
        list(handles.values()),
        list(handles),
        loc='outside lower center',
        ncols=max(1, min(len(handles), room, _LEGEND_COLUMNS)),
        fontsize=SMALL_TEXT,
        frameon=False,
    )


def whole_numbers() -> ticker.Locator:
  """Returns ticks at round whole numbers."""
  return ticker.MaxNLocator('auto', integer=True, steps=[1, 2, 5, 10])


def set_log_axis(panel: axes_lib.Axes, xs: Iterable[float]) -> None:
  """Makes an axis logarithmic, with ticks at its numbers if they are round."""
  panel.set_xscale('log')
  xs = list(xs)
  if any(float(f'{x:.2g}') != x for x in xs):
    set_plain_ticks(panel.xaxis)
    return
  marks: list[float] = []
  for x in sorted(xs):
    # Labels of closer numbers would overlap.
    if not marks or x > 1.08 * marks[-1]:
      marks.append(x)
  panel.set_xticks(marks, [f'{x:g}' for x in marks])
  panel.xaxis.set_minor_locator(ticker.NullLocator())


def set_plain_ticks(axis: axis_lib.Axis) -> None:
  """Labels a logarithmic axis with plain round numbers, once it is drawn on."""
  low, high = axis.get_view_interval()
  if high < 10 * low:
    axis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
  else:
    subs = (1, 2, 5) if high < 500 * low else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
  axis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f'{x:,.10g}'))
  axis.set_minor_locator(ticker.NullLocator())
