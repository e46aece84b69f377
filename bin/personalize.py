r"""Shows what people gain whose copy of a model learns from their own speech.

Each client adapts a copy of the model on part of its utterances, and is
evaluated on the rest before and after. No copy leaves its client.

Example:
  python bin/personalize.py --gin_file=gin/programs/personalize.gin \
      --gin_file=gin/models/conv_quickstart.gin \
      --gin_param="RUNS = ['quickstart_runs/seed']" \
      --gin_param="PERSONAL_DIR = 'quickstart_data/shards/test'"
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

import functools

from absl import flags

import configuration

from tff_asr import config
from tff_asr.programs import personalization

flags.adopt_module_key_flags(configuration)


def main(_) -> None:
  personalize = config.bind(
      personalization.personalize, **configuration.from_flags()
  )
  launch.run_async(personalize())


if __name__ == '__main__':
  launch.run(
      main,
      after_interrupt='the same command starts again.',
      more_help=functools.partial(
          config.settings_help, gin_file='gin/programs/personalize.gin'
      ),
  )
