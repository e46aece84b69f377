"""Training loop of all programs: resume, charge, evaluate, release, save.

A `TrainingRun` is the configuration of a run and says what one round does:

    sample         what the round trains on: a cohort of clients, or a batch
    step           one step of the learning process on it
    process_round  the metrics of what came out
    export         the model and the results at the end

`run` does the rest, the same for federated training, central training and
pre-training:

- Version 0 is saved before the first round, so every run can be resumed. A run
  that was killed repeats the rounds after its last saved state with the same
  draws, seeds and noise, and so in the same bits.
- A private round is charged to the ledger, on disk, before its model can be
  evaluated, released or saved (`private_rounds`). A run that starts from
  another run's model inherits that run's ledger.
- A run that is ended by an error or an interrupt saves its newest good state.
"""

import abc
import asyncio
from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
import time
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Optional,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from absl import logging
import numpy as np
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import client_update
from tff_asr.learning import layer_freeze
from tff_asr.learning import process as process_lib
from tff_asr.models import subspace
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import privacy_report
from tff_asr.programs import evaluation
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import faults
from tff_asr.programs import private_rounds
from tff_asr.programs import progress as progress_lib
from tff_asr.programs import public_data
from tff_asr.programs import run_state
from tff_asr.programs import warm_start
from tff_asr.storage import checkpoints
from tff_asr.storage import run_dir

# Prefix of metrics that are computed from private data without noise.
EXACT_PREFIX = 'not_private/'

# What the progress display shows: its labels and formats of metrics.
_DISPLAYED = {
    'train_loss': ('loss', '{:.2f}'.format),
    'epsilon': ('', privacy_report.format_epsilon),  # By its accountant.
    'num_clients': ('clients', '{:.0f}'.format),
}
# Rates on the dev set.
_DEV_RATES = {
    'dev_word_error_rate': 'WER',
    'dev_character_error_rate': 'CER',
    'dev_accuracy': 'accuracy',
}
# Prefixes of metrics that results.json contains.
_MEASURED = ('dev_', evaluation_rounds.PREFIX)

Batch = TypeVar('Batch')
Position = TypeVar('Position')
LoopState = TypeVar('LoopState')

# Takes a round and its number.
Observer = Callable[[private_rounds.RoundResult, int], None]


class Evaluation(Protocol):
  """What an evaluator returns."""

  def metrics(self) -> dict[str, float]:
    """Returns the metrics to release, by name."""


