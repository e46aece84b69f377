"""Index of a corpus: where each client and each record lies, found in O(1).

A corpus is a folder with

    corpus.json              what it is, and the checksums of the rest
    clients.tsv              one line a client, sorted by client id
    clients.hash             the same as a hash table that the graph reads
    records.offsets          where each record begins in its shard
    shard-00000.tfrecord     records, each client contiguous in one shard

`speakers` may add speakers.tsv, which nothing here reads.

The hash table has linear probing at load 1/2. A client's key is the 63-bit
fingerprint of its id, its home slot is `key % num_slots`, and it lies at most
`_PROBE_LENGTH - 1` slots further on; extra slots at the end take the place of
wrapping around. Entries are laid out in the order of their home slots, so that
displacements are those of a queue at half load: their tail falls as
exp(-1.26 d), 11 slots at a million clients.

A slot is a TFRecord of three int64: key (-1: empty), number of the first
record, and shard number * 2^32 + number of utterances. The framing costs 16
bytes a slot and buys a checksum and `TFRecordDatasetV2(byte_offsets)`, which
seeks; `FixedLengthRecordDatasetV2` reads through its header bytes (5.8 ms
instead of 0.5 ms at 76 MB).

A client's records have consecutive numbers. records.offsets holds the byte
offset of each, by number, in slots of the same framing of 64 int64, so that any
stretch of it is read without the rest: 8 bytes a record on disk, none in
memory.

The graph holds the path and `num_slots`, so it does not grow with the
population. Two ids with one key (probability num_clients^2 / 2^64) are refused
when the table is built; an id that is not in it but has the key of one that is
gets that client's place, which is why readers must compare the `client_id` in
the records as well.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import json
import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr import files
from tff_asr.data import schema

FORMAT_VERSION = 2
CORPUS_FILE = 'corpus.json'
CLIENTS_FILE = 'clients.tsv'
HASH_FILE = 'clients.hash'
OFFSETS_FILE = 'records.offsets'
MAX_UTTERANCES = 2**32 - 1

_NUM_KEYS = 2**63 - 1
_EMPTY_KEY = -1
_UNREADABLE_KEY = -2
_PROBE_LENGTH = 32
_HEADER_BYTES = 12
_FRAME_BYTES = _HEADER_BYTES + 4
_SLOT_BYTES = 24 + _FRAME_BYTES
_OFFSETS_PER_SLOT = 64
_OFFSETS_SLOT_BYTES = 8 * _OFFSETS_PER_SLOT + _FRAME_BYTES
_NO_OFFSET = -1
_TSV_HEADER = 'client_id\tshard\tfirst_record\tnum_utterances\tnum_samples'


class Clients(NamedTuple):
  """The clients of a corpus as columns, sorted by client id.

  client_ids: one string a client.
  shards: int64 [num_clients], the number of the shard that holds the client.
  first_records: int64 [num_clients], number of the client's first record.
  num_utterances: int64 [num_clients], at least 1.
  num_samples: int64 [num_clients], over all its utterances.
  """

  client_ids: list[str]
  shards: np.ndarray
  first_records: np.ndarray
  num_utterances: np.ndarray
  num_samples: np.ndarray


class Shard(NamedTuple):
  """A shard file: its name, size and SHA-256."""

  name: str
  num_bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The contents of corpus.json.

  Attributes:
    path: The corpus folder, absolute.
    encoding: One of `schema.ENCODINGS`.
    sample_rate_hz: Always 16000.
    num_clients: Number of clients.
    num_utterances: Number of records over all clients.
    num_samples: Number of samples over all clients.
    characters: Every character of the transcripts, sorted.
    num_slots: Home slots of the hash table.
    shards: The shard files, by number.
    files: SHA-256 of the other files, by name.
    origin: Where the corpus comes from, what was converted and dropped.
  """

  path: str
  encoding: str
  sample_rate_hz: int
  num_clients: int
  num_utterances: int
  num_samples: int
  characters: str
  num_slots: int
  shards: tuple[Shard, ...]
  files: Mapping[str, str]
  origin: Mapping[str, Any]


