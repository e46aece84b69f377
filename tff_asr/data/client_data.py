"""Client data: a corpus on disk as `tff.simulation.datasets.ClientData`.

A learning process of `fed_avg.build` takes, for each client of a round, where
its records lie. The server looks that up in the index:

    private = client_data.load('shards/train')
    clients = private.locate_clients(['ann', 'bob'])
    state, metrics = process.next(state, clients)

The records themselves are read at the client (`records`). Evaluation,
inspection and your own TFF loops open a client's utterances by
`create_tf_dataset_for_client` or `dataset_computation`.
"""

from collections.abc import Callable, Iterable
import os
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.data import client_ids as client_ids_lib
from tff_asr.data import index
from tff_asr.data import process_means
from tff_asr.data import records
from tff_asr.data import schema
from tff_asr.data import split_summary


_LOCATIONS_TYPE = tff.to_type(
    records.ClientRecordLocations(
        client_id=np.str_,
        shard=np.int64,
        offsets=tff.TensorType(np.int64, [None]),
    )
)
_WEIGHTED_LOCATIONS_TYPE = tff.to_type(
    records.WeightedClientRecordLocations(
        client_id=np.str_,
        shard=np.int64,
        offsets=tff.TensorType(np.int64, [None]),
        weight=np.float32,
    )
)


def load(
    path: str | os.PathLike[str],
    *,
    client_ids: Iterable[str] | None = None,
    num_processes: int = 1,
) -> 'SpeechClientData':
  """Opens a corpus folder, or some clients of it.

  Checks the index files by checksum and the shards by size; `verify` checks the
  shards' content.

      >>> from data_tools import shards
      >>> _ = shards.write_split(
      ...     [shards.Utterance('ann', 'a0', 'hi', lambda: np.int16([1, 2]))],
      ...     'split', origin={}, num_workers=0)
      >>> private = load('split')
      >>> private.client_ids, private.num_utterances('ann')
      (['ann'], 1)
      >>> private.locate_clients(['ann'])
      [ClientRecordLocations(client_id='ann', shard=0, offsets=array([0]))]

  Args:
    path: A split's folder, as written by `data_tools`.
    client_ids: The clients to keep; None keeps all.
    num_processes: Above 1, clients that `locate_clients` returns together have
      the weights of `process_means`, which depend on each other's data: no
      noise makes that private.

  Raises:
    ValueError: If the folder is missing, damaged or not a corpus, or a client
      is not in it.
  """
  data = SpeechClientData(index.read(path), num_processes=num_processes)
  return data if client_ids is None else data.select(client_ids)


def duration_cost(
    client_data: 'SpeechClientData',
) -> Callable[[records.ClientRecordLocations], float]:
  """Cost of a client's training, in seconds of audio.

  For an execution context that starts costly clients first. Costs come from the
  index; no record is read. They decide the order in which floats are added, so
  they depend on the corpus and the client alone: a run that is repeated or
  resumed has the same costs.

  Returns:
    A function of a client's records, as `locate_clients` returns them.
  """
  return lambda client: client_data.duration_sec(client.client_id)


def client_arguments(
    client_data: tff.simulation.datasets.ClientData, client_ids: Iterable[str]
) -> list[records.ClientRecordLocations] | list[str]:
  """Returns what `next` of a process on `client_data` takes for these clients.

  Args:
    client_data: The data that the process was built on (`fed_avg.build`).
    client_ids: The clients of a round.

  Returns:
    Where their records lie; for data in memory the ids themselves.
  """
  if isinstance(client_data, SpeechClientData):
    return client_data.locate_clients(client_ids)
  return list(client_ids)


def dataset_computation(
    client_data: tff.simulation.datasets.ClientData,
) -> tuple[tff.Computation, Optional[records.Read]]:
  """Returns the dataset computation of a learning process on `client_data`.

  Args:
    client_data: A corpus on disk, or any client data with utterances (`schema`)
      as elements.

  Returns:
    A TFF computation from a client's argument (`client_arguments`) to its
    dataset, and the reader of the dataset's rows where these are record
    locations, else None.
  """
  if isinstance(client_data, SpeechClientData):

    is_weighted = client_data.num_processes > 1

    @tff.tensorflow.computation(
        _WEIGHTED_LOCATIONS_TYPE if is_weighted else _LOCATIONS_TYPE
    )
    def locate(client):
      fields = list(client)
      rows = records.locations_of(records.ClientRecordLocations(*fields[:3]))
      if is_weighted:
        # A dataset has no place for what belongs to the client, so each row has
        # it.
        rows[records.WEIGHT] = tf.fill(
            tf.shape(rows[records.OFFSET]), fields[3]
        )
      return tf.data.Dataset.from_tensor_slices(rows)

    return locate, client_data.read

  # Seeds and simulated noise follow a client's name, so the drawn id replaces
  # the one that its elements claim. In records the reader compares them.
  @tff.tensorflow.computation(np.str_)
  def open_client(client_id):
    return client_data.serializable_dataset_fn(client_id).map(
        lambda element: element | {schema.CLIENT_ID: client_id}
    )

  return open_client, None


