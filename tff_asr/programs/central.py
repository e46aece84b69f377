"""Central training as a program: the utterances of all speakers together.

It makes seed models and baselines, and fine-tunes pre-trained encoders. It is
not private.

A step has one batch, or one from each of several loaders. A loader reads its
own share of the utterances (every n-th) in its own orders and chunks, as each
process of the published code does (`create_dataset`, `world_size`; one a GPU).
As there, the batches of a step share the model's random draws: all drop the
same layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.execution import devices as devices_lib
from tff_asr.learning import central_step
from tff_asr.learning import process as process_lib
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.programs import faults
from tff_asr.programs import private_rounds
from tff_asr.programs import run_state
from tff_asr.programs import training_loop


# Chunks read, and batches computed, ahead of the step; at least one a loader.
_NUM_AHEAD = 2


class DataPosition(NamedTuple):
  """Position of a run in its data: a pass has chunks, a chunk has batches.

  Attributes:
    step: Steps before this one.
    chunk: Number of chunks before the open one of each loader, over all passes,
      int64 [num_loaders].
    batch: Number of batches of that chunk that each loader has used.
  """

  step: np.int64
  chunk: np.ndarray
  batch: np.ndarray


class CentralLoopState(NamedTuple):
  """Values that a run keeps from step to step.

  Attributes:
    best_weights: The model with the lowest dev WER so far.
    best_wer: That WER; infinite before the first evaluation.
    evaluations_since_best: Evaluations since then.
    loss_sum: Sum of the losses of the utterances since the last evaluation, in
      nats.
    num_utterances: Utterances trained on since then.
  """

  best_weights: weights_lib.Weights
  best_wer: float = math.inf
  evaluations_since_best: int = 0
  loss_sum: float = 0.0
  num_utterances: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CentralTraining(
    training_loop.TrainingRun[
        list[pipeline_lib.Batch], DataPosition, CentralLoopState
    ]
):
  """Steps on batches of all speakers' utterances.

  Metrics are released with each evaluation: means since the last one, and
  gradient norms of the step before it by layer.

  Attributes:
    optimizer: Any TFF optimizer.
    num_steps: Steps at most.
    seed: Seed of initial weights, order, SpecAugment and dropout.
    patience: Stop when this many evaluations in a row did not lower the WER,
      and keep the weights of the lowest. None: train all steps and keep the
      last weights.
    max_grad_norm: Gradients are clipped to this global norm.
    devices: Each batch is divided among these; None: TensorFlow's default one.
    encoder_rate: Factor of the encoder's steps, relative to the head's.
    encoder_frozen_steps: Steps before the encoder is trained; its optimizer
      and schedule begin then (`optimizers.param_groups`).
    encoder_optimizer: Optimizer of the encoder, with another schedule; None: as
      the head's.
    jit_compile: Whether XLA compiles the step (`central_step`), which needs
      length buckets.
    num_loaders: Each reads its share of the utterances and gives a step one
      batch; the gradient is the mean of theirs.
    unaugmented_steps: Steps without SpecAugment at the start.
  """

  optimizer: tff.learning.optimizers.Optimizer
  num_steps: int
  seed: int
  patience: Optional[int] = None
  max_grad_norm: float = 1.0
  devices: Optional[Sequence[str]] = None
  encoder_rate: float = 1.0
  encoder_frozen_steps: int = 0
  encoder_optimizer: Optional[tff.learning.optimizers.Optimizer] = None
  jit_compile: bool = False
  num_loaders: int = 1
  unaugmented_steps: int = 0

  name = 'central'
  step_name = 'step'
  privacy_unit = None

  def validate(self) -> None:
    checks.check_all(
        lambda: checks.positive_int(num_steps=self.num_steps),
        lambda: checks.non_negative_int(
            seed=self.seed,
            unaugmented_steps=self.unaugmented_steps,
            encoder_frozen_steps=self.encoder_frozen_steps,
        ),
        self._check_loaders,
        lambda: checks.positive(
            max_grad_norm=self.max_grad_norm, encoder_rate=self.encoder_rate
        ),
        lambda: checks.finite(encoder_rate=self.encoder_rate),
        lambda: (
            self.devices is None
            or devices_lib.logical_devices(self.devices)
        ),
        lambda: buckets_lib.check_jit(
            self.jit_compile,
            self.pipeline.buckets,
            frozen=encoder_lib.frozen_of(self.model),
        ),
        self._check_patience,
        super().validate,
    )

  def _check_loaders(self) -> None:
    """Raises ValueError if a loader would have no data."""
    checks.positive_int(num_loaders=self.num_loaders)
    # One loader needs no look at the number of records: it takes them all.
    if self.num_loaders == 1:
      return
    found = self.client_data.num_records
    if found < self.num_loaders:
      raise ValueError(
          f'num_loaders {self.num_loaders} must be at most the number of '
          f'utterances, found {found}.'
      )

  def _check_patience(self) -> None:
    """Raises ValueError for patience that is not positive or has no dev set."""
    if self.patience is None:
      return
    checks.positive_int(patience=self.patience)
    if self.evaluator is None:
      raise ValueError('patience needs an evaluator of a dev set, found none.')

  @property
  def total_rounds(self) -> int:
    return self.num_steps

  @property
  def release_every(self) -> int:
    return self.settings.evaluate_every

  @property
  def selects_on_dev(self) -> bool:
    return self.patience is not None

  @functools.cached_property
  def process(self) -> central_step.CentralStep:
    return central_step.CentralStep(
        model=self.model,
        optimizer=self.optimizer,
        seed=self.seed,
        max_grad_norm=self.max_grad_norm,
        devices=self.devices,
        encoder_rate=self.encoder_rate,
        encoder_frozen_steps=self.encoder_frozen_steps,
        encoder_optimizer=self.encoder_optimizer,
        jit_compile=self.jit_compile,
        front_end=self.pipeline.front_end,
    )

  @functools.cached_property
  def _reader(self) -> '_BatchReader':
    return _BatchReader(
        self.client_data,
        pipeline=self.pipeline,
        seed=self.seed,
        num_loaders=self.num_loaders,
        unaugmented_steps=self.unaugmented_steps,
    )

  async def init_process_state(self) -> process_lib.State:
    return self.process.initialize()

  def init_data_position(self) -> DataPosition:
    # int64 on all platforms, since positions are saved.
    zeros = np.zeros([self.num_loaders], np.int64)
    return DataPosition(np.int64(0), zeros, zeros)

  def init_loop_state(self, weights: weights_lib.Weights) -> CentralLoopState:
    return CentralLoopState(best_weights=weights)

  def sample(
      self, data_position: DataPosition
  ) -> tuple[list[pipeline_lib.Batch], DataPosition]:
    """Reads the next batch of each loader."""
    return self._reader.read(data_position)

  async def step(
      self, state: process_lib.State, batch: list[pipeline_lib.Batch]
  ) -> process_lib.Output:
    return self.process.next(state, batch)

  def process_round(
      self,
      loop_state: CentralLoopState,
      result: private_rounds.RoundResult[
          list[pipeline_lib.Batch], DataPosition
      ],
      *,
      round_num: int,
      shows_exact: bool,
  ) -> tuple[CentralLoopState, dict[str, float]]:
    del shows_exact  # Nothing is private.
    loss_sum = float(result.output.metrics['loss_sum'])
    num_utterances = float(result.output.metrics['num_utterances'])
    # Before the evaluation, which would report a model of NaNs as bad words.
    faults.check_step(
        result.output.state.global_model_weights,
        loss=loss_sum,
        step_num=round_num,
    )
    loop_state = loop_state._replace(
        loss_sum=loop_state.loss_sum + loss_sum,
        num_utterances=loop_state.num_utterances + num_utterances,
    )
    return loop_state, {
        # A batch may hold only utterances that are too short for a loss.
        'train_loss': loop_state.loss_sum / max(loop_state.num_utterances, 1),
        'num_utterances': loop_state.num_utterances,
        # Of this step alone.
        **{
            f'layer_gradient_norm/{name}': float(norm)
            for name, norm in result.output.metrics['gradient_norms'].items()
        },
    }

  def after_evaluation(
      self,
      loop_state: CentralLoopState,
      weights: weights_lib.Weights,
      metrics: Mapping[str, float],
  ) -> CentralLoopState:
    loop_state = loop_state._replace(loss_sum=0.0, num_utterances=0.0)
    # Without an evaluator there is no WER to compare.
    if not metrics:
      return loop_state
    # Not `<=`: of equal models the earlier one is kept.
    if metrics['dev_word_error_rate'] < loop_state.best_wer:
      return loop_state._replace(
          best_weights=weights,
          best_wer=metrics['dev_word_error_rate'],
          evaluations_since_best=0,
      )
    return loop_state._replace(
        evaluations_since_best=loop_state.evaluations_since_best + 1
    )

  def is_converged(self, loop_state: CentralLoopState) -> bool:
    return (
        self.patience is not None
        and loop_state.evaluations_since_best >= self.patience
    )

  def export(
      self, state: run_state.RunState
  ) -> tuple[weights_lib.Weights, dict[str, Any]]:
    if self.patience is None:
      return state.process.global_model_weights, {}
    return state.loop_state.best_weights, {}


class _BatchReader:
  """Reads the batches of all loaders in order, ahead of the steps."""

  def __init__(
      self,
      client_data: client_data_lib.SpeechClientData,
      *,
      pipeline: pipeline_lib.Pipeline,
      seed: int,
      num_loaders: int,
      unaugmented_steps: int,
  ):
    """Creates a reader; see `CentralTraining` for the arguments."""
    self._client_data = client_data
    self._pipeline = pipeline
    self._seed = seed
    self._num_loaders = num_loaders
    self._unaugmented_steps = unaugmented_steps
    # Opened at the first read, which knows the position to resume from.
    self._batches: Optional[Iterator[Any]] = None
    self._is_augmented = False

  def read(
      self, position: DataPosition
  ) -> tuple[list[pipeline_lib.Batch], DataPosition]:
    """Returns a batch of each loader, and the position of the next ones.

    Args:
      position: The first call chooses it; later calls take the position that
        the last one returned.
    """
    # Reopened when SpecAugment begins: batches are read ahead.
    is_augmented = position.step >= self._unaugmented_steps
    if self._batches is None or is_augmented != self._is_augmented:
      self._is_augmented = is_augmented
      self._batches = iter(self._open(position))
    # Transposed: one tuple for each loader becomes one for each field.
    chunks, numbers, batches = zip(*next(self._batches))
    for batch in batches:
      # All loaders share the model's random draws of a step.
      batch['seed'] = batches[0]['seed']
    return list(batches), DataPosition(
        # `numbers` are of the batches just read: the next ones follow them.
        position.step + 1, np.array(chunks), np.array(numbers) + 1
    )

  def _open(self, start: DataPosition) -> tf.data.Dataset:
    """From a position on, each loader's (chunk, number in it, batch)."""
    pipeline = self._pipeline
    if not self._is_augmented:
      # The whole pipeline otherwise: order and batches stay the same.
      pipeline = dataclasses.replace(pipeline, augment=None)
    return tf.data.Dataset.zip(tuple(
        self._open_loader(number, chunk, batch, pipeline)
        for number, (chunk, batch) in enumerate(zip(start.chunk, start.batch))
    ))

  def _open_loader(
      self,
      loader: int,
      start_chunk: np.int64,
      start_batch: np.int64,
      pipeline: pipeline_lib.Pipeline,
  ) -> tf.data.Dataset:
    """(chunk, number in it, batch) of a loader, without end.

    A pass takes the loader's utterances in a random order, `chunk_size` at a
    time; the last chunk of a pass may be smaller. Chunks before the start are
    not read.
    """
    size = pipeline.chunk_size
    # Every n-th utterance, and the last chunk of a pass may be smaller.
    mine = range(loader, self._client_data.num_records, self._num_loaders)
    # Rounded up: the last chunk may be smaller.
    per_pass = -(-len(mine) // size)
    key = keys.derive(keys.from_seed(self._seed), purpose='central order')
    # Loader 0 has the order of a run with one loader.
    if loader:
      key = keys.derive(key, purpose=f'loader {loader}')
    # Seeds of stateless ops are int32 here.
    seed = tf.constant([self._seed & 0x7FFFFFFF, 1 + loader])
    # So that memory does not grow with the number of loaders.
    num_ahead = max(1, _NUM_AHEAD // self._num_loaders)

    def record_locations():
      permuted_pass, order = None, None
      for chunk in itertools.count(int(start_chunk)):
        pass_num, number = divmod(chunk, per_pass)
        # One permutation at a time: it has an entry for each utterance.
        if pass_num != permuted_pass:
          permuted_pass = pass_num
          order = permutation(len(mine), key=key, pass_num=pass_num)
        numbers = order[number * size : (number + 1) * size]
        yield np.int64(chunk), self._client_data.record_locations(
            mine.start + mine.step * numbers
        )

    chunks = tf.data.Dataset.from_generator(
        record_locations,
        output_signature=(
            tf.TensorSpec([], tf.int64), records.LOCATION_SPECS
        ),
    ).map(
        lambda chunk, rows: (chunk, self._prepare(chunk, rows, seed)),
        num_parallel_calls=num_ahead,
        # In order: a resumed run must get the same batches.
        deterministic=True,
    )
    return pipeline.slice_all(
        chunks, skip=start_batch, num_at_once=num_ahead
    ).prefetch(1)

  @functools.cached_property
  def _prepare(self) -> Callable[..., pipeline_lib.PackedChunk]:
    """(chunk's number, its record locations, loader's seed) to the chunk.

    Traced once for all loaders, with and without SpecAugment.
    """

    def prepare(chunk, rows, seed):
      # Seeds are int32, while chunks are counted without a limit.
      number = tf.bitwise.bitwise_and(chunk, tf.constant(2**31 - 1, tf.int64))
      return self._pipeline.pack(
          self._client_data.read(rows, self._pipeline.max_samples),
          seed=tf.random.fold_in(seed, tf.cast(number, tf.int32)),
      )

    return tf.function(prepare, autograph=False)


def permutation(
    num_records: int, *, key: np.ndarray, pass_num: int
) -> np.ndarray:
  """Returns a random order of records, another one for each pass.

  A function of its arguments alone, so a run resumes in any pass. Not secret:
  no privacy rests on it.

  Args:
    num_records: At least 1.
    key: 256-bit key, int32 [8]; Philox takes half of it.
    pass_num: At least 0.

  Returns:
    int64 [num_records].
  """
  # Philox counts in the first word of its counter, so passes share no words.
  words = np.random.Philox(
      key=np.frombuffer(keys.to_bytes(key)[:16], '<u8'),
      counter=np.array([0, pass_num, 0, 0], np.uint64),
  )
  # A stable sort breaks ties of equal words alike on every machine.
  return np.argsort(words.random_raw(num_records), kind='stable')
