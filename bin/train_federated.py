r"""Trains a recogniser federatedly, with differential privacy.

Example:
  python bin/train_federated.py --output_dir=runs/NAME \
      --gin_file=gin/experiments/quickstart_federated_dp.gin
"""

from tff_asr import launch

launch.begin(__name__)

from absl import flags

from bin import training
from tff_asr.programs import federated

flags.adopt_module_key_flags(training)


def main(_) -> None:
  training.run(federated.FederatedTraining)


if __name__ == '__main__':
  launch.run(main)
