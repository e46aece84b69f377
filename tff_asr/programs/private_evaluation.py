"""Word error rates over private people, released under differential privacy.

`evaluate` runs rounds of `evaluation_rounds` with the model of a finished run,
as a release under the run's ledger (`releases`). Cohorts, contexts, clip, grid,
noise, keys and ledger are those of training. Each round is charged, on disk,
before anything is computed from its sum, so that the ledger's epsilon covers
the models and the evaluations together.

The people may be those who trained the model or others.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any, Optional

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import cohorts as cohorts_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import process as process_lib
from tff_asr.metrics import private_wer
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.privacy import privacy_report
from tff_asr.programs import evaluation
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import faults
from tff_asr.programs import public_data
from tff_asr.programs import releases
from tff_asr.storage import run_dir


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PrivateEvaluation:
  """An evaluation of private people.

  Attributes:
    runs: One folder, of a finished run on private data.
    model: Its model.
    pipeline: Features, batches and the tokenizer.
    client_data: The people to evaluate.
    context: Runs the rounds; see `tff_asr.execution`.
    build_cohorts: A builder of `cohorts` with independent noise: `full`,
      `poisson` or `fixed_size`.
    epsilon: What all rounds of the evaluation cost by themselves.
    num_rounds: Rounds; each draws another cohort.
    delta: Delta of both epsilons; None: see `releases.reopen`.
    allows_not_private: Whether the evaluation may end the run's guarantee.
    vectors: What a person sends.
    noise_kernel: As in `queries.PerLayerClipSumQuery`.
  """

  runs: Sequence[str]
  model: ctc.CtcModel
  pipeline: pipeline_lib.Pipeline
  client_data: tff.simulation.datasets.ClientData
  context: tff.framework.AsyncContext
  build_cohorts: Callable[..., cohorts_lib.CohortSampler]
  epsilon: float
  num_rounds: int = 1
  delta: Optional[float] = None
  allows_not_private: bool = False
  vectors: private_wer.PersonVectors = private_wer.PersonVectors()
  noise_kernel: str = 'host'

  def validate(self) -> None:
    """Raises ValueError that lists everything wrong with the settings."""
    checks.check_all(
        lambda: checks.positive(epsilon=self.epsilon),
        lambda: checks.positive_int(num_rounds=self.num_rounds),
        lambda: evaluation.check_corpus(self.client_data, self.pipeline),
        self._check_run,
        self._check_cohorts,
    )

  def _check_run(self) -> None:
    """Raises ValueError unless there is one run, of this model."""
    if isinstance(self.runs, str) or len(self.runs) != 1:
      raise ValueError(
          'RUNS must name one run, since each has a ledger of its own, found '
          f'{self.runs!r}.'
      )
    run_dir.check_model(self.run, model=self.model, **self._identities)

  def _check_cohorts(self) -> None:
    """Raises ValueError if the cohorts do not suit the rounds."""
    sampling = self.cohorts.sampling
    if sampling.kind == 'full' and self.num_rounds > 1:
      raise ValueError(
          f'NUM_ROUNDS is {self.num_rounds}, but everyone is in the first '
          'round: set it to 1.'
      )
    if sampling.min_sep is not None:
      raise ValueError(
          f'{sampling.kind} cohorts need noise that is correlated over rounds: '
          'evaluate @cohorts.full, @cohorts.poisson or @cohorts.fixed_size.'
      )

  @property
  def run(self) -> str:
    """The run's folder."""
    return self.runs[0]

  @property
  def _identities(self) -> dict[str, str]:
    return dict(
        tokens=self.pipeline.tokenizer.identity,
        public_sha256=self.pipeline.front_end.public_sha256,
    )

  @functools.cached_property
  def cohorts(self) -> cohorts_lib.CohortSampler:
    """The source of cohorts, under a key of this evaluation's own."""
    return self.build_cohorts(self.client_data.client_ids, key=keys.draw())

  def read_weights(self) -> weights_lib.Weights:
    return run_dir.read_model(self.run, model=self.model, **self._identities)


