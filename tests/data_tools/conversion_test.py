import dataclasses
import json
import os
import tempfile

from absl.testing import absltest
import numpy as np

from data_tools import conversion
from data_tools import shards
from data_tools import utterances
from tff_asr.data import client_data


def _list_utterances(source_dir, *, split):
  """Six speakers with two utterances each, of 0.1 to 0.6 s."""
  listed = [
      shards.Utterance(
          client_id=f'{source_dir}-{split}-{speaker}',
          utterance_id=str(i),
          transcript='yes',
          audio=lambda n=1600 * (speaker + 1): np.ones(n, np.int16),
      )
      for speaker in range(6)
      for i in range(2)
  ]
  problem = shards.Problem('src-dev-5', 'x', 'has no audio file', 'x: none')
  nobody = shards.Problem('', 'y', 'has no transcript', 'y: none')
  return utterances.Listing(listed, [problem, nobody])


_CORPUS = conversion.Corpus(
    name='test',
    list_utterances=_list_utterances,
    holds_split=lambda folder, split: False,
    default_splits=(),
)


class ConversionTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.output_dir = self.enterContext(tempfile.TemporaryDirectory())

  def convert(self, **changes):
    arguments = dict(
        source_dir='src',
        output_dir=self.output_dir,
        splits=['dev', 'test'],
        num_workers=0,
    )
    return conversion.convert(_CORPUS, **(arguments | changes))

  def test_a_split_is_a_folder(self):
    summaries = self.convert()
    self.assertEqual(list(summaries), ['dev', 'test'])
    self.assertCountEqual(
        os.listdir(self.output_dir), ['dev', 'test', 'summary.json']
    )
    with open(
        os.path.join(self.output_dir, 'summary.json'), encoding='utf-8'
    ) as f:
      self.assertEqual(json.load(f), summaries)
    corpus = client_data.load(os.path.join(self.output_dir, 'test')).corpus
    self.assertEqual(corpus.origin['split'], 'test')
    self.assertNotIn('part', corpus.origin)

  def test_joined_splits_have_each_client_once(self):
    def list_utterances(source_dir, *, split):
      listing = _list_utterances(source_dir, split='x')
      named = [
          dataclasses.replace(u, utterance_id=f'{split}{u.utterance_id}')
          for u in listing.utterances
      ]
      return utterances.Listing(named, listing.problems)

    corpus = dataclasses.replace(_CORPUS, list_utterances=list_utterances)
    summary = conversion.convert(
        corpus,
        source_dir='src',
        output_dir=self.output_dir,
        splits=['both=a+b'],
        partition='public=2,private=rest',
        num_workers=0,
    )
    self.assertEqual(list(summary), ['both.public', 'both.private'])
    self.assertEqual([s['num_clients'] for s in summary.values()], [2, 4])
    self.assertEqual([s['num_utterances'] for s in summary.values()], [8, 16])
    # What both splits tell of the corpus counts once.
    self.assertEqual(
        summary['both.public']['dropped'],
        {'has no audio file': 1, 'has no transcript': 1},
    )

  def test_unreadable_joined_splits(self):
    for split in ('both=a+', '=a+b', 'both=', 'both=a+a'):
      with self.assertRaisesRegex(ValueError, 'splits holds .*NAME=A.B'):
        self.convert(splits=[split])

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

  def test_problems_go_with_their_speakers_part(self):
    written = self.convert(partition='a=@' + self.list_of('src-dev-5'),
                           splits=['dev'])
    self.assertEqual(
        written['dev.a']['dropped'],
        {'has no audio file': 1, 'has no transcript': 1},
    )
    written = self.convert(
        partition='b=longest:1,c=rest', splits=['dev']
    )
    self.assertEqual(
        [written[f'dev.{part}']['dropped'] for part in 'bc'],
        [{'has no audio file': 1, 'has no transcript': 1}, {}],
    )

  def list_of(self, *speakers):
    path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'l')
    with open(path, 'w', encoding='utf-8') as f:
      f.write('\n'.join(speakers))
    return path

  def test_parts_of_the_longest_and_the_shortest(self):
    self.convert(
        partition='long=longest:2,short=shortest:1,rest=rest', splits=['dev']
    )
    ids = {
        part: client_data.load(
            os.path.join(self.output_dir, f'dev.{part}')
        ).client_ids
        for part in ('long', 'short', 'rest')
    }
    self.assertEqual(ids['long'], ['src-dev-4', 'src-dev-5'])
    self.assertEqual(ids['short'], ['src-dev-0'])
    self.assertLen(ids['rest'], 3)

  def test_iid_keeps_utterances_and_parts_but_not_speakers(self):
    self.convert(partition='a=3,b=rest', is_iid=True, splits=['dev'])
    self.assertCountEqual(
        os.listdir(self.output_dir), ['dev.a.iid', 'dev.b.iid', 'summary.json']
    )
    a, b = (
        client_data.load(os.path.join(self.output_dir, f'dev.{part}.iid'))
        for part in 'ab'
    )
    self.assertEqual(a.corpus.num_utterances, 6)
    self.assertEqual(b.corpus.num_utterances, 6)
    self.assertEmpty(set(a.client_ids) & set(b.client_ids))

  def test_another_seed_is_another_corpus(self):
    self.convert(partition='a=3')
    with self.assertRaisesRegex(ValueError, 'holds another corpus'):
      self.convert(partition='a=3', partition_seed=2)


if __name__ == '__main__':
  absltest.main()
