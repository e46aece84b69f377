"""The client's work: local steps from the broadcast model.

Algorithm 1 of https://arxiv.org/abs/2310.00098: from the server's weights, each
local step clips the gradient of its batch by global norm and takes a step of an
optimizer, SGD by default. The optimizer's state is new for each client. The
client returns

    delta = weights before - weights after,

which the server's optimizer takes for a gradient. With a proximal weight mu
(FedProx, Li et al. 2020, https://arxiv.org/abs/1812.06127) the objective is

    mean loss of the batch + mu / 2 |w - w0|^2,   w0: the broadcast weights.

Frozen weights (`layer_freeze`) have no gradient and no delta.

Clients without transcripts train on pseudo-labels: the broadcast model decodes
each batch greedily, before SpecAugment masks it, and utterances with too low a
confidence become placeholders. Only the model that is trained has masks and
dropout, so that it learns something from its own labels (noisy student
training: Park et al. 2020, https://arxiv.org/abs/2005.09629).

The result's weight is the client's number, not a weight of the mean, because
aggregators where clients draw noise need it (`dp_mean.build_distributed`).
The type, with empty S:

  (<S@SERVER, {<weights, seed>}@CLIENTS, {examples*}@CLIENTS>
   -> <S@SERVER, {<delta, int64>}@CLIENTS, M@SERVER>)
"""

import collections
from collections.abc import Callable, Collection
import dataclasses
import functools
from typing import Any, Optional, Protocol

import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import sequential
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import grid_clipper

_WEIGHTS = ('utterances', 'seconds')

# Sums over a client's steps so far, and its first and last mean loss.
_Totals = collections.OrderedDict[str, tf.Tensor]


