"""The pictures of a report: figures of runs, a function each.

Each takes runs and returns a figure, or None where none of them has what it
shows. A run has one colour in all pictures.
"""

from collections.abc import Mapping, Sequence
import itertools
import math
from typing import Optional

import matplotlib
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import ticker
import numpy as np

from tff_asr.reports import run_record
from tff_asr.reports import speaker_spread

_WIDTH = 9.0
_HEIGHT = 4.2
_PANEL_HEIGHT = 3.2
_PANELS_IN_A_ROW = 2
# In a row of the legend.
_LEGEND_COLUMNS = 5
_MAX_NAMED_LAYERS = 60

Runs = Sequence[run_record.Run]
Figure = figure_lib.Figure


def word_error_rates(runs: Runs) -> Optional[Figure]:
  """Word error rate on the dev set, over rounds and steps."""
  return _over_time(
      runs, ['dev_word_error_rate'], label='WER on the dev set, %', scale=100
  )


def losses(runs: Runs) -> Optional[Figure]:
  """Loss in training and on the dev set, over rounds and steps."""
  return _over_time(
      runs,
      ['dev_loss', 'train_loss'],
      label='CTC loss, nats an utterance',
      styles={'dev_loss': 'o-', 'train_loss': '-'},
      names={'dev_loss': 'dev set', 'train_loss': 'training (not private)'},
  )


def epsilons(runs: Runs) -> Optional[Figure]:
  """Epsilon of the ledger over rounds; runs without noise have none."""
  shown = [run for run in runs if _is_finite(run.metric('epsilon'))]
  if not shown:
    return None
  figure, axes = _figure()
  targets = {}
  for run in shown:
    values = run.metric('epsilon')
    axes.plot(*_points(values), color=color_of(runs, run), label=run.name)
    target = run.settings.get('TARGET_EPSILON', 'None')
    if target != 'None':
      targets[float(target)] = None
  for target in targets:
    axes.axhline(target, color='gray', linestyle=':', linewidth=1)
    axes.annotate(
        f'target {target:g}', (1, target), xycoords=('axes fraction', 'data'),
        ha='right', va='bottom', color='gray', fontsize='small',
    )
  axes.set_yscale('log')
  axes.set_xlabel('round')
  _integers(axes)
  axes.set_ylabel('epsilon spent (RDP)')
  finish(figure, axes)
  return figure


def norms(runs: Runs) -> Optional[Figure]:
  """Norms of clients' deltas before and after clipping, beside the clip."""
  return _panels(
      runs,
      {
          'delta_norm': ('before clipping', 'C0-'),
          'clipped_delta_norm': ('after clipping', 'C1-'),
          'aggregator/dp_query_metrics/l2_norm_clip': ('clip C', 'k:'),
      },
      needed='delta_norm',
      label="norm of a client's delta",
      log=True,
  )


def clipped(runs: Runs) -> Optional[Figure]:
  """Share of clients, and of layers, that clipping changed."""
  return _panels(
      runs,
      {
          'clipped_clients': ('clients', 'C0-'),
          'clipped_layers': ('layers of clients', 'C1-'),
      },
      needed='clipped_clients',
      label='share clipped, %',
      scale=100,
  )


def noise(runs: Runs) -> Optional[Figure]:
  """Norm of the mean of clipped deltas beside that of the noise on it."""
  return _panels(
      runs,
      {
          'signal_norm': ('signal: the mean without noise', 'C0-'),
          'aggregator/noise_norm': ('noise on it, expected', 'C3-'),
          'finalizer/update_norm': ('their sum, the update', 'C2--'),
      },
      needed='signal_norm',
      label='norm',
      log=True,
  )


