"""NumPy twins of the code under test, written from the published definitions.

Slow and plain on purpose: loops, float64, one utterance at a time, no code of
`tff_asr`. Where the twin and the code disagree, one of them is wrong.

  N: samples. T: feature frames. F: mel bins. S: output frames. D: width.
  U: label length. V: vocabulary with blank, the blank last.
"""

from collections.abc import Mapping, Sequence
import fractions
import itertools
import math
from typing import Optional

import numpy as np


def mel_filters() -> np.ndarray:
  """80 triangles in Hz with ends evenly spaced in mel, float64 [257, F]."""
  step = 2595.0 * math.log10(1.0 + 8000.0 / 700.0) / 81
  points = [700.0 * (10 ** (step * m / 2595.0) - 1.0) for m in range(82)]
  filters = np.zeros([257, 80])
  for k in range(1, 257):
    hertz = k * 16000 / 512
    for m in range(80):
      left, peak, right = points[m : m + 3]
      if left <= hertz <= peak:
        filters[k, m] = (hertz - left) / (peak - left)
      elif peak < hertz <= right:
        filters[k, m] = (right - hertz) / (right - peak)
  return filters


def log_mel(waveform: np.ndarray) -> np.ndarray:
  """Normalised log-mel frames float64 [T, F] of int16 samples [N]."""
  filters = mel_filters()
  window = [
      0.54 - 0.46 * math.cos(2 * math.pi * n / 399) for n in range(400)
  ]
  frames = []
  for start in range(0, len(waveform) - 399, 160):
    frame = waveform[start : start + 400].astype(np.float64)
    emphasised = frame.copy()
    emphasised[1:] -= 0.97 * frame[:-1]
    emphasised[0] -= 0.97 * frame[0]
    magnitude = np.abs(np.fft.rfft(emphasised * window, 512))
    frames.append(np.log(np.maximum(magnitude @ filters, 1.0)))
  if not frames:
    return np.zeros([0, 80])
  return normalize(np.stack(frames))


def normalize(features: np.ndarray) -> np.ndarray:
  """Mean 0 and variance 1 over all frames and bins of an utterance [T, F]."""
  return (features - features.mean()) / np.sqrt(features.var() + 1e-7)


