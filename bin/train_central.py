r"""Trains a recogniser centrally: a seed model or a baseline.

Example:
  python bin/train_central.py --output_dir=runs/NAME \
      --gin_file=gin/experiments/quickstart_seed.gin
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from absl import flags

from tff_asr import config
from tff_asr.programs import central
from tff_asr.programs import dry_run
from tff_asr.storage import hardware_fingerprint

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder of the run; an unfinished run there goes on.'
)
_GIN_FILE = flags.DEFINE_multi_string(
    'gin_file', [], 'Configuration file; may be repeated.'
)
_GIN_PARAM = flags.DEFINE_multi_string(
    'gin_param', [], "Override such as 'NUM_STEPS = 10'; may be repeated."
)
_DRY_RUN = flags.DEFINE_bool(
    'dry_run',
    False,
    'Check everything, print configuration, sizes and epsilon, and stop.',
)
flags.mark_flag_as_required('output_dir')


def main(_) -> None:
  hardware_fingerprint.restore_threads(_OUTPUT_DIR.value)
  train = config.bind(
      central.train,
      gin_files=_GIN_FILE.value,
      gin_params=_GIN_PARAM.value,
      check=central.check,
      call=dry_run.central if _DRY_RUN.value else None,
  )
  result = launch.run_async(
      train(output_dir=_OUTPUT_DIR.value, configuration=config.text())
  )
  if _DRY_RUN.value:
    print(result)


if __name__ == '__main__':
  launch.run(main)
