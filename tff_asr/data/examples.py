"""Example sampling for private pre-training: Poisson batches of utterances.

Examples are numbered client by client in the order of ids, and within a client
as in the corpus. A round's examples are drawn as cohorts are (`cohorts`): a
function of a secret key and the round's number. The privacy unit is an example,
not a speaker.
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
from tff_asr.privacy import accounting


class ExampleSampler:
  """Draws batches of a corpus's utterances.

  Attributes:
    sampling: How batches are drawn, for the accounting.
  """

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
      client_data: The corpus.
      pipeline: Computes features and packs physical batches. Utterances that
        are longer than its limit, or too short for an output frame, are drawn
        and charged like any other and contribute nothing.
      batch_size: Expected number of examples in a batch, at most all.
      key: 256-bit key of the draws, int32 [8].

    Raises:
      ValueError: batch_size is not in [1, number of utterances], or the corpus
        holds features.
    """
    if client_data.corpus.features is not None:
      raise ValueError(
          f'{client_data.corpus.path} holds features '
          f'({client_data.corpus.features.identity}), and examples are drawn '
          'of audio alone: name the corpus of audio.'
      )
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
    # Traced once, not at each step.
    self._open = tf.function(
        # Evaluation batches: neither shuffled nor augmented, each example once.
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
    """Returns the numbers of the next batch's examples, and the next state."""
    numbers = cohorts.draw_indices(
        self.sampling, key=state.key, round_num=int(state.round_num)
    )
    # int64, so that a saved and restored state has the same type.
    after = cohorts.CohortState(state.key, np.int64(state.round_num + 1))
    return numbers.tolist(), after

  def batches(self, numbers: list[int]) -> Iterator[pipeline_lib.Batch]:
    """Returns physical batches in which each of these examples occurs once."""
    # A Poisson batch may be empty.
    if not numbers:
      return iter(())
    rows = self._client_data.record_locations(np.asarray(numbers))
    return iter(self._open(tf.nest.map_structure(tf.constant, rows)))

  def _examples(self, rows: records.RecordLocations) -> tf.data.Dataset:
    """The examples at these locations, with empty transcripts."""
    examples = self._client_data.read_dataset(rows)
    return (
        examples.map(lambda example: dict(example, **{schema.TRANSCRIPT: ''}))
        .filter(self._is_usable)
        .map(self._with_features, num_parallel_calls=tf.data.AUTOTUNE)
    )

  def _is_usable(self, example: schema.Element) -> tf.Tensor:
    """True for an example with an output frame, within the limit."""
    num_frames = self._pipeline.front_end.num_frames(
        tf.shape(example[schema.WAVEFORM])[0]
    )
    # `&` and not `and`: the values are known in the graph only.
    return (num_frames <= self._pipeline.max_frames) & (
        self._pipeline.output_lengths(num_frames) > 0
    )

  def _with_features(self, example: schema.Element) -> dict[str, tf.Tensor]:
    """An example with features in place of a waveform."""
    # Alone: in a batch, the longest utterance decides how others are rounded,
    # so an example's gradient would depend on who else was drawn.
    example = dict(example)
    waveform = example.pop(schema.WAVEFORM)
    features, _ = self._pipeline.front_end.features(
        waveform[tf.newaxis], tf.shape(waveform)[:1]
    )
    return dict(example, **{schema.FEATURES: features[0]})
