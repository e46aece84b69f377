"""Reader of the next clients' datasets while others train.

A thread drains a client's datasets (`client_datasets`) into memory. The
client's work then gets the same elements, in the same order, from memory. Of a
corpus of shards these are the places of records, some bytes each, and the work
reads the audio. Of data in memory they are the utterances: a minute of int16
audio takes 2 MB. A dataset of more than `MAX_CLIENT_BYTES` is not kept: the
work reads it as it goes.

In a simulation clients come again, so each process caches the most recent
clients, up to `MAX_CACHE_BYTES`. The key is the computation and the client's
values (its id, as a rule). They determine the datasets, because
`client_datasets` splits off no others. All computations of a process share
`CLIENT_CACHE`.
"""

import collections
from collections.abc import Callable, Hashable, Sequence
from concurrent import futures
import functools
import threading
from typing import Any

import tensorflow as tf

from tff_asr.execution import graph

MAX_CLIENT_BYTES = 2**30
MAX_CACHE_BYTES = 2**29
# Added to the bytes of each element, because many small ones take time, too.
_ELEMENT_BYTES = 4096
# Without a look at whether the reader is closed.
ELEMENTS_AT_ONCE = 64


class ClientCache:
  """The most recent clients' datasets, up to so many bytes; thread-safe."""

  def __init__(self, max_bytes: int = MAX_CACHE_BYTES):
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._kept = collections.OrderedDict()
    self._lock = threading.Lock()

  def clear(self) -> None:
    """Forgets all datasets."""
    with self._lock:
      self._kept.clear()
      self._num_bytes = 0

  def get(self, key: Hashable) -> list[tf.Tensor] | None:
    """Returns the datasets, variants, of a key; None: there are none."""
    with self._lock:
      if key not in self._kept:
        return None
      self._kept.move_to_end(key)
      return self._kept[key][0]

  def put(
      self, key: Hashable, datasets: list[tf.Tensor], num_bytes: int
  ) -> None:
    """Keeps a client's datasets, unless they are too large.

    Args:
      key: of the client.
      datasets: variants.
      num_bytes: that their elements take.
    """
    with self._lock:
      # A key may be there already: two threads read the client at once.
      if num_bytes > self._max_bytes or key in self._kept:
        return
      self._kept[key] = datasets, num_bytes
      self._num_bytes += num_bytes
      while self._num_bytes > self._max_bytes:
        _, (_, freed) = self._kept.popitem(last=False)
        self._num_bytes -= freed


CLIENT_CACHE = ClientCache()


def key_of(
    computation: Hashable, values: Sequence[tf.Tensor]
) -> Hashable | None:
  """A client's key; None if its values are not scalars (but data)."""
  if any(
      value.dtype in (tf.variant, tf.resource) or value.shape.rank != 0
      for value in values
  ):
    return None
  return computation, *((value.dtype.name, value.numpy()) for value in values)


