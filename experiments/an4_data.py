"""AN4's shards for the suite an4.

Makes, below --output_dir, from the published layout (etc/ and wav/):

  train.{public,private,dev,test}    audio of AN4's training part
  train.all                          the public and the private speakers
  train.official                     audio of AN4's own test part, of --test

What is there is kept.

Example:
  python -m experiments.an4_data --source_dir=AN4 --output_dir=data/an4
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import os
from typing import Optional

from absl import flags

from data_tools import an4
from data_tools import conversion
from tff_asr import files
from tff_asr.data import index

AUDIO = 'train.{}'
"""Names of the folders of a part."""
OFFICIAL = 'official'
_PARTITION = 'public=28,private=rest,dev=4,test=10'


def make(
    source_dir: str, output_dir: str, *, test_dir: Optional[str]
) -> None:
  """Makes what is missing.

  Args:
    source_dir: AN4's folder, or its archive.
    output_dir: Where everything goes.
    test_dir: A folder or an archive with AN4's own test part; None: it is left
      out.

  Raises:
    ValueError: A corpus cannot be read.
  """
  convert = lambda source, **settings: conversion.convert(
      an4.CORPUS, source_dir=source, output_dir=output_dir, **settings
  )
  convert(source_dir, splits=['train'], partition=_PARTITION)
  list_path = os.path.join(output_dir, 'all.txt')
  speakers = [
      name
      for part in ('public', 'private')
      for name in index.read(
          os.path.join(output_dir, AUDIO.format(part))
      ).clients.client_ids
  ]
  files.write_text(list_path, '\n'.join(sorted(speakers)) + '\n')
  convert(source_dir, splits=['train'], partition=f'all=@{list_path}')
  if test_dir is not None:
    convert(test_dir, splits=[f'{AUDIO.format(OFFICIAL)}=test'])


if __name__ == '__main__':
  _TEST_DIR = flags.DEFINE_string(
      'test_dir', None, "A folder or an archive with AN4's own test part."
  )
  flags.adopt_module_key_flags(conversion)
  launch.run(
      lambda _: make(
          flags.FLAGS.source_dir,
          flags.FLAGS.output_dir,
          test_dir=_TEST_DIR.value,
      ),
      after_interrupt='the same command continues.',
  )
