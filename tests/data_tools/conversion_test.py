import os
import tempfile

from absl.testing import absltest
import numpy as np

from data_tools import conversion
from data_tools import shards
from tff_asr.data import client_data


def _list_utterances(source_dir, *, split):
  """Six speakers with two utterances each."""
  return [
      shards.Utterance(
          client_id=f'{source_dir}-{split}-{speaker}',
          utterance_id=str(i),
          transcript='yes',
          audio=lambda: np.ones(1600, np.int16),
      )
      for speaker in range(6)
      for i in range(2)
  ]


class ConversionTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.output_dir = self.enterContext(tempfile.TemporaryDirectory())

  def convert(self, **changes):
    arguments = dict(
        corpus='test',
        source_dir='src',
        output_dir=self.output_dir,
        splits=['dev', 'test'],
    )
    return conversion.convert(_list_utterances, **(arguments | changes))

  def test_a_split_is_a_folder(self):
    summaries = self.convert()
    self.assertEqual(list(summaries), ['dev', 'test'])
    self.assertCountEqual(os.listdir(self.output_dir), ['dev', 'test'])
    corpus = client_data.load(os.path.join(self.output_dir, 'test')).corpus
    self.assertEqual(corpus.origin['split'], 'test')
    self.assertNotIn('part', corpus.origin)

  def test_a_part_is_a_folder_and_parts_share_no_speaker(self):
    summaries = self.convert(partition='public=2,private=rest')
    self.assertEqual(
        list(summaries),
        ['dev.public', 'dev.private', 'test.public', 'test.private'],
    )
    public, private = (
        client_data.load(os.path.join(self.output_dir, name))
        for name in ('dev.public', 'dev.private')
    )
    self.assertLen(public.client_ids, 2)
    self.assertLen(set(public.client_ids + private.client_ids), 6)
    self.assertEqual(public.corpus.origin['part'], 'public')
    self.assertEqual(
        public.corpus.origin['partition'], 'public=2,private=rest'
    )

  def test_bad_partition_writes_nothing(self):
    with self.assertRaisesRegex(ValueError, 'asks for 7 speakers'):
      self.convert(partition='public=7')
    with self.assertRaisesRegex(ValueError, 'at least one split'):
      self.convert(splits=[])
    self.assertEmpty(os.listdir(self.output_dir))

  def test_another_seed_is_another_corpus(self):
    self.convert(partition='a=3')
    with self.assertRaisesRegex(ValueError, 'holds another corpus'):
      self.convert(partition='a=3', partition_seed=2)


if __name__ == '__main__':
  absltest.main()
