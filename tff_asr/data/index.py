"""Index of a corpus on disk: where each client's records lie.

A corpus is a folder with

    corpus.json              description, and checksums of all files
    clients.tsv              one line a client, sorted by client id
    records.offsets          byte offset of each record in its shard, int64
    shard-00000.tfrecord     records, each client contiguous in one shard

Writers may add others, such as speakers.tsv, which nothing here reads. A
client's records have consecutive numbers, so its first one and their count give
its stretch of records.offsets.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import json
import mmap
import os
from typing import Any, BinaryIO, NamedTuple, Optional

import numpy as np

from tff_asr import files
from tff_asr.data import client_ids as client_ids_lib
from tff_asr.data import schema

# Raised with each change of the files, so that older corpora are refused.
FORMAT_VERSION = 3
CORPUS_FILE = 'corpus.json'
CLIENTS_FILE = 'clients.tsv'
OFFSETS_FILE = 'records.offsets'

# TFRecord: a length of 8 bytes, and two checksums of 4.
RECORD_OVERHEAD_BYTES = 16
# Little-endian on every machine, because a corpus may be copied.
_OFFSET_DTYPE = '<i8'
# Of corpus.json's other entries.
_DIGEST = 'sha256'
_TSV_HEADER = 'client_id\tshard\tfirst_record\tnum_utterances\tnum_samples'
_NUM_COLUMNS = 4  # Of numbers.
_MAX_DIGITS = 18  # Of a number that fits int64 in any case.
# Lines are parsed in blocks, so that what they take on the way stays small.
_BLOCK_BYTES = 1 << 20


class Clients(NamedTuple):
  """The clients of a corpus as columns, sorted by client id.

  client_ids: one string a client; of an index that was read, a
    `client_ids.ClientIds`.
  shards: int64 [num_clients], the number of the shard that holds the client.
  first_records: int64 [num_clients], number of the client's first record.
  num_utterances: int64 [num_clients], at least 1.
  num_samples: int64 [num_clients], over all its utterances.
  """

  client_ids: Sequence[str]
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
    shards: The shard files, by number.
    files: SHA-256 of the other files but the shards, by name.
    origin: Where the corpus comes from, what was converted and dropped.
    features: What records hold in place of audio; None: audio.
  """

  path: str
  encoding: str
  sample_rate_hz: int
  num_clients: int
  num_utterances: int
  num_samples: int
  characters: str
  shards: tuple[Shard, ...]
  files: Mapping[str, str]
  origin: Mapping[str, Any]
  features: Optional[schema.StoredFeatures] = None


class Index(NamedTuple):
  """An index that was read.

  corpus: The contents of corpus.json.
  clients: Its clients.
  offsets: int64 [num_utterances], byte offset of each record in its shard,
    mapped from the file: pages that are not read take no memory.
  """

  corpus: Corpus
  clients: Clients
  offsets: np.ndarray


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
    features: Optional[schema.StoredFeatures] = None,
    others: Optional[Mapping[str, bytes]] = None,
) -> None:
  """Writes the index files and, last, corpus.json into `folder`.

  Args:
    folder: An existing folder that holds (or will hold) the shards.
    clients: The clients, in any order.
    offsets: int64 [num_records], byte offset of each record in the shard of its
      client, by number.
    shards: The shard files, by number.
    encoding: One of `schema.ENCODINGS`.
    characters: Every character that occurs in the transcripts.
    origin: What JSON can hold: corpus name, split, notices and the like.
    features: What the records hold in place of audio, if they do.
    others: Contents of further files by name, which get checksums, too.

  Raises:
    ValueError: If there are no clients, a client id is empty, contains a
      control character or occurs twice, a client has no utterances or a shard
      that does not exist, or the clients' records are not all records once.
  """
  # Examples are drawn by number in this order, so it must not depend on the
  # order in which a corpus was converted.
  clients = _sorted(clients)
  offsets = np.asarray(offsets, _OFFSET_DTYPE)
  _check_clients(clients, num_records=len(offsets), num_shards=len(shards))
  contents = {
      CLIENTS_FILE: _to_tsv(clients),
      OFFSETS_FILE: offsets.tobytes(),
      **(others or {}),
  }
  for name, content in contents.items():
    files.write(os.path.join(folder, name), content)
  # Last, so that a folder with a corpus.json has all files that it names.
  write_corpus_file(folder, {
      'format_version': FORMAT_VERSION,
      'encoding': encoding,
      'sample_rate_hz': schema.SAMPLE_RATE_HZ,
      'num_clients': len(clients.client_ids),
      'num_utterances': int(clients.num_utterances.sum()),
      'num_samples': int(clients.num_samples.sum()),
      # Sorted: the same corpus must give the same corpus.json.
      'characters': ''.join(sorted(set(characters))),
      'shards': [shard._asdict() for shard in shards],
      'files': {
          name: hashlib.sha256(content).hexdigest()
          for name, content in contents.items()
      },
      'origin': dict(origin),
      'features': None if features is None else features._asdict(),
  })


