"""Describes what a run would do, without training or writing anything.

Everything that a run checks before its first round is checked. The learning
process is initialized, which determines its noise and its state's size.
"""

import dataclasses
import math
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.data import client_data as client_data_lib
from tff_asr.learning import layer_freeze
from tff_asr.learning import process as process_lib
from tff_asr.models import subspace
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import planning
from tff_asr.privacy import privacy_report
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import private_rounds
from tff_asr.programs import training_loop
from tff_asr.programs import update_signal


async def describe(
    training: training_loop.TrainingRun, *, verbose: bool = False
) -> str:
  """Returns what a run would take, in lines of text.

  Args:
    training: The run.
    verbose: Whether the text of its configuration comes first.

  Raises:
    ValueError: As `training_loop.run`, before its first round.
  """
  prepared = await training_loop.prepare(training)
  state, inherited, public, evaluations, _ = prepared
  # With the loop's state: patience keeps a second model.
  saved = state, training.init_loop_state(state.global_model_weights)
  state_bytes = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(saved))
  specs, sampling = training.model.specs, training.sampling
  plain_specs = subspace.plain_model(training.model).specs
  claims_epsilon = _claims_epsilon(training, prepared)
  signal = _dev_signal(training, state)
  rows = _expectation(training, state, signal) if claims_epsilon else {}
  rows |= {
      'data': _data(
          training.client_data,
          shows_exact=training.privacy.exact_metrics or not claims_epsilon,
      ),
      'parameters': f'{weights_lib.num_parameters(plain_specs):,}',
      'saved states': _saved_states(training.settings, state_bytes),
      f'{training.step_name}s': f'{training.total_rounds:,} at most',
      'epsilon': 'infinite: nothing is charged, this training is not private.',
  }
  if signal is not None:
    number = signal.measured[-1].num_utterances
    clients = training.total_rounds * training.sampling.cohort_size
    rows['time'] = (
        f'about {clients / signal.clients_per_sec(number) / 60:,.0f} min here '
        f'if a person has {number} utterances, as in dev, and evaluations'
    )
  if frozen := process_lib.frozen_layers(state):
    trained = weights_lib.num_parameters(weights_lib.without(frozen, specs))
    described = layer_freeze.describe(frozen, specs, plain_specs=plain_specs)
    rows['trained'] = (
        f'{trained:,} of them; {described}' if specs is plain_specs
        else described
    )
  if inherited is not None:
    rows['drawn'] = (
        f'{sampling.cohort_size:,} of {sampling.population:,} '
        f'{training.privacy_unit}s ({sampling.kind})'
    )
    if warning := client_data_lib.unit_warning(training.client_data):
      rows['unit'] = f'{warning}.'
    rows['public'] = f'{public.words}.'
    rows['epsilon'] = _epsilon(training, prepared)
    if evaluations is not None:
      rows['evaluations'] = _evaluations(training, prepared)
  return '\n'.join([
      *([training.configuration.rstrip(), ''] if verbose else []),
      'Checked; nothing was trained or written.',
      *(f'{name + ":":14}{text}' for name, text in rows.items()),
  ])


def _claims_epsilon(
    training: training_loop.TrainingRun, prepared: training_loop.Prepared
) -> bool:
  """Whether the run is charged, with noise, and nothing invalidates that."""
  return (
      prepared.inherited is not None
      and not prepared.invalidations
      and private_rounds.has_secret_noise(
          prepared.process_state, training.privacy
      )
  )


def _expectation(
    training: training_loop.TrainingRun,
    state: process_lib.State,
    signal: Optional[update_signal.Signal],
) -> dict[str, str]:
  """Noise and, if public people are there to measure, signal, over the clip."""
  group = private_rounds.cost(state, training.sampling)
  frozen = process_lib.frozen_layers(state)
  run = planning.PlannedRun(
      cohort_size=group.sampling.cohort_size,
      num_rounds=training.total_rounds,
      noise_multiplier=float(
          private_rounds.query_state(state).noise_multiplier
      ),
      num_parameters=weights_lib.num_parameters(
          weights_lib.without(frozen, training.model.specs)
      ),
      signal=1.0,
  )
  words = f'{run.noise:.3g} on the mean of each {training.step_name}'
  if group.strategy is not None:
    return {'noise / C': f'{words}, of which later ones take back a part'}
  rows = {'noise / C': f'{words}, all its elements together'}
  if signal is None or training.init_from_run is None:
    return rows
  of_dev = signal.measured[-1]
  run = dataclasses.replace(
      run,
      # A subspace gains less than its noise falls: docs/planning.md.
      num_parameters=weights_lib.num_parameters(training.client_update.trained),
      signal=signal.law.signal(of_dev.num_utterances),
  )
  expectation = planning.expectation(
      run.signal_to_noise, signal_error=signal.law.relative_error
  )
  rows['signal / C'] = (
      f'{run.signal:.3g} for {of_dev.num_utterances} utterances a person, by '
      f'{of_dev.num_people} dev speakers; it grows with the root of that number'
  )
  rows['forecast'] = (
      f'{run.num_rounds:,} {training.step_name}s have a signal to noise of '
      f'{run.signal_to_noise:.2g}: {expectation}. See bin/plan.py.'
  )
  return rows


