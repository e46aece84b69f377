"""Released metrics of a run: a CSV file, and events for TensorBoard.

The CSV file contains each round once, even after a crash. Differences from
`tff.program.CSVFileReleaseManager`: a row is on disk when `release` returns;
incomplete rows are dropped; and a resumed run drops the rows after its saved
state, because it releases them again.
"""

from collections.abc import Mapping
import csv
import io
import itertools
import os
import time

from tensorboard.compat.proto import event_pb2
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.scalar import summary_v2 as scalar_summary
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files

_KEY = 'round'

# A hyperparameter's value.
Setting = bool | int | float | str


class MetricsFile(tff.program.ReleaseManager):
  """Appends one row per round; one writer per file."""

  def __init__(self, path: str, *, last: int):
    """Opens or creates the file.

    Args:
      path: The file; its folder exists.
      last: Number of the round or step that the run continues from, at least
        0.

    Raises:
      ValueError: The file does not contain metrics.
    """
    checks.non_negative_int(last=last)
    self._path = path
    self._columns = [_KEY]
    rows = []
    if os.path.exists(path):
      self._columns, rows = _read(path)
    # Later rounds run again and are released again.
    self._rewrite([row for row in rows if int(row[_KEY]) <= last])

  async def release(self, value: Mapping[str, float], key: int) -> None:
    """Writes a row; when this returns, it is on disk.

    Args:
      value: Numbers by name, flat.
      key: The round or step, higher than those before.
    """
    row = {_KEY: key, **value}
    # The header changes, so the whole file is written again.
    new = [name for name in row if name not in self._columns]
    if new:
      rows = _read(self._path)[1]
      self._columns += new
      self._rewrite([*rows, row])
      return
    descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
    try:
      # A single write, so that a crash leaves at most one incomplete row.
      os.write(descriptor, _format(self._columns, [row]))
      os.fsync(descriptor)
    finally:
      os.close(descriptor)

  def _rewrite(self, rows: list[Mapping[str, float | str]]) -> None:
    """Replaces the whole file atomically."""
    data = _format(self._columns, [dict(zip(self._columns, self._columns))])
    data += _format(self._columns, rows)
    files.write(self._path, data)


class TensorBoardFile(tff.program.ReleaseManager):
  """Writes scalars and hyperparameters to a new file of TensorBoard events.

  Unlike `tff.program.TensorBoardReleaseManager`, it can leave out times. The
  time between two events reveals how long a round took, which depends on the
  clients that took part.
  """

  def __init__(
      self,
      folder: str,
      *,
      with_times: bool,
      settings: Mapping[str, Setting] | None = None,
  ):
    """Opens a new file.

    Args:
      folder: The file's folder; created with mode 0700 if it is missing.
      with_times: Whether events have the time of their release. Otherwise an
        event has the number of its round in place of the time: TensorBoard
        shows 1970.
      settings: Hyperparameters by name, for TensorBoard's HPARAMS table.
    """
    self._with_times = with_times
    os.makedirs(folder, 0o700, exist_ok=True)
    paths = (
        os.path.join(folder, f'events.out.tfevents.{number}')
        for number in itertools.count()
    )
    path = next(path for path in paths if not os.path.exists(path))
    # `tf.summary` has no writer that takes the time of an event.
    self._writer = tf.io.TFRecordWriter(path)
    self._write(event_pb2.Event(file_version='brain.Event:2'))
    if settings:
      started = time.time() if with_times else 0
      self._write_summary(
          hparams_api.hparams_pb(dict(settings), start_time_secs=started),
          step=0,
      )

  async def release(self, value: Mapping[str, float], key: int) -> None:
    """Writes a round's numbers.

    Args:
      value: Numbers by name, flat.
      key: The round or step.
    """
    summary = summary_pb2.Summary()
    for name, number in value.items():
      summary.MergeFrom(scalar_summary.scalar_pb(name, number))
    self._write_summary(summary, step=key)

  def _write_summary(self, summary: summary_pb2.Summary, *, step: int) -> None:
    """Writes an event."""
    wall_time = time.time() if self._with_times else step
    self._write(
        event_pb2.Event(wall_time=wall_time, step=step, summary=summary)
    )

  def _write(self, event: event_pb2.Event) -> None:
    self._writer.write(event.SerializeToString())
    self._writer.flush()


def read(path: str, name: str) -> dict[int, float]:
  """Returns a metric by round or step, where it was set."""
  return read_all(path).get(name, {})


def read_all(path: str) -> dict[str, dict[int, float]]:
  """Returns all metrics by name, then by round or step."""
  columns, rows = _read(path)
  try:
    return {
        # A round without the metric has an empty cell.
        name: {int(row[_KEY]): float(row[name]) for row in rows if row[name]}
        for name in columns
        if name != _KEY
    }
  except ValueError as error:
    raise ValueError(f'{path} is damaged: {error}.') from None


def _read(path: str) -> tuple[list[str], list[dict[str, str]]]:
  """Returns the columns and the complete rows; ValueError if damaged."""
  with open(path, 'rb') as file:
    # A crash may have cut the last line short.
    whole, _, unused_rest = file.read().rpartition(b'\n')
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
        f'{path} does not contain the metrics of a run: remove it, or restore '
        'it.'
    ) from None
  return columns, rows


def _format(
    columns: list[str], rows: list[Mapping[str, float | str]]
) -> bytes:
  """Formats rows as CSV."""
  text = io.StringIO()
  csv.DictWriter(text, columns, lineterminator='\n').writerows(rows)
  return text.getvalue().encode()
