"""Runs side by side: word error rates on the same speakers, as a table.

Runs that differ in nothing but their seed form one row: their errors are
averaged speaker by speaker. Differences from the first row come with a paired
bootstrap over speakers (`metrics.confidence`), which does not hold what another
seed would change; `contrast` does.
"""

from collections.abc import Mapping, Sequence
import json
import os
import statistics
from typing import Any, NamedTuple

from tff_asr import checks
from tff_asr.metrics import confidence
from tff_asr.reports import speaker_spread
from tff_asr.storage import run_dir


class Row(NamedTuple):
  """One row of the table.

  Attributes:
    label: What the runs have in common.
    word_error_rate: Over all speakers, mean of the runs.
    spread: Standard deviation over the runs' rates; None for a single run.
    difference: From the first row, with its 95 % interval; None for that row.
    epsilon: Of the runs' privacy statements (the largest); None without one.
    seconds: Training time, mean of the runs.
  """

  label: str
  word_error_rate: float
  spread: float | None
  difference: confidence.Interval | None
  epsilon: float | None
  seconds: float


class Term(NamedTuple):
  """A part of a contrast.

  Attributes:
    runs: Folders of runs, whose errors are averaged.
    weight: Of their word error rate.
    seed_variance: Of that rate, as a WER squared, over random seeds.
  """

  runs: Sequence[str]
  weight: float
  seed_variance: float = 0.0


def compare(
    groups: Mapping[str, Sequence[str]], *, output_name: str = 'test.json'
) -> list[Row]:
  """Reads evaluated runs and makes the table's rows.

  Args:
    groups: Labels to folders of runs; the first is the baseline.
    output_name: What the evaluation wrote in each folder.

  Raises:
    ValueError: A run is not evaluated (each is named), or on other speakers.
  """
  errors = []
  for label, runs in groups.items():
    if not runs:
      errors.append(ValueError(f'{label} has no run.'))
    for run in runs:
      for name in (output_name, run_dir.RESULTS):
        try:
          _read(run, name)
        except ValueError as e:
          errors.append(e)
  checks.raise_together(errors)
  rows = []
  baseline = None
  for label, runs in groups.items():
    evaluations = [_read(run, output_name) for run in runs]
    row = _row(label, runs, evaluations)
    words, errors = _average(evaluations)
    if baseline is None:
      baseline = (label, words, errors)
    elif words != baseline[1]:
      raise ValueError(
          f'{label} and {baseline[0]} were evaluated on other speakers.'
      )
    else:
      row = row._replace(
          difference=confidence.difference(
              list(errors.values()),
              list(baseline[2].values()),
              list(words.values()),
          )
      )
    rows.append(row)
  return rows


def read_row(
    label: str, runs: Sequence[str], *, output_name: str = 'test.json'
) -> Row:
  """A row without a difference.

  Args:
    label: What the runs have in common.
    runs: Folders of evaluated runs.
    output_name: What the evaluation wrote in each folder.

  Raises:
    ValueError: As `compare`.
  """
  return _row(label, runs, [_read(run, output_name) for run in runs])


def _row(
    label: str, runs: Sequence[str], evaluations: Sequence[dict[str, Any]]
) -> Row:
  """The same, of what the evaluations wrote."""
  words, errors = _average(evaluations)
  rates = [each['word_error_rate'] for each in evaluations]
  results = [_read(run, run_dir.RESULTS) for run in runs]
  epsilons = [
      float(each['privacy']['epsilon']) for each in results if 'privacy' in each
  ]
  return Row(
      label=label,
      word_error_rate=sum(errors.values()) / sum(words.values()),
      spread=statistics.stdev(rates) if len(rates) > 1 else None,
      difference=None,
      epsilon=max(epsilons, default=None),
      seconds=statistics.fmean(each['seconds'] for each in results),
  )


