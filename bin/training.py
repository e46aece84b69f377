"""Flags of the programs that train from a configuration, and their main."""

from collections.abc import Callable
from typing import Any

from absl import flags

from tff_asr import config
from tff_asr import launch
from tff_asr.storage import hardware_fingerprint

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder of the run; an unfinished run there goes on.'
)
_GIN_FILE = flags.DEFINE_multi_string('gin_file', [], 'Configuration file.')
_GIN_PARAM = flags.DEFINE_multi_string(
    'gin_param', [], "Override such as 'SEED = 2'."
)
_DRY_RUN = flags.DEFINE_bool(
    'dry_run',
    False,
    'Check everything, print configuration, sizes and epsilon, and stop.',
)
flags.mark_flag_as_required('output_dir')


def run(
    train: Callable[..., Any], *, describe: Callable[..., Any] | None = None
) -> None:
  """Binds a program and runs it, or with --dry_run prints what it would do.

  Args:
    train: The program; takes `output_dir` and `configuration`, too.
    describe: A coroutine of the same arguments; None: there is no dry run.

  Raises:
    ValueError: There is no dry run.
  """
  if _DRY_RUN.value and describe is None:
    raise ValueError('this program has no --dry_run.')
  hardware_fingerprint.restore_threads(_OUTPUT_DIR.value)
  bound = config.bind(
      train,
      gin_files=_GIN_FILE.value,
      gin_params=_GIN_PARAM.value,
      call=describe if _DRY_RUN.value else None,
  )
  result = launch.run_async(
      bound(output_dir=_OUTPUT_DIR.value, configuration=config.text())
  )
  if _DRY_RUN.value:
    print(result)
