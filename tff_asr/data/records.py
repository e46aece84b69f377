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

  n: records. N: samples.
"""

import collections
from collections.abc import Callable, Mapping
import os

import tensorflow as tf

from tff_asr.data import index
from tff_asr.data import schema

OFFSET = 'offset'
SHARD = 'shard'
LENGTH = 'length'

Places = collections.OrderedDict[str, tf.Tensor]
"""Places of records, sorted by name: client_id string [n], offset int64 [n],
shard int64 [n]."""

Read = Callable[[Places, int], dict[str, tf.Tensor]]
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
    # The prefix of every shard's path; the number is known in the graph only.
    self._prefix, self._suffix = index.shard_name(0).split('00000')
    self._decode = schema.build_decode_fn(corpus.encoding)

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

    def check(wrong: tf.Tensor, message: str) -> tf.Operation:
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

    present = check(
        tf.equal(records, ''),
        ' is missing or damaged; copy or write the corpus again.',
    )
    with tf.control_dependencies([present]):
      features = schema.parse(tf.identity(records))
    same_client = check(
        tf.not_equal(features[schema.CLIENT_ID], rows[schema.CLIENT_ID]),
        ' belongs to another client; the client is not in this corpus, or the'
        ' index and the shard are of different ones.',
    )
    with tf.control_dependencies([same_client]):
      return tf.nest.map_structure(tf.identity, features)

  @tf.autograph.experimental.do_not_convert
  def read(self, rows: Places, longest: int) -> dict[str, tf.Tensor]:
    """Returns a padded chunk of decoded records.

    Args:
      rows: At least one.
      longest: Most samples to keep of a record.

    Returns:
      client_id, transcript, utterance_id string [n]; waveform int16 [n, N], 0
      past each length; length int32 [n].
    """
    features = self.parse(rows)
    lengths = tf.cast(features[schema.NUM_SAMPLES], tf.int32)
    lengths = tf.minimum(lengths, longest)
    waveforms = self._decode(features, tf.reduce_max(lengths))
    return dict(_element(features, waveforms), **{LENGTH: lengths})

  def read_dataset(self, rows: tf.data.Dataset) -> tf.data.Dataset:
    """Elements of `schema.element_spec`, in the order of their places.

    Args:
      rows: Dataset of places, each of scalars.
    """

    @tf.autograph.experimental.do_not_convert
    def decode(record):
      features = {name: value[tf.newaxis] for name, value in record.items()}
      length = tf.cast(record[schema.NUM_SAMPLES], tf.int32)
      return _element(record, self._decode(features, length)[0])

    return rows.batch(_AT_ONCE).map(self.parse).unbatch().map(decode)


def _element(
    features: Mapping[str, tf.Tensor], waveform: tf.Tensor
) -> schema.Element:
  """What `schema.element_spec` has, of one record or of several."""
  features = dict(features, **{schema.WAVEFORM: waveform})
  return collections.OrderedDict(
      (name, features[name]) for name in schema.element_spec()
  )


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
