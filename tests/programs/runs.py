"""Runs of programs in tests, with their settings named one by one."""

import asyncio
import contextlib
import dataclasses
import io
from typing import Any

from tff_asr.programs import faults
from tff_asr.programs import training_loop

_GROUPS = {
    'settings': training_loop.RunSettings,
    'privacy': training_loop.PrivacySettings,
    'faults': faults.FaultSettings,
}


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
