"""Plots of runs, privacy plans, experiments and corpora, with matplotlib.

Plots of runs are None if no run has the metrics. A mechanism has one colour in
all plots (`style.COLORS`), and so has a run in all plots of a report.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
import math
import os
import statistics
import types
from typing import NamedTuple, Optional

import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import axis as axis_lib
import numpy as np

from tff_asr import files
from tff_asr.data import index
from tff_asr.privacy import privacy_report
from tff_asr.reports import layer_norms
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import speakers as speakers_lib
from tff_asr.reports import style

_PANEL_HEIGHT = 3.0
_COLUMNS = 3
# Names of more layers would overlap.
_MAX_NAMED_LAYERS = 60
# More have small names.
_MAX_LARGE_NAMES = 12
# Each point is an accounting of its own.
_POINTS_PER_DECADE = 6
_LINES = ('--', ':', '-.')
_UNITS = {'round': 'round (federated)', 'step': 'step (central)'}

Runs = Sequence[runs_lib.Run]
Figure = style.Figure


class Point(NamedTuple):
  """A measurement with its uncertainty.

  Attributes:
    x: A number on a logarithmic axis, or a category.
    value: The measured value.
    deviation: Its standard deviation over random seeds; NaN: unknown.
  """

  x: float | str
  value: float
  deviation: float


def word_error_rates(runs: Runs) -> Optional[Figure]:
  """Plots the word error rate on the dev set over rounds and steps."""
  return _over_time(
      runs,
      {'dev_word_error_rate': ''},
      label='WER on the dev set, %',
      scale=100,
  )


def losses(runs: Runs) -> Optional[Figure]:
  """Plots the loss on the dev set over rounds and steps."""
  return _over_time(runs, {'dev_loss': ''}, label='loss on the dev set')


def training_losses(runs: Runs) -> Optional[Figure]:
  """Plots the loss in training over rounds and steps."""
  return _over_time(runs, {'train_loss': ''}, label='loss in training')


def epsilons(runs: Runs) -> Optional[Figure]:
  """Plots the epsilon of the ledger over rounds."""
  # Settings are gin text: without a target it is 'None'.
  targets = {run.settings.get('TARGET_EPSILON', 'None') for run in runs}

  def decorate(axes: axes_lib.Axes) -> None:
    for target in sorted(map(float, targets - {'None'})):
      axes.axhline(target, color=style.GRAY, linestyle=':', linewidth=1.2)
      axes.annotate(
          f'target {target:g}', (1, target), ha='right', va='bottom',
          xycoords=('axes fraction', 'data'), color=style.GRAY,
          fontsize=style.SMALL_TEXT,
      )
    _set_epsilon_axis(axes.yaxis, axes.set_yscale, axes.set_ylim)

  return _over_time(
      runs, {'epsilon': ''}, label='epsilon spent', decorate=decorate
  )


def update_norms(runs: Runs) -> Optional[Figure]:
  """Plots norms of clients' updates before and after clipping, and the clip."""
  return _over_time(
      runs,
      {
          'delta_norm': 'before clipping',
          'clipped_delta_norm': 'after clipping',
          'aggregator/dp_query_metrics/l2_norm_clip': 'clip C',
      },
      label="norm of a client's update",
      is_log=True,
  )


def clipped(runs: Runs) -> Optional[Figure]:
  """Plots the shares of clients and of layers that clipping changed."""
  return _over_time(
      runs,
      {'clipped_clients': 'clients', 'clipped_layers': 'layers of clients'},
      label='share clipped, %',
      scale=100,
      # With room for marks at 0 and 100.
      decorate=lambda axes: axes.set_ylim(-3, 103),
  )


def noise(runs: Runs) -> Optional[Figure]:
  """Plots the norms of the mean of clipped updates and of its noise."""
  return _over_time(
      runs,
      {
          'aggregator/noise_norm': 'noise on the mean, expected',
          'signal_norm': 'signal: the mean without noise',
          'finalizer/update_norm': 'update: the mean with noise',
      },
      label='norm',
      is_log=True,
  )


