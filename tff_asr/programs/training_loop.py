"""Training loop of all programs: resume, charge, evaluate, release, save, end.

`federated`, `central` and `pretraining` are a `TrainingRun` each: a process, a
source of training data, and a judgement of each round's metrics. `run` does the
rest, the same for all:

- Version 0 is saved before the first round, so every run can be resumed. A run
  that ends early repeats the rounds after its last saved state with the same
  draws, seeds and noise, so in the same bits.
- A private round is charged to the ledger, on disk, before its model can be
  evaluated, released or saved (`private_rounds`). A run that starts from
  another run's model inherits that run's ledger.
- A run that is ended by an error or an interrupt saves its newest good state.
"""

import abc
import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import errno
import functools
import math
import os
import time
from typing import Any, ClassVar, Optional

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr import files
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.execution import client_round
from tff_asr.learning import layer_freeze
from tff_asr.learning import process as process_lib
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import statement
from tff_asr.programs import evaluation
from tff_asr.programs import faults
from tff_asr.programs import private_rounds
from tff_asr.programs import progress as progress_lib
from tff_asr.programs import public_data
from tff_asr.programs import run_privacy
from tff_asr.programs import run_state
from tff_asr.programs import warm_start
from tff_asr.storage import checkpoints
from tff_asr.storage import run_dir

# Begins the names of metrics that are computed from private data without noise.
EXACT = 'not_private/'
# Metrics that the progress display shows: their labels there, and formats.
_FIGURES = {
    'train_loss': ('loss', '{:.2f}'.format),
    'epsilon': ('epsilon', statement.number),
    'dev_word_error_rate': ('dev WER', '{:.1%}'.format),
    'dev_accuracy': ('dev accuracy', '{:.1%}'.format),
    'num_clients': ('clients', '{:.0f}'.format),
    'audio': ('audio', '{:.0f} s/s'.format),
    'padding': ('padding', '{:.0%}'.format),
    'store': ('store', '{:.3g} GB'.format),
}
_SHORTAGES = {
    errno.ENOMEM: (
        'out of memory',
        'lower MAX_BATCH_SEC (seconds of audio a batch) or CLIENTS_PER_DEVICE, '
        'or take a smaller model (NUM_BLOCKS, DIM, MLP_DIM)',
    ),
    errno.ENOSPC: ('the disk is full', 'make room on it'),
    errno.EDQUOT: ('the disk quota is used up', 'make room'),
    errno.EMFILE: ('too many open files', 'raise the limit (`ulimit -n`)'),
    errno.ENFILE: ('too many open files on this machine', 'close some'),
}


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

  def check(self) -> None:
    """Raises ValueError for all that is wrong with the settings."""
    with checks.collect_errors() as collect:
      with collect:
        checks.positive_int(
            evaluate_every=self.evaluate_every,
            save_every=self.save_every,
            keep_last=self.keep_last,
        )
      with collect:
        checks.non_negative_int(keep_every=self.keep_every)


