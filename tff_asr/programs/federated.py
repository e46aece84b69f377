"""Federated training as a program: a process, cohorts, and their metrics.

`fed_avg.build` makes the process, one of `cohorts`' builders draws each round's
clients, and `training_loop.run` runs and charges the rounds. Clients that fail
are left out and counted. A round after which the model is not finite ends the
run or is undone (`faults`).

Names of metrics say what is private. A metric computed from clients without
noise begins with `not_private/`: the privacy report does not cover it, and
where an epsilon is claimed it is neither shown nor written unless
`exact_metrics` is set. All other metrics come from settings, noised sums,
released models and the ledger, and may be published with the model.
docs/metrics.md lists them.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import math
import os
import re
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import context as context_lib
from tff_asr.execution import devices
from tff_asr.learning import fed_avg
from tff_asr.learning import process as process_lib
from tff_asr.models import subspace
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import keys
from tff_asr.programs import evaluation
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import faults as faults_lib
from tff_asr.programs import private_rounds
from tff_asr.programs import run_state
from tff_asr.programs import training_loop
from tff_asr.programs import update_signal
from tff_asr.storage import run_dir

# Names of the learning process's exact metrics.
_EXACT = re.compile(r'client_work/|aggregator/not_private/')


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FederatedTraining(
    training_loop.TrainingRun[
        list[str], cohorts.CohortState, faults_lib.RollbackCounts
    ]
):
  """Federated rounds on private clients; the privacy unit is a client.

  Attributes:
    learning_process: Process that `fed_avg.build` built on `client_data`.
    build_cohorts: One of `cohorts`' builders, called with the clients' ids and
      the sampler's key.
    context: Runs the rounds; see `tff_asr.execution`.
    num_rounds: Rounds of the whole run.
    faults: What to do about clients that fail and models that diverge.
    scores_run: Folder of the run with the scores that chose layers to freeze,
      if any; its ledger is inherited.
    privacy: Budget and keys.
    private_evaluation: Evaluations of the private clients between rounds, or
      None.
    client_update: What a client does, for `--dry_run`, which measures it on the
      dev speakers; or None.
  """

  learning_process: tff.learning.templates.LearningProcess
  build_cohorts: Callable[..., cohorts.CohortSampler]
  context: tff.framework.AsyncContext
  num_rounds: int
  faults: faults_lib.FaultSettings = faults_lib.FaultSettings()
  scores_run: Optional[str] = None
  privacy: private_rounds.PrivacySettings = private_rounds.PrivacySettings()
  private_evaluation: Optional[evaluation_rounds.TrainingEvaluation] = None
  client_update: Optional[update_signal.ClientUpdate] = None

  name = 'federated'
  step_name = 'round'
  privacy_unit = 'speaker'

  def validate(self) -> None:
    checks.check_all(
        lambda: checks.positive_int(num_rounds=self.num_rounds),
        # With any key: this call only checks the builder's arguments.
        lambda: self.build_cohorts(
            self.client_data.client_ids, key=keys.from_seed(0)
        ),
        self.faults.validate,
        self._check_subspace,
        self._check_private_evaluation,
        super().validate,
    )

  @property
  def client_pipeline(self) -> pipeline_lib.Pipeline:
    if self.client_update is None:
      return self.pipeline
    return self.client_update.local.client_pipeline(self.pipeline)

  def _check_private_evaluation(self) -> None:
    """Raises ValueError if it would need transcripts that are not read."""
    if (
        self.private_evaluation is not None
        and self.client_pipeline.tokenizer is not self.pipeline.tokenizer
    ):
      raise ValueError(
          'PRIVATE_EVALUATE_EVERY is set, but it compares with transcripts, '
          'which PSEUDO_LABELS does not read: set PRIVATE_EVALUATION = None.'
      )

  def _check_subspace(self) -> None:
    """Raises ValueError if a subspace cannot be found."""
    if not isinstance(self.model, subspace.SubspaceModel):
      return
    # An audit has neither: its canaries are as private in random subspaces.
    if self.init_from_run is None and self.evaluator is not None:
      raise ValueError(
          'a subspace needs a seed model, on whose inputs it is found: set '
          'INIT_FROM_RUN to a run of the same MODEL.'
      )
    if self.evaluator is None and self.init_from_run is not None:
      raise ValueError(
          'a subspace is found on the speech of the dev set, and EVALUATOR is '
          'None: leave it as it is.'
      )

  @functools.cached_property
  def _cohorts(self) -> cohorts.CohortSampler:
    # Once: each call without a seed draws another key.
    return self.build_cohorts(
        self.client_data.client_ids,
        key=keys.draw_or_fix(self.privacy.sampler_seed),
    )

  @property
  def total_rounds(self) -> int:
    return self.num_rounds

  @property
  def sampling(self) -> accounting.Sampling:
    return self._cohorts.sampling

  @property
  def parent_runs(self) -> dict[str, str]:
    runs = super().parent_runs
    # By default the seed model's run also gives the scores; count it once.
    known = map(os.path.realpath, runs.values())
    if self.scores_run and os.path.realpath(self.scores_run) not in known:
      runs['the layer scores (SCORES_RUN)'] = self.scores_run
    return runs

  @property
  def selects_on_dev(self) -> bool:
    # Its speech decides what of the model is trained.
    return self.evaluator is not None and isinstance(
        self.model, subspace.SubspaceModel
    )

  def prepare_seed(self, weights: weights_lib.Weights) -> weights_lib.Weights:
    model = self.model
    if not isinstance(model, subspace.SubspaceModel):
      return weights
    if run_dir.newest_state_path(self.output_dir) is not None:
      # The run resumes, with the subspaces that its state holds. Any others
      # will do for the structure of the state.
      return model.initialize(tf.zeros([2], tf.int32))
    dev, count = self.evaluator.client_data, model.num_utterances
    # About equally many of each speaker.
    examples = evaluation.examples_of(
        dev, max_each=-(-count // len(dev.client_ids))
    ).take(count)
    utterances = (
        features[:length]
        for batch in self.pipeline.evaluation_batches(examples)
        for features, length in zip(batch['features'], batch['feature_lengths'])
    )
    weights, shares = subspace.fit(
        model,
        weights,
        utterances,
        feature_dim=self.pipeline.front_end.feature_dim,
    )
    print(
        f'subspace: trained within {model.rank} principal directions of their '
        'inputs on public speech: '
        + ', '.join(
            f"{name} ({share:.1%} of the inputs' squared norm)"
            for name, share in shares.items()
        )
        + '.'
    )
    return weights

  async def init_process_state(self) -> process_lib.State:
    # Calls of TFF computations return awaitables from here on. Not within
    # `tff.program.NativeFederatedContext`: it takes no structures of clients.
    tff.framework.set_default_context(self.context)
    state = await self.learning_process.initialize()
    self._check_weights(state)
    return state

  def _check_weights(self, state: process_lib.State) -> None:
    """Raises ValueError if noised deltas had weights by others' data."""
    data = self.client_data
    if isinstance(data, client_data_lib.SpeechClientData):
      noise_multiplier = state.aggregator.query_state.noise_multiplier
      if data.num_processes > 1 and noise_multiplier > 0:
        raise ValueError(
            f'num_processes {data.num_processes} weighs a client by the data '
            'of others, which no noise makes private: set NUM_PROCESSES = 1.'
        )

  async def plan_evaluations(
      self, state: process_lib.State
  ) -> Optional[evaluation_rounds.PlannedEvaluations]:
    settings = self.private_evaluation
    if settings is None:
      return None
    cost = private_rounds.cost(state, self.sampling)
    if not cost.noise_multiplier:
      raise ValueError(
          'PRIVATE_EVALUATE_EVERY is set, but the training is NOT PRIVATE: '
          'evaluate its model without noise (bin/evaluate.py).'
      )
    if cost.secure_sum is not None:
      raise ValueError(
          'PRIVATE_EVALUATE_EVERY is set, but here clients add the noise, and '
          'in an evaluation the server would: take a file of gin/privacy '
          'whose noise the server adds.'
      )
    return await evaluation_rounds.plan(
        settings,
        model=self.model,
        pipeline=self.pipeline,
        client_data=self.client_data,
        sampling=self.sampling,
        weights=state.global_model_weights,
    )

  def init_data_position(self) -> cohorts.CohortState:
    return self._cohorts.initial_state()

  def init_loop_state(
      self, weights: weights_lib.Weights
  ) -> faults_lib.RollbackCounts:
    del weights
    return faults_lib.RollbackCounts()

  def sample(
      self, data_position: cohorts.CohortState
  ) -> tuple[list[str], cohorts.CohortState]:
    """Draws a round's cohort of client ids."""
    return self._cohorts.draw(data_position)

  async def step(
      self, state: process_lib.State, batch: list[str]
  ) -> process_lib.Output:
    return await self.learning_process.next(
        state, client_data_lib.client_arguments(self.client_data, batch)
    )

  def process_round(
      self,
      loop_state: faults_lib.RollbackCounts,
      result: private_rounds.RoundResult[list[str], cohorts.CohortState],
      *,
      round_num: int,
      shows_exact: bool,
  ) -> tuple[faults_lib.RollbackCounts, Optional[dict[str, float]]]:
    # TFF's own context reports nothing: there a failed client ends the round.
    report = context_lib.RoundReport()
    if isinstance(self.context, context_lib.AsyncContext):
      report = self.context.runner.last_round
    if report.num_at_once:
      _print_once(
          f'clients at once: {report.num_at_once}, threads per op: '
          f'{devices.threads_per_op()}'
      )
    measured = result.output.metrics
    state = result.output.state
    metrics = flatten(
        measured,
        traffic=fed_avg.traffic(state),
        layers=weights_lib.without(
            process_lib.frozen_layers(state), state.global_model_weights
        ),
    )
    exact = training_loop.EXACT_PREFIX
    metrics[f'{exact}num_failed'] = self.faults.count_failed(
        report.failures,
        measured['client_work'],
        cohort_size=len(result.batch),
        round_num=round_num,
        shows_exact=shows_exact,
    )
    # Exact: with more workers than clients it reveals how many clients came.
    if report.store_bytes:
      metrics[f'{exact}store_bytes'] = report.store_bytes
    roll_backs, is_good = self.faults.check_divergence(
        loop_state, measured['finalizer'], round_num=round_num
    )
    # Covered: it follows from norms of noised means.
    metrics['num_roll_backs'] = roll_backs.in_all
    return roll_backs, metrics if is_good else None

  def export(
      self, state: run_state.RunState
  ) -> tuple[weights_lib.Weights, dict[str, Any]]:
    results = {}
    if isinstance(self.model, subspace.SubspaceModel):
      results['subspace'] = {
          'kernels': list(self.model.kernels), 'rank': self.model.rank
      }
    frozen = process_lib.frozen_layers(state.process)
    fixed = subspace.fixed_weights(self.model)
    # On a CPU: GPUs may round products to 10 bits.
    with tf.device('CPU:0'):
      weights = subspace.plain_weights(
          self.model, state.process.global_model_weights
      )
    return weights, results | {
        'bytes_per_client_and_round': fed_avg.traffic(state.process)._asdict(),
        'frozen': [name for name in frozen if name not in fixed],
        'cohort_size': self.sampling.cohort_size,
        'population': self.sampling.population,
    }


