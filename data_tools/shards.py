"""Shard writer: utterances of a split to client-keyed TFRecord shards.

Clients are written in the order of their ids and utterances in the order of
theirs, so equal input gives equal files on any number of cores and after any
number of interruptions. Audio is read and encoded in worker processes
(`parallel_encoding`), a few utterances ahead of the writer.

A split is written to a folder next to its own and moved there when it is
complete. A program that was killed resumes after the last finished shard
(`partial_split`).
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import hashlib
import io
import json
import os
import types
from typing import Any

import numpy as np
import tensorflow as tf

from data_tools import parallel_encoding
from data_tools import partial_split
from data_tools import utterances as utterances_lib
from tff_asr import checks
from tff_asr import files as files_lib
from tff_asr.data import audio
from tff_asr.data import index
from tff_asr.data import schema
from tff_asr.data import speakers
from tff_asr.data import split_summary
from tff_asr.programs import progress as progress_lib

Utterance = utterances_lib.Utterance
Problem = utterances_lib.Problem

_FINGERPRINTS_FILE = 'fingerprints.npy'
# What may differ between a folder and what is to be written there, in words.
_IDENTITY = {
    'source_sha256': 'ids, transcripts, or names or sizes of audio files',
    'partition': '--partition',
    'partition_seed': '--partition_seed',
    'iid_seed': '--iid',
    'max_utterance_sec': '--max_utterance_sec',
    'drop_copies': '--drop_copies',
    'others_sha256': 'recordings of other parts',
}


class EmptySplitError(ValueError):
  """A split without any usable utterance."""


@files_lib.for_owner_only()
def write_split(
    utterances: Iterable[Utterance],
    output_dir: str | os.PathLike[str],
    *,
    origin: Mapping[str, Any],
    namespace: str = '',
    problems: Sequence[Problem] = (),
    attributes: speakers.Attributes = types.MappingProxyType({}),
    encoding: str = 'pcm',
    max_shard_bytes: int = 256 * 2**20,
    max_utterance_sec: float | None = None,
    strict: bool = False,
    drop_copies: bool = False,
    others: np.ndarray | None = None,
    overwrite: bool = False,
    task_size: int | None = None,
    num_workers: int | None = None,
) -> split_summary.Summary:
  """Writes a split, or returns the existing one if it is the same.

  Recordings may be private: files have mode 0600 and folders 0700, also while
  they are written; folders that are there keep theirs.

  "The same" means: the same `origin`, encoding, limits, ids, transcripts, and
  names and sizes of audio files. Of such a one only `attributes` are brought up
  to date, which are stored next to it.

  Args:
    utterances: Utterances, in any order.
    output_dir: The split's folder. Its parents are made.
    origin: Where the utterances come from; JSON. Stored in corpus.json, with
      the counts of this writing.
    namespace: Namespace of the client ids: in corpora of one namespace, equal
      ids are one speaker.
    problems: Items of the corpus that cannot be written; counted and listed
      with those left out here.
    attributes: What the corpus says of its speakers, for `speakers.write`.
    encoding: One of `audio.ENCODINGS`.
    max_shard_bytes: A shard that has reached this size gets no further client.
      A client is never divided.
    max_utterance_sec: Longer utterances are left out; None sets no limit.
    strict: Whether anything to leave out (audio that cannot be read, an empty
      transcript, an id that occurs twice, one of `problems`) raises. Otherwise
      it is left out, counted by reason and listed in dropped.tsv.
    drop_copies: Whether to leave out records with the same samples as an
      earlier one of any speaker. They are counted in either case.
    others: Fingerprints of other parts' recordings, int64 [N]. With
      drop_copies, records with the samples of these are left out, too.
    overwrite: Whether to replace another corpus in `output_dir`.
    task_size: Utterances, in their order, that a process reads at once; by
      default few, and a single one where long recordings are cut.
    num_workers: Processes that read audio; by default one a core; 0 for none
      but this one.

  Returns:
    What summary.json holds, see `split_summary.summarize`.

  Raises:
    EmptySplitError: If nothing is left to write.
    ValueError: If `output_dir` holds something else, `encoding` is unknown, or
      (strict) something is to be left out.
  """
  checks.one_of(audio.ENCODINGS, encoding=encoding)
  output_dir = os.path.abspath(os.fspath(output_dir))
  ordered, refused = _order(utterances)
  problems = [*problems, *refused]
  if not ordered:
    first = f', the first because {problems[0].detail}' if problems else ''
    raise EmptySplitError(
        f'There are no utterances for {output_dir}; {len(problems)} were left'
        f' out{first}; check the source.'
    )
  if strict:
    _refuse(problems)
  identity = dict(
      origin,
      namespace=namespace,
      source_sha256=_source_sha256(ordered, problems),
      max_utterance_sec=max_utterance_sec,
      drop_copies=drop_copies,
  )
  if not drop_copies or others is None:
    others = np.zeros([0], np.int64)
  elif len(others):
    identity['others_sha256'] = hashlib.sha256(np.unique(others)).hexdigest()
  existing = _read_existing(
      output_dir,
      identity=identity,
      encoding=encoding,
      overwrite=overwrite,
      strict=strict,
  )
  if existing is not None:
    return _write_attributes(output_dir, attributes)
  key = dict(
      identity,
      encoding=encoding,
      max_shard_bytes=max_shard_bytes,
      format_version=index.FORMAT_VERSION,
  )
  with partial_split.PartialSplit(output_dir, identity=key) as partial:
    _write_shards(
        ordered,
        partial,
        strict=strict,
        seen={*others.tolist()} if drop_copies else None,
        max_shard_bytes=max_shard_bytes,
        encoding=encoding,
        max_utterance_sec=max_utterance_sec,
        task_size=task_size or _task_size(ordered),
        num_workers=num_workers,
    )
    _write_index(
        partial, identity=identity, problems=problems, encoding=encoding
    )
    summary = _write_attributes(partial.folder, attributes)
    partial.move_into_place()
  return summary


def _order(
    utterances: Iterable[Utterance],
) -> tuple[list[Utterance], list[Problem]]:
  """Sorts utterances by client and id; returns unusable ones as problems."""
  key = lambda u: (u.client_id, u.utterance_id)
  ordered, refused = [], []
  for utterance in sorted(utterances, key=key):
    reason = ''
    # Sorted, so equal ids are neighbours.
    if ordered and key(utterance) == key(ordered[-1]):
      reason = 'occurs twice'
    elif not utterance.client_id or not utterance.client_id.isprintable():
      reason = 'has an unusable client id'
    elif not utterance.utterance_id:
      reason = 'has no id'
    if reason:
      detail = (
          f'utterance {utterance.utterance_id!r} of client'
          f' {utterance.client_id!r}: {reason}.'
      )
      refused.append(Problem(*key(utterance), reason, detail))
    else:
      ordered.append(utterance)
  return ordered, refused


def _refuse(problems: Sequence[Problem]) -> None:
  """Raises ValueError for the first problem, if there is one."""
  for problem in problems:
    raise ValueError(
        f'{problem.detail} Fix it, or run without --strict to leave it out'
        ' and count it.'
    )


def _source_sha256(
    ordered: Iterable[Utterance], problems: Iterable[Problem]
) -> str:
  """A digest of the split's intended contents, without reading audio."""
  digest = hashlib.sha256()
  for utterance in ordered:
    fields = [
        utterance.client_id,
        utterance.utterance_id,
        utterance.transcript or '',
        repr(utterance.cutting and utterance.cutting.max_sec),
    ]
    if utterance.cutting is not None and utterance.cutting.activity_path:
      fields.append(str(os.path.getsize(utterance.cutting.activity_path)))
    path = utterance.audio
    if isinstance(path, utterances_lib.Clip):
      # The location of the folder does not matter.
      path, *part = dataclasses.astuple(path)
      fields += map(str, part)
    if not callable(path):
      path = os.fspath(path)
      size = os.path.getsize(path) if os.path.exists(path) else -1
      fields += [os.path.basename(path), str(size)]
    digest.update(('\0'.join(fields) + '\n').encode())
  for problem in problems:
    digest.update(('\0'.join(problem[:3]) + '\n').encode())
  return digest.hexdigest()


