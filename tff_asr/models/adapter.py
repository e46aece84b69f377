"""Bottleneck adapter: a small residual MLP after a block of an encoder.

The residual adapter of Bapna and Firat 2019, https://arxiv.org/abs/1909.08478,
with which Kannan et al. 2019, https://arxiv.org/abs/1909.05330, and Tomanek et
al. 2021, https://arxiv.org/abs/2109.06952, adapt speech recognisers to
languages and to atypical speech, one after each block:

    outputs = x + relu(LN(x) A + a) B + b,    B = 0 and b = 0 at first

Unlike theirs, the layer norm has no weights: A and a can express its scale and
its bias. Houlsby et al. 2019, https://arxiv.org/abs/1902.00751, have two
adapters in a block, within the residual branches.

  B: batch size. S: frames. D: width. R: width of the bottleneck.
"""

import tensorflow as tf

from tff_asr.models import layers
from tff_asr.models import weights as weights_lib


def specs(*, dim: int, adapter_dim: int) -> weights_lib.Specs:
  """Weights of an adapter with D = dim and R = adapter_dim."""
  return {
      'bias_down': weights_lib.zeros_spec(adapter_dim),
      'bias_up': weights_lib.zeros_spec(dim),
      'down': weights_lib.matrix_spec(dim, adapter_dim),
      # The adapter begins as the identity.
      'up': weights_lib.WeightSpec((adapter_dim, dim)),
  }


def apply(weights: weights_lib.Weights, inputs: tf.Tensor) -> tf.Tensor:
  """Adds the adapter's change to float32 [B, S, D], in float32."""
  hidden = layers.linear(
      layers.normalize_frames(inputs), weights['down'], weights['bias_down']
  )
  return inputs + layers.linear(
      tf.nn.relu(hidden), weights['up'], weights['bias_up']
  )
