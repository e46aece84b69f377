"""A convolution over time that may have no output frame."""

import tensorflow as tf


def convolve(inputs: tf.Tensor, kernel: tf.Tensor, stride: int) -> tf.Tensor:
  """`tf.nn.convolution` of whole windows, also where there is not one.

  Where its output is empty, TensorFlow's kernel refuses negative sizes, and
  oneDNN's (2.14: the default on processors with AVX-512) returns its input.

  Args:
    inputs: [B, T, ..., K], of which all but B and T are known.
    kernel: [L, ..., K, M], of the same dtype, its shape known.
    stride: Along time and what follows it.

  Returns:
    [B, max(0, 1 + (T - L) // stride), ..., M].
  """
  size = tf.shape(inputs)[1]
  length = kernel.shape[0]
  missing = tf.maximum(length - size, 0)
  # Not a pad, after which TFLite knows no channels, and it needs them.
  shape = [tf.shape(inputs)[0], missing, *inputs.shape[2:]]
  end = tf.zeros(shape, inputs.dtype)
  padded = tf.concat([inputs, end], axis=1)
  outputs = tf.nn.convolution(padded, kernel, stride, 'VALID')
  return outputs[:, : tf.maximum(1 + (size - length) // stride, 0)]