def write_corpus_file(
    folder: str | os.PathLike[str], content: Mapping[str, Any]
) -> None:
  """Writes corpus.json with the checksum of its own content."""
  files.write_json(
      os.path.join(folder, CORPUS_FILE),
      {**content, _DIGEST: _digest_of(content)},
  )


def _digest_of(content: Mapping[str, Any]) -> str:
  """SHA-256 of corpus.json's other entries, in hexadecimal."""
  others = {name: each for name, each in content.items() if name != _DIGEST}
  return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def read(folder: str | os.PathLike[str]) -> Index:
  """Reads and checks a corpus' index.

  Index files are checked by checksum, shards by size. `client_data.verify`
  also reads the shards.

  Raises:
    ValueError: If the folder or corpus.json is missing or not of this format,
      or an index file or a shard is missing, was changed or belongs to another
      corpus. The message is one line that names the file.
  """
  path = os.path.abspath(os.fspath(folder))
  corpus = read_corpus_file(path)
  with _open_checked(corpus, CLIENTS_FILE) as file:
    clients = _parse_clients(file)
  with _open_checked(corpus, OFFSETS_FILE) as file:
    offsets = _map_offsets(file)
  # Also of a corpus that another program wrote: a client that is listed twice
  # would be drawn twice as often as it is charged.
  _check_clients(
      clients, num_records=len(offsets), num_shards=len(corpus.shards)
  )
  # By size only: their checksums would take as long as an epoch. A damaged
  # record is found when it is read.
  for shard in corpus.shards:
    name = os.path.join(path, shard.name)
    if not os.path.isfile(name):
      raise ValueError(f'{name} is missing; write the corpus again.')
    # Catches a copy that was interrupted.
    if os.path.getsize(name) != shard.num_bytes:
      raise ValueError(
          f'{name} has {os.path.getsize(name)} bytes instead of'
          f' {shard.num_bytes}; it is truncated or of another corpus. Copy or'
          ' write the corpus again.'
      )
  return Index(corpus, clients, offsets)


def check_sha256(corpus: Corpus, name: str, content: bytes) -> None:
  """Raises ValueError if a file is not the one that corpus.json names.

  Args:
    corpus: The corpus.
    name: The file's name.
    content: The bytes that were read from it.
  """
  _check_digest(corpus, name, hashlib.sha256(content).hexdigest())


def _check_digest(corpus: Corpus, name: str, digest: str) -> None:
  """Raises ValueError if a digest is not the one of corpus.json."""
  if digest != corpus.files.get(name):
    raise ValueError(
        f'{os.path.join(corpus.path, name)} does not have the checksum that'
        f' {CORPUS_FILE} gives; it is damaged or of another corpus. Copy or'
        ' write the corpus again.'
    )


def _to_tsv(clients: Clients) -> bytes:
  """The content of clients.tsv."""
  columns = (column.tolist() for column in clients[1:])
  rows = zip(clients.client_ids, *columns, strict=True)
  lines = ['\t'.join(map(str, row)) for row in rows]
  return '\n'.join([_TSV_HEADER, *lines, '']).encode()


def _sorted(clients: Clients) -> Clients:
  """The same clients in the order of their ids."""
  ids = list(clients.client_ids)
  # By code point, which no locale changes.
  order = sorted(range(len(ids)), key=ids.__getitem__)
  columns = (np.asarray(column, np.int64)[order] for column in clients[1:])
  return Clients(client_ids_lib.build(ids[i] for i in order), *columns)


def _check_clients(
    clients: Clients, *, num_records: int, num_shards: int
) -> None:
  """Raises ValueError for clients that an index cannot hold."""
  ids = clients.client_ids
  if not len(ids):
    raise ValueError('clients must hold at least one client, found none.')
  counts = clients.num_utterances
  # A client without records would be drawn, and charged, for nothing.
  bad = np.flatnonzero(counts < 1)
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
  # Laid end to end, the clients' stretches of records cover all of them.
  # Records are numbered in the order of writing, not in that of ids.
  order = np.argsort(clients.first_records, kind='stable')
  ends = np.cumsum(counts[order])
  starts = np.concatenate([[0], ends[:-1]])
  if ends[-1] != num_records or np.any(clients.first_records[order] != starts):
    raise ValueError(
        f'the records of clients must be all {num_records} of the corpus, each'
        ' once.'
    )


def read_corpus_file(path: str) -> Corpus:
  """Reads corpus.json of a folder, without its index.

  Raises:
    ValueError: As `read`.
  """
  if not os.path.isdir(path):
    raise ValueError(f'{path} is not a folder; write the corpus first.')
  name = os.path.join(path, CORPUS_FILE)
  if not os.path.isfile(name):
    raise ValueError(
        f'{path} contains no {CORPUS_FILE}: it is not a corpus folder, or its'
        ' writing was interrupted. Write the corpus again, or name one of its'
        ' split folders.'
    )
  version, corpus = files.read_json(
      name,
      functools.partial(_parse_corpus, path),
      remedy='write the corpus again',
  )
  if corpus is None:
    raise ValueError(
        f'{name} is of format {version}, this program reads format'
        f' {FORMAT_VERSION}; write the corpus again.'
    )
  return corpus


