"""Threads and devices: what a run's bits depend on besides its settings.

An op splits long sums over its threads, so the number of threads changes the
rounding. So do devices, processors and versions of TensorFlow. A run records
what it began on. A resumed run takes the number of threads from that record,
and logs other differences.
"""

import os
import platform
from typing import Any

from absl import logging
import tensorflow as tf

from tff_asr import files

_NAME = 'machine.json'
_THREADS = 'threads_per_op'
# No machine has more; a folder that says so would have them all started.
_MAX_THREADS = 1024


def restore_threads(run: str) -> None:
  """Gives ops as many threads as a run began with, if the run exists.

  Call it before TensorFlow is in use; `check` logs if it was too late.

  Args:
    run: The run's folder; need not exist.
  """
  threads = (_read(run) or {}).get(_THREADS)
  # TensorFlow checks nothing here, and would fail later.
  if type(threads) is not int or not 1 <= threads <= _MAX_THREADS:
    return
  if threads == _num_threads():
    return
  try:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
  except RuntimeError:
    pass  # TensorFlow is in use; `check` logs the difference.


def check(run: str) -> None:
  """Logs a line if this machine differs from the one that a run began on.

  Args:
    run: The run's folder.
  """
  before = _read(run)
  if before is None:
    return
  here = describe()
  differences = [
      f'{name} {before.get(name)!r}, here {here[name]!r}'
      for name in here
      if before.get(name) != here[name]
  ]
  if differences:
    logging.warning(
        '%s was begun elsewhere (%s): it goes on, but not in the same bits, '
        'and a private round that was not saved yet is charged once more.',
        run, '; '.join(differences),
    )


def path(run: str) -> str:
  """The file that keeps what a run began on."""
  return os.path.join(run, _NAME)


def describe() -> dict[str, Any]:
  """Properties that results of this process depend on, to be compared."""
  return {
      'devices': [
          tf.config.experimental.get_device_details(device).get(
              'device_name', device.device_type
          )
          for device in tf.config.list_physical_devices()
      ],
      # oneDNN has other CPU kernels, which round differently. '': unset.
      'onednn': os.environ.get('TF_ENABLE_ONEDNN_OPTS', ''),
      'processor': _processor(),
      'tensorflow': tf.__version__,
      _THREADS: _num_threads(),
  }


def _read(run: str) -> dict[str, Any] | None:
  """Reads what a run keeps; None if it keeps nothing that can be read."""
  try:
    found = files.parse_json(files.read(path(run)))
  except (OSError, ValueError):
    return None
  return found if isinstance(found, dict) else None


def _num_threads() -> int:
  """Threads of an op: as set, or one a processor that this process may use."""
  return (
      tf.config.threading.get_intra_op_parallelism_threads()
      or len(os.sched_getaffinity(0))
  )


def _processor() -> str:
  """The processor's model; its instructions decide how kernels round."""
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      for line in file:
        name, _, value = line.partition(':')
        if name.strip() == 'model name':
          return value.strip()
  except OSError:
    pass
  return platform.machine()
