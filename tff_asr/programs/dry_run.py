"""What a program would do, as text: nothing is trained or written.

Everything that a run checks before its first round is checked. The learning
process is initialized, for its noise and the size of its state.
"""

from collections.abc import Callable, Mapping
import inspect
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import statement
from tff_asr.programs import central as central_lib
from tff_asr.programs import federated as federated_lib
from tff_asr.programs import memory
from tff_asr.programs import pretraining as pretrain_lib
from tff_asr.programs import pretrain_setup
from tff_asr.programs import private_rounds
from tff_asr.storage import run_dir


async def federated(**settings: Any) -> str:
  """What `federated.train` would do; takes its arguments.

  Raises:
    ValueError: As `federated.train`, before its first round.
  """
  settings = _with_defaults(federated_lib.train, settings)
  federated_lib.check(**settings)
  ids = settings['client_data'].client_ids
  source = settings['build_cohorts'](ids, key=keys.draw())
  delta = settings['delta'] or statement.default_delta(len(ids))
  tff.framework.set_default_context(
      tff.program.NativeFederatedContext(settings['context'])
  )
  state = await tff.program.materialize_value(
      settings['learning_process'].initialize()
  )
  init_from_run = settings['init_from_run']
  inherited = ledger_lib.inherited_charges(
      None if init_from_run is None else run_dir.ledger_of_model(init_from_run),
      unit='speaker',
  )
  rules = dict(sampling=source.sampling, delta=delta, inherited=inherited)
  private_rounds.check_first_round(
      state, target_epsilon=settings['target_epsilon'], **rules
  )
  state_bytes = _num_bytes(state)
  return _describe(
      settings,
      state_bytes,
      {
          'memory': _memory(
              memory.estimate_rounds(
                  state_bytes=state_bytes,
                  weights_bytes=_weights_bytes(settings),
              ),
              'client',
          ),
          'rounds': f'{settings["num_rounds"]:,}',
          'cohort': _drawn(source.sampling, 'clients'),
          'epsilon': _epsilon(settings, state, settings['num_rounds'], rules),
      },
  )


async def central(**settings: Any) -> str:
  """What `central.train` would do; takes its arguments.

  Raises:
    ValueError: As `central.train`, before its first step.
  """
  settings = _with_defaults(central_lib.train, settings)
  central_lib.check(**settings)
  specs = weights_lib.tensor_specs(settings['model'].specs)
  # The weights twice: as they are, and the best.
  state = [settings['optimizer'].initialize(specs)] + 2 * [
      tf.nest.map_structure(lambda spec: tf.zeros(spec.shape), specs)
  ]
  state_bytes = _num_bytes(state)
  weights_bytes = _weights_bytes(settings)
  return _describe(
      settings,
      state_bytes,
      {
          'memory': _memory(
              memory.estimate_steps(
                  state_bytes=state_bytes,
                  weights_bytes=weights_bytes,
                  trained_bytes=weights_bytes,
              ),
              'device',
          ),
          'steps': f'{settings["num_steps"]:,} at most',
          'speakers': f'{len(settings["client_data"].client_ids):,}',
          'epsilon': 'infinite: central training is not private.',
      },
  )


async def pretraining(**settings: Any) -> str:
  """What `pretrain.train` would do; takes its arguments.

  Raises:
    ValueError: As `pretrain.train`, before its first step.
  """
  settings = _with_defaults(pretrain_lib.train, settings)
  pretrain_lib.check(**settings)
  setup = pretrain_setup.build(**settings)
  is_private = settings['build_query'] is not None
  specs = settings['model'].specs
  trained = {name: specs[name] for name in specs.keys() - set(setup.frozen)}
  num_trained = weights_lib.count(trained)
  state_bytes = _num_bytes(setup.state)
  sampling = setup.examples.sampling
  if is_private:
    rules = dict(
        sampling=sampling, delta=setup.delta, inherited=setup.inherited
    )
    epsilon = _epsilon(settings, setup.state, settings['num_steps'], rules)
  else:
    epsilon = 'nothing is charged: without a query the data are public.'
  return _describe(
      settings,
      state_bytes,
      {
          'trained': (
              f'{num_trained:,} of them; {len(setup.frozen)} of {len(specs)} '
              'layers are frozen'
          ),
          'memory': _memory(
              memory.estimate_steps(
                  state_bytes=state_bytes,
                  weights_bytes=_weights_bytes(settings),
                  trained_bytes=4 * num_trained,
                  num_vectorized=(
                      settings['num_vectorized'] if is_private else None
                  ),
              ),
              'device',
          ),
          'steps': f'{settings["num_steps"]:,}',
          'batch': _drawn(sampling, 'utterances'),
          'epsilon': epsilon,
      },
  )


