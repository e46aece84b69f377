"""The process that trains clients on one device, as a Ray actor.

It sees flat tensors only: programs come as bytes, clients and the broadcast as
`transport` packs them, so it needs none of the classes that the computation's
types name.
"""

import collections
import contextlib
from collections.abc import Mapping, Sequence
import os
import pkgutil
import threading
import time
from typing import Any, NamedTuple

import ray
import tensorflow as tf

from tff_asr.execution import devices
from tff_asr.execution import loading
from tff_asr.execution import path_digest
from tff_asr.execution import transport

# Computations in use at a time are few: a round, an evaluation.
_MAX_LOADED = 8


class RoundKey(NamedTuple):
  """What a worker looks up and keeps during a round.

  Attributes:
    number: of the round, rising.
    computation: names the programs.
    programs: a list with the reference to the `loading.ClientPrograms`.
    broadcast: a list with the reference to the packed broadcast.
    leaves_out: whether a block goes on without the clients that failed.
  """

  # In lists, since Ray would replace the bare references of a call by their
  # values each time.
  number: int
  computation: int
  programs: list[ray.ObjectRef]
  broadcast: list[ray.ObjectRef]
  leaves_out: bool


class BlockReport(NamedTuple):
  """How the work on a block went.

  Attributes:
    intervals: for each client that is done, in order, the seconds since the
      start of the block at which it began and ended, and those for which it
      waited for its data.
    errors: positions of the clients that failed, and what with.
    is_stopped: whether the round was ended meanwhile.
  """

  intervals: list[tuple[float, float, float]]
  errors: Sequence[tuple[int, Exception]] = ()
  is_stopped: bool = False


