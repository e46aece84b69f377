"""Ray worker: a process that trains clients on its devices, as a Ray actor.

It trains through a `round_worker.RoundWorker`: its clients' sum stays on its
devices until the driver asks for it.

The worker handles flat tensors only. Programs arrive as bytes; clients and the
broadcast arrive as `pack` makes them. So the worker needs none of the classes
that the computation's types name. A numeric tensor travels as a NumPy array,
which Ray passes through shared memory; a string tensor as an array of bytes; a
dataset (a variant tensor) as its serialized graph. Sums of int64 travel as
int32 where they fit. Sums and the broadcast travel in parts of about the same
size.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
import hashlib
from importlib import metadata
import itertools
import os
import pathlib
import pickle
import pkgutil
import platform
import random
import threading
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_asr.execution import devices
from tff_asr.execution import round_worker
from tff_asr.execution import scheduler

# A run uses few computations at a time: a round, an evaluation.
MAX_LOADED = 8

# Too large to travel beside the object store.
_PING_BYTES = 2**17

# A dataset with random state is sent without that state: each process draws its
# own numbers, just as each call of a computation does.
_IGNORE_STATE = 1  # ExternalStatePolicy.POLICY_IGNORE


class RoundKey(NamedTuple):
  """What a worker must look up for a round, and keep until the round ends.

  Attributes:
    number: the round's number, rising.
    computation: the number of the computation, which names the programs.
    programs: a list with the reference to the `compiler.ClientPrograms`.
    broadcast: references to the packed broadcast's parts.
    leaves_out: whether a block goes on after a client failed.
  """

  # Lists keep Ray from replacing the references by their values in each call.
  number: int
  computation: int
  programs: list[Any]
  broadcast: list[Any]
  leaves_out: bool


class BlockReport(NamedTuple):
  """Report on the work on a block.

  Attributes:
    errors: positions of the clients that failed, and their errors.
    ordered: the packed sums that depend on the order of blocks; None if the
      block ended before its last client.
  """

  errors: list[tuple[int, Exception]]
  ordered: list[Any] | None


class RayWorker:
  """Trains blocks of clients into a running sum, and merges such sums.

  It keeps the loaded functions of the last few computations, and the rounds
  that have not ended. Several threads may train at once. `get` turns a
  reference into its value; in an actor it is `ray.get`.
  """

  def __init__(self, get: Callable[[Any], Any] | None = None):
    self._get = get or _import_ray().get
    self._places = devices.Places(('/device:CPU:0',), 1, False)
    self._place = ''
    self._loaded = {}
    self._rounds = {}  # By number: their `round_worker.RoundWorker`, clients.
    self._ended = collections.deque(maxlen=100)
    self._lock = threading.Lock()

  def start(
      self,
      *,
      folder: str,
      software: Mapping[str, str],
      num_threads: int,
      op_libraries: Sequence[str],
      required_files: Mapping[str, str],
      **settings: Any,
  ) -> tuple[list[str], str, str]:
    """Prepares the process; returns its threads' devices, its node and its id.

    Args:
      folder: the driver's working folder, where relative paths start.
      software: `find_software` of the driver.
      num_threads: threads of each op; the bits of a result depend on them.
      op_libraries: names for `pkgutil.resolve_name`, each of which registers
        TensorFlow ops when it is resolved.
      required_files: paths of files and folders, and `path_digest` of
        each in the driver.
      **settings: of `devices.place`.

    Raises:
      ValueError: the software is not the driver's, a path cannot be read or
        holds other files than the driver's, a library is missing, or TensorFlow
        sees no GPU where Ray gave one. The message names the node.
    """
    ray = _import_ray()
    node = f'{os.uname().nodename} ({ray.util.get_node_ip_address()})'
    check_software(node, expected=software)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    if not ray.get_gpu_ids():
      tf.config.set_visible_devices([], 'GPU')
    if os.path.isdir(folder):
      os.chdir(folder)
    check_node(node, required_files=required_files, op_libraries=op_libraries)
    self._places = devices.place(None, **settings)
    if ray.get_gpu_ids() and 'GPU' not in self._places.devices[0]:
      raise ValueError(
          f'TensorFlow sees no GPU on node {node}, where Ray has one; install '
          'its CUDA libraries there, or start Ray with --num-gpus=0.'
      )
    self._place = ray.get_runtime_context().get_node_id()
    num_lanes = self._places.clients_per_device
    return self._places.devices * num_lanes, node, self._place

  def ping(self) -> None:
    """Returns if the worker and its machine are there, also during a block.

    A process lives on for seconds when its machine's Ray is gone. It would
    answer, but without the object store it can do nothing.
    """
    ray = _import_ray()
    ray.get(ray.put(bytes(_PING_BYTES)))

  def end_round(self, number: int) -> None:
    """Ends the round after the clients now in work, and frees its values."""
    with self._lock:
      self._ended.append(number)
      self._rounds.pop(number, None)

  def train(
      self,
      key: RoundKey,
      thread: int,
      positions: Sequence[int],
      clients: Sequence[Sequence[Any]],
  ) -> BlockReport:
    """Trains clients one after another, and adds them to the running sum.

    Args:
      key: of the round.
      thread: number of the calling thread among those of this worker.
      positions: each client's place in the cohort.
      clients: each client's packed values.
    """
    monitor = _BlockMonitor(key, self._ended)
    try:
      worker, values = self._begin_round(key)
      values |= zip(positions, map(unpack, clients))
      ordered = worker.train(thread, positions, monitor=monitor)
    except scheduler.Stopped:
      return monitor.report(None)
    for position in positions:
      del values[position]
    return monitor.report(pack(ordered))

  def hand_over(self, key: RoundKey, num_parts: int) -> list[Any]:
    """Returns the running sum's bytes, and its parts; begins a new one."""
    with tf.device(self._places.devices[0]):
      worker, _ = self._begin_round(key)
      leaves = worker.hand_over()
      parts = [
          {number: _pack_sum(leaves[number]) for number in numbers}
          for numbers in cut(leaves, num_parts)
      ]
      return [sum(map(_count_part, parts)), *parts]

  def merge(self, parts: Sequence[Any]) -> tuple[int, dict[int, Any]]:
    """Returns the bytes of a part of several sums' sum, and this part.

    Args:
      parts: a reference to the part of each sum.

    Raises:
      SumLostError: one of them was lost.
    """
    with tf.device(self._places.devices[0]):
      total = add(parts, get=self._get)
      part = {number: _pack_sum(leaf) for number, leaf in total.items()}
      return _count_part(part), part

  def _begin_round(
      self, key: RoundKey
  ) -> tuple[round_worker.RoundWorker, dict[int, list[tf.Tensor]]]:
    """This worker's part of a round, and the values of clients in work.

    Raises:
      scheduler.Stopped: the round has ended.
    """
    with self._lock:
      if key.number in self._ended:
        raise scheduler.Stopped()
      if key.number not in self._rounds:
        functions = self._load(key)
        values = {}
        self._rounds[key.number] = round_worker.RoundWorker(
            functions,
            **self._places._asdict(),
            broadcast=self._get_broadcast(key),
            get_client=values.get,
        ), values
      return self._rounds[key.number]

  def _get_broadcast(self, key: RoundKey) -> list[tf.Tensor]:
    """The broadcast of a round.

    Each machine fetches its parts in another order. So it finds most of them at
    other machines, from any of which Ray fetches, not at the driver's alone.
    """
    references = list(key.broadcast)
    random.Random(self._place).shuffle(references)
    packed = {}
    for reference in references:
      packed |= self._get(reference)
    return unpack([packed[number] for number in range(len(packed))])

  def _load(self, key: RoundKey) -> round_worker.ClientFunctions:
    """The functions of the round's computation, loaded at the first call."""
    functions = self._loaded.pop(key.computation, None)
    if functions is None:
      functions = round_worker.ClientFunctions(self._get(key.programs[0]))
    # The order of the dict is the order of use: this one is now the last.
    self._loaded[key.computation] = functions
    while len(self._loaded) > MAX_LOADED:
      del self._loaded[next(iter(self._loaded))]
    return functions


