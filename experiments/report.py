"""Report of experiments: tables, plots and claims, from the runs' files."""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import math
import os
import statistics
import textwrap
from typing import NamedTuple, Optional

import numpy as np

from experiments import design
from experiments import jobs
from tff_asr import files
from tff_asr.metrics import confidence
from tff_asr.reports import plots
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import tables

# Label of the row that all are compared with in a separate column.
_SEED = 'seed'
_PLOTS = 'results'


class Measured(NamedTuple):
  """A row; all its runs have been trained and evaluated.

  Attributes:
    row: What it is.
    runs: Its runs, as `tables` shows them; of a suite with folds, each has the
      test speakers of all folds.
    peers: All measured rows of the suite on this test part, with this one. They
      show how runs vary over random seeds, so that the same rows have the same
      interval in every study.
  """

  row: design.Row
  runs: tables.Row
  peers: list['Measured']


_HOLDS, _NOT_DECIDED = 'holds', 'not decided'

# Columns of claims, by what they are of.
_MEASURES = {
    runs_lib.WER: 'WER',
    runs_lib.SER: 'SER',
    runs_lib.WER_WITH_LM: 'WER with LM',
}
# What is plotted over epsilon, and the ends of the names of its curves.
_CURVES = {runs_lib.WER: '', runs_lib.WER_WITH_LM: ', with LM'}

# Measured rows of a study, by label.
Rows = Mapping[str, Measured]


def write(*, folders: jobs.Folders, path: str) -> None:
  """Writes a suite's report, and a plot for each study.

  Studies without a measured row are listed at its end.

  Args:
    folders: Folders of the suite and its runs.
    path: The report's file, in a folder that exists.

  Raises:
    ValueError: A run is damaged, or was run with other settings.
  """
  suite = folders.suite
  plots_dir = os.path.join(os.path.dirname(os.path.abspath(path)), _PLOTS)
  os.makedirs(plots_dir, exist_ok=True)
  sections, not_run, measured = [], [], []
  peers = {test: [] for test in suite.tests}
  all_rows = [
      (study, {
          test: _measure_all(
              study, test=test, folders=folders, peers=peers[test]
          )
          for test in suite.tests
      })
      for study in suite.studies
  ]
  for study, by_test in all_rows:
    if not any(by_test.values()):
      not_run.append(f'{study.title} (`--studies={study.name}`)')
      continue
    measured.append((study, by_test))
    sections.append(
        _section(study, by_test, folders=folders, plots_dir=plots_dir)
    )
  claims = _claim_table(measured, tests=suite.tests)
  parts = [
      suite.introduction.rstrip('\n'),
      *(['## What holds', tables.markdown(claims)] if claims[1:] else []),
      *sections,
      *_notes(measured),
  ]
  if not_run:
    parts.append(wrap(f'Not run yet: {"; ".join(not_run)}.'))
  files.write_text(path, '\n\n'.join(parts) + '\n')


def _claim_table(
    measured: Sequence[tuple[design.Study, Mapping[str, Rows]]],
    *,
    tests: Mapping[str, str],
) -> tables.Table:
  """Verdicts and intervals: a row a text, a column a test part and measure."""
  words: dict[str, dict[tuple[str, str], str]] = {}
  for study, by_test in measured:
    for claim in study.claims:
      cells = words.setdefault(claim.text, {})
      for test, rows in by_test.items():
        cells[test, claim.measure] = ': '.join(
            filter(None, _judge(claim, rows))
        )
  columns = {
      (test, measure): ', '.join(filter(None, (
          # Of one part, the page says which.
          title if _num_measured(measured, tests) > 1 else '',
          f'{_MEASURES[measure]}, points (95 %)',
      )))
      for test, title in tests.items()
      if any(by_test[test] for _, by_test in measured)
      for measure in _MEASURES
      if any((test, measure) in cells for cells in words.values())
  }
  return [
      ['claim', *columns.values()],
      *(
          [text, *(cells.get(column, '') for column in columns)]
          for text, cells in words.items()
      ),
  ]


def _num_measured(
    measured: Sequence[tuple[design.Study, Mapping[str, Rows]]],
    tests: Mapping[str, str],
) -> int:
  """How many test parts have a measured row."""
  return sum(any(by_test[test] for _, by_test in measured) for test in tests)


