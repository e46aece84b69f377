"""The folder of a run: what programs write there and read back.

    config.gin      the configuration
    state/          program states, to resume from (hold keys: owner only)
    model.state     the trained weights, for evaluation and as a seed
    ledger.jsonl    what the run's rounds cost in privacy (federated runs)
    metrics.csv     released metrics, a row a round or step
    tensorboard/    the same for TensorBoard
    results.json    the figures at the end
    privacy.txt, privacy.json   the privacy statement (federated runs)
"""

from collections.abc import Mapping
import csv
import difflib
import json
import os
import re
import tempfile
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.programs import state_file
from tff_asr.programs import state_manager

# Settings that may change when a run is resumed: they decide how far it goes
# and what is shown, not what a round does.
_MAY_CHANGE = re.compile(
    r'^(NUM_ROUNDS|NUM_STEPS|EVALUATE_EVERY|SAVE_EVERY|TARGET_EPSILON) *='
)
_MODEL = 'model.state'


class RunFolder:
  """One run's folder; created with its parents if it is missing."""

  def __init__(self, path: str, *, configuration: str):
    """Opens or creates the folder.

    Args:
      path: The folder.
      configuration: The configuration's text; kept in `config.gin`.

    Raises:
      ValueError: The folder holds a run of another configuration; the message
        shows the first difference.
    """
    if not path:
      raise ValueError('output_dir must name a folder.')
    self.path = path
    # A run that was stopped before its first state has nothing to go on from,
    # so its settings bind nobody.
    if self._has_begun() and os.path.exists(self.file('config.gin')):
      with open(self.file('config.gin'), encoding='utf-8') as f:
        _check_same(f.read(), configuration, path=path)
    else:
      os.makedirs(path, exist_ok=True)
      self.write_text('config.gin', configuration)
    self.state_manager = state_manager.StateManager(self.file('state'))

  def _has_begun(self) -> bool:
    """Whether the run has saved a state or charged a round."""
    states = self.file('state')
    return os.path.exists(self.file('ledger.jsonl')) or (
        os.path.isdir(states) and bool(os.listdir(states))
    )

  def file(self, name: str) -> str:
    """Path of a file in the folder."""
    return os.path.join(self.path, name)

  def write_text(self, name: str, text: str) -> None:
    """Writes a file of the folder whole or not at all."""
    write_text(self.file(name), text)

  def write_json(self, name: str, value: Any) -> None:
    """Writes a value as a JSON file of the folder."""
    write_json(self.file(name), value)

  def read_metric(self, name: str) -> dict[int, float]:
    """A released metric of the whole run, by round or step, where it was set.

    A run that was resumed has released some of them before it was stopped.
    """
    with open(self.file('metrics.csv'), encoding='utf-8', newline='') as f:
      return {
          int(row['round']): float(row[name])
          for row in csv.DictReader(f)
          if row.get(name)
      }

  def release_managers(self) -> list[tff.program.ReleaseManager]:
    """Where metrics go: CSV and TensorBoard."""
    return [
        tff.program.CSVFileReleaseManager(
            file_path=self.file('metrics.csv'), key_fieldname='round'
        ),
        tff.program.TensorBoardReleaseManager(self.file('tensorboard')),
    ]

  def write_model(
      self, weights: Mapping[str, Any], *, tokens: str
  ) -> None:
    """Writes the trained weights with the characters they spell."""
    arrays = weights_lib.Weights(
        (name, np.asarray(value)) for name, value in weights.items()
    )
    state_file.write_state(
        self.file(_MODEL), state=arrays, metadata={'tokens': tokens}
    )


def write_text(path: str, text: str) -> None:
  """Writes a file whole or not at all."""
  folder = os.path.dirname(os.path.abspath(path))
  descriptor, temporary = tempfile.mkstemp(dir=folder)
  try:
    with os.fdopen(descriptor, 'w', encoding='utf-8') as f:
      f.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except BaseException:
    os.unlink(temporary)
    raise


def write_json(path: str, value: Any) -> None:
  """Writes a value as indented JSON, whole or not at all."""
  write_text(path, json.dumps(value, indent=1) + '\n')


def read_model(
    run: str, *, model: ctc.CtcModel, tokens: str
) -> weights_lib.Weights:
  """Reads the weights of a finished run for a model.

  Args:
    run: The run's folder.
    model: What the weights are for.
    tokens: The characters of its tokens.

  Returns:
    float32 arrays by name.

  Raises:
    ValueError: The run has no model, its tokens differ, or its weights have
      other names or shapes; the message says which.
  """
  path = os.path.join(run, _MODEL)
  if not os.path.exists(path):
    raise ValueError(
        f'{run} holds no trained model ({_MODEL}): is it the folder of a run '
        'that has ended?'
    )
  manifest = state_file.read_manifest(path)
  found = manifest.metadata.get('tokens')
  if found != tokens:
    raise ValueError(
        f'the model of {run} spells {found!r} but this configuration '
        f'{tokens!r}: use the tokenizer of that run.'
    )
  weights = weights_lib.Weights(sorted(state_file.read_leaves(path).items()))
  problems = _weight_differences(weights, model.specs)
  if problems:
    raise ValueError(
        f'the model of {run} does not fit this configuration: '
        f'{"; ".join(problems[:3])}'
        + (f'; and {len(problems) - 3} more.' if len(problems) > 3 else '.')
    )
  return weights


def lasting(configuration: str) -> str:
  """The configuration's text without the settings that a resume may change."""
  lines = configuration.splitlines()
  return '\n'.join(line for line in lines if not _MAY_CHANGE.match(line))


def flatten_metrics(metrics: Any, *, prefix: str = '') -> dict[str, float]:
  """Nested metrics to a flat dict with names joined by `/`."""
  flat = {}
  for name, value in metrics.items():
    if isinstance(value, Mapping):
      flat |= flatten_metrics(value, prefix=f'{prefix}{name}/')
    elif np.size(value) == 1:
      flat[prefix + name] = float(value)
  return flat


def _weight_differences(
    weights: Mapping[str, np.ndarray], specs: weights_lib.Specs
) -> list[str]:
  """What of `weights` is not as in `specs`."""
  problems = []
  for name in sorted(weights.keys() | specs.keys()):
    if name not in weights:
      problems.append(f'it has no {name}')
    elif name not in specs:
      problems.append(f'{name} is unknown here')
    elif weights[name].shape != tuple(specs[name].shape):
      problems.append(
          f'{name} is {list(weights[name].shape)} there and '
          f'{list(specs[name].shape)} here'
      )
  return problems


def _check_same(old: str, new: str, *, path: str) -> None:
  """Raises ValueError if the configurations differ in what must stay."""
  difference = _difference(lasting(old), lasting(new))
  if difference is not None:
    raise ValueError(
        f'{path} holds a run of another configuration ({difference}): resume '
        'it with its own settings, or take another output_dir.'
    )


def _difference(old: str, new: str) -> Optional[str]:
  """The first line that differs."""
  lines = difflib.unified_diff(
      old.splitlines(), new.splitlines(), lineterm='', n=0
  )
  for line in lines:
    if line.startswith(('---', '+++', '@@')):
      continue
    where = 'there' if line[0] == '-' else 'here'
    return f'{where}: {line[1:].strip()}'
  return None