class _BlockMonitor:
  """A `round_worker.Monitor` of one block, for the report to the driver."""

  def __init__(self, key: RoundKey, ended: Sequence[int]):
    self._key = key
    self._ended = ended
    self._errors = []

  def begin(self, position: int, device: str) -> None:
    del position, device
    if self._key.number in self._ended:
      raise scheduler.Stopped()

  def fail(self, position: int, error: Exception, device: str) -> None:
    del device
    self._errors.append((position, _as_picklable(error)))
    if not self._key.leaves_out:
      raise scheduler.Stopped()

  def end(self, position: int) -> None:
    del position  # A report has those only that failed.

  def report(self, ordered: list[Any] | None) -> BlockReport:
    return BlockReport(self._errors, ordered)


class SumLostError(Exception):
  """A part of a sum was lost; `index` says which of those to be added."""

  @property
  def index(self) -> int:
    return self.args[0]


def add(
    parts: Sequence[Any], *, get: Callable[[Any], Any]
) -> dict[int, tf.Tensor]:
  """Returns the sum of the same part of several sums: leaves by number.

  Args:
    parts: references.
    get: turns a reference into its value.

  Raises:
    SumLostError: one of them was lost.
  """
  total = {}
  # The next part is fetched while one is added.
  with futures.ThreadPoolExecutor(1) as threads:
    values = threads.map(get, parts)
    for index, _ in enumerate(parts):
      try:
        part = next(values)
      except _import_ray().exceptions.ObjectLostError as error:
        raise SumLostError(index) from error
      for number, leaf in part.items():
        leaf = _unpack_sum(leaf)
        total[number] = total[number] + leaf if index else leaf
  return total


