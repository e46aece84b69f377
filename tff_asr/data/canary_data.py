"""Client data with canary clients among the people, for an audit."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import client_data as client_data_lib
from tff_asr.data import schema
from tff_asr.privacy import canaries as canaries_lib


def add_canaries(
    *,
    client_data: client_data_lib.SpeechClientData,
    canaries: canaries_lib.Canaries,
) -> tff.simulation.datasets.ClientData:
  """Returns the clients and the canaries.

  A canary's dataset is one element that carries its id, which
  `learning.canary_work` takes out before anything trains on it.

  Raises:
    ValueError: A client has an id like a canary's.
  """
  taken = [
      client_id
      for client_id in client_data.client_ids
      if client_id.startswith(canaries_lib.PREFIX)
  ]
  if taken:
    raise ValueError(
        f'client {taken[0]} has an id like a canary: rename it in the corpus.'
    )
  return _WithCanaries(client_data, canaries)


class _WithCanaries(tff.simulation.datasets.ClientData):
  """See `add_canaries`."""

  def __init__(
      self,
      client_data: client_data_lib.SpeechClientData,
      canaries: canaries_lib.Canaries,
  ):
    self._people = client_data
    self._canary_ids = canaries.client_ids
    # Whose records fill the places of a canary's that are not its id.
    self._somebody = client_data.client_ids[0]
    self._cached_dataset_computation = None

  @property
  def client_ids(self) -> list[str]:
    return sorted([*self._people.client_ids, *self._canary_ids])

  @property
  def serializable_dataset_fn(
      self,
  ) -> Callable[[str | tf.Tensor], tf.data.Dataset]:

    def dataset_fn(client_id: str | tf.Tensor) -> tf.data.Dataset:
      client_id = tf.convert_to_tensor(client_id, tf.string)
      is_canary = canaries_lib.is_canary(client_id)
      person = tf.where(is_canary, self._somebody, client_id)

      def name(element):
        element[schema.CLIENT_ID] = client_id
        return element

      records = self._people.serializable_dataset_fn(person)
      everything = tf.constant(-1, tf.int64)
      count = tf.where(is_canary, tf.constant(1, tf.int64), everything)
      return records.take(count).map(name)

    return dataset_fn

  @property
  def element_type_structure(self) -> Any:
    return self._people.element_type_structure

  @property
  def corpus(self) -> Any:
    """The people's corpus."""
    return self._people.corpus

  def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
    return self.serializable_dataset_fn(client_id)

  def duration_sec(self, client_id: str) -> float:
    """Seconds of audio to train on; a canary has none."""
    if client_id.startswith(canaries_lib.PREFIX):
      return 0.0
    return self._people.duration_sec(client_id)
