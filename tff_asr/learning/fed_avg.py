"""Federated averaging of a speech model as a TFF learning process.

Algorithm 1 of https://arxiv.org/abs/2310.00098 composed from TFF's templates:

    distributor  sends the weights and this round's seed to the clients
    client work  local SGD, or another optimizer (`client_update`)
    aggregator   clip, sum, noise, divide (`aggregators.dp_mean`)
    finalizer    the server's optimizer (`server_update`)

Layers may be frozen (`layer_freeze`). A frozen layer has no gradient, no delta,
no part of the clip, no noise and no optimizer state.
"""

import collections
from collections.abc import Collection
import dataclasses
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.aggregators import aggregation
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import canaries as canaries_lib
from tff_asr.learning import client_update
from tff_asr.learning import layer_freeze
from tff_asr.learning import process as process_lib
from tff_asr.learning import server_update
from tff_asr.models import subspace
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import queries


class Traffic(NamedTuple):
  """Bytes between the server and one client in a round, as float32 tensors.

  Frozen weights do not count: they never change, so a client with the seed
  model has them.

  Attributes:
    download_bytes: The trained weights, to the client.
    upload_bytes: The client's delta, to the server.
  """

  download_bytes: int
  upload_bytes: int


def build(
    *,
    model: client_update.Model,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
    aggregator: tff.aggregators.AggregationFactory,
    server_optimizer: tff.learning.optimizers.Optimizer,
    local: client_update.LocalTraining,
    seed: int,
    canaries: Optional[canaries_lib.Canaries] = None,
    frozen: Collection[str] = (),
) -> tff.learning.templates.LearningProcess:
  """Builds the learning process.

  Its `next` takes the state and where the clients' records lie
  (`client_data.locate_clients`; for data in memory the clients' ids):

    (<S@SERVER, {<client_id=string,shard=int64,offsets=int64[?]>}@CLIENTS>
     -> <state=S@SERVER, metrics=M@SERVER>)

      >>> class Model:
      ...   specs = {'w': weights_lib.zeros_spec(80)}
      ...   def initialize(self, seed):
      ...     return weights_lib.initialize(self.specs, seed)
      ...   def loss(self, weights, features, *unused):
      ...     return tf.reduce_mean((features - weights['w']) ** 2, [1, 2])
      >>> process = build(
      ...     model=Model(),
      ...     pipeline=pipeline_lib.Pipeline(
      ...         tokenizer=None, output_lengths=lambda n: n, max_batch_sec=30.0
      ...     ),
      ...     client_data=tff.simulation.datasets.TestClientData({
      ...         'ann': dict(
      ...             client_id=['ann'],
      ...             transcript=['yes'],
      ...             utterance_id=['ann-1'],
      ...             waveform=np.zeros([1, 16000], np.int16),
      ...         )
      ...     }),
      ...     aggregator=tff.aggregators.UnweightedMeanFactory(),
      ...     server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
      ...     local=client_update.LocalTraining(learning_rate=0.1, num_steps=1),
      ...     seed=1,
      ... )
      >>> print(process.next.type_signature.parameter[1])
      {str}@CLIENTS

  Records are read where the client runs. A client that appears twice would
  count twice in the sum. Each round draws its noise anew, unless a key was set
  (`set_noise_key`).

  Args:
    model: The model; initial weights are drawn from `seed`.
    pipeline: Examples to batches.
    client_data: The clients: `client_data.SpeechClientData`, or any with
      elements as in `data.schema`, which are held in memory.
    aggregator: See `dp_mean.build`; or any of TFF's or your own, which carries
      no guarantee (`aggregation`).
    server_optimizer: Takes the mean delta for a gradient.
    local: Settings of the clients' local steps.
    seed: Seed of initial weights, shuffling, SpecAugment and dropout.
    canaries: Canaries of an audit, where `client_data` has canaries; else None.
    frozen: Layers that are not trained; see `layer_freeze.match`. Those of a
      subspace that define it (`models.subspace`) are never trained.

  Returns:
    A learning process; its weights are float32 tensors by name.

  Raises:
    ValueError: frozen names no layer or all of them, or as the parts raise.
  """
  seed_pair = weights_lib.seed_pair(seed)
  frozen = layer_freeze.match(frozen, model.specs)
  # Checked once more: nothing else may be left to train.
  frozen = layer_freeze.match(
      [*frozen, *subspace.fixed_weights(model)], model.specs
  )

  @tff.tensorflow.computation
  def initial_weights():
    return model.initialize(tf.constant(seed_pair))

  weights_type = initial_weights.type_signature.result
  distributor = _build_distributor(
      weights_type, seed_pair, unaugmented_rounds=local.unaugmented_rounds
  )
  # For a corpus on disk only locations are sent; `read` opens them in the
  # client's graph.
  open_client, read = client_data_lib.dataset_computation(client_data)
  client_work = client_update.build(
      model=model,
      pipeline=dataclasses.replace(pipeline, read=read),
      broadcast_type=distributor.next.type_signature.result.result.member,
      examples_type=open_client.type_signature.result,
      local=local,
      frozen=frozen,
  )
  # An audit's rounds sum the updates of canaries alone.
  if canaries is not None:
    client_work = canaries_lib.only_canaries_contribute(
        client_work, canaries=canaries
    )
  # Deltas of the trained weights, and the clients' numbers.
  result_type = client_work.next.type_signature.result.result.member
  process = tff.learning.templates.compose_learning_process(
      initial_weights,
      distributor,
      client_work,
      aggregation.create_weighted_process(
          aggregator,
          value_type=result_type.update,
          weight_type=result_type.update_weight,
      ),
      server_update.build(
          optimizer=server_optimizer,
          weights_type=weights_type,
          frozen=frozen,
      ),
  )
  # A client's argument becomes the location of its records, which its own graph
  # opens: the server sends no data.
  return tff.simulation.compose_dataset_computation_with_learning_process(
      open_client, process
  )


