"""Floating-point operations of the transformer's matrix products, on paper.

A product of [m, k] and [k, n] takes 2 m k n. Everything else (norms, softmax,
dropout, the loss) is left out: it is what keeps a step from the rate of its
products. Backward takes twice forward: one product for each factor's gradient,
the features' own too, since the front end scales them by a weight.

  B: batch size. T: feature frames. S: subsampled frames. D: width.
  V: vocabulary.
"""

from tff_asr import checks

# Of the front end.
_KERNEL_SIZE = 7
_STRIDE = 3
BACKWARD_PER_FORWARD = 2


def forward(
    *,
    batch_size: int,
    num_frames: int,
    feature_dim: int,
    num_blocks: int,
    dim: int,
    mlp_dim: int,
    vocab_size: int,
) -> int:
  """Operations of a forward pass of a CTC transformer.

  Args:
    batch_size: B.
    num_frames: T, of each utterance with its padding.
    feature_dim: Mel bins.
    num_blocks: Number of blocks of the transformer.
    dim: D.
    mlp_dim: Hidden width of the MLPs.
    vocab_size: V.

  Raises:
    ValueError: An argument is not a positive integer.
  """
  checks.positive_int(
      batch_size=batch_size,
      num_frames=num_frames,
      feature_dim=feature_dim,
      num_blocks=num_blocks,
      dim=dim,
      mlp_dim=mlp_dim,
      vocab_size=vocab_size,
  )
  size = num_frames // _STRIDE
  # Of each subsampled frame: a gated unit has twice the width.
  front = 2 * _KERNEL_SIZE * feature_dim * 2 * dim
  # Queries, keys, values and the output; scores and the mean of the values.
  attention = 2 * dim * 4 * dim + 2 * 2 * size * dim
  mlp = 2 * 2 * dim * mlp_dim
  head = 2 * dim * vocab_size
  return batch_size * size * (
      front + num_blocks * (attention + mlp) + head
  )


def step(**sizes: int) -> int:
  """Operations of a training step: forward and backward; see `forward`."""
  return (1 + BACKWARD_PER_FORWARD) * forward(**sizes)
