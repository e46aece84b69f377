r"""Trains a recogniser federatedly, with differential privacy.

Example:
  python bin/train_federated.py --output_dir=runs/NAME \
      --gin_file=gin/experiments/quickstart_federated_dp.gin
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

import training

from tff_asr.programs import federated

flags.adopt_module_key_flags(training)


if __name__ == '__main__':
  training.main(
      federated.FederatedTraining, gin_file='gin/programs/federated.gin'
  )
