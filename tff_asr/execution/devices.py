"""The logical devices to run on, clients at once on each, threads of an op."""

from collections.abc import Sequence
import contextlib
import importlib.util
import math
import os
from typing import Literal, NamedTuple

import psutil
import tensorflow as tf

# 'auto': `DeviceSet.num_at_once` chooses.
ClientsPerDevice = int | Literal['auto']

# Memory of a client besides its tensors of the model's size: its data and its
# activations, which no program tells before it runs.
_CLIENT_BYTES = 2**29
# Share of the free memory that clients may take: the server's step and the
# first state need memory, too.
_MEMORY_SHARE = 0.5
# On a GPU the host launches the kernels of one client while those of the other
# run. Larger models might gain as much (an H200 was busy for a sixth of a step
# of 3 blocks, 768 wide), but two of them may fill a GPU's memory.
_MAX_SHARED_GPU_BYTES = 2**27

# GPUs' memory is taken as it is needed, unless TensorFlow used them before. As
# in `launch`, which notebooks and Ray's workers do not import.
os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
_THREADS_VARIABLE = 'TF_NUM_INTRAOP_THREADS'


def _set_cuda_dir() -> None:
  """Tells XLA where NVIDIA's packages for Python have its device library.

  XLA reads this when it first compiles. It finds a CUDA toolkit by itself.
  """
  try:
    found = importlib.util.find_spec('nvidia.cuda_nvcc')
  # Raised if the parent package `nvidia` is missing.
  except ModuleNotFoundError:
    return
  if found is not None and found.submodule_search_locations:
    folder = found.submodule_search_locations[0]
    os.environ.setdefault('XLA_FLAGS', f'--xla_gpu_cuda_data_dir={folder}')


_set_cuda_dir()


class DeviceSet(NamedTuple):
  """The devices on which a process trains clients.

  Attributes:
    devices: logical devices.
    clients_per_device: how many train at once on each, or 'auto'.
  """

  devices: tuple[str, ...]
  clients_per_device: ClientsPerDevice

  def num_at_once(self, *, tensor_bytes: int) -> int:
    """Returns how many clients train at once on each device.

    For 'auto', on a CPU: one for each core, as far as the memory that is free
    now suffices; on a GPU two, if the model is small. No bit of a result
    depends on what 'auto' chooses.

    Args:
      tensor_bytes: size of the model's tensors that each of these clients adds:
        its weights, gradients, delta and sum.
    """
    if self.clients_per_device != 'auto':
      return self.clients_per_device
    if 'GPU' in self.devices[0]:
      return 2 if tensor_bytes <= _MAX_SHARED_GPU_BYTES else 1
    cores = _num_cores() // len(self.devices)
    free = _MEMORY_SHARE * psutil.virtual_memory().available
    fitting = int(free / (tensor_bytes + _CLIENT_BYTES)) // len(self.devices)
    return max(1, min(cores, fitting))


def choose(
    devices: Sequence[str] | None,
    *,
    clients_per_device: ClientsPerDevice,
    gpu_memory_mb: int | None,
    cohort_size: float | None = None,
) -> DeviceSet:
  """Returns the devices to train on, for settings as in `multi_device`.

  If it comes before TensorFlow's first op, CPUs are shared out as well:
  `share_cores`.

  Raises:
    ValueError: as `logical_devices` and `split_gpus`.
  """
  share_cores(
      devices, clients_per_device=clients_per_device, cohort_size=cohort_size
  )
  split_gpus(count=clients_per_device, memory_mb=gpu_memory_mb)
  is_split = gpu_memory_mb is not None and clients_per_device > 1
  # The setting has no effect on a machine without GPUs.
  is_split = is_split and bool(tf.config.list_physical_devices('GPU'))
  found = logical_devices(devices)
  # The parts of a split GPU are devices, and each trains one client.
  return DeviceSet(found, 1 if is_split else clients_per_device)