def set_noise_key(
    state: process_lib.State, key: np.ndarray
) -> process_lib.State:
  """Returns the state with the aggregator's noise key set.

  For rounds whose noise can be repeated, as `programs.training_loop.run` does
  under a ledger. A loop of your own needs no key: without one each round has
  noise of its own (docs/runs.md, "In a notebook"). With one, two calls of
  `next` on one state have the same noise: for other clients or other data,
  their difference would reveal the clients' updates.

  Args:
    state: State of a process made by `build`.
    key: 256 bits, int32 [8]; see `keys.draw`.
  """
  aggregator = state.aggregator
  query_state = queries.set_noise_key(aggregator.query_state, key)
  return state._replace(
      aggregator=aggregator._replace(query_state=query_state)
  )


def traffic(state: process_lib.State) -> Traffic:
  """Returns the bytes between the server and one client of a round.

  Both are the size of the trained weights. Seeds, clips and counts (a few
  bytes) are not counted.

  Args:
    state: State of the process.
  """
  live = weights_lib.without(
      process_lib.frozen_layers(state), state.global_model_weights
  )
  size = sum(np.asarray(value).nbytes for value in live.values())
  return Traffic(download_bytes=size, upload_bytes=size)


def _build_distributor(
    weights_type: tff.Type,
    seed_pair: tuple[int, int],
    *,
    unaugmented_rounds: int,
) -> tff.learning.templates.DistributionProcess:
  """Broadcasts weights, the round's seed, and whether it is augmented."""

  @tff.tensorflow.computation
  def initialize():
    return process_lib.SeedState(
        seed=tf.constant(seed_pair), round_num=tf.constant(0)
    )

  state_type = initialize.type_signature.result

  @tff.tensorflow.computation(state_type, weights_type)
  def prepare(state, weights):
    broadcast = collections.OrderedDict(
        # Clients fold their id into it, so rounds and clients differ.
        seed=tf.random.fold_in(state.seed, state.round_num),
        weights=weights,
    )
    # Only then: otherwise the type of the broadcast would have an unused field.
    if unaugmented_rounds:
      broadcast['is_augmented'] = state.round_num >= unaugmented_rounds
    return broadcast, process_lib.SeedState(state.seed, state.round_num + 1)

  @tff.federated_computation
  def init_fn():
    return tff.federated_eval(initialize, tff.SERVER)

  @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(weights_type, tff.SERVER)
  )
  def next_fn(state, weights):
    broadcast, new_state = tff.federated_map(prepare, (state, weights))
    return tff.templates.MeasuredProcessOutput(
        new_state,
        tff.federated_broadcast(broadcast),
        # No measurements.
        tff.federated_value((), tff.SERVER),
    )

  return tff.learning.templates.DistributionProcess(init_fn, next_fn)