def shard_name(shard: int) -> str:
  """Returns the file name of shard number `shard`."""
  return f'shard-{shard:05d}.tfrecord'


def write(
    folder: str | os.PathLike[str],
    *,
    clients: Clients,
    offsets: np.ndarray,
    shards: Sequence[Shard],
    encoding: str,
    characters: str,
    origin: Mapping[str, Any],
) -> None:
  """Writes the index' files and, last, corpus.json into `folder`.

  Args:
    folder: An existing folder that holds (or will hold) the shards.
    clients: The clients, in any order.
    offsets: int64 [num_records], byte offset of each record in the shard of its
      client, by number.
    shards: The shard files, by number.
    encoding: One of `schema.ENCODINGS`.
    characters: Every character that occurs in the transcripts.
    origin: What JSON can hold: corpus name, split, notices and the like.

  Raises:
    ValueError: If there are no clients, a client id is empty, holds a control
      character or occurs twice, two ids have one key, a client has no
      utterances or a shard that does not exist, or the clients' records are not
      all records once.
  """
  checks.one_of(schema.ENCODINGS, encoding=encoding)
  clients = _sorted(clients)
  offsets = np.asarray(offsets, np.int64)
  if np.any(offsets < 0):
    raise ValueError('offsets must not be negative.')
  _check_clients(clients, num_records=len(offsets), num_shards=len(shards))
  table, num_slots = _build_table(clients)
  rows = zip(
      clients.client_ids,
      clients.shards.tolist(),
      clients.first_records.tolist(),
      clients.num_utterances.tolist(),
      clients.num_samples.tolist(),
  )
  lines = [_TSV_HEADER]
  lines.extend(f'{i}\t{s}\t{o}\t{u}\t{n}' for i, s, o, u, n in rows)
  files = {
      CLIENTS_FILE: ('\n'.join(lines) + '\n').encode(),
      HASH_FILE: table,
      OFFSETS_FILE: _frame_offsets(offsets),
  }
  for name, content in files.items():
    with open(os.path.join(folder, name), 'wb') as f:
      f.write(content)
  corpus = {
      'format_version': FORMAT_VERSION,
      'encoding': encoding,
      'sample_rate_hz': schema.SAMPLE_RATE_HZ,
      'num_clients': len(clients.client_ids),
      'num_utterances': int(clients.num_utterances.sum()),
      'num_samples': int(clients.num_samples.sum()),
      'characters': ''.join(sorted(set(characters))),
      'num_slots': num_slots,
      'shards': [shard._asdict() for shard in shards],
      'files': {
          name: hashlib.sha256(content).hexdigest()
          for name, content in files.items()
      },
      'origin': dict(origin),
  }
  with open(os.path.join(folder, CORPUS_FILE), 'w', encoding='utf-8') as f:
    json.dump(corpus, f, indent=1, ensure_ascii=False)
    f.write('\n')


def read(folder: str | os.PathLike[str]) -> tuple[Corpus, Clients]:
  """Reads and checks a corpus' index.

  Shards are checked by size, and the lengths that their records state: made up
  to be a terabyte, with the right checksum, one would end TensorFlow's reader
  and with it the process.

  Raises:
    ValueError: If the folder or corpus.json is missing or not of this format,
      an index file or a shard is missing, was changed, belongs to another
      corpus or is made up. The message is one line that names the file.
  """
  path = os.path.abspath(os.fspath(folder))
  corpus = _read_corpus_file(path)
  table, offsets, rows = (
      _read_file(corpus, name)
      for name in (HASH_FILE, OFFSETS_FILE, CLIENTS_FILE)
  )
  clients = _parse_clients(corpus, rows)
  # Whoever makes up a file makes up its checksum, too.
  if _build_table(clients) != (table, corpus.num_slots):
    raise ValueError(
        f'{os.path.join(path, HASH_FILE)} does not have the places of clients'
        f' that {CLIENTS_FILE} gives; write the corpus again.'
    )
  for shard in corpus.shards:
    name = os.path.join(path, shard.name)
    if not os.path.isfile(name):
      raise ValueError(f'{name} is missing; write the corpus again.')
    if os.path.getsize(name) != shard.num_bytes:
      raise ValueError(
          f'{name} has {os.path.getsize(name)} bytes instead of'
          f' {shard.num_bytes}; it is truncated or of another corpus. Copy or'
          ' write the corpus again.'
      )
  _check_lengths(corpus, clients, offsets=_parse_offsets(corpus, offsets))
  return corpus, clients


