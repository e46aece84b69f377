"""Released metrics of a run: a CSV file, and events for TensorBoard.

The CSV file contains each round once, even after a crash. Differences from
`tff.program.CSVFileReleaseManager`: the file is complete and on disk when
`release` returns, and a resumed run drops the rows after its saved state,
because it releases them again.
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

from tff_asr import files

_KEY = 'round'

# A hyperparameter's value.
Setting = bool | int | float | str


class MetricsFile(tff.program.ReleaseManager):
  """Writes one row per round; one writer per file."""

  def __init__(self, path: str, *, last: int):
    """Opens or creates the file.

    Args:
      path: The file; its folder exists.
      last: Number of the round or step that the run continues from.

    Raises:
      ValueError: The file does not contain metrics.
    """
    self._path = path
    self._rows = [
        # Later rounds run again and are released again.
        row for row in _read(path) if int(row[_KEY]) <= last
    ]
    self._write()

  async def release(self, value: Mapping[str, float], key: int) -> None:
    """Writes a row; when this returns, it is on disk.

    Args:
      value: Numbers by name, flat.
      key: The round or step, higher than those before.
    """
    self._rows.append({_KEY: key, **value})
    self._write()

  def _write(self) -> None:
    """Replaces the whole file atomically."""
    # Not appended to: a crash could cut a row, and the columns may grow.
    # In the order in which rounds first had them.
    columns = dict.fromkeys([_KEY, *itertools.chain(*self._rows)])
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator='\n')
    writer.writeheader()
    writer.writerows(self._rows)
    files.write_text(self._path, text.getvalue())


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
    # A resumed run adds a file: TensorBoard joins those of a folder. The writer
    # would follow a link that leads nowhere yet.
    path = next(path for path in paths if not os.path.lexists(path))
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
    # A round's time depends on the clients that took part.
    wall_time = time.time() if self._with_times else step
    self._write(
        event_pb2.Event(wall_time=wall_time, step=step, summary=summary)
    )

  def _write(self, event: event_pb2.Event) -> None:
    self._writer.write(event.SerializeToString())
    # At once, because TensorBoard shows a run while it trains.
    self._writer.flush()


def read(path: str) -> dict[str, dict[int, float]]:
  """Returns all metrics by name, then by round or step."""
  metrics = {}
  for row in _read(path):
    for name, text in row.items():
      # A round without the metric has an empty cell.
      if name != _KEY and text:
        metrics.setdefault(name, {})[int(row[_KEY])] = float(text)
  return metrics


def _read(path: str) -> list[dict[str, str]]:
  """Returns the rows, none without a file; ValueError if it is another one."""
  if not os.path.exists(path):
    return []
  try:
    text = io.StringIO(files.read(path).decode(), newline='')
    reader = csv.DictReader(text, strict=True)
    rows = list(reader)
    (reader.fieldnames or []).index(_KEY)  # Raises ValueError without it.
    for row in rows:
      int(row[_KEY])
      for text in row.values():
        float(text or 'nan')
  # TypeError: a row is longer than the header.
  except (ValueError, KeyError, TypeError, csv.Error):
    raise ValueError(
        f'{path} does not contain the metrics of a run: remove it, or restore '
        'it.'
    ) from None
  return rows
