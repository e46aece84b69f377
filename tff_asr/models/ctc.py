"""Connectionist temporal classification: head, loss, greedy decoding.

Graves et al. 2006. The blank is the last of the V outputs.

  B: batch size. T: feature frames. F: mel bins. S: output frames.
  U: label length. V: vocabulary with blank.
"""

import dataclasses
import math
from typing import Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers
from tff_asr.models import weights as weights_lib
from tff_asr.text import tokenizer as tokenizer_lib

LOSS_KERNELS = ('op', 'dense')


@dataclasses.dataclass(frozen=True)
class CtcModel:
  """An encoder and a linear layer to V logits: a pure function of its weights.

  Attributes:
    encoder: The acoustic encoder.
    vocab_size: V.
    loss_kernel: `op` or `dense`; see `loss`.
    specs: All weights: the encoder's and `head/kernel`, `head/bias`.
  """

  encoder: encoder_lib.Encoder
  vocab_size: int
  loss_kernel: str
  specs: weights_lib.Specs

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
    outputs = layers.matmul(hidden, weights['head/kernel'])
    return outputs + weights['head/bias'], lengths

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
    tokenizer: tokenizer_lib.CharTokenizer,
    loss_kernel: str = 'op',
) -> CtcModel:
  """Builds a CTC model.

  Args:
    encoder: The acoustic encoder.
    tokenizer: Gives V.
    loss_kernel: `op` on CPUs, `dense` elsewhere; see `loss`.

  Raises:
    ValueError: An unknown kernel.
  """
  checks.one_of(LOSS_KERNELS, loss_kernel=loss_kernel)
  vocab_size = tokenizer.vocab_size
  dim = encoder.output_dim
  head = {
      'bias': weights_lib.WeightSpec((vocab_size,), limit=1 / math.sqrt(dim)),
      # LeCun uniform, as in the published code; the encoder's matrices are not.
      'kernel': weights_lib.WeightSpec(
          (dim, vocab_size), limit=math.sqrt(3 / dim)
      ),
  }
  specs = {**encoder.specs, **weights_lib.prefix('head', head)}
  return CtcModel(encoder, vocab_size, loss_kernel, specs)


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
      infinity, `dense` a finite wrong value, both with wrong gradients.
    labels: int32 [B, U], each id in [0, V - 1); what stands at or past an
      utterance's label length is ignored.
    label_lengths: int32 [B], 0 allowed: then every frame is a blank.
    kernel: `op` is TensorFlow's CTCLoss, which has a CPU kernel only; `dense`
      is TensorFlow's implementation in tensor ops, which runs on every device
      and is some 15 times slower on a CPU. They agree to rounding.

  Returns:
    float32 [B], in nats.

  Raises:
    ValueError: An unknown kernel.
  """
  checks.one_of(LOSS_KERNELS, kernel=kernel)
  blank = logits.shape[-1] - 1
  # One column more: no kernel is right for labels of no column.
  labels = tf.pad(labels, [[0, 0], [0, 1]])
  in_label = tf.sequence_mask(label_lengths, tf.shape(labels)[1])
  labels = tf.where(in_label, labels, 0)
  if kernel == 'dense':
    return tf.nn.ctc_loss(
        labels,
        logits,
        label_lengths,
        logit_lengths,
        logits_time_major=False,
        blank_index=blank,
    )
  # The op refuses an empty label: it gets one token and one frame in its
  # place, and what it returns for them is not used.
  is_empty = tf.equal(label_lengths, 0)
  at_least_one = tf.cast(is_empty, tf.int32)
  positions = tf.where(
      tf.sequence_mask(label_lengths + at_least_one, tf.shape(labels)[1])
  )
  losses = tf.raw_ops.CTCLoss(
      inputs=tf.transpose(logits, [1, 0, 2]),
      labels_indices=positions,
      labels_values=tf.gather_nd(labels, positions),
      sequence_length=tf.maximum(logit_lengths, at_least_one),
  ).loss
  return tf.where(is_empty, _all_blank_loss(logits, logit_lengths), losses)


def _all_blank_loss(logits: tf.Tensor, logit_lengths: tf.Tensor) -> tf.Tensor:
  """The loss of empty labels, whose one alignment is a blank in each frame."""
  blank_scores = tf.nn.log_softmax(logits)[:, :, -1]
  valid = tf.sequence_mask(logit_lengths, tf.shape(logits)[1])
  return -tf.reduce_sum(tf.where(valid, blank_scores, 0.0), axis=1)


def greedy_decode(logits: tf.Tensor, logit_lengths: tf.Tensor) -> tf.Tensor:
  """Best token a frame, repeats merged, blanks removed.

  Args:
    logits: float32 [B, S, V].
    logit_lengths: int32 [B].

  Returns:
    A tf.RaggedTensor int32 [B, (U)] of token ids.
  """
  tokens, is_heard = greedy_tokens(logits, logit_lengths)
  return tf.ragged.boolean_mask(tokens, is_heard)


def greedy_tokens(
    logits: tf.Tensor, logit_lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Best token a frame, and in which frames one is heard.

  Args:
    logits: float32 [B, S, V].
    logit_lengths: int32 [B].

  Returns:
    int32 [B, S], and bool [B, S]: true where a token begins that is no blank,
    before each length.
  """
  blank = logits.shape[-1] - 1
  best = tf.argmax(logits, axis=-1, output_type=tf.int32)
  previous = tf.pad(best[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
  valid = tf.sequence_mask(logit_lengths, tf.shape(best)[1])
  is_new = tf.not_equal(best, previous) & tf.not_equal(best, blank)
  return best, valid & is_new
