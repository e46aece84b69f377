"""Rounds that release word error rates of private people, and no model.

A round sends weights to a cohort, sums one vector a person
(`metrics.private_wer`) and adds noise. Two programs run such rounds, under the
ledger, keys and cohorts of a training: `private_evaluation` with the model of a
finished run, `training_loop` between the rounds of training.

`private_rounds` charges a round, on disk, before anything is computed from its
sum. The round's key follows from the training's, so an evaluation that a
resumed training repeats has the same cohort and the same noise, and is charged
once.
"""

from collections.abc import Mapping
import dataclasses
import functools
import math
import os
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import fed_evaluation
from tff_asr.learning import process as process_lib
from tff_asr.metrics import confidence
from tff_asr.metrics import private_wer
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import privacy_report
from tff_asr.privacy import queries
from tff_asr.programs import private_rounds
from tff_asr.storage import run_dir

# A wider error bar tells too little about a rate between 0 and 1.
MAX_HALF_WIDTH = 0.25
# As in `ledger.RELEASES`.
RELEASE = 'evaluation'
# Prefix of the metrics of a round of training that an evaluation follows.
PREFIX = 'noised_'
# A vector has a norm of at most 1 (`private_wer`).
_CLIP = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationNoise:
  """What a round of evaluation sums, and the noise that it adds.

  Attributes:
    noise_multiplier: Standard deviation of the noise on the sum, of which one
      person is at most 1.
    vectors: What a person sends.
    noise_kernel: As in `queries.PerLayerClipSumQuery`.
  """

  noise_multiplier: float
  vectors: private_wer.PersonVectors = private_wer.PersonVectors()
  noise_kernel: str = 'host'


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingEvaluation:
  """Evaluations between the rounds of a training.

  Each draws another cohort, as the training does, and evaluates the newest
  model on it.

  Attributes:
    every: Training rounds from one evaluation to the next.
    noise: What is summed, and its noise.
  """

  every: int
  noise: EvaluationNoise

  def __post_init__(self):
    checks.check_all(
        lambda: checks.positive_int(private_evaluate_every=self.every),
        lambda: checks.positive(
            evaluation_noise_multiplier=self.noise.noise_multiplier
        ),
    )


