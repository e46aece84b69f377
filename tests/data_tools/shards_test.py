import collections
import dataclasses
import json
import os
import pathlib
from unittest import mock

from absl.testing import parameterized
import numpy as np
import soundfile

from data_tools import parallel_encoding
from data_tools import partial_split
from data_tools import shards
from data_tools import utterances as utterances_lib
from tests import cases
from tff_asr.data import audio
from tff_asr.data import client_data
from tff_asr.data import index
from tff_asr.data import split_summary


def _samples(i: int) -> np.ndarray:
  rng = np.random.default_rng(i)
  return rng.integers(-3000, 3000, 1600 * (i + 1)).astype(np.int16)


class ShardsTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.output_dir = self.path('deep', 'split')
    self.utterances = []
    for i, client_id in enumerate(['b', 'a', 'b', 'c', 'a', 'b']):
      path = self.path(f'{i}.flac')
      soundfile.write(path, _samples(i), 16000, subtype='PCM_16')
      self.utterances.append(
          shards.Utterance(client_id, f'{client_id}-{i}', 'some words', path)
      )

  def write(self, utterances=None, **changes):
    arguments = dict(origin={'corpus': 'test', 'part': ['x']}, num_workers=0)
    return shards.write_split(
        self.utterances if utterances is None else utterances,
        self.output_dir,
        **(arguments | changes),
    )

  def test_recordings_are_for_their_owner_alone_also_while_written(self):
    before = os.umask(0o022)
    self.addCleanup(os.umask, before)
    os.makedirs(self.path('deep'))
    found = collections.Counter()

    def look():
      for folder, _, names in os.walk(self.path('deep')):
        if folder != self.path('deep'):
          found['folder', os.stat(folder).st_mode & 0o777] += 1
        for name in names:
          mode = os.stat(os.path.join(folder, name)).st_mode & 0o777
          found[os.path.splitext(name)[1], mode] += 1

    commit = partial_split.PartialSplit.commit

    def look_and_commit(partial, *arguments, **options):
      look()
      commit(partial, *arguments, **options)

    attributes = {'gender': {'a': frozenset({'f'})}}
    with mock.patch.object(
        partial_split.PartialSplit, 'commit', look_and_commit
    ):
      self.write(max_shard_bytes=1)
    look()
    # Attributes are updated in a split that exists.
    self.write(max_shard_bytes=1, attributes=attributes)
    look()
    self.assertEqual({mode for _, mode in found}, {0o600, 0o700}, found)
    self.assertEqual(
        {kind for kind, mode in found if mode == 0o700}, {'folder'}
    )
    self.assertContainsSubset(
        {'.tfrecord', '.tsv', '.json', '.jsonl'},
        {kind for kind, _ in found},
    )
    # What others make of this process has its own mode again.
    self.assertEqual(os.umask(0o022), 0o022)

  @parameterized.parameters('pcm', 'flac')
  def test_identical_recordings_are_counted_or_left_out(self, encoding):
    # Samples of 2 thrice, by two speakers, under other names and in another
    # file format; of 4 twice, by one; and silence, which is not a copy.
    for i, name in enumerate(('x.wav', 'y.wav')):
      soundfile.write(self.path(name), _samples(2), 16000, subtype='PCM_16')
      self.utterances.append(
          shards.Utterance('ac'[i], f'copy-{i}', 'other words', self.path(name))
      )
    self.utterances.append(dataclasses.replace(
        self.utterances[4], utterance_id='again'
    ))
    for client_id in 'abc':
      self.utterances.append(shards.Utterance(
          client_id, f'{client_id}-z', '', lambda: np.zeros([160], np.int16)
      ))
    self.utterances[-3:] = [
        dataclasses.replace(each, transcript=None)
        for each in self.utterances[-3:]
    ]
    settings = dict(encoding=encoding, max_shard_bytes=1)
    summary = self.write(**settings)
    self.assertEqual(
        summary['copies'], {'records': 3, 'most': 3, 'speakers': 3}
    )
    self.assertEqual(summary['num_utterances'], 12)
    (line,) = [
        line
        for line in split_summary.remarks('train', summary)
        if 'identical' in line
    ]
    self.assertIn('3 are copies, up to 3 are the same; 3 speakers', line)
    with self.assertRaisesRegex(
        ValueError, 'another corpus, with other --drop_copies. Pass --overwrite'
    ):
      self.write(drop_copies=True, **settings)
    self.write(drop_copies=True, overwrite=True, **settings)
    corpus = index.read(self.output_dir).corpus
    self.assertEqual(
        corpus.origin['copies'], {'records': 0, 'most': 1, 'speakers': 0}
    )
    self.assertEqual(corpus.num_utterances, 9)
    self.assertEqual(
        corpus.origin['dropped'], {'is a copy of another recording': 3}
    )

  def test_copies_of_what_an_interrupted_run_wrote_are_found(self):
    # One shard a client: of 'a' before, of 'c' after the interruption.
    self.utterances[3] = dataclasses.replace(
        self.utterances[3], audio=self.utterances[1].audio
    )
    commit = partial_split.PartialSplit.commit

    def commit_and_end(partial, *arguments, **options):
      commit(partial, *arguments, **options)
      raise KeyboardInterrupt

    for drop_copies, expected in ((False, 1), (True, 0)):
      settings = dict(
          max_shard_bytes=1, drop_copies=drop_copies, overwrite=True
      )
      with mock.patch.object(
          partial_split.PartialSplit, 'commit', commit_and_end
      ), self.assertRaises(KeyboardInterrupt):
        self.write(**settings)
      summary = self.write(**settings)
      self.assertEqual(summary['copies']['records'], expected)
      self.assertEqual(summary['num_utterances'], 5 + expected)

  @parameterized.parameters('path', 'clip', 'activity')
  def test_a_source_of_the_same_name_and_another_size_is_another(self, kind):
    # The second recording of 'b', of the second shard.
    path = self.utterances[2].audio
    if kind == 'clip':
      self.utterances[2] = dataclasses.replace(
          self.utterances[2], audio=utterances_lib.Clip(path, 0.0, 0.1)
      )
    if kind == 'activity':
      path = self.path('2.json')
      pathlib.Path(path).write_text('{"voice_activity": [[0.0, 0.1]]}')
      self.utterances[2] = dataclasses.replace(
          self.utterances[2], cutting=utterances_lib.Cutting(1.0, path)
      )

    def change():
      if kind == 'activity':
        pathlib.Path(path).write_text('{"voice_activity": [[0.0, 0.125]]}')
      else:
        soundfile.write(path, _samples(20), 16000, subtype='PCM_16')

    self.write()
    kept = pathlib.Path(path).read_bytes()
    change()
    with self.assertRaisesRegex(
        ValueError,
        'was written before these changed: ids, transcripts, or names or sizes '
        'of audio files. Pass --overwrite',
    ):
      self.write()
    self.write(overwrite=True)
    expected = cases.digests(self.output_dir)
    # Nor are shards gone on with that were finished before.
    pathlib.Path(path).write_bytes(kept)
    with mock.patch.object(
        partial_split.PartialSplit, 'move_into_place', side_effect=OSError
    ), self.assertRaises(OSError):
      self.write(overwrite=True)
    change()
    self.output_dir += '2'
    partial = self.path('deep', '.split.partial')
    os.rename(partial, self.path('deep', '.split2.partial'))
    self.write()
    self.assertEqual(cases.digests(self.output_dir), expected)

  @parameterized.parameters(
      # a: 2 + 5 tenths of a second, 22 kB; b: 1 + 3 + 6, 32 kB; c: 4, 13 kB.
      (1, [0, 1, 2]), (30_000, [0, 0, 1]), (2**30, [0, 0, 0])
  )
  def test_a_full_shard_gets_no_further_client_and_nothing_is_lost(
      self, max_shard_bytes, expected
  ):
    self.write(max_shard_bytes=max_shard_bytes)
    data = client_data.load(self.output_dir)
    found = {
        e['utterance_id'].decode(): e
        for client_id in data.client_ids
        for e in data.create_tf_dataset_for_client(
            client_id
        ).as_numpy_iterator()
    }
    self.assertLen(found, 6)
    for i, utterance in enumerate(self.utterances):
      element = found[utterance.utterance_id]
      np.testing.assert_array_equal(element['waveform'], _samples(i))
    self.assertAlmostEqual(data.duration_sec('c'), 0.4)
    client_data.verify(self.output_dir)
    clients = index.read(self.output_dir).clients
    self.assertEqual(clients.client_ids, ['a', 'b', 'c'])
    self.assertEqual(clients.num_utterances.tolist(), [2, 3, 1])
    self.assertEqual(clients.shards.tolist(), expected)

  @parameterized.parameters(1, 2**30)
  def test_files_do_not_depend_on_order_or_workers(self, max_shard_bytes):
    self.utterances[1] = dataclasses.replace(
        self.utterances[1], changes=['lost digits'], transcript='xyz'
    )
    os.truncate(self.utterances[3].audio, 0)
    self.write(max_shard_bytes=max_shard_bytes)
    first = cases.digests(self.output_dir)
    for number, order in enumerate(([5, 4, 3, 2, 1, 0], [1, 3, 5, 0, 2, 4])):
      self.output_dir += '2'
      self.write(
          [self.utterances[i] for i in order],
          max_shard_bytes=max_shard_bytes,
          num_workers=3 * number,
      )
      self.assertEqual(cases.digests(self.output_dir), first)

  def test_every_shard_counts(self):
    # What differs is in the first, the second and the third shard alone.
    for i, change in ((1, 'x'), (0, 'y'), (3, 'z')):
      self.utterances[i] = dataclasses.replace(
          self.utterances[i], changes=[change], transcript=change
      )
    for i, rate_hz in ((4, 48000), (5, 44100)):
      soundfile.write(self.utterances[i].audio, _samples(i), rate_hz)
    os.truncate(self.utterances[2].audio, 0)
    empty = shards.Utterance('c', 'c-9', '', self.utterances[3].audio)
    summary = self.write([*self.utterances, empty], max_shard_bytes=1)
    corpus = index.read(self.output_dir).corpus
    self.assertLen(corpus.shards, 3)
    self.assertEqual(corpus.characters, ' demorswxyz')
    self.assertEqual(
        summary['dropped'], {'is empty': 1, 'has an empty transcript': 1}
    )
    self.assertEqual(
        summary['changed'],
        {
            'files of 44100 Hz were resampled to 16000 Hz': 1,
            'files of 48000 Hz were resampled to 16000 Hz': 1,
            'transcripts x': 1,
            'transcripts y': 1,
            'transcripts z': 1,
        },
    )

  @parameterized.named_parameters(
      ('encoding', dict(encoding='flac')),
      ('origin', dict(origin={'corpus': 'other'})),
      ('limit', dict(max_utterance_sec=9.0)),
      ('transcript', dict(utterances=(3, dict(transcript='other words')))),
      ('client', dict(utterances=(0, dict(client_id='d')))),
      ('id', dict(utterances=(5, dict(utterance_id='b-6')))),
      ('audio', dict(utterances=(4, 'audio'))),
      ('left_out', dict(problems=[shards.Problem('z', '1', 'is gone', 'x')])),
  )
  def test_a_corpus_is_neither_written_twice_nor_overwritten(self, changes):
    summary = self.write()
    stamp = os.stat(os.path.join(self.output_dir, index.shard_name(0)))
    self.assertEqual(self.write(), summary)
    again = os.stat(os.path.join(self.output_dir, index.shard_name(0)))
    self.assertEqual(stamp.st_ino, again.st_ino)
    before = cases.digests(self.output_dir)
    if 'utterances' in changes:
      i, change = changes['utterances']
      if change == 'audio':
        change = dict(audio=self.utterances[i + 1].audio)
      self.utterances[i] = dataclasses.replace(self.utterances[i], **change)
      changes = {}
    with self.assertRaisesRegex(
        ValueError, '(holds another corpus|was written before).*overwrite'
    ):
      self.write(**changes)
    self.assertEqual(cases.digests(self.output_dir), before)
    self.write(overwrite=True, **changes)
    self.assertNotEqual(cases.digests(self.output_dir), before)
    self.assertEqual(os.listdir(os.path.dirname(self.output_dir)), ['split'])

  def test_other_files_are_never_overwritten(self):
    os.makedirs(self.output_dir)
    note = os.path.join(self.output_dir, 'note')
    pathlib.Path(note).write_text('mine')
    with self.assertRaisesRegex(ValueError, 'choose another folder'):
      self.write(overwrite=True)
    self.assertTrue(os.path.exists(note))
    os.remove(note)
    self.write()

  def test_broken_audio_is_named_and_nothing_is_left(self):
    os.truncate(self.utterances[3].audio, 900)
    for utterances, strict, message in (
        (None, True, '3.flac: is not readable.*run without --strict'),
        (self.utterances[3:4], False, 'Every utterance.*3.flac'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.write(utterances, strict=strict)
      self.assertEmpty(os.listdir(os.path.dirname(self.output_dir)))

  def test_broken_utterances_are_dropped_counted_and_listed(self):
    pathlib.Path(self.utterances[3].audio).write_bytes(b'')
    os.remove(self.utterances[0].audio)
    empty = shards.Utterance('a', 'a-9', '', self.utterances[1].audio)
    unusable = shards.Utterance('a\tb', '1', 'words', self.utterances[1].audio)
    problem = shards.Problem('z', 'z-1', 'has no audio file', 'a\tb')
    summary = self.write(
        [*self.utterances, empty, unusable, self.utterances[1]],
        problems=[problem],
        # 0.1 to 0.6 s.
        max_utterance_sec=0.55,
    )
    self.assertEqual(
        summary['dropped'],
        {
            'cannot be opened': 1,
            'has an empty transcript': 1,
            'has an unusable client id': 1,
            'has no audio file': 1,
            'is empty': 1,
            'is longer than 0.55 s': 1,
            'occurs twice': 1,
        },
    )
    self.assertEqual(summary['num_utterances'], 3)
    self.assertEqual(summary['num_clients'], 2)
    with open(
        os.path.join(self.output_dir, split_summary.SUMMARY_FILE), encoding='utf-8'
    ) as f:
      self.assertEqual(json.load(f), summary)
    with open(
        os.path.join(self.output_dir, split_summary.DROPPED_FILE), encoding='utf-8'
    ) as f:
      lines = f.read().splitlines()
    self.assertEqual(
        [line.split('\t')[:3] for line in lines],
        [
            ['client_id', 'utterance_id', 'reason'],
            ['a', 'a-1', 'occurs twice'],
            ['a', 'a-9', 'has an empty transcript'],
            ['a b', '1', 'has an unusable client id'],
            ['b', 'b-0', 'cannot be opened'],
            ['b', 'b-5', 'is longer than 0.55 s'],
            ['c', 'c-3', 'is empty'],
            ['z', 'z-1', 'has no audio file'],
        ],
    )
    self.assertEndsWith(lines[-1], '\ta b')

  def test_resumes_after_the_last_finished_shard(self):
    reference = self.path('reference')
    here, self.output_dir = self.output_dir, reference
    # Two of the clients to a shard: {a, b}, {c}.
    self.write(max_shard_bytes=30000)
    self.output_dir = here
    interrupt = mock.Mock(side_effect=KeyboardInterrupt)
    broken = dataclasses.replace(self.utterances[3], audio=interrupt)
    # A function has no size: the source's identity must stay the same.
    with (
        mock.patch.object(shards, '_source_sha256', lambda *_: 'same'),
        mock.patch.object(parallel_encoding, 'TASK_SIZE', 1),
    ):
      with self.assertRaises(KeyboardInterrupt):
        self.write(
            [*self.utterances[:3], broken, *self.utterances[4:]],
            max_shard_bytes=30000,
        )
      self.assertFalse(os.path.exists(self.output_dir))
      # What is finished is not read again.
      for i in (0, 1, 2, 4, 5):
        os.remove(self.utterances[i].audio)
      self.write(max_shard_bytes=30000)
    interrupt.assert_called()
    found, expected = cases.digests(self.output_dir), cases.digests(reference)
    for name, digest in expected.items():
      if name != index.CORPUS_FILE:  # It holds the source's identity.
        self.assertEqual(found[name], digest, name)
    self.assertCountEqual(found, expected)

  def test_strict_also_stops_at_what_an_interrupted_run_left_out(self):
    os.remove(self.utterances[1].audio)
    with mock.patch.object(
        partial_split.PartialSplit, 'move_into_place', side_effect=OSError
    ):
      with self.assertRaises(OSError):
        self.write(max_shard_bytes=1)
    with self.assertRaisesRegex(ValueError, '1.flac: cannot be opened'):
      self.write(max_shard_bytes=1, strict=True)
    self.write(max_shard_bytes=1)
    with self.assertRaisesRegex(ValueError, 'was written without.*--overwrite'):
      self.write(max_shard_bytes=1, strict=True)

  def test_another_program_that_writes_it_is_refused(self):
    key = {}
    with partial_split.PartialSplit(self.output_dir, identity=key):
      with self.assertRaisesRegex(ValueError, 'written by another program'):
        self.write()
    self.write()

  def test_refuses(self):
    twice = [*self.utterances, self.utterances[0]]
    for arguments, message in (
        (dict(utterances=[]), 'no utterances for .*split; 0 we'),
        (dict(encoding='mp3'), 'encoding'),
        (
            dict(utterances=twice, strict=True),
            "b-0' of client 'b': occurs twice",
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.write(**arguments)
