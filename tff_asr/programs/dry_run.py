"""Description of what a program would do: nothing is trained or written.

It checks everything that a run checks before its first round. It initializes
the process, to learn its noise and the size of its state.
"""

from collections.abc import Mapping, Sequence
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tff_asr.models import weights as weights_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import statement
from tff_asr.programs import private_rounds
from tff_asr.programs import public_data
from tff_asr.programs import training_loop


async def describe(training: training_loop.TrainingRun) -> str:
  """Returns the configuration and what a run of it would take, as text.

  Raises:
    ValueError: As `training_loop.run`, before its first round.
  """
  state = await training.initialize()
  public = public_data.check(training, state)
  kept = state, training.initial_record(state.global_model_weights)
  state_bytes = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(kept))
  rows = {
      'parameters': f'{weights_lib.count(training.model.specs):,}',
      'saved states': _saved_states(training, state_bytes),
      **training.plan(),
  }
  if training.sampling is not None:
    rules = training_loop.check_first_round(training, state)
    rows['public'] = f'{public.words}.'
    rows['epsilon'] = _epsilon(training, state, rules, voids=public.voids)
  return '\n'.join([
      training.configuration.rstrip(),
      '',
      '# Checked; nothing was trained or written (dry run).',
      *(f'# {name + ":":14}{text}' for name, text in rows.items()),
  ])


def _saved_states(training: training_loop.TrainingRun, state_bytes: int) -> str:
  """How much room states take, and how much there is."""
  folder = training.output_dir
  while not os.path.isdir(folder or '.'):
    folder = os.path.dirname(folder)
  disk = os.statvfs(folder or '.')
  settings = training.settings
  text = f'{_size(state_bytes)} each, {settings.keep_last} kept'
  if settings.keep_every:
    text += f' and each {settings.keep_every}th'
  return f'{text}; the disk has {_size(disk.f_bavail * disk.f_frsize)} free'


def _epsilon(
    training: training_loop.TrainingRun,
    state: Any,
    rules: Mapping[str, Any],
    *,
    voids: Sequence[str],
) -> str:
  """Epsilon at the end, and where a target ends the run before."""
  voids = (*training.privacy.voids, *voids)
  if voids:
    return f'infinite, NOT PRIVATE: {"; ".join(voids)}.'
  target, last = training.privacy.target_epsilon, training.total
  after = lambda number: private_rounds.epsilon_of_plan(
      state, num_rounds=number, **rules
  )
  text = f'{after(last):.4g} (RDP) at the end'
  if target is not None and after(last) > target:
    low, high = 1, last  # The first round is within the target, the last not.
    while high - low > 1:
      middle = (low + high) // 2
      low, high = (middle, high) if after(middle) <= target else (low, middle)
    text += f'; TARGET_EPSILON = {target:g} ends the run after {low:,}'
  text += f', at delta {rules["delta"]:g}'
  own = accounting.RoundGroup(sampling=rules['sampling'], noise_multiplier=0)
  too_large = statement.large_delta(
      rules['delta'], [own, *rules['inherited'].rounds]
  )
  return f'{text}; NOT PRIVATE: {too_large}' if too_large else text


def _size(num_bytes: float) -> str:
  """Bytes for people."""
  exponent = min(max(int(math.log(max(num_bytes, 1), 1000)), 2), 3)
  return f'{num_bytes / 1000**exponent:,.1f} {("MB", "GB")[exponent - 2]}'
