"""Report of a benchmark: a table for readers, a JSON file for programs."""

from collections.abc import Sequence
import os
import statistics
from typing import Any

from absl import flags
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files

_JSON = flags.DEFINE_string('json', None, 'File for the figures.')


def check_json_flag() -> None:
  """Raises ValueError, before hours of work, if figures cannot go there."""
  path = _JSON.value
  if path is None:
    return
  checks.output_folders(json_folder=os.path.dirname(os.path.abspath(path)))
  if os.path.isdir(path):
    raise ValueError(f'--json {path} is a folder: name a file.')


def write(
    title: str, table: Sequence[Sequence[str]], figures: dict[str, Any]
) -> None:
  """Prints a Markdown table (its first row is the heading); writes JSON."""
  print(f'\n{title}\n')
  for number, row in enumerate(table):
    print('| ' + ' | '.join(row) + ' |')
    if number == 0:
      print('|' + '---|' * len(row))
  if _JSON.value:
    os.makedirs(os.path.dirname(os.path.abspath(_JSON.value)), exist_ok=True)
    files.write_json(_JSON.value, dict(figures, machine=_machine()))


def spread(values: Sequence[float], spec: str = '.2f', /) -> str:
  """Median, least and most of some measurements, each formatted by `spec`."""
  middle, least, most = (
      format(value, spec)
      for value in (statistics.median(values), min(values), max(values))
  )
  return f'{middle} ({least} to {most})'


def _machine() -> dict[str, Any]:
  """The machine of the figures."""
  gpus = tf.config.list_physical_devices('GPU')
  return {
      'cpu_cores': psutil.cpu_count(),
      'memory_gib': round(psutil.virtual_memory().total / 2**30, 1),
      'gpus': len(gpus),
      'tensorflow': tf.__version__,
      'tff': tff.__version__,
  }