class EvaluationRounds:
  """Rounds that evaluate weights on cohorts of one data set.

  Attributes:
    noise: What is summed, and its noise.
    sampling: How cohorts are drawn.
  """

  def __init__(
      self,
      *,
      model: ctc.CtcModel,
      pipeline: pipeline_lib.Pipeline,
      client_data: tff.simulation.datasets.ClientData,
      sampling: accounting.Sampling,
      noise: EvaluationNoise,
  ):
    """Builds the rounds' process.

    Args:
      model: The model.
      pipeline: Features and batches; also the tokenizer.
      client_data: The people to evaluate.
      sampling: How cohorts are drawn.
      noise: What is summed, and its noise.
    """
    self.noise = noise
    self.sampling = sampling
    self._client_data = client_data
    self._process = fed_evaluation.build(
        model=model,
        pipeline=pipeline,
        client_data=client_data,
        aggregator=dp_mean.build(
            build_query=_build_query(noise), cohort_size=sampling.cohort_size
        ),
        vectors=noise.vectors,
    )

  async def initialize(
      self, weights: weights_lib.Weights
  ) -> process_lib.State:
    """Returns the state before the first round that evaluates these weights."""
    state = await self._process.initialize()
    # Sorted: for TFF the order of the names is a part of the type.
    return state._replace(
        global_model_weights=weights_lib.Weights(sorted(weights.items()))
    )

  async def step(
      self, state: process_lib.State, cohort: list[str]
  ) -> process_lib.Output:
    """Evaluates a cohort, for `private_rounds.PrivateRoundRunner.run`."""
    return await self._process.next(
        state, client_data_lib.client_arguments(self._client_data, cohort)
    )

  def estimate(
      self, state: process_lib.State, *, num_rounds: int = 1
  ) -> private_wer.PrivateWer:
    """Returns what a number of charged rounds show.

    Args:
      state: The state after these rounds.
      num_rounds: Their number.
    """
    sampling = self.sampling
    num_people = num_rounds * sampling.cohort_size
    # The finalizer adds means over the expected cohort: noised sums over its
    # size.
    total = np.asarray(state.finalizer, np.float64) * sampling.cohort_size
    return self.noise.vectors.estimate(
        total,
        # The sum of all rounds has the noise of each, drawn independently.
        stddev=self.noise.noise_multiplier * math.sqrt(num_rounds) * _CLIP,
        # Of Poisson cohorts, only the expected number is public.
        num_people=None if sampling.kind == 'poisson' else num_people,
        sampling_prob=sampling.sampling_prob,
    )

  def fields(
      self,
      found: private_wer.PrivateWer,
      *,
      num_rounds: int = 1,
      epsilon: float,
      outlook: privacy_report.Outlook,
      trained_on: bool,
  ) -> dict[str, Any]:
    """Returns released figures as JSON.

    Args:
      found: The figures.
      num_rounds: Rounds that they are from.
      epsilon: What these rounds cost by themselves.
      outlook: What they make of the run's verdict.
      trained_on: Whether the people are those that the model was trained on.
    """
    return {
        'word_error_rate': _interval(found.word_error_rate),
        'quantiles': {
            f'{share:g}': _interval(each)
            for share, each in found.quantiles.items()
        },
        'histogram': list(found.histogram),
        'bin_half_width': found.bin_half_width,
        'num_people': _interval(found.num_people),
        'num_too_few_words': _interval(found.num_too_few_words),
        **dataclasses.asdict(self.noise.vectors),
        'epsilon': privacy_report.json_number(epsilon),
        **outlook.fields,
        'rounds': num_rounds,
        'sampling': self.sampling.fields,
        'noise_multiplier': self.noise.noise_multiplier,
        'trained_on': trained_on,
    }


class PlannedEvaluations(NamedTuple):
  """Evaluations between the rounds of a training.

  Attributes:
    rounds: Runs them.
    every: Training rounds from one to the next.
    cost: Of one of them.
  """

  rounds: EvaluationRounds
  every: int
  cost: accounting.RoundGroup

  def is_due(self, round_num: int) -> bool:
    """Whether an evaluation follows this round of training."""
    # Not after the last round as such: a run that is prolonged must draw the
    # same cohorts.
    return round_num % self.every == 0

  @property
  def half_width(self) -> float:
    """Half of the WER's 95 % interval by the noise of one evaluation."""
    return self.rounds.noise.vectors.half_width(
        noise_multiplier=self.rounds.noise.noise_multiplier,
        num_people=self.rounds.sampling.cohort_size,
    )


def charges(
    planned: Optional[PlannedEvaluations], *, num_rounds: int, num_done: int = 0
) -> list[accounting.RoundGroup]:
  """Returns what the evaluations of this many rounds of training cost.

  Args:
    planned: The evaluations; None: there are none.
    num_rounds: Rounds of training.
    num_done: The first ones of these, which do not count.
  """
  if planned is None:
    return []
  count = num_rounds // planned.every - num_done // planned.every
  return [dataclasses.replace(planned.cost, count=count)]


