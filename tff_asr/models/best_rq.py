"""BEST-RQ: predicting the labels of masked speech, over any encoder.

Chiu et al. 2022, https://arxiv.org/abs/2202.01855: spans of frames are replaced
by noise (`features.span_masks`), and the encoder with a linear layer predicts
the labels that a frozen quantizer (`quantizer`) gives to the hidden frames. The
loss is the cross-entropy over masked frames. An output frame is masked if all
inputs of its label are.

An encoder of waveforms (`pretrained.adapted`) has samples in place of frames:
spans of samples are replaced, and the labels are those of their log-mel
features.

  B: batch size. T: feature frames, or samples. F: mel bins, or 1. S: output
  frames.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.features import log_mel
from tff_asr.features import span_masks
from tff_asr.features import waveform
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.models import weights as weights_lib

# Labelled frames up to which an encoder's frames are compared with the labels.
_COMPARED_FRAMES = 100
# Standard deviation of speech in int16 units. `log_mel` has a floor there, so
# waveforms of another scale must be brought to it.
_SPEECH_STDDEV = 2000.0


@dataclasses.dataclass(frozen=True)
class _Inputs:
  """An encoder's inputs, and the frames that the quantizer labels.

  Attributes:
    frame_length: Inputs of one labelled frame.
    frame_shift: Inputs from one labelled frame to the next.
    to_frames: (inputs float32 [B, T, F], lengths int32 [B]) to the frames and
      their lengths.
  """

  frame_length: int
  frame_shift: int
  to_frames: Callable[
      [tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]
  ]

  def num_frames(self, num_inputs):
    """Labelled frames of an integer, or an integer tensor, of inputs."""
    return log_mel.num_frames(
        num_inputs, window=self.frame_length, frame_shift=self.frame_shift
    )


def _log_mel_of_waveforms(
    waveforms: tf.Tensor, num_samples: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Log-mel features of waveforms float32 [B, T, 1] of any scale."""
  samples = waveform.standardize_waveforms(waveforms[:, :, 0], num_samples)
  return log_mel.log_mel(_SPEECH_STDDEV * samples, num_samples)


_WAVEFORMS = 'waveforms'
_INPUTS = {
    'features': _Inputs(1, 1, lambda features, lengths: (features, lengths)),
    _WAVEFORMS: _Inputs(
        log_mel.FRAME_LENGTH, log_mel.FRAME_SHIFT, _log_mel_of_waveforms
    ),
}


class Masked(NamedTuple):
  """A masked batch and the labels to predict.

  Attributes:
    features: float32 [B, T, F], noise in masked frames.
    feature_lengths: int32 [B].
    labels: int32 [B, S].
    is_masked: bool [B, S], True for masked output frames.
  """

  features: tf.Tensor
  feature_lengths: tf.Tensor
  labels: tf.Tensor
  is_masked: tf.Tensor


