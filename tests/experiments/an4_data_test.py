"""Tests of experiments.an4_data, on a folder in AN4's layout."""

import os
import pathlib

import numpy as np
import soundfile

from experiments import an4_data
from tests import cases
from tff_asr.data import client_data

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
