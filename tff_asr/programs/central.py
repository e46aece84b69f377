"""Central training as a program: seed models and baselines."""

import asyncio
from collections.abc import Sequence
import math
import time
from typing import Any, NamedTuple, Optional

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.features import log_mel
from tff_asr.learning import central_step
from tff_asr.learning import process as process_lib
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.programs import evaluation
from tff_asr.programs import memory
from tff_asr.programs import preflight
from tff_asr.programs import private_rounds
from tff_asr.programs import progress as progress_lib
from tff_asr.programs import warm_start
from tff_asr.storage import run_dir
from tff_asr.storage import checkpoints

# Speakers read from at once, so that a batch mixes them.
_INTERLEAVED_CLIENTS = 64


class ProgramState(NamedTuple):
  """All that a run needs to go on.

  Attributes:
    process: Of `central_step`: the model as of the last step, the optimizer.
    best_weights: The model with the lowest dev WER so far.
    best_wer: That WER; infinite before the first evaluation.
    evaluations_since_best: Evaluations since then.
    loss_sum: Of the utterances since the last evaluation.
    num_utterances: Trained on since then.
  """

  process: Any
  best_weights: Any
  best_wer: float
  evaluations_since_best: int
  loss_sum: float
  num_utterances: float


async def train(
    *,
    output_dir: str,
    configuration: str,
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
    client_data: tff.simulation.datasets.ClientData,
    optimizer: tff.learning.optimizers.Optimizer,
    num_steps: int,
    seed: int,
    evaluator: Optional[evaluation.Evaluator] = None,
    evaluate_every: int = 100,
    patience: Optional[int] = None,
    init_from_run: Optional[str] = None,
    max_grad_norm: float = 1.0,
    keep_last: int = 3,
    keep_every: int = 0,
    devices: Optional[Sequence[str]] = None,
    encoder_rate: float = 1.0,
    encoder_frozen_steps: int = 0,
) -> dict[str, Any]:
  """Trains on all speakers' utterances together.

  Args:
    output_dir: The run's folder; see `run_dir`.
    configuration: Text of the configuration, kept with the run.
    model: The model.
    pipeline: Examples to batches.
    client_data: The speakers.
    optimizer: Any TFF optimizer.
    num_steps: Steps at most.
    seed: Of initial weights, order, SpecAugment and dropout.
    evaluator: Decodes a dev set, or None.
    evaluate_every: Steps between evaluations, after which the state is saved.
    patience: Stop when this many evaluations in a row did not lower the WER,
      and keep the weights of the lowest. None: train all steps and keep the
      last weights.
    init_from_run: Folder of a run whose model training starts from; of a pre-trained
      one its encoder alone. See `warm_start`.
    max_grad_norm: Gradients are clipped to this global norm.
    keep_last: See `run_dir.RunDir`.
    keep_every: See there; in steps.
    devices: Each batch is divided among these; None: TensorFlow's default one.
    encoder_rate: Of the encoder's steps, beside those of the head.
    encoder_frozen_steps: The encoder is trained after so many steps; its
      optimizer and schedule begin then (`optimizers.grouped`).

  Returns:
    The results, as written to results.json.

  Raises:
    ValueError: As `check`, before anything is written; a file is damaged; or
      the loss is not finite any more.
    OSError: There is too little memory, or room on the disk.
  """
  check(**locals())
  if evaluator is not None:
    evaluation.warn_of_heard_speakers(evaluator, client_data.client_ids)
  tokens = pipeline.tokenizer.characters
  process = central_step.CentralStep(
      model=model,
      optimizer=optimizer,
      seed=seed,
      max_grad_norm=max_grad_norm,
      devices=devices,
      encoder_rate=encoder_rate,
      encoder_frozen_steps=encoder_frozen_steps,
  )
  process_state = process.initialize()
  if init_from_run is not None:
    found = warm_start.read(init_from_run, model=model, tokens=tokens)
    print(f'seed: {found.summary}')
    process_state = process_state._replace(
        global_model_weights=weights_lib.to_tensors(
            weights_lib.updated(
                process_state.global_model_weights, found.weights
            )
        )
    )
  with memory.explained(), run_dir.RunDir(
      output_dir,
      configuration=configuration,
      keep_last=keep_last,
      keep_every=keep_every,
  ) as run:
    ledger = _take_over_ledger(run, init_from_run)
    state = ProgramState(
        process_state, process_state.global_model_weights, np.inf, 0, 0.0, 0.0
    )
    # Or it would take its memory to the end.
    del process_state
    saved, step = await run.state_manager.load_latest(state)
    if saved is None:
      step = 0
    else:
      state = saved
      saved = None
      logging.info('Resuming after step %d.', step)
    batches = iter(_batches(client_data, pipeline, seed).skip(step))
    managers = run.release_managers(last=step)
    begun = started = time.monotonic()
    audio_sec = 0.0

    async with checkpoints.Saver(run.state_manager, saved=step) as saver:
      with progress_lib.Progress(
          description='central', total=num_steps, initial=step, unit='step'
      ) as progress:
        while step < num_steps and not _is_over(state, patience):
          batch = next(batches, None)
          if batch is None:
            raise ValueError('the training speakers have no utterances.')
          state = _after_step(state, process.next(state.process, batch))
          step += 1
          audio_sec += _audio_sec(batch)
          loss = state.loss_sum / max(state.num_utterances, 1)
          speed = audio_sec / (time.monotonic() - begun)
          figures = {'loss': f'{loss:.2f}', 'audio': f'{speed:.0f} s/s'}
          if step == num_steps or step % evaluate_every == 0:
            metrics = {
                'train_loss': loss,
                'num_utterances': float(state.num_utterances),
            }
            if not math.isfinite(loss):
              saver.withdraw()
            _check_loss(loss, step=step)
            state = state._replace(loss_sum=0.0, num_utterances=0.0)
            if evaluator is not None:
              evaluated = evaluator(state.process.global_model_weights)
              rate = evaluated.word_error_rate
              metrics['dev_word_error_rate'] = rate
              metrics['dev_loss'] = evaluated.loss
              figures['dev WER'] = f'{100 * rate:.1f}%'
              state = _with_evaluation(state, rate)
            metrics['seconds'] = time.monotonic() - started
            started = time.monotonic()
            for manager in managers:
              await manager.release(metrics, key=step)
            await saver.save(state, step)
          if math.isfinite(loss):
            saver.offer(state, step)
          progress.update(**figures)
          # Where an interrupt ends the run.
          await asyncio.sleep(0)

    final = state.best_weights
    if patience is None:
      final = state.process.global_model_weights
    run.write_model(
        final, tokens=tokens, ledger=None if ledger is None else ledger.head
    )
    results = {
        'steps': step,
        'seconds': round(sum(run.read_metric('seconds').values()), 1),
        'dev_word_error_rate': run.read_metric('dev_word_error_rate'),
    }
    if ledger is not None and ledger.contents.rounds:
      statement = private_rounds.write_statement(run, ledger)
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
  preflight.run(
      (
          _check_counts,
          _check_devices,
          _check_encoder,
          _check_max_grad_norm,
          _check_patience,
          evaluation.check_characters,
          *preflight.TRAINING_CHECKS,
      ),
      settings,
  )


