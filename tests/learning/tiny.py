"""The smallest models: one layer over stacked frames, quick to trace.

They serve tests of what happens to gradients, not of how layers compute them.
"""

import tensorflow as tf

from tests import fakes
from tff_asr.models import best_rq
from tff_asr.models import ctc
from tff_asr.models import encoder as encoder_lib
from tff_asr.models import quantizer as quantizer_lib
from tff_asr.models import weights as weights_lib

_STACKED = 4
_DIM = 8


def _encoder(dropout: float) -> encoder_lib.Encoder:
  """One matrix and a bias; with dropout it draws from its seed."""

  def apply(weights, features, feature_lengths, seed):
    batch_size, size, num_bins = tf.unstack(tf.shape(features))
    num_frames = size // _STACKED
    stacked = tf.reshape(
        features[:, : num_frames * _STACKED],
        [batch_size, num_frames, _STACKED * num_bins],
    )
    hidden = tf.tanh(stacked @ weights['front/kernel'] + weights['front/bias'])
    if seed is not None and dropout:
      hidden = tf.nn.experimental.stateless_dropout(hidden, dropout, seed)
    return hidden, feature_lengths // _STACKED

  specs = {
      'front/bias': weights_lib.WeightSpec((_DIM,), limit=0.1),
      'front/kernel': weights_lib.matrix_spec(80 * _STACKED, _DIM),
  }
  return encoder_lib.Encoder(
      specs, apply, lambda lengths: lengths // _STACKED, _DIM
  )


def recognizer(*, dropout: float = 0.0) -> ctc.CtcModel:
  """A CTC model over the tokens of `fakes`."""
  return ctc.build(
      encoder=_encoder(dropout), tokenizer=fakes.tiny_tokenizer()
  )


def predictor(
    *, dropout: float = 0.0, **options
) -> best_rq.BestRqModel:
  """A model of masked prediction."""
  return best_rq.build(
      encoder=_encoder(dropout),
      quantizer=quantizer_lib.RandomProjectionQuantizer(
          num_codes=16, num_stacked=_STACKED
      ),
      span_sec=0.1,
      **dict(start_prob=0.1) | options,
  )
