"""Pre-training runs side by side, as a table: what was learnt, at what cost."""

from collections.abc import Mapping, Sequence
import json
import os
import statistics
from typing import NamedTuple, Optional

from tff_asr import checks
from tff_asr.reports import comparison
from tff_asr.storage import metrics_file
from tff_asr.storage import run_dir


class Row(NamedTuple):
  """One run.

  Attributes:
    label: Its name in the table.
    steps: Taken by it, without those of its seed.
    trained_parameters: Without frozen layers.
    accuracy: Of masked frames of the dev set, at its end.
    most_frequent: Share of the most frequent label there.
    loss: Mean cross-entropy there, in nats.
    prediction_perplexity: How many labels it predicts, as if evenly.
    label_perplexity: How many there are, as if evenly.
    step_sec: Median seconds of its steps without an evaluation.
    epsilon: Of its privacy statement; None without one.
  """

  label: str
  steps: int
  trained_parameters: int
  accuracy: float
  most_frequent: float
  loss: float
  prediction_perplexity: float
  label_perplexity: float
  step_sec: float
  epsilon: Optional[float]


def compare(runs: Mapping[str, str]) -> list[Row]:
  """Reads finished runs.

  Args:
    runs: Labels to folders.

  Raises:
    ValueError: A run is not finished, or was not evaluated; each is named.
  """
  rows, errors = [], []
  for label, run in runs.items():
    try:
      rows.append(_row(label, run))
    except ValueError as error:
      errors.append(error)
  checks.raise_together(errors)
  return rows


def to_markdown(rows: Sequence[Row]) -> str:
  """The table as Markdown; readable as it is in a terminal, too."""
  cells = [[
      '', 'steps', 'trained parameters', 'masked accuracy %', 'loss',
      'predictions used', 'epsilon', 's a step',
  ]]
  for row in rows:
    cells.append([
        row.label,
        f'{row.steps:,}',
        f'{row.trained_parameters:,}',
        f'{100 * row.accuracy:.1f} (most frequent '
        f'{100 * row.most_frequent:.1f})',
        f'{row.loss:.3f}',
        f'{row.prediction_perplexity:.1f} of {row.label_perplexity:.1f}',
        '' if row.epsilon is None else f'{row.epsilon:.3g}',
        f'{row.step_sec:.2f}',
    ])
  return comparison.markdown(cells)


def _row(label: str, run: str) -> Row:
  """The row of a run."""
  path = os.path.join(run, run_dir.RESULTS)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} has no {run_dir.RESULTS}: is it a run that has ended?'
    )
  with open(path, encoding='utf-8') as f:
    results = json.load(f)
  if 'trained_parameters' not in results:
    raise ValueError(f'{run} is no run of pre-training.')
  read = lambda name: metrics_file.read(
      os.path.join(run, run_dir.METRICS), name
  )
  evaluated = {
      name: read(f'dev_{name}')
      for name in (
          'accuracy', 'most_frequent', 'loss', 'prediction_perplexity',
          'label_perplexity',
      )
  }
  if not all(evaluated.values()):
    raise ValueError(f'{run} was not evaluated on a dev set.')
  seconds = read('not_private/seconds')
  plain = [
      value
      for step, value in seconds.items()
      if step not in evaluated['loss'] and step > 1
  ]
  epsilon = results.get('privacy', {}).get('epsilon')
  return Row(
      label=label,
      steps=results['steps'],
      trained_parameters=results['trained_parameters'],
      step_sec=statistics.median(plain or seconds.values()),
      epsilon=None if epsilon is None else float(epsilon),
      **{name: values[max(values)] for name, values in evaluated.items()},
  )
