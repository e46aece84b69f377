"""Writes one split of a corpus: utterances to client-keyed TFRecord shards.

Clients are written in the order of their ids and utterances in the order of
theirs, so equal input gives equal files on any number of cores. Audio is read
in threads (libsndfile and soxr run outside Python's lock) and written by one.

A split is written beside its place and moved there when it is complete: an
interrupted run leaves nothing behind that could be taken for a corpus.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from data_tools import audio
from data_tools import summaries
from tff_asr import checks
from tff_asr.data import index
from tff_asr.data import schema

SUMMARY_FILE = 'summary.json'

_RECORD_OVERHEAD_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Utterance:
  """One utterance to write.

  Attributes:
    client_id: The speaker.
    utterance_id: Unique within the client.
    transcript: In the characters of the tokens.
    audio: The audio file's path, or a function that returns int16 [N] at 16 kHz
      mono and may raise `audio.AudioError`.
  """

  client_id: str
  utterance_id: str
  transcript: str
  audio: str | Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class _EncodedClient:
  """A client's serialized records, and what was left out of them."""

  client_id: str
  records: Sequence[bytes]
  num_samples: int
  characters: frozenset[str]
  dropped: Sequence[tuple[str, str, str]]  # Utterance id, reason, detail.


def write_split(
    utterances: Iterable[Utterance],
    output_dir: str | os.PathLike[str],
    *,
    origin: Mapping[str, Any],
    encoding: str = 'pcm',
    max_shard_bytes: int = 256 * 2**20,
    strict: bool = True,
    overwrite: bool = False,
    num_workers: int | None = None,
) -> dict[str, Any]:
  """Writes a split, or returns the one that is there if it is the same.

  "The same" means: the same `origin`, encoding, ids, transcripts, and names and
  sizes of audio files.

  Args:
    utterances: In any order.
    output_dir: The split's folder. Its parents are made.
    origin: Where the utterances come from; JSON. Stored in corpus.json, with
      the notices and counts of this writing.
    encoding: 'pcm' or 'flac'.
    max_shard_bytes: A shard that has reached this size gets no further client.
      A client is never divided.
    strict: Whether a broken utterance (audio that cannot be read, an empty
      transcript) raises. Otherwise it is left out, counted by reason and listed
      in dropped.tsv.
    overwrite: Whether to replace another corpus in `output_dir`.
    num_workers: Threads that read audio; by default one a core.

  Returns:
    What summary.json holds: num_clients, num_utterances, hours, minutes per
    client (min, mean, std, max), dropped ({reason: count}), notices.

  Raises:
    ValueError: If there are no utterances, an utterance id occurs twice in a
      client, `output_dir` holds something else, an argument is out of range, or
      (strict) an utterance is broken.
  """
  checks.one_of(schema.ENCODINGS, encoding=encoding)
  checks.positive_int(max_shard_bytes=max_shard_bytes)
  num_workers = num_workers or os.cpu_count() or 1
  output_dir = os.path.abspath(os.fspath(output_dir))
  by_client = _group(utterances, output_dir=output_dir)
  identity = dict(origin, source_sha256=_source_sha256(by_client))
  existing = _read_existing(
      output_dir, identity=identity, encoding=encoding, overwrite=overwrite
  )
  if existing is not None:
    return existing
  parent, name = os.path.split(output_dir)
  os.makedirs(parent, exist_ok=True)
  partial_dir = tempfile.mkdtemp(prefix=f'.{name}.', dir=parent)
  try:
    os.chmod(partial_dir, 0o755)
    conversions = audio.Conversions()
    clients = _encode_clients(
        by_client,
        encoding=encoding,
        strict=strict,
        conversions=conversions,
        num_workers=num_workers,
    )
    bar = tqdm.tqdm(
        clients,
        desc=name,
        total=len(by_client),
        unit=' clients',
        disable=not sys.stderr.isatty(),
    )
    summary = _write_files(
        bar,
        partial_dir,
        identity=identity,
        encoding=encoding,
        max_shard_bytes=max_shard_bytes,
        conversions=conversions,
    )
    _move_into_place(partial_dir, output_dir)
  finally:
    shutil.rmtree(partial_dir, ignore_errors=True)
  return summary


