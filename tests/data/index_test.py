import hashlib
import json
import mmap
import os
import pathlib
from unittest import mock

from absl.testing import parameterized
import numpy as np

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


class IndexTest(cases.TestCase):

  def write(
      self,
      clients: index.Clients,
      num_shards: int = 1,
      num_records: int | None = None,
      **settings,
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
        **settings,
    )

  @parameterized.parameters(1, 2, 7, 8, 1000)
  def test_reads_what_was_written(self, num_clients):
    clients = _clients(num_clients, shards=np.arange(num_clients) % 3)
    self.write(clients, num_shards=3)
    corpus, found, offsets = index.read(self.root)
    rows = [row for row in zip(clients[0], *(c.tolist() for c in clients[1:]))]
    found_rows = list(zip(found[0], *(c.tolist() for c in found[1:])))
    self.assertEqual(found_rows, sorted(rows))
    self.assertEqual(corpus.num_clients, num_clients)
    self.assertEqual(corpus.num_utterances, clients.num_utterances.sum())
    self.assertEqual(corpus.num_samples, clients.num_samples.sum())
    self.assertEqual(corpus.characters, ' ab')
    self.assertEqual(corpus.encoding, 'pcm')
    self.assertEqual(corpus.origin, {'corpus': 'test'})
    np.testing.assert_array_equal(
        offsets, _offsets(corpus.num_utterances)
    )

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
  def test_bad_clients_are_not_written(self, changes, num_clients, message):
    with self.assertRaisesRegex(ValueError, message):
      self.write(_clients(num_clients, **changes))
    self.assertFalse(os.path.exists(self.path(index.CORPUS_FILE)))

  def test_refuses_records_without_a_client(self):
    clients = _clients(3)
    with self.assertRaisesRegex(ValueError, 'each once'):
      self.write(clients, num_records=int(clients.num_utterances.sum()) + 1)

  def test_a_corpus_of_another_format_is_refused(self):
    self.write(_clients(3))
    path = pathlib.Path(self.path(index.CORPUS_FILE))
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | dict(format_version=1)))
    with self.assertRaisesRegex(ValueError, 'is of format 1'):
      index.read(self.root)

  def test_missing_and_damaged_corpus_file(self):
    with self.assertRaisesRegex(ValueError, 'nowhere is not a folder'):
      index.read(self.path('nowhere'))
    with self.assertRaisesRegex(ValueError, 'contains no corpus.json'):
      index.read(self.root)
    self.write(_clients(3))
    for place in (0, 1):
      fakes.damage(self.path(index.CORPUS_FILE), place)
      with self.assertRaisesRegex(ValueError, 'corpus.json is damaged'):
        index.read(self.root)
      fakes.damage(self.path(index.CORPUS_FILE), place)
    pathlib.Path(self.path(index.CORPUS_FILE)).write_text('[' * 10**5)
    with self.assertRaisesRegex(ValueError, 'corpus.json is damaged .*deeply'):
      index.read(self.root)

  def test_each_changed_byte_of_the_corpus_file_is_found(self):
    self.write(_clients(2))
    path = self.path(index.CORPUS_FILE)
    good = pathlib.Path(path).read_bytes()
    for place, byte in enumerate(good):
      for bit in (place % 8, (place + 5) % 8):
        changed = good[:place] + bytes([byte ^ 1 << bit]) + good[place + 1 :]
        pathlib.Path(path).write_bytes(changed)
        with self.assertRaisesRegex(
            ValueError, 'corpus.json is (damaged|of format)'
        ):
          index.read(self.root)
    pathlib.Path(path).write_bytes(good)
    index.read(self.root)

  def test_a_corpus_of_before_has_no_checksum_of_its_description(self):
    self.write(_clients(2))
    path = pathlib.Path(self.path(index.CORPUS_FILE))
    content = json.loads(path.read_text())
    del content['sha256']
    path.write_text(json.dumps(content))
    index.read(self.root)
    # One that another entry took the place of is missed.
    path.write_text(json.dumps(content | {'sha257': '0' * 64}))
    with self.assertRaisesRegex(ValueError, 'does not have its checksum'):
      index.read(self.root)

  def test_further_files_have_checksums_too(self):
    self.write(_clients(2), others={'more.txt': b'abc'})
    self.assertEqual(pathlib.Path(self.path('more.txt')).read_bytes(), b'abc')
    corpus = index.read(self.root).corpus
    self.assertCountEqual(
        corpus.files, [index.CLIENTS_FILE, index.OFFSETS_FILE, 'more.txt']
    )
    index.check_sha256(corpus, 'more.txt', b'abc')
    with self.assertRaisesRegex(ValueError, 'more.txt does not have the chec'):
      index.check_sha256(corpus, 'more.txt', b'abd')

  @parameterized.parameters(index.CLIENTS_FILE, index.OFFSETS_FILE)
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

  def test_blocks_of_the_table_do_not_change_it(self):
    self.write(_clients(50))
    expected = index.read(self.root).clients
    size = os.path.getsize(self.path(index.CLIENTS_FILE))
    size -= len('client_id\tshard\tfirst_record\tnum_utterances\tnum_samples\n')
    # The table has one block, one and a byte more, three, and one a line.
    for block in (size, size - 1, -(-size // 3), 1):
      with mock.patch.object(index, '_BLOCK_BYTES', block):
        found = index.read(self.root).clients
      self.assertEqual(list(found.client_ids), list(expected.client_ids))
      for one, other in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(one, other)

  def test_made_up_clients_are_checked_as_those_that_are_written(self):
    self.write(_clients(3))
    content = pathlib.Path(self.path(index.CLIENTS_FILE)).read_bytes()
    for old, new, message in (
        (b'\t0\t', b'\t1\t', 'client speaker 0 ü is in shard 1'),
        (b'speaker 1', b'speaker 0', 'occurs twice'),
    ):
      self.make_up(index.CLIENTS_FILE, content.replace(old, new, 1))
      with self.assertRaisesRegex(ValueError, message):
        index.read(self.root)

  @parameterized.parameters(
      # A field too few, and one too many two lines later.
      (b'a\t0\t0\t1\nb\t0\t1\t1\t5\nc\t0\t2\t1\t5\t5\n', 'not have five fields'),
      (b'a\t0\t0\t1\t5', 'not have five fields'),
      (b'\n', 'not have five fields'),
      (b'a\t0\t\t1\t5\n', 'not have 1 to 18 digits'),
      (b'a\t0\t0\t1\t5 6\n', 'not have 1 to 18 digits'),
      (b'a\t0\t0\t1\t-5\n', 'not have 1 to 18 digits'),
      (b'a\t0\t0\t1\t1234567890123456789\n', 'not have 1 to 18 digits'),
      (b'a\xff\t0\t0\t1\t5\n', 'utf-8'),
      (b'\t0\t0\t1\t5\n', "found ''"),
      (b'', 'at least one client'),
  )
  def test_made_up_tables_are_refused_with_one_line(self, lines, message):
    self.write(_clients(3))
    self.make_up(index.CLIENTS_FILE, b'header\n' + lines)
    with self.assertRaisesRegex(ValueError, message) as raised:
      index.read(self.root)
    self.assertNotIn('\n', str(raised.exception))

  @parameterized.parameters(1, 10, 1 << 20)
  def test_a_client_that_is_listed_twice_is_found_in_any_block(self, size):
    # By hand: a table of three, read in blocks of a line and of all lines.
    self.write(
        _clients(
            3,
            num_utterances=np.ones(3, np.int64),
            first_records=np.arange(3),
        )
    )
    with mock.patch.object(index, '_BLOCK_BYTES', size):
      self.assertEqual(
          index.read(self.root).clients.client_ids,
          ['speaker 0 ü', 'speaker 1 ü', 'speaker 2 ü'],
      )
      content = pathlib.Path(self.path(index.CLIENTS_FILE)).read_bytes()
      for old, new, message in (
          (b'speaker 2', b'speaker 1', 'client speaker 1 ü occurs twice'),
          (b'speaker 2', b'speaker 0', 'speaker 0 ü comes after speaker 1 ü'),
      ):
        self.make_up(index.CLIENTS_FILE, content.replace(old, new))
        with self.assertRaisesRegex(ValueError, message):
          index.read(self.root)

  def test_offsets_stay_on_disk(self):
    self.write(_clients(3))
    offsets = index.read(self.root).offsets
    self.assertIsInstance(offsets.base.obj, mmap.mmap)
    self.assertFalse(offsets.flags.writeable)
    for content in (b'', bytes(12)):
      self.make_up(index.OFFSETS_FILE, content)
      with self.assertRaisesRegex(ValueError, f'has {len(content)} bytes'):
        index.read(self.root)

  def make_up(self, name: str, content: bytes) -> None:
    """Puts an index file in the place of another, with its checksum."""
    pathlib.Path(self.path(name)).write_bytes(content)
    path = pathlib.Path(self.path(index.CORPUS_FILE))
    corpus = json.loads(path.read_text())
    corpus['files'][name] = hashlib.sha256(content).hexdigest()
    index.write_corpus_file(self.root, corpus)

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
