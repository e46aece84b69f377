"""Tests of experiments.an4_data, on a folder in AN4's layout."""

import os
import pathlib
import shutil

import numpy as np
import soundfile

from experiments import an4_data
from tests import cases
from tests import front_ends
from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.data import schema

_NUM_SPEAKERS = 44


def _write_part(root: str, split: str, speakers: list[str]) -> None:
  """One utterance of each speaker."""
  folder = pathlib.Path(root)
  rng = np.random.default_rng(len(speakers))
  for speaker in speakers:
    path = folder / 'wav' / 'an4_clstk' / speaker / f'{speaker}-1.wav'
    path.parent.mkdir(parents=True)
    samples = rng.integers(-900, 900, 1600).astype(np.int16)
    soundfile.write(path, samples, 16000)
  lists = folder / 'etc'
  lists.mkdir(exist_ok=True)
  (lists / f'an4_{split}.fileids').write_text(
      ''.join(f'an4_clstk/{each}/{each}-1\n' for each in speakers)
  )
  (lists / f'an4_{split}.transcription').write_text(
      ''.join(f'<s> YES RUBOUT A </s> ({each}-1)\n' for each in speakers)
  )


class An4DataTest(cases.TestCase):

  def make(self, **options) -> None:
    an4_data.make(
        self.path('an4'), self.path('data'), **{'test_dir': None} | options
    )

  def speakers(self, part: str) -> set[str]:
    data = client_data.load(self.path('data', an4_data.AUDIO.format(part)))
    return set(data.client_ids)

  def test_makes_all_parts(self):
    known = [f'spk{number:02d}' for number in range(_NUM_SPEAKERS)]
    _write_part(self.path('an4'), 'train', known)
    _write_part(self.path('official'), 'test', ['new1', 'new2'])
    self.make()
    self.assertFalse(os.path.exists(self.path('data', 'train.official')))
    self.make(test_dir=self.path('official'))
    found = {
        part: self.speakers(part)
        for part in ('public', 'private', 'dev', 'test', 'all', 'official')
    }
    self.assertEqual(
        {part: len(each) for part, each in found.items()},
        {
            'public': 28, 'private': 2, 'dev': 4, 'test': 10, 'all': 30,
            'official': 2,
        },
    )
    self.assertEqual(found['all'], found['public'] | found['private'])

  def test_each_speaker_is_a_test_speaker_of_one_fold(self):
    known = {f'spk{number:02d}' for number in range(_NUM_SPEAKERS)}
    _write_part(self.path('an4'), 'train', sorted(known))
    make = lambda: an4_data.make_folds(
        self.path('an4'),
        self.path('data'),
        num_folds=5,
        front_end=front_ends.build(self.root),
    )
    make()
    folder = lambda fold, part: self.path(
        'data', f'fold_{fold}', an4_data.FEATURES.format(part)
    )
    folds = [
        {
            part: set(client_data.load(folder(fold, part)).client_ids)
            for part in ('public', 'private', 'dev', 'test', 'all')
        }
        for fold in range(5)
    ]
    self.assertEqual([len(each['test']) for each in folds], [9, 9, 9, 9, 8])
    self.assertEqual(set.union(*(each['test'] for each in folds)), known)
    for each in folds:
      self.assertEqual((len(each['public']), len(each['dev'])), (28, 4))
      self.assertEqual(each['all'], each['public'] | each['private'])
      # All parts together are all speakers, each once.
      self.assertEqual(set.union(*each.values()), known)
      self.assertEqual(
          sum(map(len, each.values())) - len(each['all']), len(known)
      )
    # Roles change.
    self.assertNotEqual(
        folds[0]['public'] - folds[1]['test'],
        folds[1]['public'] - folds[0]['test'],
    )
    # A part has the features of the whole, in the same files.
    whole = client_data.load(
        self.path('data', an4_data.FEATURES.format('train'))
    )
    part = client_data.load(folder(0, 'test'))
    for name in part.client_ids:
      (expected,), (found,) = (
          list(data.create_tf_dataset_for_client(name))
          for data in (whole, part)
      )
      self.assertEqual(found[schema.UTTERANCE_ID].numpy(), f'{name}-1'.encode())
      np.testing.assert_array_equal(
          found[schema.FEATURES], expected[schema.FEATURES]
      )
    shards = [
        os.path.join(each, index.shard_name(0))
        for each in (folder(0, 'test'), folder(4, 'all'))
    ]
    self.assertTrue(os.path.samefile(*shards))
    # What is there is kept, and what is missing is made again.
    before = os.stat(os.path.join(folder(1, 'dev'), index.CORPUS_FILE))
    shutil.rmtree(folder(2, 'all'))
    make()
    self.assertTrue(os.path.isdir(folder(2, 'all')))
    after = os.stat(os.path.join(folder(1, 'dev'), index.CORPUS_FILE))
    self.assertEqual(before.st_ino, after.st_ino)
