"""Self-supervised pre-training as a program: BEST-RQ, with or without DP.

Without a query it is a warm start on public data, which also scores the layers
(`warm_start`). With a query it is DP-SGD: the example is the unit of privacy,
and each step is charged to the ledger before its model can be seen. Layers may
be frozen by the scores of the warm start. Both draw batches by Poisson
sampling.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.data import examples as examples_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import devices as devices_lib
from tff_asr.learning import dp_sgd
from tff_asr.learning import layer_freeze
from tff_asr.learning import process as process_lib
from tff_asr.models import best_rq
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import keys
from tff_asr.privacy import queries
from tff_asr.programs import faults
from tff_asr.programs import private_rounds
from tff_asr.programs import run_state
from tff_asr.programs import training_loop
from tff_asr.programs import warm_start

# Number of public examples for the gradient norms at the end.
_NUM_MEASURED = 256

# Sum of squared gradient norms by layer, of public runs; else empty.
LayerSquares = dict[str, np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pretraining(
    training_loop.TrainingRun[list[int], cohorts.CohortState, LayerSquares]
):
  """Steps on masked prediction; the privacy unit is an utterance.

  Attributes:
    optimizer: Any TFF optimizer.
    batch_size: Utterances expected in a step's batch, and its divisor.
    num_steps: Steps of the whole run.
    seed: Seed of initial weights, masks and dropout; without a query also of
      the batches.
    build_query: Builds, from the specs of the trained weights, the query that
      clips and noises gradients by example; None: the data are public.
    devices: Logical devices that share a batch; None: all GPUs, else the CPU.
    gradient_mode: As in `dp_sgd.DpSgd`.
    measured_clips: Values of C. At its end a public run reports which share of
      the gradients by example each would clip.
    freeze: Which layers to freeze, by the scores of init_from_run.
    jit_compile: Whether XLA compiles gradients by example (`dp_sgd`), which
      needs length buckets.
    privacy: Budget and keys of training with a query.
  """

  optimizer: tff.learning.optimizers.Optimizer
  batch_size: int
  num_steps: int
  seed: int
  build_query: Optional[queries.BuildQuery] = None
  devices: Optional[list[str]] = None
  gradient_mode: str = 'per_example'
  measured_clips: Sequence[float] = ()
  freeze: Optional[layer_freeze.LayerFreeze] = None
  jit_compile: bool = False
  privacy: private_rounds.PrivacySettings = private_rounds.PrivacySettings()

  name = 'pre-training'
  step_name = 'step'
  privacy_unit = 'example'

  def validate(self) -> None:
    checks.check_all(
        lambda: checks.positive_int(
            num_steps=self.num_steps, batch_size=self.batch_size
        ),
        lambda: checks.non_negative_int(seed=self.seed),
        self._check_target,
        lambda: devices_lib.logical_devices(self.devices),
        *(
            functools.partial(checks.positive, measured_clips=clip)
            for clip in self.measured_clips
        ),
        lambda: dp_sgd.check_gradient_mode(
            self.gradient_mode, is_private=self.build_query is not None
        ),
        # With any key: this call only checks the arguments.
        lambda: self._build_examples(keys.from_seed(0)),
        self._check_copies,
        self._choose_frozen,
        super().validate,
    )

  def _check_target(self) -> None:
    """Raises ValueError for a budget of a run that charges nothing."""
    target = self.privacy.target_epsilon
    if self.build_query is None and target is not None:
      raise ValueError(
          f'target_epsilon is {target}, but without a query nothing is '
          'private or charged: add a file of gin/privacy, or set it to None.'
      )

  def _check_copies(self) -> None:
    """Raises ValueError if a private recording is in the corpus repeatedly.

    Each copy is drawn by itself, but the ledger charges for one recording.
    """
    if self.build_query is None:
      return
    # data_tools counted identical recordings when it wrote the corpus.
    corpus = self.client_data.corpus
    copies = corpus.origin.get('copies')
    if copies is None:
      raise ValueError(
          f'{corpus.path} does not record whether recordings are identical: '
          'write it again by data_tools.'
      )
    if copies['most'] > 1:
      raise ValueError(
          f'{corpus.path} has {copies["records"]:,} copies of recordings, up '
          f'to {copies["most"]:,} that are the same; each would be drawn, and '
          'one charged: write it again with --drop_copies --overwrite.'
      )

  def _build_examples(self, key: np.ndarray) -> examples_lib.ExampleSampler:
    return examples_lib.ExampleSampler(
        self.client_data,
        pipeline=self.pipeline,
        batch_size=self.batch_size,
        key=key,
    )

  def _choose_frozen(self) -> list[str]:
    """Names of the layers to freeze, sorted."""
    if self.freeze is None:
      return []
    if self.init_from_run is None:
      raise ValueError(
          'freeze needs the scores of a public warm start: set init_from_run '
          'to its folder.'
      )
    scores = warm_start.read_scores(self.init_from_run, specs=self.model.specs)
    return self.freeze.choose(scores, self.model.specs)

  @functools.cached_property
  def _examples(self) -> examples_lib.ExampleSampler:
    key = keys.from_seed(self.seed)
    if self.build_query is not None:
      # Amplification by sampling needs a secret key.
      key = keys.draw_or_fix(self.privacy.sampler_seed)
    return self._build_examples(key)

  @functools.cached_property
  def process(self) -> dp_sgd.DpSgd:
    return dp_sgd.DpSgd(
        model=self.model,
        optimizer=self.optimizer,
        batch_size=self.batch_size,
        seed=self.seed,
        build_query=self.build_query,
        frozen=self._choose_frozen(),
        devices=devices_lib.logical_devices(self.devices),
        gradient_mode=self.gradient_mode,
        buckets=self.pipeline.buckets,
        jit_compile=self.jit_compile,
    )

  @property
  def total_rounds(self) -> int:
    return self.num_steps

  @property
  def sampling(self) -> Optional[accounting.Sampling]:
    return None if self.build_query is None else self._examples.sampling

  # The encoder outputs codes, even if the pipeline has a tokenizer.
  @property
  def tokens(self) -> str:
    return ''

  async def init_process_state(self) -> process_lib.State:
    return self.process.initialize()

  def init_data_position(self) -> cohorts.CohortState:
    return self._examples.initial_state()

  def init_loop_state(self, weights: weights_lib.Weights) -> LayerSquares:
    if self.build_query is not None:
      return {}
    # Scores are measured without noise, so only on public data.
    return {name: np.float64(0) for name in weights}

  def sample(
      self, data_position: cohorts.CohortState
  ) -> tuple[list[int], cohorts.CohortState]:
    """Draws the numbers of a step's examples."""
    return self._examples.draw(data_position)

  async def step(
      self, state: process_lib.State, batch: list[int]
  ) -> process_lib.Output:
    return self.process.next(state, self._examples.batches(batch))

  def process_round(
      self,
      loop_state: LayerSquares,
      result: private_rounds.RoundResult[list[int], cohorts.CohortState],
      *,
      round_num: int,
      shows_exact: bool,
  ) -> tuple[LayerSquares, dict[str, float]]:
    del shows_exact  # No message has exact numbers.
    measured = result.output.metrics
    count = float(measured['num_examples'])
    # Poisson sampling may draw no example at all.
    mean = lambda name: float(measured[name]) / count if count else math.nan
    loss = mean('loss_sum')
    # Only the weights of a private step are checked: they come from the noised
    # sum, which is charged by now, while its loss is exact and private.
    faults.check_step(
        result.output.state.global_model_weights,
        loss=loss if self.build_query is None and count else None,
        step_num=round_num,
    )
    loop_state = {
        # float64, since the sum runs over all steps.
        name: np.float64(before + np.float64(measured['layer_squares'][name]))
        for name, before in loop_state.items()
    }
    exact = {
        'train_loss': loss,
        'gradient_norm': mean('gradient_norm_sum'),
        'num_examples': count,
        # Utterances above the limit of the length.
        'num_left_out': len(result.batch) - count,
    }
    prefix = training_loop.EXACT_PREFIX
    return loop_state, {f'{prefix}{name}': exact[name] for name in exact}

  def export(
      self, state: run_state.RunState
  ) -> tuple[weights_lib.Weights, dict[str, Any]]:
    weights = state.process.global_model_weights
    if self.build_query is None:
      squares = {
          name: float(value) for name, value in state.loop_state.items()
      }
      warm_start.write_scores(self.output_dir, squares, specs=self.model.specs)
      if self.measured_clips:
        self._measure(weights)
    frozen = process_lib.frozen_layers(state.process)
    return weights, {
        'batch_size': self.batch_size,
        'population': self._examples.sampling.population,
        'frozen': frozen,
        'trained_parameters': weights_lib.num_parameters(
            weights_lib.without(frozen, self.model.specs)
        ),
    }

  def _measure(self, weights: weights_lib.Weights) -> None:
    """Writes norms of public gradients; prints the shares that are clipped."""
    population = self._examples.sampling.population
    # Evenly spread over the corpus, which is in the order of its speakers.
    count = min(_NUM_MEASURED, population)
    numbers = np.arange(count) * population // count
    # Of single examples, which is what a private run would clip.
    gradients = dp_sgd.build_example_gradients(self.model, seed=self.seed)
    norms = {name: [] for name in self.model.specs}
    for batch in self._examples.batches(numbers.tolist()):
      for gradient in gradients(weights, batch):
        for name, value in gradient.items():
          norms[name].append(float(tf.norm(value)))
    for line in warm_start.write_norms(
        self.output_dir,
        {name: np.array(values) for name, values in norms.items()},
        specs=self.model.specs,
        clips=self.measured_clips,
    ):
      print(f'{self.name}: {line}')