def layers(run: runs_lib.Run) -> Optional[Figure]:
  """Plots norms of layers before and after clipping, averaged over rounds."""
  before, after, shares = (
      layer_norms.means(run.layers.get(name, {}))
      for name in ('layer_norm', 'clipped_layer_norm', 'layer_clipped')
  )
  if not before:
    return None
  names = sorted(before)
  heights = np.arange(len(names))
  figure, (left, right) = style.figure(
      1, 2,
      height=max(
          _PANEL_HEIGHT, 0.19 * min(len(names), 4 * _MAX_NAMED_LAYERS) + 1
      ),
      title=f'{style.escape(run.name)} (exact)',
      sharey=True, gridspec_kw={'width_ratios': [3, 1]},
  )
  left.plot(
      [before[n] for n in names], heights, 'o', color=style.PALETTE[0],
      label='before clipping',
  )
  if after:
    left.plot(
        [after.get(n, math.nan) for n in names],
        heights, '|', color=style.PALETTE[1], markersize=9, markeredgewidth=2,
        label='after clipping',
    )
  # A logarithmic axis cannot show a norm of 0.
  if all(value > 0 for value in before.values()):
    left.set_xscale('log')
    style.set_plain_ticks(left.xaxis)
  left.set_xlabel("norm of a client's update (mean)")
  right.barh(
      heights,
      [100 * shares.get(n, math.nan) for n in names],
      color=style.PALETTE[0],
  )
  right.set_xlim(0, 100)
  right.set_xlabel('clients clipped, %')
  size = style.SMALL_TEXT if len(names) <= _MAX_LARGE_NAMES else 'x-small'
  left.set_yticks(heights, list(map(style.escape, names)), fontsize=size)
  # The first layer is on top.
  left.set_ylim(len(names) - 0.5, -0.5)
  style.legend(figure, [left])
  return figure


def norms_by_block(runs: Runs) -> Optional[Figure]:
  """Plots norms of the parts of blocks, runs side by side.

  A row of panels for each metric of `layer_norms`, a column for each run that
  has it.
  """
  found = {
      metric: [
          (run, parts)
          for run in runs if (parts := layer_norms.by_part(run, metric))
      ]
      for metric in layer_norms.TITLES
  }
  found = {metric: shown for metric, shown in found.items() if shown}
  if not found:
    return None
  columns = max(map(len, found.values()))
  figure, grid = style.figure(
      len(found), columns, width=2.4 + _PANEL_HEIGHT * columns,
      height=0.5 + _PANEL_HEIGHT * len(found),
      title=_spread_of_norms(found), squeeze=False, sharey='row',
  )
  for row, (metric, shown) in zip(grid, found.items()):
    row[0].set_ylabel(f'norm of {layer_norms.TITLES[metric]}')
    for axes, (run, parts) in itertools.zip_longest(
        row, shown, fillvalue=(None, None)
    ):
      if run is None:
        axes.set_axis_off()
        continue
      for part, blocks in parts.items():
        axes.plot(
            *_points(blocks), 'o-', markersize=3, label=style.escape(part)
        )
      axes.set_yscale('log')
      style.set_panel_title(axes, f'{run.name} (exact)')
      axes.set_xlabel('block')
      axes.xaxis.set_major_locator(style.whole_numbers())
    # Panels of a row share their axis, so ticks fit all of its curves.
    style.set_plain_ticks(row[0].yaxis)
    style.name_curves(row[len(shown) - 1])
  return figure


