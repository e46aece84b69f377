"""Released metrics for TensorBoard, without the times of their release.

The time of each release tells how long a round took, and so who came. An event
has the number of its round in place of the time: TensorBoard shows rounds as
ever, and 1970 where it shows times.
"""

from collections.abc import Mapping
import itertools
import os

import tensorflow as tf
import tensorflow_federated as tff

_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name='scalars')
)


class TimelessTensorBoard(tff.program.ReleaseManager):
  """Writes scalars to a file of events of its own."""

  def __init__(self, folder: str):
    """Opens a new file.

    Args:
      folder: The file's folder; created if it is missing.
    """
    os.makedirs(folder, exist_ok=True)
    paths = (
        os.path.join(folder, f'events.out.tfevents.{number}')
        for number in itertools.count()
    )
    path = next(path for path in paths if not os.path.exists(path))
    self._writer = tf.io.TFRecordWriter(path)
    self._write(tf.compat.v1.Event(file_version='brain.Event:2'))

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
    self._write(tf.compat.v1.Event(wall_time=key, step=key, summary=summary))

  def _write(self, event: tf.compat.v1.Event) -> None:
    self._writer.write(event.SerializeToString())
    self._writer.flush()
