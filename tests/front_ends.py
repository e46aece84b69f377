"""A small front end with weights, and corpora of its features."""

import os

import numpy as np
import tensorflow as tf

from data_tools import embed
from tff_asr.features import file_tensor
from tff_asr.features import front_end as front_end_lib

_SHIFT = 320
_WINDOW = 480


def build(folder: str, *, dim: int = 4, identity: str = 'test'):
  """Means of each window's absolute samples, with a weight for each feature.

  A frame does not depend on the batch that its utterance is in.
  """
  weights = file_tensor.write(
      os.path.join(folder, f'weights.{dim}'),
      np.arange(1, dim + 1, dtype=np.float32),
  )

  def compute(waveforms, num_samples, tensors):
    size = tf.shape(waveforms)[1]
    inside = tf.sequence_mask(num_samples, size)
    samples = tf.where(inside, tf.cast(waveforms, tf.float32), 0.0)
    frames = tf.signal.frame(tf.abs(samples), _WINDOW, _SHIFT)
    means = tf.round(tf.reduce_mean(frames, axis=-1)) / 512
    features = means[:, :, tf.newaxis] * tensors['weights']
    features = tf.cast(tf.cast(features, tf.float16), tf.float32)
    lengths = built.num_frames(num_samples)
    # As stored features read past their end.
    valid = tf.sequence_mask(lengths, tf.shape(features)[1])
    return tf.where(valid[:, :, tf.newaxis], features, 0.0), lengths

  built = front_end_lib.FrontEnd(
      identity=identity,
      feature_dim=dim,
      frame_shift=_SHIFT,
      window=_WINDOW,
      compute=compute,
      tensors={'weights': weights},
      num_layers=2,
      max_duration_sec=30.0,
  )
  return built


def embedded(audio: str, folder: str) -> str:
  """Writes the features of a corpus of audio; returns the folder."""
  os.makedirs(f'{folder}.weights')
  embed.embed(audio, folder, front_end=build(f'{folder}.weights'))
  return folder
