"""Flags and main function of the programs that train from a configuration."""

from collections.abc import Callable, Coroutine
import functools
from typing import TypeVar

from absl import flags

import configuration

from tff_asr import config
from tff_asr import launch
from tff_asr.programs import dry_run
from tff_asr.programs import training_loop
from tff_asr.storage import environment_fingerprint

_Program = TypeVar('_Program')
_Describe = Callable[..., Coroutine[object, object, str]]
_Train = Callable[[_Program], Coroutine[object, object, object]]

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir',
    None,
    'Folder of the run; an unfinished run there continues. Required.',
)
_DRY_RUN = flags.DEFINE_bool(
    'dry_run',
    False,
    'Check everything, print data, sizes and epsilon, and stop.',
)
_VERBOSE = flags.DEFINE_bool(
    'verbose', False, 'With --dry_run: print the configuration, too.'
)
flags.mark_flag_as_required('output_dir')
# Those that import this module show its flags, and these, too.
flags.adopt_module_key_flags(configuration)


def main(
    program: Callable[..., _Program],
    *,
    gin_file: str,
    describe: _Describe | None = dry_run.describe,
    train: _Train = training_loop.run,
) -> None:
  """Runs a command: parses flags, prints help, calls `run`.

  Args:
    program: See `run`.
    gin_file: The file of gin/programs; --help lists its settings.
    describe: See `run`.
    train: See `run`.
  """
  launch.run(
      lambda _: run(program, describe=describe, train=train),
      more_help=functools.partial(config.settings_help, gin_file=gin_file),
  )


def run(
    program: Callable[..., _Program],
    *,
    describe: _Describe | None = dry_run.describe,
    train: _Train = training_loop.run,
) -> None:
  """Binds a program and runs it, or with --dry_run prints what it would do.

  Args:
    program: Builds a `training_loop.TrainingRun`, or another argument of
      `train`; it is called with `output_dir`, `configuration` and `model_spec`.
    describe: A coroutine of the program and `verbose`; None: no dry run.
    train: A coroutine of the program.

  Raises:
    ValueError: There is no dry run.
  """
  if _DRY_RUN.value and describe is None:
    raise ValueError('this program has no --dry_run.')
  environment_fingerprint.restore_threads(_OUTPUT_DIR.value)
  bound = config.bind(program, **configuration.from_flags())
  built = bound(
      output_dir=_OUTPUT_DIR.value,
      configuration=config.text(),
      model_spec=config.model_spec('MODEL', 'PIPELINE'),
  )
  if _DRY_RUN.value:
    print(launch.run_async(describe(built, verbose=_VERBOSE.value)))
  else:
    launch.run_async(train(built))
