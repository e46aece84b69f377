import contextlib
import functools
import os
import shutil
import tempfile
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tff_asr.data import audio
from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.data import records

_COUNTS = {'anna': 3, 'bert': 1, 'cleo': 5}


def _waveform(client_id: str, i: int, seed: int = 0) -> np.ndarray:
  rng = np.random.default_rng([len(client_id), ord(client_id[0]), i, seed])
  return rng.integers(-3000, 3000, 800 + 10 * i).astype(np.int16)


def _write(
    folder: str, *, max_shard_bytes: int = 1, seed: int = 0, **settings
):
  """A corpus of `_COUNTS`; by default each client in a separate shard."""
  fakes.write_examples(
      folder,
      [
          dict(
              client_id=client_id,
              utterance_id=f'{client_id}-{i}',
              transcript=f'{client_id} {"abcde"[i]}',
              waveform=_waveform(client_id, i, seed),
          )
          for client_id, count in _COUNTS.items()
          for i in range(count)
      ],
      max_shard_bytes=max_shard_bytes,
      **settings,
  )


@functools.lru_cache(maxsize=None)
def _shared_root() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory()


def tearDownModule():
  if _shared_root.cache_info().currsize:
    _shared_root().cleanup()
  for cached in (_shared_root, _load_shared, _trace_shared):
    cached.cache_clear()


@functools.lru_cache(maxsize=None)
def _load_shared(
    encoding: str, max_shard_bytes: int
) -> client_data.SpeechClientData:
  folder = os.path.join(_shared_root().name, f'{encoding}-{max_shard_bytes}')
  _write(folder, encoding=encoding, max_shard_bytes=max_shard_bytes)
  return client_data.load(folder)


@functools.lru_cache(maxsize=None)
def _trace_shared(
    client_id: str, at_once: int, *corpus: str | int
) -> tf.data.Dataset:
  with mock.patch.object(records, '_AT_ONCE', at_once):
    return _load_shared(*corpus).create_tf_dataset_for_client(client_id)


def _shared(
    encoding: str = 'pcm', max_shard_bytes: int = 1
) -> client_data.SpeechClientData:
  """A corpus of all tests, which leave it as it was."""
  return _load_shared(encoding, max_shard_bytes)


def _shared_dataset(
    client_id: str,
    *,
    at_once: int = 32,
    encoding: str = 'pcm',
    max_shard_bytes: int = 1,
) -> tf.data.Dataset:
  """Of a shared corpus. It is traced once, and reads the shards each time."""
  return _trace_shared(client_id, at_once, encoding, max_shard_bytes)


@contextlib.contextmanager
def _restored(path: str):
  """Gives a file back the content that it had."""
  with open(path, 'rb') as f:
    content = f.read()
  try:
    yield
  finally:
    with open(path, 'wb') as f:
      f.write(content)


def _record_starts(folder: str, shard: int) -> list[int]:
  """Where the records of a shard begin."""
  path = os.path.join(folder, index.shard_name(shard))
  found = tf.data.TFRecordDataset(path).as_numpy_iterator()
  sizes = [len(record) + 16 for record in found]
  return np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist()


class ClientDataTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.path('split')

  def check_client(
      self, dataset: tf.data.Dataset, client_id: str, seed: int = 0
  ) -> None:
    elements = list(dataset)
    self.assertLen(elements, _COUNTS[client_id])
    for i, element in enumerate(elements):
      self.assertEqual(element['client_id'].numpy().decode(), client_id)
      self.assertEqual(
          element['utterance_id'].numpy().decode(), f'{client_id}-{i}'
      )
      self.assertEqual(
          element['transcript'].numpy().decode(), f'{client_id} {"abcde"[i]}'
      )
      np.testing.assert_array_equal(
          element['waveform'], _waveform(client_id, i, seed)
      )

  # Of at most 5 records 32 at once are all, and 2 part of them and then the
  # rest. The tests of damage read 2 at once where each has its own shard.
  @parameterized.product(
      encoding=audio.ENCODINGS, read=((1, 32), (2**20, 2))
  )
  def test_every_client_has_its_utterances(self, encoding, read):
    max_shard_bytes, at_once = read
    corpus = dict(encoding=encoding, max_shard_bytes=max_shard_bytes)
    data = _shared(**corpus)
    self.assertEqual(data.client_ids, sorted(_COUNTS))
    self.assertEqual(data.corpus.encoding, encoding)
    self.assertEqual(data.corpus.characters, ' abcdelnort')
    self.assertLen(data.corpus.shards, 3 if max_shard_bytes == 1 else 1)
    for client_id in data.client_ids:
      dataset = _shared_dataset(client_id, at_once=at_once, **corpus)
      self.assertEqual(dataset.element_spec, data.element_type_structure)
      self.check_client(dataset, client_id)
    client_data.verify(data.corpus.path)

  def test_speakers_of_one_recording_are_told_if_they_are_most(self):
    counts = {'a': 1, 'b': 1, 'c': 9, 'd': 2}
    for ids, is_told in ('abc', True), ('abcd', False), ('acd', False):
      folder = fakes.write_split(self.path(ids), {i: counts[i] for i in ids})
      warning = client_data.unit_warning(client_data.load(folder))
      self.assertEqual('guarantee is per recording' in warning, is_told, ids)
    # Some clients of a corpus.
    few = client_data.load(folder, client_ids=['a'])
    self.assertIn('guarantee is per recording', client_data.unit_warning(few))
    self.assertEqual(
        client_data.unit_warning(
            tff.simulation.datasets.TestClientData({'a': {'x': [1]}})
        ),
        '',
    )

  def test_durations_are_costs_and_need_no_shard(self):
    _write(self.folder)
    data = client_data.load(self.folder)
    for name in os.listdir(self.folder):
      if name.startswith('shard-'):
        os.remove(os.path.join(self.folder, name))
    cost = client_data.duration_cost(data)
    # 800 samples; 800 to 840 of five: (5 * 800 + 10 * 10) / 16000.
    self.assertEqual(
        list(map(cost, data.locate_clients(['bert', 'cleo']))),
        [0.05, 0.25625],
    )
    self.assertEqual(data.duration_sec('cleo'), 0.25625)
    self.assertEqual(data.num_utterances('cleo'), 5)
    with self.assertRaisesRegex(ValueError, 'dora'):
      data.locate_clients(['dora'])

  @parameterized.parameters(*audio.ENCODINGS)
  def test_records_of_any_clients_are_read_in_any_order(self, encoding):
    data = _shared(encoding=encoding)  # Three shards.
    names = [
        f'{client_id}-{i}' for client_id in sorted(_COUNTS)
        for i in range(_COUNTS[client_id])
    ]
    self.assertEqual(data.num_records, 9)
    expected = {
        element['utterance_id'].numpy(): element
        for client_id in data.client_ids
        for element in _shared_dataset(client_id, encoding=encoding)
    }
    read = tf.function(
        lambda rows: data.read(rows, 825),
        input_signature=[records.LOCATION_SPECS],
    )
    for order in ([8, 0, 3, 4, 2], [3, 7, 1, 0], [5]):
      rows = data.record_locations(np.array(order))
      chunk = read(tf.nest.map_structure(tf.constant, rows))
      self.assertEqual(
          [name.decode() for name in chunk['utterance_id'].numpy()],
          [names[number] for number in order],
      )
      longest = 0
      for i, name in enumerate(chunk['utterance_id'].numpy()):
        element = expected[name]
        kept = element['waveform'][:825].numpy()
        length = int(chunk['length'][i])
        longest = max(longest, length)
        self.assertLen(kept, length)
        np.testing.assert_array_equal(chunk['waveform'][i, :length], kept)
        self.assertFalse(np.any(chunk['waveform'][i, length:]))
        self.assertEqual(chunk['transcript'][i], element['transcript'])
        self.assertEqual(chunk['client_id'][i], element['client_id'])
      self.assertEqual(chunk['waveform'].shape[1], longest)
    # Numbers are of the clients that were selected.
    some = data.select(['cleo', 'bert'])
    rows = some.record_locations(np.arange(some.num_records))
    chunk = read(tf.nest.map_structure(tf.constant, rows))
    self.assertEqual(
        [name.decode() for name in chunk['utterance_id'].numpy()], names[3:]
    )

  def test_records_of_clients_are_their_stretches_of_the_index(self):
    data = _shared(max_shard_bytes=2**20)  # One shard.
    starts = _record_starts(data.corpus.path, 0)
    clients = data.locate_clients(['cleo', 'anna'])
    self.assertEqual([each.client_id for each in clients], ['cleo', 'anna'])
    self.assertEqual(
        [each.offsets.tolist() for each in clients], [starts[4:], starts[:3]]
    )
    self.assertEqual([int(each.shard) for each in clients], [0, 0])
    rows = records.locations_of(clients[0])
    np.testing.assert_array_equal(rows[records.OFFSET], starts[4:])
    self.assertEqual(
        [name.decode() for name in rows['client_id'].numpy()], ['cleo'] * 5
    )
    # A selection has its own clients only.
    with self.assertRaisesRegex(ValueError, 'client anna is not among the 1'):
      data.select(['cleo']).locate_clients(['anna'])

  def test_corpora_with_the_same_clients_are_not_mixed_up(self):
    folders = [self.folder, f'{self.folder}2']
    for seed, folder in enumerate(folders):
      _write(folder, seed=seed)
    several = [client_data.load(folder) for folder in folders]
    for seed, data in enumerate(several):
      self.check_client(data.dataset_computation('anna'), 'anna', seed)
    # Nor what stood in a folder before.
    shutil.rmtree(folders[0])
    os.rename(folders[1], folders[0])
    data = client_data.load(folders[0])
    self.check_client(data.create_tf_dataset_for_client('cleo'), 'cleo', 1)

  def test_serves_tff_users_own_loops(self):
    data = _shared()
    self.assertIsInstance(data, tff.simulation.datasets.ClientData)
    self.assertLen(list(data.create_tf_dataset_from_all_clients(seed=1)), 9)
    self.assertLen(list(data.datasets(limit_count=2, seed=1)), 2)
    first = data.preprocess(lambda dataset: dataset.take(1))
    self.assertLen(list(first.create_tf_dataset_for_client('cleo')), 1)
    train, test = client_data.SpeechClientData.train_test_client_split(
        data, num_test_clients=1, seed=1
    )
    self.assertCountEqual(train.client_ids + test.client_ids, list(_COUNTS))
    self.assertEqual(
        str(data.dataset_computation.type_signature),
        '(str -> <client_id=str,transcript=str,utterance_id=str,'
        'waveform=int16[?]>*)',
    )

  def test_tff_graph_runs_after_serialization(self):
    data = _shared()

    @tff.tensorflow.computation(np.str_)
    def count(client_id):
      return data.serializable_dataset_fn(client_id).reduce(
          np.int64(0), lambda n, _: n + 1
      )

    proto = tff.framework.serialize_computation(count).tensorflow
    graph = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph)
    ops = {node.op for node in graph.node}
    for function in graph.library.function:
      ops |= {node.op for node in function.node_def}
    self.assertFalse([op for op in ops if '>' in op], 'core ops only')
    run = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, name=''), []
    ).prune(
        [proto.parameter.tensor.tensor_name], [proto.result.tensor.tensor_name]
    )
    for client_id, expected in _COUNTS.items():
      self.assertEqual(run(tf.constant(client_id))[0].numpy(), expected)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'the client is not among those of',
    ):
      run(tf.constant('dora'))

  def test_selection(self):
    data = client_data.load(
        _shared().corpus.path, client_ids=['cleo', 'anna']
    )
    self.assertEqual(data.client_ids, ['anna', 'cleo'])
    self.check_client(data.create_tf_dataset_for_client('cleo'), 'cleo')
    self.assertEqual(data.num_utterances('cleo'), 5)
    for call in (
        data.create_tf_dataset_for_client,
        data.num_utterances,
        data.duration_sec,
        lambda client_id: data.select([client_id]),
    ):
      with self.assertRaisesRegex(ValueError, 'client bert is not among the 2'):
        call('bert')
    with self.assertRaisesRegex(ValueError, 'anna twice'):
      data.select(['anna', 'anna'])
    with self.assertRaisesRegex(ValueError, 'at least one'):
      data.select([])
    data.client_ids.clear()
    self.assertEqual(data.client_ids, ['anna', 'cleo'])

  # Records of cleo are equally long but for 20 bytes each.
  @parameterized.product(
      damage=((0, 1), (0.5, 3), (1, 5)), at_once=(32, 2), shard=(0, 1, 2)
  )
  def test_damage_names_shard_and_byte(self, damage, at_once, shard):
    place, record = damage
    folder = _shared().corpus.path
    path = os.path.join(folder, index.shard_name(shard))
    damaged, *others = np.roll(sorted(_COUNTS), -shard).tolist()
    byte = r'\d+'
    if damaged == 'cleo':
      byte = _record_starts(folder, shard)[record - 1]
    self.enterContext(_restored(path))
    fakes.damage(path, place)
    client_data.load(folder)  # It opens.
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        f'the record at byte {byte} of .*shard-0000{shard}.tfrecord is missing'
        ' or damaged',
    ):
      list(_shared_dataset(damaged, at_once=at_once))
    for client_id in others if place == 0.5 else ():
      self.check_client(
          _shared_dataset(client_id, at_once=at_once), client_id
      )
    with self.assertRaisesRegex(
        ValueError,
        f'Damaged, .*shard-0000{shard}[^,]*, with the clients {damaged}. Copy',
    ):
      client_data.verify(folder)

  def test_files_besides_the_index_are_verified_where_they_are(self):
    spoken = fakes.examples('a', 2)
    fakes.write_examples(self.folder, [*spoken, spoken[0]])
    for name in ('fingerprints.npy', 'dropped.tsv'):
      path = os.path.join(self.folder, name)
      for place in (0, 0.5, 1):
        fakes.damage(path, place)
        with self.assertRaisesRegex(
            ValueError, rf'^Damaged, .*corpus.json: \S+{name}. Copy or write'
        ):
          client_data.verify(self.folder)
        fakes.damage(path, place)
        client_data.verify(self.folder)
      os.remove(path)
      client_data.verify(self.folder)

  def test_a_checksum_covers_the_whole_shard(self):
    # Several times what is read at once.
    long = dict(fakes.utterance('a', 0), waveform=np.arange(900_000).astype(np.int16))
    fakes.write_examples(self.folder, [long])
    path = os.path.join(self.folder, index.shard_name(0))
    for place in (0, 0.3, 0.5, 0.8, 1):
      fakes.damage(path, place)
      with self.assertRaisesRegex(ValueError, 'Damaged'):
        client_data.verify(self.folder)
      fakes.damage(path, place)
      client_data.verify(self.folder)

  def test_shard_truncated_between_records_while_open(self):
    folder = _shared(max_shard_bytes=2**20).corpus.path
    dataset = _shared_dataset('cleo', at_once=2, max_shard_bytes=2**20)
    path = os.path.join(folder, index.shard_name(0))
    records = [r.numpy() for r in tf.data.TFRecordDataset(path)]
    self.enterContext(_restored(path))
    with open(path, 'r+b') as f:
      f.truncate(os.path.getsize(path) - len(records[-1]) - 16)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        f'the record at byte {os.path.getsize(path)} of .* is missing or dam',
    ):
      list(dataset)
    with self.assertRaisesRegex(ValueError, 'truncated'):
      client_data.load(folder)

  def test_shards_that_vanish_or_change_places_while_open(self):
    shards = [
        os.path.join(_shared().corpus.path, index.shard_name(i))
        for i in range(3)
    ]
    anna, bert = map(_shared_dataset, ('anna', 'bert'))
    for path in shards:
      self.enterContext(_restored(path))
    first, second, third = shards
    os.remove(second)
    os.replace(third, first)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'the record at byte 0 of .*shard-00001.tfrecord is missing',
    ):
      list(bert)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'the record at byte 0 of .*shard-00000.tfrecord belongs to another '
        'client',
    ):
      list(anna)

  @parameterized.product(record=(1, 2, 3, 5), at_once=(32, 2))
  def test_no_record_of_another_client_is_taken_for_its_own(
      self, record, at_once
  ):
    folder = _shared().corpus.path
    cleo = os.path.join(folder, index.shard_name(2))
    starts = _record_starts(folder, 2)
    self.enterContext(_restored(cleo))
    with open(cleo, 'r+b') as f:
      content = f.read()
      # Of the same length as the record that it replaces.
      found = list(tf.data.TFRecordDataset(cleo).as_numpy_iterator())
      foreign = found[record - 1].replace(b'cleo', b'anna')
      with tf.io.TFRecordWriter(self.path('one')) as writer:
        writer.write(foreign)
      with open(self.path('one'), 'rb') as one:
        f.seek(starts[record - 1])
        f.write(one.read())
    self.assertEqual(os.path.getsize(cleo), len(content))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        f'the record at byte {starts[record - 1]} of .*belongs to another',
    ):
      list(_shared_dataset('cleo', at_once=at_once))

  def test_a_folder_with_wildcards_in_its_name(self):
    self.folder = os.path.join(os.path.dirname(self.folder), r'a[1]*?\{b}')
    _write(self.folder)
    data = client_data.load(self.folder)
    self.check_client(data.create_tf_dataset_for_client('anna'), 'anna')
