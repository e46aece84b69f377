"""Workload of the benchmarks: a corpus of noise, and the recipe at any size.

Every client has the same number of utterances of the same length, so that each
local step costs the same.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
import os
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from data_tools import shards
from tff_asr.aggregators import dp_mean
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.execution import context as context_lib
from tff_asr.execution import ray_cluster
from tff_asr.features import front_end as front_end_lib
from tff_asr.features import log_mel
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import ctc
from tff_asr.models import transformer
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import lamb
from tff_asr.privacy import clipping as clipping_lib
from tff_asr.privacy import keys
from tff_asr.privacy import queries
from tff_asr.text import tokenizer as tokenizer_lib

_TRANSCRIPT = 'nobody says this but it is as long as speech'
CLIENT_LEARNING_RATE = 0.1
_LOG_MEL = front_end_lib.build_log_mel()
_UNCLIPPED = functools.partial(
    queries.PerLayerClipSumQuery, l2_norm_clip=math.inf, noise_multiplier=0.0
)


@dataclasses.dataclass(frozen=True)
class Workload:
  """Sizes of model, corpus and local work.

  Attributes:
    num_blocks: Blocks of the transformer.
    dim: Its width; the MLPs' is four times that.
    num_clients: Clients in the corpus.
    num_local_steps: Steps of each client in a round.
    num_utterances: Utterances of each client.
    utterance_sec: Length of each, the mean if they differ.
    batch_sec: Audio in a local step.
    length_range: Lengths are drawn evenly from this share below the mean to
      this share above it, in [0, 1); 0: all are equal.
  """

  num_blocks: int
  dim: int
  num_clients: int
  num_local_steps: int
  num_utterances: int = 16
  utterance_sec: float = 2.5
  batch_sec: float = 10.0
  length_range: float = 0.0

  def write_corpus(self, folder: str) -> tff.simulation.datasets.ClientData:
    """Writes noise as PCM shards; returns its clients."""
    generator = np.random.default_rng(1)
    longest = self._num_samples(1.0)
    noise = generator.normal(0, 1000, longest).astype(np.int16)
    lengths = {
        (client, number): self._num_samples(generator.uniform(-1, 1))
        for client in range(self.num_clients)
        for number in range(self.num_utterances)
    }
    shards.write_split(
        [
            shards.Utterance(
                client_id=f'client{client:06d}',
                utterance_id=f'client{client:06d}-{number:04d}',
                transcript=_TRANSCRIPT,
                audio=functools.partial(noise.__getitem__, slice(length)),
            )
            for (client, number), length in lengths.items()
        ],
        folder,
        origin={'corpus': 'noise'},
    )
    return client_data.load(folder)

  def _num_samples(self, place: float) -> int:
    """Samples of an utterance at a place in [-1, 1] of the range of lengths."""
    seconds = self.utterance_sec * (1 + self.length_range * place)
    return int(seconds * log_mel.SAMPLE_RATE_HZ)

  def build_model(
      self, *, dropout: float = 0.1, activation_dtype: str = 'float32'
  ) -> ctc.CtcModel:
    """The transformer."""
    return ctc.build(
        encoder=transformer.build(
            num_blocks=self.num_blocks,
            dim=self.dim,
            mlp_dim=4 * self.dim,
            num_heads=4,
            dropout=dropout,
            activation_dtype=activation_dtype,
        ),
        tokenizer=tokenizer_lib.CharTokenizer(),
    )

  def build_pipeline(
      self,
      model: ctc.CtcModel,
      *,
      buckets: buckets_lib.LengthBuckets | None = None,
      front_end: front_end_lib.FrontEnd = _LOG_MEL,
  ) -> pipeline_lib.Pipeline:
    """Batches of `batch_sec`, without SpecAugment."""
    return pipeline_lib.Pipeline(
        front_end=front_end,
        buckets=buckets,
        tokenizer=tokenizer_lib.CharTokenizer(),
        output_lengths=model.encoder.output_lengths,
        max_batch_sec=self.batch_sec,
        max_utterance_sec=self.utterance_sec * (1 + self.length_range) + 1,
    )

  def build_process(
      self,
      clients: tff.simulation.datasets.ClientData,
      *,
      cohort_size: float,
      noise_multiplier: float = 0.01,
      noise_kernel: str = 'host',
      is_private: bool = True,
      model: ctc.CtcModel | None = None,
      buckets: buckets_lib.LengthBuckets | None = None,
      front_end: front_end_lib.FrontEnd = _LOG_MEL,
  ) -> tff.learning.templates.LearningProcess:
    """Local SGD, per-layer clipping (dim) with noise, LAMB.

    Args:
      clients: The corpus.
      cohort_size: Clients expected in a round.
      noise_multiplier: Noise multiplier of the query.
      noise_kernel: 'tensorflow' for the native context.
      is_private: Whether to clip, sum integers and add noise, or sum float32.
      model: The model; None is that of `build_model`.
      buckets: Sizes that batches are padded to, for XLA, which then compiles
        local steps; None: neither.
      front_end: Computes the model's features.
    """
    model = model or self.build_model()
    return fed_avg.build(
        model=model,
        pipeline=self.build_pipeline(
            model, buckets=buckets, front_end=front_end
        ),
        client_data=clients,
        aggregator=dp_mean.build(
            build_query=build_query(
                noise_multiplier, noise_kernel=noise_kernel
            )
            if is_private
            else _UNCLIPPED,
            cohort_size=cohort_size,
        ),
        server_optimizer=build_server_optimizer(),
        local=client_update.LocalTraining(
            learning_rate=CLIENT_LEARNING_RATE,
            num_steps=self.num_local_steps,
            jit_compile=buckets is not None,
        ),
        seed=1,
    )

  def num_parameters(self) -> int:
    """Number of weights of the model."""
    return weights_lib.num_parameters(self.build_model().specs)


def write_index(
    folder: str, *, num_clients: int, records_each: int = 1
) -> None:
  """Writes the index of a population, with shards that are holes."""
  record_bytes, shard_records = 100_000, 1_000_000
  shard_of = np.arange(num_clients) * records_each // shard_records
  owners = np.repeat(shard_of, records_each)
  # Offsets begin again in each shard.
  firsts = np.searchsorted(owners, np.arange(shard_of[-1] + 1))
  ends = np.append(firsts[1:], len(owners))
  shards = []
  for number, size in enumerate((ends - firsts) * record_bytes):
    name = index.shard_name(number)
    with open(os.path.join(folder, name), 'wb') as file:
      file.truncate(int(size))
    # Only `client_data.verify` reads the shards whole.
    shards.append(index.Shard(name, int(size), 64 * '0'))
  index.write(
      folder,
      clients=index.Clients(
          [f'client{number:08d}' for number in range(num_clients)],
          shards=shard_of,
          first_records=np.arange(num_clients) * records_each,
          num_utterances=np.full(num_clients, records_each),
          num_samples=np.full(num_clients, records_each * 96_000),
      ),
      offsets=(np.arange(len(owners)) - firsts[owners]) * record_bytes,
      shards=shards,
      encoding='pcm',
      characters='a',
      origin={},
  )


def build_batch(
    size: int, *, seconds: float, labels_a_sec: int = 0
) -> pipeline_lib.Batch:
  """Noise as features of utterances of one length, with random labels."""
  num_frames = log_mel.frames_of_seconds(seconds)
  num_labels = int(labels_a_sec * seconds)
  generator = np.random.default_rng(1)
  features = generator.normal(size=[size, num_frames, log_mel.NUM_MEL_BINS])
  labels = generator.integers(0, 27, [size, num_labels])
  names = tf.constant([str(index) for index in range(size)])
  return pipeline_lib.Batch(
      client_id=names,
      feature_lengths=tf.fill([size], num_frames),
      features=tf.constant(features, tf.float32),
      label_lengths=tf.fill([size], num_labels),
      labels=tf.constant(labels, tf.int32),
      seed=tf.constant([1, 2]),
      transcript=names,
      utterance_id=names,
      example_weights=tf.ones([size]),
  )


def build_query(
    noise_multiplier: float = 0.01, *, noise_kernel: str = 'host'
) -> queries.BuildQuery:
  """Per-layer clipping by size."""
  return functools.partial(
      queries.PerLayerClipSumQuery,
      l2_norm_clip=0.01,
      noise_multiplier=noise_multiplier,
      clipping=clipping_lib.Clipping(split='dim'),
      noise_kernel=noise_kernel,
  )


def build_server_optimizer() -> tff.learning.optimizers.Optimizer:
  """LAMB."""
  return lamb.build_lamb(0.001)


def build_step(
    model: ctc.CtcModel,
    *,
    learning_rate: float = CLIENT_LEARNING_RATE,
    max_grad_norm: float = 1.0,
) -> Callable[..., tuple[weights_lib.Weights, tf.Tensor]]:
  """A client's local step: weights and batch to weights and sum of losses."""
  optimizer = tff.learning.optimizers.build_sgdm(learning_rate)
  # SGD has no state but its rate.
  state = optimizer.initialize(weights_lib.tensor_specs(model.specs))

  def step(weights, batch):
    _, weights, loss_sum = client_update.step(
        model, optimizer, state, weights, batch, max_grad_norm=max_grad_norm
    )
    return weights, loss_sum

  return step


def initialize(process: tff.learning.templates.LearningProcess) -> Any:
  """The process's first state with a noise key, in the default context."""
  return fed_avg.set_noise_key(process.initialize(), keys.draw())


class Round:
  """A round of all clients in a context."""

  def __init__(
      self,
      context: tff.framework.SyncContext,
      process: tff.learning.templates.LearningProcess,
      cohort: Sequence[records.ClientRecordLocations],
  ):
    self._context = context
    self._process = process
    self._cohort = list(cohort)
    with tff.framework.get_context_stack().install(context):
      self._state = initialize(process)

  def __call__(self) -> None:
    with tff.framework.get_context_stack().install(self._context):
      self._state = self._process.next(self._state, self._cohort).state


def build_ray_context(num_workers: int) -> context_lib.SyncContext:
  """Workers of Ray on this machine, which share its cores."""
  return ray_cluster.build_sync_context(
      ray_cluster.Settings(
          num_workers=num_workers,
          cpus_per_worker=max(1, psutil.cpu_count() // num_workers),
      )
  )
