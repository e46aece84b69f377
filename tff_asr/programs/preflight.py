"""What is checked of a program's settings before its first round.

Each check is a function of the settings that it relates, by name, and raises
ValueError. `run` calls those whose settings are there and reports what is wrong
in one error. What one part demands of itself is checked where it is built.
"""

from collections.abc import Callable, Iterable, Mapping
import inspect
import os
from typing import Any, Optional

import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.models import ctc
from tff_asr.privacy import accounting
from tff_asr.programs import warm_start
from tff_asr.storage import run_dir

Check = Callable[..., None]


def run(all_checks: Iterable[Check], settings: Mapping[str, Any]) -> None:
  """Runs the checks that the settings suffice for.

  Args:
    all_checks: Functions that name the settings they need as parameters.
    settings: A program's arguments by name, or some of them.

  Raises:
    ValueError: A check failed; `checks.Problems` if several did.
  """
  errors = []
  for check in all_checks:
    names = inspect.signature(check).parameters
    if names.keys() <= settings.keys():
      try:
        check(**{name: settings[name] for name in names})
      except (ValueError, OSError) as e:
        errors.append(e)
  checks.raise_together(errors)


def check_output_dir(output_dir: str, configuration: str) -> None:
  """A run can begin or go on there."""
  run_dir.check_folder(output_dir, configuration=configuration)


def check_seed_run(
    init_from_run: Optional[str],
    model: ctc.CtcModel,
    pipeline: pipeline_lib.Pipeline,
) -> None:
  """The model that training starts from is there and fits."""
  if init_from_run is not None:
    warm_start.check(
        init_from_run, model=model, tokens=pipeline.tokenizer.characters
    )


def check_seed_run_is_another(
    init_from_run: Optional[str], output_dir: str
) -> None:
  """No run starts from itself."""
  if init_from_run is not None and (
      os.path.realpath(init_from_run) == os.path.realpath(output_dir)
  ):
    raise ValueError(
        f'init_from_run and output_dir are both {output_dir}: a run cannot start '
        'from itself.'
    )


def check_durations(
    client_data: tff.simulation.datasets.ClientData,
    pipeline: pipeline_lib.Pipeline,
) -> None:
  """The longest utterance allowed is not under the corpus' mean."""
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


def check_delta(
    delta: Optional[float], target_epsilon: Optional[float]
) -> None:
  """Delta is a probability, and chosen by whoever chooses epsilon."""
  if delta is not None:
    accounting.check_delta(delta)
  if target_epsilon is not None:
    checks.positive(target_epsilon=target_epsilon)
    if delta is None:
      raise ValueError(
          f'target_epsilon is {target_epsilon:g} at no delta: set DELTA, well '
          'below 1 / population.'
      )


def check_keeping(keep_last: int, keep_every: int) -> None:
  """The numbers of states to keep are numbers of states."""
  checks.positive_int(keep_last=keep_last)
  checks.non_negative_int(keep_every=keep_every)


# What is checked before any training.
TRAINING_CHECKS = (
    check_durations,
    check_seed_run,
    check_seed_run_is_another,
    check_output_dir,
    check_keeping,
)
