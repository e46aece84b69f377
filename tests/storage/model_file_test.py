"""Tests of tff_asr.storage.model_file."""

import os
import pathlib

from absl.testing import parameterized
import numpy as np
from safetensors import numpy as safetensors_numpy
import tensorflow as tf

from tests import cases
from tests import fakes
from tff_asr.storage import model_file

_WEIGHTS = {
    'head/kernel': np.arange(6, dtype=np.float32).reshape(2, 3),
    'head/bias': np.array([1.5, np.nan, -np.inf], np.float32),
    'scale': np.float32(0.1),
    'none': np.zeros([0, 4], np.float32),
}


class ModelFileTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.file = self.path('model.safetensors')

  def test_weights_come_back_with_what_is_said_of_them(self):
    # A transposed array and a tensor are not in memory as they are written.
    weights = _WEIGHTS | {
        'turned': np.arange(6, dtype=np.float32).reshape(2, 3).T,
        'tensor': tf.constant([1.0, 2.0]),
    }
    model_file.write(self.file, weights, tokens=' äb', ledger='[3, "f0"]')
    header = model_file.read_header(self.file)
    self.assertEqual(header.tokens, ' äb')
    self.assertEqual(header.texts['ledger'], '[3, "f0"]')
    self.assertEqual(
        header.shapes, {name: np.shape(w) for name, w in weights.items()}
    )
    found = model_file.read(self.file)
    self.assertEqual(list(found), sorted(weights))
    for name, value in weights.items():
      self.assertEqual(found[name].dtype, np.float32)
      np.testing.assert_array_equal(found[name], value)
    # As anybody else reads it.
    np.testing.assert_array_equal(
        safetensors_numpy.load_file(self.file)['head/bias'],
        _WEIGHTS['head/bias'],
    )

  def test_is_its_owners_and_replaces_a_file_whole(self):
    pathlib.Path(self.file).write_text('older')
    model_file.write(self.file, _WEIGHTS, tokens='ab')
    self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
    self.assertEqual(os.listdir(self.root), ['model.safetensors'])
    before = pathlib.Path(self.file).read_bytes()
    model_file.write(self.file, _WEIGHTS, tokens='ab')
    self.assertEqual(pathlib.Path(self.file).read_bytes(), before)

  def test_each_damaged_byte_is_noticed_in_one_line(self):
    model_file.write(self.file, _WEIGHTS, tokens='ab', ledger='[1, "x"]')
    data = pathlib.Path(self.file).read_bytes()
    for offset in range(len(data)):
      fakes.damage(self.file, offset=offset)
      with self.assertRaisesRegex(
          model_file.DamagedModelError, '^The model file .*model.safetensors is'
      ) as caught:
        model_file.read(self.file)
      self.assertNotIn('\n', str(caught.exception))
      fakes.damage(self.file, offset=offset)
    for size in range(0, len(data), 7):
      pathlib.Path(self.file).write_bytes(data[:size])
      with self.assertRaises(model_file.DamagedModelError):
        model_file.read_header(self.file)

  @parameterized.parameters(
      (None,),
      ({'format': 'pt'},),
      ({'tff_asr': '[1]'},),
      ({'tff_asr': '{"tokens": 1, "data": "", "header": ""}'},),
  )
  def test_a_file_of_others_is_named(self, metadata):
    safetensors_numpy.save_file(
        {'w': np.zeros(2)}, self.file, metadata=metadata
    )
    with self.assertRaisesRegex(
        model_file.DamagedModelError, 'is not of this project'
    ):
      model_file.read(self.file)
