import os
import pathlib
import tempfile
import unittest

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import soundfile

from data_tools import an4
from data_tools import conversion
from tff_asr.data import client_data

_SPEECH = os.environ.get('TFF_ASR_SPEECH', '')
_WITH_SPEECH = unittest.skipUnless(
    _SPEECH, 'TFF_ASR_SPEECH is not set: no real speech to read.'
)


def _write_audio(path: pathlib.Path, **kwargs) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  soundfile.write(path, np.arange(-800, 800, dtype=np.int16), 16000, **kwargs)


class An4Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.source = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )
    (self.source / 'etc').mkdir()
    self.write_list(
        ['an4_clstk/fash/an251-fash-b', 'an4_clstk/mkem/cen6-mkem-b']
    )
    self.write_transcripts(
        ['<s> YES </s> (an251-fash-b)', 'RUBOUT T G (cen6-mkem-b)']
    )
    for name in ('fash/an251-fash-b', 'mkem/cen6-mkem-b'):
      _write_audio(self.source / f'wav/an4_clstk/{name}.sph', format='NIST')

  def write_list(self, lines):
    path = self.source / 'etc' / 'an4_train.fileids'
    path.write_text('\n'.join(lines) + '\n')

  def write_transcripts(self, lines):
    path = self.source / 'etc' / 'an4_train.transcription'
    path.write_text('\n'.join(lines) + '\n')

  def list(self):
    return an4.list_utterances(self.source, split='train')

  def test_lists_utterances(self):
    self.assertEqual(
        [(u.client_id, u.utterance_id, u.transcript) for u in self.list()],
        [
            ('fash', 'an251-fash-b', 'yes'),
            ('mkem', 'cen6-mkem-b', 'rubout t g'),
        ],
    )

  def test_missing_parts(self):
    with self.assertRaisesRegex(ValueError, 'no/where is not a folder'):
      an4.list_utterances('no/where', split='train')
    with self.assertRaisesRegex(ValueError, "split must be .* found 'dev'"):
      an4.list_utterances(self.source, split='dev')
    with self.assertRaisesRegex(ValueError, 'an4_test.fileids is missing'):
      an4.list_utterances(self.source, split='test')
    (self.source / 'wav/an4_clstk/fash/an251-fash-b.sph').unlink()
    with self.assertRaisesRegex(ValueError, 'an251-fash-b.sph is listed but'):
      self.list()

  def test_lists_that_disagree(self):
    self.write_transcripts(['YES (an251-fash-b)'])
    with self.assertRaisesRegex(ValueError, 'cen6-mkem-b has no transcript'):
      self.list()
    self.write_transcripts(
        ['A (an251-fash-b)', 'B (cen6-mkem-b)', 'C (more-mkem-b)']
    )
    with self.assertRaisesRegex(ValueError, 'not list utterance more-mkem-b'):
      self.list()

  def test_bad_lines(self):
    self.write_transcripts(['<s> YES </s>'])
    with self.assertRaisesRegex(ValueError, 'cannot read .*YES'):
      self.list()
    self.write_transcripts(['5 (an251-fash-b)'])
    with self.assertRaisesRegex(ValueError, "an251-fash-b: .*'5'"):
      self.list()
    self.write_list(['an251-fash-b'])
    self.write_transcripts(['A (an251-fash-b)'])
    with self.assertRaisesRegex(ValueError, 'is not FOLDER/SPEAKER/NAME'):
      self.list()

  @_WITH_SPEECH
  def test_real_training_part(self):
    output = self.source / 'out'
    summaries = conversion.convert(
        an4.list_utterances,
        corpus='AN4',
        source_dir=os.path.join(_SPEECH, 'an4'),
        output_dir=output,
        splits=['train'],
        partition='public=24,private=rest,test=10',
    )
    self.assertEqual(sum(s['num_clients'] for s in summaries.values()), 74)
    self.assertEqual(sum(s['num_utterances'] for s in summaries.values()), 948)
    self.assertAlmostEqual(
        sum(s['hours'] for s in summaries.values()), 0.707, delta=0.001
    )
    data = client_data.load(output / 'train.test')
    self.assertLen(data.client_ids, 10)
    client_id = data.client_ids[0]
    for element in data.create_tf_dataset_for_client(client_id):
      name = element['utterance_id'].numpy().decode()
      expected, _ = soundfile.read(
          os.path.join(_SPEECH, 'an4/wav/an4_clstk', client_id, f'{name}.sph'),
          dtype='int16',
      )
      np.testing.assert_array_equal(element['waveform'], expected)


if __name__ == '__main__':
  absltest.main()
