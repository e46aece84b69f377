"""Word error rate against epsilon over runs: what privacy costs.

The form of Figure 1 of https://arxiv.org/abs/2310.00098. A run's own point is
measured. Where its population is too small for a useful epsilon, points at
larger ones keep the noise on the mean, the rounds and the share of clients a
round; their epsilon is computed, their word error rate is *assumed* to be the
run's, and they are marked as extrapolated.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple, Optional

from matplotlib import figure as figure_lib

from tff_asr.privacy import accounting
from tff_asr.privacy import epsilon_report
from tff_asr.privacy import statement
from tff_asr.reports import report_plots
from tff_asr.reports import run_record

# How many times the population, until epsilon is useful.
_GROWTHS = (10, 100, 1_000, 10_000, 100_000)
_ENOUGH = 1.0
_INCHES = (9.0, 4.6)


class Point(NamedTuple):
  """A run, or what it would be at another population.

  Attributes:
    epsilon: Infinite without noise.
    word_error_rate: Measured; of an extrapolated point assumed.
    population: Private clients.
    is_extrapolated: Whether its word error rate is assumed.
  """

  epsilon: float
  word_error_rate: float
  population: int
  is_extrapolated: bool


def points(run: run_record.Run) -> list[Point]:
  """The points of a run: its own, then those at larger populations.

  Empty without a word error rate or a privacy statement. Runs with rounds of
  several kinds (their ledgers go on from others'), without noise, or with fixed
  seeds are not extrapolated.
  """
  rate = word_error_rate(run)
  if rate is None or run.privacy is None or not run.privacy['groups']:
    return []
  *others, group = run.privacy['groups']
  found = [Point(run.epsilon, rate[0], group['population'], False)]
  if others or not math.isfinite(run.epsilon):
    return found
  rounds = accounting.RoundGroup(
      sampling=accounting.Sampling(
          **{
              name: group[name]
              for name in ('kind', 'cohort_size', 'population')
          }
      ),
      noise_multiplier=group['noise_multiplier'],
      count=group['rounds'],
  )
  if not rounds.count:
    return found
  measured = epsilon_report.of_rounds([rounds], delta=run.privacy['delta'])
  for growth in _GROWTHS:
    if found[-1].epsilon <= _ENOUGH:
      break
    (grown,) = epsilon_report.extrapolate(
        measured, cohort_sizes=[growth * rounds.sampling.cohort_size]
    )
    population = grown.rounds[0].sampling.population
    found.append(Point(grown.epsilon, rate[0], population, True))
  return found


def word_error_rate(run: run_record.Run) -> Optional[tuple[float, str]]:
  """A run's word error rate and the set it is of: the test set if evaluated."""
  if run.evaluation is not None:
    return run.evaluation['word_error_rate'], 'test set'
  last = run.last('dev_word_error_rate')
  return None if last is None else (last, 'dev set')


def draw(runs: Sequence[run_record.Run]) -> Optional[figure_lib.Figure]:
  """Draws all runs' points; None where no run has a finite epsilon."""
  by_run = [(run, points(run)) for run in runs]
  if not any(
      math.isfinite(found[0].epsilon) for _, found in by_run if found
  ):
    return None
  figure = figure_lib.Figure(figsize=_INCHES, layout='constrained')
  axes = figure.subplots()
  labelled = set()
  for run, found in by_run:
    rate = word_error_rate(run)
    if rate is None:
      continue
    color = report_plots.color_of(runs, run)
    if not found or not math.isfinite(found[0].epsilon):
      axes.axhline(
          100 * rate[0], color=color, linestyle='--', linewidth=1,
          label=f'{run.name} (no DP)',
      )
      continue
    heights = [100 * point.word_error_rate for point in found]
    places = [point.epsilon for point in found]
    axes.plot(places, heights, ':', color=color, linewidth=1)
    axes.plot(places[0], heights[0], 'o', color=color, label=run.name)
    axes.plot(places[1:], heights[1:], 'o', color=color, fillstyle='none')
    for point, height in zip(found, heights):
      # Runs of one population have their marks below each other.
      if (point.population, round(math.log(point.epsilon))) in labelled:
        continue
      labelled.add((point.population, round(math.log(point.epsilon))))
      axes.annotate(
          f'{point.population:,}', (point.epsilon, height),
          textcoords='offset points', xytext=(0, 6), ha='center',
          fontsize='x-small', color='0.3',
          bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 0.5},
      )
  axes.axvline(
      statement.MAX_USEFUL_EPSILON, color='gray', linestyle=':', linewidth=1
  )
  axes.set_xscale('log')
  axes.margins(x=0.08, y=0.15)
  sets = {rate[1] for run in runs if (rate := word_error_rate(run))}
  axes.set_xlabel('epsilon; numbers are speakers in the population')
  axes.set_ylabel(f'WER on the {" or ".join(sorted(sets))}, %')
  axes.set_title(
      'filled: measured; hollow: extrapolated to a larger population at the '
      f'same noise on the mean,\n{epsilon_report.ASSUMED}', fontsize='small',
  )
  axes.grid(alpha=0.3)
  handles, texts = axes.get_legend_handles_labels()
  figure.legend(
      handles, texts, loc='outside lower center', ncols=4, fontsize='small',
      frameon=False,
  )
  return figure
