"""Ray worker: a process that trains clients on its devices, as a Ray actor.

It trains through a `client_trainer.ClientTrainer`: its clients' sum stays on
its devices until the driver flushes it.

The worker handles flat tensors only, so it needs none of the classes that the
computation's types name. Programs arrive as bytes; clients and the broadcast as
`pack` makes them; sums leave as `ray_sums` packs them.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import hashlib
from importlib import metadata
import os
import pathlib
import pickle
import pkgutil
import platform
import threading
import time
from typing import NamedTuple

import numpy as np
import ray
import tensorflow as tf

from tff_asr.execution import client_trainer
from tff_asr.execution import devices
from tff_asr.execution import ray_sums
from tff_asr.execution import scheduler

# A run uses few computations at a time: a round, an evaluation.
MAX_LOADED = 8

# Large enough to go through the object store.
_PING_BYTES = 2**17

# A dataset with random state is sent without that state: each process draws its
# own numbers, just as each call of a computation does.
_IGNORE_STATE = 1  # ExternalStatePolicy.POLICY_IGNORE


class _DatasetGraph(NamedTuple):
  """A dataset as a serialized `GraphDef`."""

  graph_def: bytes


Packed = np.ndarray | np.generic | bytes | _DatasetGraph


class WorkerSettings(NamedTuple):
  """What a worker gets when it starts.

  Attributes:
    folder: the driver's working folder, where relative paths start.
    num_threads: threads of each op; the bits of a result depend on them.
    op_libraries: names for `pkgutil.resolve_name`, each of which registers
      TensorFlow ops when it is resolved.
    required_paths: files and folders that a worker must find.
    expected: `describe_node` of the driver.
    clients_per_device: see `context.Settings`.
    gpu_memory_mb: see `context.Settings`.
  """

  folder: str
  num_threads: int
  op_libraries: tuple[str, ...]
  required_paths: tuple[str, ...]
  expected: dict[str, str]
  clients_per_device: int
  gpu_memory_mb: int | None


class WorkerDescription(NamedTuple):
  """A worker's description, returned when it has started.

  Attributes:
    node: its machine, for messages.
    devices: the device of each of its threads.
  """

  node: str
  devices: tuple[str, ...]


class RoundInputs(NamedTuple):
  """What a worker must look up for a round, and keep until the round ends.

  Attributes:
    number: the round's number; a later round has a larger one.
    computation: the number of the computation, which names the programs.
    programs: a list with the reference to the `compiler.ClientPrograms`.
    broadcast: a list with the reference to the packed broadcast.
    leaves_out: whether training continues after a client has failed.
  """

  # Lists keep Ray from replacing the references by their values in each call.
  number: int
  computation: int
  programs: list[ray.ObjectRef]
  broadcast: list[ray.ObjectRef]
  leaves_out: bool


class GroupInputs(NamedTuple):
  """A client group with the values of its clients.

  Attributes:
    positions: each client's position in the cohort, in order of training.
    clients: each client's packed values.
  """

  positions: tuple[int, ...]
  clients: list[list[Packed]]


class TrainReport(NamedTuple):
  """Report on the training of client groups.

  Attributes:
    errors: positions of the clients that failed, and their errors.
    ordered: for each group its packed sums that depend on the order of groups;
      None if a group ended before its last client.
    seconds: what the groups took.
  """

  errors: list[tuple[int, Exception]]
  ordered: list[list[Packed]] | None
  seconds: float


class RayWorker:
  """Trains client groups into a running sum, which it returns on request.

  It keeps the loaded programs of the last few computations, and the rounds that
  have not ended. Several threads may train at once.
  """

  def __init__(self):
    """Starts without a device."""
    self._devices = devices.DeviceSet(('/device:CPU:0',), 1)
    self._loaded = {}  # `client_trainer.LoadedClientPrograms`, by computation.
    self._rounds = {}  # Trainer and clients' values, by round number.
    # Bounded: late tasks of a round arrive at most a few rounds later.
    self._ended = collections.deque(maxlen=100)
    # Held while programs load, so that threads do not load them twice.
    self._lock = threading.Lock()

  def start(self, settings: WorkerSettings) -> WorkerDescription:
    """Prepares the process.

    Raises:
      ValueError: the software is not the driver's, a path cannot be read or
        holds other files than the driver's, a library is missing, or TensorFlow
        finds no GPU where Ray gave one. The message names the node.
    """
    node = f'{os.uname().nodename} ({ray.util.get_node_ip_address()})'
    # Threads of an op decide how it splits sums, and so the bits.
    tf.config.threading.set_intra_op_parallelism_threads(settings.num_threads)
    if not ray.get_gpu_ids():
      # Ray gave this actor no GPU, so it must not use those of the machine.
      tf.config.set_visible_devices([], 'GPU')
    # Paths in the programs may be relative.
    if os.path.isdir(settings.folder):
      os.chdir(settings.folder)
    check_node(
        node,
        expected=settings.expected,
        required_paths=settings.required_paths,
        op_libraries=settings.op_libraries,
    )
    self._devices = devices.choose(
        None,
        clients_per_device=settings.clients_per_device,
        gpu_memory_mb=settings.gpu_memory_mb,
    )
    if ray.get_gpu_ids() and 'GPU' not in self._devices.devices[0]:
      raise ValueError(
          f'TensorFlow finds no GPU on node {node}, where Ray has one; install '
          'its CUDA libraries there, or start Ray with --num-gpus=0.'
      )
    return WorkerDescription(
        node, self._devices.devices * self._devices.clients_per_device
    )

  def ping(self) -> None:
    """Returns if the worker and its machine are there, also during training."""
    # A process survives its machine's Ray by seconds. It would answer, but
    # without the object store it can do nothing.
    ray.get(ray.put(bytes(_PING_BYTES)))

  def end_round(self, number: int) -> None:
    """Ends the round after the clients in progress, and frees its values."""
    with self._lock:
      self._ended.append(number)
      self._rounds.pop(number, None)

  def train(
      self, key: RoundInputs, thread: int, groups: Sequence[GroupInputs]
  ) -> TrainReport:
    """Trains groups one after another, and adds them to the running sum.

    Args:
      key: of the round.
      thread: number of the calling thread among those of this worker.
      groups: client groups with their values.
    """
    begun_sec = time.monotonic()
    monitor = _ClientGroupMonitor(key, self._ended)
    ordered = []
    try:
      trainer, values = self._begin_round(key)
      for positions, clients in groups:
        values |= zip(positions, map(unpack, clients), strict=True)
        ordered.append(
            pack(trainer.train(thread, positions, monitor=monitor))
        )
        for position in positions:
          del values[position]  # A client's data may be large.
    except scheduler.RoundStopped:
      ordered = None
    return TrainReport(
        monitor.errors, ordered, time.monotonic() - begun_sec
    )

  def flush(self, key: RoundInputs) -> tuple[int, ray_sums.PackedSum]:
    """Returns the running sum's bytes, and the sum; begins an empty one."""
    # The trainer leaves the sum of all devices on the first.
    with tf.device(self._devices.devices[0]):
      trainer, _ = self._begin_round(key)
      packed = ray_sums.pack([leaf.numpy() for leaf in trainer.flush()])
      return packed.num_bytes, packed

  def _begin_round(
      self, key: RoundInputs
  ) -> tuple[client_trainer.ClientTrainer, dict[int, list[tf.Tensor]]]:
    """The round's trainer, and the values of clients in progress.

    Raises:
      scheduler.RoundStopped: the round has ended.
    """
    with self._lock:
      if key.number in self._ended:  # Tasks may arrive after the round's end.
        raise scheduler.RoundStopped()
      if key.number not in self._rounds:
        values = {}
        trainer = client_trainer.ClientTrainer(
            self._load(key),
            devices=self._devices.devices,
            clients_per_device=self._devices.clients_per_device,
            broadcast=unpack(ray.get(key.broadcast[0])),
            get_client=values.get,
        )
        self._rounds[key.number] = trainer, values
      return self._rounds[key.number]

  def _load(self, key: RoundInputs) -> client_trainer.LoadedClientPrograms:
    """The round's programs, loaded at the first call."""
    if key.computation not in self._loaded:
      if len(self._loaded) == MAX_LOADED:
        self._loaded.clear()
      self._loaded[key.computation] = client_trainer.load_programs(
          ray.get(key.programs[0])
      )
    return self._loaded[key.computation]