def flatten(
    metrics: Mapping[str, Any],
    *,
    traffic: fed_avg.Traffic,
    layers: Iterable[str] = (),
) -> dict[str, float]:
  """Flattens a round's metrics, and turns sums over clients into means.

  Args:
    metrics: Metrics of a process made by `fed_avg.build`.
    traffic: Bytes of each client.
    layers: Names of the layers that are trained; (): leaves out their norms.

  Returns:
    Numbers by name. A mean over no clients is NaN.
  """
  released, exact = {}, {}
  for name, value in run_dir.flatten_metrics(metrics).items():
    # A prefix: names of layers within may contain anything.
    is_exact = _EXACT.match(name)
    if is_exact:
      exact[name[is_exact.end() :]] = value
    else:
      released[name] = value
  # Clients that took a step; the others have no first or last loss.
  trained = exact.pop('num_trained')
  exact.pop('gradient_norm_sum', None)  # A number, if there is one layer.
  # Means over clients leave out deltas that are not finite.
  finite = exact['num_clients'] - exact['num_non_finite']
  for mean, total, count in (
      ('train_loss', 'loss_sum', exact['num_utterances']),
      ('loss_before', 'first_loss_sum', trained),
      ('loss_after', 'last_loss_sum', trained),
      ('delta_norm', 'delta_norm_sum', finite),
  ):
    total = exact.pop(total)
    # A Poisson cohort may be empty.
    exact[mean] = total / count if count else math.nan
  norms = np.ravel(metrics['client_work']['gradient_norm_sum'])
  # As `tf.nest` flattens the gradients of a client.
  for name, total in zip(sorted(layers), norms):
    exact[f'layer_gradient_norm/{name}'] = (
        float(total) / trained if trained else math.nan
    )
  exact['download_bytes'] = traffic.download_bytes * exact['num_clients']
  exact['upload_bytes'] = traffic.upload_bytes * exact['num_clients']
  prefix = training_loop.EXACT_PREFIX
  # The prefix is what the loop removes metrics by.
  return released | {f'{prefix}{name}': exact[name] for name in exact}


@functools.cache
def _print_once(line: str) -> None:
  """Prints a line, once in this process."""
  print(line)