@dataclasses.dataclass(kw_only=True, eq=False)
class TrainingRun(abc.ABC):
  """A training run: process, data source, metrics.

  Subclasses set the class attributes and override methods.

  Attributes:
    output_dir: The run's folder; see `run_dir`.
    configuration: Text of the configuration, kept with the run.
    model_spec: Model and pipeline as JSON (`run_dir.RunDir`).
    model: The model.
    pipeline: Examples to batches.
    client_data: The speakers to train on.
    settings: Intervals of evaluations and saved states.
    evaluator: Evaluates weights on a public dev set, or None.
    init_from_run: Folder of a run whose model training starts from.
    on_shared_data: What to do if data that are called public share speakers
      with private ones: 'refuse', or 'not_private' to train without a
      guarantee. See `public_data`.
    trackers: Get the metrics that the run's folder gets, round by round.
  """

  output_dir: str
  configuration: str
  model: Any
  pipeline: pipeline_lib.Pipeline
  client_data: tff.simulation.datasets.ClientData
  settings: RunSettings = RunSettings()
  evaluator: Optional[Any] = None
  init_from_run: Optional[str] = None
  model_spec: str = ''
  on_shared_data: str = public_data.REFUSE
  trackers: Sequence[tff.program.ReleaseManager] = ()

  # NAME is displayed; UNIT is what `total` and versions count.
  NAME: ClassVar[str]
  UNIT: ClassVar[str]
  # The unit that the ledger protects; None: no data are private.
  PRIVACY_UNIT: ClassVar[Optional[str]]

  # Set by subclasses. `process.next` takes what `draw` returns.
  process: process_lib.Process = dataclasses.field(init=False, repr=False)
  # How rounds are drawn, for the accounting; None: nothing is charged.
  sampling = None
  privacy = private_rounds.PrivacySettings()
  # Folder of the run whose scores chose layers to freeze.
  scores_run = None
  # What became of the check of public data, once the run is opened.
  public = None
  # Rounds between releases of metrics.
  release_every = 1
  # Whether metrics without noise are shown; the loop decides.
  shows_exact = True

  def check(self) -> None:
    """Raises ValueError for all that is wrong with the shared settings."""
    with checks.collect_errors() as collect:
      with collect:
        self.settings.check()
      with collect:
        self.privacy.check()
      with collect:
        checks.one_of(public_data.ACTIONS, on_shared_data=self.on_shared_data)
      with collect:
        if self.tokens:
          evaluation.check_characters(self.client_data, self.pipeline)
      with collect:
        check_durations(self.client_data, self.pipeline)
      with collect:
        if self.init_from_run is not None:
          warm_start.check(
              self.init_from_run, model=self.model, tokens=self.tokens
          )
      with collect:
        self._check_start()
      with collect:
        run_dir.check_folder(self.output_dir, configuration=self.configuration)

  def _check_start(self) -> None:
    """Raises ValueError for a run that starts from itself."""
    start = self.init_from_run
    if start is not None and os.path.realpath(start) == os.path.realpath(
        self.output_dir
    ):
      raise ValueError(
          f'init_from_run and output_dir are both {self.output_dir}: a run '
          'cannot start from itself.'
      )

  @property
  @abc.abstractmethod
  def total(self) -> int:
    """Rounds of the whole run."""

  @property
  def tokens(self) -> str:
    """Identity of the tokens that the model writes; '' for none."""
    tokenizer = self.pipeline.tokenizer
    return '' if tokenizer is None else tokenizer.identity

  async def initialize(self) -> process_lib.State:
    """Returns the process's first state, with the weights of init_from_run."""
    state = await self.initial_process_state()
    frozen = process_lib.frozen_layers(state)
    if frozen:
      print(f'freeze: {layer_freeze.described(frozen, self.model.specs)}')
    if self.init_from_run is None:
      return state
    weights = warm_start.updated(
        state.global_model_weights,
        run=self.init_from_run,
        model=self.model,
        tokens=self.tokens,
    )
    return state._replace(global_model_weights=weights)

  async def initial_process_state(self) -> process_lib.State:
    """Returns the process's own first state."""
    return self.process.initialize()

  @abc.abstractmethod
  def initial_draw(self) -> Any:
    """Returns the state of the draws before the first round."""

  @abc.abstractmethod
  def draw(self, source_state: Any) -> tuple[Any, Any]:
    """Draws what a round trains on; returns it, and the state after it."""

  async def next(self, process_state: Any, drawn: Any) -> Any:
    """Runs a round of the process."""
    return self.process.next(process_state, drawn)

  @abc.abstractmethod
  def initial_record(self, weights: weights_lib.Weights) -> Any:
    """Returns what is kept from round to round, at the start."""

  @abc.abstractmethod
  def judge(
      self, record: Any, done: private_rounds.Done, *, number: int
  ) -> tuple[Any, Optional[dict[str, float]]]:
    """Looks at what came out of a round.

    Args:
      record: The record after the last good round.
      done: The round; charged if it is private.
      number: The round's number, from 1 on.

    Returns:
      The record after the round, and its metrics to release, of which the loop
      leaves out exact ones unless they are shown. None for metrics: the round
      is to be undone; a private round stays charged.

    Raises:
      ValueError: The run is to end with the state before this round.
    """

  def evaluate(
      self, record: Any, weights: weights_lib.Weights
  ) -> tuple[Any, dict[str, float]]:
    """Evaluates a round's model.

    Returns:
      The new record, and the evaluator's metrics; empty without an evaluator.
    """
    if self.evaluator is None:
      return record, {}
    found = self.evaluator(weights).metrics()
    return record, {f'dev_{name}': value for name, value in found.items()}

  def is_converged(self, unused_record: Any) -> bool:
    """True if no further round would help."""
    return False

  def finish(
      self, state: run_state.RunState
  ) -> tuple[weights_lib.Weights, dict[str, Any]]:
    """Returns the model that the run ends with, and results of its own."""
    return state.process.global_model_weights, {}