@dataclasses.dataclass(frozen=True)
class BestRqModel:
  """An encoder and a linear layer to the quantizer's labels.

  Attributes:
    encoder: The acoustic encoder; its weights keep their names.
    quantizer: Makes the labels.
    inputs: What the encoder takes, 'features' or 'waveforms'.
    start_prob: Probability that an input starts a masked span.
    span_inputs: Inputs of a span.
    noise_stddev: Standard deviation of the noise that replaces masked inputs.
    specs: All weights: the encoder's and `prediction/kernel`,
      `prediction/bias`.
  """

  encoder: encoder_lib.Encoder
  quantizer: quantizer_lib.RandomProjectionQuantizer
  inputs: str
  start_prob: float
  span_inputs: int
  noise_stddev: float
  specs: weights_lib.Specs

  @property
  def input_dim(self) -> int:
    """F."""
    return 1 if self.inputs == _WAVEFORMS else self.quantizer.feature_dim

  def initialize(self, seed: tf.Tensor) -> weights_lib.Weights:
    """Draws initial weights from a seed int32 [2]."""
    return weights_lib.initialize(self.specs, seed)

  def mask(
      self, features: tf.Tensor, feature_lengths: tf.Tensor, seeds: tf.Tensor
  ) -> Masked:
    """Labels a batch and hides part of it.

    Args:
      features: float32 [B, T, F].
      feature_lengths: int32 [B], each in [0, T]. Frames at or past the length
        change neither labels nor masks before it.
      seeds: int32 [B, 2], one an utterance.
    """
    size = tf.shape(features)[1]
    # One seed for masks and one for noise, by utterance: draws then do not
    # depend on the batch.
    split = tf.map_fn(lambda seed: tf.random.split(seed, 2), seeds)
    is_hidden = span_masks.draw(
        feature_lengths,
        size,
        split[:, 0],
        start_prob=self.start_prob,
        width=self.span_inputs,
    )
    inputs = _INPUTS[self.inputs]
    # Of the inputs before noise replaces some of them.
    labels = self.quantizer.labels(*inputs.to_frames(features, feature_lengths))
    num_stacked = self.quantizer.num_stacked
    shift = num_stacked * inputs.frame_shift
    first = shift * tf.range(tf.shape(labels)[1])
    length = (num_stacked - 1) * inputs.frame_shift + inputs.frame_length
    # Hidden inputs before each one.
    before = tf.pad(
        tf.cumsum(tf.cast(is_hidden, tf.int32), axis=1), [[0, 0], [1, 0]]
    )
    num_hidden = tf.gather(before, first + length, axis=1) - tf.gather(
        before, first, axis=1
    )
    return Masked(
        features=span_masks.replace_by_noise(
            features, is_hidden, split[:, 1], noise_stddev=self.noise_stddev
        ),
        feature_lengths=feature_lengths,
        labels=labels,
        # All of its inputs: a label of a visible frame would be easy to
        # predict.
        is_masked=tf.equal(num_hidden, length),
    )

  def logits(
      self,
      weights: weights_lib.Weights,
      masked: Masked,
      seed: Optional[tf.Tensor] = None,
  ) -> tf.Tensor:
    """Scores of the labels, float32 [B, S, number of codes].

    Args:
      weights: float32 tensors by name.
      masked: See `mask`.
      seed: int32 [2] in training, None in evaluation.
    """
    hidden, _ = self.encoder.apply(
        weights, masked.features, masked.feature_lengths, seed
    )
    # Convolutions that pad may make one more frame than there are labels.
    hidden = hidden[:, : tf.shape(masked.labels)[1]]
    outputs = layers.matmul(hidden, weights['prediction/kernel'])
    return outputs + weights['prediction/bias']

  def loss(
      self,
      weights: weights_lib.Weights,
      features: tf.Tensor,
      feature_lengths: tf.Tensor,
      unused_labels: tf.Tensor,
      unused_label_lengths: tf.Tensor,
      seed: tf.Tensor,
  ) -> tf.Tensor:
    """As `masked_loss`, with masks from the seed: arguments of `CtcModel.loss`.

    Args:
      weights: As in `logits`.
      features: float32 [B, T, F].
      feature_lengths: int32 [B].
      unused_labels: Labels of the transcripts.
      unused_label_lengths: Their lengths.
      seed: int32 [2], of masks and dropout.
    """
    # Masks and dropout must not share random bits.
    mask_seed, dropout_seed = tf.unstack(tf.random.split(seed, 2))
    seeds = tf.random.split(mask_seed, tf.shape(features)[0])
    masked = self.mask(features, feature_lengths, seeds)
    return self.masked_loss(weights, masked, dropout_seed)

  def masked_loss(
      self,
      weights: weights_lib.Weights,
      masked: Masked,
      seed: Optional[tf.Tensor] = None,
  ) -> tf.Tensor:
    """Mean cross-entropy of each utterance's masked frames.

    Args:
      weights: As in `logits`.
      masked: As in `logits`.
      seed: As in `logits`.

    Returns:
      float32 [B], in nats; 0 for an utterance without masked frames.
    """
    return loss(self.logits(weights, masked, seed), masked)


