r"""Audits an experiment: tests its sums and noise, and measures its epsilon.

No client trains: canary clients send random directions, and all others zeros.
Each test says whether it holds; if one fails, the exit code is 1. Canaries are
counted in the population; choose COHORT_SIZE with them in mind. The model of an
audit is useless, and is deleted.

Example:
  python bin/audit_privacy.py --output_dir=runs/audit \
      --gin_file=gin/experiments/quickstart_federated_dp.gin \
      --gin_file=gin/programs/audit.gin --gin_param="NUM_CANARIES = 200" \
      --gin_param="COHORT_SIZE = 20" --gin_param="NOISE_MULTIPLIER = 1.0"
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

import training

from tff_asr.programs import audit

flags.adopt_module_key_flags(training)


if __name__ == '__main__':
  training.main(
      audit.audit,
      gin_file='gin/programs/audit.gin',
      describe=None,
      train=lambda audited: audited,
  )