def threads_per_op() -> int:
  """Returns how many threads an op on a CPU may use."""
  return _chosen_threads() or _num_cores()


def set_threads_per_op(number: int) -> None:
  """Sets how many threads an op may use; after the first op they stay."""
  # RuntimeError: after the first op.
  with contextlib.suppress(RuntimeError):
    tf.config.threading.set_intra_op_parallelism_threads(number)


def num_ops_at_once() -> int:
  """Returns how many ops can each have their threads on a core of their own."""
  return max(1, _num_cores() // threads_per_op())


def share_cores(
    devices: Sequence[str] | None = None,
    *,
    clients_per_device: ClientsPerDevice = 'auto',
    cohort_size: float | None = None,
) -> None:
  """Sets the threads of an op so that each client at once has its own cores.

  Clients whose ops share the threads of all cores wait for each other. On GPUs,
  after TensorFlow's first op, and where the number was chosen already, nothing
  changes.

  Args:
    devices: as in `logical_devices`.
    clients_per_device: how many clients train at once on each. 'auto': one for
      each core. It may be fewer for want of memory, which is known later; bits
      do not depend on that.
    cohort_size: as in `multi_device.Settings`.
  """
  on_gpus = (
      tf.config.list_physical_devices('GPU')
      if devices is None
      else any('GPU' in str(device).upper() for device in devices)
  )
  if on_gpus or _chosen_threads():
    return
  at_once = _num_cores()
  if clients_per_device != 'auto':
    at_once = clients_per_device * len(devices or ['CPU:0'])
  if cohort_size:
    at_once = min(at_once, math.ceil(cohort_size))
  set_threads_per_op(max(1, _num_cores() // at_once))


def _num_cores() -> int:
  """The cores that this process may use."""
  return len(os.sched_getaffinity(0))


def _chosen_threads() -> int:
  """The number of threads of an op that the process chose; 0 for none."""
  return tf.config.threading.get_intra_op_parallelism_threads() or int(
      os.environ.get(_THREADS_VARIABLE) or 0
  )


def split_gpus(
    *, count: ClientsPerDevice, memory_mb: int | None
) -> int | None:
  """Splits each GPU into logical devices, which compute at the same time.

  Args:
    count: number of logical devices of each GPU; 1 keeps it whole.
    memory_mb: memory of each, in MiB. None keeps the GPUs whole.

  Returns:
    `memory_mb`.

  Raises:
    ValueError: `count` is 'auto', or the GPUs were used already.
  """
  if memory_mb is None or count == 1:
    return memory_mb
  if count == 'auto':
    raise ValueError(
        "gpu_memory_mb needs clients_per_device as a number, found 'auto'."
    )
  for device in tf.config.list_physical_devices('GPU'):
    parts = [tf.config.LogicalDeviceConfiguration(memory_mb)] * count
    # Split already, by an earlier context of this process.
    if tf.config.get_logical_device_configuration(device) == parts:
      continue
    # Threads that share one device take turns on its stream. TensorFlow cannot
    # split a GPU that an op or a traced function has used in this process.
    try:
      tf.config.set_logical_device_configuration(device, parts)
    except RuntimeError as error:
      raise ValueError(
          f'{device.name} cannot be split into {count} logical devices of '
          f'{memory_mb} MiB: {error}'
      ) from error
  return memory_mb


def logical_devices(devices: Sequence[str] | None) -> tuple[str, ...]:
  """Returns the logical devices to run on, such as '/device:GPU:0'.

  Args:
    devices: names of devices of this machine, each once, such as 'GPU:0' or
      '/CPU:1'. None: all GPUs, or the CPU if there are none.

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
  """Returns a name such as '/device:CPU:1', in whichever form it is given."""
  try:
    spec = tf.DeviceSpec.from_string(name)
  except (AttributeError, ValueError) as error:
    raise ValueError(
        f"devices must hold names such as 'CPU:1', found {name!r}."
    ) from error
  return f'/device:{spec.device_type}:{spec.device_index or 0}'
