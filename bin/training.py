"""Flags of the programs that train from a configuration, and their main."""

from collections.abc import Callable
import functools
from typing import Any

from absl import flags

from tff_asr import config
from tff_asr import launch
from tff_asr.programs import dry_run
from tff_asr.programs import training_loop
from tff_asr.storage import hardware_fingerprint

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder of the run; an unfinished run there continues.'
)
_GIN_FILE = flags.DEFINE_multi_string(
    'gin_file', [], 'Configuration file; later ones win. Required.'
)
_GIN_PARAM = flags.DEFINE_multi_string(
    'gin_param', [], "Override such as 'SEED = 2'."
)
_DRY_RUN = flags.DEFINE_bool(
    'dry_run',
    False,
    'Check everything, print configuration, sizes and epsilon, and stop.',
)
flags.mark_flag_as_required('output_dir')


def main(
    program: Callable[..., Any], *, gin_file: str, **options: Any
) -> None:
  """The whole of a command: flags, help, and `run`.

  Args:
    program: See `run`.
    gin_file: The file of gin/programs, whose settings --help lists.
    **options: See `run`.
  """
  launch.run(
      lambda _: run(program, **options),
      more_help=functools.partial(config.settings_help, gin_file=gin_file),
  )


def run(
    program: Callable[..., Any],
    *,
    describe: Callable[..., Any] | None = dry_run.describe,
    train: Callable[..., Any] = training_loop.run,
) -> None:
  """Binds a program and runs it, or with --dry_run prints what it would do.

  Args:
    program: A `training_loop.TrainingRun`, or what else `train` takes; it is
      called with `output_dir`, `configuration` and `model_spec`.
    describe: A coroutine of the program; None: there is no dry run.
    train: A coroutine of the program.

  Raises:
    ValueError: There is no dry run.
  """
  if _DRY_RUN.value and describe is None:
    raise ValueError('this program has no --dry_run.')
  hardware_fingerprint.restore_threads(_OUTPUT_DIR.value)
  bound = config.bind(
      program, gin_files=_GIN_FILE.value, gin_params=_GIN_PARAM.value
  )
  built = bound(
      output_dir=_OUTPUT_DIR.value,
      configuration=config.text(),
      model_spec=config.model_spec('MODEL', 'PIPELINE'),
  )
  if _DRY_RUN.value:
    print(launch.run_async(describe(built)))
  else:
    launch.run_async(train(built))