def cape(num_frames: int, dim: int, *, frame_sec: float) -> np.ndarray:
  """CAPE without a shift, float64 [S, D]."""
  embedding = np.zeros([num_frames, dim])
  for s in range(num_frames):
    seconds = (s - (num_frames - 1) / 2) * frame_sec
    for k in range(dim // 2):
      angle = seconds * 30 * 10000 ** (-2 * k / dim)
      embedding[s, 2 * k] = math.sin(angle)
      embedding[s, 2 * k + 1] = math.cos(angle)
  return embedding


def sinusoidal(num_frames: int, dim: int) -> np.ndarray:
  """Sines and cosines of the frame's number, float64 [S, D]."""
  embedding = np.zeros([num_frames, dim])
  for s in range(num_frames):
    for k in range(dim // 2):
      angle = s / 10000 ** (2 * k / dim)
      embedding[s, 2 * k] = math.sin(angle)
      embedding[s, 2 * k + 1] = math.cos(angle)
  return embedding


def softmax(scores: np.ndarray) -> np.ndarray:
  """Softmax over the last axis."""
  shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return shifted / shifted.sum(axis=-1, keepdims=True)


def layer_norm(
    inputs: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> np.ndarray:
  """Layer norm over the last axis, epsilon 1e-5."""
  mean = inputs.mean(axis=-1, keepdims=True)
  variance = inputs.var(axis=-1, keepdims=True)
  return (inputs - mean) / np.sqrt(variance + 1e-5) * scale + bias


def front_end(
    weights: Mapping[str, np.ndarray], features: np.ndarray, left: int = 2
) -> np.ndarray:
  """Convolution of kernel 7 and stride 3, and a gated linear unit: [S, D]."""
  num_frames, _ = features.shape
  normed = normalize(features) if num_frames else features
  outputs = []
  for s in range(num_frames // 3):
    hidden = np.array(weights['bias'], np.float64)
    for k in range(7):
      t = 3 * s - left + k
      if 0 <= t < num_frames:
        frame = normed[t] * weights['input_scale'] + weights['input_bias']
        hidden += frame @ weights['kernel'][k]
    value, gate = np.split(hidden, 2)
    outputs.append(value * sigmoid(gate))
  return np.reshape(outputs, [num_frames // 3, -1])


def self_attention(
    weights: Mapping[str, np.ndarray], inputs: np.ndarray, *, num_heads: int
) -> np.ndarray:
  """Multi-head attention over all frames of one utterance, [S, D]."""
  dim = inputs.shape[1]
  head_dim = dim // num_heads
  heads = []
  for head in range(num_heads):
    columns = slice(head * head_dim, (head + 1) * head_dim)
    query, key, value = (
        (inputs @ weights['wqkv'][:, part * dim : (part + 1) * dim])[:, columns]
        for part in range(3)
    )
    attention = softmax(query @ key.T / math.sqrt(head_dim))
    heads.append(attention @ value)
  return np.concatenate(heads, axis=1) @ weights['wf']


def transformer_block(
    weights: Mapping[str, np.ndarray],
    inputs: np.ndarray,
    *,
    num_heads: int,
    norm: str = 'pre',
) -> np.ndarray:
  """A block over all frames of one utterance, [S, D]."""
  ln1 = lambda x: layer_norm(x, weights['ln1/scale'], weights['ln1/bias'])
  ln2 = lambda x: layer_norm(x, weights['ln2/scale'], weights['ln2/bias'])
  attend = lambda x: self_attention(weights, x, num_heads=num_heads)
  mlp = lambda x: np.maximum(x @ weights['w1'], 0) @ weights['w2']
  if norm == 'post':
    hidden = ln1(inputs + attend(inputs))
    return ln2(hidden + mlp(hidden))
  hidden = inputs + attend(ln1(inputs))
  return hidden + mlp(ln2(hidden))


def under(
    name: str, weights: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """The weights under `name/`, without that prefix, float64."""
  return {
      key[len(name) + 1 :]: np.asarray(value, np.float64)
      for key, value in weights.items()
      if key.startswith(name + '/')
  }


def transformer_encoder(
    weights: Mapping[str, np.ndarray],
    features: np.ndarray,
    *,
    num_blocks: int,
    num_heads: int,
    norm: str = 'pre',
    position: str = 'cape',
) -> np.ndarray:
  """Encoded frames float64 [S, D] of one utterance [T, F], in evaluation."""
  hidden = front_end(under('front', weights), features.astype(np.float64))
  if position == 'cape':
    hidden = hidden + cape(len(hidden), hidden.shape[1], frame_sec=0.03)
  else:
    hidden = hidden + sinusoidal(len(hidden), hidden.shape[1])
  for index in range(num_blocks):
    hidden = transformer_block(
        under(f'block_{index:02}', weights),
        hidden,
        num_heads=num_heads,
        norm=norm,
    )
  if norm == 'post':
    return hidden
  return layer_norm(hidden, **under('norm', weights))


def sigmoid(values: np.ndarray) -> np.ndarray:
  """1 / (1 + exp(-x))."""
  return 1 / (1 + np.exp(-values))


def centred_convolution(
    inputs: np.ndarray, kernel: np.ndarray, bias: np.ndarray
) -> np.ndarray:
  """Of an odd number of frames around each; [S, D] to [S, E], 0 outside."""
  reach = len(kernel) // 2
  outputs = np.tile(bias, [len(inputs), 1]).astype(np.float64)
  for s in range(len(inputs)):
    for k, taken in enumerate(kernel):
      t = s - reach + k
      if 0 <= t < len(inputs):
        outputs[s] += inputs[t] @ taken
  return outputs


def gelu(values: np.ndarray) -> np.ndarray:
  """x Phi(x), exactly."""
  return values * 0.5 * (1 + np.vectorize(math.erf)(values / math.sqrt(2)))


def layer_mix_head(
    weights: Mapping[str, np.ndarray],
    features: np.ndarray,
    *,
    num_layers: int,
    num_blocks: int,
) -> np.ndarray:
  """Outputs float64 [S, D] of one utterance [S, L E], in evaluation."""
  front = under('front', weights) if num_blocks else weights
  parts = features.astype(np.float64).reshape(len(features), num_layers, -1)
  normed = layer_norm(parts, 1.0, 0.0)
  mix = np.einsum('l,sle->se', softmax(np.asarray(front['mix'])), normed)
  hidden = gelu(centred_convolution(mix, front['kernel'], front['bias']))
  for index in range(num_blocks):
    block = under(f'block_{index:02}', weights)
    normed = layer_norm(hidden, **under('norm', block))
    hidden = hidden + gelu(
        centred_convolution(normed, block['kernel'], block['bias'])
    )
  return layer_norm(hidden, **under('norm', weights)) if num_blocks else hidden


def conv_encoder(
    weights: Mapping[str, np.ndarray], features: np.ndarray, *, num_blocks: int
) -> np.ndarray:
  """Encoded frames float64 [S, D] of one utterance [T, F], in evaluation."""
  hidden = front_end(under('front', weights), features.astype(np.float64))
  for index in range(num_blocks):
    block = under(f'block_{index:02}', weights)
    normed = layer_norm(hidden, **under('norm', block))
    value, gate = np.split(
        centred_convolution(normed, block['kernel'], block['bias']), 2, axis=-1
    )
    hidden = hidden + value * sigmoid(gate)
  return layer_norm(hidden, **under('norm', weights))


def ctc_transformer(
    weights: Mapping[str, np.ndarray],
    features: np.ndarray,
    *,
    num_blocks: int,
    num_heads: int,
) -> np.ndarray:
  """Logits float64 [S, V] of one utterance [T, F], in evaluation."""
  hidden = transformer_encoder(
      weights, features, num_blocks=num_blocks, num_heads=num_heads
  )
  kernel = np.asarray(weights['head/kernel'], np.float64)
  return hidden @ kernel + weights['head/bias']


def collapse(path: Sequence[int], *, blank: int) -> tuple[int, ...]:
  """Merges repeats, then removes blanks."""
  return tuple(token for token, _ in itertools.groupby(path) if token != blank)


def ctc_loss(logits: np.ndarray, labels: Sequence[int]) -> float:
  """-log of the summed probability of all paths [S] that yield the labels.

  Infinite if there is none. Goes through all V^S paths.
  """
  num_frames, vocab_size = logits.shape
  probabilities = softmax(np.asarray(logits, np.float64))
  total = 0.0
  for path in itertools.product(range(vocab_size), repeat=num_frames):
    if collapse(path, blank=vocab_size - 1) == tuple(labels):
      total += math.prod(probabilities[s, k] for s, k in enumerate(path))
  return -math.log(total) if total else math.inf


def ctc_gradient(
    logits: np.ndarray, labels: Sequence[int], *, step: float = 1e-4
) -> np.ndarray:
  """Central differences of `ctc_loss` by each logit."""
  gradient = np.zeros(logits.shape)
  for place in np.ndindex(*logits.shape):
    nudge = np.zeros(logits.shape)
    nudge[place] = step
    difference = ctc_loss(logits + nudge, labels) - ctc_loss(
        logits - nudge, labels
    )
    gradient[place] = difference / (2 * step)
  return gradient


def ctc_forward_backward(
    logits: np.ndarray, labels: Sequence[int]
) -> tuple[float, np.ndarray]:
  """Loss of one utterance and its gradient [S, V], in float64.

  As TensorFlow's kernels state it, for lengths at which paths cannot be listed:
  forward and backward scores of the states blank, label, ... and blank.
  """
  num_frames, vocab_size = logits.shape
  probabilities = softmax(np.asarray(logits, np.float64))
  blank = vocab_size - 1
  states = [blank]
  for label in labels:
    states += [int(label), blank]
  scores = np.log(probabilities[:, states])
  may_skip = [
      place > 1 and states[place] not in (blank, states[place - 2])
      for place in range(len(states))
  ]
  forward = np.full(scores.shape, -np.inf)
  forward[0, :2] = scores[0, :2]
  for frame in range(1, num_frames):
    before = forward[frame - 1]
    for place in range(len(states)):
      sources = before[max(place - 1 - may_skip[place], 0) : place + 1]
      forward[frame, place] = (
          np.logaddexp.reduce(sources) + scores[frame, place]
      )
  backward = np.full(scores.shape, -np.inf)
  backward[-1, -2:] = 0.0
  for frame in range(num_frames - 2, -1, -1):
    after = backward[frame + 1] + scores[frame + 1]
    for place in range(len(states)):
      is_far = place + 2 < len(states) and may_skip[place + 2]
      backward[frame, place] = np.logaddexp.reduce(
          after[place : place + 2 + is_far]
      )
  total = np.logaddexp.reduce(forward[-1, -2:])
  gradient = probabilities.copy()
  for place, token in enumerate(states):
    gradient[:, token] -= np.exp(forward[:, place] + backward[:, place] - total)
  return -total, gradient


class Adam:
  """Adam over a list of arrays; arguments named as in the paper's algorithm."""

  epsilon = 1e-8

  def __init__(
      self,
      learning_rate: float,
      *,
      beta_1: float = 0.9,
      beta_2: float = 0.999,
      epsilon: Optional[float] = None,
      weight_decay: float = 0.0,
  ):
    self.learning_rate = learning_rate
    self._beta_1 = beta_1
    self._beta_2 = beta_2
    self._epsilon = self.epsilon if epsilon is None else epsilon
    self._weight_decay = weight_decay
    self._time = 0
    self._first: Optional[list[np.ndarray]] = None
    self._second: Optional[list[np.ndarray]] = None

  def step(
      self, weights: Sequence[np.ndarray], gradients: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Returns the weights after one step."""
    if self._first is None:
      self._first = [np.zeros(np.shape(w)) for w in weights]
      self._second = [np.zeros(np.shape(w)) for w in weights]
    self._time += 1
    stepped = []
    for i, (weight, gradient) in enumerate(zip(weights, gradients)):
      weight = np.asarray(weight, np.float64)
      gradient = np.asarray(gradient, np.float64)
      self._first[i] = (
          self._beta_1 * self._first[i] + (1 - self._beta_1) * gradient
      )
      self._second[i] = (
          self._beta_2 * self._second[i] + (1 - self._beta_2) * gradient**2
      )
      first = self._first[i] / (1 - self._beta_1**self._time)
      second = self._second[i] / (1 - self._beta_2**self._time)
      update = first / (np.sqrt(second) + self._epsilon)
      update = update + self._weight_decay * weight
      rate = self.learning_rate * self.ratio(weight, update)
      stepped.append(weight - rate * update)
    return stepped

  def ratio(self, weight: np.ndarray, update: np.ndarray) -> float:
    """The factor of a tensor's step."""
    del weight, update
    return 1.0


class Lamb(Adam):
  """LAMB over a list of arrays."""

  epsilon = 1e-6

  def ratio(self, weight: np.ndarray, update: np.ndarray) -> float:
    weight_norm = math.sqrt(np.sum(weight**2))
    update_norm = math.sqrt(np.sum(update**2))
    return weight_norm / update_norm if weight_norm * update_norm else 1.0


class Lars:
  """LARS over a list of arrays, the learning rate inside of the momentum."""

  def __init__(
      self,
      learning_rate: float,
      *,
      momentum: float = 0.9,
      trust_coefficient: float = 0.001,
      epsilon: float = 0.0,
      weight_decay: float = 0.0,
  ):
    self.learning_rate = learning_rate
    self._momentum = momentum
    self._trust_coefficient = trust_coefficient
    self._epsilon = epsilon
    self._weight_decay = weight_decay
    self._velocity: Optional[list[np.ndarray]] = None

  def step(
      self, weights: Sequence[np.ndarray], gradients: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Returns the weights after one step."""
    if self._velocity is None:
      self._velocity = [np.zeros(np.shape(w)) for w in weights]
    stepped = []
    for i, (weight, gradient) in enumerate(zip(weights, gradients)):
      weight = np.asarray(weight, np.float64)
      update = np.asarray(gradient, np.float64) + self._weight_decay * weight
      weight_norm = math.sqrt(np.sum(weight**2))
      update_norm = math.sqrt(np.sum(update**2))
      ratio = 1.0
      if weight_norm and update_norm:
        ratio = self._trust_coefficient * weight_norm
        ratio /= update_norm + self._epsilon
      self._velocity[i] = (
          self._momentum * self._velocity[i]
          + self.learning_rate * ratio * update
      )
      stepped.append(weight - self._velocity[i])
    return stepped


class Adagrad:
  """Adagrad over a list of arrays, its accumulator from 0."""

  def __init__(self, learning_rate: float, *, epsilon: float = 1e-8):
    self.learning_rate = learning_rate
    self._epsilon = epsilon
    self._total: Optional[list[np.ndarray]] = None

  def step(
      self, weights: Sequence[np.ndarray], gradients: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Returns the weights after one step."""
    if self._total is None:
      self._total = [np.zeros(np.shape(w)) for w in weights]
    stepped = []
    for i, (weight, gradient) in enumerate(zip(weights, gradients)):
      gradient = np.asarray(gradient, np.float64)
      self._total[i] = self._total[i] + gradient**2
      root = np.sqrt(self._total[i])
      update = np.divide(
          gradient, root, out=np.zeros(np.shape(root)), where=root > 0
      )
      update = update + self._epsilon * gradient
      stepped.append(weight - self.learning_rate * update)
    return stepped


def clip_layers(
    layers: Mapping[str, np.ndarray], *, clip: float
) -> dict[str, np.ndarray]:
  """Clips each layer to C sqrt(d_h / d), for d_h elements of d in all."""
  total = sum(layer.size for layer in layers.values())
  clipped = {}
  for name, layer in layers.items():
    limit = clip * math.sqrt(layer.size / total)
    clipped[name] = layer * (limit / max(limit, math.sqrt(np.sum(layer**2))))
  return clipped


def poisson_cohort(
    client_ids: Sequence[str],
    *,
    sampling_prob: float,
    key: np.ndarray,
    round_num: int,
) -> list[str]:
  """The sorted ids with a ChaCha20 word, as a fraction of 2^64, below q.

  key: int32 [8]. A round's nonce is its number (8 bytes) and 3 (4 bytes).
  """
  nonce = [round_num % 2**32, round_num >> 32, 3]
  return [
      client_id
      for i, client_id in enumerate(sorted(client_ids))
      if chacha20_words(key, i // 8, nonce)[i % 8] / 2**64 < sampling_prob
  ]


def chacha20_words(
    key: np.ndarray, counter: int, nonce: Sequence[int]
) -> list[int]:
  """A block of RFC 8439 (section 2.3) as 8 little-endian words of 64 bits."""
  start = [
      0x61707865, 0x3320646E, 0x79622D32, 0x6B206574,
      *(int(word) % 2**32 for word in key), counter, *nonce,
  ]
  state = list(start)

  def quarter_round(*places):
    a, b, c, d = places
    for target, other, mixed, bits in (
        (a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)
    ):
      state[target] = (state[target] + state[other]) % 2**32
      word = state[mixed] ^ state[target]
      state[mixed] = (word << bits | word >> (32 - bits)) % 2**32

  for _ in range(10):
    for i in range(4):
      quarter_round(i, 4 + i, 8 + i, 12 + i)
    for i in range(4):
      quarter_round(
          i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4
      )
  words = [(x + y) % 2**32 for x, y in zip(state, start)]
  return [low | high << 32 for low, high in zip(words[::2], words[1::2])]


def blt_taken(
    noise: Sequence[Sequence[int]],
    output_scale: Sequence[int],
    buf_decay: Sequence[int],
    *,
    num_elements: int,
) -> list[int]:
  """What a buffered linear Toeplitz strategy takes back, in steps of 1/32.

  Buffers are in steps of 2^-16, scales and decays in multiples of 2^-30, and
  every product is rounded to its step, ties upwards. Without decays the
  strategy is banded: its scales are of the noise of 1, 2, .. rounds before.

  noise: Noise of the rounds so far, whole numbers.
  """
  nearest = lambda value: math.floor(value + fractions.Fraction(1, 2))
  share = lambda value: fractions.Fraction(value, 2**30)
  taken = []
  for place in range(num_elements):
    total = 0
    for scale, decay in zip(output_scale, buf_decay):
      buffer = 0
      for row in noise:
        buffer = nearest(share(decay) * buffer) + 2**16 * row[place]
      total += nearest(share(scale) * buffer)
    if not buf_decay:
      for scale, row in zip(output_scale, noise[::-1]):
        total += nearest(share(scale) * 2**16 * row[place])
    taken.append(nearest(fractions.Fraction(total, 2**11)))
  return taken


def blt_noise(
    drawn: Sequence[Sequence[int]],
    output_scale: Sequence[int],
    buf_decay: Sequence[int],
) -> list[list[int]]:
  """Rounds' noise of new noise w in steps of 1/32, rounded to whole numbers."""
  noise = []
  for row in drawn:
    taken = blt_taken(noise, output_scale, buf_decay, num_elements=len(row))
    noise.append([(w - r + 16) // 32 for w, r in zip(row, taken)])
  return noise


def adapt_clips(
    clips: Sequence[float],
    norms: Sequence[Sequence[float]],
    *,
    cohort_size: float,
    target_quantile: float,
    learning_rate: float,
) -> list[float]:
  """Clips after a round without noise, by the quantile rule's geometric step.

  norms: Norms of each client's layers.
  """
  adapted = []
  for h, clip in enumerate(clips):
    below = sum(client[h] <= clip for client in norms)
    above = len(norms) - below
    # A client that did not come counts as half below.
    share = 0.5 + (below - above) / (2 * cohort_size)
    share = min(max(share, 0.0), 1.0)
    adapted.append(clip * math.exp(-learning_rate * (share - target_quantile)))
  return adapted