def contrast(
    terms: Sequence[Term], *, output_name: str = 'test.json'
) -> confidence.Interval:
  """A sum of word error rates with weights, and its 95 % interval.

  Unlike `compare`'s, the interval holds what another seed would change
  (`metrics.confidence`).

  Args:
    terms: With weights of 1 and -1 it is the difference of two.
    output_name: What the evaluation wrote in each folder.

  Raises:
    ValueError: As `compare`; or there is one speaker alone.
  """
  words, total = {}, {}
  for term in terms:
    found, errors = _average([_read(run, output_name) for run in term.runs])
    if words and found != words:
      raise ValueError(f'{term.runs[0]} was evaluated on other speakers.')
    words = found
    for speaker, count in errors.items():
      total[speaker] = total.get(speaker, 0.0) + term.weight * count
  return confidence.contrast(
      [total[speaker] for speaker in words],
      list(words.values()),
      seed_variance=sum(
          term.weight**2 * term.seed_variance for term in terms
      ),
  )


def show_rate(row: Row) -> str:
  """A word error rate in percent, with its spread."""
  rate = f'{100 * row.word_error_rate:.1f}'
  if row.spread is not None:
    rate += f' +- {100 * row.spread:.1f}'
  return rate


def show_difference(difference: confidence.Interval) -> str:
  """A difference in points, with its interval."""
  estimate, low, high = (100 * value for value in difference)
  return f'{estimate:+.1f} ({low:+.1f} to {high:+.1f})'


def to_markdown(rows: Sequence[Row]) -> str:
  """The table as Markdown; readable as it is in a terminal, too."""
  first = rows[0].label
  header = ['', 'WER %', f'minus "{first}" (95 %)', 'epsilon', 'seconds']
  cells = [header]
  for row in rows:
    rate = show_rate(row)
    gap = '' if row.difference is None else show_difference(row.difference)
    epsilon = '' if row.epsilon is None else f'{row.epsilon:.3g}'
    cells.append([row.label, rate, gap, epsilon, f'{row.seconds:.0f}'])
  return markdown(cells)


def markdown(cells: Sequence[Sequence[str]]) -> str:
  """A table of rows of cells, the first of which are the columns' names."""
  widths = [max(map(len, column)) for column in zip(*cells)]
  lines = [
      '| ' + ' | '.join(map(str.ljust, line, widths)) + ' |' for line in cells
  ]
  lines.insert(1, '|' + '|'.join('-' * (width + 2) for width in widths) + '|')
  return '\n'.join(lines)


def _average(
    evaluations: Sequence[dict[str, Any]],
) -> tuple[dict[str, int], dict[str, float]]:
  """Words and mean errors of each speaker, sorted by speaker."""
  words = {}
  errors = {}
  for each in evaluations:
    found = {}
    for speaker, counts in sorted(each['speakers'].items()):
      found[speaker] = counts['words']
      share = speaker_spread.num_wrong(counts) / len(evaluations)
      errors[speaker] = errors.get(speaker, 0.0) + share
    if words and found != words:
      raise ValueError('runs of one row were evaluated on other speakers.')
    words = found
  return words, errors


def _read(run: str, name: str) -> dict[str, Any]:
  """A JSON file of a run's folder."""
  path = os.path.join(run, name)
  if not os.path.exists(path):
    raise ValueError(f'{run} has no {name}: train and evaluate it first.')
  try:
    with open(path, encoding='utf-8') as f:
      content = json.load(f)
    # What is read of it.
    if name == run_dir.RESULTS:
      float(content['seconds'])
      float(content.get('privacy', {'epsilon': 0})['epsilon'])
    else:
      float(content['word_error_rate'])
      words = sum(
          [counts['words'] for counts in content['speakers'].values()]
      )
      for counts in content['speakers'].values():
        speaker_spread.num_wrong(counts)
      if not words:
        raise ValueError('no words')
  except (ValueError, TypeError, KeyError, AttributeError) as e:
    raise ValueError(
        f'{path} is damaged or of another program ({type(e).__name__}: '
        f'{e}): train or evaluate the run again.'
    ) from e
  return content
