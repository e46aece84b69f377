"""Client data: a corpus on disk as `tff.simulation.datasets.ClientData`.

A client's dataset is built from its id alone, inside the graph. The id is
looked up in the corpus' hash table, and the places of its records in
records.offsets (`index`); each is then read by itself (`records`). Nothing
scans a shard, and the graph holds paths and a table size, not the population.

Two datasets are made of a client: its utterances, decoded and in the order of
the corpus, for evaluation, inspection and TFF users' own loops; and their
places, for training, which reads them in orders of its own.
"""

from collections.abc import Callable, Iterable
import hashlib
import os
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import index
from tff_asr.data import records
from tff_asr.data import schema


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


def for_training(
    client_data: tff.simulation.datasets.ClientData,
) -> tuple[tff.simulation.datasets.ClientData, records.Read | None]:
  """Source of clients' data: the places of their records and their reader.

  Either names the client as it was drawn. What records say of their client is
  checked where they are read by places, and replaced where they are in memory:
  seeds and simulated noise follow the name, so a client may not choose it.

  Returns:
    `places` and `read` of data that have them (`SpeechClientData`); of others,
    whose elements are utterances, those and None.
  """
  if hasattr(client_data, 'places'):
    return client_data.places, client_data.read

  def dataset_fn(client_id: str | tf.Tensor) -> tf.data.Dataset:
    client_id = tf.convert_to_tensor(client_id, tf.string)
    return client_data.serializable_dataset_fn(client_id).map(
        lambda element: element | {schema.CLIENT_ID: client_id}
    )

  named = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
      client_data.client_ids, dataset_fn
  )
  return named, None


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

  Elements are those of `schema.element_spec`: an OrderedDict of `client_id`,
  `transcript`, `utterance_id` string [] and `waveform` int16 [N]; in the order
  of the utterance ids.

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
    selected_rows = [self._rows[client_id] for client_id in self._client_ids]
    self._selected_rows = np.array(selected_rows)
    self._ends = np.cumsum(clients.num_utterances[self._selected_rows])
    self._reader = records.Reader(corpus)
    self._place_fn = _build_place_fn(corpus)
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
    return lambda client_id: self._reader.read_dataset(
        self._place_fn(client_id)
    )

  @property
  def places(self) -> tff.simulation.datasets.ClientData:
    """The same clients; elements are the places of their records.

    Elements are of `records.Places`, scalars, in the order of the records, for
    `read`.
    """
    return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
        self._client_ids, self._place_fn
    )

  @property
  def num_records(self) -> int:
    """Utterances of all clients."""
    return int(self._ends[-1])

  def places_of(self, numbers: np.ndarray) -> records.Places:
    """Returns the places of utterances, whoever's they are.

    Args:
      numbers: int64 [n], each below `num_records`: clients are in the order of
        their ids, and each client's utterances in that of the corpus.

    Raises:
      ValueError: If the index is damaged where they are.
    """
    numbers = np.asarray(numbers, np.int64)
    found = np.searchsorted(self._ends, numbers, side='right')
    rows = self._selected_rows[found]
    starts = self._ends[found] - self._clients.num_utterances[rows]
    offsets = index.take_offsets(
        os.path.join(self._corpus.path, index.OFFSETS_FILE),
        self._clients.first_records[rows] + numbers - starts,
    )
    return records.places(
        np.array([self._clients.client_ids[row] for row in rows], object),
        shard=self._clients.shards[rows],
        offset=offsets,
    )

  @property
  def read(self) -> records.Read:
    """Reads records by their places, in the graph: `records.Reader.read`."""
    return self._reader.read

  def read_dataset(self, places: tf.data.Dataset) -> tf.data.Dataset:
    """The utterances at places, decoded: `records.Reader.read_dataset`."""
    return self._reader.read_dataset(places)

  @property
  def element_type_structure(self) -> Any:
    """`schema.element_spec`."""
    return schema.element_spec()

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
    return self.serializable_dataset_fn(client_id)

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


def _build_place_fn(
    corpus: index.Corpus,
) -> Callable[[str | tf.Tensor], tf.data.Dataset]:
  """Returns a graph function from a client id to its records' places."""
  lookup = index.build_lookup_fn(
      os.path.join(corpus.path, index.HASH_FILE), num_slots=corpus.num_slots
  )
  read_offsets = index.build_offsets_fn(
      os.path.join(corpus.path, index.OFFSETS_FILE)
  )

  # Nothing to convert, and conversion takes longer than tracing.
  @tf.autograph.experimental.do_not_convert
  def place_fn(client_id: str | tf.Tensor) -> tf.data.Dataset:
    client_id = tf.convert_to_tensor(client_id, tf.string)
    shard, first, count = lookup(client_id)
    places = records.places(
        tf.fill([count], client_id),
        shard=tf.fill([count], shard),
        offset=read_offsets(first, count),
    )
    # The graph does not tell of slices that they are a dataset, nor of what;
    # whoever reads ahead looks for that.
    return tf.data.Dataset.from_tensor_slices(places).take(-1)

  return place_fn
