"""Summary of a written split: summary.json, and a table to print."""

from collections.abc import Iterable, Mapping
import os
from typing import Any, TypedDict

from tff_asr import files
from tff_asr.data import index
from tff_asr.data import schema

SUMMARY_FILE = 'summary.json'
DROPPED_FILE = 'dropped.tsv'


class Summary(TypedDict, total=False):
  """A split's entry of summary.json; `summarize` describes the fields.

  `shared`, which conversion adds, counts recordings that other splits have too;
  `examples`, which no file has, shows a change or reason by its kind.
  """

  num_clients: int
  num_utterances: int
  hours: float
  minutes_per_client: dict[str, float]
  dropped: Mapping[str, int]
  changed: Mapping[str, float]
  attributes: Mapping[str, Mapping[str, int]]
  copies: Mapping[str, int]
  shared: Mapping[str, int]
  examples: Mapping[str, str]


_COLUMNS = (
    'subset', 'hours', 'utterances', 'speakers',
    'min/speaker mean', 'std', 'min', 'max',
)


def summarize(clients: index.Clients, *, origin: Mapping[str, Any]) -> Summary:
  """Returns the summary of a split, as in summary.json.

  Args:
    clients: The clients that were written.
    origin: The `origin` of corpus.json, of which are used
      dropped: {reason: number of utterances that were left out};
      changed: {kind: number of files, transcripts or seconds};
      attributes: {attribute: number of speakers with a `known` or a
        `contradictory` value};
      copies: identical recordings: how many `records` repeat an earlier one,
        the largest number of equal ones (`most`), and how many `speakers` share
        a recording with another speaker.

  Returns:
    num_clients, num_utterances, hours, minutes_per_client (min, mean, std,
    max), dropped, changed, attributes, copies.
  """
  # Of what was written: utterances that were left out do not count.
  minutes = clients.num_samples / (60 * schema.SAMPLE_RATE_HZ)
  return {
      'num_clients': len(clients.client_ids),
      'num_utterances': int(clients.num_utterances.sum()),
      'hours': round(float(minutes.sum()) / 60, 6),
      'minutes_per_client': {
          name: round(float(getattr(minutes, name)()), 4)
          for name in ('min', 'mean', 'std', 'max')
      },
      'dropped': origin.get('dropped', {}),
      'changed': {
          kind: round(count, 3)
          for kind, count in origin.get('changed', {}).items()
      },
      'attributes': origin.get('attributes', {}),
      'copies': origin.get('copies', {}),
  }


def unit_warning(clients: index.Clients) -> str:
  """Says if most clients have one recording, as where nobody noted who spoke.

  Returns:
    A part of a sentence, or ''.
  """
  if 2 * (clients.num_utterances == 1).sum() <= len(clients.client_ids):
    return ''
  return (
      'most speakers have one recording: unless each is a different person, '
      'the guarantee is per recording, and not per person'
  )


def read(folder: str | os.PathLike[str]) -> Summary:
  """Returns the summary of a corpus folder, from its index.

  summary.json itself is not read, because the index has all of it.

  Raises:
    ValueError: As `index.read`.
  """
  corpus, clients, _ = index.read(folder)
  return summarize(clients, origin=corpus.origin)


def table(summaries: Mapping[str, Summary]) -> str:
  """Returns a Markdown table, one row per split, like the paper's Table 2."""
  rows = [_COLUMNS]
  for name, summary in summaries.items():
    minutes = summary['minutes_per_client']
    rows.append((
        name,
        f'{summary["hours"]:,.2f}',
        f'{summary["num_utterances"]:,}',
        f'{summary["num_clients"]:,}',
        f'{minutes["mean"]:,.2f}',
        f'{minutes["std"]:,.2f}',
        f'{minutes["min"]:,.2f}',
        f'{minutes["max"]:,.2f}',
    ))
  # Aligned, because the table is read in a terminal.
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = [_line(row, widths) for row in rows]
  lines.insert(1, '|' + '|'.join('-' * (width + 2) for width in widths) + '|')
  return '\n'.join(lines)


def remarks(name: str, summary: Summary) -> list[str]:
  """Returns a line for each change, each reason for leaving out, and so on."""
  changed = [
      f'{name}: {kind}: {count:,.0f}'
      for kind, count in summary['changed'].items()
  ]
  dropped = [
      f'{name}: left out, {reason}: {count:,} (see {DROPPED_FILE})'
      for reason, count in summary['dropped'].items()
  ]
  known = [
      f'{name}: {attribute} known for {counts["known"]:,} of'
      f' {summary["num_clients"]:,} speakers'
      + (
          f'; {counts["contradictory"]:,} left empty: several values in the'
          ' corpus'
          if counts['contradictory']
          else ''
      )
      for attribute, counts in summary['attributes'].items()
  ]
  copies = summary['copies']
  repeated = []
  if copies.get('records'):
    repeated = [
        f'{name}: identical recordings: {copies["records"]:,} are copies, up to'
        f' {copies["most"]:,} are the same; {copies["speakers"]:,} speakers'
        ' have one of another speaker'
    ]
  repeated += [
      f'{name}: {count:,} recordings have the same samples as recordings of'
      f' {other}; --drop_copies --overwrite leaves them out of {name}'
      for other, count in summary.get('shared', {}).items()
  ]
  return changed + dropped + known + repeated


def merge(folder: str, summaries: Mapping[str, Summary]) -> None:
  """Adds splits to the summary.json of the folder that holds their folders."""
  path = os.path.join(folder, SUMMARY_FILE)
  try:
    known = files.read_json(path, dict, remedy='it is written again')
  # A missing or damaged file is replaced.
  except (OSError, ValueError):
    known = {}
  # Another command may have written other splits. Splits that were deleted
  # since are dropped.
  known = {
      name: summary
      for name, summary in known.items()
      if os.path.isdir(os.path.join(folder, name))
  }
  files.write_json(path, dict(sorted((known | dict(summaries)).items())))


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
  """A row: the first cell left-aligned, numbers right-aligned."""
  padded = [
      cell.rjust(width) if i else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(cells, widths))
  ]
  return '| ' + ' | '.join(padded) + ' |'
