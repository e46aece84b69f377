"""Runs of programs in tests, with their settings named one by one."""

import asyncio
from collections.abc import Callable
import contextlib
import csv
import dataclasses
import functools
import io
import os
from typing import Any, Optional

import dp_accounting
import numpy as np
import tensorflow_federated as tff

from tests import fakes
from tff_asr.aggregators import aggregation
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import ctc
from tff_asr.models import weights as weights_lib
from tff_asr.optimizers import lamb
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.programs import faults
from tff_asr.programs import private_rounds
from tff_asr.programs import training_loop
from tff_asr.storage import run_dir

_GROUPS = {
    'settings': training_loop.RunSettings,
    'privacy': private_rounds.PrivacySettings,
    'faults': faults.FaultSettings,
}


def federated(
    data: client_data.SpeechClientData,
    *,
    build_query: queries.BuildQuery,
    cohort_size: int = 2,
    optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    model: Optional[client_update.Model] = None,
    **pipeline: Any,
) -> dict[str, Any]:
  """Arguments of federated runs on these data, in which a client does a step.

  To build and trace the process takes seconds, to run a round does not: runs of
  the same arguments share it.
  """
  model = model or fakes.tiny_model(num_blocks=1)
  parts = dict(
      model=model,
      pipeline=fakes.tiny_pipeline(model, **pipeline),
      client_data=data,
  )
  return parts | dict(
      configuration='SEED = 1\n',
      learning_process=fed_avg.build(
          **parts,
          aggregator=dp_mean.build(
              build_query=build_query, cohort_size=cohort_size
          ),
          server_optimizer=optimizer or lamb.build_lamb(0.01),
          local=client_update.LocalTraining(learning_rate=0.01, num_steps=1),
          seed=5,
      ),
      build_cohorts=functools.partial(
          cohorts.poisson, cohort_size=cohort_size
      ),
      context=multi_device.build_async_context(),
  )


def process_state(
    weights: weights_lib.Weights,
    *,
    query_state: queries.QueryState,
    event: dp_accounting.DpEvent,
    distributor: Any = (),
    client_work: Any = (),
) -> tff.learning.templates.LearningAlgorithmState:
  """State of a learning process with this query state and event."""
  return tff.learning.templates.LearningAlgorithmState(
      global_model_weights=weights,
      distributor=distributor,
      client_work=client_work,
      aggregator=aggregation.State(query_state, event.to_named_tuple()),
      finalizer=(),
  )


def write_pretrained(
    path: str, *, model: ctc.CtcModel, num_steps: int
) -> dict[str, np.ndarray]:
  """Writes a private pre-training run that has ended.

  Args:
    path: Its folder.
    model: What its encoder is of.
    num_steps: Steps that its ledger charges.

  Returns:
    The encoder's weights.
  """
  weights = model.initialize([7, 7])
  encoder = {name: weights[name].numpy() for name in model.encoder.specs}
  with run_dir.RunDir(path, configuration='') as folder, ledger_lib.create(
      folder.file(run_dir.LEDGER), privacy_unit='example'
  ) as ledger:
    for step in range(num_steps):
      ledger.append(fakes.charged_round(step))
    folder.write_model(
        encoder | {'prediction/bias': np.zeros([4], np.float32)},
        tokens='',
        ledger=ledger.head,
    )
  return encoder


def once(build: Callable[..., Any]) -> Callable[..., Any]:
  """A builder of steps that are built, and traced, once for all runs.

  All state is in the states: runs that share a step share nothing else.
  """
  built = {}

  def call(**options):
    key = tuple(
        repr(value)
        if isinstance(value, (list, tuple, int, float))
        else id(value)
        for _, value in sorted(options.items())
    )
    if key not in built:
      built[key] = build(**options), options  # Kept, or ids were used again.
    return built[key][0]

  return call


def build(
    program: type[training_loop.TrainingRun], **arguments: Any
) -> training_loop.TrainingRun:
  """Builds a program from its arguments and those of its groups of settings."""
  for group, settings in _GROUPS.items():
    names = {field.name for field in dataclasses.fields(settings)}
    given = {name: arguments.pop(name) for name in names & arguments.keys()}
    if given:
      arguments[group] = settings(**given)
  return program(**arguments)


def train(
    program: type[training_loop.TrainingRun], **arguments: Any
) -> tuple[dict[str, Any], str]:
  """Returns a run's results, and what it printed."""
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    results = asyncio.run(training_loop.run(build(program, **arguments)))
  return results, printed.getvalue()


def metrics(run: str) -> list[dict[str, str]]:
  """The rows of a run's table of metrics."""
  path = os.path.join(run, run_dir.METRICS)
  with open(path, encoding='utf-8', newline='') as file:
    return list(csv.DictReader(file))


def charged(run: str) -> int:
  """Rounds in a run's ledger; 0 without one."""
  path = os.path.join(run, run_dir.LEDGER)
  if not os.path.exists(path):
    return 0
  return sum(group.count for group in ledger_lib.read(path).rounds)