async def plan(
    settings: TrainingEvaluation,
    *,
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
    sampling: accounting.Sampling,
    weights: weights_lib.Weights,
) -> PlannedEvaluations:
  """Plans the evaluations of a training.

  Args:
    settings: How often, and the noise.
    model: The model.
    pipeline: Features and batches; also the tokenizer.
    client_data: The people who are trained on, and evaluated.
    sampling: How cohorts are drawn.
    weights: Weights of the model, of any value.

  Raises:
    ValueError: The model writes no text, the cohorts need correlated noise, or
      a cohort is too small for the noise.
  """
  if pipeline.tokenizer is None:
    raise ValueError(
        'PRIVATE_EVALUATE_EVERY is set, but the model writes no text whose '
        'word errors could be counted.'
    )
  if sampling.min_sep is not None:
    raise ValueError(
        f'PRIVATE_EVALUATE_EVERY is set, but the {sampling.kind} cohorts of '
        'the training need noise that is correlated over rounds, and an '
        'evaluation has noise of its own: take a file of gin/privacy with '
        'independent noise.'
    )
  rounds = EvaluationRounds(
      model=model,
      pipeline=pipeline,
      client_data=client_data,
      sampling=sampling,
      noise=settings.noise,
  )
  planned = PlannedEvaluations(
      rounds,
      settings.every,
      private_rounds.cost(await rounds.initialize(weights), sampling),
  )
  if planned.half_width > MAX_HALF_WIDTH:
    noise_multiplier = settings.noise.noise_multiplier
    most = noise_multiplier * MAX_HALF_WIDTH / planned.half_width
    raise ValueError(
        f'{sampling.cohort_size:,} people are too few for '
        f'EVALUATION_NOISE_MULTIPLIER = {noise_multiplier:g}: the noise alone '
        'would move the word error rate by '
        f'{100 * planned.half_width:.0f} points (95 %). Lower it to about '
        f'{most:.2g}, or raise COHORT_SIZE.'
    )
  return planned


def metrics(found: private_wer.PrivateWer) -> dict[str, float]:
  """Returns an evaluation's known figures as metrics of a round, by name."""
  rate = found.word_error_rate
  figures = {
      f'{PREFIX}word_error_rate': rate.estimate,
      f'{PREFIX}word_error_rate_low': rate.low,
      f'{PREFIX}word_error_rate_high': rate.high,
      **{
          f'{PREFIX}rate_quantile_{share:g}': each.estimate
          for share, each in found.quantiles.items()
      },
  }
  # With more noise than words, a rate is not known; its interval is.
  return {
      name: value for name, value in figures.items() if not math.isnan(value)
  }


def describe_metrics(metrics_of_round: Mapping[str, float]) -> str:
  """Returns the word error rate in a round's metrics in words, or ''.

  >>> describe_metrics({
  ...     'noised_word_error_rate': 0.382,
  ...     'noised_word_error_rate_low': 0.361,
  ...     'noised_word_error_rate_high': 0.403,
  ... })
  'WER 38.2 % (36.1 to 40.3)'
  """
  name = f'{PREFIX}word_error_rate'
  if f'{name}_low' not in metrics_of_round:
    return ''
  low, high = (
      100 * metrics_of_round[f'{name}_{end}'] for end in ('low', 'high')
  )
  rate = metrics_of_round.get(name)
  shown = 'not known' if rate is None else f'{100 * rate:.1f} %'
  return f'WER {shown} ({low:.1f} to {high:.1f})'


def write(run: str, fields: Mapping[str, Any]) -> None:
  """Adds figures to those of earlier evaluations: all of them were paid for.

  Args:
    run: The run's folder.
    fields: As `EvaluationRounds.fields` returns them; with `round`, the round
      of training that they follow, they replace those of the same round, which
      a resumed run releases again.
  """
  path = os.path.join(run, run_dir.PRIVATE_EVALUATION)
  round_num = fields.get('round')
  kept = files.read_json(
      path,
      lambda before: [
          each
          for each in before
          if round_num is None or each.get('round') != round_num
      ],
      remedy='put it back, because all of its figures are charged',
  ) if os.path.exists(path) else []
  files.write_json(path, [*kept, fields])


def _build_query(noise: EvaluationNoise) -> queries.BuildQuery:
  """The query of the training, with the clip of a vector."""
  return functools.partial(
      queries.PerLayerClipSumQuery,
      l2_norm_clip=_CLIP,
      noise_multiplier=noise.noise_multiplier,
      noise_kernel=noise.noise_kernel,
  )


def _interval(found: confidence.Interval) -> dict[str, Optional[float]]:
  """An interval as JSON, which has no NaN."""
  return {
      name: None if math.isnan(value) else value
      for name, value in found._asdict().items()
  }
