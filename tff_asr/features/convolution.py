"""A convolution over time, also of inputs shorter than its kernel."""

import tensorflow as tf


def convolve(inputs: tf.Tensor, kernel: tf.Tensor, stride: int) -> tf.Tensor:
  """`tf.nn.convolution` without padding, also of very short inputs.

  If the output is empty, TensorFlow's kernel rejects negative sizes, and
  oneDNN's (in 2.14 the default on processors with AVX-512) returns its input.

  Args:
    inputs: [B, T, ..., K]; all sizes except B and T are known.
    kernel: [L, ..., K, M], of the same dtype, its shape known.
    stride: Along time and the axes after it.

  Returns:
    [B, max(0, 1 + (T - L) // stride), ..., M].
  """
  size = tf.shape(inputs)[1]
  length = kernel.shape[0]
  missing = tf.maximum(length - size, 0)
  # Not tf.pad: TFLite loses the number of channels after it.
  shape = [tf.shape(inputs)[0], missing, *inputs.shape[2:]]
  end = tf.zeros(shape, inputs.dtype)
  padded = tf.concat([inputs, end], axis=1)
  outputs = tf.nn.convolution(padded, kernel, stride, 'VALID')
  # Drops the frame that the padding made.
  return outputs[:, : tf.maximum(1 + (size - length) // stride, 0)]
