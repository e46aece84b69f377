"""Federated training as a program: rounds, charging, saving, releasing.

A round is charged to the privacy ledger, on disk, before its model can be
evaluated, saved or seen (`private_rounds`). A run that ends early resumes from
its last saved round and repeats the rest with the same cohorts, seeds and
noise. A run that starts from a federated run's model goes on with its ledger.
Clients that fail are left out and counted (`failures`), rounds after which the
model is of no use end the run or are undone (`divergence`).
"""

from collections.abc import Callable
import contextlib
import time
from typing import Any, NamedTuple, Optional

from absl import logging
import numpy as np
import tensorflow_federated as tff

from tff_asr.data import cohorts
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import fed_avg
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import statement as statement_lib
from tff_asr.programs import divergence
from tff_asr.programs import evaluation
from tff_asr.programs import failures
from tff_asr.programs import federated_checks
from tff_asr.programs import memory
from tff_asr.programs import preflight
from tff_asr.programs import private_rounds
from tff_asr.programs import progress as progress_lib
from tff_asr.programs import round_metrics
from tff_asr.programs import warm_start
from tff_asr.storage import checkpoints
from tff_asr.storage import run_dir


class ProgramState(NamedTuple):
  """All that a run needs to go on.

  Attributes:
    process: The learning process's state; holds the noise counter.
    cohorts: The cohort iterator's state; holds the sampler's key.
    ledger: Head of the privacy ledger.
    noise: The noise key, and the place that it is for.
    norms: Of the last good round.
  """

  process: Any
  cohorts: Any
  ledger: ledger_lib.Head
  noise: private_rounds.NoiseState
  norms: divergence.Norms