def join(parts: Iterable[Mapping[int, tf.Tensor]]) -> list[tf.Tensor]:
  """Returns the leaves of a sum's parts."""
  leaves = dict(itertools.chain(*(part.items() for part in parts)))
  return [leaves[number] for number in range(len(leaves))]


def cut(leaves: Sequence[tf.Tensor], num_parts: int) -> list[list[int]]:
  """Numbers of the leaves of each part; a function of their shapes."""
  parts = [[] for _ in range(num_parts)]
  sizes = [0] * num_parts
  counts = [leaf.shape.num_elements() for leaf in leaves]
  for number in sorted(range(len(leaves)), key=lambda n: -counts[n]):
    smallest = sizes.index(min(sizes))
    parts[smallest].append(number)
    sizes[smallest] += counts[number]
  return parts


class _Int64(NamedTuple):
  """An int64 array whose values fit into int32."""

  values: np.ndarray


def _pack_sum(leaf: tf.Tensor) -> np.ndarray | _Int64:
  if leaf.dtype == tf.int64:
    short = tf.cast(leaf, tf.int32)
    if tf.reduce_all(tf.equal(tf.cast(short, tf.int64), leaf)):
      return _Int64(short.numpy())
  return leaf.numpy()


def _unpack_sum(value: np.ndarray | _Int64) -> tf.Tensor:
  if isinstance(value, _Int64):
    return tf.cast(tf.convert_to_tensor(value.values), tf.int64)
  return tf.convert_to_tensor(value)


def _count_part(part: Mapping[int, np.ndarray | _Int64]) -> int:
  """Bytes of a part of a sum."""
  return sum(
      (leaf.values if isinstance(leaf, _Int64) else leaf).nbytes
      for leaf in part.values()
  )


def count_bytes(values: Sequence[Any]) -> int:
  """Bytes of packed tensors."""
  return sum(
      len(value.graph_def) if isinstance(value, _DatasetGraph) else value.nbytes
      for value in values
      if not isinstance(value, (bytes, str))
  )


def find_software() -> dict[str, str]:
  """What the bits of a result depend on, beside data: sources and versions."""
  package = pathlib.Path(__file__).parents[1]
  sources = hashlib.sha256()
  for path in sorted(package.rglob('*.py')):
    content = path.read_bytes()
    name = path.relative_to(package).as_posix()
    sources.update(f'{name}\0{len(content)}\0'.encode() + content)
  return {
      "this project's sources": sources.hexdigest()[:12],
      'Python': platform.python_version(),
      **{
          name: metadata.version(name)
          for name in ('tensorflow', 'tensorflow-federated', 'ray', 'numpy')
      },
  }


