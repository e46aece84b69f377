"""Word error rates over private people, released under differential privacy.

`evaluate` runs rounds of `evaluation_rounds` with the model of a finished run.
Cohorts, contexts, clip, grid, noise, keys and ledger are those of training.
Each round is charged to the run's ledger, on disk, before anything is computed
from its sum, so that the ledger's epsilon covers the models and the evaluations
together. An evaluation that is killed before its figures are written has been
charged: the next one draws other noise and is charged, too.

The people may be those who trained the model or others. In both cases they are
protected from then on: later runs count them as private data of this one.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import cohorts as cohorts_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import process as process_lib
from tff_asr.metrics import private_wer
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import privacy_report
from tff_asr.programs import evaluation
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import faults
from tff_asr.programs import private_rounds
from tff_asr.programs import public_data
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
    delta: Of both epsilons; None: that of the run's privacy report.
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
  vectors: private_wer.PersonVectors = private_wer.PersonVectors()
  noise_kernel: str = 'host'

  def validate(self) -> None:
    """Raises ValueError that lists everything wrong with the settings."""
    checks.check_all(
        lambda: checks.positive(epsilon=self.epsilon),
        lambda: checks.positive_int(num_rounds=self.num_rounds),
        lambda: evaluation.check_corpus(self.client_data, self.pipeline),
        self._check_run,
    )

  def _check_run(self) -> None:
    """Raises ValueError unless there is one run, of this model."""
    if isinstance(self.runs, str) or len(self.runs) != 1:
      raise ValueError(
          'RUNS must name one run, since each has a ledger of its own, found '
          f'{self.runs!r}.'
      )
    run_dir.check_model(self.run, model=self.model, **self._identities)

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

  def noise(self, noise_multiplier: float) -> evaluation_rounds.EvaluationNoise:
    """Returns what is summed, with this noise."""
    return evaluation_rounds.EvaluationNoise(
        noise_multiplier=noise_multiplier,
        vectors=self.vectors,
        noise_kernel=self.noise_kernel,
    )

  def build_rounds(
      self, noise: evaluation_rounds.EvaluationNoise
  ) -> evaluation_rounds.EvaluationRounds:
    """Returns the rounds with this noise."""
    return evaluation_rounds.EvaluationRounds(
        model=self.model,
        pipeline=self.pipeline,
        client_data=self.client_data,
        sampling=self.cohorts.sampling,
        noise=noise,
    )


class _Plan(NamedTuple):
  """Noise of an evaluation, chosen before anything is computed.

  Attributes:
    noise: Of each round.
    delta: Of epsilon.
    half_width: Half of the WER's interval that noise alone makes.
  """

  noise: evaluation_rounds.EvaluationNoise
  delta: float
  half_width: float


async def evaluate(settings: PrivateEvaluation) -> dict[str, Any]:
  """Evaluates, charges the run's ledger, and adds the figures to its folder.

  Args:
    settings: What to evaluate.

  Returns:
    The figures, as they were added to the list in private_evaluation.json.

  Raises:
    ValueError: The settings are wrong; the run has not finished, or promises
      nothing; public data share people with the evaluated ones; too few people
      for the epsilon. Then nothing is charged.
  """
  settings.validate()
  trained_on = public_data.is_trained_on(settings.run, settings.client_data)
  public_data.check_overlap(
      train_data=settings.client_data,
      dev_data=None,
      selects_on_dev=False,
      parent_runs={f'the training of {settings.run}': settings.run},
      is_protected=True,
      on_shared_data=public_data.REFUSE,
  )
  # Two programs that charge one ledger would break its chain of digests.
  lock = run_dir.RunLock(settings.run)
  try:
    with private_rounds.reopen_ledger(
        settings.run, what='error rates'
    ) as ledger:
      plan = _plan(settings, ledger.contents)
      print(_plan_words(settings, plan))
      if not trained_on:
        # Before the first charge: from then on they are protected.
        own = public_data.source(settings.client_data, is_private=True)
        public_data.write(settings.run, [own._replace(is_evaluated=True)])
      tff.framework.set_default_context(settings.context)
      rounds = settings.build_rounds(plan.noise)
      with faults.explained_shortage(shows_details=False):
        state = await _run_rounds(settings, plan, ledger, rounds)
      report = private_rounds.update_privacy_report(
          settings.run, ledger.contents, delta=plan.delta
      )
      results = rounds.fields(
          rounds.estimate(state, num_rounds=settings.num_rounds),
          num_rounds=settings.num_rounds,
          epsilon=settings.epsilon,
          delta=plan.delta,
          total_epsilon=report.epsilon,
          trained_on=trained_on,
      )
      evaluation_rounds.write(settings.run, results)
  finally:
    lock.release()
  print(describe(results))
  return results


def _plan(
    settings: PrivateEvaluation, contents: ledger_lib.Contents
) -> _Plan:
  """Chooses the noise; raises ValueError if it leaves nothing to see."""
  run, sampling = settings.run, settings.cohorts.sampling
  if contents.invalidations:
    raise ValueError(
        f'the ledger of {run} says NOT PRIVATE '
        f'({"; ".join(contents.invalidations)}): an evaluation under the same '
        'ledger would promise nothing either.'
    )
  if sampling.kind == 'full' and settings.num_rounds > 1:
    raise ValueError(
        f'NUM_ROUNDS is {settings.num_rounds}, but everyone is in the first '
        'round: set it to 1.'
    )
  if sampling.min_sep is not None:
    raise ValueError(
        f'{sampling.kind} cohorts need noise that is correlated over rounds: '
        'evaluate @cohorts.full, @cohorts.poisson or @cohorts.fixed_size.'
    )
  # Raises if the run's rounds have another neighbouring relation.
  relation = accounting.neighboring_relation([
      *contents.rounds,
      accounting.RoundGroup(sampling=sampling, noise_multiplier=1.0),
  ])
  delta = private_rounds.delta_of_release(
      run, settings.delta, contents.rounds
  )
  noise_multiplier = calibration.noise_multiplier_for_epsilon(
      settings.epsilon,
      sampling=sampling,
      rounds=settings.num_rounds,
      delta=delta,
      accountant='rdp' if sampling.kind == 'fixed_size' else 'pld',
  )
  # `full` is calibrated for adding or removing a person.
  if (
      relation is dp_accounting.NeighboringRelation.REPLACE_ONE
      and sampling.kind == 'full'
  ):
    noise_multiplier *= 2
  # Up: a query has float32, which may be the value below.
  noise_multiplier = float(
      np.nextafter(np.float32(noise_multiplier), np.float32('inf'))
  )
  # Variances of the rounds' noise add up, and so do the people.
  half_width = settings.vectors.half_width(
      noise_multiplier=noise_multiplier * math.sqrt(settings.num_rounds),
      num_people=settings.num_rounds * sampling.cohort_size,
  )
  if half_width > evaluation_rounds.MAX_HALF_WIDTH:
    needed = settings.epsilon * half_width / evaluation_rounds.MAX_HALF_WIDTH
    raise ValueError(
        f'{sampling.cohort_size:,} people are too few for EPSILON = '
        f'{settings.epsilon:g}: the noise alone would move the word error rate '
        f'by {100 * half_width:.0f} points (95 %). Raise EPSILON to about '
        f'{needed:.2g}, or evaluate more people.'
    )
  return _Plan(settings.noise(noise_multiplier), delta, half_width)


async def _run_rounds(
    settings: PrivateEvaluation,
    plan: _Plan,
    ledger: ledger_lib.Ledger,
    rounds: evaluation_rounds.EvaluationRounds,
) -> process_lib.State:
  """Runs and charges all rounds; returns the state that holds their sum."""
  cohorts = settings.cohorts
  # A key that is never saved: the same evaluation, run again, gets other noise
  # and is charged again.
  runner = private_rounds.PrivateRoundRunner(
      ledger=ledger,
      noise=private_rounds.NoiseState(
          keys.draw(), np.int64(ledger.file_identity)
      ),
      sampling=cohorts.sampling,
      configuration=run_dir.config_digest(
          f'{__name__} {dataclasses.astuple(settings.vectors)}'
      ),
      settings=private_rounds.PrivacySettings(delta=plan.delta),
  )
  state = await rounds.initialize(settings.read_weights())
  position = cohorts.initial_state()
  for round_num in range(1, settings.num_rounds + 1):
    with faults.without_details(round_num, shows_exact=False):
      result = await runner.run(
          rounds.step,
          state,
          draw=cohorts.draw,
          position=position,
          release=evaluation_rounds.RELEASE,
      )
    state, position = result.output.state, result.next_position
  return state


def _plan_words(settings: PrivateEvaluation, plan: _Plan) -> str:
  """What is about to be released, on two lines."""
  sampling, rounds = settings.cohorts.sampling, settings.num_rounds
  return (
      f'evaluation: {rounds} round{"" if rounds == 1 else "s"} of '
      f'{sampling.cohort_size:,} of {sampling.population:,} people '
      f'({sampling.kind}), noise multiplier {plan.noise.noise_multiplier:.4g}\n'
      f'epsilon {privacy_report.format_epsilon(settings.epsilon)} at delta '
      f'{plan.delta:g} for it alone; its noise moves the word error rate by up '
      f'to {100 * plan.half_width:.1f} points (95 %) if people have '
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
      f'{results["delta"]:g}. Brackets: 95 %, of the noise'
      + (
          ''
          if results['sampling']['kind'] == 'full'
          else ' and of who was drawn'
      )
  )
  return '\n'.join(lines)
