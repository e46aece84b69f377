"""Tables of error rates and speakers, and transcripts, for the quickstart.

Of each run the word error rate decoded greedily and with a language model, and
the differences of both from one run, the baseline, by a paired bootstrap over
the test speakers. Tables fit a terminal of 100 columns.
"""

from collections.abc import Mapping, Sequence
import statistics
import textwrap
from typing import NamedTuple

from tff_asr.metrics import confidence
from tff_asr.privacy import privacy_report
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import tables

_MEASURES = (runs_lib.WER, runs_lib.WER_WITH_LM)
_SENTENCES = (runs_lib.SER, runs_lib.SER_WITH_LM)
_WIDTH, _LABEL_WIDTH = 100, 16


class Transcripts(NamedTuple):
  """Transcripts of two runs.

  Attributes:
    num_utterances: Of the test set.
    num_different: Of these, those that the runs transcribe differently.
    shown: Some of the latter, spread over the test set: the lines of each, of
      at most 100 columns: the reference, then each run's transcript.
  """

  num_utterances: int
  num_different: int
  shown: list[list[str]]


def overview(rows: Sequence[tables.Row], *, baseline: str) -> tables.Table:
  """Returns the table of error rates and epsilon.

  Args:
    rows: Evaluated runs.
    baseline: Label of the row that differences are from.
  """
  (base,) = (row for row in rows if row.label == baseline)
  difference = f'minus {baseline}'
  cells = [
      ['', 'WER %', difference, '+ LM', difference, 'CER %', 'epsilon']
  ]
  for row in rows:
    line = [row.label]
    for measure in _MEASURES:
      is_compared = row is not base and has(row, measure)
      line += [
          tables.rate(row, measure),
          tables.interval(gain(row, base, measure)) if is_compared else '',
      ]
    cells.append([*line, tables.rate(row, runs_lib.CER), _epsilon(row)])
  return cells


def quartiles(rows: Sequence[tables.Row]) -> tables.Table:
  """Returns the quartiles over speakers of the WER, and the SER."""
  cells = [
      ['', 'a quarter of speakers below', 'median', 'a quarter above', 'SER %']
  ]
  for row in rows:
    measure = _best_measure(row)
    scores = row.first.scores[measure].values()
    rates = [each.rate for each in scores if each.words]
    found = statistics.quantiles(rates, n=4, method='inclusive')
    sentences = _SENTENCES[_MEASURES.index(measure)]
    cells.append([
        row.label, *map(tables.percent, found), tables.rate(row, sentences)
    ])
  return cells


def transcripts(
    row: tables.Row, other: tables.Row, *, count: int = 3
) -> Transcripts:
  """Compares the transcripts of two runs, with the LM where there is one.

  Args:
    row: An evaluated run.
    other: A run that was evaluated on the same utterances.
    count: How many to show.
  """
  key = 'text_with_lm' if has(row, runs_lib.WER_WITH_LM) else 'text'
  pairs = list(zip(*(
      each.first.evaluation['hypotheses'] for each in (row, other)
  )))
  different = [pair for pair in pairs if pair[0][key] != pair[1][key]]
  # The middle of each part: speakers follow one another.
  numbers = dict.fromkeys(
      (2 * i + 1) * len(different) // (2 * count)
      for i in range(count if different else 0)
  )
  shown = []
  for number in numbers:
    first, second = different[number]
    shown.append([
        f'{label:{_LABEL_WIDTH}}' + textwrap.shorten(
            tables.plain(text), _WIDTH - _LABEL_WIDTH, placeholder=' ...'
        )
        for label, text in (
            ('reference', first['reference']),
            (row.label, first[key]),
            (other.label, second[key]),
        )
    ])
  return Transcripts(len(pairs), len(different), shown)


def gain(
    row: tables.Row, base: tables.Row, measure: str
) -> confidence.Interval:
  """Returns the difference of two rows, negative if the first is better."""
  row, base = (each._replace(measure=measure) for each in (row, base))
  return confidence.difference(
      row.errors, base.errors, list(row.words.values())
  )


def verdict(found: confidence.Interval, other: str) -> str:
  """Returns how a row compares with another one.

  >>> verdict(confidence.Interval(-0.041, -0.06, -0.022), 'the control')
  '4.1 points ahead of the control (2.2 to 6.0)'

  Args:
    found: The difference of error rates, a fraction: row less other row.
    other: What the other row is called.

  Returns:
    The words and the interval; level where 0 is inside.
  """
  difference, low, high = (100 * value for value in found)
  if high < 0:
    interval = f'{-high:.1f} to {-low:.1f}'
    return f'{-difference:.1f} points ahead of {other} ({interval})'
  if low > 0:
    return f'{difference:.1f} points behind {other} ({low:.1f} to {high:.1f})'
  return f'level with {other} ({difference:+.1f}, {low:+.1f} to {high:+.1f})'


def has(row: tables.Row, measure: str) -> bool:
  """Returns whether a row was evaluated by a measure."""
  return measure in row.first.scores


def accounts(row: tables.Row) -> str:
  """Returns epsilon by each accountant, as '4.94 (PLD), 5.86 (RDP)'."""
  privacy: Mapping[str, object] = row.first.privacy or {}
  return ', '.join(
      f'{privacy_report.format_epsilon(float(privacy[key]))} ({name.upper()})'
      for name in ('pld', 'rdp')
      if privacy.get(key := f'epsilon_{name}') is not None
  )


def _best_measure(row: tables.Row) -> str:
  """With the language model, if there is one."""
  return _MEASURES[has(row, runs_lib.WER_WITH_LM)]


def _epsilon(row: tables.Row) -> str:
  """Epsilon, as '4.94 (PLD)'; '-' for rows that no private speaker trained."""
  return tables.epsilon_by(row) or '-'
