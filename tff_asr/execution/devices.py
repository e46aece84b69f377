"""The logical TensorFlow devices of this machine to run on."""

from collections.abc import Sequence
import os

import tensorflow as tf

# As in `launch`, for those who do not import it: notebooks, Ray's workers.
os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')


def find(devices: Sequence[str] | None) -> tuple[str, ...]:
  """Returns the logical devices to run on, such as '/device:GPU:0'.

  GPUs' memory is taken as it is needed (TF_FORCE_GPU_ALLOW_GROWTH, set when
  this module is imported), unless TensorFlow used them before.

  Args:
    devices: names of devices of this machine, each once, such as 'GPU:0' or
      '/CPU:1'. None is all GPUs, else the CPU.

  Raises:
    ValueError: `devices` is empty, or holds a device twice, or an unknown one.
  """
  present = [
      _device_name(device.name) for device in tf.config.list_logical_devices()
  ]
  if devices is None:
    gpus = [name for name in present if name.startswith('/device:GPU:')]
    return tuple(gpus) or ('/device:CPU:0',)
  if isinstance(devices, str) or not devices:
    raise ValueError(
        'devices must be None or a list of at least one device name, found '
        f'{devices!r}.'
    )
  names = tuple(map(_device_name, devices))
  for given, name in zip(devices, names):
    if name not in present:
      raise ValueError(
          f'devices holds {given!r}, which is not on this machine; it has '
          f'{", ".join(present)}.'
      )
  if len(set(names)) < len(names):
    raise ValueError(
        f'devices must differ, found {list(devices)}; to train several clients '
        'at once on a device raise clients_per_device.'
    )
  return names


def _device_name(name: str) -> str:
  """'/device:CPU:1' for any way to write it."""
  try:
    spec = tf.DeviceSpec.from_string(name)
  except (AttributeError, ValueError) as error:
    raise ValueError(
        f"devices must hold names such as 'CPU:1', found {name!r}."
    ) from error
  return f'/device:{spec.device_type}:{spec.device_index or 0}'