def verify(path: str | os.PathLike[str]) -> None:
  """Reads every file of a corpus and checks its SHA-256.

  Raises:
    ValueError: As `load`, or if the content of a file has changed. The message
      names these files and all clients of these shards.
  """
  corpus, clients, _ = index.read(path)
  damaged, affected = [
      path
      for name, digest in corpus.files.items()
      # A corpus works without the files that no index needs.
      if os.path.exists(path := os.path.join(corpus.path, name))
      and files.sha256(path) != digest
  ], []
  for number, shard in enumerate(corpus.shards):
    name = os.path.join(corpus.path, shard.name)
    if files.sha256(name) != shard.sha256:
      damaged.append(name)
      affected += [
          clients.client_ids[i]
          for i in np.flatnonzero(clients.shards == number)
      ]
  if damaged:
    raise ValueError(
        f'Damaged, by the checksums of {index.CORPUS_FILE}:'
        f' {", ".join(damaged)}'
        + (f', with the clients {", ".join(affected)}' if affected else '')
        + '. Copy or write the corpus again.'
    )


def corpus_of(
    client_data: tff.simulation.datasets.ClientData,
) -> Optional[index.Corpus]:
  """Returns the description of a corpus on disk; None for data in memory."""
  if isinstance(client_data, SpeechClientData):
    return client_data.corpus
  return None


def unit_warning(client_data: tff.simulation.datasets.ClientData) -> str:
  """Returns `split_summary.unit_warning`; '' for data in memory."""
  if not isinstance(client_data, SpeechClientData):
    return ''
  return split_summary.unit_warning(client_data.client_index.clients)