def layers(run: run_record.Run) -> Optional[Figure]:
  """Norms of a run's layers before and after clipping, mean over its rounds."""
  before = _means(run.layers.get('layer_norm', {}))
  if not before:
    return None
  after = _means(run.layers.get('clipped_layer_norm', {}))
  shares = _means(run.layers.get('layer_clipped', {}))
  names = sorted(before)
  places = np.arange(len(names))
  height = max(_HEIGHT, 0.19 * min(len(names), 4 * _MAX_NAMED_LAYERS) + 1)
  figure = figure_lib.Figure(figsize=(_WIDTH, height), layout='constrained')
  left, right = figure.subplots(
      1, 2, sharey=True, gridspec_kw={'width_ratios': [3, 1]}
  )
  left.plot([before[n] for n in names], places, 'C0o', label='before clipping')
  if after:
    left.plot(
        [after.get(n, math.nan) for n in names],
        places, 'C1|', markersize=9, markeredgewidth=2, label='after clipping',
    )
  if all(value > 0 for value in before.values()):
    left.set_xscale('log')
  left.set_xlabel("norm of a client's delta, mean over clients and rounds")
  left.legend(fontsize='small')
  right.barh(places, [100 * shares.get(n, math.nan) for n in names])
  right.set_xlim(0, 100)
  right.set_xlabel('clients clipped, %')
  left.set_yticks(places, names, fontsize='x-small')
  left.set_ylim(len(names) - 0.5, -0.5)
  for axes in (left, right):
    axes.grid(alpha=0.3)
  figure.suptitle(f'{run.name} (not private)', fontsize='medium')
  return figure


def speakers(runs: Runs) -> Optional[Figure]:
  """Word error rates of speakers from best to worst, the worst tenth marked."""
  shown = [run for run in runs if run.evaluation is not None]
  if not shown:
    return None
  figure, axes = _figure()
  for run in shown:
    rates = [s.rate for s in speaker_spread.by_rate(run.evaluation['speakers'])]
    share = 100 * (np.arange(len(rates)) + 0.5) / len(rates)
    axes.plot(
        share, 100 * np.array(rates), '.-',
        color=color_of(runs, run), label=run.name,
    )
  axes.axvspan(90, 100, color='gray', alpha=0.15)
  axes.text(95, 0.02, 'worst tenth', ha='center', fontsize='small',
            transform=axes.get_xaxis_transform())
  axes.set_xlim(0, 100)
  axes.set_xlabel('speakers from best to worst, %')
  axes.set_ylabel('WER of the speaker, %')
  finish(figure, axes)
  return figure


def color_of(runs: Runs, run: run_record.Run) -> str:
  """The colour of a run among runs, as `#rrggbb`."""
  colors = matplotlib.colormaps['tab10' if len(runs) <= 10 else 'turbo']
  place = runs.index(run)
  rgb = colors(place if len(runs) <= 10 else place / (len(runs) - 1))
  return '#' + ''.join(f'{round(255 * part):02x}' for part in rgb[:3])


def finish(figure: Figure, axes: axes_lib.Axes) -> None:
  """Grid and legend of a single panel."""
  axes.grid(alpha=0.3)
  _legend(figure, [axes])


def _over_time(
    runs: Runs,
    metrics: Sequence[str],
    *,
    label: str,
    scale: float = 1.0,
    styles: Optional[Mapping[str, str]] = None,
    names: Optional[Mapping[str, str]] = None,
) -> Optional[Figure]:
  """Metrics by run; rounds and steps are two panels."""
  units = [
      (unit, shown)
      for unit in ('round', 'step')
      if (shown := [
          run for run in runs
          if run.unit == unit and any(run.metric(name) for name in metrics)
      ])
  ]
  if not units:
    return None
  figure = figure_lib.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
  panels = figure.subplots(1, len(units), squeeze=False, sharey=True)[0]
  for panel, (unit, shown) in zip(panels, units):
    for run, name in itertools.product(shown, metrics):
      values = run.metric(name)
      has_name = next((each for each in metrics if run.metric(each)), None)
      if values:
        style = (styles or {}).get(name, 'o-')
        rounds, heights = _points(values)
        panel.plot(
            rounds, scale * np.array(heights), style, markersize=3,
            color=color_of(runs, run), alpha=1 if 'o' in style else 0.5,
            # Of its first metric that there is: each run once.
            label=run.name if name == has_name else None,
        )
    what = 'federated' if unit == 'round' else 'central'
    panel.set_xlabel(f'{unit} ({what})')
    panel.grid(alpha=0.3)
    _integers(panel)
  panels[0].set_ylabel(label)
  if names:
    figure.suptitle(
        f'with marks: {names[metrics[0]]}; pale: {names[metrics[1]]}',
        fontsize='small',
    )
  _legend(figure, panels)
  return figure


