"""Layers that encoders are made of: norms, dropout, matrix products.

Layer norm (Ba et al. 2016, https://arxiv.org/abs/1607.06450) and group norm (Wu
and He 2018, https://arxiv.org/abs/1803.08494) take their statistics from one
utterance alone, as gradients by example need.

Matrix products may be bfloat16 (`activation_dtype`), which halves the memory
and uses the fast matrix units of GPUs. The residual stream, weights, gradients,
statistics of norms, the softmax of attention and draws of dropout stay float32.
The published code also rounds the inputs of the front end's convolution,
positions, the scale and the softmax of attention (`rounding='published'` of the
transformer) and the head (`head_dtype` of `ctc.build`).

  B: batch size. S: frames. D: width.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Optional

import tensorflow as tf

from tff_asr.features import log_mel
from tff_asr.models import weights as weights_lib

ACTIVATION_DTYPES = ('float32', 'bfloat16')
ROUNDINGS = ('products', 'published')

_EPSILON = 1e-5
# TensorFlow's default on CPUs and GPUs; XLA's default is another one.
_ALGORITHM = 'philox'


def norm_specs(dim: int) -> weights_lib.Specs:
  """Weights of either norm over D = dim: `bias` and `scale`."""
  return {
      'bias': weights_lib.zeros_spec(dim),
      'scale': weights_lib.ones_spec(dim),
  }


def layer_norm(weights: weights_lib.Weights, inputs: tf.Tensor) -> tf.Tensor:
  """Shifts and scales each frame to mean 0 and variance 1 over its D values.

  Args:
    weights: As in `norm_specs`.
    inputs: float32 or bfloat16 [..., D].

  Returns:
    As inputs.
  """
  # Statistics in float32: bfloat16 has 8 bits.
  normed = normalize_frames(tf.cast(inputs, tf.float32))
  return tf.cast(normed * weights['scale'] + weights['bias'], inputs.dtype)


@tf.custom_gradient
def normalize_frames(
    values: tf.Tensor,
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
  """Layer norm without weights, float32 [..., D]. Differentiable once."""
  mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
  factor = tf.math.rsqrt(variance + _EPSILON)
  normed = (values - mean) * factor

  def refuse(_):
    # It would leave out what passes through `normed` and `factor`.
    raise NotImplementedError('layer norm has no second derivative.')

  @tf.custom_gradient
  def gradient(upstream: tf.Tensor) -> tf.Tensor:
    # In closed form: TensorFlow's own goes back through mean and variance, with
    # three times the operations.
    average = functools.partial(tf.reduce_mean, axis=-1, keepdims=True)
    along = normed * average(upstream * normed)
    return factor * (upstream - average(upstream) - along), refuse

  return normed, gradient


def residual_block(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    seed: Optional[tf.Tensor],
    *,
    attend: Callable[[tf.Tensor, Optional[tf.Tensor]], tf.Tensor],
    mlp: Callable[[tf.Tensor, Optional[tf.Tensor]], tf.Tensor],
    norm: str,
    layer_drop: float,
    skips_norms: bool,
) -> tf.Tensor:
  """Adds attention and MLP to the residual stream, with their layer norms.

  Args:
    weights: Of the block: the norms `ln1` and `ln2`.
    inputs: float32 [B, S, D].
    seed: int32 [2] in training, else None.
    attend: The first half of the block, a function of activations and a seed.
    mlp: The second half.
    norm: 'pre' normalises what a half reads, 'post' what it adds to the stream.
    layer_drop: Probability that training leaves out both halves.
    skips_norms: Whether it then also leaves out the norms of 'post'.
  """
  # Three seeds, so that layer drop does not depend on dropout.
  attention_seed, mlp_seed, drop_seed = split_seed(seed, 3)
  ln1, ln2 = (
      functools.partial(layer_norm, weights_lib.subtree(name, weights))
      for name in ('ln1', 'ln2')
  )

  def run() -> tf.Tensor:
    if norm == 'pre':
      hidden = inputs + attend(ln1(inputs), attention_seed)
      return hidden + mlp(ln2(hidden), mlp_seed)
    hidden = ln1(inputs + attend(inputs, attention_seed))
    return ln2(hidden + mlp(hidden, mlp_seed))

  def skip() -> tf.Tensor:
    return inputs if skips_norms or norm == 'pre' else ln2(ln1(inputs))

  if seed is None or layer_drop == 0:
    return run()
  # A conditional, not a product with 0: a dropped block is not computed.
  keep = uniform([], drop_seed) >= layer_drop
  return tf.cond(keep, run, skip)


def group_norm(
    weights: weights_lib.Weights,
    inputs: tf.Tensor,
    valid: tf.Tensor,
    *,
    num_groups: int,
) -> tf.Tensor:
  """Shifts and scales each group of channels of an utterance.

  To mean 0 and variance 1 over the group's channels in all valid frames.

  Args:
    weights: As in `norm_specs`.
    inputs: float32 or bfloat16 [B, S, D].
    valid: float32 [B, S, 1], 1 for frames of the utterance, 0 for padding,
      which does not count in the statistics.
    num_groups: Divides D.

  Returns:
    As inputs; values at padded frames are arbitrary but finite.
  """
  batch_size, size, _ = tf.unstack(tf.shape(inputs))
  dim = inputs.shape[-1]
  group_dim = dim // num_groups
  values = tf.reshape(
      tf.cast(inputs, tf.float32), [batch_size, size, num_groups, group_dim]
  )
  # At least one frame, so that an utterance without frames stays finite.
  count = tf.maximum(tf.reduce_sum(valid, axis=1), 1.0) * group_dim
  normed = log_mel.standardize(
      values,
      valid[:, :, tf.newaxis] > 0,
      count=count[:, :, tf.newaxis, tf.newaxis],
      axes=[1, 3],
      epsilon=_EPSILON,
  )
  normed = tf.reshape(normed, [batch_size, size, dim])
  return tf.cast(normed * weights['scale'] + weights['bias'], inputs.dtype)


def length_mask(lengths: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
  """Returns float32 [B, size, 1]: 1 before each length, 0 from it on."""
  return tf.sequence_mask(lengths, size, tf.float32)[:, :, tf.newaxis]


def dropout(
    inputs: tf.Tensor, rate: float, seed: Optional[tf.Tensor]
) -> tf.Tensor:
  """Inverted dropout from a stateless seed; without seed or rate, identity.

  The rate is rounded to 16 bits, so that a value takes 16 random bits: half as
  many as a uniform float32. Drawing them is most of dropout's cost.
  """
  if seed is None or rate == 0:
    return inputs
  size = tf.size(inputs)
  # Each uint32 is two draws.
  pairs = _draw([(size + 1) // 2], seed)
  draws = tf.reshape(tf.bitcast(pairs, tf.uint16), [-1])[:size]
  # At most 2^16 - 1, the largest uint16.
  num_dropped = min(round(rate * 2**16), 2**16 - 1)
  kept = tf.cast(draws >= tf.constant(num_dropped, tf.uint16), inputs.dtype)
  # By the rounded rate, so that the expectation is exact.
  kept *= tf.cast(1 / (1 - num_dropped / 2**16), inputs.dtype)
  return inputs * tf.reshape(kept, tf.shape(inputs))


def uniform(shape: Sequence[int | tf.Tensor], seed: tf.Tensor) -> tf.Tensor:
  """Draws float32 in [0, 1), the same ones under XLA.

  The values of `tf.random.stateless_uniform`, which XLA would compute
  differently from the same bits: the last 23 bits are the mantissa.
  """
  bits = tf.bitwise.bitwise_and(
      _draw(shape, seed), tf.constant(2**23 - 1, tf.uint32)
  )
  # The exponent of 1: the bits are a float in [1, 2).
  bits = tf.bitwise.bitwise_or(bits, tf.constant(127 << 23, tf.uint32))
  return tf.bitcast(bits, tf.float32) - 1.0


def _draw(shape: Sequence[int | tf.Tensor], seed: tf.Tensor) -> tf.Tensor:
  """Uniform uint32."""
  return tf.random.stateless_uniform(
      shape,
      seed,
      minval=None,
      maxval=None,
      dtype=tf.uint32,
      alg=_ALGORITHM,
  )


def round_to_dtype(inputs: tf.Tensor, dtype: str) -> tf.Tensor:
  """Rounds float32 values to those of a dtype."""
  return tf.cast(tf.cast(inputs, dtype), tf.float32)


def matmul(inputs: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
  """`inputs` [..., D] times a float32 weight [D, E], in the inputs' dtype."""
  # One product of all rows. `tf.matmul` would multiply utterance by utterance,
  # and the gradient would need another operation to sum over them.
  rows = tf.reshape(inputs, [-1, weight.shape[0]])
  outputs = tf.matmul(rows, tf.cast(weight, inputs.dtype))
  shape = tf.concat([tf.shape(inputs)[:-1], weight.shape[1:]], axis=0)
  outputs = tf.reshape(outputs, shape)
  # The reshape loses static sizes that later layers need.
  outputs.set_shape(inputs.shape[:-1] + weight.shape[1:])
  return outputs


def linear(
    inputs: tf.Tensor, weight: tf.Tensor, bias: Optional[tf.Tensor]
) -> tf.Tensor:
  """`matmul` and, unless it is None, a float32 bias [E]."""
  outputs = matmul(inputs, weight)
  return outputs if bias is None else outputs + tf.cast(bias, outputs.dtype)


def glu(inputs: tf.Tensor) -> tf.Tensor:
  """Gated linear unit: one half of [..., 2 D] times the other's sigmoid."""
  value, gate = tf.split(inputs, 2, axis=-1)
  return value * tf.sigmoid(gate)


def split_seed(
    seed: Optional[tf.Tensor], num_seeds: int
) -> list[Optional[tf.Tensor]]:
  """Splits a seed into independent ones; None stays None (evaluation)."""
  if seed is None:
    return [None] * num_seeds
  return tf.unstack(tf.random.split(seed, num_seeds, alg=_ALGORITHM))
