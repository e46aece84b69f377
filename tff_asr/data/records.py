"""Reads records of a corpus by their locations: in any order, each checked.

The server knows from the index (`index`) where each client's records lie. It
sends a client its `ClientRecordLocations`; there, in the graph, `locations_of`
makes them rows, and `Reader.read` seeks to each and reads it alone. Core ops
only, except for FLAC.

In the graph, an error names shard and byte of a record that

- is missing or damaged (its checksum differs, the shard is truncated),
- belongs to another client (the shard is of another corpus),
- has audio that does not have the length it states.

It does not name the client, because errors end up in logs. From shard and byte
the owner of the corpus finds the client (`client_data.verify`,
`bin/inspect_data.py`).

  n: records. N: samples.
"""

import collections
from collections.abc import Callable, Mapping
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_asr.data import index
from tff_asr.data import schema

OFFSET = 'offset'
SHARD = 'shard'
WEIGHT = 'weight'
LENGTH = 'length'

# Most records are larger: read further in steps of this.
_BUFFER_BYTES = 64 * 1024
# Records of a dataset that are read together.
_AT_ONCE = 32


class ClientRecordLocations(NamedTuple):
  """Where a client's records lie, as NumPy values or as tensors.

  Attributes:
    client_id: The client's id, string []. Seeds and simulated noise follow it.
    shard: Number of the shard that holds the client, int64 [].
    offsets: Byte offset of each record in the shard, int64 [n].
  """

  client_id: str | tf.Tensor
  shard: np.int64 | tf.Tensor
  offsets: np.ndarray | tf.Tensor


class WeightedClientRecordLocations(NamedTuple):
  """The same with the factor of the client's delta, float32 []."""

  client_id: str | tf.Tensor
  shard: np.int64 | tf.Tensor
  offsets: np.ndarray | tf.Tensor
  weight: np.float32 | tf.Tensor


RecordLocations = collections.OrderedDict[str, tf.Tensor]
"""Rows of any clients, sorted by name: client_id string [n], offset int64 [n],
shard int64 [n]."""

Read = Callable[[RecordLocations, int], dict[str, tf.Tensor]]
"""Reads rows of record locations (`Reader.read`)."""


def locations(
    client_id: tf.Tensor | np.ndarray | tf.TensorSpec,
    *,
    shard: tf.Tensor | np.ndarray | tf.TensorSpec,
    offset: tf.Tensor | np.ndarray | tf.TensorSpec,
) -> RecordLocations:
  """Returns `RecordLocations` of columns, each [n]."""
  return collections.OrderedDict(
      [(schema.CLIENT_ID, client_id), (OFFSET, offset), (SHARD, shard)]
  )


LOCATION_SPECS = locations(
    tf.TensorSpec([None], tf.string),
    shard=tf.TensorSpec([None], tf.int64),
    offset=tf.TensorSpec([None], tf.int64),
)
"""Specs of `RecordLocations`, for functions that are traced once."""


def locations_of(client: ClientRecordLocations) -> RecordLocations:
  """Returns a client's records as rows, in their order; traceable."""
  # Also of NumPy values, for callers outside a graph.
  offsets = tf.convert_to_tensor(client.offsets, tf.int64)
  count = tf.shape(offsets)
  return locations(
      tf.fill(count, tf.convert_to_tensor(client.client_id, tf.string)),
      shard=tf.fill(count, tf.convert_to_tensor(client.shard, tf.int64)),
      offset=offsets,
  )


