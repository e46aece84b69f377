"""Self-supervised pre-training as a program: BEST-RQ, with or without DP.

Without a query: a warm start on public data, which also scores the layers
(`layer_scores`). With one: DP-SGD with the example as the unit of privacy, each
step charged to the ledger before its model can be seen, and perhaps some layers
frozen by the scores of the warm start it begins from. Batches are drawn by
Poisson sampling in both; a run that ends early resumes from its last saved step
and repeats the rest with the same bits.
"""

import asyncio
import contextlib
import math
import time
from typing import Any, NamedTuple, Optional

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import client_data as client_data_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.learning import process as process_lib
from tff_asr.learning import layer_freeze
from tff_asr.models import best_rq
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.programs import layer_scores
from tff_asr.programs import masked_evaluation
from tff_asr.programs import memory
from tff_asr.programs import preflight
from tff_asr.programs import pretrain_checks
from tff_asr.programs import pretrain_setup
from tff_asr.programs import private_rounds
from tff_asr.programs import progress as progress_lib
from tff_asr.storage import run_dir
from tff_asr.storage import checkpoints


class ProgramState(NamedTuple):
  """All that a run needs to go on.

  Attributes:
    process: The steps' state; holds the noise counter.
    examples: State of the draws; holds their key.
    ledger: Head of the privacy ledger.
    noise: The noise key, and the place that it is for.
    layer_squares: Squared gradient norms by layer so far, float64; public runs.
  """

  process: Any
  examples: Any
  ledger: ledger_lib.Head
  noise: private_rounds.NoiseState
  layer_squares: Any


