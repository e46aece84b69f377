import dataclasses
import json
import os
import pathlib

import numpy as np

from data_tools import conversion
from data_tools import shards
from data_tools import utterances
from tests import cases
from tff_asr.data import client_data
from tff_asr.data import speakers


def _list_utterances(unused_source_dir, *, split):
  """Six speakers with two utterances each, of 0.1 to 0.6 s."""
  listed = [
      shards.Utterance(
          client_id=f'{split}-{speaker}',
          utterance_id=str(i),
          transcript='yes',
          audio=lambda n=1600 * (speaker + 1): np.arange(n, dtype=np.int16),
      )
      for speaker in range(6)
      for i in range(2)
  ]
  problem = shards.Problem('dev-5', 'x', 'has no audio file', 'x: none')
  speakerless = shards.Problem('', 'y', 'has no transcript', 'y: none')
  ids = [utterance.client_id for utterance in listed]
  said = {'gender': {i: frozenset([_gender(i)]) for i in ids}, 'age': {}}
  return utterances.Listing(listed, [problem, speakerless], said)


_PARTS = ('public', 'other', 'private')


def _gender(client_id: str) -> str:
  return 'female' if client_id[-1] in '024' else 'male'


class ConversionTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.output_dir, self.source = self.path('out'), self.path('in')
    os.mkdir(self.output_dir)
    os.mkdir(self.source)

  def convert(self, list_utterances=_list_utterances, **changes):
    arguments = dict(
        source_dir=self.source,
        output_dir=self.output_dir,
        splits=['dev', 'test'],
        num_workers=0,
    )
    corpus = conversion.Corpus(
        name='test',
        namespace='test',
        list_utterances=list_utterances,
        holds_split=lambda folder, split: False,
        default_splits=(),
    )
    return conversion.convert(corpus, **(arguments | changes))

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

  def speakers_of(self, name):
    return client_data.load(os.path.join(self.output_dir, name)).client_ids

  def test_joined_splits_have_each_client_once(self):
    def list_utterances(source_dir, *, split):
      listing = _list_utterances(source_dir, split='x')
      named = [
          dataclasses.replace(u, utterance_id=f'{split}{u.utterance_id}')
          for u in listing.utterances
      ]
      genders = {'x-0': frozenset([split]), 'x-1': frozenset(['male'])}
      return utterances.Listing(named, listing.problems, {'gender': genders})

    summary = self.convert(
        list_utterances,
        splits=['both=a+b'],
        partition='public=2,private=rest',
    )
    self.assertEqual(list(summary), ['both.public', 'both.private'])
    self.assertEqual([s['num_clients'] for s in summary.values()], [2, 4])
    self.assertEqual([s['num_utterances'] for s in summary.values()], [8, 16])
    # What both splits tell of the corpus counts once.
    self.assertEqual(
        summary['both.public']['dropped'],
        {'has no audio file': 1, 'has no transcript': 1},
    )
    # The splits contradict each other on the first speaker.
    genders = [s['attributes']['gender'] for s in summary.values()]
    for name in ('known', 'contradictory'):
      self.assertEqual(sum(gender[name] for gender in genders), 1)
    found = self.read_speakers('both.public')
    found |= self.read_speakers('both.private')
    self.assertEqual(found, {'x-1': {'gender': 'male'}})

  def test_a_part_is_a_folder_and_parts_share_no_speaker(self):
    spec = 'public=2,other=2,private=rest'
    written = self.convert(partition=spec)
    self.assertEqual(
        list(written),
        [f'{s}.{p}' for s in ('dev', 'test') for p in _PARTS],
    )
    parts = [self.speakers_of(f'dev.{part}') for part in _PARTS]
    self.assertEqual([len(part) for part in parts], [2, 2, 2])
    self.assertLen(set(sum(parts, [])), 6)
    folder = os.path.join(self.output_dir, 'dev.public')
    origin = client_data.load(folder).corpus.origin
    self.assertEqual((origin['part'], origin['partition']), ('public', spec))
    # What is said of speakers, and what cannot be used, goes with their part.
    for part, ids in zip(_PARTS, parts):
      self.assertEqual(
          self.read_speakers(f'dev.{part}'),
          {i: {'gender': _gender(i)} for i in ids},
      )
      self.assertEqual(
          written[f'dev.{part}']['attributes'],
          {
              'gender': {'known': 2, 'contradictory': 0},
              'age': {'known': 0, 'contradictory': 0},
          },
      )
      self.assertEqual(
          written[f'dev.{part}']['dropped'].get('has no audio file', 0),
          int('dev-5' in ids),
      )
      self.assertEqual(
          written[f'dev.{part}']['dropped'].get('has no transcript', 0),
          int(part == 'public'),
      )
    with self.assertRaisesRegex(
        ValueError,
        'holds another corpus, with other --partition_seed, .*Pass --overwrite',
    ):
      self.convert(partition=spec, partition_seed=2)

  def test_speakers_without_anything_usable_are_dealt_to_no_part(self):
    silent = lambda n=1600: np.zeros(n, np.int16)
    missing = self.path('none.wav')

    def list_utterances(source_dir, *, split):
      listing = _list_utterances(source_dir, split=split)
      broken = {'dev-0': silent, 'dev-1': missing, 'dev-2': None}
      return listing._replace(utterances=[
          dataclasses.replace(u, audio=broken[u.client_id] or u.audio,
                              transcript='' if u.client_id == 'dev-2' else 'a')
          if u.client_id in broken else u
          for u in listing.utterances
      ])

    # With any seed, each part has one of the three who can be used.
    for seed in range(1, 9):
      written = self.convert(
          list_utterances, splits=['dev'], partition='a=1,b=1,c=rest',
          partition_seed=seed, overwrite=True,
      )
      self.assertEqual([s['num_clients'] for s in written.values()], [1, 1, 1])
      self.assertCountEqual(
          sum((self.speakers_of(f'dev.{part}') for part in 'abc'), []),
          ['dev-3', 'dev-4', 'dev-5'],
      )
      # The others are reported once, with the first part.
      self.assertEqual(written['dev.a']['dropped'], {
          'is silent': 2, 'cannot be opened': 2, 'has an empty transcript': 2,
          'has no transcript': 1,
      } | written['dev.a']['dropped'])
    with self.assertRaisesRegex(ValueError, 'asks for 4 .*there are 3'):
      self.convert(list_utterances, splits=['dev'], partition='d=4')
    # A file may name them.
    pathlib.Path(self.path('named')).write_text('dev-0\ndev-4\n')
    written = self.convert(
        list_utterances, splits=['dev'],
        partition=f'd=1,e=@{self.path("named")}',
    )
    self.assertEqual(self.speakers_of('dev.e'), ['dev-4'])
    self.assertEqual(written['dev.e']['dropped'], {'is silent': 2})

  def test_bad_arguments_write_nothing(self):
    unreadable = 'splits holds .*NAME=A.B'
    for changes, message in (
        (dict(partition='public=7'), 'asks for 7 speakers'),
        (dict(source_dir='no/where'), 'no/where is not a folder'),
        (dict(splits=['dev', 'both=a+']), unreadable),
        (dict(splits=['dev', '=a+b']), unreadable),
        (dict(splits=['dev', 'both=']), unreadable),
        (dict(splits=['dev', 'both=a+a']), unreadable),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.convert(**changes)
    self.assertEmpty(os.listdir(self.output_dir))

  def test_iid_keeps_utterances_and_parts_but_not_speakers(self):
    written = self.convert(
        partition='a=3,b=rest', is_iid=True, splits=['dev']
    )
    self.assertCountEqual(
        os.listdir(self.output_dir), ['dev.a.iid', 'dev.b.iid', 'summary.json']
    )
    a, b = (self.speakers_of(f'dev.{part}.iid') for part in 'ab')
    self.assertEmpty(set(a) & set(b))
    self.assertEqual([s['num_utterances'] for s in written.values()], [6, 6])
    self.assertEqual(written['dev.a.iid']['attributes'], {})
    self.assertEqual(self.read_speakers('dev.a.iid'), {})
    with self.assertRaisesRegex(ValueError, 'names gender, but with iid'):
      self.convert(is_iid=True, splits=['dev'], attributes=['gender'])

  def read_speakers(self, name):
    corpus = client_data.load(os.path.join(self.output_dir, name)).corpus
    return speakers.read_attributes(corpus)

  def test_attributes_can_be_left_out_and_put_back(self):
    shard = os.path.join(self.output_dir, 'dev/shard-00000.tfrecord')
    with_all = self.convert(splits=['dev'])
    stamp = os.stat(shard).st_ino
    without = self.convert(splits=['dev'], attributes=[])
    self.assertEqual(without['dev'], with_all['dev'] | {'attributes': {}})
    self.assertEqual(self.read_speakers('dev'), {})
    for name in ('summary.json', 'dev/summary.json'):
      path = os.path.join(self.output_dir, name)
      found = json.loads(pathlib.Path(path).read_text())
      self.assertEqual(found.get('dev', found), without['dev'])
    # As shards of before there were any, which get them when asked again.
    self.assertEqual(self.convert(splits=['dev']), with_all)
    self.assertLen(self.read_speakers('dev'), 6)
    self.assertEqual(os.stat(shard).st_ino, stamp)
    kept = self.convert(splits=['dev'], attributes=['age', 'gender'])
    self.assertEqual(list(kept['dev']['attributes']), ['age', 'gender'])
    message = "attributes names 'sex', but the corpus says gender, age of"
    with self.assertRaisesRegex(ValueError, message):
      self.convert(splits=['dev'], attributes=['sex'])
