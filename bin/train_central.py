r"""Trains a recogniser centrally: a seed model or a baseline.

Example:
  python bin/train_central.py --output_dir=runs/NAME \
      --gin_file=gin/experiments/quickstart_seed.gin
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

import training

from tff_asr.programs import central

flags.adopt_module_key_flags(training)


if __name__ == '__main__':
  training.main(central.CentralTraining, gin_file='gin/programs/central.gin')
