"""Reader of records by place: any of a corpus, in any order, each checked.

A place is a record's shard, its byte offset there and whose it is. Reading it
seeks and reads that record alone, in the graph, in core ops (but for FLAC).

Nothing is skipped silently. In the graph, an error names shard and byte if a
record

- is missing or damaged (its checksum differs, the shard is truncated),
- belongs to another client (the shard is of another corpus),
- has audio that does not have the length it states.

Such errors end up in logs, so they do not name the client; who has the corpus
finds it by its place (`client_data.verify`, `bin/inspect_data.py`).

  n: records. N: samples. T: feature frames. F: mel bins.
"""

import collections
from collections.abc import Callable, Mapping
import os

import tensorflow as tf

from tff_asr.data import index
from tff_asr.data import schema
from tff_asr.features import log_mel

OFFSET = 'offset'
SHARD = 'shard'
LENGTH = 'length'

Places = collections.OrderedDict[str, tf.Tensor]
"""Places of records, sorted by name: client_id string [n], offset int64 [n],
shard int64 [n]."""

Read = Callable[[Mapping[str, tf.Tensor], Mapping[str, int]], dict]
"""Reads rows of a client's data (`Reader.read`)."""

# Most records are larger: read further in steps of this.
_BUFFER_BYTES = 64 * 1024
# Records of a dataset that are read together.
_AT_ONCE = 32


def places(
    client_id: tf.Tensor, *, shard: tf.Tensor, offset: tf.Tensor
) -> Places:
  """Places of records by name, each [n]."""
  return collections.OrderedDict(
      [(schema.CLIENT_ID, client_id), (OFFSET, offset), (SHARD, shard)]
  )


class Reader:
  """Reads the records of a corpus; its methods are traceable."""

  def __init__(self, corpus: index.Corpus):
    self._folder = corpus.path
    self._encoding = corpus.encoding
    # The prefix of every shard's path; the number is known in the graph only.
    self._prefix, self._suffix = index.shard_name(0).split('00000')
    self._decode = schema.build_decode_fn(corpus.encoding)
    self._decode_all = schema.build_decode_all_fn(corpus.encoding)
    self._count = (
        log_mel.num_frames if corpus.encoding == 'log_mel' else tf.identity
    )

  @tf.autograph.experimental.do_not_convert
  def parse(self, rows: Places) -> dict[str, tf.Tensor]:
    """Returns the features of records, as `schema.parse`, each [n].

    Raises:
      InvalidArgumentError: In the graph, if a record is not what it should be.
    """
    paths = tf.strings.join([
        os.path.join(self._folder, self._prefix),
        tf.strings.as_string(rows[SHARD], width=5, fill='0'),
        self._suffix,
    ])
    records = tf.map_fn(
        _read_record,
        (paths, rows[OFFSET]),
        fn_output_signature=tf.TensorSpec([], tf.string),
    )

    def check(wrong: tf.Tensor, message: str) -> list[tf.Operation]:
      # The first one, or, where all are right, any that is there.
      first = tf.argmax(tf.cast(tf.concat([wrong, [True]], axis=0), tf.int32))
      offset = tf.concat([rows[OFFSET], [0]], axis=0)[first]
      path = tf.concat([paths, ['']], axis=0)[first]
      assertion = tf.debugging.Assert(
          ~tf.reduce_any(wrong),
          [
              tf.strings.join([
                  'the record at byte ', tf.strings.as_string(offset), ' of ',
                  path, message,
              ])
          ],
      )
      # In eager mode it has run and is no op.
      return [] if assertion is None else [assertion]

    present = check(
        tf.equal(records, ''),
        ' is missing or damaged; copy or write the corpus again.',
    )
    with tf.control_dependencies(present):
      features = schema.parse(tf.identity(records))
    same_client = check(
        tf.not_equal(features[schema.CLIENT_ID], rows[schema.CLIENT_ID]),
        ' belongs to another client; the client is not in this corpus, or the'
        ' index and the shard are of different ones.',
    )
    with tf.control_dependencies(same_client):
      return tf.nest.map_structure(tf.identity, features)

  @tf.autograph.experimental.do_not_convert
  def read(
      self, rows: Places, longest: Mapping[str, int]
  ) -> dict[str, tf.Tensor]:
    """Returns a padded chunk of decoded records.

    Args:
      rows: At least one.
      longest: Most samples (`waveform`) and frames (`features`) to keep of a
        record.

    Returns:
      client_id, transcript, utterance_id string [n]; waveform int16 [n, N] or
      features float32 [n, T, F], 0 past each length; length int32 [n].
    """
    features = self.parse(rows)
    name = next(n for n in schema.element_spec(self._encoding) if n in longest)
    lengths = self._count(features[schema.NUM_SAMPLES])
    lengths = tf.minimum(tf.cast(lengths, tf.int32), longest[name])
    sounds = self._decode_all(features, tf.reduce_max(lengths))
    chunk = {
        key: features[key]
        for key in (schema.CLIENT_ID, schema.TRANSCRIPT, schema.UTTERANCE_ID)
    }
    return dict(chunk, **sounds, **{LENGTH: lengths})

  def read_dataset(self, rows: tf.data.Dataset) -> tf.data.Dataset:
    """Elements of `schema.element_spec`, in the order of their places.

    Args:
      rows: Dataset of places, each of scalars.
    """
    parsed = rows.batch(_AT_ONCE).map(self.parse).unbatch()
    return parsed.map(self._decode)


def _read_record(place: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
  """The record at an offset of a shard, string []; '' if there is none."""
  path, offset = place
  records = index.record_dataset(
      path, offset=offset, buffer_size=_BUFFER_BYTES
  )
  readable = index.take_readable(
      records, count=tf.ones([], tf.int64), unreadable=b''
  )
  return readable.get_single_element()