async def evaluate(settings: PrivateEvaluation) -> dict[str, Any]:
  """Evaluates, charges the run's ledger, and adds the figures to its folder.

  Args:
    settings: What to evaluate.

  Returns:
    The figures, as they were added to the list in private_evaluation.json.

  Raises:
    ValueError: The settings are wrong, too few people for the epsilon, or as
      `releases.reopen` and `releases.Release.begin`. Then nothing is charged.
  """
  settings.validate()
  trained_on = public_data.is_trained_on(settings.run, settings.client_data)
  with releases.reopen(
      settings.run,
      kind=evaluation_rounds.RELEASE,
      client_data=settings.client_data,
      sampling=settings.cohorts.sampling,
      epsilon=settings.epsilon,
      num_rounds=settings.num_rounds,
      delta=settings.delta,
      allows_not_private=settings.allows_not_private,
  ) as release:
    noise = evaluation_rounds.EvaluationNoise(
        noise_multiplier=release.noise_multiplier,
        vectors=settings.vectors,
        noise_kernel=settings.noise_kernel,
    )
    print(_plan_words(settings, noise, delta=release.delta))
    run_round = release.begin(
        configuration=f'{__name__} {dataclasses.astuple(settings.vectors)}'
    )
    tff.framework.set_default_context(settings.context)
    rounds = evaluation_rounds.EvaluationRounds(
        model=settings.model,
        pipeline=settings.pipeline,
        client_data=settings.client_data,
        sampling=settings.cohorts.sampling,
        noise=noise,
    )
    with faults.explained_shortage(shows_details=False):
      state = await _run_rounds(settings, run_round, rounds)
    report = release.write_report()
    results = rounds.fields(
        rounds.estimate(state, num_rounds=settings.num_rounds),
        num_rounds=settings.num_rounds,
        epsilon=settings.epsilon,
        outlook=release.outlook._replace(after=report),
        trained_on=trained_on,
    )
    evaluation_rounds.write(settings.run, results)
  print(describe(results))
  return results


async def _run_rounds(
    settings: PrivateEvaluation,
    run_round: releases.Runner,
    rounds: evaluation_rounds.EvaluationRounds,
) -> process_lib.State:
  """Runs and charges all rounds; returns the state that holds their sum."""
  cohorts = settings.cohorts
  state = await rounds.initialize(settings.read_weights())
  position = cohorts.initial_state()
  for round_num in range(1, settings.num_rounds + 1):
    with faults.without_details(round_num, shows_exact=False):
      result = await run_round(
          rounds.step, state, draw=cohorts.draw, position=position
      )
    state, position = result.output.state, result.next_position
  return state


def _plan_words(
    settings: PrivateEvaluation,
    noise: evaluation_rounds.EvaluationNoise,
    *,
    delta: float,
) -> str:
  """What is about to be released, on two lines; ValueError if it is all noise.
  """
  sampling, rounds = settings.cohorts.sampling, settings.num_rounds
  # Variances of the rounds' noise add up, and so do the people.
  half_width = settings.vectors.half_width(
      noise_multiplier=noise.noise_multiplier * math.sqrt(rounds),
      num_people=rounds * sampling.cohort_size,
  )
  if half_width > evaluation_rounds.MAX_HALF_WIDTH:
    needed = settings.epsilon * half_width / evaluation_rounds.MAX_HALF_WIDTH
    raise ValueError(
        f'{sampling.cohort_size:,} people are too few for EPSILON = '
        f'{settings.epsilon:g}: the noise alone would move the word error rate '
        f'by {100 * half_width:.0f} points (95 %). Raise EPSILON to about '
        f'{needed:.2g}, or evaluate more people.'
    )
  return (
      f'evaluation: {rounds} round{"" if rounds == 1 else "s"} of '
      f'{sampling.cohort_size:,} of {sampling.population:,} people '
      f'({sampling.kind}), noise multiplier {noise.noise_multiplier:.4g}\n'
      f'epsilon {privacy_report.format_epsilon(settings.epsilon)} at delta '
      f'{delta:g} for it alone; its noise moves the word error rate by up '
      f'to {100 * half_width:.1f} points (95 %) if people have '
      f'{settings.vectors.max_words:,} words each, by more if they have fewer'
  )


def describe(results: dict[str, Any]) -> str:
  """Returns an evaluation's figures in words, a line for each.

  Args:
    results: As `evaluate` returns them.
  """

  def percent(found: dict[str, Optional[float]]) -> str:
    ends = f'{100 * found["low"]:.1f} to {100 * found["high"]:.1f}'
    if found['estimate'] is None:
      return f'not known: more noise than words ({ends})'
    return f'{100 * found["estimate"]:.1f} % ({ends})'

  def people(found: dict[str, float]) -> str:
    return f'{max(0.0, found["estimate"]):,.0f}'

  who = 'people it was trained on' if results['trained_on'] else 'other people'
  lines = [
      f'WER {percent(results["word_error_rate"])} over '
      f'{people(results["num_people"])} {who}, at most '
      f'{results["max_words"]:,} words each; '
      f'{people(results["num_too_few_words"])} with fewer than '
      f'{results["min_words"]} words left out'
  ]
  lines += [
      f'{100 * float(share):.0f} % of people have at most '
      f'{percent(each)}'
      for share, each in results['quantiles'].items()
  ]
  total = privacy_report.format_epsilon(float(results['total_epsilon']))
  lines.append(
      f'epsilon with the training: {total} at delta '
      f'{results["delta"]:g}'
      + ('' if results['private'] else f' ({results["verdict"]})')
      + '. Brackets: 95 %, of the noise'
      + (
          ''
          if results['sampling']['kind'] == 'full'
          else ' and of who was drawn'
      )
  )
  return '\n'.join(lines)
