from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.data import audio
from tff_asr.data import schema


def _waveform(num_samples: int = 4000) -> np.ndarray:
  rng = np.random.default_rng(7)
  waveform = rng.integers(-(2**15), 2**15, num_samples).astype(np.int16)
  waveform[:2] = [-(2**15), 2**15 - 1]
  return waveform


def _serialize(waveform=None, encoding='pcm', **changes) -> bytes:
  waveform = _waveform() if waveform is None else waveform
  arguments = dict(
      client_id='anna',
      utterance_id='anna-1',
      transcript="it's a café",
      audio=audio.encode(waveform, encoding=encoding),
      num_samples=len(waveform),
  )
  return schema.serialize(**(arguments | changes))


class SchemaTest(parameterized.TestCase):

  def parse(self, encoding: str, records: list[bytes], max_samples: int):
    """Features of records, and their waveforms, by one graph."""
    decode = schema.build_decode_fn(encoding)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string), tf.TensorSpec([], tf.int32)
        ],
        autograph=False,
    )
    def parse(records, max_samples):
      features = schema.parse(records)
      return features, decode(features, max_samples)

    return parse(records, max_samples)

  @parameterized.product(
      encoding=schema.ENCODINGS, num_samples=((1,), (4000,), (3, 70000, 1))
  )
  def test_parsed_audio_has_the_bits_that_were_written(
      self, encoding, num_samples
  ):
    waveforms = [_waveform(70000)[:count] for count in num_samples]
    records = [_serialize(each, encoding=encoding) for each in waveforms]
    for max_samples in (max(num_samples), max(num_samples) + 2, 2):
      features, found = self.parse(encoding, records, max_samples)
      self.assertEqual(found.dtype, tf.int16)
      self.assertEqual(found.shape, [len(num_samples), max_samples])
      for waveform, row in zip(waveforms, found.numpy()):
        np.testing.assert_array_equal(
            row[: len(waveform)], waveform[:max_samples]
        )
        self.assertFalse(np.any(row[len(waveform) :]))
    self.assertEqual(features['num_samples'].numpy().tolist(), [*num_samples])
    for name, value in (
        ('client_id', 'anna'), ('utterance_id', 'anna-1'),
        ('transcript', "it's a café"),
    ):
      self.assertEqual(set(features[name].numpy()), {value.encode()})

  def test_a_record_without_a_transcript_has_an_empty_one(self):
    records = []
    for name in ('transcript', 'utterance_id'):
      example = tf.train.Example.FromString(_serialize())
      del example.features.feature[name]
      records.append(example.SerializeToString())
    features = schema.parse(tf.constant([_serialize(), records[0]]))
    self.assertEqual(
        features['transcript'].numpy().tolist(), ["it's a café".encode(), b'']
    )
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'utterance_id'):
      schema.parse(tf.constant(records))

  # The last one would fill the memory.
  @parameterized.product(
      encoding=schema.ENCODINGS, num_samples=(4001, 3999, 2**40), place=(0, 1)
  )
  def test_wrong_length_is_an_error_that_does_not_name_the_client(
      self, encoding, num_samples, place
  ):
    records = [_serialize(encoding=encoding)]
    wrong = _serialize(encoding=encoding, num_samples=num_samples)
    records.insert(place, wrong)
    found = f'{num_samples} samples, it has 4000'
    if encoding == 'pcm':
      found = f'{2 * num_samples} bytes of PCM, it has 8000'
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, rf'\[an utterance should have {found};'
    ) as caught:
      self.parse(encoding, records, 10)
    self.assertNotIn('anna', str(caught.exception))

  @parameterized.parameters(3, 4)
  def test_half_a_sample_is_an_error(self, num_samples):
    record = _serialize(audio=bytes(7), num_samples=num_samples)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, f'{2 * num_samples} bytes .* has 7;'
    ):
      self.parse('pcm', [record], 2)

  @parameterized.named_parameters(
      ('dtype', dict(waveform=np.ones(3, np.float32)), 'waveform.*float32'),
      ('rank', dict(waveform=np.ones([3, 1], np.int16)), r'waveform.*\[3, 1\]'),
      ('empty', dict(waveform=np.ones(0, np.int16)), r'waveform.*\[0\]'),
      ('encoding', dict(encoding='mp3'), "encoding.*'mp3'"),
  )
  def test_bad_arguments_are_named(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _serialize(**changes)
