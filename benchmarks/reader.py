r"""The reader alone: thread time an utterance, and how long it holds Python.

    python -m benchmarks.reader
    python -m benchmarks.reader --data=SHARDS

Two parts of a client's reading, each beside what it replaced, in turns:

- `places`: the client's places go into memory (`execution.prefetch`), counted
  in the graph; before, each in Python.
- `chunk`: 64 utterances at random places are read, checked and decoded at once
  (`records.Reader.read`); before, each was decoded by itself.

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
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

import collections
from collections.abc import Callable
import contextlib
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
from tff_asr.data import records
from tff_asr.data import schema
from tff_asr.execution import prefetch
from tff_asr.features import log_mel

_DATA = flags.DEFINE_string('data', None, 'Folder of shards; default: noise.')
_CLIENTS = flags.DEFINE_integer('clients', 4, 'At most.', lower_bound=1)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Turns that count.', lower_bound=1
)

_NEEDED = 2500  # Utterances a second.
_CHUNK = 64
_LONGEST = {
    schema.WAVEFORM: 30 * log_mel.SAMPLE_RATE_HZ,
    schema.FEATURES: log_mel.frames_of_seconds(30.0),
}
_PARTS = (
    'places, in Python', 'places', 'chunk, one by one', 'chunk'
)


def main(_) -> None:
  report.check_json_flag()
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
    runs = _build(clients, cohort)
    figures = {
        part: {'thread_sec': [], 'lock_sec': [], 'read_bytes': []}
        for part in _PARTS
    }
    for turn in range(_REPEATS.value + 1):
      for part, (run, count) in runs.items():
        read_bytes = _read_bytes()
        used = time.process_time()
        run()
        used = time.process_time() - used
        read_bytes = _read_bytes() - read_bytes
        waited = _waited_for_lock(run)
        if turn:
          found = figures[part]
          found['thread_sec'].append(used / count)
          found['lock_sec'].append(waited / count)
          found['read_bytes'].append(read_bytes / count)
    audio = sum(clients.duration_sec(name) for name in cohort)
    audio /= sum(clients.num_utterances(name) for name in cohort)
  rows = [[
      'of an utterance', 'thread time, us', "Python's lock, us",
      f'cores at {_NEEDED:,} a second', f'share of the lock at {_NEEDED:,}',
      'KB read',
  ]]
  for part, found in figures.items():
    middle = {name: statistics.median(each) for name, each in found.items()}
    rows.append([
        part,
        report.spread([1e6 * each for each in found['thread_sec']], '.1f'),
        report.spread([1e6 * each for each in found['lock_sec']], '.1f'),
        f'{_NEEDED * middle["thread_sec"]:.2f}',
        f'{_NEEDED * middle["lock_sec"]:.1%}',
        f'{middle["read_bytes"] / 1e3:.1f}',
    ])
  report.write(
      f'{len(cohort)} clients, utterances of {audio:.1f} s on average, '
      f'{clients.corpus.encoding}',
      rows,
      {'parts': figures, 'mean_utterance_sec': audio},
  )


def _build(
    clients: client_data.SpeechClientData, cohort: list[str]
) -> dict[str, tuple[Callable[[], None], int]]:
  """What reads, and how many utterances, by part."""
  place_fn = clients.places.serializable_dataset_fn
  reader = records.Reader(clients.corpus)
  decode = schema.build_decode_fn(clients.corpus.encoding)
  name, spec = next(
      (name, spec) for name, spec in clients.element_type_structure.items()
      if name in _LONGEST
  )
  specs = tuple(
      tf.TensorSpec([], dtype) for dtype in (tf.string, tf.int64, tf.int64)
  )

  @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
  def places_of(client_id):
    return [tf.data.experimental.to_variant(place_fn(client_id))]

  def places():
    kept = prefetch.Reader(
        places_of,
        elements=[specs],
        get_client=lambda key: [tf.constant(key)],
        num_threads=1,
        computation=0,
        cache=prefetch.ClientCache(max_bytes=0),
    )
    with contextlib.closing(kept):
      for client_id in cohort:
        kept.take(client_id)

  def places_in_python():
    for client_id in cohort:
      num_bytes = 0
      for element in place_fn(tf.constant(client_id)).cache():
        for tensor in element.values():
          if tensor.dtype == tf.string:
            num_bytes += int(tf.reduce_sum(tf.strings.length(tensor)))
          else:
            num_bytes += int(tf.size(tensor)) * tensor.dtype.size

  rows_spec = records.places(
      tf.TensorSpec([None], tf.string),
      shard=tf.TensorSpec([None], tf.int64),
      offset=tf.TensorSpec([None], tf.int64),
  )

  @tf.function(input_signature=[rows_spec], autograph=False)
  def read(rows):
    return reader.read(rows, _LONGEST)

  @tf.function(input_signature=[rows_spec], autograph=False)
  def read_one_by_one(rows):
    features = reader.parse(rows)
    lengths = tf.cast(features[schema.NUM_SAMPLES], tf.int32)
    if name == schema.FEATURES:
      lengths = log_mel.num_frames(lengths)
    most = tf.reduce_max(tf.minimum(lengths, _LONGEST[name]))

    def decode_one(record):
      sound = decode(record)[name][: _LONGEST[name]]
      rest = [[0, most - tf.shape(sound)[0]]]
      return tf.pad(sound, rest + [[0, 0]] * (spec.shape.rank - 1))

    return tf.map_fn(decode_one, features, fn_output_signature=spec)

  generator = np.random.default_rng(1)
  chunks = []
  for client_id in cohort:
    rows = next(iter(place_fn(tf.constant(client_id)).batch(2**20)))
    count = len(rows[schema.CLIENT_ID])
    order = generator.permutation(count)
    chunks += [
        collections.OrderedDict(
            (key, tf.gather(column, chosen)) for key, column in rows.items()
        )
        for chosen in np.split(order, range(_CHUNK, count, _CHUNK))
    ]
  count = sum(map(clients.num_utterances, cohort))

  def over_chunks(function):
    def run():
      for rows in chunks:
        function(rows)

    return run

  return {
      'places, in Python': (places_in_python, count),
      'places': (places, count),
      'chunk, one by one': (over_chunks(read_one_by_one), count),
      'chunk': (over_chunks(read), count),
  }


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
  launch.run(main, after_interrupt='the same command begins anew.')
