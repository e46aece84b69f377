"""Settings and released metrics for TensorBoard, with or without times.

The time of each release tells how long a round took, and so who came. Without
times, an event has the number of its round in their place: TensorBoard shows
rounds as ever, and 1970 where it shows times.

Settings are hyperparameters of TensorBoard's plugin `hparams`, whose table has
them beside the last values of `_SHOWN`.

TFF's manager makes tensors of all numbers, of which TensorFlow never frees some
bytes; thousands of rounds are more than they should cost.
"""

from collections.abc import Mapping
import itertools
import os
import time
from typing import Optional

from tensorboard.plugins.hparams import api as hparams_api
import tensorflow as tf
import tensorflow_federated as tff

Setting = bool | int | float | str

_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name='scalars')
)
# What the table of runs shows, of those that a run releases.
_SHOWN = ('dev_word_error_rate', 'epsilon', 'dev_accuracy', 'dev_loss')


class TensorBoardFile(tff.program.ReleaseManager):
  """Writes scalars to a file of events of its own."""

  def __init__(
      self,
      folder: str,
      *,
      with_times: bool,
      settings: Optional[Mapping[str, Setting]] = None,
  ):
    """Opens a new file.

    Args:
      folder: The file's folder; created with mode 0700 if it is missing.
      with_times: Whether events have the time of their release.
      settings: Settings by name.
    """
    self._with_times = with_times
    os.makedirs(folder, 0o700, exist_ok=True)
    paths = (
        os.path.join(folder, f'events.out.tfevents.{number}')
        for number in itertools.count()
    )
    path = next(path for path in paths if not os.path.exists(path))
    self._writer = tf.io.TFRecordWriter(path)
    self._write(tf.compat.v1.Event(file_version='brain.Event:2'))
    if settings:
      self._write_settings(settings)

  async def release(self, value: Mapping[str, float], key: int) -> None:
    """Writes a round's numbers.

    Args:
      value: Numbers by name, flat.
      key: The round or step.
    """
    summary = tf.compat.v1.Summary(value=[
        tf.compat.v1.Summary.Value(
            tag=name,
            tensor=tf.make_tensor_proto(number, tf.float32),
            metadata=_SCALAR,
        )
        for name, number in value.items()
    ])
    wall_time = time.time() if self._with_times else key
    self._write(
        tf.compat.v1.Event(wall_time=wall_time, step=key, summary=summary)
    )

  def _write_settings(self, settings: Mapping[str, Setting]) -> None:
    """Writes the settings, and which metrics belong beside them."""
    start = time.time() if self._with_times else 0
    # Columns of this run alone: a table of several takes the first one's.
    columns = hparams_api.hparams_config_pb(
        hparams=[hparams_api.HParam(name) for name in sorted(settings)],
        metrics=[hparams_api.Metric(name) for name in _SHOWN],
        time_created_secs=start,
    )
    values = hparams_api.hparams_pb(dict(settings), start_time_secs=start)
    for message in (columns, values):
      # The same message, of TensorFlow's class.
      summary = tf.compat.v1.Summary.FromString(message.SerializeToString())
      self._write(tf.compat.v1.Event(wall_time=start, summary=summary))

  def _write(self, event: tf.compat.v1.Event) -> None:
    self._writer.write(event.SerializeToString())
    self._writer.flush()