def _check_counts(num_steps: int, evaluate_every: int) -> None:
  checks.positive_int(**locals())


def _check_devices(devices: Optional[Sequence[str]]) -> None:
  if devices is not None:
    central_step.find_devices(devices)


def _check_encoder(encoder_rate: float, encoder_frozen_steps: int) -> None:
  checks.positive(encoder_rate=encoder_rate)
  checks.finite(encoder_rate=encoder_rate)
  checks.non_negative_int(encoder_frozen_steps=encoder_frozen_steps)


def _check_max_grad_norm(max_grad_norm: float) -> None:
  checks.positive(max_grad_norm=max_grad_norm)


def _check_patience(
    patience: Optional[int], evaluator: Optional[evaluation.Evaluator]
) -> None:
  if patience is not None:
    checks.positive_int(patience=patience)
    if evaluator is None:
      raise ValueError('patience needs an evaluator of a dev set, found none.')


def _check_loss(loss: float, *, step: int) -> None:
  """Raises ValueError for a loss that no further step can mend."""
  if not math.isfinite(loss):
    raise ValueError(
        f'the training loss is {loss} by step {step}: training diverged. What '
        'was saved before is kept; lower the learning rate or max_grad_norm, '
        'with another output_dir.'
    )


def _take_over_ledger(
    run: run_dir.RunDir, init_from_run: Optional[str]
) -> Optional[ledger_lib.Ledger]:
  """What the seed model cost in privacy, this model costs too; closed."""
  parent = None if init_from_run is None else run_dir.ledger_of_model(init_from_run)
  if parent is None:
    return None
  with ledger_lib.create(run.file(run_dir.LEDGER), parent=parent) as ledger:
    return ledger


def _is_over(state: ProgramState, patience: Optional[int]) -> bool:
  """Whether the WER has not fallen for long enough."""
  return patience is not None and state.evaluations_since_best >= patience


def _after_step(
    state: ProgramState, output: process_lib.Output
) -> ProgramState:
  """The state after a step."""
  metrics = output.metrics
  return state._replace(
      process=output.state,
      loss_sum=state.loss_sum + float(metrics['loss_sum']),
      num_utterances=state.num_utterances + float(metrics['num_utterances']),
  )


def _with_evaluation(state: ProgramState, rate: float) -> ProgramState:
  """The state after an evaluation that gave this word error rate."""
  if rate < state.best_wer:
    return state._replace(
        best_weights=state.process.global_model_weights,
        best_wer=rate,
        evaluations_since_best=0,
    )
  return state._replace(
      evaluations_since_best=state.evaluations_since_best + 1
  )


def _audio_sec(batch: pipeline_lib.Batch) -> float:
  """Seconds of the utterances that a batch trains on."""
  frames = np.dot(batch['example_weights'].numpy(), batch['feature_lengths'].numpy())
  return float(frames) * log_mel.FRAME_SHIFT_SEC


def _batches(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
    seed: int,
) -> tf.data.Dataset:
  """Batches of all speakers together, without end."""
  ids = sorted(client_data.client_ids)
  examples = tf.data.Dataset.from_tensor_slices(ids).interleave(
      client_data.serializable_dataset_fn,
      cycle_length=min(len(ids), _INTERLEAVED_CLIENTS),
      deterministic=True,
  )
  return pipeline.training_batches(
      examples, seed=tf.constant([seed & 0x7FFFFFFF, 1])
  )