def _spread_of_norms(
    found: Mapping[str, Sequence[tuple[object, layer_norms.ByPart]]],
) -> str:
  """Says by how much norms differ between parts of a block, and by depth."""
  by_part, by_depth = [], []
  for _, parts in itertools.chain(*found.values()):
    # A layer that is not trained has a norm of 0.
    moved = [
        norms for blocks in parts.values() if (norms := list(blocks.values()))
        and min(norms) > 0
    ]
    if moved:
      by_part.append(list(map(statistics.geometric_mean, moved)))
      by_depth += moved
  if not by_part:
    return ''
  part, depth = (
      max(max(norms) / min(norms) for norms in each)
      for each in (by_part, by_depth)
  )
  return (
      f'Norms differ up to {part:.1f} times between the parts of a block, and '
      f'up to {depth:.1f} times between the blocks'
  )


def speakers(runs: Runs) -> Optional[Figure]:
  """Plots word error rates of speakers from best to worst."""
  shown = [run for run in runs if run.speakers]
  if not shown:
    return None
  figure, axes = style.figure()
  for run in shown:
    rates = [each.rate for each in speakers_lib.sorted_by_wer(run)]
    _plot_people(
        axes, rates, color=color_of(runs, run), label=style.escape(run.name)
    )
  _set_axes_of_people(axes, 'speakers')
  style.name_curves(axes)
  return figure


def personalization(runs: Runs) -> Optional[Figure]:
  """Plots people's word error rates before and after they adapt the model.

  From best to worst in each curve, so a person may be at two places. Of people
  who have the last number of utterances to adapt on.
  """
  shown = [run for run in runs if speakers_lib.fully_adapted_people(run)]
  if not shown:
    return None
  figure, axes = style.figure()
  for run in shown:
    people = speakers_lib.fully_adapted_people(run).values()
    name = '' if len(shown) == 1 else f'{run.name}, '
    for column, marker, label in ((0, '.--', 'before'), (-1, '.-', 'after')):
      rates = [each['errors'][column] / each['words'] for each in people]
      _plot_people(
          axes,
          sorted(rates),
          marker=marker,
          color=color_of(runs, run),
          label=style.escape(name + label),
      )
  _set_axes_of_people(axes, 'people')
  style.name_curves(axes)
  if len(shown) == 1:
    style.set_title(figure, _who_gains(shown[0]))
  return figure


def _who_gains(run: runs_lib.Run) -> str:
  """Says how many people have fewer errors after they adapted, and more."""
  people = speakers_lib.fully_adapted_people(run).values()
  changes = [each['errors'][-1] - each['errors'][0] for each in people]
  fewer, more = sum(c < 0 for c in changes), sum(c > 0 for c in changes)
  return (
      f'Their own copy of the model makes fewer errors for {fewer:,} of '
      f'{len(changes):,} people, and more for {more:,}'
  )


def noised_word_error_rates(runs: Runs) -> Optional[Figure]:
  """Plots word error rates of private people over rounds, with intervals."""
  name = 'noised_word_error_rate'

  def decorate(axes: axes_lib.Axes) -> None:
    for run in runs:
      rounds, low = _points(_finite(run, f'{name}_low'))
      _, high = _points(_finite(run, f'{name}_high'))
      axes.fill_between(
          rounds, 100 * np.array(low), 100 * np.array(high), alpha=0.15,
          color=color_of(runs, run), linewidth=0,
      )

  return _over_time(
      runs,
      {name: ''},
      label='WER of private people, %',
      scale=100,
      decorate=decorate,
  )


