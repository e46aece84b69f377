r"""Pre-trains an encoder on untranscribed speech (BEST-RQ), with or without DP.

Example:
  python bin/pretrain.py --output_dir=runs/NAME \
      --gin_file=gin/experiments/pretrain_mini_public.gin
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

import training

from tff_asr.programs import pretraining

flags.adopt_module_key_flags(training)


if __name__ == '__main__':
  training.main(pretraining.Pretraining, gin_file='gin/programs/pretrain.gin')
