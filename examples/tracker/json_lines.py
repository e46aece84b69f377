"""The shortest tracker: writes each round's metrics as a line of JSON.

For a service, replace the file by its call: `mlflow.log_metrics(value,
step=key)`, `wandb.log(value, step=key)`.
"""

from collections.abc import Mapping
import json

import tensorflow_federated as tff


class JsonLines(tff.program.ReleaseManager):
  """Appends each round's metrics to a file."""

  def __init__(self, path: str):
    """Creates it; nothing is written yet.

    Args:
      path: The file; its folder exists.
    """
    self._path = path

  async def release(self, value: Mapping[str, float], key: int) -> None:
    """Appends a round.

    Args:
      value: The round's metrics by name.
      key: Its number. A run that continues after a fault may release a round
        again: the later line counts.
    """
    with open(self._path, 'a', encoding='utf-8') as file:
      file.write(json.dumps({'round': key, **value}) + '\n')