def private_evaluations(runs: Runs) -> Optional[Figure]:
  """Plots the histograms of people's rates that were released with privacy.

  A panel for each evaluation; of those between the rounds of a training, the
  last. Bars have the 95 % interval of their noise.
  """
  found = [(run, each) for run in runs for each in run.final_evaluations]
  if not found:
    return None
  num_rows, columns = _grid_shape(len(found))
  figure, grid = style.figure(
      num_rows, columns, height=max(3.6, _PANEL_HEIGHT * num_rows),
      squeeze=False,
  )
  for axes, (run, each) in itertools.zip_longest(
      grid.flat, found, fillvalue=(None, None)
  ):
    if run is None:
      axes.set_axis_off()
      continue
    counts = np.array(each['histogram'])
    edges = 100 * np.linspace(0, 1, len(counts) + 1)
    axes.bar(
        edges[:-1], counts, 100 / len(counts), align='edge', alpha=0.8,
        color=color_of(runs, run),
        # Counts are at least 0, as is the lower end.
        yerr=[np.minimum(counts, each['bin_half_width']),
              np.full(len(counts), each['bin_half_width'])],
        error_kw={'ecolor': style.GRAY, 'elinewidth': 1},
    )
    style.set_panel_title(
        axes,
        f'{run.name}, epsilon '
        f'{privacy_report.format_epsilon(each["epsilon"])}',
    )
    axes.set_xlim(0, 100)
    axes.set_xlabel('WER of a person, %')
    axes.set_ylabel('people')
  return figure


def privacy_utility(runs: Runs) -> Optional[Figure]:
  """Plots word error rate against epsilon; None if no epsilon is finite.

  Runs without a finite epsilon are horizontal lines.
  """
  measured = [
      (run, found) for run in runs if (found := _word_error_rate(run))
  ]
  is_private = lambda run: run.rounds and math.isfinite(run.epsilon)
  if not any(is_private(run) for run, _ in measured):
    return None
  figure, axes = style.figure()
  for run, (rate, _) in measured:
    options = {'color': color_of(runs, run), 'label': style.escape(run.name)}
    if is_private(run):
      axes.plot(run.epsilon, 100 * rate, 'o', **options)
    else:
      is_said = run.is_public or 'no DP' in run.name
      options['label'] += '' if is_said else ' (no DP)'
      axes.axhline(100 * rate, linestyle='--', linewidth=1, **options)
  _mark_useful_epsilon(axes.axvline)
  # Marks at the border would be cut.
  axes.margins(x=0.08, y=0.15)
  _set_epsilon_axis(axes.xaxis, axes.set_xscale, axes.set_xlim)
  axes.set_xlabel(
      f'epsilon (the dotted line: {privacy_report.MAX_USEFUL_EPSILON:g}, '
      'above it NOT PRIVATE)'
  )
  sets = sorted({name for _, (_, name) in measured})
  axes.set_ylabel(f'WER on the {" or ".join(sets)}, %')
  style.legend(figure, [axes])
  return figure


def epsilon_by_population(
    results: Sequence[privacy_report.PrivacyReport],
) -> Figure:
  """Plots epsilon against population, with a curve for each cohort and noise.

  Along a curve the cohort, the noise on the mean, the rounds and delta stay the
  same. The results are marks on it.

  Args:
    results: Results with one group of rounds each.

  Raises:
    ValueError: No result has a finite epsilon.
  """
  curves, populations = {}, []
  for result in results:
    (group,) = result.rounds
    sampling = group.sampling
    populations.append(sampling.population)
    # In units of the clip.
    sigma_mean = group.noise_multiplier / sampling.cohort_size
    # Rounded: results of one plan differ in the last bits.
    key = (sampling.cohort_size, f'{sigma_mean:.3g}', group.count)
    # A logarithmic axis has no infinity.
    if result.epsilon < math.inf:
      curves.setdefault(key, []).append(result)
  if not curves:
    raise ValueError('there is no finite epsilon to plot.')
  # A decade further than the largest that was asked for.
  last = 10 * max(populations)
  figure, axes = style.figure(height=4.5)
  is_shared = len({(noise, rounds) for _, noise, rounds in curves}) == 1
  by_cohort = {}
  for (cohort_size, sigma_mean, rounds), marked in curves.items():
    marks = _by_population(marked)
    decades = math.log10(last / min(marks))
    grid = np.geomspace(
        min(marks), last, 2 + int(_POINTS_PER_DECADE * decades)
    )
    curve = _by_population(
        privacy_report.extrapolate(
            marked[0], populations=[round(each) for each in grid]
        )
    )
    settings = f'noise on the mean {sigma_mean}, {rounds:,} rounds'
    (line,) = axes.plot(
        *_points(curve),
        label=f'cohort {cohort_size:,}'
        + ('' if is_shared else f'\n{settings}'),
    )
    by_cohort[cohort_size] = curve
    axes.plot(*_points(marks), 'o', color=line.get_color())
  _mark_useful_epsilon(axes.axhline)
  axes.text(
      0.99, 0.93 * privacy_report.MAX_USEFUL_EPSILON, 'NOT PRIVATE above',
      transform=axes.get_yaxis_transform(), ha='right', va='top',
      color=style.GRAY,
      fontsize=style.SMALL_TEXT,
  )
  axes.set_xscale('log')
  axes.set_yscale('log')
  style.set_plain_ticks(axes.xaxis)
  style.set_plain_ticks(axes.yaxis)
  axes.set_xlabel('population (speakers)')
  axes.set_ylabel(f'epsilon at delta {results[0].delta:g}')
  style.name_curves(axes)
  lines = [f'Noise on the mean is kept; {privacy_report.ASSUMED}']
  if is_shared:
    lines = [
        _who_is_private(by_cohort),
        f'{settings.capitalize()}; {privacy_report.ASSUMED}',
    ]
  style.set_title(figure, '\n'.join(lines))
  return figure


