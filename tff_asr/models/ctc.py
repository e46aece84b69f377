"""Connectionist temporal classification: head, loss, greedy decoding.

Graves et al. 2006. The blank is the last of the V outputs.

  B: batch size. T: feature frames. F: mel bins. S: output frames.
  U: label length. V: vocabulary with blank.
"""

import dataclasses
import math
from typing import NamedTuple, Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib
from tff_asr.text import tokenizer as tokenizer_lib

LOSS_KERNELS = ('op', 'scan', 'optax')

# Log score of a path that does not exist. Finite: differences of infinities are
# NaN.
_LOG_ZERO = -1e30
# Log score of a path that exists only in optax (its log_epsilon).
_LOG_EPSILON = -1e5


class InitialHead(NamedTuple):
  """Initial values of the linear layer.

  Attributes:
    tensors: `head/bias` [V] and `head/kernel` [D, V].
    tokens: Identity of the tokenizer of its outputs.
  """

  tensors: encoder_lib.FrozenTensors
  tokens: str


@dataclasses.dataclass(frozen=True)
class CtcModel:
  """An encoder and a linear layer to V logits: a pure function of its weights.

  Attributes:
    encoder: The acoustic encoder.
    vocab_size: V.
    loss_kernel: One of `LOSS_KERNELS`; see `loss`.
    specs: All weights: the encoder's and `head/kernel`, `head/bias`.
    head_dtype: Type of the linear layer, 'float32' or 'bfloat16'.
  """

  encoder: encoder_lib.Encoder
  vocab_size: int
  loss_kernel: str
  specs: weights_lib.Specs
  head_dtype: str = 'float32'

  def initialize(self, seed: tf.Tensor) -> weights_lib.Weights:
    """Draws initial weights from a seed int32 [2]."""
    return weights_lib.initialize(self.specs, seed)

  def logits(
      self,
      weights: weights_lib.Weights,
      features: tf.Tensor,
      feature_lengths: tf.Tensor,
      seed: Optional[tf.Tensor] = None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes logits.

    Args:
      weights: float32 tensors by name.
      features: float32 [B, T, F].
      feature_lengths: int32 [B], each in [0, T]. Frames at or past the length
        do not affect the output.
      seed: int32 [2] in training, None in evaluation.

    Returns:
      float32 [B, S, V] and the valid frames of each, int32 [B].
    """
    hidden, lengths = self.encoder.apply(
        weights, features, feature_lengths, seed
    )
    # The published code computes the head in bfloat16, too.
    hidden = tf.cast(hidden, self.head_dtype)
    outputs = layers.matmul(hidden, weights['head/kernel'])
    outputs += tf.cast(weights['head/bias'], self.head_dtype)
    return tf.cast(outputs, tf.float32), lengths

  def loss(
      self,
      weights: weights_lib.Weights,
      features: tf.Tensor,
      feature_lengths: tf.Tensor,
      labels: tf.Tensor,
      label_lengths: tf.Tensor,
      seed: Optional[tf.Tensor] = None,
  ) -> tf.Tensor:
    """CTC loss of each utterance, float32 [B], in nats; see `loss` below."""
    logits, lengths = self.logits(weights, features, feature_lengths, seed)
    return loss(logits, lengths, labels, label_lengths, kernel=self.loss_kernel)


def build(
    *,
    encoder: encoder_lib.Encoder,
    tokenizer: tokenizer_lib.Tokenizer,
    loss_kernel: str = 'op',
    head_dtype: str = 'float32',
    head: Optional[InitialHead] = None,
) -> CtcModel:
  """Builds a CTC model.

  Args:
    encoder: The acoustic encoder.
    tokenizer: Gives V.
    loss_kernel: `op`; on GPUs `scan`; `optax` as the published code; see
      `loss`.
    head_dtype: 'float32', or 'bfloat16' as in the published code.
    head: Initial values of the linear layer; if None, they are drawn.

  Raises:
    ValueError: An unknown kernel or head_dtype, or a head of another width or
      with other tokens.
  """
  checks.one_of(LOSS_KERNELS, loss_kernel=loss_kernel)
  checks.one_of(layers.ACTIVATION_DTYPES, head_dtype=head_dtype)
  vocab_size = tokenizer.vocab_size
  dim = encoder.output_dim
  specs = dict(encoder.specs) | {
      'head/bias': weights_lib.WeightSpec(
          (vocab_size,), limit=1 / math.sqrt(dim)
      ),
      # LeCun uniform, as in the published code; the encoder's matrices are not.
      'head/kernel': weights_lib.WeightSpec(
          (dim, vocab_size), limit=math.sqrt(3 / dim)
      ),
  }
  if head is not None:
    _check_head(head, tokens=tokenizer.identity, dim=dim)
    for name, tensor in head.tensors.items():
      specs[name] = weights_lib.WeightSpec(tensor.shape, source=tensor)
  return CtcModel(encoder, vocab_size, loss_kernel, specs, head_dtype)


def _check_head(head: InitialHead, *, tokens: str, dim: int) -> None:
  """Raises ValueError unless a head is of this width and these tokens."""
  width, _ = head.tensors['head/kernel'].shape
  if (width, head.tokens) != (dim, tokens):
    raise ValueError(
        f'the head of the public model takes {width} numbers a frame and '
        f'writes {head.tokens!r}, but ENCODER gives {dim} and TOKENIZER has '
        f'{tokens!r}: name gin/models/public_ctc.gin after the files that set '
        'them.'
    )


def loss(
    logits: tf.Tensor,
    logit_lengths: tf.Tensor,
    labels: tf.Tensor,
    label_lengths: tf.Tensor,
    *,
    kernel: str = 'op',
) -> tf.Tensor:
  """Negative log probability of the labels, summed over alignments.

  Args:
    logits: float32 [B, S, V], S at least 1.
    logit_lengths: int32 [B]. An utterance must have at least `min_frames` of
      its labels (`data.pipeline`). With fewer, `op` raises (under U) or gives
      infinity with a wrong gradient, `scan` infinity with a gradient of zero,
      `optax` some 1e5 with a gradient.
    labels: int32 [B, U], each id in [0, V - 1); ids at or past an utterance's
      label length are ignored.
    label_lengths: int32 [B], 0 allowed: then every frame is a blank.
    kernel: `op` is TensorFlow's CTCLoss, which has a CPU kernel only; `scan` is
      written in tensor ops, which run on every device and under XLA. They agree
      to rounding. `optax` is `scan` with the rule of optax.ctc_loss, which the
      published code takes: at a cost of 1e5, the labels may begin at any of
      them, and equal ones stand without a blank between.

  Returns:
    float32 [B], in nats.

  Raises:
    ValueError: An unknown kernel.
  """
  checks.one_of(LOSS_KERNELS, kernel=kernel)
  # At least one column: kernels are wrong for labels without columns.
  labels = tf.pad(labels, [[0, 0], [0, 1]])
  in_label = tf.sequence_mask(label_lengths, tf.shape(labels)[1])
  # Padding may hold any id, also one that is out of range.
  labels = tf.where(in_label, labels, 0)
  if kernel != 'op':
    return _scan_loss(
        logits,
        logit_lengths,
        labels,
        label_lengths,
        _LOG_EPSILON if kernel == 'optax' else _LOG_ZERO,
    )
  # The op rejects empty labels. They are replaced by one token and one frame,
  # and the op's loss for them is not used.
  is_empty = tf.equal(label_lengths, 0)
  at_least_one = tf.cast(is_empty, tf.int32)
  positions = tf.where(
      tf.sequence_mask(label_lengths + at_least_one, tf.shape(labels)[1])
  )
  losses = tf.raw_ops.CTCLoss(
      # The op takes time first. Its blank is the last output, as here.
      inputs=tf.transpose(logits, [1, 0, 2]),
      labels_indices=positions,
      labels_values=tf.gather_nd(labels, positions),
      sequence_length=tf.maximum(logit_lengths, at_least_one),
  ).loss
  return tf.where(is_empty, _all_blank_loss(logits, logit_lengths), losses)


def _all_blank_loss(logits: tf.Tensor, logit_lengths: tf.Tensor) -> tf.Tensor:
  """The loss of empty labels: their only alignment is all blanks."""
  blank_scores = tf.nn.log_softmax(logits)[:, :, -1]
  valid = tf.sequence_mask(logit_lengths, tf.shape(logits)[1])
  return -tf.reduce_sum(tf.where(valid, blank_scores, 0.0), axis=1)


def _scan_loss(
    logits: tf.Tensor,
    logit_lengths: tf.Tensor,
    labels: tf.Tensor,
    label_lengths: tf.Tensor,
    log_epsilon: float,
) -> tf.Tensor:
  """As `loss`, by one loop over frames, with the gradient in closed form."""

  @tf.custom_gradient
  def losses_of(logits):
    losses, gradients = _forward_backward(
        logits, logit_lengths, labels, label_lengths, log_epsilon
    )
    return losses, lambda upstream: upstream[:, tf.newaxis, tf.newaxis] * (
        gradients
    )

  return losses_of(logits)


class _Lattice(NamedTuple):
  """States of the alignments: blank, label, blank, ... and blank.

  The first B rows are of the forward pass, the last B of the backward pass,
  which is a forward pass over states in reverse.

  Attributes:
    tokens: int32 [B, 2 U + 1], of each state.
    is_end: bool [B, 2 U + 1], states in which an alignment may end.
    start: float32 [2 B, 2 U + 1], log scores before the first frame.
    skips: float32 [2 B, 2 U + 1], log scores of the step from one label to the
      next, past the blank between them.
  """

  tokens: tf.Tensor
  is_end: tf.Tensor
  start: tf.Tensor
  skips: tf.Tensor


def _lattice(
    labels: tf.Tensor,
    label_lengths: tf.Tensor,
    *,
    blank: tf.Tensor,
    log_epsilon: float,
) -> _Lattice:
  """The lattice of labels int32 [B, U]; see `_forward_backward`."""
  # Interleaves blanks and labels: blank, label, blank, label, ...
  tokens = tf.stack([tf.fill(tf.shape(labels), blank), labels], axis=2)
  tokens = tf.pad(
      tf.reshape(tokens, [tf.shape(labels)[0], -1]),
      [[0, 0], [0, 1]],
      constant_values=blank,
  )
  states = tf.range(tf.shape(tokens)[1])[tf.newaxis]
  last = 2 * label_lengths[:, tf.newaxis]
  # Equal labels need the blank between them.
  skips = tf.not_equal(tokens[:, 2:], tokens[:, :-2])
  skips = tf.where(skips, 0.0, log_epsilon)
  skips = tf.where(tf.equal(states[:, 2:] % 2, 1), skips, _LOG_ZERO)
  padded = lambda *pad: tf.pad(
      skips, [[0, 0], pad], constant_values=_LOG_ZERO
  )
  # Before its first frame, a row is in the blank that it begins with.
  start = tf.concat(
      [
          tf.where(tf.equal(states, tf.zeros_like(last)), 0.0, log_epsilon),
          tf.where(tf.equal(states, last)[:, ::-1], 0.0, _LOG_ZERO),
      ],
      axis=0,
  )
  return _Lattice(
      tokens=tokens,
      is_end=tf.equal(states, last) | tf.equal(states, last - 1),
      start=start,
      skips=tf.concat([padded(2, 0), tf.reverse(padded(0, 2), [1])], axis=0),
  )


def _run_lattice(
    lattice: _Lattice, scores: tf.Tensor, in_length: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Sums the paths into each state, frame by frame, both ways.

  Args:
    lattice: See `_Lattice`.
    scores: float32 [S, 2 B, 2 U + 1], log scores of the states.
    in_length: bool [S, 2 B], false for padding, which leaves paths as they are.

  Returns:
    Log scores of the paths after the last frame, [2 B, 2 U + 1], and after each
    frame, [S, 2 B, 2 U + 1].
  """
  size = tf.shape(scores)[0]

  def shift(paths):
    return tf.pad(paths[:, :-1], [[0, 0], [1, 0]], constant_values=_LOG_ZERO)

  def advance(frame, paths, history):
    nearest = shift(paths)
    next_label = shift(nearest) + lattice.skips
    # Log-sum-exp. The maximum is finite even where no path exists
    # (`_LOG_ZERO`), so no difference is NaN.
    most = tf.maximum(tf.maximum(paths, nearest), next_label)
    total = tf.add_n(
        [tf.exp(each - most) for each in (paths, nearest, next_label)]
    )
    advanced = most + tf.math.log(total) + scores[frame]
    is_valid = in_length[frame][:, tf.newaxis]
    # Padding keeps the scores, so the last frame has those of the last valid
    # one.
    paths = tf.where(is_valid, advanced, paths)
    return frame + 1, paths, history.write(frame, paths)

  start = lattice.start
  _, paths, history = tf.while_loop(
      lambda frame, *_: frame < size,
      advance,
      (
          tf.constant(0),
          start,
          tf.TensorArray(tf.float32, size, element_shape=start.shape),
      ),
      # Each frame needs the one before.
      parallel_iterations=1,
  )
  return paths, history.stack()


def _forward_backward(
    logits: tf.Tensor,
    logit_lengths: tf.Tensor,
    labels: tf.Tensor,
    label_lengths: tf.Tensor,
    log_epsilon: float,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Losses and their gradients (Graves et al. 2006, equations 6 to 16).

  The backward pass is a forward one over frames and states in reverse: both are
  rows of one loop, which has S turns of 30 ops on [2 B, 2 U + 1] scores.

  Args:
    logits: float32 [B, S, V].
    logit_lengths: int32 [B].
    labels: int32 [B, U], 0 at and past each length.
    label_lengths: int32 [B].
    log_epsilon: Log score of a start at another label, and of a missing blank.

  Returns:
    Losses float32 [B], and the gradient of each by its logits, [B, S, V].
  """
  batch_size, size, vocab_size = tf.unstack(tf.shape(logits))
  lattice = _lattice(
      labels, label_lengths, blank=vocab_size - 1, log_epsilon=log_epsilon
  )
  # By frame [S, B, ...], as the loop takes them.
  by_frame = tf.transpose(logits, [1, 0, 2])
  in_length = tf.transpose(tf.sequence_mask(logit_lengths, size))
  tokens = lattice.tokens
  scores = _state_scores(by_frame, tokens)
  # Scores are relative to the frame's best state, and the logarithm of the
  # softmax's sum is subtracted at the end: float32 then rounds by what
  # distinguishes alignments, not by what all of them cost.
  best = tf.reduce_max(scores, axis=2, keepdims=True)
  scores -= best
  paths, history = _run_lattice(
      lattice,
      tf.concat([scores, tf.reverse(scores, [0, 2])], axis=1),
      tf.concat([in_length, tf.reverse(in_length, [0])], axis=1),
  )
  all_paths = tf.reduce_logsumexp(
      tf.where(lattice.is_end, paths[:batch_size], _LOG_ZERO), axis=1
  )
  # Sums of _LOG_ZERO and scores stay far below this.
  is_possible = all_paths > _LOG_ZERO / 2
  rest = best[:, :, 0] - tf.reduce_logsumexp(by_frame, axis=2)
  rest = tf.reduce_sum(tf.where(in_length, rest, 0.0), axis=0)
  # Infinite, as in TensorFlow's op, if the labels do not fit.
  losses = tf.where(is_possible, -(all_paths + rest), math.inf)

  # Both passes include the frame's own score.
  joint = history[:, :batch_size] - scores
  joint += tf.reverse(history[:, batch_size:], [0, 2])
  is_counted = tf.transpose(in_length) & is_possible[:, tf.newaxis]
  # With respect to the logits: the softmax less each output's share of the
  # paths (Graves et al. 2006, equation 16).
  gradients = tf.nn.softmax(logits) - _output_shares(joint, tokens, vocab_size)
  return losses, tf.where(is_counted[:, :, tf.newaxis], gradients, 0.0)


def _state_scores(by_frame: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
  """Logits [S, B, V] of the token of each state [B, 2 U + 1], by frame."""
  shape = tf.concat([tf.shape(by_frame)[:1], tf.shape(tokens)], axis=0)
  tokens = tf.broadcast_to(tokens, shape)
  return tf.gather(by_frame, tokens, batch_dims=2, axis=2)


def _output_shares(
    joint: tf.Tensor, tokens: tf.Tensor, vocab_size: tf.Tensor
) -> tf.Tensor:
  """The share of each output in the paths through a frame, [B, S, V].

  Args:
    joint: float32 [S, B, 2 U + 1], log scores of the paths through each state.
    tokens: int32 [B, 2 U + 1], of each state.
    vocab_size: V.
  """
  shares = tf.transpose(tf.nn.softmax(joint), [1, 0, 2])
  one_hot = tf.one_hot(tokens, vocab_size)
  # Two products: a GPU may round what it multiplies to 10 bits (TF32).
  coarse = tf.cast(tf.cast(shares, tf.bfloat16), tf.float32)
  return tf.matmul(coarse, one_hot) + tf.matmul(shares - coarse, one_hot)


def greedy_decode(logits: tf.Tensor, logit_lengths: tf.Tensor) -> tf.Tensor:
  """Best token of each frame, repeats merged, blanks removed.

  Args:
    logits: float32 [B, S, V].
    logit_lengths: int32 [B].

  Returns:
    A tf.RaggedTensor int32 [B, (U)] of token ids.
  """
  tokens, is_emitted = best_path(logits, logit_lengths)
  return tf.ragged.boolean_mask(tokens, is_emitted)


def best_path(
    logits: tf.Tensor, logit_lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Best token of each frame, and the frames that emit one.

  Args:
    logits: float32 [B, S, V].
    logit_lengths: int32 [B].

  Returns:
    int32 [B, S], and bool [B, S]: true where a token other than the blank
    begins, before each length.
  """
  # The blank is the last output.
  blank = logits.shape[-1] - 1
  best = tf.argmax(logits, axis=-1, output_type=tf.int32)
  # -1 differs from every token, so the first frame always begins one.
  previous = tf.pad(best[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
  valid = tf.sequence_mask(logit_lengths, tf.shape(best)[1])
  is_new = tf.not_equal(best, previous) & tf.not_equal(best, blank)
  return best, valid & is_new


def greedy_labels(
    logits: tf.Tensor, logit_lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Greedy transcriptions as labels, and how confident the model is of them.

  A confidence is the geometric mean of the probabilities of all tokens in the
  frames that emit them, as `decoding.greedy` computes it for a word. The frames
  emitted these labels, so there are at least as many as a CTC loss needs.

  Args:
    logits: float32 [B, S, V].
    logit_lengths: int32 [B].

  Returns:
    Labels int32 [B, U], 0 at and past each length; their lengths int32 [B]; and
    confidences float32 [B], in [0, 1]. Without any token, the confidence is 0.
    Where logits are not finite, it may be NaN.
  """
  tokens, is_emitted = best_path(logits, logit_lengths)
  lengths = tf.reduce_sum(tf.cast(is_emitted, tf.int32), axis=1)
  scores = tf.reduce_max(tf.nn.log_softmax(logits), axis=-1)
  total = tf.reduce_sum(tf.where(is_emitted, scores, 0.0), axis=1)
  mean = total / tf.cast(tf.maximum(lengths, 1), tf.float32)
  confidences = tf.where(lengths > 0, tf.exp(mean), 0.0)
  labels = tf.ragged.boolean_mask(tokens, is_emitted).to_tensor()
  return labels, lengths, confidences
