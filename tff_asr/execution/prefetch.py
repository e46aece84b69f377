"""Reads the data of the next clients while the present ones train.

A client's datasets (`client_datasets`) are drained into memory in a thread, and
the client's work gets the same datasets out of memory: the same elements in the
same order. A minute of int16 audio takes 2 MB; of a client with more than
`MAX_BYTES` nothing is kept, and its work reads it as it goes. The clients read
last stay in memory for later rounds (`client_cache`).
"""

from collections.abc import Callable, Hashable, Sequence
from concurrent import futures
import threading

import tensorflow as tf

from tff_asr.execution import client_datasets
from tff_asr.execution import graph
from tff_asr.execution import client_cache

MAX_BYTES = 2**30
# Counted for each element beside its bytes: many small ones take time, too.
_ELEMENT_BYTES = 4096


class Reader:
  """Reads clients' data in threads of its own; to be closed."""

  def __init__(
      self,
      read: graph.Function | None,
      *,
      elements: Sequence[Sequence[tf.TensorSpec]],
      get_client: Callable[[Hashable], Sequence[tf.Tensor]],
      num_threads: int,
      max_bytes: int = MAX_BYTES,
      kept: client_cache.Part | None = None,
  ):
    """Prepares to read; starts no thread yet.

    Args:
      read: a client's flat values to its datasets; None makes none.
      elements: flat specs of each dataset's elements.
      get_client: the flat values of a client by its key.
      num_threads: how many clients are read at once.
      max_bytes: what is kept of a client at most.
      kept: clients that need not be read again; None keeps none.
    """
    self._read = read
    self._elements = elements
    self._get_client = get_client
    self._max_bytes = max_bytes
    self._kept = kept or client_cache.KeptClients(max_bytes=0).part()
    self._threads = futures.ThreadPoolExecutor(
        num_threads, thread_name_prefix='read clients'
    )
    self._started = {}
    self._taken = set()
    self._lock = threading.Lock()
    self._closed = threading.Event()

  def start(self, key: Hashable) -> None:
    """Begins to read a client, unless it was begun or taken before."""
    if self._read is None:
      return
    with self._lock:
      if key not in self._started and key not in self._taken:
        self._started[key] = self._threads.submit(self._read_client, key)

  def take(self, key: Hashable) -> list[tf.Tensor]:
    """Returns a client's datasets, variants, when they are read.

    Raises:
      Exception: whatever reading the client raised.
    """
    with self._lock:
      self._taken.add(key)
      reading = self._started.pop(key, None)
    # Not begun: whoever takes it reads it, and no thread has to be free.
    return self._read_client(key) if reading is None else reading.result()

  def close(self, *, wait: bool = True) -> None:
    """Ends all reading; by default waits until it has ended."""
    self._closed.set()
    self._threads.shutdown(wait=wait, cancel_futures=True)

  def _read_client(self, key: Hashable) -> list[tf.Tensor]:
    if self._read is None:
      return []
    values = self._get_client(key)
    name = client_cache.key_of(values)
    datasets = self._kept.get(name)
    if datasets is not None:
      return datasets
    with tf.device('/device:CPU:0'):
      read = self._read(*values)
      pairs = [
          self._cache(dataset, specs)
          for dataset, specs in zip(read, self._elements)
      ]
    cached, sizes = zip(*pairs)
    if all(new is not None for new in cached):
      self._kept.put(name, list(cached), sum(sizes))
    return [old if new is None else new for old, new in zip(read, cached)]

  def _cache(
      self, dataset: tf.Tensor, specs: Sequence[tf.TensorSpec]
  ) -> tuple[tf.Tensor | None, int]:
    """The dataset in memory, or None if it is too large for that; its bytes."""
    # The cache lives as long as the dataset; `Dataset.cache` would make one
    # for each iterator.
    cache, _ = tf.raw_ops.AnonymousMemoryCache()
    cached = tf.raw_ops.CacheDatasetV2(
        input_dataset=dataset,
        filename='',
        cache=cache,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    elements = tf.data.experimental.from_variant(cached, tuple(specs))
    # Rewriting the graph of a dataset takes longer than reading a client.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    num_bytes = 0
    for element in elements.with_options(options):
      num_bytes += _ELEMENT_BYTES + sum(map(_count_bytes, element))
      if num_bytes > self._max_bytes or self._closed.is_set():
        return None, num_bytes
    return cached, num_bytes


def _count_bytes(tensor: tf.Tensor) -> int:
  """Bytes of a tensor's values; 0 for those of variants, which do not tell."""
  if tensor.dtype == tf.string:
    return int(tf.reduce_sum(tf.strings.length(tensor)))
  if tensor.dtype == tf.variant:
    return 0
  return int(tf.size(tensor)) * tensor.dtype.size
