"""Tests of tff_asr.pretrained.ctranslate2."""

import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from tests import cases
from tests.pretrained import ctranslate2_files
from tff_asr.pretrained import ctranslate2
from tff_asr.pretrained import hugging_face
from tools.pretrained_parity import random_folders

_CONFIG = random_folders.TINY['whisper']


class Ctranslate2Test(cases.TestCase):

  def write(self, changes=None, **options) -> pathlib.Path:
    return pathlib.Path(
        ctranslate2_files.write(
            self.path('model'), _CONFIG, changes, **options
        )
    )

  def write_bytes(self, *args, **options):
    self.write().write_bytes(ctranslate2_files.encode(*args, **options))

  def assert_one_line(self, message):
    with self.assertRaisesRegex(ValueError, message) as caught:
      ctranslate2.load(self.path('model'))
    text = str(caught.exception)
    self.assertNotIn('\n', text)
    self.assertIn(self.path('model', 'model.bin'), text)
    self.assertRegex(text, r'[.;:] (Fetch|[Tt]ake|Convert|Its|Without)')

  @parameterized.parameters('float32', 'float16', 'bfloat16')
  def test_is_the_model_of_hugging_face(self, dtype):
    self.write(dtype=dtype)
    found = ctranslate2.load(self.path('model'))
    random_folders.write(self.path('other'), _CONFIG)
    expected = hugging_face.load(self.path('other'))
    self.assertEqual(found.settings, expected.settings)
    self.assertEqual(list(found.weights), list(expected.weights))
    as_stored = np.dtype('float32' if dtype == 'bfloat16' else dtype)
    for name, value in found.weights.items():
      self.assertEqual(value.dtype, np.float32)
      other = expected.weights[name].astype(as_stored).astype(np.float32)
      # Of 8 bits, or of those of its type exactly.
      np.testing.assert_allclose(
          value, other, rtol=2**-8 if dtype == 'bfloat16' else 0, err_msg=name
      )

  def test_describes_the_model(self):
    self.write()
    model = ctranslate2.load(self.path('model'))
    self.assertEqual((model.name, model.family), ('model', 'whisper'))
    self.assertEqual(model.licence, 'unknown')
    self.assertEqual(
        model.sha256, cases.digests(self.path('model'))['model.bin']
    )
    self.assertEqual(model.front_end_settings, {'num_mel_bins': 6})
    self.assertAlmostEqual(model.max_duration_sec, 8 * 0.02)

  def test_decoder_and_aliases_are_not_read(self):
    variables = ctranslate2_files.variables(_CONFIG)
    decoder = {
        'decoder/scale': np.array(3, np.int8),
        'decoder/embeddings/weight': np.zeros([3, 2], np.int8),
    }
    self.write_bytes(
        [*variables.items(), *decoder.items()],
        aliases=[('decoder/projection/weight', 'decoder/embeddings/weight')],
    )
    model = ctranslate2.load(self.path('model'))
    self.write()
    for name, value in ctranslate2.load(self.path('model')).weights.items():
      np.testing.assert_array_equal(value, model.weights[name])

  def test_truncated_anywhere(self):
    path = self.write()
    data = path.read_bytes()
    sizes = {*range(120), *range(120, len(data), 997), len(data) - 1}
    for size in sizes:
      path.write_bytes(data[:size])
      self.assert_one_line('ends at byte .* it is truncated')

  def test_longer_than_it_says(self):
    path = self.write()
    path.write_bytes(path.read_bytes() + b'abc')
    self.assert_one_line('goes on for 3 bytes after its end')

  @parameterized.parameters(0, 3, 7, 2**31)
  def test_other_versions(self, version):
    self.write_bytes([], version=version)
    self.assert_one_line(f'has the format {version} where CTranslate2 has one')

  def test_other_kinds_of_model(self):
    self.write_bytes([], kind='TransformerSpec')
    self.assert_one_line("of the kind 'TransformerSpec'; take a Whisper model")

  def test_a_pickle_is_no_model(self):
    # What PyTorch writes is a zip file.
    self.write().write_bytes(b'PK\x03\x04' + b'\0' * 100)
    self.assert_one_line('has the format')

  @parameterized.parameters('ä', 'a\0b\xff')
  def test_bad_names(self, name):
    self.write_bytes([(name, np.zeros([1], np.float32))])
    self.assert_one_line('has no name at byte')

  def test_names_that_come_twice(self):
    twice = ('encoder/a', np.zeros([1], np.float32))
    self.write_bytes([twice, twice])
    self.assert_one_line("has 'encoder/a' twice")

  def test_aliases_of_nothing(self):
    self.write_bytes([], aliases=[('a', 'b')])
    self.assert_one_line("has 'a' for 'b', which it lacks")

  def test_sizes_that_contradict_each_other(self):
    path = self.write()
    data = path.read_bytes()
    # The number of bytes of conv1/bias, of 12 float32.
    at = data.index(b'encoder/conv1/bias\0') + len(b'encoder/conv1/bias\0') + 6
    self.assertEqual(data[at : at + 4], b'\x30\0\0\0')
    path.write_bytes(data[:at] + b'\x2c\0\0\0' + data[at + 4 :])
    self.assert_one_line(r"conv1/bias' has 44 bytes, its shape \[12\] needs 48")
    path.write_bytes(data[: at - 1] + b'\x09' + data[at:])
    self.assert_one_line("conv1/bias' is of a type 9")

  @parameterized.parameters(
      ('encoder/conv1/weight', None, 'no encoder of Whisper: .*missing'),
      ('encoder/conv1/weight', np.zeros([3], np.float32), r'.* \[3\]'),
      ('encoder/position_encodings/encodings', None, 'encodings.* is missing'),
      ('encoder/layer_0/ffn/linear_0/weight', None, 'linear_0.* is missing'),
      ('encoder/num_heads', None, "no integer 'encoder/num_heads'"),
      ('encoder/num_heads', np.float32(3), 'no integer'),
      ('encoder/num_heads', np.int16(0), 'has 0 heads at width 12'),
      ('encoder/num_heads', np.int16(-3), 'has -3 heads at width 12'),
      ('encoder/num_heads', np.int16(5), 'has 5 heads at width 12'),
      ('encoder/layer_1/ffn/linear_1/bias', None, 'has no tensor .*linear_1'),
      ('encoder/layer_1/ffn/linear_1/bias', np.zeros([3], np.float32),
       r'is \[3\], its configuration asks for \[12\]'),
      ('encoder/layer_1/ffn/linear_1/bias', np.full([12], np.nan, np.float32),
       'holds NaN'),
      ('encoder/layer_1/ffn/linear_1/bias', np.zeros([12], np.int8),
       'is int8: the model is quantised'),
      ('encoder/layer_1/ffn/linear_1/weight_scale', np.zeros([12], np.float32),
       "has a tensor '.*weight_scale' that no known"),
  )
  def test_bad_variables(self, name, value, message):
    self.write({name: value})
    self.assert_one_line(message)

  def test_a_pipe_is_not_waited_for(self):
    path = self.write()
    path.unlink()
    os.mkfifo(path)
    with self.assertRaisesRegex(ValueError, 'not a regular file'):
      ctranslate2.load(self.path('model'))


if __name__ == '__main__':
  absltest.main()
