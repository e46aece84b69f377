r"""The reader alone: thread time per utterance, and how long it holds the GIL.

    python -m benchmarks.reader
    python -m benchmarks.reader --data=SHARDS
    python -m benchmarks.reader --records=15200000

Chunks of 64 utterances of a client are read in a random order, checked and
decoded (`records.Reader.read`).

`thread time` is that of all threads of the process; TensorFlow's wait for work
with their processors busy, so a share of it is idle. `Python's lock` is what
another thread that always wants the lock had to wait for it, as Linux counts
(wall time, less its own time on a processor, less its time in the processors'
queue); it is for lack of anything else the part that more cores do not help.
`KB read` is what came from files.

Machines of eight GPUs are then arithmetic: at 2,500 utterances a second (eight
times 20 in a step of some 60 ms) the reader takes 2,500 times the thread time,
in cores, and 2,500 times the time of the lock, which must be well below 1.

Without --data the corpus is noise, utterances of 6 s as PCM.

With --records it reads examples of a corpus of that size instead, as a step of
DP-SGD draws them, and decodes them: bytes and seconds a step. 15,200,000
records of 13.7 s of 7,439 speakers are Libri-Light. The shards are holes but
for what is drawn, and what was written is dropped from memory first.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import collections
from collections.abc import Callable
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time

from absl import flags
import numpy as np
import tensorflow as tf

from benchmarks import report
from benchmarks import workload as workload_lib
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.data import index
from tff_asr.data import records
from tff_asr.data import schema
from tff_asr.features import log_mel
from tff_asr.privacy import accounting
from tff_asr.privacy import keys

_DATA = flags.DEFINE_string('data', None, 'Folder of shards; default: noise.')
_CLIENTS = flags.DEFINE_integer('clients', 4, 'At most.', lower_bound=1)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Turns that count.', lower_bound=1
)
_RECORDS = flags.DEFINE_integer(
    'records', None, 'Read at random from that many.', lower_bound=1
)
_STEP = flags.DEFINE_integer(
    'step', 2048, 'Of these, expected in a step.', lower_bound=1
)
_SPEAKERS = flags.DEFINE_integer(
    'speakers', 7439, 'Their speakers, at most one a record.', lower_bound=1
)
_SEC = flags.DEFINE_float('sec', 13.7, 'Length of each.', lower_bound=0.1)

_NEEDED = 2500  # Utterances a second.
_CHUNK = 64
_LONGEST = 30 * log_mel.SAMPLE_RATE_HZ
_SHARDS = 64


def main(_) -> None:
  report.check_json_flag()
  if _RECORDS.value is not None:
    _measure_random_access()
    return
  with contextlib.ExitStack() as stack:
    if _DATA.value:
      clients = client_data.load(_DATA.value)
    else:
      clients = workload_lib.Workload(
          num_blocks=1, dim=4, num_clients=_CLIENTS.value, num_local_steps=1,
          utterance_sec=6.0, num_utterances=256,
      ).write_corpus(stack.enter_context(tempfile.TemporaryDirectory()))
    cohort = sorted(
        clients.client_ids, key=clients.num_utterances, reverse=True
    )[: _CLIENTS.value]
    count = sum(map(clients.num_utterances, cohort))
    run = _build(clients, cohort)
    figures = {'thread_sec': [], 'lock_sec': [], 'read_bytes': []}
    for turn in range(_REPEATS.value + 1):
      read_bytes = _read_bytes()
      used = time.process_time()
      run()
      used = time.process_time() - used
      read_bytes = _read_bytes() - read_bytes
      waited = _waited_for_lock(run)
      if turn:
        figures['thread_sec'].append(used / count)
        figures['lock_sec'].append(waited / count)
        figures['read_bytes'].append(read_bytes / count)
    audio = sum(clients.duration_sec(name) for name in cohort)
    audio /= count
  middle = {name: statistics.median(each) for name, each in figures.items()}
  rows = [
      ['of an utterance', ''],
      [
          'thread time, us',
          report.spread([1e6 * each for each in figures['thread_sec']], '.1f'),
      ],
      [
          "Python's lock, us",
          report.spread([1e6 * each for each in figures['lock_sec']], '.1f'),
      ],
      [
          f'cores at {_NEEDED:,} a second',
          f'{_NEEDED * middle["thread_sec"]:.2f}',
      ],
      [
          f'share of the lock at {_NEEDED:,}',
          f'{_NEEDED * middle["lock_sec"]:.1%}',
      ],
      ['KB read', f'{middle["read_bytes"] / 1e3:.1f}'],
  ]
  report.write(
      f'{len(cohort)} clients, utterances of {audio:.1f} s on average, '
      f'{clients.corpus.encoding}',
      rows,
      {'figures': figures, 'mean_utterance_sec': audio},
  )


def _measure_random_access() -> None:
  """Reads steps' examples of a corpus that is holes elsewhere."""
  sampling = accounting.Sampling(
      kind='poisson', cohort_size=_STEP.value, population=_RECORDS.value
  )
  steps = [
      cohorts.draw_indices(sampling, key=keys.from_seed(1), round_num=number)
      for number in range(_REPEATS.value)
  ]
  with tempfile.TemporaryDirectory() as folder:
    size = _write_holes(folder, np.unique(np.concatenate(steps)))
    began = time.perf_counter()
    data = client_data.load(folder)
    load_sec = time.perf_counter() - began

    @tf.function(input_signature=[records.LOCATION_SPECS], autograph=False)
    def count_samples(rows):
      return data.read_dataset(rows).reduce(
          0, lambda n, element: n + tf.size(element[schema.WAVEFORM])
      )

    # Traced before what counts.
    count_samples(data.record_locations(steps[0][:1]))
    seconds, ratios, gigabytes = [], [], []
    for drawn in steps:
      read_bytes, began = _read_bytes(), time.perf_counter()
      found = int(count_samples(data.record_locations(drawn)))
      seconds.append(time.perf_counter() - began)
      read = _read_bytes() - read_bytes
      if found != len(drawn) * log_mel.samples_of_seconds(_SEC.value):
        raise ValueError(f'{len(drawn)} examples have {found} samples.')
      gigabytes.append(read / 1e9)
      ratios.append(read / (size * len(drawn)))
  figures = {
      'seconds a step': seconds,
      'GB read a step': gigabytes,
      'read over the bytes of the examples': ratios,
      'seconds to load': [load_sec],
  }
  report.write(
      f'{_STEP.value:,} of {_RECORDS.value:,} records of {_SEC.value:g} s, '
      f'{_RECORDS.value * size / 1e12:.2f} TB',
      [['', 'value']]
      + [[name, report.spread(each, '.3f')] for name, each in figures.items()],
      figures,
  )


