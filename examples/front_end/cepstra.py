"""Mel-frequency cepstral coefficients: an example of your own front end."""

import dataclasses

import tensorflow as tf

from tff_asr.features import front_end as front_end_lib


def build(*, num_coefficients: int = 20) -> front_end_lib.FrontEnd:
  """Builds the front end: the cosine transform of log-mel features.

  Args:
    num_coefficients: F, at most the 80 bands of the log-mel features.
  """
  log_mel = front_end_lib.build_log_mel()
  if not 1 <= num_coefficients <= log_mel.feature_dim:
    raise ValueError(
        f'num_coefficients must be in [1, {log_mel.feature_dim}], found '
        f'{num_coefficients}.'
    )

  def compute(waveforms, num_samples, tensors):
    features, lengths = log_mel.compute(waveforms, num_samples, tensors)
    cepstra = tf.signal.mfccs_from_log_mel_spectrograms(features)
    return cepstra[..., :num_coefficients], lengths

  # Frames and windows stay those of the log-mel features.
  return dataclasses.replace(
      log_mel,
      identity=f'cepstra {num_coefficients}',
      feature_dim=num_coefficients,
      compute=compute,
  )