def _notes(
    measured: Sequence[tuple[design.Study, Mapping[str, Rows]]]
) -> list[str]:
  """The language models and rules of comparison of all rows."""
  models, rules = {}, {}
  for _, by_test in measured:
    for rows in by_test.values():
      models |= dict.fromkeys(_language_models(rows))
      rules |= dict.fromkeys(
          each.runs.first.normalization for each in rows.values()
      )
  return [
      wrap(f'{title}: {"; ".join(filter(None, found))}.')
      for title, found in (
          ('Normalised', rules),
          ('LM', models),
          ('Standard deviation of a run over random seeds', _spreads(measured)),
      )
      if any(found)
  ]


def _measure_all(
    study: design.Study,
    *,
    test: str,
    folders: jobs.Folders,
    peers: list[Measured],
) -> Rows:
  """The rows of a study that are trained and evaluated on a part.

  They are added to the suite's, `peers`.
  """
  found = {
      row.label: Measured(row, runs, peers)
      for row in study.rows
      if (runs := _read(row, test=test, folders=folders)) is not None
  }
  peers += found.values()
  return found


def _errors(
    each: Measured, measure: str, baseline: Optional[str]
) -> np.ndarray:
  """Errors of a row, perhaps minus others of the same runs: [runs, speakers].

  Empty if they are not measured.
  """
  found = [
      np.reshape(
          [
              each.runs._replace(runs=[run], measure=name).errors
              for run in each.runs.runs
          ],
          [len(each.runs.runs), -1],
      )
      for name in filter(None, (measure, baseline))
      if each.runs._replace(measure=name).words
  ]
  if len(found) < 1 + (baseline is not None):
    return np.array([])
  return found[0] if baseline is None else found[0] - found[1]


def _seed_variance(
    peers: Sequence[Measured],
    measure: str = runs_lib.WER,
    baseline: Optional[str] = None,
    *,
    kind: str,
) -> Optional[confidence.SeedVariance]:
  """How the error rates of a suite's rows of a kind vary over random seeds."""
  errors, words = {}, ()
  for each in peers:
    found = _errors(each, measure, baseline)
    if each.row.kind == kind and found.size:
      words = list(each.runs._replace(measure=measure).words.values())
      # Rows of several studies may have the same runs, which count once.
      errors |= {
          (run.recipe.name, run.seed): values
          for run, values in zip(each.row.runs, found)
          if run.seed is not None
      }
  return confidence.seed_variance(errors, words)


def _read(
    row: design.Row, *, test: str, folders: jobs.Folders
) -> Optional[tables.Row]:
  """A row's runs if all are trained and evaluated on a part; else None."""
  folds = folders.folds()
  if not all(
      fold.is_trained(run) and fold.is_evaluated(run, test)
      for fold in folds
      for run in row.runs
  ):
    return None
  runs = [
      _pooled([fold.read(run, test=test) for fold in folds])
      for run in row.runs
  ]
  return tables.Row(row.label, runs)


def _pooled(folds: Sequence[runs_lib.Run]) -> runs_lib.Run:
  """A run whose speakers are those of all folds.

  Raises:
    ValueError: A speaker is in the test part of two folds.
  """
  first = folds[0]
  scores = {}
  for measure in first.scores:
    scores[measure] = {}
    for run in folds:
      if scores[measure].keys() & run.scores[measure].keys():
        raise ValueError(f'{run.path} has test speakers of another fold.')
      scores[measure] |= run.scores[measure]
  return dataclasses.replace(first, scores=scores)


def _contrast(
    weights: Mapping[str, float],
    rows: Rows,
    measure: str = runs_lib.WER,
    baseline: Optional[str] = None,
) -> Optional[confidence.Interval]:
  """A sum of rows' error rates, perhaps minus others of the same runs.

  Runs are paired by their random seeds: what the runs of a seed have in common
  cancels where rows with the same seeds are subtracted.

  Returns:
    The sum; None if a row is not measured.

  Raises:
    ValueError: The rows were evaluated on different speakers, or on only one.
  """
  if not weights.keys() <= rows.keys():
    return None
  errors, words = 0.0, None
  # Weights of the rates of runs: by kind, then by recipe and seed.
  by_kind = collections.defaultdict(collections.Counter)
  for label, weight in weights.items():
    each = rows[label]
    found = _errors(each, measure, baseline)
    if not found.size:
      return None
    own = each.runs._replace(measure=measure).words
    words = own if words is None else words
    if own != words:
      raise ValueError(f'{label} was evaluated on other speakers.')
    errors += weight * found.mean(axis=0)
    for run in each.row.runs:
      # A seed model without a random seed of its own is the one that it is.
      if run.seed is not None:
        by_kind[each.row.kind][run.recipe.name, run.seed] += weight / len(found)
  peers = each.peers
  return confidence.linear_contrast(
      errors,
      list(words.values()),
      seed_variances=[
          part
          for kind, by_run in by_kind.items()
          if (found := _seed_variance(peers, measure, baseline, kind=kind))
          for part in found.of_sum(by_run)
      ],
  )


