"""Epsilon against population, as a picture."""

from collections.abc import Sequence

from matplotlib import figure

from tff_asr import checks
from tff_asr.privacy import epsilon_report
from tff_asr.privacy import statement

_INCHES = (7, 4.5)
_POINTS_PER_DECADE = 6


def draw(
    results: Sequence[epsilon_report.Result],
    *,
    path: str,
    largest_population: int = 0,
) -> None:
  """Draws epsilon against population, a curve for each cohort and noise.

  A curve keeps its result's cohort, noise on the mean, rounds and delta, and
  starts at the smallest population of its results, which are its marks.

  Args:
    results: Each of one group of rounds, with finite epsilons.
    path: The picture's file; its ending (.png, .svg, .pdf) is its format.
    largest_population: How far the curves go; at least to ten times the
      largest population of the results.

  Raises:
    ValueError: There is nothing to draw.
  """
  checks.non_negative_int(largest_population=largest_population)
  curves = {}
  for result in results:
    (group,) = result.rounds
    sampling = group.sampling
    sigma_mean = group.noise_multiplier / sampling.cohort_size
    key = (sampling.cohort_size, f'{sigma_mean:.3g}', group.count)
    if result.epsilon < float('inf'):
      curves.setdefault(key, []).append(result)
  if not curves:
    raise ValueError('there is no finite epsilon to draw.')
  populations = [result.rounds[0].sampling.population for result in results]
  last = max(largest_population, 10 * max(populations))
  # Not through pyplot, which would look for a display.
  canvas = figure.Figure(figsize=_INCHES, layout='constrained')
  axes = canvas.subplots()
  for (cohort_size, sigma_mean, rounds), marked in curves.items():
    first = min(result.rounds[0].sampling.population for result in marked)
    between = epsilon_report.extrapolate(
        marked[0], populations=_grid(first, last)
    )
    (line,) = axes.plot(
        *_points(between),
        label=(
            f'cohort {cohort_size:,}, noise on mean {sigma_mean}, '
            f'{rounds:,} rounds'
        ),
    )
    axes.plot(*_points(marked), 'o', color=line.get_color())
  axes.axhline(
      statement.MAX_USEFUL_EPSILON, color='gray', linestyle=':', linewidth=1
  )
  axes.set_xscale('log')
  axes.set_yscale('log')
  axes.set_xlabel('population (speakers)')
  axes.set_ylabel(f'epsilon at delta {results[0].delta:g}')
  axes.set_title(f'Noise on the mean kept; {epsilon_report.ASSUMED}')
  axes.legend(fontsize='small')
  canvas.savefig(path, dpi=120)


def _points(
    results: Sequence[epsilon_report.Result],
) -> tuple[list[int], list[float]]:
  """Populations and epsilons, by population."""
  pairs = sorted(
      (result.rounds[0].sampling.population, result.epsilon)
      for result in results
  )
  return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _grid(first: int, last: int) -> list[int]:
  """Populations from first to last, evenly on a logarithmic scale."""
  grid, number = [], 0
  while not grid or grid[-1] < last:
    grid.append(min(last, int(first * 10 ** (number / _POINTS_PER_DECADE))))
    number += 1
  return grid
