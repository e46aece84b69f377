"""Where each client lies: written once, found in the graph in O(1).

A corpus is a folder with

    corpus.json              what it is, and the checksums of the rest
    clients.tsv              one line a client, sorted by client id
    clients.hash             the same as a hash table that the graph reads
    shard-00000.tfrecord     records, each client contiguous in one shard

`hash_table` tells how `clients.hash` works. `speakers` may add speakers.tsv,
which nothing here reads.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
import os
from typing import Any, NamedTuple

import numpy as np

from tff_asr import checks
from tff_asr.data import hash_table
from tff_asr.data import schema

FORMAT_VERSION = 1
CORPUS_FILE = 'corpus.json'
CLIENTS_FILE = 'clients.tsv'
HASH_FILE = 'clients.hash'

_TSV_HEADER = 'client_id\tshard\toffset\tnum_utterances\tnum_samples'


class Clients(NamedTuple):
  """The clients of a corpus as columns, sorted by client id.

  client_ids: one string a client.
  shards: int64 [num_clients], the number of the shard that holds the client.
  offsets: int64 [num_clients], byte offset of the client's first record.
  num_utterances: int64 [num_clients], at least 1.
  num_samples: int64 [num_clients], over all its utterances.
  """

  client_ids: list[str]
  shards: np.ndarray
  offsets: np.ndarray
  num_utterances: np.ndarray
  num_samples: np.ndarray


class Shard(NamedTuple):
  """A shard file: its name, size and SHA-256."""

  name: str
  num_bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class Corpus:
  """What corpus.json says.

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
    shards: Sequence[Shard],
    encoding: str,
    characters: str,
    origin: Mapping[str, Any],
) -> None:
  """Writes clients.tsv, clients.hash and, last, corpus.json into `folder`.

  Args:
    folder: An existing folder that holds (or will hold) the shards.
    clients: The clients, in any order.
    shards: The shard files, by number.
    encoding: One of `schema.ENCODINGS`.
    characters: Every character that occurs in the transcripts.
    origin: What JSON can hold: corpus name, split, notices and the like.

  Raises:
    ValueError: If there are no clients, a client id is empty, holds a control
      character or occurs twice, two ids have one key, or a client has no
      utterances or a shard that does not exist.
  """
  checks.one_of(schema.ENCODINGS, encoding=encoding)
  clients = _sorted(clients)
  _check_clients(clients, num_shards=len(shards))
  table, num_slots = hash_table.build(
      clients.client_ids,
      shards=clients.shards,
      offsets=clients.offsets,
      num_utterances=clients.num_utterances,
  )
  rows = zip(
      clients.client_ids,
      clients.shards.tolist(),
      clients.offsets.tolist(),
      clients.num_utterances.tolist(),
      clients.num_samples.tolist(),
  )
  lines = [_TSV_HEADER]
  lines.extend(f'{i}\t{s}\t{o}\t{u}\t{n}' for i, s, o, u, n in rows)
  files = {
      CLIENTS_FILE: ('\n'.join(lines) + '\n').encode(),
      HASH_FILE: table,
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
  """Reads and checks a corpus' index; shards are checked by size only.

  Raises:
    ValueError: If the folder or corpus.json is missing or not of this format,
      an index file or a shard is missing, was changed, or belongs to another
      corpus. The message is one line that names the file.
  """
  path = os.path.abspath(os.fspath(folder))
  corpus = _read_corpus_file(path)
  content = _read_file(path, HASH_FILE)
  check_sha256(corpus, HASH_FILE, content)
  _check_num_slots(path, content, num_slots=corpus.num_slots)
  content = _read_file(path, CLIENTS_FILE)
  check_sha256(corpus, CLIENTS_FILE, content)
  clients = _parse_clients(path, content.decode())
  found = (
      len(clients.client_ids),
      int(clients.num_utterances.sum()),
      int(clients.num_samples.sum()),
  )
  if found != (corpus.num_clients, corpus.num_utterances, corpus.num_samples):
    raise ValueError(
        f'{CLIENTS_FILE} and {CORPUS_FILE} in {path} disagree on the number of'
        ' clients, utterances or samples; write the corpus again.'
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


def _sorted(clients: Clients) -> Clients:
  """The same clients in the order of their ids."""
  ids = clients.client_ids
  order = sorted(range(len(ids)), key=ids.__getitem__)
  columns = (np.asarray(column, np.int64)[order] for column in clients[1:])
  return Clients([ids[i] for i in order], *columns)


def _check_clients(clients: Clients, *, num_shards: int) -> None:
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
  bad = np.flatnonzero((counts < 1) | (counts > hash_table.MAX_UTTERANCES))
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
    with open(name, encoding='utf-8') as f:
      content = json.load(f)
    version = content['format_version']
    if version != FORMAT_VERSION:
      raise ValueError(
          f'{name} is of format {version}, this program reads format'
          f' {FORMAT_VERSION}; write the corpus again.'
      )
    corpus = Corpus(
        path=path,
        encoding=content['encoding'],
        sample_rate_hz=content['sample_rate_hz'],
        num_clients=content['num_clients'],
        num_utterances=content['num_utterances'],
        num_samples=content['num_samples'],
        characters=content['characters'],
        num_slots=content['num_slots'],
        shards=tuple(Shard(**shard) for shard in content['shards']),
        files=content['files'],
        origin=content['origin'],
    )
    _check_kinds(corpus)
  except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as e:
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
         for name in (CLIENTS_FILE, HASH_FILE)},
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


def _read_file(path: str, name: str) -> bytes:
  """The content of an index file."""
  try:
    with open(os.path.join(path, name), 'rb') as f:
      return f.read()
  except FileNotFoundError as e:
    raise ValueError(
        f'{os.path.join(path, name)} is missing; write the corpus again.'
    ) from e


def _check_num_slots(path: str, content: bytes, *, num_slots: int) -> None:
  """Raises ValueError if clients.hash is of another size."""
  if len(content) != hash_table.num_bytes(num_slots):
    raise ValueError(
        f'{os.path.join(path, HASH_FILE)} does not have the {num_slots} slots'
        f' that {CORPUS_FILE} gives; write the corpus again.'
    )


def _parse_clients(path: str, text: str) -> Clients:
  """The columns of clients.tsv."""
  header, *lines = text.rstrip('\n').split('\n')
  try:
    if header != _TSV_HEADER or not lines:
      raise ValueError('unknown columns')
    ids, *columns = zip(*(line.split('\t') for line in lines), strict=True)
    shards, offsets, num_utterances, num_samples = (
        np.fromiter(map(int, column), np.int64, len(ids)) for column in columns
    )
  except ValueError as e:
    raise ValueError(
        f'{os.path.join(path, CLIENTS_FILE)} is damaged ({e}); write the corpus'
        ' again.'
    ) from e
  return Clients(list(ids), shards, offsets, num_utterances, num_samples)