def _group(
    utterances: Iterable[Utterance], *, output_dir: str
) -> Mapping[str, Sequence[Utterance]]:
  """Utterances by client, both in the order of their ids."""
  key = lambda u: (u.client_id, u.utterance_id)
  ordered = sorted(utterances, key=key)
  if not ordered:
    raise ValueError(
        f'utterances must hold at least one utterance for {output_dir}, found'
        ' none.'
    )
  for first, second in itertools.pairwise(ordered):
    if key(first) == key(second):
      raise ValueError(
          f'utterance {first.utterance_id} of client {first.client_id} occurs'
          ' twice.'
      )
  groups = itertools.groupby(ordered, key=lambda u: u.client_id)
  return {client_id: list(group) for client_id, group in groups}


def _source_sha256(by_client: Mapping[str, Sequence[Utterance]]) -> str:
  """A digest of what is to be written, without reading audio."""
  digest = hashlib.sha256()
  for utterance in itertools.chain.from_iterable(by_client.values()):
    fields = [
        utterance.client_id,
        utterance.utterance_id,
        utterance.transcript,
    ]
    if not callable(utterance.audio):
      path = os.fspath(utterance.audio)
      size = os.path.getsize(path) if os.path.exists(path) else -1
      fields += [os.path.basename(path), str(size)]
    digest.update(('\0'.join(fields) + '\n').encode())
  return digest.hexdigest()


def _read_existing(
    output_dir: str,
    *,
    identity: Mapping[str, Any],
    encoding: str,
    overwrite: bool,
) -> dict[str, Any] | None:
  """The summary of an identical corpus in `output_dir`; None to write it."""
  if not os.path.lexists(output_dir):
    return None
  if not os.path.isdir(output_dir):
    raise ValueError(f'{output_dir} is a file; choose another folder.')
  if not os.listdir(output_dir):
    return None
  try:
    corpus, _ = index.read(output_dir)
  except ValueError as e:
    is_corpus = os.path.exists(os.path.join(output_dir, index.CORPUS_FILE))
    if is_corpus and overwrite:
      return None
    remedy = 'pass --overwrite' if is_corpus else 'choose another folder'
    raise ValueError(
        f'{output_dir} is not empty and holds no readable corpus ({e});'
        f' {remedy}.'
    ) from e
  stored = {key: corpus.origin.get(key) for key in identity}
  # JSON turns tuples into lists.
  same = stored == json.loads(json.dumps(identity))
  if same and corpus.encoding == encoding:
    with open(os.path.join(output_dir, SUMMARY_FILE), encoding='utf-8') as f:
      return json.load(f)
  if overwrite:
    return None
  raise ValueError(
      f'{output_dir} holds another corpus (encoding, source or partition'
      ' differ); choose another folder or pass --overwrite.'
  )


def _encode_clients(
    by_client: Mapping[str, Sequence[Utterance]],
    *,
    encoding: str,
    strict: bool,
    conversions: audio.Conversions,
    num_workers: int,
) -> Iterator[_EncodedClient]:
  """Yields the clients in order; a few are encoded ahead, in threads."""

  def encode(utterances: Sequence[Utterance]) -> _EncodedClient:
    return _encode_client(
        utterances, encoding=encoding, strict=strict, conversions=conversions
    )

  waiting = iter(by_client.values())
  with concurrent.futures.ThreadPoolExecutor(num_workers) as pool:
    try:
      running = [
          pool.submit(encode, utterances)
          for utterances in itertools.islice(waiting, 2 * num_workers)
      ]
      while running:
        yield running.pop(0).result()
        for utterances in itertools.islice(waiting, 1):
          running.append(pool.submit(encode, utterances))
    finally:
      pool.shutdown(cancel_futures=True)


