"""Evaluation of models that each client adapts to itself.

A client divides its utterances at random into two parts. It evaluates the
broadcast model on the first part; then, for each number of utterances n, it
trains a copy of that model on n utterances of the second part (`client_update`)
and evaluates the copy on the first part again. Only the measurements leave the
client: each copy is discarded after its evaluation.

The same is done by `tff.learning.algorithms.build_personalization_eval`
(Wang et al. 2019, https://arxiv.org/abs/1910.10252) for models with variables
and for data that are divided before; results are equal.

The result holds the exact measurements of each client, which are not private.

  R: number of evaluations of a client.
"""

import collections
from collections.abc import Callable, Sequence
import dataclasses
import re
from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import client_evaluation
from tff_asr.learning import client_update
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import clipping
from tff_asr.text import tokenizer as tokenizer_lib

Measurements = collections.OrderedDict[str, tf.Tensor]
"""Sums over utterances, by name; sorted."""

# From weights and a batch to its measurements.
Measure = Callable[[weights_lib.Weights, pipeline_lib.Batch], Measurements]

# Folded into the seed of a client's orders, which are numbered from 0.
_DIVISION = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptation:
  """How a client adapts the model.

  Attributes:
    local: Settings of its steps. `weigh_by` and `unaugmented_rounds` are not
      used.
    trained: Names of the weights that it adapts, or regular expressions of
      whole names.
    num_utterances: Numbers of utterances to adapt on, each for a copy of the
      model; None: all of the second part. A client with fewer adapts on those
      it has.
    evaluation_share: Share of its utterances that a client evaluates on, in (0,
      1). Rounded; at least one, and not its only ones unless it has one.
    seed: Seed of the division, of the order of utterances, and of dropout and
      masks. Clients differ.
  """

  local: client_update.LocalTraining
  trained: Sequence[str] = ('.*',)
  num_utterances: Sequence[Optional[int]] = (None,)
  evaluation_share: float = 0.5
  seed: int = 1

  def __post_init__(self):
    if isinstance(self.trained, str) or not self.trained:
      raise ValueError(
          f'trained must be a list of names, found {self.trained!r}.'
      )
    if not self.num_utterances:
      raise ValueError('num_utterances must name at least one number.')
    for number in self.num_utterances:
      if number is not None:
        checks.positive_int(num_utterances=number)
    checks.positive(evaluation_share=self.evaluation_share)
    checks.below_one(evaluation_share=self.evaluation_share)
    checks.non_negative_int(seed=self.seed)

  def frozen(self, specs: weights_lib.Specs) -> list[str]:
    """Returns the names of the weights that clients do not adapt, sorted.

    Raises:
      ValueError: A pattern of `trained` matches no weight.
    """
    names = sorted(specs)
    trained = set()
    for pattern in self.trained:
      trained.update(
          clipping.matching(
              pattern, names, argument='trained', match=re.fullmatch
          )
      )
    return [name for name in names if name not in trained]


def build(
    *,
    model: client_update.Model,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
    adaptation: Adaptation,
    measure: Measure,
    max_clients: int = 100,
) -> tff.Computation:
  """Builds the computation.

  Its type is, for M measurements,

    (<{weights}@SERVER, {client}@CLIENTS>
     -> <client_id=string[?], num_adapted=int32[?,R], M=[?,R]>@SERVER)

  where `client` is what `client_data.client_arguments` returns. In the result
  each client has a row, in no particular order. The first of its R entries is
  of the broadcast model, and one of each number of `num_utterances` follows.
  `num_adapted` tells the utterances that the client adapted on.

  Args:
    model: The model.
    pipeline: Examples to batches.
    client_data: The clients; see `fed_avg.build`.
    adaptation: How clients adapt the model.
    measure: Measures a batch. Its values are summed over a client's batches.
    max_clients: Clients of a call. Of more, a random sample has rows.

  Raises:
    ValueError: As `Adaptation.frozen`.
  """
  checks.positive_int(max_clients=max_clients)
  open_client, read = client_data_lib.dataset_computation(client_data)
  personalize = _build_client(
      model, dataclasses.replace(pipeline, read=read), adaptation, measure
  )
  weights_type = tff.types.tensorflow_to_type(
      weights_lib.tensor_specs(model.specs)
  )

  @tff.tensorflow.computation(
      weights_type, open_client.type_signature.parameter
  )
  def client_computation(weights, client):
    # The server sends a client the location of its records, and no data.
    return personalize(weights, open_client(client))

  # As in TFF's own computation: a list of all clients' results.
  rows = tff.aggregators.UnweightedReservoirSamplingFactory(max_clients).create(
      client_computation.type_signature.result
  )

  @tff.federated_computation(
      tff.FederatedType(weights_type, tff.SERVER),
      tff.FederatedType(client_computation.type_signature.parameter[1],
                        tff.CLIENTS),
  )
  def evaluate(weights, clients):
    found = tff.federated_map(
        client_computation, (tff.federated_broadcast(weights), clients)
    )
    return rows.next(rows.initialize(), found).result

  return evaluate


