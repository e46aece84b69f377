"""Runs of programs in tests, with their settings named one by one."""

import asyncio
import contextlib
import dataclasses
import functools
import io
from typing import Any, Optional

import tensorflow_federated as tff

from tests import fakes
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data
from tff_asr.data import cohorts
from tff_asr.execution import multi_device
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.optimizers import lamb
from tff_asr.privacy import queries
from tff_asr.programs import faults
from tff_asr.programs import private_rounds
from tff_asr.programs import training_loop

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
