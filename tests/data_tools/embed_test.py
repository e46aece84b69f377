"""Tests of data_tools.embed, and of training on what it writes."""

import dataclasses
import fractions
import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from data_tools import embed
from tests import cases
from tests import fakes
from tests import front_ends
from tff_asr.data import buckets
from tff_asr.data import client_data
from tff_asr.data import examples
from tff_asr.data import index
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.data import schema
from tff_asr.execution import multi_device
from tff_asr.features import spec_augment
from tff_asr.features import waveform_augment
from tff_asr.learning import client_update
from tff_asr.learning import fed_avg
from tff_asr.models import ctc
from tff_asr.models import layer_mix
from tff_asr.privacy import keys
from tff_asr.programs import evaluation

_SEED = (3, 4)


class _TestCase(cases.TestCase):
  """Corpora of audio and of its features, one utterance without a frame."""

  def setUp(self):
    super().setUp()
    short = fakes.utterance('bob', 9) | {
        'waveform': np.arange(300).astype(np.int16), 'utterance_id': 'bob-short'
    }
    self.audio = fakes.write_examples(
        self.path('audio'),
        [*fakes.examples('ann', 3), *fakes.examples('bob', 2), short],
    )
    self.front_end = front_ends.build(self.root)
    self.features = self.path('features')
    self.corpus = embed.embed(
        self.audio, self.features, front_end=self.front_end
    )

  def model(self) -> ctc.CtcModel:
    return ctc.build(
        encoder=layer_mix.build(
            front_end=self.front_end, dim=6, kernel_size=3
        ),
        tokenizer=fakes.tiny_tokenizer(),
    )

  def pipeline(self, **options) -> pipeline_lib.Pipeline:
    return fakes.tiny_pipeline(
        self.model(), **dict(front_end=self.front_end) | options
    )