def _who_is_private(curves: Mapping[int, Mapping[int, float]]) -> str:
  """Says which cohort and population are the first with a useful epsilon."""
  limit = privacy_report.MAX_USEFUL_EPSILON
  for cohort_size in sorted(curves):
    fits = [p for p, e in curves[cohort_size].items() if e <= limit]
    if fits:
      people = round(float(f'{min(fits):.2g}'))
      return (
          f'Epsilon {limit:g} takes cohorts of {cohort_size:,} and about '
          f'{people:,} people'
      )
  return f'No cohort of these comes to epsilon {limit:g}'


def plot_points(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    *,
    label: str,
    value_label: str,
    title: str = '',
    lines: Mapping[str, float] = types.MappingProxyType({}),
) -> Figure:
  """Plots measurements against one variable, in panels of a grid.

  Args:
    panels: By title, points by name of the curve (empty: not in the legend),
      with error bars.
    label: Label of the variable.
    value_label: Label of the vertical axes.
    title: What the figure shows, in a sentence.
    lines: Values by name, as horizontal lines in each panel.
  """
  num_rows, columns = _grid_shape(len(panels))
  num_names = len(lines) + max(map(len, panels.values()))
  figure, grid = style.figure(
      num_rows, columns, width=max(7.2, 3.2 * columns),
      # With room for the names of curves.
      height=max(3.6, 2.6 * num_rows + 0.4, 1.6 + 0.36 * num_names),
      title=title, squeeze=False, sharey=True,
  )
  for axes, (panel, series) in itertools.zip_longest(
      grid.flat, panels.items(), fillvalue=('', None)
  ):
    if series is None:  # The last row of the grid may not be full.
      axes.set_axis_off()
      continue
    style.set_panel_title(axes, panel)
    axes.set_xlabel(label)
    for (name, value), dashes in zip(lines.items(), itertools.cycle(_LINES)):
      axes.axhline(
          value, color=style.GRAY, linestyle=dashes, linewidth=1.2, label=name
      )
    _plot_series(axes, series)
  for row in grid:
    row[0].set_ylabel(value_label)
  if len(panels) == 1:
    style.name_curves(grid[0, 0])
  else:
    style.legend(figure, grid.flat)
  return figure


