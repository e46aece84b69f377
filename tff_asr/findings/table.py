"""The table of a group of findings, and its claims, from what the runs hold."""

from collections.abc import Callable, Mapping, Sequence
import math
import os
import statistics
from typing import NamedTuple, Optional

from tff_asr.findings import experiments
from tff_asr.metrics import confidence
from tff_asr.privacy import epsilon_report
from tff_asr.privacy import statement
from tff_asr.reports import comparison
from tff_asr.storage import metrics_file

_METRICS = 'metrics.csv'
# Of the row that all are compared with in a column of its own.
_SEED = 'seed'


class Measured(NamedTuple):
  """A row whose runs have all been trained and evaluated.

  Attributes:
    row: What it is.
    runs: Folders of its runs.
    shown: Its figures.
    seed_variance: Of its word error rate, squared, over random seeds.
    difference: From the row that it is compared with; None: that is none, or
      not measured.
    dev_rates: Learning rates that were tried to dev WERs.
    best_wer: The one that was taken; None: none was tried.
  """

  row: experiments.Row
  runs: tuple[str, ...]
  shown: comparison.Row
  seed_variance: float
  difference: Optional[confidence.Interval]
  dev_rates: Mapping[float, float]
  best_wer: Optional[float]


class Deviation(NamedTuple):
  """What another random seed changes.

  Attributes:
    value: Standard deviation of a run's word error rate, pooled.
    num_rows: Rows of several seeds that it is from; 0: nothing is known.
  """

  value: float
  num_rows: int


class Verdict(NamedTuple):
  """A claim and what was found: a difference of WERs with its interval."""

  claim: experiments.Claim
  found: confidence.Interval

  @property
  def text(self) -> str:
    """In words, by whether the interval holds zero."""
    _, low, high = self.found
    signs = [sign for sign, is_so in ((-1, high < 0), (1, low > 0)) if is_so]
    if self.claim.expected == 0:
      return 'does not hold' if signs else 'no difference is seen'
    if not signs:
      return 'not decided: the interval holds 0'
    return 'holds' if signs == [self.claim.expected] else 'the opposite'


def pool_deviation(
    groups: Sequence[experiments.Group], *, runs_dir: str
) -> Deviation:
  """Pools the spread over random seeds of all rows that have several.

  Args:
    groups: All groups; what is not run yet is left out.
    runs_dir: The folder of all runs.
  """
  spreads = {}  # A row that groups share counts once.
  for group in groups:
    for row in group.rows:
      runs = _measured_runs(row, runs_dir=runs_dir)
      if len(runs) > 1:
        spreads[runs] = comparison.read_row(row.label, runs).spread
  degrees = sum(len(runs) - 1 for runs in spreads)
  if not degrees:
    return Deviation(0.0, 0)
  squares = sum(
      (len(runs) - 1) * spread**2 for runs, spread in spreads.items()
  )
  return Deviation(math.sqrt(squares / degrees), len(spreads))


def measure(
    group: experiments.Group, *, runs_dir: str, deviation: Deviation
) -> tuple[dict[str, Measured], list[str]]:
  """Reads the runs of a group.

  Args:
    group: The group.
    runs_dir: The folder of all runs.
    deviation: Of a run's word error rate over random seeds.

  Returns:
    The rows that are measured, by label and in order, and the labels of those
    that are not.
  """
  measured, absent = {}, []
  for row in group.rows:
    runs = _measured_runs(row, runs_dir=runs_dir)
    if not runs:
      absent.append(row.label)
      continue
    measured[row.label] = Measured(
        row=row,
        runs=runs,
        shown=comparison.read_row(row.label, runs),
        # A seed model is the one that it is.
        seed_variance=(
            0.0 if None in row.seeds else deviation.value**2 / len(runs)
        ),
        difference=None,
        dev_rates=experiments.dev_rates(row, runs_dir=runs_dir),
        best_wer=(
            experiments.best_wer(row, runs_dir=runs_dir) if row.rates else None
        ),
    )
  for label, each in measured.items():
    if each.row.against in measured:
      weights = {label: 1, each.row.against: -1}
      measured[label] = each._replace(difference=_contrast(measured, weights))
  return measured, absent


def verdicts(
    group: experiments.Group, measured: Mapping[str, Measured]
) -> list[Verdict]:
  """The claims all of whose rows are measured."""
  return [
      Verdict(claim, _contrast(measured, claim.weights))
      for claim in group.claims
      if claim.weights.keys() <= measured.keys()
  ]


def _measured_runs(row: experiments.Row, *, runs_dir: str) -> tuple[str, ...]:
  """Folders of a row's runs if all are trained and evaluated; else none."""
  runs = experiments.averaged(row, runs_dir=runs_dir)
  if not all(
      experiments.is_trained(run, runs_dir=runs_dir)
      and experiments.is_evaluated(run, runs_dir=runs_dir)
      for run in runs
  ):
    return ()
  return tuple(experiments.folder(run, runs_dir=runs_dir) for run in runs)