def check_software(node: str, *, expected: Mapping[str, str]) -> None:
  """Checks that this node has the driver's software.

  Args:
    node: its name, for messages.
    expected: `find_software` of the driver.

  Raises:
    ValueError: naming the node and all that differs.
  """
  found = find_software()
  different = [
      f'{name} {found[name]} instead of {expected[name]}'
      for name in found
      if found[name] != expected[name]
  ]
  if different:
    raise ValueError(
        f'Node {node} has other software than the program: '
        f'{", ".join(different)}; put the same copy of this project there, and '
        'what requirements.txt and requirements-ray.txt pin.'
    )


def check_node(
    node: str,
    *,
    required_files: Mapping[str, str],
    op_libraries: Sequence[str],
) -> None:
  """Checks that a node has what the programs need, and registers their ops.

  Args:
    node: its name, for messages.
    required_files: see `RayWorker.start`.
    op_libraries: see `RayWorker.start`.

  Raises:
    ValueError: naming the node and what it lacks.
  """
  found = digest_all(required_files, machine=f'Node {node}')
  for path, digest in required_files.items():
    if found[path] != digest:
      raise ValueError(
          f'Node {node} has other files at {path!r}, which required_paths '
          'names, than the program; copy the same corpus to every node.'
      )
  for name in op_libraries:
    try:
      pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
      raise ValueError(
          f'Node {node} cannot import {name!r}, which op_libraries names: '
          f'{error}; install requirements.txt there.'
      ) from error


def digest_all(paths: Iterable[str], *, machine: str) -> dict[str, str]:
  """Returns `path_digest` of each path; `machine` is for messages."""
  try:
    return {path: path_digest(path) for path in paths}
  except ValueError as error:
    raise ValueError(
        f'{machine} cannot read {error}, which required_paths names; put the '
        'shards under this path on every machine.'
    ) from error


def path_digest(path: str) -> str:
  """Returns a digest of a file, or of all files in a folder.

  It covers names, sizes and the content of .json files. A corpus's .json file
  holds the checksums of its shards, so the digest tells versions of a corpus
  apart at little cost. One byte of every other file is read.

  Args:
    path: As TensorFlow reads it.

  Raises:
    ValueError: If it is missing, a file in it cannot be read, or it is an empty
      folder, as a mount point is where nothing is mounted.
  """
  try:
    names = ['']
    if tf.io.gfile.isdir(path):
      names = sorted(
          os.path.join(folder, name)[len(path) :].lstrip('/')
          for folder, _, names in tf.io.gfile.walk(path)
          for name in names
      )
      if not names:
        raise ValueError(f'{path!r}, which is an empty folder')
    found = hashlib.sha256()
    for name in names:
      file_path = os.path.join(path, name) if name else path
      with tf.io.gfile.GFile(file_path, 'rb') as file:
        content = file.read() if name.endswith('.json') else file.read(1)
        size = file.size()
      found.update(f'{name}\0{size}\0'.encode())
      if name.endswith('.json'):
        found.update(content)
  except tf.errors.OpError as error:
    raise ValueError(f'{path!r}') from error
  return found.hexdigest()


class _DatasetGraph(NamedTuple):
  """A dataset as a serialized `GraphDef`."""

  graph_def: bytes


def pack(tensors: Sequence[tf.Tensor]) -> list[Any]:
  """Returns the tensors as values that pickle.

  Raises:
    tf.errors.OpError: a dataset that has no serialized form, such as one of a
      Python generator.
  """
  return [
      _pack_dataset(tensor) if tensor.dtype == tf.variant else tensor.numpy()
      for tensor in tensors
  ]


def unpack(values: Sequence[Any]) -> list[tf.Tensor]:
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
      strip_device_assignment=True,
  )
  return _DatasetGraph(graph.numpy())


def _unpack_dataset(value: _DatasetGraph) -> tf.Tensor:
  with tf.device('/device:CPU:0'):
    return tf.raw_ops.DatasetFromGraph(graph_def=value.graph_def)


def _as_picklable(error: Exception) -> Exception:
  """Returns the error, or one with its text if it does not pickle."""
  try:
    pickle.loads(pickle.dumps(error))
  except Exception:  # pylint: disable=broad-exception-caught
    return RuntimeError(f'{type(error).__name__}: {error}')
  return error


def _import_ray() -> Any:
  """Returns Ray. Imported late: tests of this module run without it."""
  import ray  # pylint: disable=g-import-not-at-top

  return ray