def _dev_signal(
    training: training_loop.TrainingRun, state: process_lib.State
) -> Optional[update_signal.Signal]:
  """Measures dev people: private ones must not be looked at."""
  update = getattr(training, 'client_update', None)
  people = training.evaluator and training.evaluator.client_data
  if (
      update is None
      or not update.has_clip
      or not isinstance(people, client_data_lib.SpeechClientData)
      or len(people.client_ids) < 2
  ):
    return None
  # Two people show the time; an untrained model has no signal to forecast from.
  most = 2 if training.init_from_run is None else None
  return update_signal.measure(
      update,
      weights=subspace.plain_weights(
          training.model, state.global_model_weights
      ),
      client_data=people.select(people.client_ids[:most]),
  )


def _data(
    client_data: tff.simulation.datasets.ClientData, *, shows_exact: bool
) -> str:
  """Speakers, and how much they said where a corpus states it.

  Where an epsilon is claimed, the number of people alone is public.
  """
  text = f'{len(client_data.client_ids):,} speakers'
  corpus = client_data_lib.corpus_of(client_data)
  if corpus is None:
    return text
  if not shows_exact:
    return f'{text} ({corpus.path})'
  hours = corpus.num_samples / corpus.sample_rate_hz / 3600
  return (
      f'{text}, {corpus.num_utterances:,} utterances, {hours:,.1f} h '
      f'({corpus.path})'
  )


def _saved_states(
    settings: training_loop.RunSettings, state_bytes: int
) -> str:
  """Size and number of the states on disk."""
  text = f'{_size(state_bytes)} each, {settings.keep_last} kept'
  if settings.keep_every:
    text += f' and each {settings.keep_every}th'
  return text


def _epsilon(
    training: training_loop.TrainingRun, prepared: training_loop.Prepared
) -> str:
  """Epsilon at the end, and the round at which a target ends the run."""
  if prepared.invalidations:
    return f'infinite, NOT PRIVATE: {"; ".join(prepared.invalidations)}.'
  outlook, end = training_loop.outlook(training, prepared)
  report = outlook.after
  text = f'{report.epsilon_words} at the end'
  if outlook.before is not None:
    before = privacy_report.format_epsilon(outlook.before.epsilon)
    text = f'{before} -> {text}'
  if end < training.total_rounds:
    text += (
        f'; TARGET_EPSILON = {training.privacy.target_epsilon:g} ends the run '
        f'after {end:,}'
        + _enough_noise(training, prepared, delta=report.delta)
    )
  return text if report.private else f'{text}; {report.verdict}'


def _enough_noise(
    training: training_loop.TrainingRun,
    prepared: training_loop.Prepared,
    *,
    delta: float,
) -> str:
  """The noise at which all rounds are within the target; '' if unknown."""
  own = private_rounds.cost(prepared.process_state, training.sampling)
  if own.strategy is not None or own.secure_sum is not None:
    return ''
  last = training.total_rounds
  try:
    found = calibration.noise_multiplier_for_epsilon(
        training.privacy.target_epsilon,
        sampling=training.sampling,
        rounds=last,
        delta=delta,
        others=[
            *prepared.inherited.charges.rounds,
            *evaluation_rounds.charges(prepared.evaluations, num_rounds=last),
        ],
    )
  except ValueError:  # The others alone exceed it.
    return ''
  # Rounded up: less noise would not suffice.
  enough = privacy_report.format_epsilon(found)
  return f' (for all of them, NOISE_MULTIPLIER = {enough})'


def _evaluations(
    training: training_loop.TrainingRun, prepared: training_loop.Prepared
) -> str:
  """Number, error and cost of the evaluations of private people."""
  planned = prepared.evaluations
  (all_of_them,) = evaluation_rounds.charges(
      planned, num_rounds=training.total_rounds
  )
  delta = training.privacy.delta_of(
      training.sampling, prepared.inherited.charges.rounds
  )
  epsilon = accounting.leading_epsilon([all_of_them], delta=delta)
  return (
      f'{all_of_them.count:,} at most, of as many people each; the noise '
      f'moves the WER by up to {100 * planned.half_width:.1f} points (95 %); '
      f'epsilon {privacy_report.format_epsilon(epsilon)} for them alone'
  )


def _size(num_bytes: float) -> str:
  """Bytes for people."""
  # Megabytes at least, gigabytes at most.
  exponent = min(max(int(math.log(max(num_bytes, 1), 1000)), 2), 3)
  return f'{num_bytes / 1000**exponent:,.1f} {("MB", "GB")[exponent - 2]}'
