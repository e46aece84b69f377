import hashlib
import json
import os
import pathlib
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import cases
from tests import fakes
from tff_asr.data import index


def _clients(num_clients: int, **changes) -> index.Clients:
  rng = np.random.default_rng(num_clients)
  counts = rng.integers(1, 6, num_clients)
  columns = dict(
      client_ids=[f'speaker {i} ü' for i in rng.permutation(num_clients)],
      shards=np.zeros(num_clients, np.int64),
      first_records=np.cumsum(counts) - counts,
      num_utterances=counts,
      num_samples=rng.integers(1, 2**40, num_clients),
  )
  return index.Clients(**(columns | changes))


def _offsets(num_records: int) -> np.ndarray:
  return np.random.default_rng(num_records).integers(0, 2**40, num_records)


def _lookup_fn(corpus: index.Corpus):
  return index.build_lookup_fn(
      os.path.join(corpus.path, index.HASH_FILE), num_slots=corpus.num_slots
  )


class IndexTest(cases.TestCase):

  def write(
      self,
      clients: index.Clients,
      num_shards: int = 1,
      num_records: int | None = None,
  ) -> None:
    shards = []
    for i in range(num_shards):
      name = index.shard_name(i)
      pathlib.Path(self.path(name)).write_bytes(b'shard')
      shards.append(index.Shard(name, 5, '00'))
    index.write(
        self.root,
        clients=clients,
        offsets=_offsets(
            int(clients.num_utterances.sum())
            if num_records is None
            else num_records
        ),
        shards=shards,
        encoding='pcm',
        characters='ba a',
        origin={'corpus': 'test'},
    )

  @parameterized.parameters(1, 2, 7, 8, 1000)
  def test_reads_and_finds_in_the_graph_what_was_written(self, num_clients):
    clients = _clients(num_clients, shards=np.arange(num_clients) % 3)
    self.write(clients, num_shards=3)
    corpus, found = index.read(self.root)
    rows = [row for row in zip(clients[0], *(c.tolist() for c in clients[1:]))]
    found_rows = list(zip(found[0], *(c.tolist() for c in found[1:])))
    self.assertEqual(found_rows, sorted(rows))
    self.assertEqual(corpus.num_clients, num_clients)
    self.assertEqual(corpus.num_utterances, clients.num_utterances.sum())
    self.assertEqual(corpus.num_samples, clients.num_samples.sum())
    self.assertEqual(corpus.characters, ' ab')
    self.assertEqual(corpus.encoding, 'pcm')
    self.assertEqual(corpus.origin, {'corpus': 'test'})
    places = tf.data.Dataset.from_tensor_slices(clients.client_ids)
    places = places.map(_lookup_fn(corpus)).as_numpy_iterator()
    self.assertEqual(
        [tuple(map(int, place)) for place in places],
        [row[1:4] for row in rows],
    )

  def test_colliding_home_slots_are_probed_past_the_end(self):
    # Six ids of home slot 15 of 16: they fill slot 15 and five overflow slots.
    candidates = [str(i) for i in range(2000)]
    keys = tf.strings.to_hash_bucket_fast(candidates, 2**63 - 1).numpy()
    ids = [c for c, key in zip(candidates, keys) if key % 16 == 15][:6]
    clients = _clients(6, client_ids=ids)
    self.write(clients)
    corpus, _ = index.read(self.root)
    self.assertEqual(corpus.num_slots, 16)
    lookup = _lookup_fn(corpus)
    for client_id, first in zip(ids, clients.first_records):
      self.assertEqual(int(lookup(client_id)[1]), first)

  def test_offsets_of_any_stretch_and_of_any_records(self):
    # 64 to a slot: within one, over its ends, over several, the last one.
    clients = _clients(1, num_utterances=np.array([1000]))
    self.write(clients)
    expected = _offsets(1000)
    path = self.path(index.OFFSETS_FILE)
    read = tf.function(
        index.build_offsets_fn(path),
        input_signature=[tf.TensorSpec([], tf.int64)] * 2,
        autograph=False,
    )
    for first, count in (
        (0, 1), (0, 64), (0, 65), (63, 1), (63, 2), (64, 64), (100, 700),
        (999, 1), (0, 1000),
    ):
      np.testing.assert_array_equal(
          read(tf.constant(first, tf.int64), tf.constant(count, tf.int64)),
          expected[first : first + count],
      )
    records = np.array([999, 3, 64, 3, 0, 63])
    np.testing.assert_array_equal(
        index.take_offsets(path, records), expected[records]
    )

  # Three slots: of 12 bytes of header, 512 of content and 4 of a checksum.
  @parameterized.product(
      slot=(0, 1, 2), byte=(14, 300, 523, 527), way=('graph', 'numpy')
  )
  def test_damaged_offsets_are_known_and_others_are_read(self, slot, byte, way):
    self.write(_clients(1, num_utterances=np.array([150])))
    path = self.path(index.OFFSETS_FILE)
    if way == 'graph':
      read = index.build_offsets_fn(path)
      error = tf.errors.InvalidArgumentError
    else:
      read = lambda first, count: index.take_offsets(
          path, np.arange(first, first + count)
      )
      error = ValueError
    with open(path, 'r+b') as f:
      f.seek(528 * slot + byte)
      (found,) = f.read(1)
      f.seek(-1, 1)
      f.write(bytes([found ^ 0x55]))
    place = lambda *pair: map(np.int64, pair)
    for other in range(3):
      if other != slot:
        np.testing.assert_array_equal(
            read(*place(64 * other, 20)),
            _offsets(150)[64 * other : 64 * other + 20],
        )
    message = 'records.offsets is missing or damaged'
    with self.assertRaisesRegex(error, message):
      read(*place(64 * slot + 1, 1))
    with self.assertRaisesRegex(error, message):
      read(*place(0, 150))
    os.remove(path)
    with self.assertRaisesRegex(error, message):
      read(*place(0, 1))

  # Slots are of 40 bytes: 12 of header, 24 of content and a checksum.
  @parameterized.parameters(0, 14, 24, 39)
  def test_graph_knows_damaged_slots_and_names_nobody(self, offset):
    clients = _clients(100)
    self.write(clients)
    corpus, _ = index.read(self.root)
    self.assertGreaterEqual(corpus.num_slots, 200)  # At most half full.
    lookup = tf.function(_lookup_fn(corpus))
    key = tf.strings.to_hash_bucket_fast(clients.client_ids[7], 2**63 - 1)
    with open(self.path(index.HASH_FILE), 'r+b') as f:
      f.seek(40 * int(key.numpy() % corpus.num_slots) + offset)
      f.write(b'\xee')
    missing = f'{index.HASH_FILE} is missing or damaged where the place of a'
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, missing):
      lookup(tf.constant(clients.client_ids[7]))
    os.remove(self.path(index.HASH_FILE))
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, missing):
      lookup(tf.constant(clients.client_ids[0]))

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
      (
          'one_record_of_two_clients',
          dict(
              client_ids=['a', 'b', 'c'],
              num_utterances=np.array([2, 1, 1]),
              first_records=np.array([0, 1, 2]),
          ),
          3,
          'each once',
      ),
  )
  def test_refuses_to_write(self, changes, num_clients, message):
    with self.assertRaisesRegex(ValueError, message):
      self.write(_clients(num_clients, **changes))
    self.assertFalse(os.path.exists(self.path(index.CORPUS_FILE)))

  def test_refuses_records_of_nobody(self):
    clients = _clients(3)
    with self.assertRaisesRegex(ValueError, 'each once'):
      self.write(clients, num_records=int(clients.num_utterances.sum()) + 1)

  def test_refuses_two_ids_with_one_key(self):
    fingerprint = tf.strings.to_hash_bucket_fast
    with mock.patch.object(
        tf.strings,
        'to_hash_bucket_fast',
        lambda ids, n: fingerprint(ids, n) // 2**62,
    ):
      with self.assertRaisesRegex(ValueError, 'have the same hash key'):
        self.write(_clients(5))

  @parameterized.named_parameters(
      ('other_format', dict(format_version=1), 'is of format 1'),
      ('clients', dict(num_clients=4), 'of another corpus .*other numbers'),
      ('utterances', dict(num_utterances=4), 'of another corpus .*must be all'),
      ('samples', dict(num_samples=4), 'of another corpus .*other numbers'),
      ('slots', dict(num_slots=17), 'does not have the places of clients'),
      ('kind', dict(encoding='mp3'), 'is damaged .*encoding'),
      ('missing', dict(files={}), 'is damaged .*KeyError'),
  )
  def test_corpus_file_that_says_something_else(self, changes, message):
    self.write(_clients(3))
    path = self.path(index.CORPUS_FILE)
    content = json.loads(pathlib.Path(path).read_text())
    with open(path, 'w', encoding='utf-8') as f:
      json.dump(content | changes, f)
    with self.assertRaisesRegex(ValueError, message):
      index.read(self.root)

  def test_missing_and_damaged_corpus_file(self):
    with self.assertRaisesRegex(ValueError, 'nowhere is not a folder'):
      index.read(self.path('nowhere'))
    with self.assertRaisesRegex(ValueError, 'holds no corpus.json'):
      index.read(self.root)
    self.write(_clients(3))
    for place in (0, 1):
      fakes.damage(self.path(index.CORPUS_FILE), place)
      with self.assertRaisesRegex(ValueError, 'corpus.json is damaged'):
        index.read(self.root)
      fakes.damage(self.path(index.CORPUS_FILE), place)
    pathlib.Path(self.path(index.CORPUS_FILE)).write_text('[' * 10**5)
    with self.assertRaisesRegex(ValueError, 'corpus.json is damaged .Recursi'):
      index.read(self.root)

  @parameterized.parameters(
      index.CLIENTS_FILE, index.HASH_FILE, index.OFFSETS_FILE
  )
  def test_damaged_missing_or_foreign_index_file(self, name):
    # Large enough to be read in parts.
    self.write(_clients(30_000))
    path = self.path(name)
    for place in (0, 0.5, 1):
      fakes.damage(path, place)
      with self.assertRaisesRegex(ValueError, f'{name} does not have the chec'):
        index.read(self.root)
      fakes.damage(path, place)
    index.read(self.root)
    other = pathlib.Path(path).read_bytes()
    ids = [f'other {i}' for i in range(29_000)]
    self.write(_clients(29_000, client_ids=ids))
    pathlib.Path(path).write_bytes(other)
    with self.assertRaisesRegex(ValueError, 'damaged or of another corpus'):
      index.read(self.root)
    os.remove(path)
    with self.assertRaisesRegex(ValueError, f'{name} is missing'):
      index.read(self.root)

  # A slot's header; or a client's key, first record, number of utterances and
  # shard.
  @parameterized.product(
      part=(
          *((index.HASH_FILE, 40, byte) for byte in (0, 12, 20, 28, 32)),
          (index.OFFSETS_FILE, 528, 0),
      ),
      place=(0, 0.5, 0.99),
  )
  def test_made_up_index_files_of_the_right_checksum(self, part, place):
    name, slot_bytes, byte = part
    self.write(_clients(100))
    content = bytearray(pathlib.Path(self.path(name)).read_bytes())
    start = int(place * (len(content) // slot_bytes)) * slot_bytes
    payload = content[start + 12 : start + slot_bytes - 4]
    if byte:
      payload[byte - 12] ^= 1
    else:
      payload = bytes(2**10)
    slot = index._frame_records(np.frombuffer(payload, '<i8')[np.newaxis])
    content[start : start + slot_bytes] = slot[:slot_bytes]
    self.make_up(name, content)
    with self.assertRaisesRegex(ValueError, f'{name} does not have the'):
      index.read(self.root)

  def test_made_up_clients_are_checked_as_those_that_are_written(self):
    self.write(_clients(3))
    content = pathlib.Path(self.path(index.CLIENTS_FILE)).read_bytes()
    for old, new, message in (
        (b'\t0\t', b'\t1\t', 'client speaker 0 ü is in shard 1'),
        (b'\t0\t', b'\t%d\t' % 2**70, 'too large'),
        (b'speaker 1', b'speaker 0', 'occurs twice'),
    ):
      self.make_up(index.CLIENTS_FILE, content.replace(old, new, 1))
      with self.assertRaisesRegex(
          ValueError, f'clients.tsv is damaged or of another corpus .*{message}'
      ):
        index.read(self.root)

  def make_up(self, name: str, content: bytes) -> None:
    """Puts an index file in the place of another, with its checksum."""
    pathlib.Path(self.path(name)).write_bytes(content)
    path = pathlib.Path(self.path(index.CORPUS_FILE))
    corpus = json.loads(path.read_text())
    corpus['files'][name] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(corpus))

  @parameterized.parameters(0, 1, 2)
  def test_truncated_or_missing_shard(self, number):
    self.write(_clients(3), num_shards=3)
    name = index.shard_name(number)
    pathlib.Path(self.path(name)).write_bytes(b'sha')
    with self.assertRaisesRegex(ValueError, f'{name}.*has 3 bytes .* 5;'):
      index.read(self.root)
    os.remove(self.path(name))
    with self.assertRaisesRegex(ValueError, f'{name}.*is missing'):
      index.read(self.root)