def _with_defaults(
    program: Callable[..., Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
  """All arguments of a program."""
  bound = inspect.signature(program).bind(**settings)
  bound.apply_defaults()
  return dict(bound.arguments)


def _describe(
    settings: Mapping[str, Any], state_bytes: int, plan: Mapping[str, str]
) -> str:
  """The text: configuration, sizes, plan."""
  folder = settings['output_dir']
  while not os.path.isdir(folder or '.'):
    folder = os.path.dirname(folder)
  disk = os.statvfs(folder or '.')
  rows = {
      'parameters': f'{weights_lib.count(settings["model"].specs):,}',
      'saved states': (
          f'{_size(state_bytes)} each, {settings["keep_last"]} kept'
          + (
              f' and each {settings["keep_every"]}th'
              if settings['keep_every']
              else ''
          )
          + f'; the disk has {_size(disk.f_bavail * disk.f_frsize)} free'
      ),
      **plan,
  }
  return '\n'.join([
      settings['configuration'].rstrip(),
      '',
      '# Checked; nothing was trained or written (dry run).',
      *(f'# {name + ":":14}{text}' for name, text in rows.items()),
  ])


def _num_bytes(state: Any) -> int:
  """Of a state."""
  return sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(state))


def _weights_bytes(settings: Mapping[str, Any]) -> int:
  """Of the model's weights."""
  return 4 * weights_lib.count(settings['model'].specs)


def _memory(estimate: tuple[int, int], worker: str) -> str:
  """The estimate of a run's memory, and what it does not hold."""
  whole, each = estimate
  return (
      f'about {_size(whole)} for the state and {_size(each)} for each {worker} '
      'at work, without the activations of a batch (MAX_BATCH_SEC)'
  )


def _drawn(sampling: accounting.Sampling, what: str) -> str:
  """How a round's clients or examples are drawn."""
  return (
      f'{sampling.cohort_size:,} of {sampling.population:,} {what} '
      f'({sampling.kind})'
  )


def _epsilon(
    settings: Mapping[str, Any],
    state: Any,
    rounds: int,
    rules: Mapping[str, Any],
) -> str:
  """Epsilon at the end, and where a target ends the run before."""
  fixed = private_rounds.fixed_seeds(
      noise_seed=settings['noise_seed'], sampler_seed=settings['sampler_seed']
  )
  if fixed:
    return f'infinite, NOT PRIVATE: {" and ".join(fixed)} fixes a key.'
  target = settings['target_epsilon']
  after = lambda number: private_rounds.epsilon_of_plan(
      state, num_rounds=number, **rules
  )
  text = f'{after(rounds):.4g} (RDP) at the end'
  if target is not None and after(rounds) > target:
    low, high = 1, rounds  # The first round is within it, the last is not.
    while high - low > 1:
      middle = (low + high) // 2
      low, high = (middle, high) if after(middle) <= target else (low, middle)
    text += f'; TARGET_EPSILON = {target:g} ends the run after {low:,}'
  return f'{text}, at delta {rules["delta"]:g}'


def _size(num_bytes: float) -> str:
  """Bytes for people."""
  exponent = min(max(int(math.log(max(num_bytes, 1), 1000)), 2), 3)
  return f'{num_bytes / 1000**exponent:,.1f} {("MB", "GB")[exponent - 2]}'
