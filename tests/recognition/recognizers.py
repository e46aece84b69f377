"""Recognizers for tests."""

import tensorflow as tf

from tests import fakes
from tff_asr.features import front_end as front_end_lib
from tff_asr.recognition import recognizer as recognizer_lib


def tiny(
    *,
    front_end: front_end_lib.FrontEnd = front_end_lib.build_log_mel(),
    **options,
) -> recognizer_lib.Recognizer:
  """One of one block, as it was initialized."""
  model = fakes.tiny_model(num_blocks=1)
  return recognizer_lib.Recognizer(
      model=model,
      pipeline=fakes.tiny_pipeline(model, front_end=front_end),
      weights=model.initialize(tf.constant([1, 2])),
      **options,
  )