def _plot_series(
    axes: axes_lib.Axes, series: Mapping[str, Sequence[Point]]
) -> None:
  """Plots points with error bars over numbers or categories."""
  xs = collections.Counter(
      point.x for points in series.values() for point in points
  )
  words = {x: number for number, x in enumerate(xs) if isinstance(x, str)}
  colors = _curve_colors(series)
  for number, (name, points) in enumerate(series.items()):
    # Shift points that share an x, so that error bars do not hide each other.
    shifts = [
        number - (len(series) - 1) / 2 if xs[x] > 1 else 0 for x, _, _ in points
    ]
    axes.errorbar(
        [
            words[x] + 0.08 * shift if words else x * 1.03**shift
            for (x, _, _), shift in zip(points, shifts)
        ],
        [point.value for point in points],
        yerr=[point.deviation for point in points],
        # Categories have no order, so no line joins them.
        fmt='o' if words else 'o-', capsize=3,
        color=colors[name], label=name or None,
    )
  if words:
    axes.set_xticks(list(words.values()), list(words))
  else:
    style.set_log_axis(axes, xs)


def plot_over_epsilon(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    value_label: str,
    title: str = '',
) -> Figure:
  """Plots measurements over epsilon, with the name of each curve at its end.

  Args:
    curves: Pairs of epsilon and value by name of the curve, at least one pair
      each. Infinity stands for training without DP; it is drawn at the right,
      apart from the axis of numbers. A curve whose name is another's with a
      suffix after a comma has that one's colour, and is dashed.
    value_label: Label of the vertical axis.
    title: What the figure shows, in a sentence.
  """
  figure, axes = style.figure(title=title)
  finite = [x for points in curves.values() for x, _ in points if x < math.inf]
  last = max(10.0, math.ceil(max(finite, default=0.0) / 2) * 2.0)
  no_dp = 1.15 * last
  colors = _curve_colors(name.partition(',')[0] for name in curves)
  for name, points in curves.items():
    stem, _, suffix = name.partition(',')
    color = colors[stem]
    xs, ys = zip(*sorted((min(x, no_dp), y) for x, y in points))
    axes.plot(
        xs, ys, 'o--' if suffix else 'o-', color=color,
        label=style.escape(name),
    )
  axes.set_ylim(bottom=0)
  ticks = np.linspace(0, last, 6)
  axes.set_xticks([*ticks, no_dp], [*(f'{x:g}' for x in ticks), 'no DP'])
  axes.set_xlim(-0.03 * last, 1.03 * no_dp)
  axes.set_xlabel('epsilon')
  axes.set_ylabel(value_label)
  style.name_curves(axes)
  return figure


def save(figure: Figure, path: str) -> None:
  """Writes a plot in the format of the file's ending (.png, .svg, .pdf)."""
  with files.replacing(path) as file:
    figure.savefig(file, format=os.path.splitext(path)[1][1:] or None)


def color_of(runs: Runs, run: runs_lib.Run) -> str:
  """Returns the colour of a run among runs, as `#rrggbb`.

  It is that of the run's mechanism in `style.COLORS`, unless an earlier run has
  it.
  """
  runs = list(runs)
  if len(runs) > len(style.PALETTE):
    rgb = matplotlib.colormaps['turbo'](runs.index(run) / (len(runs) - 1))
    return '#' + ''.join(f'{round(255 * part):02x}' for part in rgb[:3])
  mechanisms = list(map(mechanism, runs))
  firsts = {name: mechanisms.index(name) for name in reversed(mechanisms)}
  taken = {style.COLORS[name] for name in firsts}
  others = iter(color for color in style.PALETTE if color not in taken)
  colors = [
      style.COLORS[name] if firsts[name] == number else next(others)
      for number, name in enumerate(mechanisms)
  ]
  return colors[runs.index(run)]


