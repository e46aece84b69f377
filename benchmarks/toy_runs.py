"""Whole training runs at toy size, for the kill, soak and digest benchmarks.

Rounds take milliseconds, so measurements show the program around them.
Seeds fix all keys, so that two runs can be compared bit for bit.
"""

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import csv
import functools
import json
import os
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from benchmarks import workload as workload_lib
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.models import best_rq
from tff_asr.models import quantizer
from tff_asr.programs import central
from tff_asr.programs import federated
from tff_asr.programs import pretraining
from tff_asr.programs import private_rounds
from tff_asr.programs import training_loop
from tff_asr.storage import model_file
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_FIXED_KEYS = private_rounds.PrivacySettings(noise_seed=1, sampler_seed=2)
_COHORT_SIZE = 2
_EVERY_SECOND = training_loop.RunSettings(evaluate_every=2, save_every=2)
# Utterances long enough for their transcripts: others teach nothing.
_SIZES = workload_lib.Workload(
    num_blocks=1,
    dim=8,
    num_clients=6,
    num_local_steps=2,
    num_utterances=4,
    utterance_sec=2.5,
    batch_sec=6.0,
    length_range=0.2,
)


def write_corpus(folder: str) -> None:
  """Writes the training data of the runs."""
  _SIZES.write_corpus(folder)


def train(
    program: Callable[..., training_loop.TrainingRun],
    corpus: str,
    output_dir: str,
    **settings: Any,
) -> None:
  """Runs a training program; continues where it was killed.

  Args:
    program: `FederatedTraining`, or with a fixed optimizer and seed
      `CentralTraining` or `Pretraining`.
    corpus: By `write_corpus`.
    output_dir: The run's folder.
    **settings: The program's own.
  """
  model = _SIZES.build_model()
  pipeline = _SIZES.build_pipeline(model)
  if program is pretraining.Pretraining:
    model = best_rq.build(
        encoder=model.encoder,
        quantizer=quantizer.RandomProjectionQuantizer(
            num_codes=16, num_stacked=3
        ),
        start_prob=0.1,
    )
  if program is not federated.FederatedTraining:
    settings = settings | dict(
        optimizer=tff.learning.optimizers.build_adam(0.001), seed=1
    )
  asyncio.run(training_loop.run(program(
      output_dir=output_dir,
      configuration='SEED = 1\n',
      model=model,
      pipeline=pipeline,
      client_data=client_data.load(corpus),
      settings=_EVERY_SECOND,
      **settings,
  )))


def train_federated(
    corpus: str,
    output_dir: str,
    *,
    num_rounds: int,
    cohort_size: int = _COHORT_SIZE,
    sample: Callable[..., Any] = cohorts.poisson,
    noise_multiplier: float = 1.0,
    context: Optional[tff.framework.AsyncContext] = None,
) -> None:
  """A federated run with clips, and where it is not 0 with noise."""
  train(
      federated.FederatedTraining,
      corpus,
      output_dir,
      learning_process=_SIZES.build_process(
          client_data.load(corpus),
          cohort_size=cohort_size,
          noise_multiplier=noise_multiplier,
      ),
      build_cohorts=functools.partial(sample, cohort_size=cohort_size),
      context=context or multi_device.build_async_context(),
      num_rounds=num_rounds,
      privacy=_FIXED_KEYS,
  )


def train_central(
    corpus: str, output_dir: str, *, num_rounds: int, **settings: Any
) -> None:
  """A central run of as many steps."""
  train(
      central.CentralTraining,
      corpus,
      output_dir,
      num_steps=num_rounds,
      **settings,
  )


def train_pretrain(corpus: str, output_dir: str, *, num_rounds: int) -> None:
  """Private pre-training of as many steps."""
  train(
      pretraining.Pretraining,
      corpus,
      output_dir,
      batch_size=_COHORT_SIZE,
      num_steps=num_rounds,
      build_query=workload_lib.build_query(1.0),
      privacy=_FIXED_KEYS,
  )


PROGRAMS: dict[str, Callable[..., None]] = {
    'central': train_central,
    'federated': train_federated,
    'pretrain': train_pretrain,
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Discards the output of a run."""
  with open(os.devnull, 'w', encoding='utf-8') as nowhere:
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(
        nowhere
    ):
      yield


def compare(whole: str, killed: str) -> list[str]:
  """Differences between two runs that should be the same."""
  problems = []
  states = [run_dir.newest_state_path(run) for run in (whole, killed)]
  models = [os.path.join(run, run_dir.MODEL) for run in (whole, killed)]
  for (one, other), read in (
      (states, state_file.read_leaves), (models, model_file.read)
  ):
    left, right = read(one), read(other)
    if os.path.basename(one) != os.path.basename(other) or (
        left.keys() != right.keys()
    ):
      problems.append(f'{one} and {other} hold other things.')
    problems += [
        f'{os.path.basename(one)}: {name} differs.'
        for name in left.keys() & right.keys()
        # The ledgers have names of their own, and inodes.
        if name not in ('ledger/digest', 'noise/file_identity')
        and np.asarray(left[name]).tobytes()
        != np.asarray(right[name]).tobytes()
    ]
  for what, read in (('ledger', ledger_rounds), ('metrics', _metrics)):
    if read(whole) != read(killed):
      problems.append(
          f'{what}: {read(whole)} of the whole run, {read(killed)} of the '
          'killed one.'
      )
  return problems


def ledger_rounds(run: str) -> list[tuple[Any, ...]]:
  """Entries of the ledger, a round each, if there is one."""
  path = os.path.join(run, run_dir.LEDGER)
  if not os.path.exists(path):
    return []
  with open(path, encoding='utf-8') as file:
    lines = [json.loads(line) for line in file][1:]
  return [(line['round_num'], line['identity'], line['result'])
          for line in lines]


def _metrics(run: str) -> list[dict[str, str]]:
  """The rows of the metrics, without the time they took."""
  with open(os.path.join(run, 'metrics.csv'), encoding='utf-8') as file:
    return [
        {
            name: value
            for name, value in row.items()
            if not name.endswith('seconds')
        }
        for row in csv.DictReader(file)
    ]
