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
from tff_asr.data import speakers


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
  ids = [utterance.client_id for utterance in listed]
  said = {'gender': {i: frozenset([_gender(i)]) for i in ids}, 'age': {}}
  return utterances.Listing(listed, [problem, nobody], said)


def _gender(client_id: str) -> str:
  return 'female' if client_id[-1] in '024' else 'male'


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

  def read_speakers(self, name):
    corpus = client_data.load(os.path.join(self.output_dir, name)).corpus
    return speakers.read(corpus)

  def test_each_part_has_its_own_speakers(self):
    written = self.convert(partition='a=2,b=3', splits=['dev'])
    for part, count in (('dev.a', 2), ('dev.b', 3)):
      ids = client_data.load(os.path.join(self.output_dir, part)).client_ids
      self.assertEqual(
          self.read_speakers(part), {i: {'gender': _gender(i)} for i in ids}
      )
      self.assertEqual(
          written[part]['attributes'],
          {
              'gender': {'known': count, 'contradictory': 0},
              'age': {'known': 0, 'contradictory': 0},
          },
      )

  def test_joined_splits_that_contradict_each_other(self):
    def list_utterances(source_dir, *, split):
      listing = _list_utterances(source_dir, split='x')
      said = {'gender': {
          'src-x-0': frozenset([split]), 'src-x-1': frozenset(['male'])
      }}
      return utterances.Listing(
          listing.utterances[:4] if split == 'a' else (), (), said
      )

    written = conversion.convert(
        dataclasses.replace(_CORPUS, list_utterances=list_utterances),
        source_dir='src',
        output_dir=self.output_dir,
        splits=['both=a+b'],
        num_workers=0,
    )
    self.assertEqual(
        written['both']['attributes'],
        {'gender': {'known': 1, 'contradictory': 1}},
    )
    self.assertEqual(
        self.read_speakers('both'), {'src-x-1': {'gender': 'male'}}
    )

  def test_attributes_can_be_left_out_and_put_back(self):
    shard = os.path.join(self.output_dir, 'dev/shard-00000.tfrecord')
    with_all = self.convert(splits=['dev'])
    stamp = os.stat(shard).st_ino
    without = self.convert(splits=['dev'], attributes=[])
    self.assertEqual(without['dev'], with_all['dev'] | {'attributes': {}})
    self.assertEqual(self.read_speakers('dev'), {})
    for name in ('summary.json', 'dev/summary.json'):
      path = os.path.join(self.output_dir, name)
      with open(path, encoding='utf-8') as f:
        found = json.load(f)
      self.assertEqual(found.get('dev', found), without['dev'])
    # As shards of before there were any, which get them when asked again.
    self.assertEqual(self.convert(splits=['dev']), with_all)
    self.assertLen(self.read_speakers('dev'), 6)
    self.assertEqual(os.stat(shard).st_ino, stamp)
    with self.assertRaisesRegex(ValueError, "attributes names 'sex'"):
      self.convert(splits=['dev'], attributes=['sex'])

  def test_nothing_is_said_of_speakers_with_the_utterances_of_others(self):
    written = self.convert(is_iid=True, splits=['dev'])
    self.assertEqual(written['dev.iid']['attributes'], {})
    self.assertEqual(self.read_speakers('dev.iid'), {})
    with self.assertRaisesRegex(ValueError, 'names gender, but with iid'):
      self.convert(is_iid=True, splits=['dev'], attributes=['gender'])

  def test_another_seed_is_another_corpus(self):
    self.convert(partition='a=3')
    with self.assertRaisesRegex(ValueError, 'holds another corpus'):
      self.convert(partition='a=3', partition_seed=2)


if __name__ == '__main__':
  absltest.main()