@runtime_checkable
class Evaluator(Protocol):
  """Evaluates weights on a public data set.

  Attributes:
    client_data: The data set.
  """

  client_data: tff.simulation.datasets.ClientData

  def __call__(self, weights: weights_lib.Weights) -> Evaluation:
    """Evaluates weights, tensors or arrays by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
  """Intervals of a run, in rounds or steps; they do not change its bits.

  Attributes:
    evaluate_every: Rounds between evaluations; the last round is always
      evaluated.
    save_every: Rounds between saved states; the last round is always saved.
    keep_last: Number of newest states to keep.
    keep_every: States of multiples of this are kept, too; 0: none.
  """

  evaluate_every: int = 10
  save_every: int = 10
  keep_last: int = 3
  keep_every: int = 0

  def validate(self) -> None:
    """Raises ValueError that lists everything wrong with the settings."""
    checks.check_all(
        lambda: checks.positive_int(
            evaluate_every=self.evaluate_every,
            save_every=self.save_every,
            keep_last=self.keep_last,
        ),
        lambda: checks.non_negative_int(keep_every=self.keep_every),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRun(abc.ABC, Generic[Batch, Position, LoopState]):
  """Configuration of a training run, and what one of its rounds does.

  Type variables: `Batch` is what a round trains on; `Position` is where the
  next one comes from (a sampler's state, or a position in the data);
  `LoopState` is what the training keeps from round to round besides both and
  the learning process's state. The latter two are saved.

  Attributes:
    output_dir: The run's folder; see `run_dir`.
    configuration: Text of the configuration, kept with the run.
    model_spec: Model and pipeline as JSON (`run_dir.RunDir`).
    model: The model.
    pipeline: Examples to batches.
    client_data: The speakers to train on.
    settings: Intervals of evaluations and saved states.
    evaluator: Evaluates weights on a public dev set, or None.
    init_from_run: Folder of the run that provides the initial model, or None.
    on_shared_data: What to do if data that are called public share speakers
      with private ones: 'refuse', or 'not_private' to train without a
      guarantee. See `public_data`.
    trackers: Receive the metrics that are written to the run's folder.
  """

  output_dir: str
  configuration: str
  model: client_update.Model
  pipeline: pipeline_lib.Pipeline
  client_data: tff.simulation.datasets.ClientData
  settings: RunSettings = RunSettings()
  evaluator: Optional[Evaluator] = None
  init_from_run: Optional[str] = None
  model_spec: str = ''
  on_shared_data: str = public_data.REFUSE
  trackers: Sequence[tff.program.ReleaseManager] = ()

  # Name of the training, and what it calls a round: 'round' or 'step'.
  name: ClassVar[str]
  step_name: ClassVar[str]
  # What the ledger protects, such as 'speaker'; None: no data are private.
  privacy_unit: ClassVar[Optional[str]]
  # Budget and keys; a field of the programs whose data may be private.
  privacy: ClassVar = private_rounds.PrivacySettings()

  def __post_init__(self):
    self.validate()

  def validate(self) -> None:
    """Raises ValueError that lists everything wrong with the configuration."""
    checks.check_all(
        self.settings.validate,
        self.privacy.validate,
        lambda: checks.one_of(
            public_data.ACTIONS, on_shared_data=self.on_shared_data
        ),
        lambda: evaluation.check_corpus(
            self.client_data, self.client_pipeline, is_training=True
        ),
        lambda: _check_durations(self.client_data, self.pipeline),
        self._check_init_from_run,
        lambda: run_dir.check_folder(
            self.output_dir, configuration=self.recorded_configuration
        ),
    )

  @property
  def client_pipeline(self) -> pipeline_lib.Pipeline:
    """Returns the pipeline of the speakers to train on."""
    return self.pipeline

  def _check_init_from_run(self) -> None:
    """Raises ValueError if the initial model does not fit this one."""
    if self.init_from_run is not None:
      warm_start.check(
          self.init_from_run,
          model=subspace.plain_model(self.model),
          tokens=self.tokens,
          public_sha256=self.pipeline.front_end.public_sha256,
      )

  @property
  def recorded_configuration(self) -> str:
    """The configuration, and the public model that it was found to name."""
    public = self.pipeline.front_end.public_model
    if public is None:
      return self.configuration
    # A name or a folder may hold other weights when the run is resumed.
    return f'{self.configuration}\n# PRETRAINED has SHA-256 {public.sha256}\n'

  @property
  @abc.abstractmethod
  def total_rounds(self) -> int:
    """Rounds of the whole run."""

  @property
  def sampling(self) -> Optional[accounting.Sampling]:
    """How rounds are sampled, for the accounting; None: nothing is charged."""
    return None

  @property
  def tokens(self) -> str:
    """Identity of the model's tokens; '' if it outputs none."""
    tokenizer = self.pipeline.tokenizer
    return '' if tokenizer is None else tokenizer.identity

  @property
  def parent_runs(self) -> dict[str, str]:
    """Folders of the runs that this one builds on, by what it takes of them."""
    if self.init_from_run is None:
      return {}
    return {'the seed model (INIT_FROM_RUN)': self.init_from_run}

  @property
  def selects_on_dev(self) -> bool:
    """Whether the dev set decides which weights are exported."""
    return False

  @property
  def release_every(self) -> int:
    """Rounds between releases of metrics."""
    return 1

  async def initialize(self) -> process_lib.State:
    """Returns the process's first state, with the weights of init_from_run."""
    state = await self.init_process_state()
    frozen = process_lib.frozen_layers(state)
    plain_model = subspace.plain_model(self.model)
    if frozen:
      described = layer_freeze.describe(
          frozen, self.model.specs, plain_specs=plain_model.specs
      )
      print(f'freeze: {described}')
    if self.init_from_run is None:
      return state
    weights = warm_start.replace_weights(
        subspace.plain_weights(self.model, state.global_model_weights),
        run=self.init_from_run,
        model=plain_model,
        tokens=self.tokens,
        public_sha256=self.pipeline.front_end.public_sha256,
    )
    return state._replace(global_model_weights=self.prepare_seed(weights))

  def prepare_seed(self, weights: weights_lib.Weights) -> weights_lib.Weights:
    """Returns the weights to train, from those of the seed model."""
    return weights

  @abc.abstractmethod
  async def init_process_state(self) -> process_lib.State:
    """Returns the learning process's state before the first round."""

  async def plan_evaluations(
      self, unused_state: process_lib.State
  ) -> Optional[evaluation_rounds.PlannedEvaluations]:
    """Returns evaluations of private people, with the process's first state."""
    return None

  @abc.abstractmethod
  def init_data_position(self) -> Position:
    """Returns the data position of the first round."""

  @abc.abstractmethod
  def init_loop_state(self, weights: weights_lib.Weights) -> LoopState:
    """Returns the loop state before the first round."""

  @abc.abstractmethod
  def sample(self, data_position: Position) -> tuple[Batch, Position]:
    """Returns what a round trains on, and the position of the next round."""

  @abc.abstractmethod
  async def step(
      self, state: process_lib.State, batch: Batch
  ) -> process_lib.Output:
    """Takes a step of the learning process on a sampled batch."""

  @abc.abstractmethod
  def process_round(
      self,
      loop_state: LoopState,
      result: private_rounds.RoundResult[Batch, Position],
      *,
      round_num: int,
      shows_exact: bool,
  ) -> tuple[LoopState, Optional[dict[str, float]]]:
    """Turns the result of a round into metrics.

    Args:
      loop_state: The loop state after the last round.
      result: The round; charged if it is private.
      round_num: Number of the round, from 1 on.
      shows_exact: Whether logs and errors may show exact private numbers.

    Returns:
      The new loop state; and the metrics, from which the loop removes those
      with `EXACT_PREFIX` unless they may be shown. None for the metrics undoes
      the round; a private round stays charged.

    Raises:
      ValueError: The run ends with the state before this round.
    """

  def after_evaluation(
      self,
      loop_state: LoopState,
      weights: weights_lib.Weights,
      unused_metrics: Mapping[str, float],
  ) -> LoopState:
    """Returns the loop state after an evaluation of these weights."""
    del weights
    return loop_state

  def is_converged(self, unused_loop_state: LoopState) -> bool:
    """Whether to end the run early."""
    return False

  def export(
      self, state: run_state.RunState
  ) -> tuple[weights_lib.Weights, dict[str, Any]]:
    """Returns the final model, and results to write with the common ones."""
    return state.process.global_model_weights, {}


def _check_durations(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
) -> None:
  """Raises ValueError if the longest utterance allowed is below the mean."""
  corpus = client_data_lib.corpus_of(client_data)
  if corpus is None:
    return
  # The index has sums of clients, and not the longest utterance.
  mean_sec = corpus.num_samples / corpus.num_utterances / corpus.sample_rate_hz
  if mean_sec > pipeline.max_utterance_sec:
    raise ValueError(
        f'max_utterance_sec {pipeline.max_utterance_sec} leaves out longer '
        f'utterances, and those of {corpus.path} last {mean_sec:.1f} s on '
        'average: raise it (and max_batch_sec with it).'
    )


def _parent_ledgers(training: TrainingRun) -> list[ledger_lib.Parent]:
  """Returns the ledgers that a run inherits.

  Raises:
    ledger.LedgerError: One is missing or was changed.
  """
  # Without repeats: several inputs may come from one run.
  folders = dict.fromkeys(training.parent_runs.values())
  parents = [run_dir.ledger_of_model(folder) for folder in folders]
  return [each for each in parents if each is not None]


class Prepared(NamedTuple):
  """A run that was checked and not begun.

  Attributes:
    process_state: The learning process's first state.
    inherited: What the ledgers of the parent runs charge; None if this run
      charges nothing.
    public: Result of the check of public data.
    evaluations: Evaluations of private people; None if there are none.
    invalidations: Reasons why no epsilon holds, whatever the noise.
  """

  process_state: process_lib.State
  inherited: Optional[ledger_lib.Inherited]
  public: public_data.OverlapFindings
  evaluations: Optional[evaluation_rounds.PlannedEvaluations]
  invalidations: tuple[str, ...]


async def prepare(training: TrainingRun) -> Prepared:
  """Does what comes before the first round, and writes nothing.

  Raises:
    ValueError: The budget allows no round, or public data share speakers with
      private ones.
  """
  process_state = await training.initialize()
  evaluations = await training.plan_evaluations(process_state)
  inherited = None
  if training.sampling is not None:
    inherited = ledger_lib.read_inherited(
        _parent_ledgers(training), privacy_unit=training.privacy_unit
    )
    private_rounds.check_first_round(
        process_state,
        sampling=training.sampling,
        settings=training.privacy,
        inherited=inherited.charges,
        releases=evaluation_rounds.charges(evaluations, num_rounds=1),
    )
  evaluator = training.evaluator
  public = public_data.check_overlap(
      train_data=training.client_data,
      dev_data=None if evaluator is None else evaluator.client_data,
      selects_on_dev=training.selects_on_dev,
      parent_runs=training.parent_runs,
      # The first state determines whether there is noise.
      is_protected=inherited is not None
      and private_rounds.has_secret_noise(process_state, training.privacy),
      on_shared_data=training.on_shared_data,
  )
  return Prepared(process_state, inherited, public, evaluations, (
      *(() if inherited is None else inherited.invalidations),
      *training.privacy.invalidations,
      *public.invalidations,
  ))


def outlook(
    training: TrainingRun,
    prepared: Prepared,
    *,
    charged: Optional[ledger_lib.Charges] = None,
    num_done: int = 0,
) -> tuple[privacy_report.Outlook, int]:
  """Returns what a private run would make of the verdict, and its last round.

  Args:
    training: The run; it charges its rounds.
    prepared: What `prepare` returned for it.
    charged: What its ledger charges; None before it begins.
    num_done: Rounds that it has done.
  """
  settings, sampling = training.privacy, training.sampling
  charged, last = charged or prepared.inherited.charges, training.total_rounds
  delta = settings.delta_of(sampling, charged.rounds)
  cost = private_rounds.cost(prepared.process_state, sampling)
  after = lambda number: [
      *charged.after(range(num_done, number), cost),
      *evaluation_rounds.charges(
          prepared.evaluations, num_rounds=number, num_done=num_done
      ),
  ]
  if not settings.allow(after(last), delta=delta):
    # No further round is within the target, or some are, and not the last one.
    low, high = num_done, last
    while high - low > 1:
      middle = (low + high) // 2
      if settings.allow(after(middle), delta=delta):
        low = middle
      else:
        high = middle
    last = low
  return privacy_report.outlook(
      charged.rounds,
      after(last),
      delta=delta,
      invalidations=prepared.invalidations,
  ), last


class _OpenRun(NamedTuple):
  """A run with its folder and ledger open.

  Attributes:
    training: Its configuration.
    folder: Its folder.
    ledger: Its ledger; None if it neither charges rounds nor inherits any.
    private: Runs and charges private rounds; None if they are not private.
    public: Result of the check of public data.
    shows_exact: Whether metrics without noise may be shown.
    evaluations: Evaluations of private people; None if there are none.
  """

  training: TrainingRun
  folder: run_dir.RunDir
  ledger: Optional[ledger_lib.Ledger]
  private: Optional[private_rounds.PrivateRoundRunner]
  public: public_data.OverlapFindings
  shows_exact: bool
  evaluations: Optional[evaluation_rounds.PlannedEvaluations]

  def is_over(self, state: run_state.RunState, round_num: int) -> bool:
    """Whether the rounds or the privacy budget are spent."""
    if round_num >= self.training.total_rounds:
      return True
    if self.private is None:
      return False
    due = self.evaluation_after(round_num + 1)
    return not self.private.fits_budget(
        state.process,
        state.data_position,
        releases=[] if due is None else [due.cost],
    )

  def evaluation_after(
      self, round_num: int
  ) -> Optional[evaluation_rounds.PlannedEvaluations]:
    """The evaluation of private people that is due after a round, or None."""
    planned = self.evaluations
    return planned if planned and planned.is_due(round_num) else None

  def shown(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics that may be shown."""
    return {
        name: value
        for name, value in metrics.items()
        if self.shows_exact or not name.startswith(EXACT_PREFIX)
    }

  @property
  def seconds_name(self) -> str:
    """Name of the metric of a round's duration."""
    # The time is private: it depends on which clients took part.
    is_public = self.training.privacy_unit is None
    return 'seconds' if is_public else f'{EXACT_PREFIX}seconds'


async def run(
    training: TrainingRun, *, observer: Optional[Observer] = None
) -> dict[str, Any]:
  """Trains to the last round, from the last state saved in the run's folder.

  Args:
    training: What to train. All files are written to its folder.
    observer: Called with each round and its number, for an audit.

  Returns:
    The results, as written to results.json.

  Raises:
    ValueError: A file is damaged; too many clients failed; or the model
      diverged.
    OSError: There is too little memory, or room on the disk, or too many files
      are open.
  """
  # Closed in reverse: the last state is written while the folder is still
  # locked.
  async with contextlib.AsyncExitStack() as stack:
    # Until the run is open, it is unknown whether it may show details.
    with faults.explained_shortage():
      opened, state, round_num = await _open(training, stack)
    stack.enter_context(
        faults.explained_shortage(shows_details=opened.shows_exact)
    )
    reporter = _Reporter(opened, last=round_num)
    saver = await stack.enter_async_context(
        checkpoints.Saver(
            functools.partial(run_state.save, opened.folder), last=round_num
        )
    )
    # Its line ends before others are printed.
    with reporter.progress:
      state, round_num = await _run_rounds(
          opened, state, round_num, reporter, saver, observer
      )
    await saver.save(state, round_num)
    # A state that is still being written would write secrets again.
    await saver.wait()
    # No rounds follow: from now on, no file may reveal noise that was drawn.
    opened.folder.state_manager.erase_secrets()
    return _finish(opened, state, round_num)


async def _run_rounds(
    opened: _OpenRun,
    state: run_state.RunState,
    round_num: int,
    reporter: '_Reporter',
    saver: checkpoints.Saver,
    observer: Optional[Observer],
) -> tuple[run_state.RunState, int]:
  """Runs the rounds after `round_num`; returns the last state and number."""
  training = opened.training
  is_last = opened.is_over(state, round_num)
  while not is_last and not training.is_converged(state.loop_state):
    result = await _run_round(opened, state, round_num=round_num + 1)
    # A state that could not be written ends the run now, not at the next save.
    saver.check()
    if observer is not None:
      observer(result, round_num + 1)
    # After the charge, so that what it raises cannot hide a release.
    loop_state, metrics = training.process_round(
        state.loop_state,
        result,
        round_num=round_num + 1,
        shows_exact=opened.shows_exact,
    )
    if metrics is None:
      # The new loop state has counted the undone round.
      state = _undone(opened, state, result)._replace(loop_state=loop_state)
      logging.warning(
          'Round %d diverged and was undone; it stays charged.', round_num + 1
      )
      # The budget may be spent although no round was gained.
      is_last = opened.is_over(state, round_num)
      continue
    round_num += 1
    state = _advanced(opened, state, result)
    state, released = await _evaluate_people(opened, state, round_num)
    metrics |= released
    # Now: the evaluation was charged, too.
    is_last = opened.is_over(state, round_num)
    if is_last or round_num % training.settings.evaluate_every == 0:
      loop_state, evaluated = _evaluate(
          training, loop_state, state.process.global_model_weights
      )
      metrics |= evaluated
    state = state._replace(loop_state=loop_state)
    await reporter.report(metrics, round_num=round_num, is_last=is_last)
    # Written if an error or an interrupt ends the run.
    saver.offer(state, round_num)
    if round_num % training.settings.save_every == 0:
      await saver.save(state, round_num)
    # Let an interrupt end the run here.
    await asyncio.sleep(0)
  return state, round_num


class _Reporter:
  """Releases the metrics of rounds to trackers, and displays them.

  Attributes:
    progress: The display; a context manager.
  """

  def __init__(self, opened: _OpenRun, *, last: int):
    """Creates a reporter of a run that has done `last` rounds before."""
    training = opened.training
    self._opened = opened
    self._managers = [
        *opened.folder.release_managers(
            # The time of an event would reveal how long the round took.
            last=last, with_times=opened.shows_exact
        ),
        *training.trackers,
    ]
    self.progress = progress_lib.Progress(
        description=training.name,
        total=training.total_rounds,
        initial=last,
        unit=training.step_name,
    )
    # When the metrics were last released.
    self._released = time.monotonic()

  async def report(
      self, metrics: dict[str, float], *, round_num: int, is_last: bool
  ) -> None:
    """Displays a round's metrics, and releases them if that is due."""
    opened = self._opened
    is_private = True
    if opened.private is not None:
      metrics['epsilon'], metrics['epsilon_rdp'] = opened.private.epsilons()
      is_private = opened.private.is_private(metrics['epsilon'])
    if is_last or round_num % opened.training.release_every == 0:
      now = time.monotonic()
      metrics[opened.seconds_name] = now - self._released
      self._released = now
      shown = opened.shown(metrics)
      for manager in self._managers:
        await manager.release(shown, key=round_num)
    self.progress.update(**format_metrics(
        opened.shown(metrics),
        target_epsilon=opened.training.privacy.target_epsilon,
        is_private=is_private,
        round_name=f'{opened.training.step_name} {round_num}',
    ))


async def _run_round(
    opened: _OpenRun, state: run_state.RunState, *, round_num: int
) -> private_rounds.RoundResult:
  """Samples, trains, and charges what is private."""
  training = opened.training
  if opened.private is None:
    batch, next_position = training.sample(state.data_position)
    return private_rounds.RoundResult(
        await training.step(state.process, batch), batch, next_position
    )
  with faults.without_details(round_num, shows_exact=opened.shows_exact):
    return await opened.private.run(
        training.step,
        state.process,
        draw=training.sample,
        position=state.data_position,
    )


async def _evaluate_people(
    opened: _OpenRun, state: run_state.RunState, round_num: int
) -> tuple[run_state.RunState, dict[str, float]]:
  """Evaluates private people if that is due; see `evaluation_rounds`.

  Returns:
    The state, in which the evaluation is charged, and released metrics.
  """
  due = opened.evaluation_after(round_num)
  if due is None:
    return state, {}
  rounds, private = due.rounds, opened.private
  process = await rounds.initialize(state.process.global_model_weights)
  # Not if the target was lowered, or the round was charged twice.
  if not private.fits_budget(process, state.data_position):
    logging.warning(
        'The evaluation of private people after round %d is left out: it would '
        'exceed TARGET_EPSILON.', round_num,
    )
    # Its cohort is passed over. Otherwise the next round of training would
    # draw it, and this evaluation, too, if a resumed run has a higher target.
    _, position = opened.training.sample(state.data_position)
    return state._replace(data_position=position), {}
  before = opened.ledger.contents.rounds
  with faults.without_details(round_num, shows_exact=opened.shows_exact):
    result = await private.run(
        rounds.step,
        process,
        draw=opened.training.sample,
        position=state.data_position,
        release=evaluation_rounds.RELEASE,
    )
  found = rounds.estimate(result.output.state)
  change = private.outlook(before)
  own = accounting.leading_epsilon([due.cost], delta=private.delta)
  evaluation_rounds.write(opened.folder.path, {
      'round': round_num,
      **rounds.fields(
          found,
          # Where nothing is guaranteed, a part of it has no guarantee either.
          epsilon=own if math.isfinite(change.after.epsilon) else math.inf,
          outlook=change,
          trained_on=True,
      ),
  })
  # The weights are those of the training; only the keys have moved on.
  state = _advanced(opened, state, result)._replace(process=state.process)
  return state, evaluation_rounds.metrics(found)


def _advanced(
    opened: _OpenRun,
    state: run_state.RunState,
    result: private_rounds.RoundResult,
) -> run_state.RunState:
  """Returns the state after a round; its loop state is still the old one."""
  state = state._replace(
      process=result.output.state, data_position=result.next_position
  )
  if opened.private is None:
    return state
  return state._replace(
      ledger=opened.private.head, noise=opened.private.noise
  )


def _undone(
    opened: _OpenRun,
    state: run_state.RunState,
    result: private_rounds.RoundResult,
) -> run_state.RunState:
  """Returns the state after a round was undone; the round stays charged."""
  # The weights go back, correlated noise does not.
  process = private_rounds.roll_back_state(
      state.process, after=result.output.state
  )
  # The next round has another cohort: amplification by sampling holds for one
  # sum a draw.
  return _advanced(opened, state, result)._replace(process=process)


def _evaluate(
    training: TrainingRun[Any, Any, LoopState],
    loop_state: LoopState,
    weights: weights_lib.Weights,
) -> tuple[LoopState, dict[str, float]]:
  """Returns the new loop state, and metrics of the dev set if there is one."""
  metrics = {}
  if training.evaluator is not None:
    found = training.evaluator(weights).metrics()
    metrics = {f'dev_{name}': value for name, value in found.items()}
  return training.after_evaluation(loop_state, weights, metrics), metrics


def format_metrics(
    metrics: Mapping[str, float],
    *,
    target_epsilon: Optional[float],
    is_private: bool,
    round_name: str = '',
) -> dict[str, str]:
  """Returns what the progress display shows of a round's metrics.

  >>> format_metrics(
  ...     {'train_loss': 2.345, 'epsilon': 1.5},
  ...     target_epsilon=8.0,
  ...     is_private=True,
  ... )
  {'loss': '2.35', 'epsilon (PLD)': '1.5 of 8'}

  Args:
    metrics: Metrics that may be shown.
    target_epsilon: Epsilon at which the run ends, or None.
    is_private: False marks the epsilon as NOT PRIVATE.
    round_name: Added to what was measured on the dev set, which stays until it
      is measured again, as in 'round 10'.
  """
  found = {
      name.removeprefix(EXACT_PREFIX): value for name, value in metrics.items()
  }
  # Where PLD does not take the rounds, both bounds are RDP's.
  is_rdp = found.get('epsilon') == found.get('epsilon_rdp')
  epsilon = f'epsilon ({"RDP" if is_rdp else "PLD"})'
  shown = {
      # NaN is a mean over no clients or utterances.
      label or epsilon: 'none' if math.isnan(found[name]) else text(found[name])
      for name, (label, text) in _DISPLAYED.items()
      if name in found
  }
  if target_epsilon is not None and epsilon in shown:
    shown[epsilon] += f' of {target_epsilon:g}'
  # An infinite one says so by itself; a terminal of 100 columns then has room
  # for the rates of the dev set.
  if not is_private and math.isfinite(found.get('epsilon', math.inf)):
    shown[epsilon] += ' (NOT PRIVATE)'
  if rates := _format_dev_rates(found, measured_at=round_name):
    shown['dev'] = rates
  if rate := evaluation_rounds.describe_metrics(found):
    shown['private people'] = f'{rate} ({round_name})'
  return shown


def _format_dev_rates(metrics: Mapping[str, float], *, measured_at: str) -> str:
  """Returns 'WER 36.6 %, CER 10.0 % (round 10)'; empty without any rate."""
  rates = ', '.join(
      f'{label} {100 * metrics[name]:.1f} %'
      for name, label in _DEV_RATES.items()
      if name in metrics
  )
  return rates and f'{rates} ({measured_at})'


async def _open(
    training: TrainingRun, stack: contextlib.AsyncExitStack
) -> tuple[_OpenRun, run_state.RunState, int]:
  """Opens a run's folder and ledger until the stack ends.

  Returns:
    The open run, the state to continue from, and its number of rounds.
  """
  prepared = await prepare(training)
  sampling, public = training.sampling, prepared.public
  # Only now: what is wrong with the process must not leave a folder behind.
  folder = stack.enter_context(run_dir.RunDir(
      training.output_dir,
      configuration=training.recorded_configuration,
      model_spec=training.model_spec,
      keep_last=training.settings.keep_last,
      keep_every=training.settings.keep_every,
  ))
  initial = _initial_state(training, prepared.process_state)
  saved, round_num, problem = await run_state.load(folder, initial)
  if saved is None:
    state, ledger = _begin(training, folder, initial, public, stack)
    # Version 0: a run that is killed in its first rounds must resume, too.
    await run_state.save(folder, state, 0)
  else:
    logging.info('Resuming after %s %d.', training.step_name, round_num)
    state = saved
    ledger = _resume_ledger(training, folder, saved, public, stack)
    if sampling is not None:
      private_rounds.check_client_noise(saved.process, initial.process)
      state = _resume_keys(
          training, folder, ledger, saved, round_num,
          initial=initial, secrets_problem=problem,
      )
  # When resuming, too: the data may have grown.
  public_data.write(folder.path, public.sources)
  private, shows_exact = None, True
  if sampling is not None:
    change, _ = outlook(
        training, prepared, charged=ledger.charges, num_done=round_num
    )
    print(f'privacy: {change.words}')
    private, shows_exact = _open_private(training, ledger, state)
  opened = _OpenRun(
      training, folder, ledger, private, public, shows_exact,
      prepared.evaluations,
  )
  return opened, state, round_num


def _initial_state(
    training: TrainingRun, process_state: process_lib.State
) -> run_state.RunState:
  """The state before the first round of a run without a ledger."""
  # Without charges nothing needs a secret key.
  key = () if training.sampling is None else keys.draw_or_fix(
      training.privacy.noise_seed
  )
  return run_state.RunState(
      process_state,
      training.init_data_position(),
      ledger_lib.Head(0, ''),
      # The file of the ledger has an identity once it exists.
      private_rounds.NoiseState(key, np.int64(0)),
      training.init_loop_state(process_state.global_model_weights),
  )


def _open_private(
    training: TrainingRun, ledger: ledger_lib.Ledger, state: run_state.RunState
) -> tuple[private_rounds.PrivateRoundRunner, bool]:
  """The runner of private rounds, and whether exact metrics may be shown."""
  runner = private_rounds.PrivateRoundRunner(
      ledger=ledger,
      noise=state.noise,
      sampling=training.sampling,
      configuration=run_dir.config_digest(training.recorded_configuration),
      settings=training.privacy,
  )
  if not runner.claims_epsilon(state.process):
    return runner, True  # Nothing is promised.
  if training.privacy.exact_metrics:
    ledger.note('exact_metrics')  # Before they are shown.
  return runner, training.privacy.exact_metrics


def _begin(
    training: TrainingRun,
    folder: run_dir.RunDir,
    initial: run_state.RunState,
    public: public_data.OverlapFindings,
    stack: contextlib.AsyncExitStack,
) -> tuple[run_state.RunState, Optional[ledger_lib.Ledger]]:
  """Starts the ledger of a new run, if it has one."""
  parents = _parent_ledgers(training)
  if training.sampling is None and not parents:
    return initial, None
  ledger = stack.enter_context(private_rounds.create_ledger(
      folder,
      parents,
      invalidations=[*training.privacy.invalidations, *public.invalidations],
      privacy_unit=(
          # A run that charges nothing takes its first parent's unit.
          None if training.sampling is None else training.privacy_unit
      ),
  ))
  noise = initial.noise._replace(file_identity=np.int64(ledger.file_identity))
  return initial._replace(ledger=ledger.head, noise=noise), ledger


def _resume_ledger(
    training: TrainingRun,
    folder: run_dir.RunDir,
    saved: run_state.RunState,
    public: public_data.OverlapFindings,
    stack: contextlib.AsyncExitStack,
) -> Optional[ledger_lib.Ledger]:
  """Opens the ledger of a resumed run, if it has one."""
  # The run began without a ledger.
  if not saved.ledger.digest:
    return None
  ledger = stack.enter_context(
      ledger_lib.resume(folder.file(run_dir.LEDGER), head=saved.ledger)
  )
  # A ledger's header cannot be changed, so reasons cannot be added.
  new = set(public.invalidations) - set(ledger.contents.invalidations)
  if new:
    raise ValueError(
        f'{"; ".join(sorted(new))}, which the ledger of {training.output_dir} '
        'does not say: put the data back that the run began with, or take '
        'another output_dir.'
    )
  if training.sampling is not None and folder.length_changed:
    logging.warning(
        'The end of this run was changed when it was resumed: the privacy '
        'report will say so.'
    )
    ledger.note('length_changed')
  return ledger


def _resume_keys(
    training: TrainingRun,
    folder: run_dir.RunDir,
    ledger: ledger_lib.Ledger,
    saved: run_state.RunState,
    round_num: int,
    *,
    initial: run_state.RunState,
    secrets_problem: str,
) -> run_state.RunState:
  """Returns the saved state, under new keys if its own may not be used."""
  # A copy of the file has another inode.
  is_copy = int(saved.noise.file_identity) != ledger.file_identity
  if is_copy:
    logging.warning(
        'This run folder is a copy or was restored: it gets new keys, since '
        'the run that it was copied from may continue with the old ones.'
    )
    # Before the new keys are on disk: a kill in between repeats the note.
    ledger.note('copied')
  elif secrets_problem and round_num < training.total_rounds:
    logging.warning(
        '%s %s: the run continues from state %d under new keys, and rounds '
        'after it that the ledger contains are charged again.',
        folder.file(run_dir.SECRETS), secrets_problem, round_num,
    )
  if not is_copy and not secrets_problem:
    return saved
  return run_state.with_new_keys(
      folder,
      saved,
      round_num,
      initial=initial,
      sampling=training.sampling,
      file_identity=ledger.file_identity,
  )


def _finish(
    opened: _OpenRun, state: run_state.RunState, round_num: int
) -> dict[str, Any]:
  """Writes the model, the privacy report and the results."""
  training, folder, ledger = opened.training, opened.folder, opened.ledger
  weights, own_results = training.export(state)
  folder.write_model(
      weights,
      tokens=training.tokens,
      public_sha256=training.pipeline.front_end.public_sha256,
      ledger=None if ledger is None else ledger.head,
  )
  # Of the whole run: this process may have done only its last rounds.
  metrics = folder.read_metrics()
  results = {
      f'{training.step_name}s': round_num,
      **own_results,
      **{name: metrics[name] for name in metrics if name.startswith(_MEASURED)},
  }
  # Durations depend on which clients took part.
  if opened.shows_exact:
    seconds = metrics.get(opened.seconds_name, {}).values()
    results['seconds'] = round(sum(seconds), 3)
  if ledger is not None and ledger.contents.rounds:
    results['privacy'] = _write_privacy_report(opened, state)
  files.write_json(folder.file(run_dir.RESULTS), results)
  print(_ending(training, results))
  return results


def _ending(training: TrainingRun, results: Mapping[str, Any]) -> str:
  """What is printed when a run has ended: rates, folder, the next command."""
  last = {
      name: max(results[name].items())
      for name in _DEV_RATES if results.get(name)
  }
  rates = _format_dev_rates(
      {name: rate for name, (_, rate) in last.items()},
      measured_at=f'{training.step_name} '
      f'{max((number for number, _ in last.values()), default=0)}',
  )
  run = training.output_dir
  written = f'Written to {run}: model, metrics'
  if 'privacy' in results:
    written += f', privacy report ({run_dir.PRIVACY_REPORT})'
  next_command = f'python bin/transcribe.py --run={run} RECORDING.wav'
  if not training.tokens:
    next_command = f'train on text with INIT_FROM_RUN = {run!r}'
  return '\n'.join(
      ([f'dev {rates}'] if rates else [])
      + [f'{written}.', f'Next: {next_command}']
  )


def _write_privacy_report(
    opened: _OpenRun, state: run_state.RunState
) -> dict[str, Any]:
  """Writes and prints the privacy report; returns its fields."""
  training, ledger = opened.training, opened.ledger
  # If the run charges nothing, all its rounds are inherited.
  delta, l2_norm_clip, adaptive_layers = None, None, 0
  layer_noise, has_layer_clips = {}, False
  if training.sampling is not None:
    query_state = private_rounds.query_state(state.process)
    l2_norm_clip = float(query_state.l2_norm_clip)
    adaptive_layers = np.size(query_state.layer_clips)
    layer_noise, has_layer_clips = private_rounds.noise_by_layer(
        state.process, training.sampling
    )
    # The ledger's rounds may be of a larger, inherited population.
    delta = training.privacy.delta_of(
        training.sampling, ledger.contents.rounds
    )
  inputs = [*training.parent_runs]
  if training.evaluator is not None:
    inputs.append('the dev set')
  public_model = training.pipeline.front_end.public_model
  report = privacy_report.of_ledger(
      ledger.contents,
      delta=delta,
      details=privacy_report.TrainingDetails(
          l2_norm_clip=l2_norm_clip,
          adaptive_layers=adaptive_layers,
          layer_noise=layer_noise,
          has_layer_clips=has_layer_clips,
          public_inputs=tuple(inputs),
          public_model=public_model and public_model._asdict(),
          public_check=opened.public.words,
          tokens=training.tokens and training.pipeline.tokenizer.source,
      ),
  )
  run_dir.write_privacy_report(training.output_dir, report)
  print(report.summary)
  return report.fields