def _read_existing(
    output_dir: str,
    *,
    identity: Mapping[str, Any],
    encoding: str,
    overwrite: bool,
    strict: bool,
) -> split_summary.Summary | None:
  """The summary of an identical corpus in `output_dir`; None to write it."""
  # lexists: a dangling link is a file that is in the way.
  if not os.path.lexists(output_dir):
    return None
  if not os.path.isdir(output_dir):
    raise ValueError(f'{output_dir} is a file; choose another folder.')
  if not os.listdir(output_dir):
    return None
  try:
    corpus = index.read(output_dir).corpus
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
    partial_split.forget_journal(output_dir)
    existing = split_summary.read(output_dir)
    if strict and existing['dropped']:
      raise ValueError(
          f'{output_dir} was written without some utterances'
          f' ({", ".join(existing["dropped"])}); pass --overwrite to write it'
          ' again and stop at the first.'
      )
    return existing
  if overwrite:
    return None
  now = json.loads(json.dumps(identity)) | {'encoding': encoding}
  stored['encoding'] = corpus.encoding
  different = [key for key in now if now[key] != stored[key]]
  words = ', '.join(_IDENTITY.get(key, key) for key in different)
  if different == ['source_sha256']:
    problem = f'was written before these changed: {words}'
  else:
    problem = f'holds another corpus, with other {words}'
  raise ValueError(
      f'{output_dir} {problem}. Pass --overwrite to write it again, or choose '
      'another folder.'
  )


