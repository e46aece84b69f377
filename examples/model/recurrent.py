"""Your own model: the package's front end and a gated recurrent layer."""

import tensorflow as tf

from tff_asr.models import encoder
from tff_asr.models import subsampling
from tff_asr.models import weights as weights_lib


def build(*, num_blocks: int, dim: int) -> encoder.Encoder:
  """Builds an encoder of minimal gated units, each with a residual.

  h_t = f_t * h_{t-1} + (1 - f_t) * c_t, with gate f and candidate c of x_t.

  Args:
    num_blocks: Recurrent layers.
    dim: Their width.
  """

  def apply_block(weights, inputs, valid, unused_seed):
    gate, candidate = tf.split(
        inputs @ weights['kernel'] + weights['bias'], 2, axis=-1
    )
    gate = tf.sigmoid(gate) * valid
    candidate = (1 - gate) * tf.tanh(candidate)
    step = lambda state, now: now[0] * state + now[1]
    by_time = lambda x: tf.transpose(x, [1, 0, 2])
    states = tf.scan(
        step,
        (by_time(gate), by_time(candidate)),
        tf.zeros_like(inputs[:, 0]),
    )
    return inputs + by_time(states)

  return encoder.stack(
      subsampling.build_3x(feature_dim=80, dim=dim, dropout=0.0),
      num_blocks=num_blocks,
      block_specs={
          'kernel': weights_lib.WeightSpec(
              (dim, 2 * dim), limit=(3 / dim) ** 0.5
          ),
          'bias': weights_lib.zeros_spec(2 * dim),
      },
      apply_block=apply_block,
      final_norm=True,
  )
