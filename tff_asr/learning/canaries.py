"""Canary clients for an audit: their random updates, their data, their work.

A canary's update is a random direction in each layer. Its norm is far above any
clip, so a clip that fails in one layer shows. The directions follow from a seed
and the canary's number, both here and inside a graph. A canary's dataset is one
element with its id; its client work sends the update instead of training.
"""

import collections
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import records as records_lib
from tff_asr.data import schema
from tff_asr.privacy import keys
from tff_asr.privacy import queries

PREFIX = 'canary/'
# Far above clips, which are 1 or less in practice. Its square fits float32.
LAYER_NORM = 1e6

# A canary owns so many values of the random stream.
_VALUES_PER_CANARY = 2**34


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
  """`num_canaries` of them; the seed need not be secret."""

  num_canaries: int
  seed: int = 1

  def __post_init__(self):
    checks.positive_int(num_canaries=self.num_canaries)
    checks.non_negative_int(seed=self.seed)

  @property
  def client_ids(self) -> list[str]:
    """Their ids, sorted."""
    return [f'{PREFIX}{number:08d}' for number in range(self.num_canaries)]

  def update(
      self, client_id: tf.Tensor, shapes: Sequence[tf.TensorShape]
  ) -> list[tf.Tensor]:
    """Returns a canary's update, float32 of these shapes; traceable.

    Args:
      client_id: string [], one of `client_ids`.
      shapes: Fully defined, of the layers.
    """
    digits = tf.strings.substr(client_id, len(PREFIX), -1)
    number = tf.strings.to_number(digits, tf.int64)
    directions = queries.standard_normal(
        shapes,
        noise_key=tf.constant(keys.from_seed(self.seed)),
        start=number * _VALUES_PER_CANARY,
    )
    return [
        direction * (LAYER_NORM / tf.norm(direction))
        for direction in directions
    ]


def is_canary(client_id: tf.Tensor) -> tf.Tensor:
  """Whether a client id, string [], is a canary's; bool []."""
  return tf.equal(tf.strings.substr(client_id, 0, len(PREFIX)), PREFIX)


def add_canaries(
    *,
    client_data: client_data_lib.SpeechClientData,
    canaries: Canaries,
) -> tff.simulation.datasets.ClientData:
  """Returns the clients and the canaries.

  A canary's dataset is one element that carries its id, which `wrap` takes out
  before anything trains on it.

  Raises:
    ValueError: A client has an id like a canary's.
  """
  taken = [
      client_id
      for client_id in client_data.client_ids
      if client_id.startswith(PREFIX)
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
      client_data: tff.simulation.datasets.ClientData,
      canaries: Canaries,
  ):
    self._people = client_data
    self._canaries = canaries
    self._canary_ids = canaries.client_ids
    # A canary's record is this client's, except for the id.
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
      is_one = is_canary(client_id)
      person = tf.where(is_one, self._somebody, client_id)

      def name(element):
        element[schema.CLIENT_ID] = client_id
        return element

      records = self._people.serializable_dataset_fn(person)
      everything = tf.constant(-1, tf.int64)
      count = tf.where(is_one, tf.constant(1, tf.int64), everything)
      return records.take(count).map(name)

    return dataset_fn

  @property
  def places(self) -> tff.simulation.datasets.ClientData:
    """The people's places; a canary's is one that carries its id."""
    return _WithCanaries(self._people.places, self._canaries)

  @property
  def read(self) -> records_lib.Read:
    """The people's reader; a canary's place is not for it."""
    return self._people.read

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
    if client_id.startswith(PREFIX):
      return 0.0
    return self._people.duration_sec(client_id)


def wrap(
    client_work: tff.learning.templates.ClientWorkProcess,
    *,
    canaries: Canaries,
) -> tff.learning.templates.ClientWorkProcess:
  """Wraps client work; canary clients send their random update.

  Type: that of the client work.

  Args:
    client_work: What people's clients do.
    canaries: What canaries send; their data come from
      `add_canaries`. They train on nothing.
  """
  state, broadcast, examples = client_work.next.type_signature.parameter
  result_type = client_work.next.type_signature.result.result.member

  @tff.tensorflow.computation(examples.member)
  def take_out_name(elements):
    name = elements.take(1).reduce(
        '', lambda _, element: element[schema.CLIENT_ID]
    )
    ones = tf.cast(is_canary(name), tf.int64)
    return collections.OrderedDict(name=name, elements=elements.skip(ones))

  @tff.tensorflow.computation(result_type, np.str_)
  def replace(result, name):
    layers = tf.nest.flatten(result.update)
    update = tf.cond(
        is_canary(name),
        lambda: canaries.update(name, [layer.shape for layer in layers]),
        lambda: layers,
    )
    return tff.learning.templates.ClientResult(
        update=tf.nest.pack_sequence_as(result.update, update),
        update_weight=result.update_weight,
    )

  @tff.federated_computation(state, broadcast, examples)
  def next_fn(state, broadcast, examples):
    taken = tff.federated_map(take_out_name, examples)
    output = client_work.next(state, broadcast, taken.elements)
    result = tff.federated_map(replace, (output.result, taken.name))
    return tff.templates.MeasuredProcessOutput(
        output.state, result, output.measurements
    )

  return tff.learning.templates.ClientWorkProcess(
      client_work.initialize, next_fn
  )