class Model(Protocol):
  """A model that clients can train, such as `ctc.CtcModel`.

  Attributes:
    specs: All weights.
  """

  specs: weights_lib.Specs

  def initialize(self, seed: tf.Tensor) -> weights_lib.Weights:
    """Draws initial weights from a seed int32 [2]."""

  def loss(
      self,
      weights: weights_lib.Weights,
      features: tf.Tensor,
      feature_lengths: tf.Tensor,
      labels: tf.Tensor,
      label_lengths: tf.Tensor,
      seed: tf.Tensor,
  ) -> tf.Tensor:
    """Returns the loss of each utterance of a batch, float32 [B]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTraining:
  """Settings of the local steps.

  Attributes:
    learning_rate: Learning rate of the clients' optimizer, at least 0.
    num_steps: Maximum of local steps.
    num_epochs: Maximum of passes over the client's data. At least one of these
      two is set; the first that is reached ends the client's work. With
      num_steps alone the data are repeated for as many steps.
    max_grad_norm: Each step's gradient is clipped to this global norm.
    proximal_weight: mu; 0: no proximal term.
    build_optimizer: Called with `learning_rate`; the optimizer's state is new
      for each client.
    weigh_by: A client's weight w_k in Algorithm 1: the `utterances` or
      `seconds` that it trained on over its local steps. None: equal weights.
    mean_weight: A public number, such as the expected w_k. A delta is scaled by
      w_k / mean_weight. Not used without `weigh_by`.
    unaugmented_rounds: Number of first rounds without SpecAugment.
    pseudo_labels: Whether clients train on what the broadcast model transcribes
      of their utterances. Their transcripts are not used, and may be missing.
    min_confidence: With `pseudo_labels`, utterances with a lower confidence
      (`ctc.greedy_labels`) are left out. A public number in [0, 1].
    jit_compile: Whether XLA compiles a local step, once for each size of a
      batch, so the pipeline needs length buckets. It rounds differently.
  """

  learning_rate: float
  num_steps: Optional[int] = None
  num_epochs: Optional[int] = None
  max_grad_norm: float = 1.0
  proximal_weight: float = 0.0
  build_optimizer: Callable[[float], tff.learning.optimizers.Optimizer] = (
      tff.learning.optimizers.build_sgdm
  )
  weigh_by: Optional[str] = None
  mean_weight: float = 1.0
  unaugmented_rounds: int = 0
  pseudo_labels: bool = False
  min_confidence: float = 0.0
  jit_compile: bool = False

  def __post_init__(self):
    checks.non_negative(
        learning_rate=self.learning_rate, proximal_weight=self.proximal_weight
    )
    checks.positive(
        max_grad_norm=self.max_grad_norm, mean_weight=self.mean_weight
    )
    checks.finite(
        learning_rate=self.learning_rate,
        proximal_weight=self.proximal_weight,
        mean_weight=self.mean_weight,
    )
    checks.in_range(0, 1, min_confidence=self.min_confidence)
    if self.min_confidence > 0 and not self.pseudo_labels:
      raise ValueError(
          f'min_confidence {self.min_confidence} is for pseudo-labels: set '
          'PSEUDO_LABELS = True, or MIN_CONFIDENCE = 0.0.'
      )
    checks.one_of((None, *_WEIGHTS), weigh_by=self.weigh_by)
    checks.non_negative_int(unaugmented_rounds=self.unaugmented_rounds)
    limits = dict(num_steps=self.num_steps, num_epochs=self.num_epochs)
    limits = {name: most for name, most in limits.items() if most is not None}
    if not limits:
      raise ValueError('num_steps or num_epochs must be set, found neither.')
    checks.positive_int(**limits)

  def client_pipeline(
      self, pipeline: pipeline_lib.Pipeline
  ) -> pipeline_lib.Pipeline:
    """Returns the clients' pipeline: with pseudo-labels it reads no transcript.

    Raises:
      ValueError: The pipeline does not go with pseudo-labels.
    """
    if not self.pseudo_labels:
      return pipeline
    if pipeline.tokenizer is None:
      raise ValueError(
          'PSEUDO_LABELS is for models that transcribe, and TOKENIZER is None: '
          'set PSEUDO_LABELS = False.'
      )
    if pipeline.augment_waveform is not None:
      raise ValueError(
          'PSEUDO_LABELS transcribes utterances before SpecAugment, but '
          'AUGMENT_WAVEFORM changes them earlier: set it to None.'
      )
    return dataclasses.replace(pipeline, tokenizer=None)


def build(
    *,
    model: Model,
    pipeline: pipeline_lib.Pipeline,
    broadcast_type: tff.Type,
    examples_type: tff.Type,
    local: LocalTraining,
    frozen: Collection[str] = (),
) -> tff.learning.templates.ClientWorkProcess:
  """Builds the client work.

  Args:
    model: The model to train.
    pipeline: Examples to batches.
    broadcast_type: Struct of `weights`, `seed` (int32 [2], this round's) and,
      if some rounds are without, `is_augmented` (bool []).
    examples_type: Sequence type of a client's examples (`schema`), or of the
      locations of its records (`records`).
    local: Settings of the local steps.
    frozen: Names of weights that are not trained, not all of them. The state
      has them, so that a round is another one if others are frozen.

  Returns:
    A client work process. Its measurements are sums over clients, exact and
    therefore not private:
      loss_sum: Sum of the losses of utterances over local steps, float32, nats.
      num_utterances, num_left_out: Trained on and left out, over local steps.
        With pseudo-labels, those with too low a confidence are left out, too.
      audio_sec: Seconds of the utterances trained on, by their frames, over
        local steps.
      num_steps: Local steps taken.
      num_clients, num_non_finite: Clients, and those with a non-finite delta.
      delta_norm_sum: Sum of the clients' finite delta norms, weighed.
      first_loss_sum, last_loss_sum: Sums of each client's mean loss over its
        first batch with utterances, under the broadcast weights, and over its
        last one, under the weights before that step; both as they are trained
        on (augmented, with dropout), without another pass.
      gradient_norm_sum: Sum of each client's norms of its gradients by layer,
        float32 [H], before the clip: means over its local steps.
      num_trained: Clients in those sums: with a finite delta and such a batch.
  """
  frozen = tuple(sorted(frozen))
  train = _build_train(model, pipeline, local, frozen)

  @tff.tensorflow.computation(broadcast_type, examples_type)
  def client_computation(broadcast, examples):
    return train(
        broadcast['weights'],
        broadcast['seed'],
        pipeline.with_lengths(examples),
        # None if all rounds are augmented: the broadcast then has no such
        # field.
        broadcast.get('is_augmented'),
    )

  @tff.federated_computation
  def init_fn():
    # One string, so that the type does not depend on how many are frozen.
    return tff.federated_value('\n'.join(frozen) if frozen else (), tff.SERVER)

  @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(broadcast_type, tff.CLIENTS),
      tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def next_fn(state, broadcast, examples):
    # Client computation.
    result, measurements = tff.federated_map(
        client_computation, (broadcast, examples)
    )
    # Aggregation of measurements.
    # Sums: means over clients and over utterances both follow from them.
    summed = tff.federated_sum(measurements)
    return tff.templates.MeasuredProcessOutput(state, result, summed)

  return tff.learning.templates.ClientWorkProcess(init_fn, next_fn)


def _build_train(
    model: Model,
    pipeline: pipeline_lib.Pipeline,
    local: LocalTraining,
    frozen: Collection[str],
) -> Callable[..., tuple[tff.learning.templates.ClientResult, dict]]:
  """The graph function from weights, seed and examples to a client's result."""
  take_steps = build_local_steps(model, pipeline, local, frozen)

  # AutoGraph converts the loops. All else is excluded from it: converting code
  # takes longer than tracing it.
  @tf.function
  def take_all_steps(weights, seed, examples, is_augmented):
    client = pipeline.open_client(
        examples, seed=seed, num_epochs=local.num_epochs
    )
    trained, totals = take_steps(weights, client, is_augmented)
    # Where rounds are means of processes' means (`process_means`).
    factors = client.rows.get(records.WEIGHT)
    return trained, totals, client.client_id, factors

  def train(weights, seed, examples, is_augmented):
    trained, totals, client_id, factors = take_all_steps(
        weights, seed, examples, is_augmented
    )
    # Outside of that function: its results wait for all that it does, so its
    # ops on them could not be shared with the clip.
    return _result(
        weights,
        trained,
        totals,
        client_id=client_id,
        weights=factors,
        local=local,
        frozen=frozen,
        frame_shift_sec=pipeline.front_end.frame_shift_sec,
    )

  return train


def build_local_steps(
    model: Model,
    pipeline: pipeline_lib.Pipeline,
    local: LocalTraining,
    frozen: Collection[str] = (),
) -> Callable[..., tuple[weights_lib.Weights, _Totals]]:
  """Builds a client's local steps.

  Args:
    model: The model to train.
    pipeline: Examples to batches.
    local: Settings of the steps.
    frozen: Names of weights that are not trained.

  Returns:
    A function, to be called in a `tf.function`, from weights, a client
    (`Pipeline.open_client`) and `is_augmented` (`Pipeline.slice_batch`) to the
    weights after the last step and totals over the steps.
  """
  num_steps = local.num_steps
  pipeline = local.client_pipeline(pipeline)
  transcribe = _build_transcribe(model, pipeline, local)
  optimizer = local.build_optimizer(local.learning_rate)
  take_step = _build_take_step(model, optimizer, pipeline, local, frozen)
  live_specs = weights_lib.tensor_specs(
      weights_lib.without(frozen, model.specs)
  )

  @tf.autograph.experimental.do_not_convert
  def initial_state():
    # As tensors, which the loop can carry.
    return tf.nest.map_structure(
        tf.convert_to_tensor, optimizer.initialize(live_specs)
    )

  def take_steps(weights, client, is_augmented=None):
    initial = weights
    # The broadcast weights label the batches of all steps.
    label = functools.partial(transcribe, initial)
    # No state stays at a client between rounds.
    optimizer_state = initial_state()
    totals = _no_totals(len(live_specs))
    chunk_num = tf.constant(0)
    while chunk_num < client.num_chunks:
      chunk = pipeline.pack(
          pipeline.read_chunk(client, chunk_num),
          seed=tf.random.fold_in(client.seed, chunk_num),
      )
      chunk_num += 1
      # Batches that no step is left for are not computed.
      num_batches = pipeline_lib.num_batches(chunk)
      if num_steps is not None:
        num_batches = tf.minimum(num_batches, num_steps - totals['num_steps'])
      for number in tf.range(num_batches):
        batch = pipeline.slice_batch(
            chunk,
            number,
            is_augmented=is_augmented,
            transcribe=label if local.pseudo_labels else None,
        )
        optimizer_state, weights, loss_sum, norms = take_step(
            optimizer_state,
            weights,
            drop_strings(pipeline.pad_to_bucket(batch)),
            anchor=initial,
        )
        # Padding rows do not count as utterances that were left out.
        totals = _add_batch(totals, batch, loss_sum, norms)
      if num_steps is not None and totals['num_steps'] >= num_steps:
        break
    return weights, totals

  return take_steps


def _build_transcribe(
    model: Model, pipeline: pipeline_lib.Pipeline, local: LocalTraining
) -> Callable[..., tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
  """Builds a `pipeline.Transcribe` whose first argument is the weights."""

  @tf.autograph.experimental.do_not_convert
  def transcribe(weights, features, feature_lengths):
    if pipeline.buckets is not None:
      features = pipeline.buckets.pad_frames(features)
    # Without a seed: no dropout.
    labels, lengths, confidences = ctc.greedy_labels(
        *model.logits(weights, features, feature_lengths)
    )
    # From no labels a model would learn to emit blanks only. A confidence that
    # is NaN is not enough.
    is_sure = (lengths > 0) & (confidences >= local.min_confidence)
    return labels, lengths, is_sure

  return transcribe


def _build_take_step(
    model: Model,
    optimizer: tff.learning.optimizers.Optimizer,
    pipeline: pipeline_lib.Pipeline,
    local: LocalTraining,
    frozen: Collection[str],
) -> Callable[..., tuple[dict, weights_lib.Weights, tf.Tensor, tf.Tensor]]:
  """The client's step with its settings, compiled by XLA if asked for."""
  take_step = functools.partial(
      step_and_measure,
      model,
      optimizer,
      max_grad_norm=local.max_grad_norm,
      proximal_weight=local.proximal_weight,
      frozen=frozen,
  )
  buckets_lib.check_jit(
      local.jit_compile, pipeline.buckets, frozen=encoder_lib.frozen_of(model)
  )
  if not local.jit_compile:
    return take_step
  # Only the step: XLA cannot compile the reading of records.
  return tf.function(take_step, autograph=False, jit_compile=True)


@tf.autograph.experimental.do_not_convert
def _no_totals(num_layers: int) -> _Totals:
  """Totals before the first step."""
  zero = tf.constant(0.0)
  return collections.OrderedDict(
      first_loss=zero,
      gradient_norms=tf.zeros([num_layers]),
      last_loss=zero,
      loss_sum=zero,
      num_frames=zero,
      num_left_out=zero,
      num_utterances=zero,
      num_steps=tf.constant(0),
  )


@tf.autograph.experimental.do_not_convert
def _add_batch(
    totals: _Totals,
    batch: pipeline_lib.Batch,
    loss_sum: tf.Tensor,
    gradient_norms: tf.Tensor,
) -> _Totals:
  """Adds a step's batch to the totals."""
  weights = batch['example_weights']
  # A batch may consist of placeholders alone. It has no mean loss then, and the
  # last one stays.
  trained = tf.reduce_sum(weights)
  last_loss = tf.where(
      trained > 0, loss_sum / tf.maximum(trained, 1.0), totals['last_loss']
  )
  is_first = tf.equal(totals['num_utterances'], 0.0)
  # Exact in float32 below 2^24 frames, which is 46 hours of audio.
  frames = tf.cast(batch['feature_lengths'], tf.float32)
  return collections.OrderedDict(
      first_loss=tf.where(is_first, last_loss, totals['first_loss']),
      gradient_norms=totals['gradient_norms'] + gradient_norms,
      last_loss=last_loss,
      loss_sum=totals['loss_sum'] + loss_sum,
      num_frames=totals['num_frames'] + tf.reduce_sum(weights * frames),
      num_left_out=totals['num_left_out'] + (
          tf.cast(tf.size(weights), tf.float32) - trained
      ),
      num_utterances=totals['num_utterances'] + trained,
      num_steps=totals['num_steps'] + 1,
  )


@tf.autograph.experimental.do_not_convert
def _result(
    before: weights_lib.Weights,
    after: weights_lib.Weights,
    totals: _Totals,
    *,
    client_id: tf.Tensor,
    weights: Optional[tf.Tensor],
    local: LocalTraining,
    frozen: Collection[str],
    frame_shift_sec: float,
) -> tuple[tff.learning.templates.ClientResult, dict[str, tf.Tensor]]:
  """The client's delta, weighed, and its measurements."""
  num_utterances = totals['num_utterances']
  delta = tf.nest.map_structure(
      tf.subtract,
      weights_lib.without(frozen, before),
      weights_lib.without(frozen, after),
  )
  audio_sec = totals['num_frames'] * frame_shift_sec
  factor = None if weights is None else weights[0]
  if local.weigh_by is not None:
    weight = num_utterances if local.weigh_by == 'utterances' else audio_sec
    factor = weight / local.mean_weight * (1.0 if factor is None else factor)
  if factor is not None:
    # Before the clip, so that what one client adds to the sum stays below C.
    delta = tf.nest.map_structure(lambda part: part * factor, delta)
  # As the query's clip computes it: in one graph TensorFlow computes it once,
  # and both find the same updates non-finite, whose sum of squares in float64
  # is not finite. The norm in float32 may overflow for finite elements.
  squares = sequential.sequential_map(
      grid_clipper.squared_norm, tf.nest.flatten(delta)
  )
  square = tf.add_n(squares)
  is_finite = tf.math.is_finite(square)
  norm = tf.cast(tf.sqrt(square), tf.float32)
  has_trained = is_finite & (num_utterances > 0)
  num_steps = tf.cast(totals['num_steps'], tf.float32)
  mean_norms = totals['gradient_norms'] / tf.maximum(num_steps, 1.0)
  # A non-finite client must not make the sums over clients non-finite.
  measurements = collections.OrderedDict(
      audio_sec=audio_sec,
      delta_norm_sum=tf.where(tf.math.is_finite(norm), norm, 0.0),
      first_loss_sum=tf.where(has_trained, totals['first_loss'], 0.0),
      gradient_norm_sum=tf.where(has_trained, mean_norms, 0.0),
      last_loss_sum=tf.where(has_trained, totals['last_loss'], 0.0),
      loss_sum=tf.where(is_finite, totals['loss_sum'], 0.0),
      num_clients=tf.constant(1.0),
      num_left_out=totals['num_left_out'],
      num_non_finite=tf.cast(~is_finite, tf.float32),
      num_steps=num_steps,
      num_trained=tf.cast(has_trained, tf.float32),
      num_utterances=tf.where(is_finite, num_utterances, 0.0),
  )
  result = tff.learning.templates.ClientResult(
      update=delta, update_weight=hash_client_id(client_id)
  )
  return result, measurements


def hash_client_id(client_id: tf.Tensor) -> tf.Tensor:
  """A number of a client's id, string []: int64 [], below 2^63 - 1.

  Two of 10,000 clients have the same one with a probability below 1e-11. No id,
  as of a client without data, has -1.
  """
  # The fast hash is the same on all platforms and in all versions; Python's is
  # not.
  number = tf.strings.to_hash_bucket_fast(client_id, 2**63 - 1)
  return tf.where(tf.equal(client_id, ''), tf.constant(-1, tf.int64), number)


def step(
    *arguments: Any, **settings: Any
) -> tuple[Any, weights_lib.Weights, tf.Tensor]:
  """`step_and_measure` without the norms."""
  return step_and_measure(*arguments, **settings)[:3]


@tf.autograph.experimental.do_not_convert
def step_and_measure(
    model: Model,
    optimizer: tff.learning.optimizers.Optimizer,
    optimizer_state: Any,
    weights: weights_lib.Weights,
    batch: pipeline_lib.Batch,
    *,
    max_grad_norm: float,
    proximal_weight: float = 0.0,
    anchor: Optional[weights_lib.Weights] = None,
    frozen: Collection[str] = (),
) -> tuple[Any, weights_lib.Weights, tf.Tensor, tf.Tensor]:
  """One step along the gradient of a batch's objective, clipped by global norm.

  Args:
    model: The model.
    optimizer: Any TFF optimizer.
    optimizer_state: State of the optimizer of the weights that are not frozen.
    weights: The weights before the step.
    batch: See `pipeline.Batch`. Placeholders (weight 0) do not count; a batch
      of placeholders alone has a mean loss of zero.
    max_grad_norm: Positive.
    proximal_weight: mu. The objective is the batch's mean loss, and, if mu is
      above 0, mu / 2 |weights - anchor|^2.
    anchor: The broadcast weights; needed with a mu above 0.
    frozen: Names of weights without a gradient.

  Returns:
    The optimizer's new state, new weights, the batch's loss sum, float32, and
    the gradient's norms by layer before the clip, float32 [H].
  """
  gradients, loss_sum = loss_gradients(
      model,
      weights,
      batch,
      num_utterances=tf.reduce_sum(batch['example_weights']),
      frozen=frozen,
  )
  live = weights_lib.without(frozen, weights)
  # Before the clip: what is clipped is the gradient of the objective.
  if proximal_weight > 0:
    gradients = tf.nest.map_structure(
        lambda gradient, weight, start: (
            gradient + proximal_weight * (weight - start)
        ),
        gradients,
        live,
        weights_lib.without(frozen, anchor),
    )
  gradients, norms = clip_and_measure(gradients, max_norm=max_grad_norm)
  optimizer_state, live = optimizer.next(optimizer_state, live, gradients)
  return optimizer_state, weights_lib.updated(weights, live), loss_sum, norms


def loss_gradients(
    model: Model,
    weights: weights_lib.Weights,
    batch: pipeline_lib.Batch,
    *,
    num_utterances: tf.Tensor,
    frozen: Collection[str] = (),
) -> tuple[weights_lib.Weights, tf.Tensor]:
  """Gradients of a batch's summed losses over a number of utterances.

  Args:
    model: The model.
    weights: Its weights.
    batch: See `pipeline.Batch`.
    num_utterances: The divisor, float32 [].
    frozen: Names of weights without a gradient.

  Returns:
    Gradients like the weights that are not frozen, and the sum of the
    utterances' losses.
  """
  live = weights_lib.without(frozen, weights)
  with tf.GradientTape() as tape:
    # Weights are tensors, which a tape does not watch by itself.
    tape.watch(live)
    losses = model.loss(
        weights_lib.updated(weights, live),
        batch['features'],
        batch['feature_lengths'],
        batch['labels'],
        batch['label_lengths'],
        batch['seed'],
    )
    # Chosen, not multiplied: a padding row's loss may be infinite.
    losses = tf.where(batch['example_weights'] > 0, losses, 0.0)
    loss_sum = tf.reduce_sum(losses)
    mean_loss = loss_sum / tf.maximum(num_utterances, 1.0)
  return tape.gradient(mean_loss, live), loss_sum


def drop_strings(batch: pipeline_lib.Batch) -> pipeline_lib.Batch:
  """The batch without its strings, which XLA does not support."""
  return pipeline_lib.Batch(
      (name, value)
      for name, value in batch.items()
      if value.dtype != tf.string
  )


def clip_by_global_norm(
    gradients: weights_lib.Weights, *, max_norm: float
) -> weights_lib.Weights:
  """Scales gradients down to a global norm, if theirs is larger."""
  return clip_and_measure(gradients, max_norm=max_norm)[0]


def clip_and_measure(
    gradients: weights_lib.Weights, *, max_norm: float
) -> tuple[weights_lib.Weights, tf.Tensor]:
  """`clip_by_global_norm`, and the layers' norms before it, float32 [H]."""
  # One pass gives the global norm, as `tf.linalg.global_norm`, and the layers'.
  squares = 2.0 * tf.stack(
      [tf.nn.l2_loss(part) for part in tf.nest.flatten(gradients)]
  )
  norm = tf.sqrt(tf.reduce_sum(squares))
  # 1 for gradients within the norm, without a branch.
  factor = max_norm / tf.maximum(norm, max_norm)
  clipped = tf.nest.map_structure(lambda part: part * factor, gradients)
  return clipped, tf.sqrt(squares)