async def train(
    *,
    output_dir: str,
    configuration: str,
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
    learning_process: tff.learning.templates.LearningProcess,
    build_cohorts: Callable[..., cohorts.CohortSource],
    context: tff.framework.AsyncContext,
    num_rounds: int,
    delta: Optional[float] = None,
    target_epsilon: Optional[float] = None,
    evaluator: Optional[evaluation.Evaluator] = None,
    evaluate_every: int = 10,
    save_every: int = 5,
    keep_last: int = 3,
    keep_every: int = 0,
    max_failed_share: Optional[float] = None,
    on_divergence: str = 'stop',
    max_norm_growth: Optional[float] = None,
    init_from_run: Optional[str] = None,
    noise_seed: Optional[int] = None,
    sampler_seed: Optional[int] = None,
) -> dict[str, Any]:
  """Trains for `num_rounds` rounds, or on to that number if resumed.

  Args:
    output_dir: The run's folder; see `run_dir`.
    configuration: Text of the configuration, kept with the run.
    model: The model, for seeds and evaluation.
    pipeline: Its tokenizer is checked against the private corpus.
    client_data: The private clients; each is a speaker with all their
      utterances.
    learning_process: See `fed_avg.build`; built on `client_data`.
    build_cohorts: One of `cohorts`' builders, called with the clients' ids and
      the sampler's key.
    context: Runs the rounds; see `tff_asr.execution`.
    num_rounds: Rounds of the whole run.
    delta: Of the privacy statement; by default 1 / (10 * population).
    target_epsilon: The run ends before the round after which the ledger's
      epsilon (RDP) would exceed this; None: no such end.
    evaluator: Decodes a public dev set, or None.
    evaluate_every: Rounds between evaluations; the last round always is.
    save_every: Rounds between saved states; the last round always is.
    keep_last: See `run_dir.RunDir`.
    keep_every: See there; in rounds.
    max_failed_share: Share of a round's clients that may fail, their updates
      not being finite included; None: any number of those. How many others may
      is for `context` to say.
    on_divergence: 'stop' ends the run at a round after which the model is of no
      use; 'roll_back' undoes the round, which stays charged.
    max_norm_growth: See `divergence.Guard`.
    init_from_run: Folder of a run whose model training starts from; of a pre-trained
      one its encoder alone. See `warm_start`.
    noise_seed: Fixes the noise key, for tests: NOT PRIVATE.
    sampler_seed: Fixes the sampler's key, for tests: NOT PRIVATE.

  Returns:
    The results, as written to results.json.

  Raises:
    ValueError: As `check`, before anything is written; a file is damaged; too
      many clients failed; or the model diverged.
    OSError: There is too little memory, or room on the disk.
  """
  check(**locals())
  if evaluator is not None:
    evaluation.warn_of_heard_speakers(evaluator, client_data.client_ids)
  noise_key = keys.draw_or_fix(noise_seed)
  source = build_cohorts(
      client_data.client_ids, key=keys.draw_or_fix(sampler_seed)
  )
  if delta is None:
    delta = statement_lib.default_delta(source.sampling.population)
  found = None
  if init_from_run is not None:
    found = warm_start.read(
        init_from_run, model=model, tokens=pipeline.tokenizer.characters
    )
    print(f'seed: {found.summary}')
  tff.framework.set_default_context(
      tff.program.NativeFederatedContext(context)
  )

  process_state = await tff.program.materialize_value(
      learning_process.initialize()
  )
  if found is not None:
    process_state = fed_avg.set_weights(
        process_state,
        weights_lib.updated(process_state.global_model_weights, found.weights),
    )
  frozen = fed_avg.frozen_layers(process_state)
  traffic = fed_avg.traffic(process_state)
  parent = None if init_from_run is None else run_dir.ledger_of_model(init_from_run)
  private_rounds.check_first_round(
      process_state,
      sampling=source.sampling,
      delta=delta,
      target_epsilon=target_epsilon,
      inherited=ledger_lib.inherited_charges(parent, unit='speaker'),
  )
  guard = divergence.Guard(action=on_divergence, max_growth=max_norm_growth)
  async with contextlib.AsyncExitStack() as stack:
    stack.enter_context(memory.explained())
    # Not before the process has shown that it can be built and run.
    run = stack.enter_context(run_dir.RunDir(
        output_dir,
        configuration=configuration,
        keep_last=keep_last,
        keep_every=keep_every,
    ))
    state = ProgramState(
        process_state,
        source.iterator().state,
        ledger_lib.Head(0, ''),
        private_rounds.NoiseState(noise_key, np.int64(0)),
        divergence.Norms(),
    )
    # Or they would take their memory to the end.
    del process_state, found
    saved, round_num = await run.state_manager.load_latest(state)
    if saved is None:
      round_num = 0
      ledger = private_rounds.create_ledger(
          run,
          parent,
          fixed_seeds=private_rounds.fixed_seeds(
              noise_seed=noise_seed, sampler_seed=sampler_seed
          ),
      )
      state = state._replace(
          ledger=ledger.head,
          noise=private_rounds.NoiseState(
              noise_key, np.int64(ledger.file_identity)
          ),
      )
      await run.state_manager.save(state, 0)
    else:
      state, saved = saved, None
      _check_frozen(state.process, frozen)
      ledger = ledger_lib.resume(run.file(run_dir.LEDGER), head=state.ledger)
      logging.info('Resuming after round %d.', round_num)
    stack.enter_context(ledger)
    managers = run.release_managers(
        last=round_num, in_csv=round_metrics.is_of_the_whole
    )
    progress = stack.enter_context(progress_lib.Progress(
        description='federated', total=num_rounds, initial=round_num
    ))
    saver = await stack.enter_async_context(
        checkpoints.Saver(run.state_manager, saved=round_num)
    )
    rounds = private_rounds.PrivateRoundRunner(
        ledger=ledger,
        noise=state.noise,
        sampling=source.sampling,
        configuration=run_dir.digest(configuration),
        delta=delta,
        target_epsilon=target_epsilon,
        fixed_noise=noise_seed is not None,
    )

    state = state._replace(cohorts=rounds.sampled_from(state.cohorts))

    def draw(
        cohort_state: cohorts.CohortState,
    ) -> tuple[list[str], cohorts.CohortState]:
      iterator = source.iterator(cohort_state)
      return iterator.select(), iterator.state

    def is_over() -> bool:
      return round_num >= num_rounds or not rounds.are_left(
          state.process, state.cohorts
      )

    is_last = is_over()
    started = time.monotonic()
    while not is_last:
      done = await rounds.run(
          learning_process.next,
          state.process,
          draw=draw,
          cohort_state=state.cohorts,
      )
      output = done.output
      saver.check()
      metrics = round_metrics.flatten(output.metrics, traffic=traffic)
      metrics['not_private/num_failed'] = failures.count(
          context,
          output.metrics['client_work'],
          cohort_size=len(done.cohort),
          round_num=round_num + 1,
          max_failed_share=max_failed_share,
      )
      if not guard.is_good(
          state.norms, output.metrics['finalizer'], round_num=round_num + 1
      ):
        rounds.roll_back(state.process, done.before)
        state = state._replace(
            ledger=ledger.head,
            noise=rounds.noise,
            norms=divergence.after_roll_back(state.norms),
        )
        # Another cohort: amplification by sampling counts for one sum a draw.
        # The rounds of a pass draw nothing, and tree and pass go together.
        if source.sampling.kind != 'pass':
          state = state._replace(cohorts=done.after)
        logging.warning(
            'Round %d diverged and was undone; it stays charged.', round_num + 1
        )
        is_last = is_over()
        continue
      round_num += 1
      state = ProgramState(
          output.state,
          done.after,
          ledger.head,
          rounds.noise,
          divergence.after_good(state.norms, output.metrics['finalizer']),
      )
      metrics['num_roll_backs'] = state.norms.all_roll_backs
      metrics['epsilon'] = rounds.epsilon()
      is_last = is_over()
      if evaluator is not None and (
          is_last or round_num % evaluate_every == 0
      ):
        evaluated = evaluator(state.process.global_model_weights)
        metrics['dev_word_error_rate'] = evaluated.word_error_rate
        metrics['dev_loss'] = evaluated.loss
      # How long a round takes tells who came.
      metrics['not_private/seconds'] = time.monotonic() - started
      started = time.monotonic()
      for manager in managers:
        await manager.release(metrics, key=round_num)
      saver.offer(state, round_num)
      if round_num % save_every == 0:
        await saver.save(state, round_num)
      progress.update(**_figures(metrics, target_epsilon=target_epsilon))

    await saver.save(state, round_num)
    await saver.wait()
    run.write_model(
        state.process.global_model_weights,
        tokens=pipeline.tokenizer.characters,
        ledger=ledger.head,
    )
    statement = private_rounds.write_statement(
        run,
        ledger,
        state.process.aggregator.query_state.numerator_state,
        delta=delta,
    )
    results = {
        'rounds': round_num,
        'ended_by': (
            'NUM_ROUNDS' if round_num >= num_rounds else 'TARGET_EPSILON'
        ),
        'seconds': round(
            sum(run.read_metric('not_private/seconds').values()), 1
        ),
        'bytes_per_client_and_round': traffic._asdict(),
        'frozen': frozen,
        'cohort_size': source.sampling.cohort_size,
        'population': source.sampling.population,
        'dev_word_error_rate': run.read_metric('dev_word_error_rate'),
        'privacy': statement.fields,
    }
    run.write_json(run_dir.RESULTS, results)
  print(statement)
  return results