class Reader:
  """Reads the records of a corpus; its methods are traceable."""

  def __init__(self, corpus: index.Corpus):
    self._folder = corpus.path
    # The prefix of every shard's path; the number is known in the graph only.
    self._prefix, self._suffix = index.shard_name(0).split('00000')
    self._stored = corpus.features
    self._decode = schema.build_decode_fn(
        corpus.encoding, stored=corpus.features
    )

  @tf.autograph.experimental.do_not_convert
  def read(
      self, rows: RecordLocations, max_samples: int
  ) -> dict[str, tf.Tensor]:
    """Returns a padded chunk of decoded records.

    Args:
      rows: At least one.
      max_samples: Samples to keep of a record at most.

    Returns:
      client_id, transcript, utterance_id string [n]; waveform int16 [n, N], or
      features float16 [n, T, F], 0 past each length; length int32 [n], in
      samples.
    """
    features = self._parse(rows)
    lengths = tf.cast(features[schema.NUM_SAMPLES], tf.int32)
    # A chunk is padded to its longest record, so this also bounds its memory.
    lengths = tf.minimum(lengths, max_samples)
    contents = self._decode(features, tf.reduce_max(lengths))
    return dict(self._element(features, contents), **{LENGTH: lengths})

  def read_dataset(self, rows: RecordLocations) -> tf.data.Dataset:
    """Returns elements of `schema.element_spec`, in the order of the rows."""

    @tf.autograph.experimental.do_not_convert
    def decode(record):
      features = {name: value[tf.newaxis] for name, value in record.items()}
      length = tf.cast(record[schema.NUM_SAMPLES], tf.int32)
      content = self._decode(features, length)[0]
      if self._stored:
        # An utterance without frames was padded to one.
        content = content[: self._stored.num_frames(length)]
      return self._element(record, content)

    # Records are parsed in groups, which is faster, and decoded one by one,
    # because their waveforms differ in length.
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    return dataset.batch(_AT_ONCE).map(self._parse).unbatch().map(decode)

  @tf.autograph.experimental.do_not_convert
  def _parse(self, rows: RecordLocations) -> dict[str, tf.Tensor]:
    """Returns the features of records, as `schema.parse`, each [n].

    Raises:
      InvalidArgumentError: In the graph, if a record is not what it should be.
    """
    # Built in the graph: the shard is data, so one graph serves all clients.
    paths = tf.strings.join([
        os.path.join(self._folder, self._prefix),
        # As `index.shard_name` writes it.
        tf.strings.as_string(rows[SHARD], width=5, fill='0'),
        self._suffix,
    ])
    serialized = tf.map_fn(
        _read_record,
        (paths, rows[OFFSET]),
        fn_output_signature=tf.TensorSpec([], tf.string),
    )

    def check(wrong: tf.Tensor, message: str) -> tf.Operation:
      # argmax takes numbers; of equal ones it returns the first.
      first = tf.argmax(tf.cast(wrong, tf.int32))
      return tf.debugging.Assert(
          ~tf.reduce_any(wrong),
          [
              tf.strings.join([
                  'the record at byte ',
                  tf.strings.as_string(rows[OFFSET][first]),
                  ' of ', paths[first], message,
              ])
          ],
      )

    # Each check comes before the next step uses the records.
    present = check(
        tf.equal(serialized, ''),
        ' is missing or damaged; copy or write the corpus again.',
    )
    with tf.control_dependencies([present]):
      features = schema.parse(tf.identity(serialized))
    same_client = check(
        tf.not_equal(features[schema.CLIENT_ID], rows[schema.CLIENT_ID]),
        ' belongs to another client; the client is not in this corpus, or the'
        ' index and the shard are of different ones.',
    )
    with tf.control_dependencies([same_client]):
      return tf.nest.map_structure(tf.identity, features)

  def _element(
      self, features: Mapping[str, tf.Tensor], content: tf.Tensor
  ) -> schema.Element:
    """The entries of `schema.element_spec`, of one record or of several."""
    key = schema.FEATURES if self._stored else schema.WAVEFORM
    features = dict(features, **{key: content})
    return collections.OrderedDict(
        (name, features[name]) for name in schema.element_spec(self._stored)
    )


def plain_options() -> tf.data.Options:
  """Returns options without tf.data's rewriting of its graph or autotuning.

  A client's dataset is short, and opened again in every round: the rewrite
  takes longer than what it saves. The thread that tunes sleeps for longer the
  longer it tunes, up to a minute. TensorFlow 2.14 may fail to wake it when the
  dataset is deleted, so that programs waited at their end.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  return options


def _read_record(location: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
  """The record at an offset of a shard, string []; '' if there is none."""
  path, offset = location
  # In TensorFlow 2.14, reading a missing file fails at each attempt, forever
  # where errors are ignored. Matching returns no file instead. Wildcards
  # in a folder's name are escaped, so that they match themselves.
  pattern = tf.strings.regex_replace(path, r'([*?\[\]\\])', r'\\\1')
  found = tf.io.matching_files(pattern)
  variant = tf.raw_ops.TFRecordDatasetV2(
      filenames=found,
      # Uncompressed: offsets could not be seeked to otherwise.
      compression_type='',
      buffer_size=_BUFFER_BYTES,
      # Seeks to the offset instead of reading through the file.
      byte_offsets=tf.fill([tf.size(found)], offset),
  )
  # TensorFlow 2.14 drops the offset when tf.data rewrites the graph of a
  # dataset before it is iterated over.
  records = tf.data.experimental.from_variant(
      variant, tf.TensorSpec([], tf.string)
  ).with_options(plain_options())
  # The reader's error does not name the position. So an error ends the records
  # here, and the caller reports the empty one by its shard and byte.
  missing = tf.data.Dataset.from_tensors(b'')
  first = records.ignore_errors().concatenate(missing).take(1)
  return first.get_single_element()
