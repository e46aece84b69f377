"""Central training as a program: the utterances of all speakers together.

It makes seed models and baselines, and fine-tunes pre-trained encoders. Nothing
about it is private.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import order as order_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.data import shapes as shapes_lib
from tff_asr.features import log_mel
from tff_asr.learning import central_step
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.programs import faults
from tff_asr.programs import private_rounds
from tff_asr.programs import run_state
from tff_asr.programs import training_loop


# Chunks that are read and prepared ahead.
_CHUNKS_AT_ONCE = 2


class Place(NamedTuple):
  """Position of a run in its data: a pass has chunks, a chunk has batches.

  Attributes:
    chunk: Chunks before this one, over all passes.
    batch: Batches of it that were used.
  """

  chunk: np.int64
  batch: np.int64


class Record(NamedTuple):
  """Values that a run keeps from step to step.

  Attributes:
    best_weights: The model with the lowest dev WER so far.
    best_wer: That WER; infinite before the first evaluation.
    evaluations_since_best: Evaluations since then.
    loss_sum: Of the utterances since the last evaluation, in nats.
    num_utterances: Trained on since then.
    audio_sec: Their seconds.
    padded_sec: Seconds of their batches, with padding.
  """

  best_weights: weights_lib.Weights
  best_wer: float = math.inf
  evaluations_since_best: int = 0
  loss_sum: float = 0.0
  num_utterances: float = 0.0
  audio_sec: float = 0.0
  padded_sec: float = 0.0


@dataclasses.dataclass(kw_only=True, eq=False)
class CentralTraining(training_loop.TrainingRun):
  """Steps on batches of all speakers' utterances.

  Each evaluation releases metrics: means since the evaluation before.

  Attributes:
    optimizer: Any TFF optimizer.
    num_steps: Steps at most.
    seed: Of initial weights, order, SpecAugment and dropout.
    patience: Stop when this many evaluations in a row did not lower the WER,
      and keep the weights of the lowest. None: train all steps and keep the
      last weights.
    max_grad_norm: Gradients are clipped to this global norm.
    devices: Each batch is divided among these; None: TensorFlow's default one.
    encoder_rate: Of the encoder's steps, beside those of the head.
    encoder_frozen_steps: The encoder is trained after so many steps; its
      optimizer and schedule begin then (`optimizers.grouped`).
    encoder_optimizer: Of the encoder, with another schedule; None: as the
      head's.
    jit: XLA compiles the step (`central_step`).
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
  jit: bool = False

  NAME = 'central'
  UNIT = 'step'
  PRIVACY_UNIT = None

  def __post_init__(self):
    self.check(
        lambda: checks.positive_int(num_steps=self.num_steps),
        lambda: checks.non_negative_int(seed=self.seed),
        lambda: checks.positive(max_grad_norm=self.max_grad_norm),
        lambda: self.devices is None
        or central_step.find_devices(self.devices),
        lambda: checks.positive(encoder_rate=self.encoder_rate),
        lambda: checks.finite(encoder_rate=self.encoder_rate),
        lambda: checks.non_negative_int(
            encoder_frozen_steps=self.encoder_frozen_steps
        ),
        lambda: self.patience is None
        or checks.positive_int(patience=self.patience),
        self._check_patience,
    )
    self.release_every = self.settings.evaluate_every
    self.process = central_step.CentralStep(
        model=self.model,
        optimizer=self.optimizer,
        seed=self.seed,
        max_grad_norm=self.max_grad_norm,
        devices=self.devices,
        encoder_rate=self.encoder_rate,
        encoder_frozen_steps=self.encoder_frozen_steps,
        encoder_optimizer=self.encoder_optimizer,
        shapes=self.pipeline.shapes,
        jit=self.jit,
    )
    self._batches: Optional[Iterator[Any]] = None

  def _check_patience(self) -> None:
    """Raises ValueError for patience with what nobody evaluates."""
    if self.patience is not None and self.evaluator is None:
      raise ValueError('patience needs an evaluator of a dev set, found none.')

  @property
  def total(self) -> int:
    return self.num_steps

  def initial_draw(self) -> Place:
    return Place(np.int64(0), np.int64(0))

  def draw(self, source_state: Place) -> tuple[pipeline_lib.Batch, Place]:
    """The next batch, read in order from the first place asked for."""
    if self._batches is None:
      self._batches = iter(self._read(source_state))
    chunk, number, batch = next(self._batches)
    return batch, Place(chunk.numpy(), number.numpy() + 1)

  def _read(self, start: Place) -> tf.data.Dataset:
    """(chunk, number in it, batch) from a place on, without end.

    A pass takes the utterances of all speakers in a random order, `chunk_size`
    at a time; the last chunk of a pass may be smaller. What lies before the
    place is not read, but for its own chunk.
    """
    size = self.pipeline.chunk_size
    num_records = self.client_data.num_records
    per_pass = -(-num_records // size)
    order = order_lib.Order(
        num_records,
        key=keys.derive(keys.from_seed(self.seed), purpose='central order'),
    )
    seed = tf.constant([self.seed & 0x7FFFFFFF, 1])

    def places():
      for chunk in itertools.count(int(start.chunk)):
        pass_num, number = divmod(chunk, per_pass)
        numbers = order.positions(pass_num, number * size, size)
        yield np.int64(chunk), self.client_data.places_of(numbers)

    def prepare(chunk, places):
      number = tf.bitwise.bitwise_and(chunk, tf.constant(2**31 - 1, tf.int64))
      prepared = self.pipeline.prepare(
          self.client_data.read(places, self.pipeline.longest),
          seed=tf.random.fold_in(seed, tf.cast(number, tf.int32)),
      )
      return chunk, prepared

    vector = lambda dtype: tf.TensorSpec([None], dtype)
    signature = records.places(
        vector(tf.string), shard=vector(tf.int64), offset=vector(tf.int64)
    )
    prepared = tf.data.Dataset.from_generator(
        places, output_signature=(tf.TensorSpec([], tf.int64), signature)
    ).map(prepare, num_parallel_calls=_CHUNKS_AT_ONCE, deterministic=True)
    batches = prepared.flat_map(
        lambda chunk, prepared: pipeline_lib.slice_all(
            tf.data.Dataset.from_tensors(prepared)
        ).enumerate().map(lambda number, batch: (chunk, number, batch))
    )
    return batches.skip(start.batch).prefetch(1)

  def initial_record(self, weights: weights_lib.Weights) -> Record:
    return Record(best_weights=weights)

  def judge(
      self, record: Record, done: private_rounds.Done, *, number: int
  ) -> tuple[Record, dict[str, float]]:
    loss_sum = float(done.output.metrics['loss_sum'])
    num_utterances = float(done.output.metrics['num_utterances'])
    faults.check_step(
        done.output.state.global_model_weights, loss=loss_sum, number=number
    )
    lengths = done.drawn['feature_lengths'].numpy()
    frames = np.dot(done.drawn['example_weights'], lengths)
    padded = len(lengths) * int(lengths[-1])
    if self.pipeline.shapes is not None:
      padded *= shapes_lib.area([lengths], self.pipeline.shapes)[0]
    record = record._replace(
        loss_sum=record.loss_sum + loss_sum,
        num_utterances=record.num_utterances + num_utterances,
        audio_sec=record.audio_sec + float(frames) * log_mel.FRAME_SHIFT_SEC,
        padded_sec=(
            record.padded_sec + float(padded) * log_mel.FRAME_SHIFT_SEC
        ),
    )
    return record, {
        'train_loss': record.loss_sum / max(record.num_utterances, 1),
        'num_utterances': record.num_utterances,
        'audio_sec': record.audio_sec,
        'padded_sec': record.padded_sec,
    }

  def evaluate(
      self, record: Record, weights: weights_lib.Weights
  ) -> tuple[Record, dict[str, float]]:
    record, metrics = super().evaluate(record, weights)
    record = record._replace(
        loss_sum=0.0, num_utterances=0.0, audio_sec=0.0, padded_sec=0.0
    )
    if not metrics:
      return record, metrics
    if metrics['dev_word_error_rate'] < record.best_wer:
      record = record._replace(
          best_weights=weights,
          best_wer=metrics['dev_word_error_rate'],
          evaluations_since_best=0,
      )
    else:
      record = record._replace(
          evaluations_since_best=record.evaluations_since_best + 1
      )
    return record, metrics

  def is_converged(self, record: Record) -> bool:
    return (
        self.patience is not None
        and record.evaluations_since_best >= self.patience
    )

  def finish(
      self, state: run_state.RunState
  ) -> tuple[weights_lib.Weights, dict[str, Any]]:
    if self.patience is None:
      return state.process.global_model_weights, {}
    return state.record.best_weights, {}