class _ClientGroupMonitor:
  """The `client_trainer.ClientMonitor` of one call of `train`."""

  def __init__(self, key: RoundInputs, ended: Sequence[int]):
    self._key = key
    self._ended = ended
    self.errors = []

  def begin(self, position: int, device: str) -> None:
    del position, device
    if self._key.number in self._ended:
      raise scheduler.RoundStopped()

  def fail(self, position: int, error: Exception, device: str) -> None:
    del device
    self.errors.append((position, _as_picklable(error)))
    if not self._key.leaves_out:
      raise scheduler.RoundStopped()

  def end(self, position: int) -> None:
    del position  # Only failures are reported.


def count_bytes(values: Sequence[Packed]) -> int:
  """Returns the bytes of packed tensors."""
  return sum(
      len(value.graph_def) if isinstance(value, _DatasetGraph) else value.nbytes
      for value in values
      if not isinstance(value, (bytes, str))
  )


def describe_node(required_paths: Iterable[str]) -> dict[str, str]:
  """Returns what the bits of a result depend on, by name.

  Args:
    required_paths: files and folders, see `path_digest`.

  Raises:
    OSError: a path is missing or cannot be read.
  """
  package = pathlib.Path(__file__).parents[1]
  return {
      "this project's sources": path_digest(package, '*.py')[:12],
      'Python': platform.python_version(),
      **{
          name: metadata.version(name)
          for name in ('tensorflow', 'tensorflow-federated', 'ray', 'numpy')
      },
      **{f'files at {path!r}': path_digest(path) for path in required_paths},
  }