class EmbedTest(_TestCase):

  def test_the_corpus_is_that_of_the_audio_with_features(self):
    source = index.read(self.audio).corpus
    self.assertEqual(
        self.corpus.features, schema.StoredFeatures('test', 4, 320, 480)
    )
    same = lambda corpus: dataclasses.replace(
        corpus, path='', shards=(), files={}, features=None
    )
    self.assertEqual(same(self.corpus), same(source))
    one, other = map(client_data.load, (self.audio, self.features))
    self.assertEqual(one.client_ids, other.client_ids)
    client_data.verify(self.features)
    for client_id in one.client_ids:
      self.assertEqual(
          one.duration_sec(client_id), other.duration_sec(client_id)
      )
      for spoken, stored in zip(
          one.create_tf_dataset_for_client(client_id),
          other.create_tf_dataset_for_client(client_id),
          strict=True,
      ):
        waveform = spoken.pop(schema.WAVEFORM)
        expected, _ = self.front_end.features(
            waveform[tf.newaxis], tf.shape(waveform)
        )
        found = stored.pop(schema.FEATURES)
        self.assertEqual(found.dtype, tf.float16)
        np.testing.assert_array_equal(found, expected[0])
        self.assertEqual(spoken, stored)

  def test_utterances_are_stored_at_several_speeds(self):
    # 10 samples for 9, of rows of other lengths and speakers.
    corpus = embed.embed(
        self.audio, self.path('x'), front_end=self.front_end,
        speeds=[1.0, 0.9],
    )
    self.assertEqual(corpus.num_utterances, 12)
    self.assertEqual(corpus.origin['speeds'], [1.0, 0.9])
    client_data.verify(self.path('x'))
    one, other = map(client_data.load, (self.audio, self.path('x')))
    self.assertEqual(one.client_ids, other.client_ids)
    for client_id in one.client_ids:
      stored = iter(other.create_tf_dataset_for_client(client_id))
      seconds = 0.0
      for spoken in one.create_tf_dataset_for_client(client_id):
        name = spoken['utterance_id'].numpy().decode()
        for speed, prefix in ((1, ''), (fractions.Fraction(9, 10), 'sp0.9-')):
          found = next(stored)
          waveform = waveform_augment.at_speed(
              spoken[schema.WAVEFORM], fractions.Fraction(speed)
          )
          expected, _ = self.front_end.features(
              waveform[tf.newaxis], tf.shape(waveform)
          )
          np.testing.assert_array_equal(found[schema.FEATURES], expected[0])
          self.assertEqual(found['utterance_id'], (prefix + name).encode())
          self.assertEqual(found['transcript'], spoken['transcript'])
          seconds += len(waveform) / 16000
        self.assertLen(waveform, -(-10 * len(spoken[schema.WAVEFORM]) // 9))
      self.assertAlmostEqual(other.duration_sec(client_id), seconds)
      self.assertIsNone(next(stored, None))

  def test_features_are_for_their_owner_alone(self):
    for path in [self.features, *pathlib.Path(self.features).iterdir()]:
      self.assertEqual(os.stat(path).st_mode & 0o077, 0, path)

  def test_what_cannot_be_embedded_is_named(self):
    run = lambda source, target: embed.embed(
        source, self.path(target), front_end=self.front_end
    )
    with self.assertRaisesRegex(ValueError, 'features exists'):
      run(self.audio, 'features')
    with self.assertRaisesRegex(ValueError, r'holds features \(test\)'):
      run(self.features, 'twice')
    for speeds, message in (([], 'at least one'), ([1.0, 1.0], 'differ')):
      with self.assertRaisesRegex(ValueError, f'^speeds must .*{message}'):
        embed.embed(
            self.audio, self.path('other'), front_end=self.front_end,
            speeds=speeds,
        )
    with self.assertRaisesRegex(ValueError, 'nowhere'):
      run(self.path('nowhere'), 'other')
    self.front_end = dataclasses.replace(self.front_end, max_duration_sec=0.1)
    with self.assertRaisesRegex(ValueError, 'ann-0 is .* at most 0.1 s'):
      run(self.audio, 'other')
    huge = lambda *unused: (tf.fill([1, 9, 4], 1e6), tf.constant([9]))
    self.front_end = dataclasses.replace(
        self.front_end, compute=huge, max_duration_sec=9.0
    )
    with self.assertRaisesRegex(ValueError, 'ann-0 are not finite'):
      run(self.audio, 'other')
    self.assertFalse(os.path.exists(self.path('other')))

  def test_an_interrupted_run_continues_after_its_last_shard(self):
    with mock.patch.object(index, 'write', side_effect=KeyboardInterrupt):
      with self.assertRaises(KeyboardInterrupt):
        embed.embed(self.audio, self.path('x'), front_end=self.front_end)
    self.assertFalse(os.path.exists(self.path('x')))
    # All shards were finished.
    with mock.patch.object(embed, '_records', side_effect=AssertionError):
      embed.embed(self.audio, self.path('x'), front_end=self.front_end)
    self.assertEqual(
        cases.digests(self.path('x')), cases.digests(self.features)
    )


class StoredFeaturesTest(_TestCase):

  def batches(self, folder: str, **options):
    """Training batches of each client, read by its records' locations."""
    data = client_data.load(folder)
    pipeline = self.pipeline(read=data.read, **options)
    for client in data.locate_clients(data.client_ids):
      rows = tf.data.Dataset.from_tensor_slices(records.locations_of(client))
      yield from pipeline.training_batches(
          rows, seed=tf.constant(_SEED), num_epochs=2
      )

  @parameterized.named_parameters(
      ('plain', {}),
      ('short', dict(max_batch_sec=1.6, max_utterance_sec=1.2)),
      ('buckets', dict(buckets=buckets.LengthBuckets([1.0, 3.0]))),
      ('augmented', dict(augment=spec_augment.build(
          num_freq_masks=0, num_time_masks=1, max_time_width=9
      ))),
  )
  def test_batches_have_the_bits_of_those_of_audio(self, options):
    count = 0
    for one, other in zip(
        self.batches(self.audio, **options),
        self.batches(self.features, **options),
        strict=True,
    ):
      self.assertEqual(one.keys(), other.keys())
      for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], name)
      count += 1
    self.assertGreater(count, 1)

  @parameterized.parameters('evaluation', 'training')
  def test_elements_in_memory_have_the_features_of_audio(self, kind):
    # Their order may differ: only whole frames are known of their lengths.
    found = []
    for folder in (self.audio, self.features):
      data, pipeline = client_data.load(folder), self.pipeline()
      rows = {}
      for client_id in data.client_ids:
        dataset = data.create_tf_dataset_for_client(client_id)
        for batch in (
            pipeline.evaluation_batches(dataset)
            if kind == 'evaluation'
            else pipeline.training_batches(
                dataset, seed=tf.constant(_SEED), num_epochs=1
            )
        ):
          for name, length, values in zip(
              batch['utterance_id'].numpy(),
              batch['feature_lengths'].numpy(),
              batch['features'].numpy(),
          ):
            rows[name] = values[:length]
      found.append(rows)
    one, other = found
    self.assertLen(one, 6)
    self.assertEqual(one.keys(), other.keys())
    for name, values in one.items():
      np.testing.assert_array_equal(values, other[name])

  def test_features_of_another_front_end_are_refused(self):
    data = client_data.load(self.features)
    model = self.model()
    other = front_ends.build(self.root, identity='other')
    message = r'features holds features of another front end \(test\).*other'
    for pipeline in (
        self.pipeline(front_end=other), fakes.tiny_pipeline(model),
    ):
      with self.assertRaisesRegex(ValueError, 'features of another front end'):
        evaluation.Evaluator(
            model=model, pipeline=pipeline, client_data=data
        )
    with self.assertRaisesRegex(ValueError, message):
      evaluation.check_corpus(data, self.pipeline(front_end=other))
    evaluation.check_corpus(data, self.pipeline())
    evaluation.check_corpus(
        client_data.load(self.audio), self.pipeline(front_end=other)
    )

  def test_waveforms_of_features_cannot_be_augmented(self):
    data = client_data.load(self.features)
    pipeline = self.pipeline(augment_waveform=waveform_augment.build())
    message = '^AUGMENT_WAVEFORM needs audio, but .*features holds features: .+'
    with self.assertRaisesRegex(ValueError, message):
      evaluation.check_corpus(data, pipeline, is_training=True)
    # The dev set is not augmented.
    evaluation.check_corpus(data, pipeline)
    evaluation.check_corpus(
        client_data.load(self.audio), pipeline, is_training=True
    )

  def test_examples_are_not_drawn_of_features(self):
    with self.assertRaisesRegex(ValueError, 'features .*name the corpus of a'):
      examples.ExampleSampler(
          client_data.load(self.features),
          pipeline=self.pipeline(),
          batch_size=1,
          key=keys.from_seed(0),
      )

  def test_a_record_of_another_length_is_an_error(self):
    decode = schema.build_decode_fn('pcm', stored=self.corpus.features)
    record = lambda num_bytes: schema.parse(tf.constant([schema.serialize(
        client_id='a',
        utterance_id='a-1',
        transcript='a',
        audio=bytes(num_bytes),
        num_samples=480 + 320,
    )]))
    self.assertEqual(decode(record(16), 800).shape, [1, 2, 4])
    self.assertEqual(decode(record(16), 500).shape, [1, 1, 4])
    for num_bytes in (14, 18):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError, 'bytes of features'
      ):
        decode(record(num_bytes), 800)

  def test_a_pipeline_takes_no_longer_utterances_than_its_front_end(self):
    with self.assertRaisesRegex(ValueError, 'max_utterance_sec is 31 s'):
      self.pipeline(max_utterance_sec=31.0, max_batch_sec=40.0)


class FederatedTest(_TestCase):

  def test_rounds_on_features_are_those_with_the_front_end_in_the_graph(self):
    model, weights = self.model(), []
    for folder in (self.audio, self.features):
      data = client_data.load(folder)
      process = fed_avg.build(
          model=model,
          pipeline=self.pipeline(),
          client_data=data,
          aggregator=tff.aggregators.UnweightedMeanFactory(),
          server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
          local=client_update.LocalTraining(learning_rate=0.1, num_steps=2),
          seed=1,
      )
      context = multi_device.build_sync_context()
      with tff.framework.get_context_stack().install(context):
        state = process.initialize()
        before = process.get_model_weights(state)
        state = process.next(state, data.locate_clients(['ann', 'bob'])).state
        weights.append(process.get_model_weights(state))
      # The front end's weights are not part of a round.
      self.assertCountEqual(weights[-1], model.specs)
    for name, one in weights[0].items():
      self.assertGreater(np.max(np.abs(one - before[name])), 0, name)
      np.testing.assert_allclose(
          weights[1][name], one, rtol=1e-5, atol=1e-6, err_msg=name
      )


if __name__ == '__main__':
  absltest.main()
