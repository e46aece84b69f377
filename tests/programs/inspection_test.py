"""Tests of tff_asr.programs.inspection."""

import os
import pathlib

from tests import cases
from tests import fakes
from tff_asr.data import index
from tff_asr.data import speakers
from tff_asr.programs import inspection


class InspectionTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    for name, counts in (('a', {'ann': 3, 'bob': 5}), ('b', {'cai': 1})):
      fakes.write_split(self.path(name), counts)
    os.mkdir(self.path('other'))

  def test_finds_folders(self):
    a, b = (self.path(name) for name in 'ab')
    self.assertEqual(inspection.find_folders([self.root]), [a, b])
    self.assertEqual(inspection.find_folders([b]), [b])
    for path in (self.path('other'), 'no/where'):
      with self.assertRaisesRegex(
          ValueError, f'{path} is not a folder of shards'
      ):
        inspection.find_folders([path])

  def test_table_and_checksums(self):
    folders = inspection.find_folders([self.root])
    text = inspection.describe(folders, is_verified=True)
    self.assertRegex(text, r'\| a +\| +0\.00 \| +8 \| +2 \|')
    self.assertRegex(text, r'\| b +\| +0\.00 \| +1 \| +1 \|')
    self.assertIn('b: every shard has its checksum.', text)
    speakers.write_attributes(
        folders[1], {'age': {'cai': frozenset(['teens'])}}
    )
    text = inspection.describe(folders, is_verified=True)
    self.assertIn('b: age known for 1 of 1 speakers', text)
    pathlib.Path(folders[1], speakers.SPEAKERS_FILE).write_text(
        'client_id\tage\ncai\ttwenties\n'
    )
    with self.assertRaisesRegex(ValueError, 'Damaged, .*/b/speakers.tsv. Copy or write'):
      inspection.describe(folders, is_verified=True)
    path = os.path.join(folders[0], index.shard_name(0))
    fakes.damage(path, offset=100)
    inspection.describe(folders)
    with self.assertRaisesRegex(
        ValueError, 'shard-00000.*with the clients ann, bob.'
    ):
      inspection.describe(folders, is_verified=True)

  def test_records_of_a_client(self):
    lines = inspection.describe_client(
        self.path('a'), 'ann'
    ).splitlines()
    self.assertLen(lines, 4)
    self.assertStartsWith(lines[0], 'ann: 3 utterances, ')
    for i, example in enumerate(fakes.examples('ann', 3)):
      seconds = len(example['waveform']) / 16000
      self.assertEqual(
          lines[i + 1],
          f'  ann-{i}  {seconds:.2f} s  {example["transcript"]}',
      )
    with self.assertRaisesRegex(ValueError, 'client eve'):
      inspection.describe_client(self.path('a'), 'eve')

  def test_padding_is_that_of_the_batches(self):
    folder = self.path('a')
    frames = {
        client_id: sorted(
            1 + (len(e['waveform']) - 400) // 160
            for e in fakes.examples(client_id, count)
        )
        for client_id, count in (('ann', 3), ('bob', 5))
    }
    used = sum(map(sum, frames.values()))
    padded = sum(len(each) * each[-1] for each in frames.values())
    # One batch a client, as nothing bounds them.
    self.assertIn(
        f': {1 - used / padded:.1%} of frames are padding, in 2 batches of at'
        ' most 120 s of 2 clients; 0 utterances',
        inspection.padding(folder, max_batch_sec=120.0, max_padding=1.0),
    )