def _write_holes(folder: str, drawn: np.ndarray) -> int:
  """Writes a corpus with these records only; the bytes of a record."""
  num_samples = log_mel.samples_of_seconds(_SEC.value)
  count, speakers = _RECORDS.value, min(_SPEAKERS.value, _RECORDS.value)
  shards = min(_SHARDS, speakers)
  ids = [f'{number:08d}' for number in range(speakers)]
  counts = np.full(speakers, count // speakers)
  counts[: count % speakers] += 1
  firsts = np.cumsum(counts) - counts
  shard_of = np.arange(speakers) * shards // speakers
  begins = firsts[np.searchsorted(shard_of, np.arange(shards))]
  audio = np.random.default_rng(1).integers(
      -99, 99, num_samples, '<i2'
  ).tobytes()
  serialized = lambda client_id, number: schema.serialize(
      client_id=client_id,
      utterance_id=f'{number:010d}',
      transcript='a',
      audio=audio,
      num_samples=num_samples,
  )
  size = len(serialized(ids[0], 0)) + 16
  owners = np.searchsorted(firsts, drawn, side='right') - 1
  for shard in range(shards):
    path = os.path.join(folder, index.shard_name(shard))
    ends = begins[shard + 1] if shard + 1 < shards else count
    with open(path, 'wb') as file:
      file.truncate(int(ends - begins[shard]) * size)
      for number, owner in zip(drawn, owners):
        if shard_of[owner] != shard:
          continue
        with tempfile.NamedTemporaryFile(dir=folder) as framed:
          with tf.io.TFRecordWriter(framed.name) as writer:
            writer.write(serialized(ids[owner], number))
          file.seek(int(number - begins[shard]) * size)
          file.write(framed.read())
      file.flush()
      os.fsync(file.fileno())
      os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
  index.write(
      folder,
      clients=index.Clients(
          ids, shard_of, firsts, counts, counts * num_samples
      ),
      offsets=(
          np.arange(count) - np.repeat(begins[shard_of], counts)
      ) * size,
      shards=[
          index.Shard(
              index.shard_name(shard),
              os.path.getsize(os.path.join(folder, index.shard_name(shard))),
              # Only `client_data.verify` reads the shards whole.
              '0' * 64,
          )
          for shard in range(shards)
      ],
      encoding='pcm',
      characters='a',
      origin={},
  )
  return size


def _build(
    clients: client_data.SpeechClientData, cohort: list[str]
) -> Callable[[], None]:
  """Returns a function that reads all chunks of the clients."""

  @tf.function(input_signature=[records.LOCATION_SPECS], autograph=False)
  def read(rows):
    return clients.read(rows, _LONGEST)

  generator = np.random.default_rng(1)
  chunks = []
  for client in clients.locate_clients(cohort):
    rows = records.locations_of(client)
    count = len(client.offsets)
    order = generator.permutation(count)
    chunks += [
        collections.OrderedDict(
            (key, tf.gather(column, chosen)) for key, column in rows.items()
        )
        for chosen in np.split(order, range(_CHUNK, count, _CHUNK))
    ]

  def run():
    for rows in chunks:
      read(rows)

  return run


def _read_bytes() -> int:
  """What this process has read so far, from memory or disk."""
  with open('/proc/self/io', encoding='utf-8') as file:
    return int(file.readline().split()[1])


def _waited_for_lock(run: Callable[[], None]) -> float:
  """Seconds in which another thread could not have Python's lock."""
  ends, waited = threading.Event(), []

  def times():
    path = f'/proc/self/task/{threading.get_native_id()}/schedstat'
    with open(path, encoding='utf-8') as file:
      on_processor, in_queue, _ = map(int, file.read().split())
    return time.perf_counter() - (on_processor + in_queue) / 1e9

  def want():
    begun = times()
    while not ends.is_set():
      for _ in range(1000):
        pass
    waited.append(times() - begun)

  interval = sys.getswitchinterval()
  thread = threading.Thread(target=want)
  sys.setswitchinterval(1e-5)
  try:
    thread.start()
    run()
  finally:
    ends.set()
    thread.join()
    sys.setswitchinterval(interval)
  return waited[0]


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')
