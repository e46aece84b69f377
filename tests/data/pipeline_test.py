"""Tests of tff_asr.data.pipeline.

Tracing a pipeline takes longer than running it, so tests share one where
possible.
"""

import collections
import functools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tests import reference
from tff_asr.data import buckets as buckets_lib
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.data import schema
from tff_asr.features import front_end as front_end_lib
from tff_asr.features import log_mel
from tff_asr.models import subsampling
from tff_asr.text import tokenizer as tokenizer_lib

_NUM_UTTERANCES = 50
_MAX_BATCH_SEC = 4.0


def _pipeline(**kwargs) -> pipeline_lib.Pipeline:
  settings = dict(
      tokenizer=tokenizer_lib.CharTokenizer(' abc'),
      output_lengths=subsampling.output_lengths_3x,
      max_batch_sec=_MAX_BATCH_SEC,
      max_utterance_sec=2.0,
      chunk_size=16,
  )
  return pipeline_lib.Pipeline(**settings | kwargs)


def _examples(rows) -> tf.data.Dataset:
  """A dataset of (utterance id, samples, transcript), of noise."""

  def generate():
    for utterance_id, num_samples, transcript in rows:
      generator = np.random.default_rng(num_samples)
      waveform = generator.integers(-9000, 9000, num_samples).astype('int16')
      yield collections.OrderedDict(
          client_id='ann',
          transcript=transcript,
          utterance_id=utterance_id,
          waveform=waveform,
      )

  return tf.data.Dataset.from_generator(
      generate, output_signature=schema.element_spec()
  )


def _with_features(examples: tf.data.Dataset) -> tf.data.Dataset:
  """The same with features in place of waveforms."""

  def compute(example):
    example = dict(example)
    waveform = example.pop('waveform')
    features, _ = log_mel.log_mel(waveform[tf.newaxis], tf.shape(waveform)[:1])
    return dict(example, features=features[0])

  return examples.map(compute)


def _many_rows() -> list[tuple[str, int, str]]:
  generator = np.random.default_rng(5)
  return [
      (f'u{i:02d}', int(generator.integers(8000, 24000)), 'ab')
      for i in range(_NUM_UTTERANCES)
  ]


def _mark(features, lengths, seed):
  """In place of SpecAugment: a first frame that tells the seed."""
  marks = tf.random.stateless_uniform([tf.size(lengths), 1, 80], seed)
  return tf.concat([marks, features[:, 1:]], axis=1)


@functools.lru_cache
def _many_batches():
  """Batches of 3 epochs of many utterances, for each (client, round's seed)."""
  keys = [('ann', (1, 2)), ('ann', (1, 3)), ('bob', (1, 2)), ('ann', (1, 2))]
  pipeline = _pipeline(augment=_mark)

  def open_client(place, client_id, seed):
    rows = _examples(_many_rows()).map(
        lambda example: collections.OrderedDict(example, client_id=client_id)
    )
    batches = pipeline.training_batches(rows, seed=seed, num_epochs=3)
    return batches.map(lambda batch: (place, batch))

  datasets = tf.data.Dataset.from_tensor_slices((
      list(range(len(keys))),
      [client_id for client_id, _ in keys],
      [list(seed) for _, seed in keys],
  )).flat_map(open_client)
  batches = [[] for _ in keys]
  for place, batch in datasets.as_numpy_iterator():
    batches[place].append(batch)
  return batches


def _ids(batches) -> list[str]:
  return [each.decode() for batch in batches for each in batch['utterance_id']]