def mechanism(run: runs_lib.Run) -> str:
  """Returns the key of `style.COLORS` that fits a run's settings."""
  if run.unit == 'step' and not run.rounds:
    return 'public'
  if not run.rounds.get('noise_multiplier'):
    return 'no DP'
  # gin's text names the builders: @blt.BltNoise(), @distributed....
  noise = ' '.join(
      run.settings.get(name, '') for name in ('NOISE_PROCESS', 'BUILD_QUERY')
  ).lower()
  for name in ('BLT', 'banded', 'distributed'):
    if name.lower() in noise:
      return name
  split = run.settings.get('CLIP_SPLIT', '').strip("'")
  return split if split in style.COLORS else 'dim'


def _curve_colors(names: Iterable[str]) -> dict[str, str]:
  """Returns colours of curves: of mechanisms, or else the next free one."""
  names = list(dict.fromkeys(names))
  taken = {style.COLORS[name] for name in names if name in style.COLORS}
  free = itertools.cycle(
      [c for c in style.PALETTE if c not in taken] or style.PALETTE
  )
  return {name: style.COLORS.get(name) or next(free) for name in names}


def audio_by_client(folders: Sequence[str]) -> Figure:
  """Plots histograms of the audio of clients, one per corpus.

  Args:
    folders: Folders of shards.
  """
  figure, axes = style.figure()
  minutes = {}
  for folder in folders:
    corpus, clients, _ = index.read(folder)
    minutes[folder] = clients.num_samples / (60 * corpus.sample_rate_hz)
  everything = np.concatenate(list(minutes.values()))
  # Geometric, because clients have between seconds and days.
  edges = np.geomspace(0.99 * everything.min(), 1.01 * everything.max(), 41)
  for folder, values in minutes.items():
    name = os.path.basename(folder.rstrip('/'))
    axes.hist(
        values,
        bins=edges,
        histtype='step',
        label=f'{name}: {len(values):,} clients, {values.sum() / 60:,.1f} h',
    )
  axes.set_xscale('log')
  style.set_plain_ticks(axes.xaxis)
  axes.set_xlabel('minutes of audio of a client')
  axes.set_ylabel('clients')
  axes.legend()
  return figure


def _plot_people(
    axes: axes_lib.Axes,
    rates: Sequence[float],
    *,
    color: str,
    label: str,
    marker: str = '.-',
) -> None:
  """Plots rates of people, from best to worst."""
  axes.plot(
      100 * (np.arange(len(rates)) + 0.5) / len(rates),
      100 * np.array(rates),
      marker,
      color=color,
      label=label,
  )


def _set_axes_of_people(axes: axes_lib.Axes, people: str) -> None:
  """Labels the axes, and shades the tenth with the highest rates."""
  axes.axvspan(90, 100, color=style.GRAY, alpha=0.15, linewidth=0)
  axes.text(89, 0.94, 'worst tenth', ha='right', fontsize=style.SMALL_TEXT,
            color=style.GRAY, transform=axes.get_xaxis_transform())
  axes.set_xlim(0, 100)
  axes.set_xlabel(f'{people} from best to worst, %')
  axes.set_ylabel('WER of each, %')


def _word_error_rate(run: runs_lib.Run) -> Optional[tuple[float, str]]:
  """Returns a run's WER, on the test set if evaluated, and the set's name."""
  # The test set goes before the dev set, which has tuned the run.
  if run.speakers:
    return run.test_errors.rate, 'test set'
  last = run.last('dev_word_error_rate')
  return None if last is None else (last, 'dev set')


def _mark_useful_epsilon(draw: Callable[..., object]) -> None:
  """Draws a line where epsilon is too large to protect anyone."""
  draw(
      privacy_report.MAX_USEFUL_EPSILON, color=style.GRAY, linestyle=':',
      linewidth=1.2,
  )