def _write_shards(
    ordered: Sequence[Utterance],
    partial: partial_split.PartialSplit,
    *,
    strict: bool,
    seen: set[int] | None,
    max_shard_bytes: int,
    encoding: str,
    max_utterance_sec: float | None,
    task_size: int,
    num_workers: int | None,
) -> None:
  """Writes the shards that are not finished yet; `seen` as in `_ShardFile`."""
  if strict:
    _refuse(_problems(partial))
  num_done = partial.entries[-1]['num_done'] if partial.entries else 0
  number = sum(len(entry['files']) for entry in partial.entries)
  if seen is not None:
    seen |= {*_fingerprints(partial)} - {utterances_lib.SILENCE}
  rest = ordered[num_done:]
  outcomes = parallel_encoding.encode(
      rest,
      num_workers=num_workers,
      task_size=task_size,
      encoding=encoding,
      max_utterance_sec=max_utterance_sec,
  )
  shard = _ShardFile(partial.folder, number, seen=seen)
  try:
    with progress_lib.Progress(
        description=os.path.basename(partial.output_dir),
        total=len(ordered),
        initial=num_done,
        unit='utterance',
    ) as progress:
      for utterance, outcome in zip(rest, outcomes):
        shard.add(utterance, outcome)
        if strict:
          _refuse(shard.problems)
        progress.update()
        num_done += 1
        is_last = num_done == len(ordered)
        # A client is never divided: a round opens one shard a client.
        is_full = shard.num_bytes >= max_shard_bytes
        if is_last or (
            is_full and ordered[num_done].client_id != utterance.client_id
        ):
          shard.commit(partial, num_done=num_done)
          number += 1
          shard = _ShardFile(partial.folder, number, seen=seen)
  finally:
    shard.close()


