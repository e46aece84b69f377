import json
import os
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.data import index


def _clients(num_clients: int, **changes) -> index.Clients:
  rng = np.random.default_rng(num_clients)
  columns = dict(
      client_ids=[f'speaker {i} ü' for i in rng.permutation(num_clients)],
      shards=np.zeros(num_clients, np.int64),
      offsets=rng.integers(0, 2**40, num_clients),
      num_utterances=rng.integers(1, 2**32, num_clients),
      num_samples=rng.integers(1, 2**40, num_clients),
  )
  return index.Clients(**(columns | changes))


def _lookup_fn(corpus: index.Corpus):
  return index.build_lookup_fn(
      os.path.join(corpus.path, index.HASH_FILE), num_slots=corpus.num_slots
  )


class IndexTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())

  def write(self, clients: index.Clients, num_shards: int = 1) -> None:
    shards = []
    for i in range(num_shards):
      name = index.shard_name(i)
      with open(os.path.join(self.folder, name), 'wb') as f:
        f.write(b'shard')
      shards.append(index.Shard(name, 5, '00'))
    index.write(
        self.folder,
        clients=clients,
        shards=shards,
        encoding='pcm',
        characters='ba a',
        origin={'corpus': 'test'},
    )

  def change(self, **changes) -> None:
    path = os.path.join(self.folder, index.CORPUS_FILE)
    with open(path, encoding='utf-8') as f:
      content = json.load(f)
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(content | changes, f)

  def path(self, name: str) -> str:
    return os.path.join(self.folder, name)

  @parameterized.parameters(1, 2, 7, 8, 1000)
  def test_reads_what_was_written_sorted(self, num_clients):
    clients = _clients(num_clients)
    self.write(clients)
    corpus, found = index.read(self.folder)
    self.assertEqual(found.client_ids, sorted(clients.client_ids))
    rows = zip(clients.client_ids, *(c.tolist() for c in clients[1:]))
    found_rows = zip(found.client_ids, *(c.tolist() for c in found[1:]))
    self.assertCountEqual(list(rows), list(found_rows))
    self.assertEqual(corpus.num_clients, num_clients)
    self.assertEqual(corpus.num_samples, clients.num_samples.sum())
    self.assertEqual(corpus.characters, ' ab')
    self.assertEqual(corpus.encoding, 'pcm')
    self.assertEqual(corpus.origin, {'corpus': 'test'})

  @parameterized.parameters(1, 2, 7, 8, 1000)
  def test_graph_finds_every_client(self, num_clients):
    shards = np.arange(num_clients) % 3
    clients = _clients(num_clients, shards=shards)
    self.write(clients, num_shards=3)
    corpus, _ = index.read(self.folder)
    lookup = _lookup_fn(corpus)
    found = [
        [int(x) for x in place]
        for place in tf.data.Dataset.from_tensor_slices(clients.client_ids)
        .map(lookup)
        .as_numpy_iterator()
    ]
    expected = zip(
        shards.tolist(),
        clients.offsets.tolist(),
        clients.num_utterances.tolist(),
    )
    self.assertEqual(found, [list(place) for place in expected])

  def test_colliding_home_slots_are_probed_past_the_end(self):
    # Six ids of home slot 15 of 16: they fill slot 15 and five overflow slots.
    candidates = [str(i) for i in range(2000)]
    keys = tf.strings.to_hash_bucket_fast(candidates, 2**63 - 1).numpy()
    ids = [c for c, key in zip(candidates, keys) if key % 16 == 15][:6]
    clients = _clients(6, client_ids=ids)
    self.write(clients)
    corpus, _ = index.read(self.folder)
    self.assertEqual(corpus.num_slots, 16)
    lookup = _lookup_fn(corpus)
    for client_id, offset in zip(ids, clients.offsets):
      self.assertEqual(int(lookup(client_id)[1]), offset)

  def test_graph_knows_an_unknown_client(self):
    self.write(_clients(100))
    corpus, _ = index.read(self.folder)
    lookup = _lookup_fn(corpus)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'a client of this round is not in the corpus',
    ):
      lookup('nobody')
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'a client of this round is not in the corpus',
    ):
      tf.function(lookup)(tf.constant('nobody'))

  def test_graph_knows_damaged_slots_and_names_nobody(self):
    clients = _clients(100)
    self.write(clients)
    corpus, _ = index.read(self.folder)
    lookup = tf.function(_lookup_fn(corpus))
    key = tf.strings.to_hash_bucket_fast(clients.client_ids[7], 2**63 - 1)
    with open(self.path(index.HASH_FILE), 'r+b') as f:
      # Slots are of 40 bytes: 12 of header, 24 of content and a checksum.
      f.seek(40 * int(key.numpy() % corpus.num_slots) + 14)
      f.write(b'\xee\xee')
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        f'{index.HASH_FILE} is missing or damaged where the place of a client',
    ):
      lookup(tf.constant(clients.client_ids[7]))
    os.remove(self.path(index.HASH_FILE))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'is missing or damaged'
    ):
      lookup(tf.constant(clients.client_ids[0]))

  def test_order_of_clients_does_not_change_a_byte(self):
    clients = _clients(50)
    order = np.arange(50)[::-1]
    self.write(clients)
    first = {}
    for name in os.listdir(self.folder):
      with open(self.path(name), 'rb') as f:
        first[name] = f.read()
    self.write(
        index.Clients(
            [clients.client_ids[i] for i in order],
            *(column[order] for column in clients[1:]),
        )
    )
    for name, content in first.items():
      with open(self.path(name), 'rb') as f:
        self.assertEqual(f.read(), content, name)

  def test_table_is_at_most_half_full_and_its_records_have_checksums(self):
    self.write(_clients(1000))
    records = list(tf.data.TFRecordDataset(self.path(index.HASH_FILE)))
    keys = [np.frombuffer(r.numpy(), '<i8')[0] for r in records]
    self.assertEqual(sum(key >= 0 for key in keys), 1000)
    self.assertGreaterEqual(len(keys), 2000)
    with open(self.path(index.HASH_FILE), 'r+b') as f:
      f.seek(40 * 17 + 20)
      f.write(b'\xee')
    with self.assertRaises(tf.errors.DataLossError):
      list(tf.data.TFRecordDataset(self.path(index.HASH_FILE)))

  def test_thirty_five_thousand_clients_take_three_megabytes(self):
    ids = [f'{i:05d}' for i in range(34753)]
    self.write(_clients(34753, client_ids=ids))
    self.assertLess(os.path.getsize(self.path(index.HASH_FILE)), 3e6)
    self.assertLess(os.path.getsize(self.path(index.CLIENTS_FILE)), 2.5e6)

  @parameterized.named_parameters(
      ('none', dict(client_ids=[]), 0, 'at least one'),
      ('twice', dict(client_ids=['a', 'b', 'a']), 3, 'client a occurs twice'),
      ('empty', dict(client_ids=['a', 'b', '']), 3, "found ''"),
      ('tab', dict(client_ids=['a', 'b', 'c\td']), 3, 'control characters'),
      ('line', dict(client_ids=['a', 'b', 'c\n']), 3, 'control characters'),
      (
          'no_utterances',
          dict(client_ids=['a', 'b', 'c'], num_utterances=np.array([1, 0, 1])),
          3,
          'client b has 0 utterances',
      ),
      (
          'shard',
          dict(client_ids=['a', 'b', 'c'], shards=np.array([0, 0, 1])),
          3,
          'client c is in shard 1',
      ),
  )
  def test_refuses_to_write(self, changes, num_clients, message):
    with self.assertRaisesRegex(ValueError, message):
      self.write(_clients(num_clients, **changes))
    self.assertFalse(os.path.exists(self.path(index.CORPUS_FILE)))

  def test_refuses_two_ids_with_one_key(self):
    fingerprint = tf.strings.to_hash_bucket_fast
    with mock.patch.object(
        tf.strings,
        'to_hash_bucket_fast',
        lambda ids, n: fingerprint(ids, n) // 2**62,
    ):
      with self.assertRaisesRegex(ValueError, 'have the same hash key'):
        self.write(_clients(5))

  def test_missing_folder(self):
    with self.assertRaisesRegex(ValueError, 'nowhere is not a folder'):
      index.read(self.path('nowhere'))

  def test_folder_without_corpus(self):
    with self.assertRaisesRegex(ValueError, 'holds no corpus.json'):
      index.read(self.folder)

  def test_other_format(self):
    self.write(_clients(3))
    self.change(format_version=2)
    with self.assertRaisesRegex(ValueError, 'is of format 2'):
      index.read(self.folder)

  def test_damaged_corpus_file(self):
    self.write(_clients(3))
    with open(self.path(index.CORPUS_FILE), 'w', encoding='utf-8') as f:
      f.write('{"format_version": 1, ')
    with self.assertRaisesRegex(ValueError, 'corpus.json is damaged'):
      index.read(self.folder)

  @parameterized.parameters(index.CLIENTS_FILE, index.HASH_FILE)
  def test_damaged_missing_or_foreign_index_file(self, name):
    self.write(_clients(3))
    with open(self.path(name), 'r+b') as f:
      f.seek(30)
      f.write(b'\xee')
    with self.assertRaisesRegex(ValueError, f'{name} does not have the check'):
      index.read(self.folder)
    os.remove(self.path(name))
    with self.assertRaisesRegex(ValueError, f'{name} is missing'):
      index.read(self.folder)

  def test_index_of_another_corpus(self):
    self.write(_clients(3))
    other = self.enterContext(tempfile.TemporaryDirectory())
    shutil.copytree(self.folder, other, dirs_exist_ok=True)
    self.write(_clients(4))
    shutil.copy(os.path.join(other, index.HASH_FILE), self.folder)
    with self.assertRaisesRegex(ValueError, 'damaged or of another corpus'):
      index.read(self.folder)

  def test_truncated_or_missing_shard(self):
    self.write(_clients(3))
    with open(self.path(index.shard_name(0)), 'wb') as f:
      f.write(b'sha')
    with self.assertRaisesRegex(ValueError, 'shard-00000.*has 3 bytes .* 5;'):
      index.read(self.folder)
    os.remove(self.path(index.shard_name(0)))
    with self.assertRaisesRegex(ValueError, 'shard-00000.*is missing'):
      index.read(self.folder)

  def test_counts_that_disagree(self):
    self.write(_clients(3))
    self.change(num_clients=4)
    with self.assertRaisesRegex(ValueError, 'disagree'):
      index.read(self.folder)


if __name__ == '__main__':
  absltest.main()
