"""The plot of a group of findings: word error rates along one axis."""

from collections.abc import Iterable, Mapping
import math

from matplotlib import figure
from matplotlib import ticker

from tff_asr.findings import experiments
from tff_asr.findings import table
from tff_asr.metrics import confidence

_INCHES = (6.4, 3.6)
_DPI = 90
_LEGEND_COLUMNS = 4
# Of rows that are lines across.
_STYLES = ('--', ':', '-.')


def draw(
    group: experiments.Group,
    measured: Mapping[str, table.Measured],
    *,
    path: str,
) -> None:
  """Draws the rows that are measured.

  Points are means over runs, bars the standard deviations of a run over random
  seeds (of a row of one run the pooled one); rows that belong to no series are
  lines across. Where each row of one series is compared with
  one of another at the same place, the differences are drawn beside, with their
  95 % intervals.

  Args:
    group: The group; has an `x_label`.
    measured: Its rows by label, at least one.
    path: The picture's file.
  """
  gaps = _gaps(measured)
  # Not through pyplot, which would look for a display.
  canvas = figure.Figure(
      figsize=(_INCHES[0] * (1.5 if gaps else 1), _INCHES[1]),
      layout='constrained',
  )
  axes, *others = canvas.subplots(1, 2 if gaps else 1, squeeze=False)[0]
  words = _words(each.row.x for each in measured.values())
  series = {}
  for each in measured.values():
    if each.row.series is None:
      axes.axhline(
          100 * each.shown.word_error_rate,
          color='gray',
          linestyle=_STYLES[len(axes.lines) % len(_STYLES)],
          linewidth=1,
          label=each.row.label,
      )
    else:
      series.setdefault(each.row.series, []).append(each)
  for number, (name, points) in enumerate(series.items()):
    # Side by side, so that bars do not hide each other.
    shift = number - (len(series) - 1) / 2
    axes.errorbar(
        [_place(each.row.x, words, shift) for each in points],
        [100 * each.shown.word_error_rate for each in points],
        yerr=[100 * _deviation(each) for each in points],
        fmt='o' if words else 'o-',
        markersize=4,
        capsize=3,
        label=name or None,
    )
  axes.set_ylabel('WER % of the test speakers')
  handles, labels = axes.get_legend_handles_labels()
  if handles:
    canvas.legend(
        handles,
        labels,
        loc='outside upper left',
        ncols=_LEGEND_COLUMNS,
        fontsize='small',
    )
  _set_x(axes, group, words, _numbers(measured))
  for other in others:
    _draw_gaps(other, gaps)
    _set_x(other, group, {}, list(gaps))
  canvas.savefig(path, dpi=_DPI)


def _deviation(each: table.Measured) -> float:
  """Of a run's word error rate over seeds; not a number draws no bar."""
  if each.shown.spread is not None:
    return each.shown.spread
  return math.sqrt(each.seed_variance) or math.nan


def _gaps(
    measured: Mapping[str, table.Measured],
) -> dict[float, confidence.Interval]:
  """Numbers on the axis to differences of two series there."""
  gaps = {}
  for each in measured.values():
    other = measured.get(each.row.against)
    if (
        each.difference is not None
        and isinstance(each.row.x, (int, float))
        and other.row.series is not None
        and other.row.x == each.row.x
    ):
      if each.row.x in gaps:
        return {}  # Several: the points say enough.
      gaps[each.row.x] = each.difference
  return gaps


def _draw_gaps(axes, gaps: Mapping[float, confidence.Interval]) -> None:
  """Differences with their intervals."""
  estimates = [100 * gap.estimate for gap in gaps.values()]
  axes.errorbar(
      list(gaps),
      estimates,
      yerr=[
          [100 * (gap.estimate - gap.low) for gap in gaps.values()],
          [100 * (gap.high - gap.estimate) for gap in gaps.values()],
      ],
      fmt='o-',
      markersize=4,
      capsize=3,
      color='black',
  )
  axes.axhline(0, color='gray', linewidth=1)
  axes.set_ylabel('gap in points of WER (95 %)')


def _place(
    x: float | str, words: Mapping[str, int], shift: float
) -> float:
  """A place on the axis, linear for words and logarithmic for numbers."""
  return words[x] + 0.08 * shift if words else x * 1.03**shift


def _words(places: Iterable[float | str | None]) -> dict[str, int]:
  """Places that are words, numbered in their order."""
  words = dict.fromkeys(place for place in places if isinstance(place, str))
  return {word: number for number, word in enumerate(words)}


def _numbers(
    measured: Mapping[str, table.Measured],
) -> list[float]:
  """Places that are numbers, sorted."""
  return sorted({
      each.row.x
      for each in measured.values()
      if isinstance(each.row.x, (int, float))
  })


def _set_x(axes, group: experiments.Group, words, numbers) -> None:
  """The axis of the places: words, or numbers on a logarithmic scale."""
  axes.set_xlabel(group.x_label)
  if words:
    axes.set_xticks(list(words.values()), list(words))
  elif numbers:
    axes.set_xscale('log')
    axes.set_xticks(numbers, [f'{number:g}' for number in numbers])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
