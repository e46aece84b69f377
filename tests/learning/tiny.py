"""The smallest models: one layer over stacked frames, quick to trace.

What is tested with them is what is done with gradients, not how layers get
theirs.
"""

import numpy as np
import tensorflow as tf

from tests import fakes
from tff_asr.models import best_rq
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import layers
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.models import weights as weights_lib

_STACKED = 4
_DIM = 8


def _encoder(dropout: float, batch_norm: bool) -> encoder_lib.Encoder:
  """One matrix and a bias; with dropout it draws from its seed."""

  def apply(weights, features, feature_lengths, seed):
    batch_size, size, num_bins = tf.unstack(tf.shape(features))
    num_frames = size // _STACKED
    stacked = tf.reshape(
        features[:, : num_frames * _STACKED],
        [batch_size, num_frames, _STACKED * num_bins],
    )
    hidden = tf.tanh(stacked @ weights['front/kernel'] + weights['front/bias'])
    if batch_norm:
      hidden = layers.batch_norm(
          weights_lib.select('front/bn', weights),
          hidden,
          layers.mask(feature_lengths // _STACKED, num_frames),
          is_training=seed is not None,
      )
    if seed is not None and dropout:
      hidden = tf.nn.experimental.stateless_dropout(hidden, dropout, seed)
    return hidden, feature_lengths // _STACKED

  specs = {
      'front/bias': weights_lib.WeightSpec((_DIM,), limit=0.1),
      'front/kernel': weights_lib.matrix(80 * _STACKED, _DIM),
  }
  if batch_norm:
    specs |= weights_lib.prefix('front/bn', layers.batch_norm_specs(_DIM))
  return encoder_lib.Encoder(
      specs, apply, lambda lengths: lengths // _STACKED, _DIM
  )


def hidden(weights, features, length) -> np.ndarray:
  """What batch norm is given of an utterance, [S, D], in NumPy."""
  count = length // _STACKED
  stacked = np.reshape(features[: count * _STACKED], [count, -1])
  kernel, bias = (np.asarray(weights[f'front/{x}']) for x in ('kernel', 'bias'))
  return np.tanh(stacked @ kernel + bias)


def followed(weights, batches) -> dict[str, np.ndarray]:
  """Running averages after a step, by hand: .99 and .01 of the batches'.

  Args:
    weights: Before the step.
    batches: (features, lengths) of each, of which each utterance counts once.
  """
  found, count = [], 0
  for features, lengths in batches:
    rows = np.concatenate(
        [hidden(weights, *each) for each in zip(features, lengths)]
    )
    found.append((len(lengths), rows.mean(axis=0), rows.var(axis=0)))
    count += len(lengths)
  return {
      f'front/bn/{name}': 0.99 * np.asarray(weights[f'front/bn/{name}'])
      + 0.01 * sum(each[0] * each[place] for each in found) / count
      for place, name in ((1, 'mean'), (2, 'variance'))
  }


def recognizer(
    *, dropout: float = 0.0, batch_norm: bool = False
) -> ctc.CtcModel:
  """A CTC model over the tokens of `fakes`."""
  return ctc.build(
      encoder=_encoder(dropout, batch_norm), tokenizer=fakes.tiny_tokenizer()
  )


def predictor(
    *, dropout: float = 0.0, batch_norm: bool = False, **options
) -> best_rq.BestRqModel:
  """A model of masked prediction."""
  return best_rq.build(
      encoder=_encoder(dropout, batch_norm),
      quantizer=quantizer_lib.Quantizer(num_codes=16, num_stacked=_STACKED),
      span_sec=0.1,
      **dict(start_prob=0.1) | options,
  )
