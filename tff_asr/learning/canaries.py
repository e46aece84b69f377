"""Canary clients for an audit, which send random updates; others send zeros.

A canary's update is a random direction in each layer. Its norm is far above any
clip, so a clip that fails in one layer shows. The directions follow from a seed
and the canary's number, both here and inside a graph. A coin decides for each
canary whether it is held out. Held-out canaries and all other clients send
zeros: so it is known what a round should have released, and no recordings are
used. For the accounting, a client that sends zeros counts as absent (Poisson
and full cohorts) or as replaced (fixed-size, min_sep and cyclic cohorts).

A client's dataset is one element with its id, which decides what it sends.
"""

import collections
from collections.abc import Sequence
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import sequential
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import index
from tff_asr.data import schema
from tff_asr.learning import client_update
from tff_asr.models import weights as weights_lib

PREFIX = 'canary/'
# Far above clips, which are 1 or less in practice. Its square fits float32.
LAYER_NORM = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
  """A number of canaries.

  The seed need not be secret, but the confidence of a bound is over coins: use
  a different seed for each audit.
  """

  num_canaries: int
  seed: int = 1

  def __post_init__(self):
    checks.positive_int(num_canaries=self.num_canaries)
    checks.non_negative_int(seed=self.seed)

  @property
  def client_ids(self) -> list[str]:
    """Their ids, sorted."""
    return [f'{PREFIX}{number:08d}' for number in range(self.num_canaries)]

  @property
  def included(self) -> np.ndarray:
    """The coins, bool [num_canaries]: who joins; the others are held out."""
    # Independent coins, as the audit's confidence bound assumes.
    return np.random.default_rng(self.seed).random(self.num_canaries) < 0.5

  def directions(
      self, client_id: tf.Tensor, shapes: Sequence[tf.TensorShape]
  ) -> list[tf.Tensor]:
    """Returns a canary's direction, float32 of these shapes; traceable.

    Each layer has the norm `LAYER_NORM`.

    Args:
      client_id: string [], one of `client_ids`.
      shapes: Fully defined, of the layers.
    """
    return sequential.sequential_map(
        lambda place, shape: self.direction(client_id, place, shape),
        range(len(shapes)),
        shapes,
    )

  def direction(
      self, client_id: tf.Tensor, place: int, shape: tf.TensorShape
  ) -> tf.Tensor:
    """Returns one layer of `directions`, the one at `place` among all."""
    # By number and layer, so that the audit can draw the same direction again.
    seed = tf.random.fold_in(
        tf.constant(weights_lib.seed_pair(self.seed)), _number(client_id)
    )
    # A normal vector's direction is uniform on the sphere.
    drawn = tf.random.stateless_normal(shape, tf.random.fold_in(seed, place))
    return drawn * (LAYER_NORM / tf.norm(drawn))

  def update(
      self, client_id: tf.Tensor, shapes: Sequence[tf.TensorShape]
  ) -> list[tf.Tensor]:
    """Returns what any client sends, float32 of these shapes; traceable.

    Args:
      client_id: string [], a person's or one of `client_ids`.
      shapes: Fully defined, of the layers.
    """
    # A function, so that the branches of tf.cond build their own tensors.
    zeros = lambda: [tf.zeros(shape) for shape in shapes]
    return tf.cond(
        is_canary(client_id),
        lambda: tf.cond(
            tf.gather(tf.constant(self.included), _number(client_id)),
            lambda: self.directions(client_id, shapes),
            zeros,
        ),
        zeros,
    )


def _number(client_id: tf.Tensor) -> tf.Tensor:
  """A canary's number, int32 []."""
  # -1: to the end of the string.
  digits = tf.strings.substr(client_id, len(PREFIX), -1)
  return tf.strings.to_number(digits, tf.int32)


def is_canary(client_id: tf.Tensor) -> tf.Tensor:
  """True if a client id, string [], is a canary's; bool []."""
  return tf.equal(tf.strings.substr(client_id, 0, len(PREFIX)), PREFIX)


def add_canaries(
    *,
    client_data: client_data_lib.SpeechClientData,
    canaries: Canaries,
) -> client_data_lib.SpeechClientData:
  """Returns the clients and the canaries, each with one record.

  Only a record's client id is used (`only_canaries_contribute`). A canary's
  cannot be read: it lies where the first client's record lies.

  Raises:
    ValueError: A client has an id like a canary's.
  """
  corpus, people, offsets = client_data.client_index
  for client_id in people.client_ids:
    if client_id.startswith(PREFIX):
      raise ValueError(
          f'client {client_id} has an id like a canary: rename it in the '
          'corpus.'
      )
  names = [*people.client_ids, *canaries.client_ids]
  # A canary takes the place of the first client's record.
  rows = [*range(len(people.client_ids)), *[0] * canaries.num_canaries]
  names, rows = zip(*sorted(zip(names, rows, strict=True)))
  clients = index.Clients(
      client_ids=list(names),
      shards=people.shards[[*rows]],
      first_records=people.first_records[[*rows]],
      num_utterances=np.ones(len(names), np.int64),
      # Nothing is trained, so all clients are of equal cost.
      num_samples=np.zeros(len(names), np.int64),
  )
  return client_data_lib.SpeechClientData(
      index.Index(corpus, clients, offsets)
  )


def only_canaries_contribute(
    client_work: tff.learning.templates.ClientWorkProcess,
    *,
    canaries: Canaries,
) -> tff.learning.templates.ClientWorkProcess:
  """Wraps client work: no client trains, and only canaries send updates.

  Type: that of the client work.

  Args:
    client_work: What people's clients do, here without data.
    canaries: What is sent; the data come from `add_canaries`.
  """
  state, broadcast, examples = client_work.next.type_signature.parameter
  result_type = client_work.next.type_signature.result.result.member

  @tff.tensorflow.computation(examples.member)
  def take_out_name(elements):
    name = elements.take(1).reduce(
        '', lambda _, element: element[schema.CLIENT_ID]
    )
    # No data: people's clients train on nothing and return zeros.
    return collections.OrderedDict(name=name, elements=elements.take(0))

  # Keeps the structure of the result; its values are those of no data.
  @tff.tensorflow.computation(result_type, np.str_)
  def replace(result, name):
    layers = tf.nest.flatten(result.update)
    update = canaries.update(name, [layer.shape for layer in layers])
    return tff.learning.templates.ClientResult(
        update=tf.nest.pack_sequence_as(result.update, update),
        update_weight=client_update.hash_client_id(name),
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
