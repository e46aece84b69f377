"""Released metrics as a CSV file that a killed run continues without a gap.

Differences from `tff.program.CSVFileReleaseManager`: a row is on disk when
`release` returns; a row that a crash cut short is dropped; a resumed run drops
the rows after its saved state, because it releases them again. So the file
always has each round once.
"""

from collections.abc import Mapping
import csv
import io
import os
from typing import Any

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files

_KEY = 'round'


class MetricsFile(tff.program.ReleaseManager):
  """Appends one row per round; one writer per file."""

  def __init__(self, path: str, *, last: int):
    """Opens or creates the file.

    Args:
      path: The file; its folder exists.
      last: Number of the round or step that the run goes on from, at least 0.

    Raises:
      ValueError: It is no file of metrics.
    """
    checks.non_negative_int(last=last)
    self._path = path
    self._columns = [_KEY]
    rows = []
    if os.path.exists(path):
      self._columns, rows = _read(path)
    self._rewrite([row for row in rows if int(row[_KEY]) <= last])

  async def release(self, value: Mapping[str, Any], key: int) -> None:
    """Writes a row; when this returns, it is on disk.

    Args:
      value: Numbers by name, flat.
      key: The round or step, above all before.
    """
    row = {_KEY: key, **value}
    new = [name for name in row if name not in self._columns]
    if new:
      rows = _read(self._path)[1]
      self._columns += new
      self._rewrite([*rows, row])
      return
    descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
    try:
      os.write(descriptor, _format(self._columns, [row]))
      os.fsync(descriptor)
    finally:
      os.close(descriptor)

  def _rewrite(self, rows: list[Mapping[str, Any]]) -> None:
    """Writes the whole file, or leaves it as it is."""
    data = _format(self._columns, [dict(zip(self._columns, self._columns))])
    data += _format(self._columns, rows)
    files.write(self._path, data)


def read(path: str, name: str) -> dict[int, float]:
  """A metric by round or step, where it was set."""
  return read_all(path).get(name, {})


def read_all(path: str) -> dict[str, dict[int, float]]:
  """All metrics by name, then by round or step, where they were set."""
  columns, rows = _read(path)
  try:
    return {
        name: {int(row[_KEY]): float(row[name]) for row in rows if row[name]}
        for name in columns
        if name != _KEY
    }
  except ValueError as error:
    raise ValueError(f'{path} is damaged: {error}.') from None


def _read(path: str) -> tuple[list[str], list[dict[str, str]]]:
  """The columns and the complete rows; ValueError if these are no metrics."""
  with open(path, 'rb') as file:
    whole, _, unused_torn = file.read().rpartition(b'\n')
  try:
    reader = csv.DictReader(io.StringIO(whole.decode()), strict=True)
    rows = list(reader)
    columns = list(reader.fieldnames or [_KEY])
    if columns[0] != _KEY or any(
        None in row or None in row.values() or not row[_KEY].isdecimal()
        for row in rows
    ):
      raise ValueError
  except (ValueError, csv.Error):
    raise ValueError(
        f'{path} is not a file of metrics of a run: remove it, or put it back '
        'as it was.'
    ) from None
  return columns, rows


def _format(columns: list[str], rows: list[Mapping[str, Any]]) -> bytes:
  """Rows as they stand in the file."""
  text = io.StringIO()
  csv.DictWriter(text, columns, lineterminator='\n').writerows(rows)
  return text.getvalue().encode()
