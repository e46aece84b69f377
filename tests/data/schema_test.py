from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.data import audio
from tff_asr.data import schema
from tff_asr.features import log_mel


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


def _build_parse_fn(encoding: str):
  """From one record to its element."""
  decode = schema.build_decode_fn(encoding)

  def parse(record):
    features = schema.parse(tf.expand_dims(record, 0))
    return decode({name: values[0] for name, values in features.items()})

  return parse


class SchemaTest(parameterized.TestCase):

  @parameterized.parameters(
      ('pcm', 1), ('pcm', 4000), ('flac', 1), ('flac', 4000), ('flac', 70000)
  )
  def test_parse_gives_back_every_bit(self, encoding, num_samples):
    waveform = _waveform(70000)[:num_samples]
    record = _serialize(waveform=waveform, encoding=encoding)
    parse = tf.function(_build_parse_fn(encoding))
    element = parse(tf.constant(record))
    self.assertEqual(element['client_id'].numpy(), b'anna')
    self.assertEqual(element['utterance_id'].numpy(), b'anna-1')
    self.assertEqual(element['transcript'].numpy().decode(), "it's a café")
    self.assertEqual(element['waveform'].dtype, tf.int16)
    np.testing.assert_array_equal(element['waveform'], waveform)

  @parameterized.parameters((1, 0), (400, 1), (4000, 23))
  def test_parse_gives_back_features(self, num_samples, num_frames):
    waveform = _waveform()[:num_samples]
    record = _serialize(waveform=waveform, encoding='log_mel')
    element = tf.function(_build_parse_fn('log_mel'))(tf.constant(record))
    self.assertNotIn('waveform', element)
    self.assertEqual(element['features'].shape, [num_frames, 80])
    expected = log_mel.compute(waveform)
    np.testing.assert_array_equal(element['features'], expected)

  @parameterized.parameters(*schema.ENCODINGS)
  def test_parsed_type_is_the_stated_one_and_ops_are_core_ops(self, encoding):
    parse = tf.function(_build_parse_fn(encoding)).get_concrete_function(
        tf.TensorSpec([], tf.string)
    )
    spec = schema.element_spec(encoding)
    found = parse.structured_outputs
    self.assertEqual(
        [(key, tf.TensorSpec(found[key].shape, found[key].dtype))
         for key in sorted(found)],
        list(spec.items()),
    )
    foreign = any('>' in op.type for op in parse.graph.get_operations())
    self.assertEqual(foreign, encoding == 'flac')

  # 4000 samples have 1 + 3600 // 160 = 23 frames; 4080 have one more.
  @parameterized.parameters(
      ('pcm', 4001, '4001 samples.*4000'),
      ('pcm', 3999, '3999 samples.*4000'),
      ('log_mel', 4080, '24 frames.*23'),
      ('flac', 4001, '4001 samples.*4000'),
  )
  def test_wrong_length_is_an_error_that_names_nobody(
      self, encoding, num_samples, found
  ):
    record = _serialize(encoding=encoding, num_samples=num_samples)
    parse = tf.function(_build_parse_fn(encoding))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, rf'\[an utterance should have {found}'
    ) as caught:
      parse(tf.constant(record))
    self.assertNotIn('anna', str(caught.exception))
    decode_all = schema.build_decode_all_fn(encoding)
    right = schema.parse([_serialize(encoding=encoding), record])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, f'an utterance should have {found}'
    ):
      decode_all(right, tf.constant(10))

  def test_half_a_sample_and_no_frame_are_seen_among_many(self):
    decode_all = schema.build_decode_all_fn('pcm')
    cut = schema.parse([_serialize(audio=bytes(7), num_samples=4)])
    decode_all(cut | dict(audio=tf.constant([bytes(8)])), tf.constant(2))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, '3 samples.*has 4'
    ):
      cut['num_samples'] -= 1
      decode_all(cut, tf.constant(2))
    empty = schema.parse([_serialize(_waveform()[:1], encoding='log_mel')])
    decoded = schema.build_decode_all_fn('log_mel')(empty, tf.constant(0))
    self.assertEqual(decoded['features'].shape, [1, 0, 80])

  @parameterized.named_parameters(
      ('client_id', dict(client_id=''), 'client_id'),
      ('utterance_id', dict(utterance_id=''), 'utterance_id'),
      ('dtype', dict(waveform=np.ones(3, np.float32)), 'waveform.*float32'),
      ('rank', dict(waveform=np.ones([3, 1], np.int16)), r'waveform.*\[3, 1\]'),
      ('empty', dict(waveform=np.ones(0, np.int16)), r'waveform.*\[0\]'),
      ('encoding', dict(encoding='mp3'), "encoding.*'mp3'"),
      ('num_samples', dict(num_samples=0), 'num_samples'),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _serialize(**changes)