class RayWorker:
  """Trains blocks of clients, and merges partial sums, on one device."""

  def __init__(self):
    self._loaded = {}
    self._broadcast_of = None
    self._broadcast = None
    # Rounds may overlap, so the last number is not enough.
    self._ended = collections.deque(maxlen=100)
    self._lock = threading.Lock()

  def start(
      self,
      *,
      folder: str,
      num_threads: int,
      op_libraries: Sequence[str],
      required_files: Mapping[str, str],
  ) -> str:
    """Prepares the process; returns where it runs, for messages.

    Args:
      folder: the driver's working folder, which relative paths start from.
      num_threads: of each op; the bits of a result depend on it.
      op_libraries: what registers TensorFlow ops when it is resolved, as
        `pkgutil.resolve_name` takes it.
      required_files: paths of files and folders, and `path_digest.digest` of
        each in the driver.

    Raises:
      ValueError: naming the node, a path that cannot be read or holds something
        else than the driver's, a library that is not there, or that TensorFlow
        has no GPU where Ray gave one.
    """
    node = f'{os.uname().nodename} ({ray.util.get_node_ip_address()})'
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    if not ray.get_gpu_ids():
      tf.config.set_visible_devices([], 'GPU')
    if os.path.isdir(folder):
      os.chdir(folder)
    for path, digest in required_files.items():
      _check_same(path, digest, node)
    for name in op_libraries:
      _register_ops(name, node)
    self._device = devices.find(None)[0]
    if ray.get_gpu_ids() and 'GPU' not in self._device:
      raise ValueError(
          f'TensorFlow sees no GPU on node {node}, where Ray has one; install '
          'its CUDA libraries there, or start Ray with --num-gpus=0.'
      )
    return f'{self._device} of node {node}'

  def get_process_id(self) -> int:
    return os.getpid()

  @ray.method(concurrency_group='control')
  def ping(self) -> None:
    """Returns at once, also during a block."""

  @ray.method(concurrency_group='control')
  def end_round(self, number: int) -> None:
    """Ends work on this round after the client in work; frees its values."""
    with self._lock:
      self._ended.append(number)
      if self._broadcast_of == number:
        self._broadcast_of = self._broadcast = None

  def run_block(
      self,
      key: RoundKey,
      positions: Sequence[int],
      clients: Sequence[Sequence[Any]],
  ) -> tuple[BlockReport, list[Any] | None]:
    """Trains clients one after another.

    Args:
      key: of the round.
      positions: each client's place in the cohort.
      clients: each client's packed values.

    Returns:
      How it went; and the packed sum of the clients' updates or, where nothing
      is summed, each client's packed result; None if it did not go to its end.
    """
    intervals, results, errors = [], [], []
    with tf.device(self._device):
      functions = self._load(key)
      broadcast = self._get_broadcast(key)
      accumulator = functions.zero() if functions.sums else ()
      values = dict(zip(positions, map(transport.unpack, clients)))
      reader = functions.build_reader(values.get, num_threads=1)
      block_start_sec = time.monotonic()
      with contextlib.closing(reader):
        for index, position in enumerate(positions):
          if key.number in self._ended:
            return BlockReport(intervals, is_stopped=True), None
          start_sec = ready_sec = time.monotonic()
          try:
            datasets = reader.take(position)
            for following in positions[index + 1 : index + 2]:
              reader.start(following)
            ready_sec = time.monotonic()
            outputs = functions.get_work(0)(
                *accumulator, *values[position], *broadcast, *datasets
            )
            if functions.sums:
              accumulator = outputs
            else:
              results.append(transport.pack(outputs))
          except Exception as error:  # pylint: disable=broad-exception-caught
            errors.append((position, _as_picklable(error)))
            if not key.leaves_out:
              return BlockReport(intervals, errors), None
          intervals.append((
              start_sec - block_start_sec,
              time.monotonic() - block_start_sec,
              ready_sec - start_sec,
          ))
      if functions.sums:
        results = transport.pack(accumulator)
    return BlockReport(intervals, errors), results

  def merge(
      self, key: RoundKey, parts: Sequence[ray.ObjectRef]
  ) -> tuple[int | None, list[Any] | None]:
    """Returns (None, the packed sum), or the index of a part that is lost."""
    with tf.device(self._device):
      merge = self._load(key).merge
      total = None
      for index, part in enumerate(parts):
        try:
          tensors = transport.unpack(ray.get(part))
        except ray.exceptions.ObjectLostError:
          return index, None
        total = tensors if total is None else merge(*total, *tensors)
      return None, transport.pack(total)

  def _load(self, key: RoundKey) -> loading.ClientFunctions:
    """The functions of the round's computation, loaded at the first call."""
    functions = self._loaded.pop(key.computation, None)
    if functions is None:
      functions = loading.ClientFunctions(ray.get(key.programs[0]))
    # Last in order of use.
    self._loaded[key.computation] = functions
    while len(self._loaded) > _MAX_LOADED:
      del self._loaded[next(iter(self._loaded))]
    return functions

  def _get_broadcast(self, key: RoundKey) -> list[tf.Tensor]:
    """The round's broadcast on the device, copied at the first call."""
    with self._lock:
      if self._broadcast_of == key.number:
        return self._broadcast
    broadcast = transport.unpack(ray.get(key.broadcast[0]))
    with self._lock:
      if key.number not in self._ended:
        self._broadcast_of, self._broadcast = key.number, broadcast
    return broadcast


def _check_same(path: str, digest: str, node: str) -> None:
  try:
    found = path_digest.digest(path)
  except ValueError as error:
    raise ValueError(
        f'Node {node} cannot read {error}, which required_paths names; put '
        'the shards where every node finds them under this path.'
    ) from error
  if found != digest:
    raise ValueError(
        f'Node {node} has other files at {path!r}, which required_paths names, '
        'than the program; copy the same corpus to every node.'
    )


def _register_ops(name: str, node: str) -> None:
  try:
    pkgutil.resolve_name(name)
  except (ImportError, AttributeError, ValueError) as error:
    raise ValueError(
        f'Node {node} cannot import {name!r}, which op_libraries names: '
        f'{error}; install requirements.txt there.'
    ) from error


def _as_picklable(error: Exception) -> Exception:
  """The error, or one of its words if it cannot leave this process."""
  try:
    ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
  except Exception:  # pylint: disable=broad-exception-caught
    return RuntimeError(f'{type(error).__name__}: {error}')
  return error