def paired(differences: Sequence[float]) -> confidence.Interval:
  """The mean of paired differences, with Student's interval."""
  # Of one word each, the ratio estimator is the mean.
  return confidence.linear_contrast(differences, [1] * len(differences))


def shown(found: confidence.Interval, digits: int) -> str:
  """A difference with its interval."""
  estimate, low, high = (f'{value:+.{digits}f}' for value in found)
  return f'{estimate} ({low} to {high})'


def verdict(
    found: Optional[confidence.Interval], claim: design.Claim
) -> str:
  """The verdict of an interval on a claim; None: it is not measured."""
  if found is None:
    return 'not run'
  sign = int(found.low > claim.margin) - int(found.high < claim.margin)
  if claim.expected == 0:
    return 'does not hold' if sign else 'no difference is seen'
  if not sign:
    return _NOT_DECIDED
  return _HOLDS if sign == claim.expected else 'the opposite'


def _judge(claim: design.Claim, rows: Rows) -> tuple[str, str]:
  """The verdict on a claim, and its interval; '' if it is not measured."""
  found = _contrast(claim.weights, rows, claim.measure, claim.baseline)
  return verdict(found, claim), '' if found is None else tables.interval(found)


def _section(
    study: design.Study,
    by_test: Mapping[str, Rows],
    *,
    folders: jobs.Folders,
    plots_dir: str,
) -> str:
  """One study's: its tables by test part, its plot and remark."""
  first, *others = by_test
  rows = by_test[first]
  parts = [
      f'## {study.title}',
      wrap(study.question),
      tables.markdown(_table(study, rows)),
  ]
  absent = [row.label for row in study.rows if row.label not in rows]
  if absent:
    parts.append(wrap(f'Not run yet: {"; ".join(absent)}.'))
  if study.x_label is not None and any(
      each.row.series is not None for each in rows.values()
  ):
    name = f'{study.name}.png'
    figure = _draw(study, rows)
    plots.save(figure, os.path.join(plots_dir, name))
    parts.append(f'![{study.title}]({_PLOTS}/{name})')
  for test in others:
    if by_test[test]:
      parts += [
          f'{folders.suite.tests[test]}:',
          tables.markdown(_table(study, by_test[test])),
      ]
  num_trained = sum(
      fold.is_trained(run) for fold in folders.folds() for run in study.runs
  )
  text = f'{num_trained} runs (`--studies={study.name}`).'
  parts.append(wrap(' '.join(filter(None, (text, study.remark)))))
  return '\n\n'.join(filter(None, parts))


def _spreads(
    measured: Sequence[tuple[design.Study, Mapping[str, Rows]]]
) -> dict[str, None]:
  """How much a random seed changes, for each kind of rows."""
  peers = [
      each for _, by_test in measured
      for each in next(iter(by_test.values())).values()
  ]
  found = {
      kind: _seed_variance(peers, kind=kind)
      for kind in dict.fromkeys(each.row.kind for each in peers)
  }
  points = lambda variance: f'{100 * math.sqrt(variance):.1f}'
  return {
      f'{kind} {points(each.total)} points ({points(each.shared)} in common '
      f'with runs of the same seed, {points(each.own)} of its own)'.lstrip():
      None
      for kind, each in found.items()
      if each is not None
  }


def _table(study: design.Study, rows: Rows) -> tables.Table:
  """The table of the rows that are measured."""
  titles = {
      'minus seed': 'minus seed (95 %)',
      'LM minus greedy': 'WER with LM minus WER (95 %)',
      'range': 'lowest to highest WER %',
      'dev range': 'on dev',
  }
  measures = {'CER %': runs_lib.CER, 'SER %': runs_lib.SER}
  if _language_models(rows):
    measures |= {
        'WER % with LM': runs_lib.WER_WITH_LM,
        'CER % with LM': runs_lib.CER_WITH_LM,
        'SER % with LM': runs_lib.SER_WITH_LM,
    }
  cells = [[
      '', 'WER %', 'difference (95 %)', 'from', *measures,
      *(titles.get(name, name) for name in study.columns),
  ]]
  for label, each in rows.items():
    against = each.row.against if each.row.against in rows else ''
    cells.append([
        label,
        tables.rate(each.runs),
        _minus(each, against, rows),
        against,
        *(tables.rate(each.runs, measure) for measure in measures.values()),
        *(COLUMNS[name](each, study, rows) for name in study.columns),
    ])
  return cells


