r"""Opening clients of a large corpus: time and memory against the population.

    python -m benchmarks.client_index --clients=35000

Writes a corpus of so many clients (one short utterance each, ids as long as
Common Voice's), loads it in a process of its own and opens clients drawn at
random, each read to its end in a graph that is traced once, as a federated
round does. `find` is what the index has to do with it: the id is looked up and
the client's records are read. The rest of `open` is TensorFlow's, which
prepares the functions of a dataset whenever one is opened. CPU time tells what
a machine with other work beside it hides. Memory is what the process gains by
loading, over one that loads a corpus of 10 clients.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

import os
import tempfile
import time

from absl import flags
import numpy as np
import tensorflow as tf

from benchmarks import client_corpus
from benchmarks import own_process
from benchmarks import report
from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.data import records
from tff_asr.data import schema

_CLIENTS = flags.DEFINE_integer('clients', 35000, 'In the corpus.', 1)
_OPENED = flags.DEFINE_integer('opened', 500, 'Clients to open.', 1)
_FOLDER = flags.DEFINE_string(
    'folder', None, 'Open this corpus in this process and print figures.'
)

_SMALL = 10


def main(_) -> None:
  if _FOLDER.value is not None:
    print(*_open_clients(_FOLDER.value))
    return
  with tempfile.TemporaryDirectory() as root:
    small, large = (
        _write_and_measure(os.path.join(root, str(count)), count)
        for count in (_SMALL, _CLIENTS.value)
    )
  figures = {
      'clients': _CLIENTS.value,
      'load_sec': large['load_sec'],
      'open_ms_least': large['least'],
      'open_ms_median': large['median'],
      'open_ms_p99': large['p99'],
      'open_ms_max': large['max'],
      'open_cpu_ms': large['cpu'],
      'find_ms_median': large['find_median'],
      'find_ms_p99': large['find_p99'],
      'small_open_cpu_ms': small['cpu'],
      'memory_mb': large['memory_mb'] - small['memory_mb'],
      'index_mb': large['index_mb'],
  }
  report.write(
      f'{_CLIENTS.value:,} clients, {_OPENED.value} opened',
      [['figure', 'value']]
      + [[name, f'{value:,.3g}'] for name, value in figures.items()],
      figures,
  )


def _write_and_measure(folder: str, num_clients: int) -> dict[str, float]:
  """Writes a corpus and opens clients of it in another process."""
  client_corpus.write(folder, num_clients)
  output = own_process.measure(
      'client_index', folder=folder, opened=_OPENED.value
  )
  names = (
      'load_sec', 'least', 'median', 'p99', 'max', 'cpu', 'find_median',
      'find_p99', 'memory_mb',
  )
  figures = dict(zip(names, map(float, output.split())))
  files = (
      index.HASH_FILE, index.OFFSETS_FILE, index.CLIENTS_FILE,
      index.CORPUS_FILE,
  )
  figures['index_mb'] = sum(
      os.path.getsize(os.path.join(folder, name)) for name in files
  ) / 1e6
  return figures


def _open_clients(folder: str) -> tuple[float, ...]:
  """Seconds to load; ms to open and to find (names as above); MB gained."""
  tf.constant(0)  # TensorFlow's own start.
  before = own_process.resident_gib()
  started = time.perf_counter()
  data = client_data.load(folder)
  load_sec = time.perf_counter() - started
  gained = own_process.resident_gib() - before

  @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
  def num_samples(client_id):
    # As the pipeline sets them.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    dataset = data.serializable_dataset_fn(client_id).with_options(options)
    return dataset.reduce(0, lambda n, e: n + tf.size(e['waveform']))

  lookup = index.build_lookup_fn(
      os.path.join(folder, index.HASH_FILE), num_slots=data.corpus.num_slots
  )

  read_offsets = index.build_offsets_fn(
      os.path.join(folder, index.OFFSETS_FILE)
  )
  reader = records.Reader(data.corpus)

  @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
  def find(client_id):
    shard, first, count = lookup(client_id)
    places = records.places(
        tf.fill([count], client_id),
        shard=tf.fill([count], shard),
        offset=read_offsets(first, count),
    )
    return reader.parse(places)[schema.CLIENT_ID]

  ids = np.random.default_rng(1).choice(data.client_ids, _OPENED.value)
  num_samples(tf.constant(data.client_ids[0]))
  find(tf.constant(data.client_ids[0]))
  found_ms, milliseconds = [], []
  cpu = time.process_time()
  for client_id in ids:
    started = time.perf_counter()
    found = int(num_samples(tf.constant(client_id)))
    milliseconds.append(1000 * (time.perf_counter() - started))
    if found != 1600:
      raise ValueError(f'client {client_id} has {found} samples, not 1600.')
  cpu = time.process_time() - cpu
  for client_id in ids:
    started = time.perf_counter()
    (record,) = find(tf.constant(client_id)).numpy()
    found_ms.append(1000 * (time.perf_counter() - started))
    if client_id.encode() != record:
      raise ValueError(f'found another record than that of client {client_id}.')
  return (
      load_sec,
      min(milliseconds),
      float(np.median(milliseconds)),
      float(np.percentile(milliseconds, 99)),
      max(milliseconds),
      1000 * cpu / len(ids),
      float(np.median(found_ms)),
      float(np.percentile(found_ms, 99)),
      gained * 2**30 / 1e6,
  )


if __name__ == '__main__':
  launch.run(main)