class _ShardFile:
  """A shard that is being written, and its entry in the journal.

  Attributes:
    num_bytes: What it has by now.
    problems: What was left out of it.
  """

  def __init__(self, folder: str, number: int, *, seen: set[int] | None):
    """Creates the file with its first record.

    Args:
      folder: Its folder.
      number: The shard's number.
      seen: Fingerprints of all records so far, to leave out copies of them;
        None: copies are kept.
    """
    self._path = os.path.join(folder, index.shard_name(number))
    self._writer = None
    self._number = number
    self._characters: set[str] = set()
    self._clients: list[list[Any]] = []
    self._offsets: list[int] = []
    self._fingerprints: list[int] = []
    self._seen = seen
    self.problems: list[Problem] = []
    self._changed = collections.Counter()
    self.num_bytes = 0

  def add(
      self, utterance: Utterance, outcome: utterances_lib.Outcome
  ) -> None:
    """Writes the records of an utterance, or adds a problem."""
    if outcome.reason:
      self.problems.append(
          Problem(
              utterance.client_id,
              utterance.utterance_id,
              outcome.reason,
              outcome.detail,
          )
      )
      return
    self._changed.update(outcome.changes)
    self._characters.update(utterance.transcript or '')
    for record in outcome.records:
      if self._seen is not None and record.fingerprint in self._seen:
        name = utterance.utterance_id + record.suffix
        self.problems.append(Problem(
            utterance.client_id,
            name,
            'is a copy of another recording',
            f'utterance {name} of client {utterance.client_id} has the samples'
            ' of another recording.',
        ))
        continue
      if self._seen is not None:
        self._seen |= {record.fingerprint} - {utterances_lib.SILENCE}
      self._write(utterance, record)

  def _write(
      self, utterance: Utterance, record: utterances_lib.Encoded
  ) -> None:
    """Writes one record."""
    # With the first record: a shard of which all is left out has no file.
    if self._writer is None:
      self._writer = tf.io.TFRecordWriter(self._path)
    if not self._clients or self._clients[-1][0] != utterance.client_id:
      self._clients.append([utterance.client_id, self._number, 0, 0])
    content = schema.serialize(
        client_id=utterance.client_id,
        utterance_id=utterance.utterance_id + record.suffix,
        transcript=utterance.transcript or '',
        audio=record.content,
        num_samples=record.num_samples,
    )
    self._writer.write(content)
    self._offsets.append(self.num_bytes)
    self._fingerprints.append(record.fingerprint)
    self._clients[-1][2] += 1
    self._clients[-1][3] += record.num_samples
    self.num_bytes += len(content) + index.RECORD_OVERHEAD_BYTES

  def close(self) -> None:
    """Closes the file; without effect if it is closed."""
    if self._writer is not None:
      self._writer.close()

  def commit(
      self, partial: partial_split.PartialSplit, *, num_done: int
  ) -> None:
    """Syncs the shard, and then its entry in the journal."""
    self.close()
    files = []
    if self._writer is not None:
      name = os.path.basename(self._path)
      sha256 = files_lib.sha256(self._path)
      files = [index.Shard(name, self.num_bytes, sha256)]
    partial.commit(
        {
            'files': [file._asdict() for file in files],
            'clients': self._clients,
            'offsets': self._offsets,
            'fingerprints': self._fingerprints,
            'characters': ''.join(sorted(self._characters)),
            'problems': self.problems,
            'changed': dict(self._changed),
            'num_done': num_done,
        },
        files=[file.name for file in files],
    )


def _task_size(utterances: Iterable[Utterance]) -> int:
  """Number of recordings that a worker takes at once and holds in memory.

  One that is cut may last an hour (a Libri-Light chapter: 16 minutes, 30 MB).
  """
  is_long = any(utterance.cutting is not None for utterance in utterances)
  return 1 if is_long else parallel_encoding.TASK_SIZE


def _problems(partial: partial_split.PartialSplit) -> list[Problem]:
  """Problems of the finished shards."""
  return [
      Problem(*problem)
      for entry in partial.entries
      for problem in entry['problems']
  ]


