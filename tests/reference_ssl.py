"""NumPy twins for self-supervised training: Conformer, BEST-RQ.

As `reference`: slow and plain, from the published definitions, one utterance at
a time, no code of `tff_asr`.

  T: feature frames. F: mel bins. S: subsampled frames. D: width. H: heads.
"""

from collections.abc import Mapping
import math

import numpy as np

from tests import reference

Arrays = Mapping[str, np.ndarray]


def swish(inputs: np.ndarray) -> np.ndarray:
  return inputs * reference.sigmoid(inputs)


def group_norm(
    inputs: np.ndarray, scale: np.ndarray, bias: np.ndarray, *, num_groups: int
) -> np.ndarray:
  """Over all frames and a group's channels of [S, D], epsilon 1e-5."""
  outputs = []
  for group in np.split(inputs, num_groups, axis=1):
    outputs.append((group - group.mean()) / np.sqrt(group.var() + 1e-5))
  return np.concatenate(outputs, axis=1) * scale + bias


def convolution_2d(
    inputs: np.ndarray, kernel: np.ndarray, bias: np.ndarray
) -> np.ndarray:
  """Kernel 3 x 3, stride 2 x 2 of [T, F, K], 0 past the end; then ReLU."""
  num_frames, num_bins, _ = inputs.shape
  outputs = np.zeros([num_frames // 2, num_bins // 2, len(bias)])
  for t in range(num_frames // 2):
    for f in range(num_bins // 2):
      total = np.array(bias)
      for i in range(3):
        for j in range(3):
          if 2 * t + i < num_frames and 2 * f + j < num_bins:
            total += inputs[2 * t + i, 2 * f + j] @ kernel[i, j]
      outputs[t, f] = np.maximum(total, 0)
  return outputs


def front_end_2d(weights: Arrays, features: np.ndarray) -> np.ndarray:
  """The Conformer's front end, [S, D]."""
  hidden = features[:, :, np.newaxis]
  for number in ('1', '2'):
    hidden = convolution_2d(
        hidden, weights[f'kernel_{number}'], weights[f'bias_{number}']
    )
  flat = hidden.reshape([len(hidden), -1])
  return flat @ weights['kernel_out'] + weights['bias_out']


def relative_attention(
    weights: Arrays, inputs: np.ndarray, *, num_heads: int
) -> np.ndarray:
  """Transformer-XL's attention over all frames of one utterance, [S, D]."""
  size, dim = inputs.shape
  head_dim = dim // num_heads
  queries, keys, values = np.split(inputs @ weights['wqkv'], 3, axis=1)
  heads = []
  for head in range(num_heads):
    part = slice(head * head_dim, (head + 1) * head_dim)
    scores = np.zeros([size, size])
    for i in range(size):
      for j in range(size):
        sinusoid = np.zeros(dim)
        for k in range(dim // 2):
          angle = (i - j) * 10000 ** (-2 * k / dim)
          sinusoid[2 * k], sinusoid[2 * k + 1] = math.sin(angle), math.cos(
              angle
          )
        position = (sinusoid @ weights['wr'])[part]
        query = queries[i, part]
        scores[i, j] = (query + weights['u'][part]) @ keys[j, part]
        scores[i, j] += (query + weights['v'][part]) @ position
    attention = reference.softmax(scores / math.sqrt(head_dim))
    heads.append(attention @ values[:, part])
  return np.concatenate(heads, axis=1) @ weights['wf']


def conformer_block(
    weights: Arrays, inputs: np.ndarray, *, num_heads: int, num_groups: int
) -> np.ndarray:
  """A block over all frames of one utterance, [S, D]."""

  def norm(name: str, values: np.ndarray) -> np.ndarray:
    return reference.layer_norm(
        values, weights[f'{name}/scale'], weights[f'{name}/bias']
    )

  def mlp(name: str, values: np.ndarray) -> np.ndarray:
    inner = swish(norm(f'{name}/ln', values) @ weights[f'{name}/w1'])
    return inner @ weights[f'{name}/w2']

  hidden = inputs + 0.5 * mlp('mlp_1', inputs)
  # Without the weights of relative positions there are none.
  is_relative = 'attention/wr' in weights
  attend = relative_attention if is_relative else reference.self_attention
  hidden = hidden + attend(
      reference.under('attention', weights),
      norm('attention/ln', hidden),
      num_heads=num_heads,
  )
  value, gate = np.split(
      norm('conv/ln', hidden) @ weights['conv/w3'], 2, axis=1
  )
  gated = value * reference.sigmoid(gate)
  kernel = weights['conv/depthwise']
  convolved = np.zeros(gated.shape)
  for s in range(len(gated)):
    for k in range(len(kernel)):
      other = s + k - len(kernel) // 2
      if 0 <= other < len(gated):
        convolved[s] += gated[other] * kernel[k]
  normed = group_norm(
      convolved,
      weights['conv/gn/scale'],
      weights['conv/gn/bias'],
      num_groups=num_groups,
  )
  hidden = hidden + swish(normed) @ weights['conv/w4']
  hidden = hidden + 0.5 * mlp('mlp_2', hidden)
  return norm('ln', hidden)


def conformer_encoder(
    weights: Arrays,
    features: np.ndarray,
    *,
    num_blocks: int,
    num_heads: int,
    num_groups: int,
) -> np.ndarray:
  """Encoded frames float64 [S, D] of one utterance [T, F], in evaluation."""
  hidden = front_end_2d(
      reference.under('front', weights), features.astype(np.float64)
  )
  for index in range(num_blocks):
    hidden = conformer_block(
        reference.under(f'block_{index:02}', weights),
        hidden,
        num_heads=num_heads,
        num_groups=num_groups,
    )
  return hidden


def labels(
    features: np.ndarray,
    projection: np.ndarray,
    codes: np.ndarray,
    *,
    num_stacked: int,
) -> list[int]:
  """The nearest code of each stacked, projected, normalised frame."""
  features = features.astype(np.float64)
  normed = (features - features.mean(axis=0)) / np.sqrt(
      features.var(axis=0) + 1e-5
  )
  found = []
  for s in range(len(features) // num_stacked):
    frames = normed[s * num_stacked : (s + 1) * num_stacked]
    projected = np.concatenate(list(frames)) @ projection
    projected /= np.linalg.norm(projected)
    distances = [np.linalg.norm(projected - code) for code in codes]
    found.append(int(np.argmin(distances)))
  return found