def build(
    *,
    encoder: encoder_lib.Encoder,
    quantizer: quantizer_lib.RandomProjectionQuantizer,
    inputs: str = 'features',
    start_prob: float = 0.01,
    span_sec: float = 0.4,
    noise_stddev: float = 0.1,
) -> BestRqModel:
  """Builds a model.

  Args:
    encoder: The acoustic encoder.
    quantizer: Makes the labels, one an output frame of the encoder.
    inputs: What the encoder takes: 'features', of 10 ms, which are labelled, or
      'waveforms', of which log-mel features are labelled.
    start_prob: Probability that a masked span starts within 10 ms.
    span_sec: Length of a span.
    noise_stddev: Standard deviation of the noise that replaces masked inputs.

  Raises:
    ValueError: A setting is out of range, a span is shorter than the frames
      of a label, or the encoder's output frames are not the quantizer's.
  """
  checks.one_of(sorted(_INPUTS), inputs=inputs)
  checks.in_range(0, 1, start_prob=start_prob)
  checks.positive(span_sec=span_sec)
  checks.non_negative(noise_stddev=noise_stddev)
  kind = _INPUTS[inputs]
  # Rounded, because 0.4 / 0.01 need not be 40 in floating point.
  span_inputs = round(span_sec / log_mel.FRAME_SHIFT_SEC * kind.frame_shift)
  num_stacked = quantizer.num_stacked
  # A label is masked only if all of its frames are: a shorter span masks none.
  if kind.num_frames(span_inputs) < num_stacked:
    raise ValueError(
        f'span_sec {span_sec} is shorter than the {num_stacked} frames of a '
        'label, which it has to hide.'
    )
  _check_frames(encoder, num_stacked, kind)
  dim, num_codes = encoder.output_dim, quantizer.num_codes
  prediction = {
      'bias': weights_lib.WeightSpec((num_codes,), limit=1 / math.sqrt(dim)),
      'kernel': weights_lib.matrix_spec(dim, num_codes),
  }
  return BestRqModel(
      encoder=encoder,
      quantizer=quantizer,
      inputs=inputs,
      start_prob=start_prob / kind.frame_shift,
      span_inputs=span_inputs,
      noise_stddev=noise_stddev,
      specs={**encoder.specs, **weights_lib.prefix('prediction', prediction)},
  )


def _check_frames(
    encoder: encoder_lib.Encoder, num_stacked: int, inputs: _Inputs
) -> None:
  """Raises ValueError if an encoder's frames are not those of the labels."""
  # Encoders only expose a function of lengths, so it is compared by values.
  num_inputs = tf.range(1, _COMPARED_FRAMES * inputs.frame_shift)
  num_outputs = encoder.output_lengths(num_inputs)
  # Convolutions that pad make one more frame of some lengths.
  surplus = num_outputs - inputs.num_frames(num_inputs) // num_stacked
  if not np.isin(surplus, (0, 1)).all():
    raise ValueError(
        f'the quantizer makes a label of {num_stacked} feature frames, but of '
        f'{num_inputs[-1]} inputs the encoder makes {num_outputs[-1]}: '
        "num_stacked must be the encoder's subsampling."
    )


def loss(logits: tf.Tensor, masked: Masked) -> tf.Tensor:
  """Mean cross-entropy of each utterance's masked frames; see the method."""
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=masked.labels, logits=logits
  )
  is_masked = tf.cast(masked.is_masked, tf.float32)
  # An utterance without masked frames has loss 0, not 0 / 0.
  count = tf.maximum(tf.reduce_sum(is_masked, axis=1), 1.0)
  return tf.reduce_sum(losses * is_masked, axis=1) / count


class Counts(NamedTuple):
  """Counts of predictions: sums that add up over batches.

  Attributes:
    masked: float32 [], masked output frames.
    correct: float32 [], masked frames with a correct best label.
    labels: float32 [number of codes], correct labels of the masked frames.
    predictions: float32 [number of codes], their best labels.
  """

  masked: tf.Tensor
  correct: tf.Tensor
  labels: tf.Tensor
  predictions: tf.Tensor


def count(logits: tf.Tensor, masked: Masked) -> Counts:
  """Counts a batch's predictions."""
  best = tf.argmax(logits, axis=-1, output_type=tf.int32)
  num_codes = logits.shape[-1]
  is_masked = masked.is_masked
  # The same number of counts for each batch, so that they add up.
  used = lambda labels: tf.math.bincount(
      tf.boolean_mask(labels, is_masked),
      minlength=num_codes,
      maxlength=num_codes,
      dtype=tf.float32,
  )
  is_correct = is_masked & tf.equal(best, masked.labels)
  return Counts(
      masked=tf.reduce_sum(tf.cast(is_masked, tf.float32)),
      correct=tf.reduce_sum(tf.cast(is_correct, tf.float32)),
      labels=used(masked.labels),
      predictions=used(best),
  )