def _contrast(
    measured: Mapping[str, Measured], weights: Mapping[str, float]
) -> confidence.Interval:
  """A sum of rows' word error rates."""
  return comparison.contrast([
      comparison.Term(
          measured[label].runs, weight, measured[label].seed_variance
      )
      for label, weight in weights.items()
  ])


def to_markdown(
    group: experiments.Group, measured: Mapping[str, Measured]
) -> str:
  """The table of the rows that are measured."""
  titles = [_title(name, group) for name in group.columns]
  cells = [['', 'WER %', 'difference (95 %)', 'from', *titles]]
  for label, each in measured.items():
    difference, against = '', ''
    if each.difference is not None:
      difference = comparison.show_difference(each.difference)
      against = each.row.against
    cells.append([
        label,
        comparison.show_rate(each.shown),
        difference,
        against,
        *(_COLUMNS[name](each, group, measured) for name in group.columns),
    ])
  return comparison.markdown(cells)


def _title(name: str, group: experiments.Group) -> str:
  """What a column is called."""
  if name == 'deployed':
    cohort_size, population = group.deployment
    return f'epsilon at {cohort_size:,} of {population:,}'
  return {
      'minus seed': 'minus seed (95 %)',
      'rate': 'learning rate',
      'tried': 'dev WER % by rate',
      'MB': 'MB down + up',
  }.get(name, name)


def _minus_seed(
    each: Measured, unused_group, measured: Mapping[str, Measured]
) -> str:
  if _SEED not in measured or each.row.label == _SEED:
    return ''
  weights = {each.row.label: 1, _SEED: -1}
  return comparison.show_difference(_contrast(measured, weights))


def _rate(each: Measured, *unused) -> str:
  """The rate that was taken, and whether the others tried end there."""
  if each.best_wer is None:
    return ''
  edge = each.best_wer in (min(each.dev_rates), max(each.dev_rates))
  return f'{each.best_wer:g}' + (' (an end of those tried)' if edge else '')


def _tried(each: Measured, *unused) -> str:
  return ', '.join(
      f'{rate:g}: {100 * found:.1f}' for rate, found in each.dev_rates.items()
  )


def _epsilon(each: Measured, *unused) -> str:
  if each.shown.epsilon is None:
    return ''
  return statement.number(each.shown.epsilon)


def _deployed(each: Measured, group: experiments.Group, *unused) -> str:
  """Epsilon of the deployment with the same noise on the mean."""
  privacy = experiments.read_results(each.runs[0]).get('privacy')
  if privacy is None:
    return ''
  (rounds,) = privacy['groups']
  cohort_size, population = group.deployment
  result = epsilon_report.solve(
      sigma_mean=rounds['noise_multiplier'] / rounds['cohort_size'],
      cohort_size=cohort_size,
      population=population,
      rounds=rounds['rounds'],
  )
  return statement.number(result.epsilon)


def _noise_over_signal(each: Measured, *unused) -> str:
  """Norm of the noise over that of the clipped mean, both over all rounds."""
  noise = _mean(each.runs, 'aggregator/noise_norm')
  if not noise:
    return ''
  signal = _mean(each.runs, 'not_private/signal_norm')
  return f'{noise / signal:.2g}'


def _utterances(each: Measured, *unused) -> str:
  """Trained on, in a run."""
  counts = [
      sum(
          (_metric(run, 'num_utterances')
           or _metric(run, 'not_private/num_utterances')).values()
      )
      for run in each.runs
  ]
  return f'{statistics.fmean(counts):,.0f}'


def _traffic(each: Measured, *unused) -> str:
  """Of a client in a round."""
  results = experiments.read_results(each.runs[0])
  traffic = results.get('bytes_per_client_and_round')
  if traffic is None:
    return ''
  return f'{traffic["down"] / 1e6:.2f} + {traffic["up"] / 1e6:.2f}'


def _seconds(each: Measured, *unused) -> str:
  return f'{each.shown.seconds:.0f}'


_COLUMNS: Mapping[str, Callable[..., str]] = {
    'minus seed': _minus_seed,
    'rate': _rate,
    'tried': _tried,
    'epsilon': _epsilon,
    'deployed': _deployed,
    'noise / signal': _noise_over_signal,
    'utterances': _utterances,
    'MB': _traffic,
    'seconds': _seconds,
}


def _metric(run: str, name: str) -> dict[int, float]:
  return metrics_file.read(os.path.join(run, _METRICS), name)


def _mean(runs: Sequence[str], name: str) -> float:
  """Mean of a metric over runs and rounds; 0 if none has it."""
  values = [
      value
      for run in runs
      for value in _metric(run, name).values()
      if math.isfinite(value)
  ]
  return statistics.fmean(values) if values else 0.0