def check_sha256(corpus: Corpus, name: str, content: bytes) -> None:
  """Raises ValueError if a file is not the one that corpus.json names.

  Args:
    corpus: The corpus.
    name: The file's, one of `corpus.files`.
    content: What was read of it.
  """
  if hashlib.sha256(content).hexdigest() != corpus.files[name]:
    raise ValueError(
        f'{os.path.join(corpus.path, name)} does not have the checksum that'
        f' {CORPUS_FILE} gives; it is damaged or of another corpus. Copy or'
        ' write the corpus again.'
    )


def _build_table(clients: Clients) -> tuple[bytes, int]:
  """The content of clients.hash, and its number of home slots.

  Raises:
    ValueError: If two ids have one key.
  """
  client_ids = clients.client_ids
  keys = tf.strings.to_hash_bucket_fast(client_ids, _NUM_KEYS).numpy()
  by_key = np.argsort(keys, kind='stable')
  same = np.flatnonzero(np.diff(keys[by_key]) == 0)
  if same.size:
    first, second = (client_ids[by_key[same[0] + i]] for i in (0, 1))
    raise ValueError(
        f'clients {first} and {second} have the same hash key; rename one.'
    )
  num_slots = max(16, 2 * len(keys))
  while True:
    order = by_key[np.argsort(keys[by_key] % num_slots, kind='stable')]
    home = keys[order] % num_slots
    # The i-th entry lies at max(home, place of the one before + 1).
    rank = np.arange(len(order))
    place = np.maximum.accumulate(home - rank) + rank
    if np.max(place - home) < _PROBE_LENGTH:
      break
    num_slots += num_slots // 2
  slots = np.zeros([num_slots + _PROBE_LENGTH, 3], np.int64)
  slots[:, 0] = _EMPTY_KEY
  slots[place, 0] = keys[order]
  slots[place, 1] = clients.first_records[order]
  slots[place, 2] = (clients.shards[order] << 32) + (
      clients.num_utterances[order]
  )
  return _frame_records(slots), num_slots


