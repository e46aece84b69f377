"""Client data: a corpus on disk as `tff.simulation.datasets.ClientData`.

A client's dataset is built from its id alone, inside the graph. The id is
looked up in the corpus' hash table (`index`), the shard is opened at the
client's byte offset, and records are read from there: the first few when the
dataset is made, the others on demand. Nothing scans a shard, and the graph
holds a path and a table size, not the population.

Nothing is skipped silently. While a dataset is read, in the graph, an error
names the shard and the byte where the client's records begin if

- a record is missing or damaged (its checksum differs, the shard is truncated),
- a record belongs to another client (the shard is of another corpus),
- its audio does not have the length its record states.

Such errors end up in logs, so they do not name the client; who has the corpus
finds it by its place (`verify`, `bin/inspect_data.py`).

  N: samples. T: feature frames. F: mel bins.
"""

from collections.abc import Callable, Iterable
import hashlib
import os
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import index
from tff_asr.data import schema

_BUFFER_BYTES = 256 * 1024
# Records read with the client's opening; the rest as it is asked for.
_AT_ONCE = 32


def load(
    path: str | os.PathLike[str],
    *,
    client_ids: Iterable[str] | None = None,
) -> 'SpeechClientData':
  """Opens a corpus folder, or some clients of it.

  Checks the index files by checksum and the shards by size; `verify` checks the
  shards' content.

  Args:
    path: A split's folder, as written by `data_tools`.
    client_ids: The clients to keep; None keeps all.

  Raises:
    ValueError: If the folder is missing, damaged or not a corpus, or a client
      is not in it.
  """
  corpus, clients = index.read(path)
  data = SpeechClientData(corpus, clients)
  return data if client_ids is None else data.select(client_ids)


def duration_cost(
    client_data: 'SpeechClientData',
) -> Callable[[str], float]:
  """Cost of a client's training, in seconds of audio.

  For an execution context that starts costly clients first. The costs come from
  the index, and no record is read. They decide the order in which updates are
  summed, and so are a function of the corpus and the client alone: a run that
  is repeated or resumed has the same ones.

  Returns:
    A function of a client's id, one of `client_data.client_ids`.
  """
  return lambda client_id: client_data.duration_sec(
      tf.compat.as_text(client_id)
  )


def verify(path: str | os.PathLike[str]) -> None:
  """Reads every shard of a corpus and checks its SHA-256.

  Raises:
    ValueError: As `load`, and naming the shards whose content changed, and all
      their clients.
  """
  corpus, clients = index.read(path)
  damaged, affected = [], []
  for number, shard in enumerate(corpus.shards):
    name = os.path.join(corpus.path, shard.name)
    with open(name, 'rb') as f:
      found = hashlib.file_digest(f, 'sha256').hexdigest()
    if found != shard.sha256:
      damaged.append(name)
      affected += [
          clients.client_ids[i]
          for i in np.flatnonzero(clients.shards == number)
      ]
  if damaged:
    raise ValueError(
        f'Damaged, by the checksums of {index.CORPUS_FILE}:'
        f' {", ".join(damaged)}, with the clients {", ".join(affected)}. Copy'
        ' or write the corpus again.'
    )


class SpeechClientData(tff.simulation.datasets.ClientData):
  """Clients with utterances. Built by `load`.

  Elements are those of `schema.element_spec(encoding)`: an OrderedDict of
  `client_id`, `transcript`, `utterance_id` string [] and `waveform` int16 [N]
  or, in shards of log-mel, `features` float32 [T, F]; in the order of the
  utterance ids.

  `serializable_dataset_fn` and `dataset_computation` open every client of the
  corpus, also those that `select` left out: a selection is a list of ids, and
  the graph does not grow with it.
  """

  def __init__(
      self,
      corpus: index.Corpus,
      clients: index.Clients,
      *,
      selected: list[str] | None = None,
  ):
    self._corpus = corpus
    self._clients = clients
    self._client_ids = clients.client_ids if selected is None else selected
    self._rows = {
        client_id: row for row, client_id in enumerate(clients.client_ids)
    }
    self._selected = (
        self._rows if selected is None else frozenset(self._client_ids)
    )
    self._dataset_fn = _build_dataset_fn(corpus)
    self._cached_dataset_computation = None

  @property
  def client_ids(self) -> list[str]:
    """The clients' ids, sorted; a new list."""
    return list(self._client_ids)

  @property
  def serializable_dataset_fn(
      self,
  ) -> Callable[[str | tf.Tensor], tf.data.Dataset]:
    """From a client id (str or string []) to its dataset; traceable.

    In the graph, an id that the corpus does not hold raises
    InvalidArgumentError.
    """
    return self._dataset_fn

  @property
  def element_type_structure(self) -> Any:
    """`schema.element_spec` of the corpus' encoding."""
    return schema.element_spec(self._corpus.encoding)

  @property
  def corpus(self) -> index.Corpus:
    """The whole corpus: encoding, characters, counts, origin."""
    return self._corpus

  def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
    """Returns the dataset of one client.

    Raises:
      ValueError: If `client_id` is not among `client_ids`.
    """
    self._row(client_id)
    return self._dataset_fn(client_id)

  def select(self, client_ids: Iterable[str]) -> 'SpeechClientData':
    """Returns these clients only.

    Args:
      client_ids: At least one, each among `self.client_ids`, none twice.

    Raises:
      ValueError: If it is empty, or naming the first id that is unknown or
        given twice.
    """
    selected = sorted(client_ids)
    if not selected:
      raise ValueError('client_ids must name at least one client, found none.')
    for i, client_id in enumerate(selected):
      self._row(client_id)
      if i and client_id == selected[i - 1]:
        raise ValueError(f'client_ids holds {client_id} twice.')
    return SpeechClientData(self._corpus, self._clients, selected=selected)

  def num_utterances(self, client_id: str) -> int:
    """Returns how many utterances a client has.

    Raises:
      ValueError: If `client_id` is not among `client_ids`.
    """
    return int(self._clients.num_utterances[self._row(client_id)])

  def duration_sec(self, client_id: str) -> float:
    """Returns how many seconds of audio a client has.

    Raises:
      ValueError: If `client_id` is not among `client_ids`.
    """
    num_samples = self._clients.num_samples[self._row(client_id)]
    return float(num_samples) / self._corpus.sample_rate_hz

  def _row(self, client_id: str) -> int:
    """The row of a selected client in the table of all."""
    if client_id not in self._selected:
      raise ValueError(
          f'client {client_id} is not among the {len(self._client_ids)} clients'
          f' taken from {self._corpus.path}.'
      )
    return self._rows[client_id]