def _language_models(rows: Rows) -> list[str]:
  """The language models that rows were decoded with, without repetitions."""
  found = [tables.language_models(each.runs) for each in rows.values()]
  return [*dict.fromkeys(filter(None, found))]


def _minus(
    each: Measured,
    against: Optional[str],
    rows: Rows,
    measure: str = runs_lib.WER,
) -> str:
  """The difference from another row; empty if it is not measured."""
  if against not in rows or against == each.row.label:
    return ''
  found = _contrast({each.row.label: 1, against: -1}, rows, measure)
  return '' if found is None else tables.interval(found)


def _minus_greedy(each: Measured, unused_study, rows: Rows) -> str:
  """What the language model changes; empty without one."""
  found = _contrast(
      {each.row.label: 1}, rows, runs_lib.WER_WITH_LM, runs_lib.WER
  )
  return '' if found is None else tables.interval(found)


def _range(rates: Iterable[float]) -> str:
  """The lowest and the highest of several rates; empty for one."""
  rates = sorted(rates)
  ends = (rates[0], rates[-1]) if len(rates) > 1 else ()
  return ' to '.join(map(tables.percent, ends))


COLUMNS: Mapping[str, Callable[..., str]] = {
    'minus seed': lambda each, unused_study, rows: _minus(each, _SEED, rows),
    'difference with LM': lambda each, unused_study, rows: _minus(
        each, each.row.against, rows, runs_lib.WER_WITH_LM
    ),
    'LM minus greedy': _minus_greedy,
    'epsilon': lambda each, *unused: tables.epsilon(each.runs),
    'range': lambda each, *unused: _range(each.runs.rates),
    'dev range': lambda each, *unused: _range(
        run.last('dev_word_error_rate') for run in each.runs.runs
    ),
    'seconds': lambda each, *unused: tables.seconds(each.runs),
}
"""Further columns: names to what they show of a row, its study and its rows."""


def _draw(study: design.Study, rows: Rows) -> plots.Figure:
  """Plots the word error rates of the rows along an axis."""
  if any(each.row.x == design.EPSILON for each in rows.values()):
    return _draw_over_epsilon(study, rows)
  series, lines = {}, {}
  for each in rows.values():
    rates = [100 * rate for rate in each.runs.rates]
    if each.row.series is None:
      lines[each.row.label] = statistics.fmean(rates)
      continue
    if len(rates) > 1:
      deviation = statistics.stdev(rates)
    else:
      variance = _seed_variance(each.peers, kind=each.row.kind)
      is_fixed = None in each.row.seeds or variance is None
      deviation = math.nan if is_fixed else 100 * math.sqrt(variance.total)
    series.setdefault(each.row.series, []).append(
        plots.Point(each.row.x, statistics.fmean(rates), deviation)
    )
  return plots.plot_points(
      {'': series},
      lines=lines,
      label=study.x_label,
      value_label='WER % of the test speakers',
      title=_finding(study, rows, [runs_lib.WER]),
  )


def _draw_over_epsilon(study: design.Study, rows: Rows) -> plots.Figure:
  """Plots error rates over epsilon, also those with a language model."""
  curves = {}
  for measure, suffix in _CURVES.items():
    for each in rows.values():
      rates = each.runs._replace(measure=measure).rates
      if not rates or each.row.series is None:
        continue
      rate = 100 * statistics.fmean(rates)
      x = each.row.x
      if x == design.EPSILON:
        # Without a privacy report: no DP.
        epsilon = each.runs.first.epsilon
        x = math.inf if epsilon is None else epsilon
      name = each.row.series + suffix
      curves.setdefault(name, []).append((x, rate))
  return plots.plot_over_epsilon(
      curves,
      value_label='WER % of the test speakers',
      title=_finding(study, rows, list(_CURVES)),
  )


def _finding(
    study: design.Study, rows: Rows, measures: Sequence[str]
) -> str:
  """The first claim that the rows decide, as a title; empty without claims.

  Args:
    study: The study.
    rows: Its rows.
    measures: The error rates that are plotted; claims on others are left out.
  """
  judged = []
  for claim in study.claims:
    words, interval = _judge(claim, rows)
    if interval and claim.measure in measures and claim.baseline is None:
      judged.append((claim.text.rstrip('.'), words.partition(':')[0]))
  if not judged:
    return ''
  decided = [each for each in judged if each[1] != _NOT_DECIDED]
  text, words = (decided or judged)[0]
  return text if words == _HOLDS else f'{text}: {words}'


def wrap(text: str, **options: str) -> str:
  """Text in lines of 88 characters, words and links whole."""
  return textwrap.fill(
      text, width=88, break_long_words=False, break_on_hyphens=False, **options
  )