def _over_time(
    runs: Runs,
    metrics: Mapping[str, str],
    *,
    label: str,
    scale: float = 1.0,
    is_log: bool = False,
    decorate: Callable[[axes_lib.Axes], object] = lambda axes: None,
) -> Optional[Figure]:
  """Plots metrics, with a panel for each and a curve for each run.

  Rounds and steps have panels of their own. Exact metrics, which the guarantee
  does not cover, are marked in the title.

  Args:
    runs: The runs.
    metrics: Titles of panels by name of the metric.
    label: Label of the values.
    scale: Factor of the values.
    is_log: Whether values have a logarithmic axis.
    decorate: Adds to a panel that has its curves, before they are named.
  """
  shown = {
      (unit, name): found
      for unit in ('round', 'step')
      for name in metrics
      if (found := [
          run for run in runs if run.unit == unit and _finite(run, name)
      ])
  }
  if not shown:
    return None
  # All share one vertical axis, so that their values can be compared.
  num_rows, columns = _grid_shape(len(shown))
  figure, panels = style.figure(
      num_rows, columns, height=max(3.6, _PANEL_HEIGHT * num_rows),
      squeeze=False, sharey=True,
  )
  for panel in panels.flat[len(shown) :]:
    panel.set_visible(False)
  for panel, ((unit, name), found) in zip(panels.flat, shown.items()):
    for run in found:
      _plot_metric(panel, run, name, scale=scale, color=color_of(runs, run))
    is_exact = any(f'not_private/{name}' in run.metrics for run in found)
    style.set_panel_title(
        panel, metrics[name] + (' (exact)' if is_exact else '')
    )
    panel.set_xlabel(_UNITS[unit])
    # Rounds and steps are whole numbers.
    panel.xaxis.set_major_locator(style.whole_numbers())
    decorate(panel)
  for row in panels:
    row[0].set_ylabel(label)
  if is_log:
    _set_log_heights(panels.flat[: len(shown)])
  if len(shown) == 1:
    style.name_curves(panels[0, 0])
  else:
    style.legend(figure, panels.flat)
  return figure


def _plot_metric(
    panel: axes_lib.Axes,
    run: runs_lib.Run,
    name: str,
    *,
    scale: float,
    color: str,
) -> None:
  """Plots a metric of a run, times `scale`."""
  rounds, heights = _points(_finite(run, name))
  panel.plot(
      rounds, scale * np.array(heights), 'o-', markersize=3, color=color,
      label=style.escape(run.name),
  )


def _set_log_heights(panels: Sequence[axes_lib.Axes]) -> None:
  """Makes the shared axis of panels logarithmic; small changes look small."""
  heights = np.concatenate(
      [line.get_ydata() for panel in panels for line in panel.lines]
  )
  for panel in panels:
    panel.set_yscale('log')
    style.set_plain_ticks(panel.yaxis)
  low, high = heights.min(), heights.max()
  if low > 0 and high < 2 * low:
    panels[0].set_ylim(low / 2, 2 * high)


def _grid_shape(num_panels: int) -> tuple[int, int]:
  """Rows and columns of a grid for a number of panels."""
  columns = min(_COLUMNS, num_panels)
  return -(-num_panels // columns), columns


def _set_epsilon_axis(
    axis: axis_lib.Axis,
    set_scale: Callable[[str], object],
    set_limits: Callable[[float], object],
) -> None:
  """Makes an axis begin at 0, or logarithmic if a value is far above 10."""
  if axis.get_view_interval()[1] <= 3 * privacy_report.MAX_USEFUL_EPSILON:
    set_limits(0)
  else:
    set_scale('log')
    style.set_plain_ticks(axis)


def _finite(run: runs_lib.Run, name: str) -> dict[int, float]:
  """Returns the finite values of a metric by round or step."""
  values = run.metric(name).items()
  return {number: value for number, value in values if math.isfinite(value)}


def _points(values: Mapping[float, float]) -> tuple[list[float], list[float]]:
  """Returns keys and values, sorted by key."""
  keys = sorted(values)
  return keys, [values[key] for key in keys]


def _by_population(
    results: Sequence[privacy_report.PrivacyReport],
) -> dict[int, float]:
  """Returns epsilons by population."""
  return {
      result.rounds[0].sampling.population: result.epsilon
      for result in results
  }