def _write_index(
    partial: partial_split.PartialSplit,
    *,
    identity: Mapping[str, Any],
    problems: Sequence[Problem],
    encoding: str,
) -> None:
  """Writes the index and the list of what was left out."""
  rows, offsets, files, characters = [], [], [], set()
  problems, changed = [*problems, *_problems(partial)], collections.Counter()
  for entry in partial.entries:
    rows += entry['clients']
    offsets += entry['offsets']
    files += [index.Shard(**file) for file in entry['files']]
    characters.update(entry['characters'])
    changed.update(entry['changed'])
  if not rows:
    raise EmptySplitError(
        f'Every utterance of {partial.output_dir} was left out, the first'
        f' because: {problems[0].detail}'
    )
  ids, *columns = zip(*rows)
  shards, num_utterances, num_samples = map(np.array, columns)
  table = index.Clients(
      list(ids),
      shards=shards,
      first_records=np.cumsum(num_utterances) - num_utterances,
      num_utterances=num_utterances,
      num_samples=num_samples,
  )
  dropped = collections.Counter(problem.reason for problem in problems)
  fingerprints = np.array(_fingerprints(partial), np.int64)
  array = io.BytesIO()
  np.save(array, fingerprints)
  others = {_FINGERPRINTS_FILE: array.getvalue()}
  if problems:
    lines = ['client_id\tutterance_id\treason\tdetail']
    lines.extend(
        '\t'.join(' '.join(field.split()) for field in problem)
        # Sorted: equal input gives equal files.
        for problem in sorted(problems)
    )
    others[split_summary.DROPPED_FILE] = ('\n'.join(lines) + '\n').encode()
  index.write(
      partial.folder,
      clients=table,
      offsets=np.array(offsets),
      shards=files,
      encoding=encoding,
      characters=''.join(characters),
      others=others,
      origin=dict(
          identity,
          dropped=dict(sorted(dropped.items())),
          changed=dict(sorted(changed.items())),
          copies=_count_copies(
              fingerprints,
              np.repeat(np.arange(len(ids)), num_utterances),
          ),
      ),
  )


def read_fingerprints(folder: str) -> np.ndarray:
  """Returns the fingerprints of a split's recordings, int64 [N].

  Silent ones have none (`utterances.SILENCE`).

  Raises:
    ValueError: If the folder has none, or they are not those that were written
      with it; it must be written again.
  """
  path = os.path.join(folder, _FINGERPRINTS_FILE)
  try:
    content = files_lib.read(path)
    corpus = index.read_corpus_file(os.path.abspath(folder))
    # Splits that were written before have no checksum of it.
    if _FINGERPRINTS_FILE in corpus.files:
      index.check_sha256(corpus, _FINGERPRINTS_FILE, content)
    found = np.load(io.BytesIO(content), allow_pickle=False)
  except (OSError, ValueError, EOFError) as e:
    raise ValueError(
        f'{path} cannot be read ({e}); write the split again with --overwrite.'
    ) from e
  return found[found != utterances_lib.SILENCE]


def _fingerprints(partial: partial_split.PartialSplit) -> list[int]:
  """Fingerprints of the records of the finished shards, in order."""
  return [each for entry in partial.entries for each in entry['fingerprints']]


def _count_copies(
    fingerprints: np.ndarray, owners: np.ndarray
) -> dict[str, int]:
  """Counts identical recordings.

  Args:
    fingerprints: int64, of each record.
    owners: int64, the speaker of each record.

  Returns:
    records: how many have the samples of an earlier one; most: how many have
    the same samples at most; speakers: how many have a recording that another
    speaker has, too.
  """
  # All silent recordings are equal, and no copies.
  is_sound = fingerprints != utterances_lib.SILENCE
  _, groups, counts = np.unique(
      fingerprints[is_sound], return_inverse=True, return_counts=True
  )
  pairs = np.unique(np.stack([groups, owners[is_sound]]), axis=1)
  is_shared = np.bincount(pairs[0], minlength=len(counts)) > 1
  return {
      'records': int(np.sum(counts - 1)),
      'most': int(np.max(counts, initial=1)),
      'speakers': len(np.unique(pairs[1, is_shared[pairs[0]]])),
  }


def _write_attributes(
    folder: str, attributes: speakers.Attributes
) -> split_summary.Summary:
  """Writes attributes of speakers, and the summary, next to an index."""
  speakers.write_attributes(folder, attributes)
  summary = split_summary.read(folder)
  files_lib.write_json(
      os.path.join(folder, split_summary.SUMMARY_FILE), summary
  )
  return summary
