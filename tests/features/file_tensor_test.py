"""Tests of tff_asr.features.file_tensor."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from tests import cases
from tff_asr.features import file_tensor


class FileTensorTest(cases.TestCase):

  def test_values_are_those_written_and_the_graph_does_not_hold_them(self):
    values = np.random.default_rng(0).normal(size=[40, 50])
    tensor = file_tensor.write(self.path('w'), values)
    values = values.astype(np.float32)
    read = tf.function(tensor.read, autograph=False).get_concrete_function()
    for found in (tensor.read(), read(), tensor.numpy()):
      np.testing.assert_array_equal(found, values)
    self.assertLess(read.graph.as_graph_def().ByteSize(), 1000)
    self.assertFalse(tensor.numpy().flags.writeable)

  def test_gradients_pass_through_what_uses_it(self):
    tensor = file_tensor.write(self.path('w'), np.array([2.0, 3.0]))
    inputs = tf.constant([5.0, 7.0])
    with tf.GradientTape() as tape:
      tape.watch(inputs)
      total = tf.reduce_sum(inputs * tensor.read())
    np.testing.assert_array_equal(tape.gradient(total, inputs), [2, 3])

  def test_a_missing_or_short_file_is_named(self):
    tensor = file_tensor.write(self.path('w'), np.zeros([2, 3]))
    with open(self.path('short'), 'wb') as f:
      f.write(b'1234')
    for name in ('missing', 'short'):
      bad = tensor._replace(path=self.path(name))
      for read in (bad.read, tf.function(bad.read, autograph=False)):
        with self.assertRaisesRegex(ValueError, f'{name} is missing or has'):
          read()


if __name__ == '__main__':
  absltest.main()
