r"""AN4's shards for the suite an4: audio, features of a public encoder, text.

Makes, below --output_dir, from the published layout (etc/ and wav/):

  train.{public,private,dev,test}    audio of AN4's training part
  train.all                          the public and the private speakers
  train.official                     audio of AN4's own test part, of --test
  whisper.PART                       the features of each
  public.arpa                        a language model of the public transcripts

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
from data_tools import embed
from data_tools import kneser_ney
from data_tools import ngram
from tff_asr import files
from tff_asr.data import index
from tff_asr.features import front_end as front_end_lib
from tff_asr.pretrained import features

AUDIO, FEATURES = 'train.{}', 'whisper.{}'
"""Names of the folders of a part."""
OFFICIAL = 'official'
LANGUAGE_MODEL = 'public.arpa'
PRETRAINED = 'whisper-tiny.en'
_PARTITION = 'public=28,private=rest,dev=4,test=10'
# Words of the longest n-grams.
_ORDER = 3


def make(
    source_dir: str,
    output_dir: str,
    *,
    test_dir: Optional[str],
    front_end: front_end_lib.FrontEnd,
) -> None:
  """Makes what is missing.

  Args:
    source_dir: AN4's folder, or its archive.
    output_dir: Where everything goes.
    test_dir: A folder or an archive with AN4's own test part; None: it is left
      out.
    front_end: Computes the features.

  Raises:
    ValueError: A corpus cannot be read.
  """
  folder = lambda name, part: os.path.join(output_dir, name.format(part))
  convert = lambda source, **settings: conversion.convert(
      an4.CORPUS, source_dir=source, output_dir=output_dir, **settings
  )
  convert(source_dir, splits=['train'], partition=_PARTITION)
  list_path = os.path.join(output_dir, 'all.txt')
  speakers = [
      name
      for part in ('public', 'private')
      for name in index.read(folder(AUDIO, part)).clients.client_ids
  ]
  files.write_text(list_path, '\n'.join(sorted(speakers)) + '\n')
  convert(source_dir, splits=['train'], partition=f'all=@{list_path}')
  if test_dir is not None:
    convert(test_dir, splits=[f'{AUDIO.format(OFFICIAL)}=test'])
  for part in ('public', 'private', 'dev', 'test', 'all', OFFICIAL):
    audio, embedded = folder(AUDIO, part), folder(FEATURES, part)
    if os.path.isdir(audio) and not os.path.isdir(embedded):
      embed.embed(audio, embedded, front_end=front_end)
  name, sentences = ngram.read_public(
      [folder(AUDIO, 'public')], normalises=False
  )
  model = kneser_ney.estimate(
      [sentence.split() for sentence in sentences], order=_ORDER
  )
  files.write_text(
      os.path.join(output_dir, LANGUAGE_MODEL),
      kneser_ney.arpa(model, comment=name),
  )


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
          front_end=features.of_model(name=PRETRAINED),
      ),
      after_interrupt='the same command continues.',
  )