async def train(
    *,
    output_dir: str,
    configuration: str,
    model: best_rq.BestRqModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: client_data_lib.SpeechClientData,
    optimizer: tff.learning.optimizers.Optimizer,
    batch_size: int,
    num_steps: int,
    seed: int,
    build_query: Optional[queries.BuildQuery] = None,
    num_vectorized: int = 1,
    devices: Optional[list[str]] = None,
    freeze: Optional[layer_freeze.LayerFreeze] = None,
    evaluator: Optional[masked_evaluation.MaskedEvaluator] = None,
    evaluate_every: int = 100,
    save_every: int = 100,
    keep_last: int = 3,
    keep_every: int = 0,
    init_from_run: Optional[str] = None,
    delta: Optional[float] = None,
    target_epsilon: Optional[float] = None,
    noise_seed: Optional[int] = None,
    sampler_seed: Optional[int] = None,
) -> dict[str, Any]:
  """Pre-trains for `num_steps` steps, or on to that number if resumed.

  Args:
    output_dir: The run's folder; see `run_dir`.
    configuration: Text of the configuration, kept with the run.
    model: The model.
    pipeline: Gives features; a physical batch has at most its max_batch_sec.
    client_data: The speakers; public without a query, else private.
    optimizer: Any TFF optimizer.
    batch_size: Utterances expected in a step's batch, and its divisor.
    num_steps: Steps of the whole run.
    seed: Of initial weights, masks and dropout; without a query of the batches.
    build_query: From the specs of the trained weights to the query that clips
      and noises gradients by example; None: the data are public.
    num_vectorized: Examples whose gradients are computed at once; see
      `example_gradients`.
    devices: Logical devices that share a batch; None: all GPUs, else the CPU.
    freeze: Which layers to leave as they are, by the scores of init_from_run.
    evaluator: Predicts a public dev set, or None.
    evaluate_every: Steps between evaluations; the last step always is.
    save_every: Steps between saved states; the last step always is.
    keep_last: See `run_dir.RunDir`.
    keep_every: See there; in steps.
    init_from_run: Folder of a run whose model training starts from.
    delta: Of the privacy statement; by default 1 / (10 * utterances).
    target_epsilon: The run ends before the step after which the ledger's
      epsilon (RDP) would exceed this; None: no such end.
    noise_seed: Fixes the noise key, for tests: NOT PRIVATE.
    sampler_seed: Fixes the draws' key, for tests: NOT PRIVATE.

  Returns:
    The results, as written to results.json.

  Raises:
    ValueError: As `check`, before anything is written; a file is damaged; or
      the model diverged.
  """
  settings = locals()
  check(**settings)
  is_private = build_query is not None
  setup = pretrain_setup.build(**settings)
  examples = setup.examples
  async with contextlib.AsyncExitStack() as stack:
    stack.enter_context(memory.explained())
    run = stack.enter_context(run_dir.RunDir(
        output_dir,
        configuration=configuration,
        keep_last=keep_last,
        keep_every=keep_every,
    ))
    noise_key = keys.draw_or_fix(noise_seed)
    state = ProgramState(
        setup.state,
        examples.initial_state(),
        ledger_lib.Head(0, ''),
        private_rounds.NoiseState(noise_key, np.int64(0)),
        {} if is_private else {name: np.float64(0) for name in model.specs},
    )
    # Or the first state would take its memory to the end.
    setup = setup._replace(state=None)
    saved, step = await run.state_manager.load_latest(state)
    ledger = None
    if saved is None:
      step = 0
      if is_private or setup.parent is not None:
        ledger = private_rounds.create_ledger(
            run,
            setup.parent,
            fixed_seeds=private_rounds.fixed_seeds(
                noise_seed=noise_seed, sampler_seed=sampler_seed
            ),
            unit=pretrain_setup.UNIT if is_private else None,
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
      if state.ledger.digest:
        ledger = ledger_lib.resume(run.file(run_dir.LEDGER), head=state.ledger)
      logging.info('Resuming after step %d.', step)
    if ledger is not None:
      stack.enter_context(ledger)
    managers = run.release_managers(last=step)
    progress = stack.enter_context(progress_lib.Progress(
        description='pre-training', total=num_steps, initial=step, unit='step'
    ))
    saver = await stack.enter_async_context(
        checkpoints.Saver(run.state_manager, saved=step)
    )
    rounds = None
    if is_private:
      rounds = private_rounds.PrivateRoundRunner(
          ledger=ledger,
          noise=state.noise,
          sampling=examples.sampling,
          configuration=run_dir.digest(configuration),
          delta=setup.delta,
          target_epsilon=target_epsilon,
          fixed_noise=noise_seed is not None,
      )
      state = state._replace(examples=rounds.sampled_from(state.examples))

    def is_over() -> bool:
      return step >= num_steps or (
          rounds is not None
          and not rounds.are_left(state.process, state.examples)
      )

    def next_fn(process_state: Any, numbers: list[int]) -> process_lib.Output:
      return setup.step.next(process_state, examples.batches(numbers))

    is_last = is_over()
    while not is_last:
      started = time.monotonic()
      if rounds is None:
        numbers, drawn = examples.draw(state.examples)
        output = next_fn(state.process, numbers)
      else:
        done = await rounds.run(
            next_fn,
            state.process,
            draw=examples.draw,
            cohort_state=state.examples,
        )
        output, numbers, drawn = done.output, done.cohort, done.after
      step += 1
      state = _after(state, output, drawn, ledger=ledger, rounds=rounds)
      metrics = _metrics(output.metrics, num_drawn=len(numbers))
      _check_step(
          metrics,
          state.process.global_model_weights,
          step=step,
          is_private=is_private,
      )
      if rounds is not None:
        metrics['epsilon'] = rounds.epsilon()
      is_last = is_over()
      if evaluator is not None and (is_last or step % evaluate_every == 0):
        found = evaluator(state.process.global_model_weights)
        metrics |= {
            f'dev_{name}': value for name, value in found._asdict().items()
        }
      # How long a step takes tells how many were drawn.
      metrics['not_private/seconds'] = time.monotonic() - started
      for manager in managers:
        await manager.release(metrics, key=step)
      saver.offer(state, step)
      if step % save_every == 0:
        await saver.save(state, step)
      progress.update(**_figures(metrics, target_epsilon=target_epsilon))
      # Where an interrupt ends the run.
      await asyncio.sleep(0)

    await saver.save(state, step)
    await saver.wait()
    run.write_model(
        state.process.global_model_weights,
        tokens='',
        ledger=None if ledger is None else ledger.head,
    )
    results = {
        'steps': step,
        'ended_by': 'NUM_STEPS' if step >= num_steps else 'TARGET_EPSILON',
        'seconds': round(
            sum(run.read_metric('not_private/seconds').values()), 1
        ),
        'batch_size': batch_size,
        'population': examples.sampling.population,
        'frozen': setup.frozen,
        'trained_parameters': weights_lib.count(
            {
                name: spec
                for name, spec in model.specs.items()
                if name not in setup.frozen
            }
        ),
        **{
            f'dev_{name}': run.read_metric(f'dev_{name}')
            for name in masked_evaluation.MaskedEvaluation._fields
        },
    }
    if rounds is None:
      layer_scores.write(
          run.path,
          {name: float(v) for name, v in state.layer_squares.items()},
          specs=model.specs,
      )
    if ledger is not None and ledger.contents.rounds:
      query_state = None
      if is_private:
        query_state = state.process.aggregator.query_state.numerator_state
      statement = private_rounds.write_statement(
          run, ledger, query_state, delta=setup.delta if is_private else None
      )
      results['privacy'] = statement.fields
      print(statement)
    run.write_json(run_dir.RESULTS, results)
    return results


def check(**settings: Any) -> None:
  """Raises ValueError for what is wrong with `train`'s arguments, together.

  Args:
    **settings: Arguments of `train`; what needs one that is not given is not
      checked.
  """
  preflight.run(pretrain_checks.CHECKS, settings)


def _after(
    state: ProgramState,
    output: process_lib.Output,
    drawn: Any,
    *,
    ledger: Optional[ledger_lib.Ledger],
    rounds: Optional[private_rounds.PrivateRoundRunner],
) -> ProgramState:
  """The state after a step."""
  squares = output.metrics.get('layer_squares', {})
  return ProgramState(
      output.state,
      drawn,
      state.ledger if ledger is None else ledger.head,
      state.noise if rounds is None else rounds.noise,
      {
          name: np.float64(before + np.float64(squares[name]))
          for name, before in state.layer_squares.items()
      },
  )


def _metrics(metrics: dict[str, Any], *, num_drawn: int) -> dict[str, float]:
  """Averages that people read; exact, so marked as not private."""
  count = float(metrics['num_examples'])
  mean = lambda name: float(metrics[name]) / count if count else math.nan
  return {
      'not_private/train_loss': mean('loss_sum'),
      'not_private/gradient_norm': mean('gradient_norm_sum'),
      'not_private/num_examples': count,
      'not_private/num_left_out': num_drawn - count,
  }


def _check_step(
    metrics: dict[str, float],
    weights: weights_lib.Weights,
    *,
    step: int,
    is_private: bool,
) -> None:
  """Raises ValueError for what no further step can mend.

  Of a private step the weights alone are looked at: they come from the noised
  sum, which is charged by now. Losses are exact and private.
  """
  loss = metrics['not_private/train_loss']
  norm = float(tf.linalg.global_norm(list(weights.values())))
  if not math.isfinite(norm):
    problem = f'the norm of the weights is {norm}'
  elif (
      not is_private
      and metrics['not_private/num_examples']
      and not math.isfinite(loss)
  ):
    problem = f'the training loss is {loss}'
  else:
    return
  raise ValueError(
      f'{problem} at step {step}: training diverged. What was saved before is '
      'kept; lower the learning rate or the noise, with another output_dir.'
  )


def _figures(
    metrics: dict[str, float], *, target_epsilon: Optional[float]
) -> dict[str, str]:
  """What the progress display shows."""
  exact = lambda name: metrics[f'not_private/{name}']
  loss = progress_lib.mean(exact('train_loss'), count=exact('num_examples'))
  figures = {'loss': loss}
  if 'epsilon' in metrics:
    figures['epsilon'] = progress_lib.spent(
        metrics['epsilon'], target=target_epsilon
    )
  if 'dev_accuracy' in metrics:
    figures['dev accuracy'] = f'{100 * metrics["dev_accuracy"]:.1f}%'
  return figures
