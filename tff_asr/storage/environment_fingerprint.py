"""Threads, devices and software on which a run's bits depend.

A run records them when it begins. A resumed run takes the number of threads
from that record, and logs other differences.
"""

import os
import platform
import re

from absl import logging
import tensorflow as tf

from tff_asr import files
from tff_asr.execution import devices

_NAME = 'machine.json'
# An op splits long sums over its threads, which changes the rounding.
_THREADS = 'threads_per_op'

Properties = dict[str, str | int | list[str]]


def restore_threads(run: str) -> None:
  """Sets the number of threads of an op that a run began with.

  Call it before TensorFlow is in use; `check` logs if it was too late.

  Args:
    run: The run's folder; need not exist.
  """
  before = _read(run)
  if before is not None:
    devices.set_threads_per_op(before[_THREADS])


def check(run: str) -> None:
  """Logs a line if this machine differs from the one that a run began on.

  Args:
    run: The run's folder.
  """
  before = _read(run)
  if before is None:
    return
  here = current_properties()
  differences = [
      f'{name} {before.get(name)!r}, here {here[name]!r}'
      for name in here
      if before.get(name) != here[name]
  ]
  if differences:
    logging.warning(
        '%s began on another machine (%s): it continues, but not with the same '
        'bits, and a private round that was not saved yet is charged again.',
        run, '; '.join(differences),
    )


def path(run: str) -> str:
  """Returns the file with the properties that a run began with."""
  return os.path.join(run, _NAME)


def current_properties() -> Properties:
  """Returns the properties of this process that its results depend on."""
  return {
      'devices': [
          tf.config.experimental.get_device_details(device).get(
              'device_name', device.device_type
          )
          for device in tf.config.list_physical_devices()
      ],
      # The CPU kernels of oneDNN round differently. '': unset.
      'onednn': os.environ.get('TF_ENABLE_ONEDNN_OPTS', ''),
      'processor': _processor(),
      'tensorflow': tf.__version__,
      _THREADS: devices.threads_per_op(),
  }


def _read(run: str) -> Properties | None:
  """Reads the properties that a run began with; None if it has none."""
  try:
    return files.read_json(
        path(run),
        # The one property that is used; others are compared.
        lambda properties: properties | {_THREADS: int(properties[_THREADS])},
        remedy='delete it, and the run takes the threads of this machine',
    )
  # A file in the way of the folder is reported where the folder is made.
  except (FileNotFoundError, NotADirectoryError):
    return None


def _processor() -> str:
  """Returns the processor's model, on which the rounding of kernels depends."""
  with open('/proc/cpuinfo', encoding='utf-8') as file:
    found = re.search(r'^model name\s*: (.+)$', file.read(), re.MULTILINE)
  # Not every architecture names its model.
  return found[1] if found else platform.machine()
