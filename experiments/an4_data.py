"""AN4's shards for the suites an4 and an4_folds.

Makes, below --output_dir, from the published layout (etc/ and wav/):

  train.{public,private,dev,test}    audio of AN4's training part
  train.all                          the public and the private speakers
  train.official                     audio of AN4's own test part, of --test

With --num_folds=K, instead:

  train, whisper.train               audio of AN4's training part, and features
                                     of it (Whisper tiny.en)
  fold_k/whisper.{public,private,dev,test,all}
                                     features of the speakers of fold k, which
                                     share the files of whisper.train

Each speaker is a test speaker of one fold. In each fold the other speakers are
divided into public, private and dev speakers at random, with the sizes of the
suite an4. What is there is kept.

Example:
  python -m experiments.an4_data --source_dir=AN4 --output_dir=data/an4
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Iterable
import os
import shutil
from typing import Optional

from absl import flags
import numpy as np

from data_tools import an4
from data_tools import conversion
from data_tools import embed
from data_tools import speaker_splits
from experiments import jobs
from tff_asr import files
from tff_asr.data import index
from tff_asr.features import front_end as front_end_lib
from tff_asr.pretrained import features

AUDIO = 'train.{}'
"""Names of the folders of a part."""
FEATURES = 'whisper.{}'
"""Names of the folders of a part's features."""
PRETRAINED = 'whisper-tiny.en'
OFFICIAL = 'official'
_TRAINING = 'public=28,private=rest,dev=4'
_PARTITION = f'{_TRAINING},test=10'


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


def make_folds(
    source_dir: str,
    output_dir: str,
    *,
    num_folds: int,
    front_end: Optional[front_end_lib.FrontEnd] = None,
) -> None:
  """Makes what is missing of a cross-validation over AN4's training part.

  Args:
    source_dir: AN4's folder, or its archive.
    output_dir: Where everything goes.
    num_folds: K; test speakers are divided as evenly as possible.
    front_end: Computes the features; None: that of `PRETRAINED`.

  Raises:
    ValueError: The corpus cannot be read, or has too few speakers.
  """
  conversion.convert(
      an4.CORPUS, source_dir=source_dir, output_dir=output_dir, splits=['train']
  )
  features_dir = os.path.join(output_dir, FEATURES.format('train'))
  if not os.path.isdir(features_dir):
    # Once, and not for each fold.
    embed.embed(
        os.path.join(output_dir, 'train'),
        features_dir,
        front_end=front_end or features.of_model(name=PRETRAINED),
    )
  source = index.read(features_dir)
  speakers = list(source.clients.client_ids)
  sizes = [
      f'{k}={len(speakers[k::num_folds])}' for k in range(num_folds)
  ]
  folds = speaker_splits.partition(speakers, spec=','.join(sizes), seed=1)
  for k, test in enumerate(folds.values()):
    # With another seed in each fold, so that roles change, too.
    parts = speaker_splits.partition(
        set(speakers) - set(test), spec=_TRAINING, seed=2 + k
    )
    parts |= {'test': test, 'all': parts['public'] + parts['private']}
    for part, chosen in parts.items():
      path = os.path.join(
          output_dir, jobs.fold_name(k), FEATURES.format(part)
      )
      if not os.path.isdir(path):
        write_subset(source, path, client_ids=chosen)


@files.for_owner_only()
def write_subset(
    source: index.Index, output_dir: str, *, client_ids: Iterable[str]
) -> None:
  """Writes the corpus of some clients, whose shards are links to the source's.

  Args:
    source: A corpus, on the same file system.
    output_dir: The new folder, which appears when it is complete.
    client_ids: Some of its clients.
  """
  clients, chosen = source.clients, set(client_ids)
  rows = [row for row, name in enumerate(clients.client_ids) if name in chosen]
  counts = clients.num_utterances[rows]
  numbers = np.concatenate([
      np.arange(first, first + count)
      for first, count in zip(clients.first_records[rows], counts)
  ])
  partial = f'{output_dir}.partial'
  shutil.rmtree(partial, ignore_errors=True)
  os.makedirs(partial)
  for shard in source.corpus.shards:
    os.link(
        os.path.join(source.corpus.path, shard.name),
        os.path.join(partial, shard.name),
    )
  index.write(
      partial,
      clients=index.Clients(
          [clients.client_ids[row] for row in rows],
          clients.shards[rows],
          np.cumsum(counts) - counts,
          counts,
          clients.num_samples[rows],
      ),
      offsets=source.offsets[numbers],
      shards=source.corpus.shards,
      encoding=source.corpus.encoding,
      characters=source.corpus.characters,
      origin=source.corpus.origin,
      features=source.corpus.features,
  )
  os.rename(partial, output_dir)


def _main(argv: list[str]) -> None:
  del argv
  source, output = flags.FLAGS.source_dir, flags.FLAGS.output_dir
  if _NUM_FOLDS.value == 1:
    make(source, output, test_dir=_TEST_DIR.value)
  elif _TEST_DIR.value is None:
    make_folds(source, output, num_folds=_NUM_FOLDS.value)
  else:
    raise ValueError('--test_dir has no part in folds: leave it out.')


if __name__ == '__main__':
  _TEST_DIR = flags.DEFINE_string(
      'test_dir', None, "A folder or an archive with AN4's own test part."
  )
  _NUM_FOLDS = flags.DEFINE_integer(
      'num_folds',
      1,
      'Folds of a cross-validation over the training part; 1: none, but the '
      'parts of the suite an4.',
      lower_bound=1,
  )
  flags.adopt_module_key_flags(conversion)
  launch.run(_main, after_interrupt='the same command continues.')