def check_durations(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
) -> None:
  """Raises ValueError if the longest utterance allowed is under the mean."""
  corpus = getattr(client_data, 'corpus', None)
  if corpus is None:
    return
  mean_sec = corpus.num_samples / corpus.num_utterances / corpus.sample_rate_hz
  if mean_sec > pipeline.max_utterance_sec:
    raise ValueError(
        f'max_utterance_sec {pipeline.max_utterance_sec} leaves out longer '
        f'utterances, and those of {corpus.path} last {mean_sec:.1f} s on '
        'average: raise it (and max_batch_sec with it).'
    )


@contextlib.contextmanager
def explained_shortage(
    shows_exact: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
  """Tells what to change if memory, disk or open files do not suffice.

  Args:
    shows_exact: Whether the line may tell what did not fit: the shape of a
      private batch.

  Raises:
    OSError: TensorFlow or Python had too little of it, here or at a client.
  """
  try:
    yield
  except Exception as error:
    found = error
    while found is not None and client_round.shortage(found) is None:
      found = found.__cause__
    # An OSError itself says what to change.
    if found is None or isinstance(error, OSError):
      raise
    number = client_round.shortage(found)
    problem, advice = _SHORTAGES[number]
    what = ''
    if shows_exact():
      what = ' '.join(str(found).split('\n')[0].split())[:200]
    raise OSError(
        number, f'{problem} ({what or type(found).__name__}): {advice}.'
    ) from error


def parent_ledger(training: TrainingRun) -> Optional[ledger_lib.Parent]:
  """Returns the ledger that a run inherits, if there is one.

  It is that of the model that the run starts from, or of the scores by which
  layers were frozen: whichever has all rounds of the other.

  Raises:
    ledger.LedgerError: Neither has, or one is missing or was changed.
  """
  runs = dict.fromkeys([training.init_from_run, training.scores_run])
  parents = [run_dir.ledger_of_model(run) for run in runs if run is not None]
  return ledger_lib.superset_ledger(
      [each for each in parents if each is not None]
  )


def read_inherited(training: TrainingRun) -> ledger_lib.Inherited:
  """Returns what a run inherits from the ledger of `parent_ledger`."""
  return ledger_lib.read_inherited(
      parent_ledger(training), privacy_unit=training.PRIVACY_UNIT
  )


async def run(training: TrainingRun) -> dict[str, Any]:
  """Trains to the last round, from the last state saved in its folder.

  Args:
    training: What to train. All files are written to its folder.

  Returns:
    The results, as written to results.json.

  Raises:
    ValueError: A file is damaged; too many clients failed; or the model
      diverged.
    OSError: There is too little memory, or room on the disk, or too many files
      are open.
  """
  settings = training.settings
  async with contextlib.AsyncExitStack() as stack:
    stack.enter_context(explained_shortage(lambda: training.shows_exact))
    folder, ledger, rounds, state, number = await _open(training, stack)
    managers = [
        *folder.release_managers(last=number, with_times=training.shows_exact),
        *training.trackers,
    ]
    progress = stack.enter_context(progress_lib.Progress(
        description=training.NAME,
        total=training.total,
        initial=number,
        unit=training.UNIT,
    ))
    saver = await stack.enter_async_context(
        checkpoints.Saver(
            functools.partial(run_state.save, folder), last=number
        )
    )
    is_last = _is_over(training, rounds, state, number)
    started = time.monotonic()
    while not is_last and not training.is_converged(state.record):
      done = await _next_round(training, rounds, state, number=number + 1)
      saver.check()
      record, metrics = training.judge(state.record, done, number=number + 1)
      if metrics is None:
        state = _roll_back(rounds, state, done)._replace(record=record)
        logging.warning(
            'Round %d diverged and was undone; it stays charged.', number + 1
        )
        is_last = _is_over(training, rounds, state, number)
        continue
      number += 1
      state = state._replace(process=done.output.state, source=done.after)
      if rounds is not None:
        state = state._replace(ledger=rounds.head, noise=rounds.noise)
        metrics['epsilon'] = rounds.epsilon()
      is_last = _is_over(training, rounds, state, number)
      if is_last or number % settings.evaluate_every == 0:
        record, found = training.evaluate(
            record, state.process.global_model_weights
        )
        metrics |= found
      if is_last or number % training.release_every == 0:
        # The time of a round is private: it depends on who came.
        metrics[_seconds(training)] = time.monotonic() - started
        started = time.monotonic()
        metrics = _shown(training, metrics)
        for manager in managers:
          await manager.release(metrics, key=number)
      state = state._replace(record=record)
      saver.offer(state, number)
      if number % settings.save_every == 0:
        await saver.save(state, number)
      progress.update(**figures(
          training,
          _shown(training, metrics),
          private=rounds is None or rounds.is_private(metrics['epsilon']),
      ))
      # An interrupt ends the run here.
      await asyncio.sleep(0)

    await saver.save(state, number)
    await saver.wait()
    # Nothing is drawn any more; a run that has ended cannot tell its noise.
    folder.state_manager.erase_secrets()
    return _finish(training, folder, state, number, ledger)


async def _open(
    training: TrainingRun, stack: contextlib.AsyncExitStack
) -> tuple[
    run_dir.RunDir,
    Optional[ledger_lib.Ledger],
    Optional[private_rounds.PrivateRoundRunner],
    run_state.RunState,
    int,
]:
  """Opens a run's folder and ledger until the stack ends.

  Returns:
    The folder; the ledger, if there is one; the runner that charges rounds, or
    None if nothing is charged; the state to go on from; and its number.
  """
  process_state = await training.initialize()
  if training.sampling is not None:
    private_rounds.check_first_round(
        process_state,
        sampling=training.sampling,
        settings=training.privacy,
        inherited=read_inherited(training).charges,
    )
  training.public = public_data.check(training, process_state)
  # Opened only now, when the process has been built and initialized.
  folder = stack.enter_context(run_dir.RunDir(
      training.output_dir,
      configuration=training.configuration,
      model_spec=training.model_spec,
      keep_last=training.settings.keep_last,
      keep_every=training.settings.keep_every,
  ))
  key = ()
  if training.sampling is not None:
    key = keys.draw_or_fix(training.privacy.noise_seed)
  state = run_state.RunState(
      process_state,
      training.initial_draw(),
      ledger_lib.Head(0, ''),
      private_rounds.NoiseState(key, np.int64(0)),
      training.initial_record(process_state.global_model_weights),
  )
  # Otherwise this variable would hold its memory to the end.
  del process_state
  state, number, ledger = await _resume_or_begin(training, folder, state, stack)
  # Also of a run that is resumed: its data may have grown.
  public_data.write(folder.path, training.public.sources)
  rounds = _private_rounds(training, ledger, state)
  if rounds is not None:
    claims = rounds.claims_epsilon(state.process)
    training.shows_exact = training.privacy.exact_metrics or not claims
    if claims and training.shows_exact:
      ledger.note_once('exact_metrics')  # Before they are shown.
  return folder, ledger, rounds, state, number


def _is_over(
    training: TrainingRun,
    rounds: Optional[private_rounds.PrivateRoundRunner],
    state: run_state.RunState,
    number: int,
) -> bool:
  """True if the rounds, or the budget, are spent."""
  return number >= training.total or (
      rounds is not None and not rounds.fits_budget(state.process, state.source)
  )


def _roll_back(
    rounds: private_rounds.PrivateRoundRunner,
    state: run_state.RunState,
    done: private_rounds.Done,
) -> run_state.RunState:
  """The state after a round was undone, which stays charged."""
  # Draw another cohort: amplification by sampling holds for one sum a draw.
  return state._replace(
      process=private_rounds.keep_noise(
          state.process, after=done.output.state
      ),
      source=done.after,
      ledger=rounds.head,
      noise=rounds.noise,
  )


def _seconds(training: TrainingRun) -> str:
  """The name under which the time of a round is released."""
  return 'seconds' if training.PRIVACY_UNIT is None else f'{EXACT}seconds'


def _shown(
    training: TrainingRun, metrics: Mapping[str, float]
) -> dict[str, float]:
  """The metrics that may be shown."""
  return {
      name: value
      for name, value in metrics.items()
      if training.shows_exact or not name.startswith(EXACT)
  }


def figures(
    training: TrainingRun, metrics: Mapping[str, float], *, private: bool
) -> dict[str, str]:
  """Returns what the progress display shows of a round's metrics.

  Args:
    training: The run.
    metrics: Those that may be shown.
    private: False if their epsilon is to be called NOT PRIVATE.
  """
  found = {name.removeprefix(EXACT): value for name, value in metrics.items()}
  if found.get('seconds') and 'audio_sec' in found:
    found['audio'] = found['audio_sec'] / found['seconds']
  if found.get('padded_sec'):
    found['padding'] = 1 - found['audio_sec'] / found['padded_sec']
  if 'store_bytes' in found:
    found['store'] = found['store_bytes'] / 1e9
  shown = {
      label: 'none' if math.isnan(found[name]) else form(found[name])
      for name, (label, form) in _FIGURES.items()
      if name in found
  }
  target = training.privacy.target_epsilon
  if target is not None and 'epsilon' in shown:
    shown['epsilon'] += f' of {target:g}'
  if not private and 'epsilon' in shown:
    shown['epsilon'] += ' (NOT PRIVATE)'
  return shown


async def _resume_or_begin(
    training: TrainingRun,
    folder: run_dir.RunDir,
    state: run_state.RunState,
    stack: contextlib.AsyncExitStack,
) -> tuple[run_state.RunState, int, Optional[ledger_lib.Ledger]]:
  """The state to continue from, its number, and the ledger if there is one.

  A new run's state is saved. The ledger stays open until the stack ends.
  """
  saved, number, problem = await run_state.load(folder, state)
  if saved is not None:
    _check_frozen(saved.process, state.process)
    if training.sampling is not None:
      private_rounds.check_devices_noise(saved.process, state.process)
    logging.info('Resuming after %s %d.', training.UNIT, number)
    if not saved.ledger.digest:
      return saved, number, None
    path = folder.file(run_dir.LEDGER)
    ledger = stack.enter_context(ledger_lib.resume(path, head=saved.ledger))
    _check_invalidations(training, ledger)
    if training.sampling is None:
      return saved, number, ledger
    if folder.length_changed:
      logging.warning(
          'This run is to end elsewhere than when it began: the statement will '
          'say so.'
      )
      ledger.note_once('length_changed')
    is_copy = int(saved.noise.file_identity) != ledger.file_identity
    if is_copy:
      logging.warning(
          'This run folder is a copy or was restored: it gets new keys, since '
          'the run that it was copied from may go on with the old.'
      )
      # Before the new keys are on disk: a kill between leaves the note twice.
      ledger.note('copied')
    elif problem and number < training.total:
      logging.warning(
          '%s %s: state %d goes on under new keys, and rounds after it that the'
          ' ledger has are charged anew.',
          folder.file(run_dir.SECRETS), problem, number,
      )
    if is_copy or problem:
      saved = run_state.renewed(
          folder,
          saved,
          number,
          initial=state,
          sampling=training.sampling,
          file_identity=ledger.file_identity,
      )
    return saved, number, ledger
  parent = parent_ledger(training)
  ledger = None
  if training.sampling is not None or parent is not None:
    ledger = stack.enter_context(private_rounds.create_ledger(
        folder,
        parent,
        invalidations=[
            *training.privacy.invalidations, *training.public.invalidations
        ],
        privacy_unit=(
            None if training.sampling is None else training.PRIVACY_UNIT
        ),
    ))
    noise = state.noise._replace(
        file_identity=np.int64(ledger.file_identity)
    )
    state = state._replace(ledger=ledger.head, noise=noise)
  await run_state.save(folder, state, 0)
  return state, 0, ledger


def _check_invalidations(
    training: TrainingRun, ledger: ledger_lib.Ledger
) -> None:
  """Raises ValueError if data are shared that the run did not begin with."""
  new = set(training.public.invalidations) - set(ledger.contents.invalidations)
  if new:
    raise ValueError(
        f'{"; ".join(sorted(new))}, which the ledger of {training.output_dir} '
        'does not say: put the data back that the run began with, or take '
        'another output_dir.'
    )


def _check_frozen(saved: process_lib.State, built: process_lib.State) -> None:
  """Raises ValueError if a saved state is of a process that freezes others."""
  before, now = map(process_lib.frozen_layers, (saved, built))
  if before != now:
    raise ValueError(
        f'the saved run has {len(before)} frozen layers, these settings '
        f'{len(now)} or others: put the scores that it began with back, or '
        'take another output_dir.'
    )


def _private_rounds(
    training: TrainingRun,
    ledger: Optional[ledger_lib.Ledger],
    state: run_state.RunState,
) -> Optional[private_rounds.PrivateRoundRunner]:
  """The runner that charges rounds; None if they are not private."""
  if training.sampling is None:
    return None
  return private_rounds.PrivateRoundRunner(
      ledger=ledger,
      noise=state.noise,
      sampling=training.sampling,
      configuration=run_dir.digest(training.configuration),
      settings=training.privacy,
  )


async def _next_round(
    training: TrainingRun,
    rounds: Optional[private_rounds.PrivateRoundRunner],
    state: run_state.RunState,
    *,
    number: int,
) -> private_rounds.Done:
  """Draws, trains, and charges what is private."""
  if rounds is not None:
    try:
      return await rounds.run(
          training.next,
          state.process,
          draw=training.draw,
          cohort_state=state.source,
      )
    except client_round.ClientTimeoutError:
      if training.shows_exact:
        raise
      # The message has the client's place in the cohort, and its size.
      raise client_round.ClientTimeoutError(
          f'A client of round {number} hangs, or CLIENT_TIMEOUT_SEC is too low.'
      ) from None
    except client_round.ClientError as error:
      shortage = client_round.shortage(error.__cause__)
      if training.shows_exact or shortage is not None:
        raise
      raise faults.too_many(number) from None
  drawn, after = training.draw(state.source)
  output = await training.next(state.process, drawn)
  return private_rounds.Done(output, drawn, after)


def _finish(
    training: TrainingRun,
    folder: run_dir.RunDir,
    state: run_state.RunState,
    number: int,
    ledger: Optional[ledger_lib.Ledger],
) -> dict[str, Any]:
  """Writes the model, the statement and the results; returns the results."""
  weights, own_results = training.finish(state)
  folder.write_model(
      weights,
      tokens=training.tokens,
      ledger=None if ledger is None else ledger.head,
  )
  if number >= training.total:
    ended_by = f'NUM_{training.UNIT.upper()}S'
  else:
    ended_by = 'PATIENCE' if training.sampling is None else 'TARGET_EPSILON'
  metrics = folder.read_metrics()
  results = {
      f'{training.UNIT}s': number,
      'ended_by': ended_by,
      **own_results,
      **{name: metrics[name] for name in metrics if name.startswith('dev_')},
  }
  if training.shows_exact:
    seconds = metrics.get(_seconds(training), {}).values()
    results['seconds'] = round(sum(seconds), 3)
  if ledger is not None and ledger.contents.rounds:
    query_state, delta = None, None
    if training.sampling is not None:
      query_state = private_rounds.query_state(state.process)
      delta = training.privacy.delta_of(
          training.sampling, ledger.contents.rounds
      )
    stated = run_privacy.write_statement(
        folder,
        ledger,
        query_state,
        delta=delta,
        inputs=[
            name
            for name, used in (
                ('the seed model', training.init_from_run),
                ('the layer scores', training.scores_run),
                ('the dev set', training.evaluator),
            )
            if used is not None
        ],
        public=training.public.words,
        tokens=training.tokens and training.pipeline.tokenizer.source,
    )
    results['privacy'] = stated.fields
    print(stated)
  files.write_json(folder.file(run_dir.RESULTS), results)
  return results
