"""Example sampling: Poisson batches of a corpus' utterances.

An example's number is its place when clients are in the order of their ids and
each client's utterances in that of the corpus. Which numbers a round has is
drawn as cohorts are (`cohorts`), from a secret key and the round; so that a
run can say what it cost by example, whoever the speakers are.
"""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tff_asr import checks
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import cohorts
from tff_asr.data import pipeline as pipeline_lib
from tff_asr.data import records
from tff_asr.data import schema
from tff_asr.features import log_mel
from tff_asr.privacy import accounting


class Examples:
  """The utterances of a corpus, drawn at random."""

  def __init__(
      self,
      client_data: client_data_lib.SpeechClientData,
      *,
      pipeline: pipeline_lib.Pipeline,
      batch_size: int,
      key: np.ndarray,
  ):
    """Creates the source.

    Args:
      client_data: The speakers.
      pipeline: Gives features and packs physical batches; utterances longer
        than its limit, and those too short for an output frame, are drawn and
        counted as any and add nothing.
      batch_size: Examples expected in a batch, at most all.
      key: 256-bit key of the draws, int32 [8].

    Raises:
      ValueError: batch_size is not in [1, number of utterances].
    """
    population = client_data.num_records
    checks.positive_int(batch_size=batch_size)
    if batch_size > population:
      raise ValueError(
          f'batch_size is {batch_size} but there are only {population} '
          'utterances: make batches smaller or add speech.'
      )
    self._client_data = client_data
    self._pipeline = pipeline
    self._key = key
    # Traced here, not at each step.
    self._open = tf.function(
        lambda rows: pipeline.evaluation_batches(self._examples(rows)),
        input_signature=[records.LOCATION_SPECS],
        autograph=False,
    )
    self.sampling = accounting.Sampling(
        kind='poisson',
        cohort_size=batch_size,
        population=population,
    )

  def initial_state(self) -> cohorts.CohortState:
    """The state before the first batch; holds the key."""
    return cohorts.CohortState(np.array(self._key), np.int64(0))

  def draw(
      self, state: cohorts.CohortState
  ) -> tuple[list[int], cohorts.CohortState]:
    """The numbers of the next batch's examples, and the state after it."""
    numbers = cohorts.draw_indices(
        self.sampling, key=state.key, round_num=int(state.round_num)
    )
    after = cohorts.CohortState(state.key, np.int64(state.round_num + 1))
    return numbers.tolist(), after

  def batches(self, numbers: list[int]) -> Iterator[pipeline_lib.Batch]:
    """The physical batches of some examples; each is in one of them."""
    if not numbers:
      return iter(())
    rows = self._client_data.record_locations(np.asarray(numbers))
    return iter(self._open(tf.nest.map_structure(tf.constant, rows)))

  def _examples(self, rows: records.RecordLocations) -> tf.data.Dataset:
    """The examples at these locations, without text."""
    examples = self._client_data.read_dataset(rows)
    return (
        examples.map(lambda example: dict(example, **{schema.TRANSCRIPT: ''}))
        .filter(self._is_usable)
        .map(_with_features, num_parallel_calls=tf.data.AUTOTUNE)
    )

  def _is_usable(self, example: schema.Element) -> tf.Tensor:
    """True for an example with an output frame, within the limit."""
    num_frames = log_mel.num_frames(tf.shape(example[schema.WAVEFORM])[0])
    return (num_frames <= self._pipeline.max_frames) & (
        self._pipeline.output_lengths(num_frames) > 0
    )


def _with_features(example: schema.Element) -> dict[str, tf.Tensor]:
  """An example with features in place of a waveform.

  Each is computed alone: in a batch, the longest utterance decides how those of
  the others are rounded.
  """
  example = dict(example)
  waveform = example.pop(schema.WAVEFORM)
  features, _ = log_mel.log_mel(
      waveform[tf.newaxis], tf.shape(waveform)[:1]
  )
  return dict(example, **{pipeline_lib.FEATURES: features[0]})