def word_errors(
    model: ctc.CtcModel, tokenizer: tokenizer_lib.Tokenizer
) -> Measure:
  """Measures `errors` and `words` of greedy decoding (`person_errors`)."""
  count_batch = client_evaluation.build_count_batch(model, tokenizer)
  return lambda weights, batch: collections.OrderedDict(
      count_batch(weights, batch)._asdict()
  )


def _build_client(
    model: client_update.Model,
    pipeline: pipeline_lib.Pipeline,
    adaptation: Adaptation,
    measure: Measure,
) -> Callable[[weights_lib.Weights, tf.data.Dataset], Measurements]:
  """The graph function from weights and a client's examples to its row."""
  take_steps = client_update.build_local_steps(
      model, pipeline, adaptation.local, adaptation.frozen(model.specs)
  )
  # Training may repeat utterances; errors are counted once.
  evaluated = client_evaluation.once(pipeline)
  specs = _measurement_specs(measure, model, evaluated)
  evaluate = client_evaluation.build_sum(measure, specs, pipeline=evaluated)
  seed = weights_lib.seed_pair(adaptation.seed)
  # 0: the broadcast model. The largest int32 stands for all.
  numbers = [0, *(
      tf.int32.max if number is None else number
      for number in adaptation.num_utterances
  )]

  @tf.function
  def adapt(weights, client):
    weights, _ = take_steps(weights, client)
    return weights

  @tf.autograph.experimental.do_not_convert
  def personalize(weights, examples):
    client = pipeline.open_client(
        pipeline.with_lengths(examples, is_training=False),
        seed=tf.constant(seed),
    )
    held_out, rest = divide(client, adaptation.evaluation_share)
    evaluation_part = evaluated.select(client, held_out, num_epochs=1)

    def row(number):
      chosen = rest[:number]
      # From the broadcast weights each time.
      adapted = adapt(
          weights,
          pipeline.select(
              client, chosen, num_epochs=adaptation.local.num_epochs
          ),
      )
      return evaluate(adapted, evaluation_part), tf.size(chosen)

    rows, num_adapted = tf.map_fn(
        row,
        tf.constant(numbers),
        fn_output_signature=(specs, tf.int32),
        # One after another: each holds a copy of the weights.
        parallel_iterations=1,
    )
    return collections.OrderedDict(
        client_id=client.client_id, num_adapted=num_adapted, **rows
    )

  return personalize


def divide(
    client: pipeline_lib.ClientExamples, evaluation_share: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Numbers of the examples to evaluate on, and of the others, both int32."""
  order = tf.random.experimental.stateless_shuffle(
      tf.range(client.count),
      tf.random.fold_in(client.order_seed, _DIVISION),
  )
  share = tf.round(evaluation_share * tf.cast(client.count, tf.float32))
  number = tf.clip_by_value(
      tf.cast(share, tf.int32), 1, tf.maximum(client.count - 1, 1)
  )
  return order[:number], order[number:]


def _measurement_specs(
    measure: Measure,
    model: client_update.Model,
    pipeline: pipeline_lib.Pipeline,
) -> Measurements:
  """The tensor specs of what `measure` returns."""
  traced = tf.function(measure, autograph=False).get_concrete_function(
      weights_lib.tensor_specs(model.specs), pipeline.batch_spec
  )
  return tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype),
      traced.structured_outputs,
  )