def _build_dataset_fn(
    corpus: index.Corpus,
) -> Callable[[str | tf.Tensor], tf.data.Dataset]:
  """Returns a graph function from a client id to the client's dataset."""
  lookup = index.build_lookup_fn(
      os.path.join(corpus.path, index.HASH_FILE), num_slots=corpus.num_slots
  )
  decode = schema.build_decode_fn(corpus.encoding)
  # The prefix of every shard's path; the number is known in the graph only.
  prefix, suffix = index.shard_name(0).split('00000')

  # Nothing to convert, and conversion takes longer than tracing.
  @tf.autograph.experimental.do_not_convert
  def dataset_fn(client_id: str | tf.Tensor) -> tf.data.Dataset:
    client_id = tf.convert_to_tensor(client_id, tf.string)
    shard, offset, count = lookup(client_id)
    shard_path = tf.strings.join([
        os.path.join(corpus.path, prefix),
        tf.strings.as_string(shard, width=5, fill='0'),
        suffix,
    ])

    def place(record_num: tf.Tensor) -> tf.Tensor:
      return tf.strings.join([
          'record ',
          tf.strings.as_string(record_num + 1),
          ' of ',
          tf.strings.as_string(count),
          ' of the client at byte ',
          tf.strings.as_string(offset),
          ' of ',
          shard_path,
      ])

    def parse(start: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:
      """The elements of records (string [n]) from number `start` on."""
      missing = tf.equal(records, '')
      present = tf.debugging.Assert(
          ~tf.reduce_any(missing),
          [
              tf.strings.join([
                  place(start + _first(missing)),
                  ' is missing or damaged; copy or write the corpus again.',
              ])
          ],
      )
      with tf.control_dependencies(_ops(present)):
        features = schema.parse(tf.identity(records))
      found = features[schema.CLIENT_ID]
      other = tf.not_equal(found, client_id)
      same_client = tf.debugging.Assert(
          ~tf.reduce_any(other),
          [
              tf.strings.join([
                  place(start + _first(other)),
                  ' belongs to another client; the client is not in this'
                  ' corpus, or the index and the shard are of different ones.',
              ])
          ],
      )
      with tf.control_dependencies(_ops(same_client)):
        features = tf.nest.map_structure(tf.identity, features)
      return tf.data.Dataset.from_tensor_slices(features).map(decode)

    def read() -> tf.data.Dataset:
      records = index.record_dataset(
          shard_path, offset=offset, buffer_size=_BUFFER_BYTES
      )
      # A reader that fails cannot say whose record it was reading. So its error
      # ends the records, and what is then missing is reported by name.
      missing = tf.data.Dataset.from_tensors('').repeat(count)
      return records.ignore_errors().concatenate(missing).take(count)

    first = parse(
        tf.zeros_like(count),
        read().take(_AT_ONCE).batch(_AT_ONCE).get_single_element(),
    )

    def read_on() -> tf.data.Dataset:
      rest = read().skip(_AT_ONCE).batch(_AT_ONCE).enumerate(1)
      return first.concatenate(
          rest.flat_map(
              lambda number, records: parse(number * _AT_ONCE, records)
          )
      )

    # Preparing a function of a dataset takes longer than to read most clients.
    return tf.data.experimental.from_variant(
        tf.cond(
            count > _AT_ONCE,
            lambda: tf.data.experimental.to_variant(read_on()),
            lambda: tf.data.experimental.to_variant(first),
        ),
        first.element_spec,
        # Of a conditional the graph does not tell that it is a dataset, nor of
        # what; whoever reads ahead looks for that.
    ).take(-1)

  return dataset_fn


def _first(wanted: tf.Tensor) -> tf.Tensor:
  """The first index at which a bool [n] is true, int64; else 0 or n."""
  return tf.argmax(tf.cast(tf.concat([wanted, [True]], axis=0), tf.int32))


def _ops(check: tf.Operation | None) -> list[tf.Operation]:
  """An assertion as a control dependency; in eager mode it has run."""
  return [] if check is None else [check]