class SpeechClientData(tff.simulation.datasets.ClientData):
  """Clients with utterances. Built by `load`.

  Elements are those of `schema.element_spec`: an OrderedDict of `client_id`,
  `transcript`, `utterance_id` string [] and `waveform` int16 [N]; in the order
  of the utterance ids.
  """

  def __init__(self, corpus_index: index.Index, *, num_processes: int = 1):
    checks.positive_int(num_processes=num_processes)
    self.num_processes = num_processes
    self._corpus, clients, self._offsets = corpus_index
    self._ids = client_ids_lib.build(clients.client_ids)
    self._clients = clients._replace(client_ids=self._ids)
    # Utterances are numbered client by client: each client's end after these.
    self._ends = np.cumsum(self._clients.num_utterances)
    # Built once: the decoder of FLAC imports tensorflow-io.
    self._reader = records.Reader(self._corpus)

  @property
  def client_ids(self) -> list[str]:
    """The clients' ids, sorted; a new list."""
    # TFF's own client data copies, shuffles and sorts it.
    return self._ids.tolist()

  @property
  def num_records(self) -> int:
    """Utterances of all clients."""
    return int(self._ends[-1])

  @property
  def read(self) -> records.Read:
    """Reads records by their locations, in the graph: `records.Reader.read`."""
    return self._reader.read

  @property
  def corpus(self) -> index.Corpus:
    """The whole corpus: encoding, characters, counts, origin."""
    return self._corpus

  @property
  def client_index(self) -> index.Index:
    """These clients' part of the index, with the whole corpus."""
    return index.Index(self._corpus, self._clients, self._offsets)

  @property
  def element_type_structure(self) -> dict[str, tf.TensorSpec]:
    """`schema.element_spec`."""
    return schema.element_spec(self._corpus.features)

  def locate_clients(
      self, client_ids: Iterable[str]
  ) -> (
      list[records.ClientRecordLocations]
      | list[records.WeightedClientRecordLocations]
  ):
    """Returns where the records of these clients lie, in the order given.

    With several processes, they have the weights of a round of these clients.

    Raises:
      ValueError: If an id is not among `client_ids`.
    """
    found = []
    for client_id in client_ids:
      row = self._row(client_id)
      first = self._clients.first_records[row]
      offsets = self._offsets[first : first + self._clients.num_utterances[row]]
      found.append(
          records.ClientRecordLocations(
              client_id, self._clients.shards[row], offsets
          )
      )
    if self.num_processes == 1:
      return found
    weights = process_means.client_weights(
        [len(each.offsets) for each in found], num_processes=self.num_processes
    )
    return [
        records.WeightedClientRecordLocations(*each, np.float32(weight))
        for each, weight in zip(found, weights)
    ]

  def record_locations(self, numbers: np.ndarray) -> records.RecordLocations:
    """Returns the locations of utterances of any clients.

    Args:
      numbers: int64 [n], each below `num_records`: clients are in the order of
        their ids, and each client's utterances in that of the corpus.
    """
    # int64: a corpus may have more than 2^31 records.
    numbers = np.asarray(numbers, np.int64)
    clients = self._clients
    # Right: the first number after a client's last one belongs to the next.
    rows = np.searchsorted(self._ends, numbers, side='right')
    starts = self._ends[rows] - clients.num_utterances[rows]
    return records.locations(
        np.array([clients.client_ids[row] for row in rows], object),
        shard=clients.shards[rows],
        offset=self._offsets[clients.first_records[rows] + numbers - starts],
    )

  def read_dataset(self, rows: records.RecordLocations) -> tf.data.Dataset:
    """Returns utterances by their locations (`records.Reader.read_dataset`)."""
    return self._reader.read_dataset(rows)

  @property
  def serializable_dataset_fn(
      self,
  ) -> Callable[[str | tf.Tensor], tf.data.Dataset]:
    """From a client id (str or string []) to its dataset; traceable.

    The graph holds the index, as that of TFF's own client data does. In the
    graph, an id that is not among `client_ids` raises InvalidArgumentError.
    """
    clients = self._clients

    @tf.autograph.experimental.do_not_convert
    def dataset_fn(client_id: str | tf.Tensor) -> tf.data.Dataset:
      # Not a tf.lookup table, which each caller would have to initialize.
      is_client = tf.equal(tf.constant(self.client_ids), client_id)
      # Without the check, argmax of all False would be the first client.
      check = tf.debugging.Assert(
          tf.reduce_any(is_client),
          [f'the client is not among those of {self._corpus.path}.'],
      )
      with tf.control_dependencies([check]):
        row = tf.argmax(tf.cast(is_client, tf.int32))
      first = tf.constant(clients.first_records)[row]
      count = tf.constant(clients.num_utterances)[row]
      return self._reader.read_dataset(
          records.locations_of(
              records.ClientRecordLocations(
                  client_id,
                  tf.constant(clients.shards)[row],
                  tf.constant(self._offsets)[first : first + count],
              )
          )
      )

    return dataset_fn

  def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
    """Returns the dataset of one client.

    Raises:
      ValueError: If `client_id` is not among `client_ids`.
    """
    (client,) = self.locate_clients([client_id])
    return self._reader.read_dataset(records.locations_of(client))

  def select(self, client_ids: Iterable[str]) -> 'SpeechClientData':
    """Returns these clients only.

    Args:
      client_ids: At least one, each among `self.client_ids`, none twice.

    Raises:
      ValueError: If it is empty, or naming the first id that is unknown or
        given twice.
    """
    # Sorted, as the rows of an index must be.
    selected = sorted(client_ids)
    if not selected:
      raise ValueError('client_ids must name at least one client, found none.')
    rows = list(map(self._row, selected))
    for one, other in zip(selected, selected[1:]):
      if one == other:
        raise ValueError(f'client_ids contains {one} twice.')
    # The rows keep their stretches of the offsets, which stay as they are.
    columns = (column[rows] for column in self._clients[1:])
    clients = index.Clients(selected, *columns)
    return SpeechClientData(
        index.Index(self._corpus, clients, self._offsets),
        num_processes=self.num_processes,
    )

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
    """The row of a client in the table of clients."""
    row = self._ids.find(client_id)
    if row is None:
      raise ValueError(
          f'client {client_id} is not among the {len(self._ids)} clients'
          f' taken from {self._corpus.path}.'
      )
    return row