def check_node(
    node: str,
    *,
    expected: Mapping[str, str],
    required_paths: Sequence[str],
    op_libraries: Sequence[str],
) -> None:
  """Checks that a node has what the programs need, and registers their ops.

  Args:
    node: its name, for messages.
    expected: `describe_node` of the driver.
    required_paths: see `WorkerSettings`.
    op_libraries: see `WorkerSettings`.

  Raises:
    ValueError: naming the node and all that differs or is missing.
  """
  try:
    found = describe_node(required_paths)
  except OSError as error:
    raise ValueError(
        f'Node {node} cannot read {error.filename!r}, which required_paths '
        'names; put the shards under this path on every machine.'
    ) from error
  # Other sources, versions or files could give other bits, or fail half-way.
  different = [
      f'{name} {found[name]} instead of {expected.get(name)}'
      for name in found
      if found[name] != expected.get(name)
  ]
  if different:
    raise ValueError(
        f'Node {node} differs from the program: {", ".join(different)}; put '
        'the same copy of this project and of the corpora there, and what '
        'requirements.txt and requirements-ray.txt pin.'
    )
  for name in op_libraries:
    try:
      pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
      raise ValueError(
          f'Node {node} cannot import {name!r}, which op_libraries names: '
          f'{error}; install requirements.txt there.'
      ) from error


def path_digest(path: str | os.PathLike[str], pattern: str = '*') -> str:
  """Returns a digest of a file, or of the files in a folder.

  It covers names, sizes and the content of .json and .py files.

  Args:
    path: the file or folder.
    pattern: of the names of files in the folder.

  Raises:
    OSError: a file is missing or cannot be read.
  """
  root = pathlib.Path(path)
  # Sorted: the order of files in a folder differs between machines.
  paths = sorted(root.rglob(pattern)) if root.is_dir() else [root]
  found = hashlib.sha256()
  for file_path in paths:
    if file_path.is_dir():
      continue
    # A corpus's .json file holds the checksums of its shards, so a digest of it
    # differs between versions of a corpus. One byte of a shard shows that the
    # shard can be read.
    is_text = file_path.suffix in ('.json', '.py')
    with open(file_path, 'rb') as file:
      content = file.read(-1 if is_text else 1)
      size = os.fstat(file.fileno()).st_size
    # The size keeps two files from hashing like one with the same bytes.
    name = file_path.relative_to(root).as_posix()
    found.update(f'{name}\0{size}\0'.encode() + content)
  return found.hexdigest()


def pack(
    tensors: Sequence[tf.Tensor | np.ndarray | np.generic | bytes],
) -> list[Packed]:
  """Returns the tensors as values that pickle; NumPy's values as they are.

  A numeric tensor becomes a NumPy array, which Ray passes through shared
  memory; a string tensor an array of bytes; a dataset its serialized graph.

  Raises:
    tf.errors.OpError: a dataset that has no serialized form, such as one of a
      Python generator.
  """
  return [_pack_one(tensor) for tensor in tensors]


def _pack_one(tensor: tf.Tensor | np.ndarray | np.generic | bytes) -> Packed:
  if not isinstance(tensor, tf.Tensor):
    return tensor
  if tensor.dtype == tf.variant:
    return _pack_dataset(tensor)
  return tensor.numpy()


def unpack(values: Sequence[Packed]) -> list[tf.Tensor]:
  """Returns the tensors that were packed, on the current device."""
  return [
      _unpack_dataset(value)
      if isinstance(value, _DatasetGraph)
      else tf.convert_to_tensor(value)
      for value in values
  ]


def _pack_dataset(variant: tf.Tensor) -> _DatasetGraph:
  graph = tf.raw_ops.DatasetToGraphV2(
      input_dataset=variant,
      external_state_policy=_IGNORE_STATE,
      # The worker's devices may have other names.
      strip_device_assignment=True,
  )
  return _DatasetGraph(graph.numpy())


def _unpack_dataset(value: _DatasetGraph) -> tf.Tensor:
  # Only the CPU has kernels for datasets.
  with tf.device('/device:CPU:0'):
    return tf.raw_ops.DatasetFromGraph(graph_def=value.graph_def)


def _as_picklable(error: Exception) -> Exception:
  """Returns the error, or one with its text if it does not pickle."""
  try:
    # Loaded, too: exceptions with required arguments pickle and do not load.
    pickle.loads(pickle.dumps(error))
  except Exception:  # pylint: disable=broad-exception-caught
    return RuntimeError(f'{type(error).__name__}: {error}')
  return error
