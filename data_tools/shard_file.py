"""One shard of a split, and what its journal entry tells of it."""

import collections
import hashlib
import os
from typing import Any

import tensorflow as tf

from data_tools import audio_encoding
from data_tools import partial_split
from data_tools import utterances
from tff_asr.data import index
from tff_asr.data import schema

_RECORD_OVERHEAD_BYTES = 16


class ShardFile:
  """A shard that is being written.

  Attributes:
    num_bytes: What it has by now.
  """

  def __init__(self, folder: str, number: int):
    self._path = os.path.join(folder, index.shard_name(number))
    self._writer = None
    self._number = number
    self._characters: set[str] = set()
    self._clients: list[list[Any]] = []
    self._problems: list[utterances.Problem] = []
    self._changed = collections.Counter()
    self.num_bytes = 0

  def add(
      self, utterance: utterances.Utterance, outcome: audio_encoding.Outcome
  ) -> utterances.Problem | None:
    """Writes the records of an utterance, or notes why there are none.

    Returns:
      What was noted, or None.
    """
    if outcome.reason:
      problem = utterances.Problem(
          utterance.client_id,
          utterance.utterance_id,
          outcome.reason,
          outcome.detail,
      )
      self._problems.append(problem)
      return problem
    self._changed.update(outcome.changes)
    self._characters.update(utterance.transcript or '')
    for record in outcome.records:
      self._write(utterance, record)
    return None

  def _write(
      self, utterance: utterances.Utterance, record: audio_encoding.Encoded
  ) -> None:
    """Writes one record."""
    if self._writer is None:
      self._writer = tf.io.TFRecordWriter(self._path)
    if not self._clients or self._clients[-1][0] != utterance.client_id:
      self._clients.append(
          [utterance.client_id, self._number, self.num_bytes, 0, 0]
      )
    content = schema.serialize(
        client_id=utterance.client_id,
        utterance_id=utterance.utterance_id + record.suffix,
        transcript=utterance.transcript or '',
        audio=record.content,
        num_samples=record.num_samples,
    )
    self._writer.write(content)
    self._clients[-1][3] += 1
    self._clients[-1][4] += record.num_samples
    self.num_bytes += len(content) + _RECORD_OVERHEAD_BYTES

  def close(self) -> None:
    """Closes the file; without effect if it is closed."""
    if self._writer is not None:
      self._writer.close()

  def commit(
      self, partial: partial_split.PartialSplit, *, num_done: int
  ) -> None:
    """Makes the shard, and that it is finished, durable."""
    self.close()
    files = []
    if self._writer is not None:
      with open(self._path, 'rb') as f:
        sha256 = hashlib.file_digest(f, 'sha256').hexdigest()
      name = os.path.basename(self._path)
      files = [index.Shard(name, self.num_bytes, sha256)]
    partial.commit(
        {
            'files': [file._asdict() for file in files],
            'clients': self._clients,
            'characters': ''.join(sorted(self._characters)),
            'problems': self._problems,
            'changed': dict(self._changed),
            'num_done': num_done,
        },
        files=[file.name for file in files],
    )