def _parse_corpus(
    path: str, content: dict[str, Any]
) -> tuple[int, Optional[Corpus]]:
  """The format of corpus.json, and its content if it is of this format."""
  version = content['format_version']
  if version != FORMAT_VERSION:
    return version, None
  fields = {
      field.name: content[field.name]
      for field in dataclasses.fields(Corpus)
      if field.name not in ('path', 'features')
  }
  # Corpora that were written before have no checksum here. One whose name is
  # damaged is an entry too many.
  known = {*fields, 'format_version', 'features', _DIGEST}
  if content.get(_DIGEST) != _digest_of(content) and (
      _DIGEST in content or content.keys() - known
  ):
    raise ValueError('its content does not have its checksum')
  fields['shards'] = tuple(Shard(**shard) for shard in fields['shards'])
  # Corpora of audio that were written before do not have it.
  if stored := content.get('features'):
    fields['features'] = schema.StoredFeatures(**stored)
  return version, Corpus(path=path, **fields)


@contextlib.contextmanager
def _open_checked(corpus: Corpus, name: str) -> Iterator[BinaryIO]:
  """Opens an index file whose checksum is that of corpus.json."""
  path = os.path.join(corpus.path, name)
  if not os.path.exists(path):
    raise ValueError(f'{path} is missing; write the corpus again.')
  with files.open_regular(path) as file:
    # In blocks: offsets of 40 million records need not fit into memory.
    digest = hashlib.file_digest(file, 'sha256').hexdigest()
    _check_digest(corpus, name, digest)
    file.seek(0)
    yield file


def _map_offsets(file: BinaryIO) -> np.ndarray:
  """The content of records.offsets."""
  size = os.fstat(file.fileno()).st_size
  itemsize = np.dtype(_OFFSET_DTYPE).itemsize
  if not size or size % itemsize:
    raise ValueError(
        f'{file.name} has {size} bytes, which are no offsets of {itemsize}'
        ' bytes each; write the corpus again.'
    )
  # The array keeps the map, and the map the file.
  return np.frombuffer(
      mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), _OFFSET_DTYPE
  )


def _parse_clients(file: BinaryIO) -> Clients:
  """The columns of clients.tsv."""
  file.readline()  # The header.
  lines, numbers, last = [], [], []
  while block := file.read(_BLOCK_BYTES):
    block += file.readline()  # To the end of its last line.
    try:
      ids, columns = _parse_block(block)
    except ValueError as e:
      raise ValueError(
          f'{file.name} is not a table of clients ({e}); write the corpus'
          ' again.'
      ) from e
    names = ids.decode().split('\n')[:-1]
    client_ids_lib.check(last + names)
    last = names[-1:]
    lines.append(ids)
    numbers.append(columns)
  return Clients(
      client_ids_lib.ClientIds(b''.join(lines)),
      # Column by column, each contiguous.
      *(
          np.concatenate([part[:, column] for part in numbers] or [[]])
          for column in range(_NUM_COLUMNS)
      ),
  )


def _parse_block(block: bytes) -> tuple[bytes, np.ndarray]:
  """The ids of some lines of clients.tsv, one a line, and int64 [n, 4].

  Raises:
    ValueError: A line is not an id and four numbers.
  """
  # Without a Python object for each field, which would take five times as long.
  data = np.frombuffer(block, np.uint8)
  is_tab, is_end = data == ord('\t'), data == ord('\n')
  stops = np.flatnonzero(is_tab | is_end)
  # A line with a field too few must not shift the columns.
  ends = stops[_NUM_COLUMNS :: 1 + _NUM_COLUMNS]
  if not is_end[-1] or not np.array_equal(np.flatnonzero(is_end), ends):
    raise ValueError('a line does not have five fields')
  stops = stops.reshape([-1, 1 + _NUM_COLUMNS])
  # +1 at the first byte of each id, -1 behind its tab.
  steps = np.zeros(len(data) + 1, np.int8)
  steps[0] = 1
  steps[ends + 1] = 1
  steps[stops[:, 0] + 1] = -1
  is_id = np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
  widths = np.diff(stops) - 1
  is_digit = data - ord('0') < 10  # Unsigned, so that smaller bytes wrap.
  if (
      widths.min() < 1
      or widths.max() > _MAX_DIGITS
      or not np.all(is_id | is_digit | is_tab | is_end)
  ):
    raise ValueError(f'a number does not have 1 to {_MAX_DIGITS} digits')
  ids = data[is_id]
  ids[ids == ord('\t')] = ord('\n')
  numbers = np.fromstring(data[~is_id].tobytes(), np.int64, sep=' ')
  return ids.tobytes(), numbers.reshape([-1, _NUM_COLUMNS])