def _panels(
    runs: Runs,
    metrics: Mapping[str, tuple[str, str]],
    *,
    needed: str,
    label: str,
    scale: float = 1.0,
    log: bool = False,
) -> Optional[Figure]:
  """A panel a run, with several metrics over its rounds."""
  shown = [run for run in runs if run.metric(needed)]
  if not shown:
    return None
  columns = min(_PANELS_IN_A_ROW, len(shown))
  rows = -(-len(shown) // columns)
  figure = figure_lib.Figure(
      figsize=(_WIDTH, _PANEL_HEIGHT * rows + 0.4), layout='constrained'
  )
  panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
  for panel, run in itertools.zip_longest(panels.flat, shown):
    if run is None:
      panel.set_visible(False)
      continue
    for name, (text, style) in metrics.items():
      values = {
          number: value
          for number, value in run.metric(name).items()
          if math.isfinite(value) and (value > 0 or not log)
      }
      if values:
        rounds, heights = _points(values)
        # Thinner and thinner: what lies on another curve hides it not.
        panel.plot(
            rounds, scale * np.array(heights), style, label=text,
            linewidth=4 - 1.3 * list(metrics).index(name), alpha=0.8,
        )
    if log:
      panel.set_yscale('log')
    panel.set_title(run.name, fontsize='medium')
    panel.grid(alpha=0.3)
    panel.set_xlabel('round')
    _integers(panel)
  for row in panels:
    row[0].set_ylabel(label)
  if scale == 100:
    panels[0, 0].set_ylim(-3, 103)
  _legend(figure, panels.flat, order=[text for text, _ in metrics.values()])
  return figure


def _figure() -> tuple[Figure, axes_lib.Axes]:
  """A figure of one panel. Not through pyplot, which looks for a display."""
  figure = figure_lib.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
  return figure, figure.subplots()


def _legend(
    figure: Figure,
    panels: Sequence[axes_lib.Axes],
    *,
    order: Sequence[str] = (),
) -> None:
  """One legend for all panels, below them; its texts in order."""
  handles = dict.fromkeys(order)
  for panel in panels:
    for handle, text in zip(*panel.get_legend_handles_labels()):
      handles[text] = handle
  handles = {text: handle for text, handle in handles.items() if handle}
  figure.legend(
      list(handles.values()),
      list(handles),
      loc='outside lower center',
      ncols=min(len(handles), _LEGEND_COLUMNS),
      fontsize='small',
      frameon=False,
  )


def _integers(axes: axes_lib.Axes) -> None:
  """Rounds and steps are whole."""
  axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))


def _points(values: Mapping[int, float]) -> tuple[list[int], list[float]]:
  """Rounds and values in order."""
  rounds = sorted(values)
  return rounds, [values[number] for number in rounds]


def _means(
    by_layer: Mapping[str, Mapping[int, float]],
) -> dict[str, float]:
  """The mean over rounds of each layer, where it is a number."""
  means = {}
  for layer, values in by_layer.items():
    finite = [value for value in values.values() if math.isfinite(value)]
    if finite:
      means[layer] = float(np.mean(finite))
  return means


def _is_finite(values: Mapping[int, float]) -> bool:
  """Whether there are values, all of them finite."""
  return bool(values) and all(map(math.isfinite, values.values()))
