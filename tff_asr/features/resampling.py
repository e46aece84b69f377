"""Change of a waveform's speed by resampling, in the graph.

For a speed s = p / q the result is y(m) = x(s m), with x between its samples by
a windowed sinc. Blocks of q outputs are p samples apart, so all of them are one
convolution of stride p with q kernels.

  N: samples.
"""

import fractions
import functools
import math

import numpy as np
import tensorflow as tf

from tff_asr.features import convolution

# Zero crossings of the sinc on each side, and its cutoff as a share of half the
# lower of the two rates.
_NUM_ZEROS = 16
_CUTOFF = 0.95


def resample(waveform: tf.Tensor, *, speed: fractions.Fraction) -> tf.Tensor:
  """Plays a waveform at another speed, at the same sample rate.

  Tempo and pitch change by the factor `speed`. Frequencies that the rate cannot
  hold are removed.

      >>> resample(tf.zeros([900]), speed=fractions.Fraction(9, 10)).shape
      TensorShape([1000])

  Args:
    waveform: float32 [N].
    speed: Above 0. Kernels grow with its numerator and its denominator.

  Returns:
    float32 [`num_samples`(N)].
  """
  if speed == 1:
    return waveform
  half_width = _half_width(speed)
  size = num_samples(tf.size(waveform), speed=speed)
  num_blocks = -(-size // speed.denominator)
  # The last block needs as many samples after its first.
  end = speed.numerator * num_blocks + half_width
  padded = tf.pad(waveform, [[half_width, end]])[tf.newaxis, :, tf.newaxis]
  blocks = convolution.convolve(
      padded, tf.constant(kernels(speed)[:, np.newaxis]), speed.numerator
  )
  return tf.reshape(blocks[0, :num_blocks], [-1])[:size]


def num_samples(size, *, speed: fractions.Fraction):
  """Samples of a resampled waveform: ceil(size / speed).

  Args:
    size: Samples before, integer or integer tensor.
    speed: As for `resample`.
  """
  return -(-size * speed.denominator // speed.numerator)


def _half_width(speed: fractions.Fraction) -> int:
  """Samples on each side that an output depends on."""
  return math.ceil(_NUM_ZEROS * max(1, speed) / _CUTOFF)


@functools.cache
def kernels(speed: fractions.Fraction) -> np.ndarray:
  """Returns the kernel of each output of a block: float32 [K, q].

  Output r of a block lies r p / q samples after the block's first one, which
  has the index `half_width` in a kernel.
  """
  half_width = _half_width(speed)
  taps = np.arange(-half_width, speed.numerator + half_width)
  outputs = np.arange(speed.denominator) * float(speed)
  distances = taps[:, np.newaxis] - outputs
  # Faster speech has higher frequencies, which the rate may not hold.
  cutoff = _CUTOFF / max(1, float(speed))
  window = np.where(
      abs(distances) < half_width,
      np.cos(0.5 * np.pi * distances / half_width) ** 2,
      0,
  )
  return (cutoff * np.sinc(cutoff * distances) * window).astype(np.float32)