class Reader:
  """Reads clients' data in threads of its own; the caller closes it."""

  def __init__(
      self,
      read: graph.Function | None,
      *,
      elements: Sequence[Sequence[tf.TensorSpec]],
      get_client: Callable[[Hashable], Sequence[tf.Tensor]],
      num_threads: int,
      computation: Hashable,
      cache: ClientCache = CLIENT_CACHE,
      max_bytes: int = MAX_CLIENT_BYTES,
  ):
    """Prepares to read; starts no thread yet.

    Args:
      read: makes a client's datasets from its flat values; None: no datasets.
      elements: flat specs of each dataset's elements.
      get_client: the flat values of a client by its key.
      num_threads: how many clients are read at once.
      computation: the computation's key in `cache`.
      cache: keeps clients for later rounds.
      max_bytes: the largest client that is read into memory.
    """
    self._read = read
    self._elements = elements
    self._get_client = get_client
    self._max_bytes = max_bytes
    self._computation = computation
    self._cache = cache
    self._threads = futures.ThreadPoolExecutor(
        num_threads, thread_name_prefix='read clients'
    )
    self._started = {}
    self._taken = set()
    self._lock = threading.Lock()
    self._closed = threading.Event()

  def start(self, key: Hashable) -> None:
    """Begins to read a client, unless it was begun or taken before."""
    with self._lock:
      if self._read and key not in self._started and key not in self._taken:
        self._started[key] = self._threads.submit(self._read_client, key)

  def take(self, key: Hashable) -> list[tf.Tensor]:
    """Returns a client's datasets, variants, when they are read.

    Raises:
      Exception: whatever reading the client raised.
    """
    with self._lock:
      self._taken.add(key)
      reading = self._started.pop(key, None)
    # If reading was not started, the caller reads: no thread need be free.
    return self._read_client(key) if reading is None else reading.result()

  def close(self, *, wait: bool = True) -> None:
    """Ends all reading; by default waits until it has ended."""
    self._closed.set()
    self._threads.shutdown(wait=wait, cancel_futures=True)

  def _read_client(self, key: Hashable) -> list[tf.Tensor]:
    if self._read is None:
      return []
    values = self._get_client(key)
    name = key_of(self._computation, values)
    datasets = self._cache.get(name)
    if datasets is not None:
      return datasets
    with tf.device('/device:CPU:0'):
      read = self._read(*values)
      cached, sizes = zip(*map(self._drain, read, self._elements))
    if name is not None and all(new is not None for new in cached):
      self._cache.put(name, list(cached), sum(sizes))
    return [old if new is None else new for old, new in zip(read, cached)]

  def _drain(
      self, dataset: tf.Tensor, specs: Sequence[tf.TensorSpec]
  ) -> tuple[tf.Tensor | None, int]:
    """The dataset in memory, or None if it is too large for that; its bytes."""
    # This cache lives as long as the dataset. `Dataset.cache` would make a new
    # one for each iterator.
    cache, _ = tf.raw_ops.AnonymousMemoryCache()
    cached = tf.raw_ops.CacheDatasetV2(
        input_dataset=dataset,
        filename='',
        cache=cache,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    elements = tf.data.experimental.from_variant(cached, tuple(specs))
    # Optimizing a dataset's graph takes longer than reading a client.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    elements = elements.with_options(options)
    are_scalars = all(
        spec.shape.rank == 0 and spec.dtype != tf.variant for spec in specs
    )
    if are_scalars:  # Such as places of records: many together.
      elements = elements.batch(ELEMENTS_AT_ONCE)
    iterator = iter(elements)
    drain = _build_drain(elements.element_spec, is_batched=are_scalars)
    num_bytes, is_done = tf.constant(0, tf.int64), False
    while not is_done:
      num_bytes, is_done = drain(
          iterator, num_bytes, tf.constant(self._max_bytes, tf.int64)
      )
      if num_bytes > self._max_bytes or self._closed.is_set():
        return None, int(num_bytes)
    return cached, int(num_bytes)


@functools.lru_cache(maxsize=32)
def _build_drain(
    specs: tuple[tf.TensorSpec, ...], *, is_batched: bool
) -> Callable[..., Any]:
  """Returns what passes over elements and counts their bytes, in the graph.

  So no thread needs Python's lock for an element. A call ends after
  `ELEMENTS_AT_ONCE`, so that a closed reader ends.

  Args:
    specs: The flat specs of what an iterator gives.
    is_batched: Whether that is many elements, or one.
  """

  @tf.autograph.experimental.do_not_convert
  def drain(iterator, num_bytes, max_bytes):
    def count(number, num_bytes, _):
      element = iterator.get_next_as_optional()


      def measure():
        tensors = element.get_value()
        size = tf.size(tensors[0]) if is_batched else 1
        return size, _count_bytes(tensors, size)

      size, added = tf.cond(
          element.has_value(), measure, lambda: (0, tf.zeros([], tf.int64))
      )
      return number + size, num_bytes + added, ~element.has_value()

    with tf.device('/device:CPU:0'):
      _, num_bytes, is_done = tf.while_loop(
          lambda number, num_bytes, is_done: (
              (number < ELEMENTS_AT_ONCE)
              & (num_bytes <= max_bytes)
              & ~is_done
          ),
          count,
          (0, num_bytes, False),
          parallel_iterations=1,
      )
    return num_bytes, is_done

  return tf.function(
      drain,
      input_signature=[
          tf.data.IteratorSpec(specs),
          tf.TensorSpec([], tf.int64),
          tf.TensorSpec([], tf.int64),
      ],
  )


def _count_bytes(
    tensors: Sequence[tf.Tensor], num_elements: tf.Tensor
) -> tf.Tensor:
  """Bytes of elements, int64 []; a variant, whose size is unknown, has 0."""
  total = _ELEMENT_BYTES * tf.cast(num_elements, tf.int64)
  for tensor in tensors:
    if tensor.dtype == tf.string:
      lengths = tf.strings.length(tensor)
      total += tf.reduce_sum(tf.cast(lengths, tf.int64))
    elif tensor.dtype != tf.variant:
      total += tf.size(tensor, tf.int64) * tensor.dtype.size
  return total
