"""Federated training as a program: a process, cohorts, and their metrics.

`fed_avg.build` makes the process, one of `cohorts`' builders draws each round's
clients, and `training_loop.run` runs and charges the rounds. Clients that fail
are left out and counted. A round that spoils the model ends the run or is
undone (`faults`).

The names of metrics say what is private. A metric computed from clients without
noise begins with `not_private/`: the privacy statement does not cover it, and
where an epsilon is claimed it is neither shown nor written unless
`exact_metrics` is set. All other metrics come from settings, noised sums,
released models and the ledger, and may be shown with the model. docs/metrics.md
lists them.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math
import re
from typing import Any, Optional

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.learning import fed_avg
from tff_asr.learning import process as process_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.programs import faults as faults_lib
from tff_asr.programs import private_rounds
from tff_asr.programs import run_state
from tff_asr.programs import training_loop
from tff_asr.storage import run_dir

# Names of the learning process's exact metrics.
_EXACT = re.compile(r'client_work/|aggregator/not_private/')


@dataclasses.dataclass(kw_only=True, eq=False)
class FederatedTraining(training_loop.TrainingRun):
  """Federated rounds on private clients; the unit of privacy is a client.

  Attributes:
    learning_process: Process that `fed_avg.build` built on `client_data`.
    build_cohorts: One of `cohorts`' builders, called with the clients' ids and
      the sampler's key.
    context: Runs the rounds; see `tff_asr.execution`.
    num_rounds: Rounds of the whole run.
    privacy: Budget and keys.
    faults: What to do about clients that fail and models that diverge.
    scores_run: Folder of the run whose scores chose layers to freeze, if any;
      its ledger is inherited.
    observer: Called with each round and its number, for an audit; else None.
  """

  learning_process: tff.learning.templates.LearningProcess
  build_cohorts: Callable[..., cohorts.CohortSource]
  context: tff.framework.AsyncContext
  num_rounds: int
  privacy: private_rounds.PrivacySettings = private_rounds.PrivacySettings()
  faults: faults_lib.FaultSettings = faults_lib.FaultSettings()
  scores_run: Optional[str] = None
  observer: Optional[Callable[[private_rounds.Done, int], None]] = (
      dataclasses.field(default=None, init=False, repr=False)
  )

  NAME = 'federated'
  UNIT = 'round'
  PRIVACY_UNIT = 'speaker'

  def __post_init__(self):
    with checks.collect_errors() as collect:
      with collect:
        checks.positive_int(num_rounds=self.num_rounds)
      with collect:
        self.build_cohorts(self.client_data.client_ids, key=keys.from_seed(0))
      with collect:
        self.faults.check()
      with collect:
        self.check()
    self.process = self.learning_process
    self._source = self.build_cohorts(
        self.client_data.client_ids,
        key=keys.draw_or_fix(self.privacy.sampler_seed),
    )
    self.sampling = self._source.sampling

  @property
  def total(self) -> int:
    return self.num_rounds

  async def initialize(self) -> process_lib.State:
    # Calls of TFF computations are awaited from here on. Not within
    # `tff.program.NativeFederatedContext`: it takes no structures of clients.
    tff.framework.set_default_context(self.context)
    state = await super().initialize()
    self._traffic = fed_avg.traffic(state)
    return state

  def initial_draw(self) -> cohorts.CohortState:
    return self._source.iterator().state

  def draw(
      self, source_state: cohorts.CohortState
  ) -> tuple[list[str], cohorts.CohortState]:
    iterator = self._source.iterator(source_state)
    return iterator.select(), iterator.state

  async def initial_process_state(self) -> process_lib.State:
    return await self.process.initialize()

  async def next(
      self, process_state: process_lib.State, drawn: list[str]
  ) -> tff.learning.templates.LearningProcessOutput:
    return await self.process.next(
        process_state,
        client_data_lib.client_arguments(self.client_data, drawn),
    )

  def initial_record(
      self, unused_weights: weights_lib.Weights
  ) -> faults_lib.RollBacks:
    return faults_lib.RollBacks()

  def judge(
      self,
      record: faults_lib.RollBacks,
      done: private_rounds.Done,
      *,
      number: int,
  ) -> tuple[faults_lib.RollBacks, Optional[dict[str, float]]]:
    if self.observer is not None:
      self.observer(done, number)
    found = done.output.metrics
    metrics = flatten(found, traffic=self._traffic)
    exact = training_loop.EXACT
    metrics[f'{exact}num_failed'] = self.faults.count_failed(
        self.context,
        found['client_work'],
        cohort_size=len(done.drawn),
        round_num=number,
        shows_exact=self.shows_exact,
    )
    # Also of how few clients came, if there were more workers.
    if store_bytes := getattr(self.context, 'last_store_bytes', 0):
      metrics[f'{exact}store_bytes'] = store_bytes
    record, is_good = self.faults.after_round(
        record, found['finalizer'], round_num=number
    )
    metrics['num_roll_backs'] = record.in_all
    return record, metrics if is_good else None

  def finish(
      self, state: run_state.RunState
  ) -> tuple[weights_lib.Weights, dict[str, Any]]:
    return state.process.global_model_weights, {
        'bytes_per_client_and_round': self._traffic._asdict(),
        'frozen': process_lib.frozen_layers(state.process),
        'cohort_size': self.sampling.cohort_size,
        'population': self.sampling.population,
    }


def flatten(
    metrics: Mapping[str, Any], *, traffic: fed_avg.Traffic
) -> dict[str, float]:
  """Flattens a round's metrics, and adds the averages that people read.

  Args:
    metrics: Metrics of a process made by `fed_avg.build`.
    traffic: Bytes of each client.

  Returns:
    Numbers by name. A mean over no clients is NaN.
  """
  released, exact = {}, {}
  for name, value in run_dir.flatten_metrics(metrics).items():
    is_exact = _EXACT.match(name)
    if is_exact:
      exact[name[is_exact.end() :]] = value
    else:
      released[name] = value
  trained = exact.pop('num_trained')
  finite = exact['num_clients'] - exact['num_non_finite']
  for mean, total, count in (
      ('train_loss', 'loss_sum', exact['num_utterances']),
      ('loss_before', 'first_loss_sum', trained),
      ('loss_after', 'last_loss_sum', trained),
      ('delta_norm', 'delta_norm_sum', finite),
  ):
    total = exact.pop(total)
    exact[mean] = total / count if count else math.nan
  exact['bytes_down'] = traffic.down * exact['num_clients']
  exact['bytes_up'] = traffic.up * exact['num_clients']
  return released | {
      f'{training_loop.EXACT}{name}': value for name, value in exact.items()
  }