def _encode_client(
    utterances: Sequence[Utterance],
    *,
    encoding: str,
    strict: bool,
    conversions: audio.Conversions,
) -> _EncodedClient:
  """Reads and serializes one client's utterances."""
  records, dropped, characters, num_samples = [], [], set(), 0
  for utterance in utterances:
    try:
      if not utterance.transcript:
        raise audio.AudioError(
            f'utterance {utterance.utterance_id}',
            'has an empty transcript',
            f'client {utterance.client_id}',
        )
      if callable(utterance.audio):
        waveform = utterance.audio()
      else:
        waveform = audio.read(utterance.audio, conversions=conversions)
    except audio.AudioError as e:
      if strict:
        raise
      dropped.append((utterance.utterance_id, e.reason, str(e)))
      continue
    records.append(
        schema.serialize(
            client_id=utterance.client_id,
            utterance_id=utterance.utterance_id,
            transcript=utterance.transcript,
            waveform=waveform,
            encoding=encoding,
        )
    )
    num_samples += len(waveform)
    characters.update(utterance.transcript)
  return _EncodedClient(
      client_id=utterances[0].client_id,
      records=records,
      num_samples=num_samples,
      characters=frozenset(characters),
      dropped=dropped,
  )


def _write_files(
    clients: Iterable[_EncodedClient],
    folder: str,
    *,
    identity: Mapping[str, Any],
    encoding: str,
    max_shard_bytes: int,
    conversions: audio.Conversions,
) -> dict[str, Any]:
  """Writes shards, index, summary and the list of what was dropped."""
  rows, dropped, characters = [], [], set()
  shard_num, offset, writer = -1, 0, None
  try:
    for client in clients:
      dropped.extend((client.client_id, *item) for item in client.dropped)
      if not client.records:
        continue
      if writer is None or offset >= max_shard_bytes:
        if writer is not None:
          writer.close()
        shard_num, offset = shard_num + 1, 0
        writer = tf.io.TFRecordWriter(
            os.path.join(folder, index.shard_name(shard_num))
        )
      rows.append((
          client.client_id,
          shard_num,
          offset,
          len(client.records),
          client.num_samples,
      ))
      characters |= client.characters
      for record in client.records:
        writer.write(record)
        offset += len(record) + _RECORD_OVERHEAD_BYTES
  finally:
    if writer is not None:
      writer.close()
  if not rows:
    raise ValueError(
        f'Every utterance was dropped, the first because: {dropped[0][3]}'
    )
  columns = [list(column) for column in zip(*rows)]
  table = index.Clients(columns[0], *(np.array(c) for c in columns[1:]))
  summary = summaries.build(table, dropped=dropped, conversions=conversions)
  origin = dict(
      identity, dropped=summary['dropped'], notices=summary['notices']
  )
  with open(
      os.path.join(folder, SUMMARY_FILE), 'w', encoding='utf-8'
  ) as f:
    json.dump(summary, f, indent=1)
    f.write('\n')
  if dropped:
    lines = ['client_id\tutterance_id\treason\tdetail']
    lines.extend('\t'.join(item) for item in dropped)
    with open(
        os.path.join(folder, summaries.DROPPED_FILE), 'w', encoding='utf-8'
    ) as f:
      f.write('\n'.join(lines) + '\n')
  index.write(
      folder,
      clients=table,
      shards=[
          _describe_shard(folder, index.shard_name(i))
          for i in range(shard_num + 1)
      ],
      encoding=encoding,
      characters=''.join(characters),
      origin=origin,
  )
  return summary


def _describe_shard(folder: str, name: str) -> index.Shard:
  """The size and checksum of a shard."""
  path = os.path.join(folder, name)
  with open(path, 'rb') as f:
    sha256 = hashlib.file_digest(f, 'sha256').hexdigest()
  return index.Shard(name, os.path.getsize(path), sha256)


def _move_into_place(partial_dir: str, output_dir: str) -> None:
  """Renames a complete folder to its place, replacing what is there."""
  if os.path.isdir(output_dir) and os.listdir(output_dir):
    replaced_dir = f'{partial_dir}.replaced'
    os.rename(output_dir, replaced_dir)
    os.rename(partial_dir, output_dir)
    shutil.rmtree(replaced_dir)
  else:
    os.rename(partial_dir, output_dir)