def build_lookup_fn(
    path: str, *, num_slots: int
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
  """Returns a graph function from a client id to the place of its records.

  The function takes string [] and returns int64 scalars: shard number, number
  of the first record, how many records there are. An id whose key is not in the
  corpus, or whose slots cannot be read, raises InvalidArgumentError, which does
  not name it. It uses core ops only, reads `_PROBE_LENGTH` slots from the file,
  and its graph does not depend on the number of clients.

  Args:
    path: The table's file.
    num_slots: Its number of home slots.
  """
  # A vector, because a scalar is stored as a varint and the size of the graph
  # would depend on the value.
  table_size = np.array([num_slots, _PROBE_LENGTH], np.int64)
  unreadable = np.array([_UNREADABLE_KEY, 0, 0], '<i8').tobytes()

  def lookup(client_id: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    client_id = tf.convert_to_tensor(client_id, tf.string)
    key = tf.strings.to_hash_bucket_fast(client_id, _NUM_KEYS)
    home = tf.math.floormod(key, tf.constant(table_size)[0])
    slots = _read_slots(
        path,
        offset=home * _SLOT_BYTES,
        count=tf.ones_like(home) * _PROBE_LENGTH,
        unreadable=unreadable,
        buffer_size=_PROBE_LENGTH * _SLOT_BYTES,
    )
    match = tf.equal(slots[:, 0], key)
    is_readable = tf.reduce_all(tf.not_equal(slots[:, 0], _UNREADABLE_KEY))
    readable = tf.debugging.Assert(
        is_readable,
        [
            f'{path} is missing or damaged where the place of a client should '
            'be; copy or write the corpus again.'
        ],
    )
    check = tf.debugging.Assert(
        # One message at a time: the table was read, and the key is not there.
        tf.logical_or(~is_readable, tf.reduce_any(match)),
        [
            'a client of this round is not in the corpus '
            f'{os.path.dirname(path)}.'
        ],
    )
    with tf.control_dependencies([readable, check]):
      slot = tf.gather(slots, tf.argmax(tf.cast(match, tf.int32)))
    shard = tf.bitwise.right_shift(slot[2], tf.constant(32, tf.int64))
    count = tf.bitwise.bitwise_and(
        slot[2], tf.constant(MAX_UTTERANCES, tf.int64)
    )
    return shard, slot[1], count

  return lookup


def build_offsets_fn(
    path: str,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Returns a graph function from a stretch of records to their offsets.

  The function takes int64 scalars, the number of the first record and how many,
  at least 1, and returns int64 [how many]. Where the file cannot be read it
  raises InvalidArgumentError. It reads the slots of the stretch.

  Args:
    path: records.offsets of a corpus.
  """
  unreadable = np.full([_OFFSETS_PER_SLOT], _UNREADABLE_KEY, '<i8').tobytes()

  def read_offsets(first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    slot = first // _OFFSETS_PER_SLOT
    last = (first + count - 1) // _OFFSETS_PER_SLOT
    slots = _read_slots(
        path,
        offset=slot * _OFFSETS_SLOT_BYTES,
        count=last - slot + 1,
        unreadable=unreadable,
        buffer_size=2**16,
    )
    start = first - slot * _OFFSETS_PER_SLOT
    offsets = tf.reshape(slots, [-1])[start : start + count]
    readable = tf.debugging.Assert(
        tf.reduce_all(offsets >= 0),
        [
            f'{path} is missing or damaged where the records of a client should'
            ' be; copy or write the corpus again.'
        ],
    )
    with tf.control_dependencies([readable]):
      return tf.identity(offsets)

  return read_offsets


def take_offsets(path: str, records: np.ndarray) -> np.ndarray:
  """Returns the byte offsets of records of any clients, without the graph.

  Args:
    path: records.offsets of a corpus.
    records: int64 [n], their numbers, in any order.

  Returns:
    int64 [n].

  Raises:
    ValueError: The file is missing, or damaged where they are.
  """
  numbers, rows = np.unique(records // _OFFSETS_PER_SLOT, return_inverse=True)
  try:
    content = np.memmap(path, np.uint8, 'r')
    slots = content.reshape([-1, _OFFSETS_SLOT_BYTES])[numbers]
  except (OSError, ValueError, IndexError):
    slots = np.zeros([0, _OFFSETS_SLOT_BYTES], np.uint8)
  payloads = slots[:, _HEADER_BYTES:-4]
  if len(slots) < len(numbers) or np.any(
      _masked_crc32c(payloads) != slots[:, -4:]
  ):
    raise ValueError(
        f'{path} is missing or damaged; copy or write the corpus again.'
    )
  offsets = np.ascontiguousarray(payloads).view('<i8')
  return offsets[rows, records % _OFFSETS_PER_SLOT].astype(np.int64)


def _read_slots(
    path: str,
    *,
    offset: tf.Tensor,
    count: tf.Tensor,
    unreadable: bytes,
    buffer_size: int,
) -> tf.Tensor:
  """Slots of a file from a byte on: int64 [count, slot]."""
  # No constant: whether the file is there would be folded into the graph.
  nothing = tf.strings.substr(tf.strings.as_string(offset), 0, 0)
  records = record_dataset(
      tf.strings.join([path, nothing]), offset=offset, buffer_size=buffer_size
  )
  slots = take_readable(records, count=count, unreadable=unreadable)
  return tf.io.decode_raw(
      slots.batch(count).get_single_element(), tf.int64, little_endian=True
  )


def take_readable(
    records: tf.data.Dataset, *, count: tf.Tensor, unreadable: bytes
) -> tf.data.Dataset:
  """Returns the first records of a file, without its reader's errors.

  A reader that fails cannot say whose place it was looking for. So its error
  ends the records, and who asked reports by name what is then missing.

  Args:
    records: As from `record_dataset`.
    count: int64 [], how many.
    unreadable: Stands for each that is not there.
  """
  missing = tf.data.Dataset.from_tensors(unreadable).repeat(count)
  return records.ignore_errors().concatenate(missing).take(count)


def record_dataset(
    path: tf.Tensor, *, offset: tf.Tensor, buffer_size: int
) -> tf.data.Dataset:
  """Returns the TFRecords (string []) of a file from a byte offset on.

  Seeks to the offset instead of reading through the file. A file that is
  missing gives no records; a damaged one an error where it is damaged.

  TensorFlow 2.14 forgets the offset when tf.data rewrites the graph of a
  dataset before it is iterated over, so this one's options forbid that, and
  with it those of any dataset built on it.

  Args:
    path: string [].
    offset: int64 [], the beginning of a record.
    buffer_size: Bytes read at a time.
  """
  # A reader of TensorFlow 2.14 whose file is missing fails at each attempt,
  # without end where errors are ignored.
  pattern = tf.strings.regex_replace(path, r'([*?\[\]\\])', r'\\\1')
  files = tf.io.matching_files(pattern)
  variant = tf.raw_ops.TFRecordDatasetV2(
      filenames=files,
      compression_type='',
      buffer_size=buffer_size,
      byte_offsets=tf.fill([tf.size(files)], offset),
  )
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  options.autotune.enabled = False
  return tf.data.experimental.from_variant(
      variant, tf.TensorSpec([], tf.string)
  ).with_options(options)


def _sorted(clients: Clients) -> Clients:
  """The same clients in the order of their ids."""
  ids = clients.client_ids
  order = sorted(range(len(ids)), key=ids.__getitem__)
  columns = (np.asarray(column, np.int64)[order] for column in clients[1:])
  return Clients([ids[i] for i in order], *columns)


def _check_clients(
    clients: Clients, *, num_records: int, num_shards: int
) -> None:
  """Raises ValueError for clients that an index cannot hold."""
  ids = clients.client_ids
  if not ids:
    raise ValueError('clients must hold at least one client, found none.')
  for i, client_id in enumerate(ids):
    if not client_id or not client_id.isprintable():
      raise ValueError(
          'A client id must not be empty nor hold tabs, line ends or other'
          f' control characters, found {client_id!r}.'
      )
    if i and client_id == ids[i - 1]:
      raise ValueError(f'client {client_id} occurs twice; merge its records.')
  counts = clients.num_utterances
  bad = np.flatnonzero((counts < 1) | (counts > MAX_UTTERANCES))
  if bad.size:
    raise ValueError(
        f'client {ids[bad[0]]} has {counts[bad[0]]} utterances; an index holds'
        ' clients with at least 1; leave it out.'
    )
  bad = np.flatnonzero((clients.shards < 0) | (clients.shards >= num_shards))
  if bad.size:
    raise ValueError(
        f'client {ids[bad[0]]} is in shard {clients.shards[bad[0]]}, but there'
        f' are {num_shards} shards.'
    )
  order = np.argsort(clients.first_records, kind='stable')
  ends = np.cumsum(counts[order])
  starts = np.concatenate([[0], ends[:-1]])
  if ends[-1] != num_records or np.any(clients.first_records[order] != starts):
    raise ValueError(
        f'the records of clients must be all {num_records} of the corpus, each'
        ' once.'
    )


def _read_corpus_file(path: str) -> Corpus:
  """Reads corpus.json."""
  if not os.path.isdir(path):
    raise ValueError(f'{path} is not a folder; write the corpus first.')
  name = os.path.join(path, CORPUS_FILE)
  if not os.path.isfile(name):
    raise ValueError(
        f'{path} holds no {CORPUS_FILE}: it is not a corpus folder, or its'
        ' writing was interrupted. Write the corpus again, or name one of its'
        ' split folders.'
    )
  try:
    content = json.loads(files.read(name))
    version = content['format_version']
    if version != FORMAT_VERSION:
      raise ValueError(
          f'{name} is of format {version}, this program reads format'
          f' {FORMAT_VERSION}; write the corpus again.'
      )
    fields = {
        field.name: content[field.name]
        for field in dataclasses.fields(Corpus)
        if field.name != 'path'
    }
    fields['shards'] = tuple(Shard(**shard) for shard in fields['shards'])
    corpus = Corpus(path=path, **fields)
    _check_kinds(corpus)
  except (
      json.JSONDecodeError,
      KeyError,
      RecursionError,
      TypeError,
      UnicodeDecodeError,
  ) as e:
    raise ValueError(
        f'{name} is damaged ({type(e).__name__}: {e}); write the corpus again.'
    ) from e
  return corpus


def _check_kinds(corpus: Corpus) -> None:
  """Raises TypeError unless the fields of corpus.json are of their kinds."""
  numbers = dict(
      sample_rate_hz=corpus.sample_rate_hz,
      num_clients=corpus.num_clients,
      num_utterances=corpus.num_utterances,
      num_samples=corpus.num_samples,
      num_slots=corpus.num_slots,
      **{f'num_bytes of {shard.name}': shard.num_bytes
         for shard in corpus.shards},
  )
  texts = dict(
      characters=corpus.characters,
      **{f'checksum of {name}': corpus.files[name]
         for name in (CLIENTS_FILE, HASH_FILE, OFFSETS_FILE)},
      **{f'name of shard {number}': shard.name
         for number, shard in enumerate(corpus.shards)},
  )
  try:
    checks.positive_int(**numbers)
    checks.one_of(schema.ENCODINGS, encoding=corpus.encoding)
  except ValueError as error:
    raise TypeError(str(error)) from None
  for name, text in texts.items():
    if not isinstance(text, str):
      raise TypeError(f'{name} must be a text, found {text!r}.')


def _read_file(corpus: Corpus, name: str) -> bytes:
  """The content of an index file, which has its checksum."""
  path = os.path.join(corpus.path, name)
  try:
    with open(path, 'rb') as f:
      content = f.read()
  except FileNotFoundError as e:
    raise ValueError(f'{path} is missing; write the corpus again.') from e
  check_sha256(corpus, name, content)
  return content


def _parse_offsets(corpus: Corpus, content: bytes) -> np.ndarray:
  """The byte offsets of all records, int64 [num_utterances]."""
  num_slots = -(-corpus.num_utterances // _OFFSETS_PER_SLOT)
  if len(content) == num_slots * _OFFSETS_SLOT_BYTES:
    slots = np.frombuffer(content, np.uint8).reshape([num_slots, -1])
    payloads = np.ascontiguousarray(slots[:, _HEADER_BYTES:-4])
    offsets = payloads.view('<i8').reshape(-1)[: corpus.num_utterances]
    if _frame_offsets(offsets) == content:
      return offsets.astype(np.int64, copy=False)
  raise ValueError(
      f'{os.path.join(corpus.path, OFFSETS_FILE)} does not have the'
      f' {corpus.num_utterances} records that {CORPUS_FILE} gives; write the'
      ' corpus again.'
  )


def _check_lengths(
    corpus: Corpus, clients: Clients, *, offsets: np.ndarray
) -> None:
  """Raises ValueError if a record claims to reach beyond its shard.

  A damaged header, whose checksum is wrong, is left to the reader.
  """
  order = np.argsort(clients.first_records)
  of_shard = np.repeat(clients.shards[order], clients.num_utterances[order])
  by_shard = np.argsort(of_shard, kind='stable')
  ends = np.searchsorted(of_shard[by_shard], range(1, len(corpus.shards)))
  for shard, rows in zip(corpus.shards, np.split(by_shard, ends), strict=True):
    name = os.path.join(corpus.path, shard.name)
    starts = np.unique(offsets[rows])
    # The reader finds that nothing is at a place outside of the shard.
    starts = starts[(starts >= 0) & (starts <= shard.num_bytes - _HEADER_BYTES)]
    content = np.memmap(name, np.uint8, 'r')
    # pylint: disable-next=protected-access
    content._mmap.madvise(mmap.MADV_RANDOM)  # A page for each, nothing ahead.
    headers = content[starts[:, np.newaxis] + np.arange(_HEADER_BYTES)]
    lengths = np.ascontiguousarray(headers[:, :8]).view('<u8')[:, 0]
    room = np.maximum(shard.num_bytes - _FRAME_BYTES - starts, 0)
    is_long = lengths > room.astype(np.uint64)
    headers = headers[is_long]
    is_meant = np.all(
        _masked_crc32c(headers[:, :8]) == headers[:, 8:], axis=1
    )
    if np.any(is_meant):
      raise ValueError(
          f'{name}: the record at byte {starts[is_long][is_meant][0]} claims'
          f' {lengths[is_long][is_meant][0]} bytes, the whole shard has'
          f' {shard.num_bytes}; copy or write the corpus again.'
      )


def _parse_clients(corpus: Corpus, content: bytes) -> Clients:
  """The columns of clients.tsv, checked as those that are written."""
  try:
    header, *lines = content.decode().rstrip('\n').split('\n')
    if header != _TSV_HEADER or not lines:
      raise ValueError('unknown columns')
    ids, *columns = zip(*(line.split('\t') for line in lines), strict=True)
    clients = Clients(
        list(ids),
        *(np.fromiter(map(int, column), np.int64) for column in columns),
    )
    found = len(ids), int(clients.num_samples.sum())
    if found != (corpus.num_clients, corpus.num_samples):
      raise ValueError(f'{CORPUS_FILE} gives other numbers')
    _check_clients(
        clients,
        num_records=corpus.num_utterances,
        num_shards=len(corpus.shards),
    )
  except (OverflowError, TypeError, ValueError) as e:
    raise ValueError(
        f'{os.path.join(corpus.path, CLIENTS_FILE)} is damaged or of another'
        f' corpus ({e}); write the corpus again.'
    ) from e
  return clients


def _frame_offsets(offsets: np.ndarray) -> bytes:
  """The content of records.offsets."""
  num_slots = -(-len(offsets) // _OFFSETS_PER_SLOT)
  slots = np.full([num_slots, _OFFSETS_PER_SLOT], _NO_OFFSET, np.int64)
  slots.flat[: len(offsets)] = offsets
  return _frame_records(slots)


def _frame_records(payloads: np.ndarray) -> bytes:
  """Rows of int64 as consecutive TFRecords."""
  data = np.ascontiguousarray(payloads.astype('<i8', copy=False)).view(np.uint8)
  length = np.frombuffer(struct.pack('<Q', data.shape[1]), np.uint8)
  records = np.empty([len(data), data.shape[1] + _FRAME_BYTES], np.uint8)
  records[:, :8] = length
  records[:, 8:_HEADER_BYTES] = _masked_crc32c(length[np.newaxis])
  records[:, _HEADER_BYTES:-4] = data
  records[:, -4:] = _masked_crc32c(data)
  return records.tobytes()


def _masked_crc32c(rows: np.ndarray) -> np.ndarray:
  """TFRecord's masked CRC-32C of each row: uint8 [n, k] to uint8 [n, 4]."""
  table = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    odd = (table >> 1) ^ np.uint32(0x82F63B78)
    table = np.where(table & 1, odd, table >> 1)
  crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
  for column in rows.T:
    crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
  crc = ~crc
  masked = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
  return masked.astype('<u4').view(np.uint8).reshape(-1, 4)