class TrainingBatchesTest(parameterized.TestCase):

  def test_padded_audio_is_bounded_and_little_of_it_is_padding(self):
    padded = used = 0
    for batch in _many_batches()[0]:
      size, longest, _ = batch['features'].shape
      self.assertEqual(longest, max(batch['feature_lengths']))
      self.assertLessEqual(size * longest * 0.01, _MAX_BATCH_SEC)
      padded += size * longest
      used += np.sum(batch['feature_lengths'])
    self.assertGreater(used / padded, 0.85)
    # And batches are filled: no fewer than half of what would fit.
    fill = padded * 0.01 / _MAX_BATCH_SEC / len(_many_batches()[0])
    self.assertGreater(fill, 0.5)

  def test_no_two_draws_share_a_stream(self):
    orders, chunks, marks, seeds, uses = set(), set(), set(), set(), 0
    # Two rounds of a client, and another client of the first.
    for batches in _many_batches()[:3]:
      ids = _ids(batches)
      for start in range(0, 3 * _NUM_UTTERANCES, _NUM_UTTERANCES):
        epoch = ids[start : start + _NUM_UTTERANCES]
        # Every utterance once an epoch, and the first chunk is not the same.
        self.assertLen(set(epoch), _NUM_UTTERANCES)
        orders.add(tuple(epoch))
        chunks.add(frozenset(epoch[:16]))
      for batch in batches:
        uses += len(batch['utterance_id'])
        marks.update(batch['features'][:, 0, 0].tolist())
        seeds.add(tuple(batch['seed']))
        # The model's draws are not those of the masks.
        own = tf.random.stateless_uniform([64, 1, 80], batch['seed'])
        self.assertTrue(marks.isdisjoint(own[:, 0, 0].numpy().tolist()))
    self.assertLen(orders, 9)
    self.assertLen(chunks, 9)
    self.assertEqual(uses, 9 * _NUM_UTTERANCES)
    self.assertLen(marks, uses)
    self.assertLen(seeds, sum(map(len, _many_batches()[:3])))

  def test_rounds_of_a_large_client_see_all_its_records(self):
    # 100 rounds that take 350 or so of 3,000 utterances: the buffer that once
    # was saw the same ones. One of them is left out once in 300 such tests.
    num_records, num_chunks = 3000, 6
    pipeline = _pipeline(
        chunk_size=64, read=lambda rows, max_samples: rows
    )
    rows = tf.data.Dataset.from_tensor_slices(records.locations(
        tf.fill([num_records], 'ann'),
        shard=tf.zeros([num_records], tf.int64),
        offset=tf.range(num_records, dtype=tf.int64),
    ))

    @tf.function(autograph=False)
    def chunks(seed, numbers):
      client = pipeline.open_client(rows, seed=seed)
      return tf.map_fn(
          lambda number: pipeline.read_chunk(client, number)[records.OFFSET],
          numbers,
          fn_output_signature=tf.TensorSpec([None], tf.int64),
      )

    seen, firsts = set(), set()
    for round_num in range(100):
      found = chunks(
          tf.random.fold_in([1, 2], round_num), tf.range(num_chunks)
      ).numpy()
      self.assertLen(set(found.flat), 64 * num_chunks)
      firsts.add(tuple(found[0]))
      seen |= set(found.flat)
    self.assertLen(seen, num_records)
    self.assertLen(firsts, 100)

  def test_only_the_requested_batch_is_computed(self):
    computed = []

    def augment(features, lengths, seed):
      del seed
      computed.append(features.shape[:2].as_list())
      return features + tf.cast(lengths[:, tf.newaxis, tf.newaxis], tf.float32)

    pipeline = _pipeline(augment=augment, chunk_size=_NUM_UTTERANCES)
    client = pipeline.open_client(
        pipeline.with_lengths(_examples(_many_rows())),
        seed=tf.constant([1, 2]),
        num_epochs=1,
    )
    chunk = pipeline.pack(
        pipeline.read_chunk(client, tf.constant(0)), seed=client.seed
    )
    self.assertGreater(pipeline_lib.num_batches(chunk), 10)
    self.assertEmpty(computed)
    batch = pipeline.slice_batch(chunk, tf.constant(3))
    self.assertEqual(computed, [batch['features'].shape[:2].as_list()])
    # Without masks all else is the same.
    plain = pipeline.slice_batch(
        chunk, tf.constant(3), is_augmented=tf.constant(False)
    )
    lengths = tf.cast(batch['feature_lengths'], tf.float32)
    np.testing.assert_allclose(
        batch.pop('features') - plain.pop('features'),
        np.broadcast_to(
            lengths[:, np.newaxis, np.newaxis],
            computed[0] + [log_mel.NUM_MEL_BINS],
        ),
        atol=1e-4,
    )
    for key, value in batch.items():
      np.testing.assert_array_equal(value, plain[key])

  def test_nothing_is_autotuned(self):
    # Deleting an autotuned dataset may wait for a minute.
    pipeline = _pipeline()
    examples = _examples(_many_rows())
    for batches in (
        pipeline.training_batches(examples, seed=(1, 2)),
        pipeline.evaluation_batches(examples),
    ):
      self.assertIs(batches.options().autotune.enabled, False)

  def test_same_seed_gives_the_same_batches(self):
    first, _, _, again = _many_batches()
    for one, other in zip(first, again, strict=True):
      for key, value in one.items():
        np.testing.assert_array_equal(value, other[key])

  def test_batches_are_as_documented(self):
    batch = _many_batches()[0][0]
    spec = pipeline_lib.batch_spec()
    self.assertEqual(list(spec), list(batch))
    for key, value in batch.items():
      value = tf.convert_to_tensor(value)
      self.assertTrue(spec[key].is_compatible_with(value), key)
    self.assertEqual(list(batch), sorted(batch))
    lengths = {name: samples for name, samples, _ in _many_rows()}
    for i, utterance_id in enumerate(batch['utterance_id']):
      num_frames = 1 + (lengths[utterance_id.decode()] - 400) // 160
      self.assertEqual(batch['feature_lengths'][i], num_frames)
      self.assertTrue(np.all(batch['features'][i, num_frames:] == 0))
      self.assertTrue(np.any(batch['features'][i, num_frames - 1] != 0))
      # ' abc': a is 1, b is 2.
      np.testing.assert_array_equal(batch['labels'][i], [1, 2])

  def check_features(self, batches, *, first_frame):
    waveforms = {
        example['utterance_id'].decode(): example['waveform']
        for example in _examples(_many_rows()).as_numpy_iterator()
    }
    for batch in batches:
      for i, utterance_id in enumerate(batch['utterance_id']):
        expected = reference.log_mel(waveforms[utterance_id.decode()])
        np.testing.assert_allclose(
            batch['features'][i, first_frame : len(expected)],
            expected[first_frame:],
            atol=1e-4,
        )

  def test_features_are_those_of_the_utterance(self):
    # The first frame is marked.
    self.check_features(_many_batches()[0][:3], first_frame=1)

  def test_waveforms_may_be_floats(self):
    examples = _examples(_many_rows()).take(5)
    floats = examples.map(
        lambda example: collections.OrderedDict(
            example, waveform=tf.cast(example['waveform'], tf.float32)
        )
    )
    for one, other in zip(
        _pipeline().evaluation_batches(examples).as_numpy_iterator(),
        _pipeline().evaluation_batches(floats).as_numpy_iterator(),
        strict=True,
    ):
      for key, value in one.items():
        np.testing.assert_array_equal(value, other[key])

  def test_evaluation_gives_everything_once_and_unmasked(self):
    examples = _examples(_many_rows())
    batches = list(
        _pipeline(augment=_mark).evaluation_batches(examples)
        .as_numpy_iterator()
    )
    self.assertCountEqual(_ids(batches), [row[0] for row in _many_rows()])
    self.check_features(batches[:1], first_frame=0)
    for batch in batches:
      size, longest, _ = batch['features'].shape
      self.assertLessEqual(size * longest * 0.01, _MAX_BATCH_SEC)

  @parameterized.parameters(
      front_end_lib.build_log_mel, front_end_lib.build_whisper_log_mel
  )
  def test_waveforms_are_augmented_before_they_are_sorted(self, build):
    # Short utterances become the longest.
    rows = [(f'u{i}', 8000 + 1600 * i, 'ab') for i in range(5)]
    before = {
        example['utterance_id'].decode(): example['waveform']
        for example in _examples(rows).as_numpy_iterator()
    }

    def reverse_lengths(waveforms, num_samples, seed):
      del seed
      changed = 24000 - num_samples
      return tf.tile(waveforms, [1, 3])[:, :24000] // 2, changed

    pipeline = _pipeline(
        augment_waveform=reverse_lengths, front_end=build(), max_batch_sec=20.0,
        max_padding=1.0,
    )
    (batch,) = pipeline.training_batches(
        _examples(rows), seed=tf.constant([1, 2]), num_epochs=1
    ).as_numpy_iterator()
    self.assertEqual(_ids([batch]), ['u4', 'u3', 'u2', 'u1', 'u0'])
    # In memory, waveforms are padded with 0 to the longest.
    padded = np.zeros([5, 14400], np.int16)
    for row, name in zip(padded, _ids([batch])):
      row[: len(before[name])] = before[name]
    sizes = np.array([24000 - len(before[name]) for name in _ids([batch])])
    expected, lengths = pipeline.front_end.features(
        tf.constant(np.tile(padded, [1, 3])[:, : max(sizes)] // 2),
        tf.constant(sizes, tf.int32),
    )
    np.testing.assert_array_equal(batch['feature_lengths'], lengths)
    np.testing.assert_allclose(batch['features'], expected, atol=1e-4)
    self.assertEqual(batch['example_weights'].tolist(), [1] * 5)

  def test_utterances_that_would_not_fit_stay_as_they_are(self):
    # At most 2 s; 'abababab' needs 8 output frames, or 24 frames.
    rows = [
        ('fits', 9000, 'ab'), ('too_long', 30000, 'ab'),
        ('too_short', 5000, 'abababab'), ('cut', 40000, 'ab'),
    ]

    def change(waveforms, num_samples, seed):
      del seed
      # Longer where they are long, shorter where they are short.
      changed = tf.where(
          num_samples > 20000, num_samples + 4000, num_samples - 3000
      )
      # What was too long before would be short enough.
      changed = tf.where(num_samples > 32000, 20000, changed)
      return tf.pad(waveforms, [[0, 0], [0, 4000]]) // 2, changed

    pipeline = _pipeline(augment_waveform=change, max_batch_sec=20.0)
    found = {}
    for batch in pipeline.training_batches(
        _examples(rows), seed=tf.constant([1, 2]), num_epochs=1
    ).as_numpy_iterator():
      found |= dict(zip(
          _ids([batch]),
          zip(batch['feature_lengths'], batch['example_weights']),
      ))
    frames = lambda num_samples: 1 + (num_samples - 400) // 160
    self.assertEqual(found, {
        'fits': (frames(6000), 1), 'too_long': (frames(30000), 1),
        'too_short': (frames(5000), 1), 'cut': (8, 0),
    })

  def test_each_chunk_and_epoch_augments_with_another_seed(self):
    seeds = []

    def tell(waveforms, num_samples, seed):
      tf.py_function(lambda s: seeds.append(tuple(s.numpy())), [seed], [])
      return waveforms, num_samples

    def batches():
      return list(_pipeline(augment_waveform=tell).training_batches(
          _examples(_many_rows()), seed=tf.constant([1, 2]), num_epochs=2
      ))

    batches()
    # 50 utterances in chunks of 16: 4 an epoch.
    self.assertLen(set(seeds), 8)
    first = sorted(seeds)
    seeds.clear()
    plain = _many_batches()[0]
    for one, other in zip(batches(), plain):
      # All other draws are as they were.
      np.testing.assert_array_equal(one['seed'], other['seed'])
      np.testing.assert_array_equal(one['utterance_id'], other['utterance_id'])
    self.assertEqual(sorted(seeds), first)

  def test_evaluation_augments_no_waveform(self):
    def fail(*unused_args):
      raise AssertionError('augmented')

    examples = _examples(_many_rows()[:2])
    batches = _pipeline(augment_waveform=fail).evaluation_batches(examples)
    self.assertLen(_ids(batches.as_numpy_iterator()), 2)

  def test_stored_features_are_not_augmented(self):
    pipeline = _pipeline(augment_waveform=lambda *args: args[:2])
    with self.assertRaisesRegex(ValueError, 'but not stored features'):
      pipeline.training_batches(
          _with_features(_examples(_many_rows())), seed=tf.constant([1, 2])
      )

  def test_all_are_shuffled_and_the_chunk_sorts(self):
    # Ever shorter utterances, as many to a batch as a chunk has.
    rows = [(f'u{i}', 9000 - 200 * i, 'a') for i in range(6)]

    def ids(**options):
      batches = _pipeline(**options).training_batches(
          _examples(rows), seed=tf.constant([1, 2]), num_epochs=1
      )
      return [
          [each.decode() for each in batch['utterance_id']]
          for batch in batches.as_numpy_iterator()
      ]

    # Seeded; another seed would keep the order 1 time in 720.
    shuffled = ids(chunk_size=1)
    self.assertNotEqual(shuffled, [[row[0]] for row in rows])
    self.assertCountEqual(shuffled, [[row[0]] for row in rows])
    # Chunks are of the same order, each sorted by length.
    names = [name for (name,) in shuffled]
    self.assertEqual(
        ids(chunk_size=3),
        [sorted(names[:3])[::-1], sorted(names[3:])[::-1]],
    )
    # Copies are in one order, not one pass after the other: for another seed,
    # six different ones would come first 7 times of 100.
    twice = [name for (name,) in ids(chunk_size=1, repeats=2)]
    self.assertCountEqual(twice, [row[0] for row in rows] * 2)
    self.assertLess(len(set(twice[:6])), 6)
    self.assertEqual(
        ids(chunk_size=4, repeats=2),
        [sorted(twice[i : i + 4])[::-1] for i in (0, 4, 8)],
    )

  def test_endless_batches_repeat_and_an_empty_client_has_none(self):
    def open_client(num_rows):
      rows = _examples([(f'u{i}', 9000, 'a') for i in range(5)]).take(num_rows)
      batches = _pipeline().training_batches(rows, seed=tf.constant([1, 2]))
      return batches.take(7)

    num_rows = tf.data.Dataset.from_tensor_slices(np.array([0, 2], np.int64))
    counts = [
        len(batch['utterance_id'])
        for batch in num_rows.flat_map(open_client).as_numpy_iterator()
    ]
    # None of the first; both utterances of the second, seven times.
    self.assertEqual(counts, [2] * 7)


class PlaceholdersTest(parameterized.TestCase):

  def rows(self):
    # Output frames: T // 3. 8 frames in 1520 samples (400 + 7 * 160), 9 in
    # 1680: 2 and 3 output frames. 'aa' needs 3 (a blank between), 'ab' 2.
    # 2 s are 200 frames: 32240 samples; 201 in 32400.
    return [
        ('repeat_fits', 1680, 'aa', True),
        ('repeat_too_short', 1520, 'aa', False),
        ('no_repeat_fits', 1520, 'ab', True),
        ('no_frame', 300, 'a', False),
        ('one_frame', 400, 'a', False),
        ('empty', 9000, '', False),
        ('just_short_enough', 32240, 'abc', True),
        ('too_long', 32400, 'abc', False),
    ]

  def collect(self, batches):
    return {
        batch['utterance_id'][i].decode(): {
            key: value[i] for key, value in batch.items() if key != 'seed'
        }
        for batch in batches.as_numpy_iterator()
        for i in range(len(batch['utterance_id']))
    }

  def train(self, **settings):
    """Utterances of `rows` by name, and the names of placeholders."""
    found = self.collect(
        _pipeline(**settings).training_batches(
            _examples([row[:3] for row in self.rows()]),
            seed=tf.constant([1, 2]),
            num_epochs=1,
        )
    )
    return found, {
        name for name, row in found.items() if not row['example_weights']
    }

  def test_labels_that_are_too_long_may_be_kept(self):
    found, left_out = self.train(labels_too_long='kept')
    self.assertEqual(left_out, {'no_frame', 'one_frame', 'empty', 'too_long'})
    self.assertEqual(found['repeat_too_short']['label_lengths'], 2)
    self.assertEqual(found['repeat_too_short']['feature_lengths'], 8)

  def test_labels_that_are_kept_are_whole_in_buckets(self):
    # 90 labels in 8 frames, which a bucket of .2 s pads to 20.
    examples = _examples([('long', 1520, 'abc' * 30)])
    whole, padded = (
        next(
            _pipeline(labels_too_long='kept', buckets=buckets)
            .training_batches(examples, seed=tf.constant([1, 2]), num_epochs=1)
            .as_numpy_iterator()
        )
        for buckets in (None, buckets_lib.LengthBuckets([0.2, 9.0]))
    )
    self.assertEqual(padded['features'].shape[1], 20)
    self.assertEqual(padded['label_lengths'][0], 90)
    np.testing.assert_array_equal(padded['labels'][0], whole['labels'][0])
    self.assertLen(set(whole['labels'][0]), 3)

  def test_without_a_tokenizer_only_frames_count(self):
    found, left_out = self.train(tokenizer=None)
    self.assertEqual(left_out, {'no_frame', 'one_frame', 'too_long'})
    for row in found.values():
      self.assertEqual((row['label_lengths'], len(row['labels'])), (0, 0))
    frames = log_mel.num_frames(9000)
    self.assertEqual(found['empty']['feature_lengths'], frames)
    self.assertTrue(np.any(found['empty']['features'][frames - 1] != 0))

  def test_in_training(self):
    rows = self.rows()
    found, _ = self.train()
    self.assertLen(found, len(rows))
    for name, num_samples, transcript, is_used in rows:
      utterance = found[name]
      self.assertEqual(utterance['example_weights'], float(is_used), name)
      self.assertEqual(utterance['transcript'].decode(), transcript)
      if is_used:
        self.assertEqual(
            utterance['feature_lengths'], log_mel.num_frames(num_samples)
        )
        self.assertEqual(utterance['label_lengths'], len(transcript))
        # The utterance's own labels, though batches are sorted by length.
        self.assertEqual(
            list(utterance['labels'][: len(transcript)]),
            [' abc'.index(character) for character in transcript],
        )
      else:
        self.assertEqual(utterance['feature_lengths'], 8, name)
        self.assertEqual(utterance['label_lengths'], 0, name)
        self.assertFalse(np.any(utterance['labels']), name)
        self.assertFalse(np.any(utterance['features']), name)

  def test_features_in_place_of_waveforms_give_the_same_batches(self):
    examples = _examples([row[:3] for row in self.rows()] + _many_rows()[:5])
    one = self.collect(_pipeline().evaluation_batches(examples))
    other = self.collect(
        _pipeline().evaluation_batches(_with_features(examples))
    )
    self.assertEqual(one.keys(), other.keys())
    for name, utterance in one.items():
      features = utterance.pop('features'), other[name].pop('features')
      np.testing.assert_allclose(*features, atol=1e-4)  # Summed otherwise.
      for key, value in utterance.items():
        np.testing.assert_array_equal(value, other[name][key], key)

  @parameterized.parameters(lambda examples: examples, _with_features)
  def test_batches_are_filled_by_samples(self, convert):
    # The published loader's border: 19 utterances of 6.32 s are 120.08 s, and
    # more than 120; their 630 frames each are 11,970, less than 12,000.
    pipeline = _pipeline(
        max_batch_sec=120.0, max_utterance_sec=30.0, chunk_size=64
    )
    examples = convert(_examples([(f'u{i}', 101120, 'ab') for i in range(19)]))
    batches = pipeline.evaluation_batches(examples).as_numpy_iterator()
    sizes = [len(batch['utterance_id']) for batch in batches]
    self.assertEqual(sizes, [18, 1])

  def test_evaluation_keeps_what_can_be_decoded(self):
    rows = self.rows()
    found = self.collect(
        _pipeline().evaluation_batches(_examples([row[:3] for row in rows]))
    )
    self.assertLen(found, len(rows))
    for name, num_samples, _, is_used in rows:
      self.assertEqual(found[name]['example_weights'], float(is_used), name)
      has_output = num_samples >= 400 + 2 * 160
      self.assertEqual(
          found[name]['feature_lengths'],
          log_mel.num_frames(num_samples) if has_output else 8,
          name,
      )

  def test_characters_that_are_not_tokens_raise(self):
    batches = _pipeline().evaluation_batches(_examples([('u', 9000, 'abd')]))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'character that is not a token'
    ):
      list(batches)


class ArgumentsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('batch', dict(max_batch_sec=0), 'max_batch_sec'),
      ('utterance', dict(max_utterance_sec=-1), 'max_utterance_sec'),
      ('padding', dict(max_padding=1.1), 'max_padding'),
      ('chunk', dict(chunk_size=0), 'chunk_size'),
      ('repeats', dict(repeats=0), 'repeats'),
      ('labels', dict(labels_too_long='cut'), 'labels_too_long must be one of'),
      (
          'utterance_beyond_batch',
          dict(max_utterance_sec=5.0),
          'max_utterance_sec 5.0 must be at most max_batch_sec 4.0',
      ),
      (
          'buckets',
          dict(buckets=buckets_lib.LengthBuckets([1.0, 1.99])),
          'boundaries_sec must be at least max_utterance_sec 2.0, found 1.99',
      ),
  )
  def test_bad_arguments_are_named(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      _pipeline(**kwargs)

  def test_limits_of_whole_frames_lose_none(self):
    # 16.4 / 0.01 is below 1640.
    pipeline = _pipeline(max_utterance_sec=16.4, max_batch_sec=16.4)
    self.assertEqual(pipeline.max_frames, 1640)


class PackingTest(parameterized.TestCase):

  def librispeech_like(self) -> np.ndarray:
    """Samples: three quarters of 12 to 17 s, the rest of 1.4 to 14 s."""
    generator = np.random.default_rng(9)
    usual = generator.normal(14.5, 1.3, 96)
    short = generator.uniform(1.4, 14, 32)
    return np.sort((np.concatenate([usual, short]) * 16000).astype(np.int32))

  @parameterized.product(max_sec=(40, 120, 360), max_padding=(0.05, 0.15, 1.0))
  def test_batches_are_greedy_within_both_bounds(self, max_sec, max_padding):
    lengths = self.librispeech_like()
    starts = pipeline_lib.batch_starts(
        tf.constant(lengths), 16000 * max_sec, max_padding=max_padding
    ).numpy()

    def fits(batch):
      padded = len(batch) * batch[-1]
      share = 1 - batch.sum() / padded
      return padded <= 16000 * max_sec and share <= max_padding + 1e-6

    bounds = [*starts, len(lengths)]
    self.assertEqual(bounds[0], 0)
    padded = 0
    for start, end in zip(bounds, bounds[1:]):
      self.assertTrue(fits(lengths[start:end]))
      if end < len(lengths):
        self.assertFalse(fits(lengths[start : end + 1]))
      padded += (end - start) * lengths[end - 1]
    if max_padding < 1:
      self.assertLess(1 - lengths.sum() / padded, max_padding)

  @parameterized.parameters(
      # An utterance beyond the bound is a batch alone.
      ([10, 10, 50, 60], 30, 0.5, [0, 2, 3]),
      # 20 times 2^27 is more than 2^31.
      ([2**27] * 20, 2**31, 1.0, [0, 16]),
  )
  def test_by_hand(self, lengths, max_size, max_padding, expected):
    starts = pipeline_lib.batch_starts(
        tf.constant(lengths), max_size, max_padding=max_padding
    )
    self.assertEqual(starts.numpy().tolist(), expected)


class MinFramesTest(parameterized.TestCase):

  # By hand: one frame a label, one more for the blank between two equal ones.
  @parameterized.parameters(
      ([], 0), ([1], 1), ([0, 1], 2), ([1, 1], 3), ([1, 1, 1], 5),
      ([0, 0, 1, 1], 6), ([0, 1, 0, 1], 4),
  )
  def test_by_hand(self, labels, expected):
    # Padded with more of the last label, in a graph of unknown lengths.
    rows = labels + (labels[-1:] or [2]) * 2, [2] * (len(labels) + 2)
    padded = tf.constant(rows, tf.int32)
    lengths = tf.constant([len(labels), 0])
    spec = tf.TensorSpec
    run = tf.function(pipeline_lib.min_frames).get_concrete_function(
        spec([None, None], tf.int32), spec([None], tf.int32)
    )
    np.testing.assert_array_equal(run(padded, lengths), [expected, 0])
    if 0 < len(labels) < 4:
      # The fewest frames with an alignment.
      loss = lambda num_frames: reference.ctc_loss(
          np.zeros([num_frames, 3]), labels
      )
      self.assertTrue(np.isfinite(loss(expected)))
      self.assertTrue(np.isinf(loss(expected - 1)))
