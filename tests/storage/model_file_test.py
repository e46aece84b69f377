"""Tests of tff_asr.storage.model_file."""

import numpy as np
import tensorflow as tf

from tests import cases
from tff_asr.storage import model_file
from tff_asr.storage import state_file
from tff_asr.storage import tensor_file


class ModelFileTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.file = self.path('model.safetensors')

  def test_weights_tokens_and_ledger_round_trip(self):
    weights = {
        'scale': np.float32(0.1),
        # Not in memory as they are written.
        'transposed': np.arange(6, dtype=np.float32).reshape(2, 3).T,
        'tensor': tf.constant([1.0, 2.0]),
    }
    model_file.write(self.file, weights, tokens=' äb', ledger=[3, 'f0'])
    header = model_file.read_header(self.file)
    self.assertEqual(header.tokens, ' äb')
    self.assertEqual(header.content['ledger'], [3, 'f0'])
    self.assertEqual(
        header.shapes, {name: np.shape(w) for name, w in weights.items()}
    )
    found = model_file.read(self.file)
    self.assertEqual(list(found), sorted(weights))
    for name, value in weights.items():
      self.assertEqual(found[name].dtype, np.float32)
      np.testing.assert_array_equal(found[name], value)

  def test_a_state_is_not_a_model(self):
    state_file.write(self.file, {'w': np.zeros(2)})
    for read in (model_file.read_header, model_file.read):
      with self.assertRaisesRegex(
          tensor_file.DamagedFileError, 'is not a model of this project'
      ):
        read(self.file)
