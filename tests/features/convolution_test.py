import tempfile

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from tff_asr.features import convolution


class ConvolveTest(parameterized.TestCase):

  @parameterized.product(size=tuple(range(10)), stride=(1, 2, 3))
  def test_outputs_are_sums_over_whole_windows(self, size, stride):
    rng = np.random.default_rng(size)
    inputs = rng.normal(size=[2, size, 3]).astype(np.float32)
    kernel = rng.normal(size=[4, 3, 5]).astype(np.float32)
    expected = [
        np.einsum('blk,lkm->bm', inputs[:, start : start + 4], kernel)
        for start in range(0, size - 3, stride)
    ]
    expected = np.stack(expected, 1) if expected else np.zeros([2, 0, 5])
    for function in (convolution.convolve, tf.function(convolution.convolve)):
      outputs = function(tf.constant(inputs), tf.constant(kernel), stride)
      self.assertEqual(outputs.shape, expected.shape)
      np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)

  def test_tflite_converts_it_and_it_gives_the_same(self):
    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec([1, None, 3])]
    )
    def function(inputs):
      return convolution.convolve(inputs, tf.ones([4, 3, 5]), 2)

    # From a SavedModel, as in an export: shapes are inferred again.
    with tempfile.TemporaryDirectory() as folder:
      module = tf.Module()
      module.function = function
      tf.saved_model.save(module, folder)
      converter = tf.lite.TFLiteConverter.from_saved_model(folder)
      interpreter = tf.lite.Interpreter(model_content=converter.convert())
    run = interpreter.get_signature_runner()
    inputs = tf.random.stateless_normal([1, 9, 3], [1, 2])
    (outputs,) = run(inputs=inputs).values()
    np.testing.assert_allclose(outputs, function(inputs), rtol=1e-5, atol=1e-5)

  @parameterized.parameters(0, 2)
  def test_without_an_output_gradients_are_zero(self, size):
    # Over time and frequency, an output has the length of time's.
    inputs = tf.ones([2, size, 8, 3])
    kernel = tf.ones([3, 3, 3, 5])
    with tf.GradientTape() as tape:
      tape.watch(kernel)
      outputs = convolution.convolve(inputs, kernel, 2)
    self.assertEqual(outputs.shape, (2, 0, 3, 5))
    np.testing.assert_array_equal(
        tape.gradient(outputs, kernel), np.zeros(kernel.shape)
    )