class MaskedEvaluation(NamedTuple):
  """Metrics of the masked frames of a data set.

  Attributes:
    loss: Mean over utterances of their mean cross-entropy, in nats.
    accuracy: Share of frames at which the predicted label is right.
    most_frequent: Share of the most frequent label: the best accuracy of a
      model that always predicts one label.
    label_perplexity: Number of labels in use, as if used evenly (`quantizer`);
      a property of the data, since the quantizer is frozen.
    prediction_perplexity: The same for predicted labels; 1 if the model always
      predicts one label.
  """

  loss: float
  accuracy: float
  most_frequent: float
  label_perplexity: float
  prediction_perplexity: float

  def metrics(self) -> dict[str, float]:
    """Returns the metrics that a training run releases, by name."""
    return self._asdict()


class MaskedEvaluator:
  """Predicts the masked frames of a data set; its masks never change.

  Attributes:
    client_data: The data set.
  """

  def __init__(
      self,
      *,
      model: best_rq.BestRqModel,
      pipeline: pipeline_lib.Pipeline,
      client_data: client_data_lib.SpeechClientData,
  ):
    """Creates an evaluator.

    Args:
      model: The model.
      pipeline: Gives features and batches.
      client_data: The speakers; all their utterances within the limit.
    """
    # The evaluator takes examples by number and draws no batches.
    examples = examples_lib.ExampleSampler(
        client_data, pipeline=pipeline, batch_size=1, key=keys.from_seed(0)
    )
    self.client_data = client_data
    self._examples = examples
    self._numbers = list(range(examples.sampling.population))

    # One signature for all shapes of batches: traced once.
    @tf.function(
        input_signature=[
            weights_lib.tensor_specs(model.specs),
            pipeline.batch_spec,
        ],
        autograph=False,
    )
    def evaluate(weights, batch):
      # Masks depend on the utterance alone, so evaluations can be compared.
      numbers = tf.cast(
          tf.strings.to_hash_bucket_fast(batch['utterance_id'], 2**31 - 1),
          tf.int32,
      )
      masked = model.mask(
          batch['features'],
          batch['feature_lengths'],
          tf.stack([numbers, tf.zeros_like(numbers)], axis=1),
      )
      logits = model.logits(weights, masked)
      losses = best_rq.loss(logits, masked)
      return tf.reduce_sum(losses), best_rq.count(logits, masked)

    self._evaluate = evaluate

  def __call__(self, weights: weights_lib.Weights) -> MaskedEvaluation:
    """Evaluates weights, tensors or arrays by name."""
    weights = weights_lib.to_tensors(weights)
    loss_sum, counts, num_utterances = 0.0, None, 0
    for batch in self._examples.batches(self._numbers):
      loss, found = self._evaluate(weights, batch)
      loss_sum += float(loss)
      num_utterances += len(batch['utterance_id'])
      counts = found if counts is None else tf.nest.map_structure(
          tf.add, counts, found
      )
    # Short utterances may have no masked span.
    if counts is None or not float(counts.masked):
      raise ValueError(
          'the dev set has no masked frame to predict: give it more speech.'
      )
    return MaskedEvaluation(
        loss=loss_sum / num_utterances,
        accuracy=float(counts.correct / counts.masked),
        most_frequent=float(tf.reduce_max(counts.labels) / counts.masked),
        label_perplexity=float(quantizer_lib.perplexity(counts.labels)),
        prediction_perplexity=float(
            quantizer_lib.perplexity(counts.predictions)
        ),
    )
