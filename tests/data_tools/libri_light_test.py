import json
import pathlib

import numpy as np
import soundfile

from data_tools import conversion
from data_tools import libri_light
from tests import cases
from tff_asr.data import client_data


def _waveform(num_samples: int) -> np.ndarray:
  return (np.arange(num_samples) % 2000).astype(np.int16)


class LibriLightTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.source = pathlib.Path(self.root)
    self.write('100/a_book/01_part', 48000, [[0.25, 1.0], [1.1, 1.5], [2, 2.5]])
    self.write('100/a_book/02_part', 40000, None)
    self.write('7/other', 16000, [])

  def write(self, name, num_samples, activity):
    path = self.source / 'small' / f'{name}.flac'
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, _waveform(num_samples), 16000)
    if activity is not None:
      path.with_suffix('.json').write_text(
          json.dumps({'speaker': '100', 'voice_activity': activity})
      )

  def convert(self, **settings):
    return conversion.convert(
        libri_light.corpus(1.5),
        source_dir=self.source,
        output_dir=self.source / 'out',
        splits=['small'],
        num_workers=0,
        **settings,
    )['small']

  def test_recordings_are_cut_at_silences(self):
    summary = self.convert()
    data = client_data.load(self.source / 'out/small')
    self.assertEqual(data.client_ids, ['100'])
    records = {
        e['utterance_id'].decode(): e
        for e in data.create_tf_dataset_for_client('100').as_numpy_iterator()
    }
    # .25 to 1.5 s in one, 2 to 2.5 s; 2.5 s without activity in two.
    expected = {
        '100/a_book/01_part-0000': _waveform(48000)[4000:24000],
        '100/a_book/01_part-0001': _waveform(48000)[32000:40000],
        '100/a_book/02_part-0000': _waveform(40000)[:20000],
        '100/a_book/02_part-0001': _waveform(40000)[20000:],
    }
    self.assertCountEqual(records, expected)
    for name, waveform in expected.items():
      np.testing.assert_array_equal(records[name]['waveform'], waveform)
      self.assertEqual(records[name]['transcript'], b'')
    self.assertEqual(
        summary['changed'],
        {
            'files without voice activity were cut at equal lengths': 1,
            'seconds without voice were left out': 1.25,
        },
    )
    self.assertEqual(summary['dropped'], {'has no voice': 1})

  def test_problems(self):
    (self.source / 'small/7/other.json').write_text('{"voice_activity": [[1')
    (self.source / 'small/7/lost.json').write_text('{}')
    summary = self.convert()
    self.assertEqual(
        summary['dropped'],
        {'has no audio file': 1, 'has no readable JSON file': 1},
    )
    with self.assertRaisesRegex(ValueError, 'lost.json has no audio next to'):
      self.convert(strict=True)

  def test_missing_parts(self):
    with self.assertRaisesRegex(ValueError, 'medium is not a folder'):
      libri_light.list_utterances(self.source, split='medium')
    (self.source / 'empty').mkdir()
    with self.assertRaisesRegex(ValueError, 'empty holds no audio'):
      libri_light.list_utterances(self.source, split='empty')