def _check_frozen(saved: Any, frozen: list[str]) -> None:
  """Raises ValueError if a saved run froze other layers."""
  before = fed_avg.frozen_layers(saved)
  if before != frozen:
    raise ValueError(
        f'the saved run has {len(before)} frozen layers, these settings '
        f'{len(frozen)} or others: put the scores that it began with back, or '
        'take another output_dir.'
    )


def check(**settings: Any) -> None:
  """Raises ValueError for what is wrong with `train`'s arguments, together.

  Args:
    **settings: Arguments of `train`; what needs one that is not given is not
      checked.
  """
  preflight.run(federated_checks.ALL, settings)


def _figures(
    metrics: dict[str, float], *, target_epsilon: Optional[float]
) -> dict[str, str]:
  """What the progress display shows."""
  exact = lambda name: metrics[f'not_private/{name}']
  figures = {
      'loss': progress_lib.mean(
          exact('train_loss'), count=exact('num_utterances')
      ),
      'epsilon': progress_lib.spent(metrics['epsilon'], target=target_epsilon),
  }
  if 'dev_word_error_rate' in metrics:
    figures['dev WER'] = f'{100 * metrics["dev_word_error_rate"]:.1f}%'
  figures['clients'] = f'{exact("num_clients"):.0f}'
  figures['audio'] = f'{exact("audio_sec") / exact("seconds"):.0f} s/s'
  return figures
