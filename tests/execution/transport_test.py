"""Tests of tff_asr.execution.transport."""

import pickle

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.execution import transport


def _send(*tensors):
  packed = pickle.loads(pickle.dumps(transport.pack(tensors)))
  return transport.unpack(packed)


class TransportTest(parameterized.TestCase):

  @parameterized.parameters(
      tf.float32, tf.bfloat16, tf.int32, tf.uint8, tf.bool, tf.complex64
  )
  def test_numbers_keep_bits_dtype_and_shape(self, dtype):
    tensor = tf.cast([[0, 1, 3]], dtype)
    (found,) = _send(tensor)
    self.assertEqual(found.dtype, dtype)
    self.assertEqual(found.shape, [1, 3])
    self.assertEqual(found.numpy().tobytes(), tensor.numpy().tobytes())

  def test_scalar_empty_and_text(self):
    scalar, empty, text, texts = _send(
        tf.constant(2.0), tf.zeros([0, 3]), tf.constant(b'\xff\x00'),
        tf.constant(['a', '', 'ä']),
    )
    self.assertEqual(scalar.numpy(), 2.0)
    self.assertEqual(empty.shape, [0, 3])
    self.assertEqual(text.numpy(), b'\xff\x00')
    np.testing.assert_array_equal(
        texts.numpy(), [b'a', b'', 'ä'.encode()]
    )

  def test_dataset_yields_the_same_elements(self):
    dataset = tf.data.Dataset.range(10).map(lambda x: x * x).batch(4)
    (variant,) = _send(tf.data.experimental.to_variant(dataset))
    found = tf.data.experimental.from_variant(variant, dataset.element_spec)
    self.assertEqual(
        [batch.numpy().tolist() for batch in found],
        [batch.numpy().tolist() for batch in dataset],
    )


if __name__ == '__main__':
  absltest.main()
