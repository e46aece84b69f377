r"""Runs an experiment with canary clients and measures its epsilon.

Canaries are counted in the population; choose COHORT_SIZE with them in mind.
The model of an audit is of no use, and is removed.

Example:
  python bin/audit_privacy.py --output_dir=runs/audit \
      --gin_file=gin/experiments/quickstart_federated_dp.gin \
      --gin_file=gin/programs/audit.gin --gin_param="NUM_CANARIES = 200" \
      --gin_param="COHORT_SIZE = 20" --gin_param="NOISE_MULTIPLIER = 1.0"
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from absl import flags

from tff_asr import config
from tff_asr.programs import audit
from tff_asr.storage import hardware_fingerprint

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder of the run; an unfinished run there goes on.'
)
_GIN_FILE = flags.DEFINE_multi_string(
    'gin_file', [], 'Configuration file; may be repeated.'
)
_GIN_PARAM = flags.DEFINE_multi_string(
    'gin_param', [], "Override such as 'NUM_CANARIES = 100'; may be repeated."
)
flags.mark_flag_as_required('output_dir')


def main(_) -> None:
  hardware_fingerprint.restore_threads(_OUTPUT_DIR.value)
  run = config.bind(
      audit.audit, gin_files=_GIN_FILE.value, gin_params=_GIN_PARAM.value
  )
  launch.run_async(
      run(output_dir=_OUTPUT_DIR.value, configuration=config.text())
  )


if __name__ == '__main__':
  launch.run(main)
