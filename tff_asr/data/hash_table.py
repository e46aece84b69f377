"""A hash table on disk that the graph reads: a client's place in O(1).

The table has linear probing at load 1/2. A client's key is the 63-bit
fingerprint of its id, its home slot is `key % num_slots`, and it lies at most
`_PROBE_LENGTH - 1` slots further on; extra slots at the end take the place of
wrapping around. Entries are laid out in the order of their home slots, so that
displacements are those of a queue at half load: their tail falls as
exp(-1.26 d), 11 slots at a million clients.

A slot is a TFRecord of three int64: key (-1: empty), byte offset, and shard
number * 2^32 + number of utterances. The framing costs 16 bytes a slot and buys
a checksum and `TFRecordDatasetV2(byte_offsets)`, which seeks;
`FixedLengthRecordDatasetV2` reads through its header bytes (5.8 ms instead of
0.5 ms at 76 MB).

The graph holds the path and `num_slots`, so it does not grow with the
population. Two ids with one key (probability num_clients^2 / 2^64) are refused
when the table is built; an id that is not in it but has the key of one that is
gets that client's place, which is why readers must compare the `client_id` in
the records as well.
"""

from collections.abc import Callable, Sequence
import os
import struct

import numpy as np
import tensorflow as tf

MAX_UTTERANCES = 2**32 - 1

_NUM_KEYS = 2**63 - 1
_EMPTY_KEY = -1
_UNREADABLE_KEY = -2
_PROBE_LENGTH = 32
_PAYLOAD_BYTES = 24
_SLOT_BYTES = _PAYLOAD_BYTES + 16


def build(
    client_ids: Sequence[str],
    *,
    shards: np.ndarray,
    offsets: np.ndarray,
    num_utterances: np.ndarray,
) -> tuple[bytes, int]:
  """Returns a table's file content and its number of home slots.

  Args:
    client_ids: One a client, at least one. Their order does not matter.
    shards: int64 [num_clients], each in [0, 2^31).
    offsets: int64 [num_clients], not negative.
    num_utterances: int64 [num_clients], each in [1, MAX_UTTERANCES].

  Raises:
    ValueError: If two ids have one key.
  """
  keys = tf.strings.to_hash_bucket_fast(client_ids, _NUM_KEYS).numpy()
  by_key = np.argsort(keys, kind='stable')
  same = np.flatnonzero(np.diff(keys[by_key]) == 0)
  if same.size:
    first, second = (client_ids[by_key[same[0] + i]] for i in (0, 1))
    raise ValueError(
        f'clients {first} and {second} have the same hash key; rename one.'
    )
  num_slots = max(16, 2 * len(keys))
  while True:
    order = by_key[np.argsort(keys[by_key] % num_slots, kind='stable')]
    home = keys[order] % num_slots
    # The i-th entry lies at max(home, place of the one before + 1).
    rank = np.arange(len(order))
    place = np.maximum.accumulate(home - rank) + rank
    if np.max(place - home) < _PROBE_LENGTH:
      break
    num_slots += num_slots // 2
  slots = np.zeros([num_slots + _PROBE_LENGTH, 3], np.int64)
  slots[:, 0] = _EMPTY_KEY
  slots[place, 0] = keys[order]
  slots[place, 1] = offsets[order]
  slots[place, 2] = (shards[order] << 32) + num_utterances[order]
  return _frame_records(slots), num_slots


def num_bytes(num_slots: int) -> int:
  """Returns the size of the file of a table with `num_slots` home slots."""
  return (num_slots + _PROBE_LENGTH) * _SLOT_BYTES


def build_lookup_fn(
    path: str, *, num_slots: int
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
  """Returns a graph function from a client id to the place of its records.

  The function takes string [] and returns int64 scalars: shard number, byte
  offset of the first record, number of records. An id whose key is not in the
  corpus, or whose slots cannot be read, raises InvalidArgumentError, which does
  not name it. It uses core ops only, reads `_PROBE_LENGTH` slots from the file,
  and its graph does not depend on the number of clients.

  Args:
    path: The table's file.
    num_slots: Its number of home slots.
  """
  # A vector, because a scalar is stored as a varint and the size of the graph
  # would depend on the value.
  table_size = np.array([num_slots, _PROBE_LENGTH], np.int64)
  unreadable = np.array([_UNREADABLE_KEY, 0, 0], '<i8').tobytes()

  def lookup(client_id: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    client_id = tf.convert_to_tensor(client_id, tf.string)
    key = tf.strings.to_hash_bucket_fast(client_id, _NUM_KEYS)
    home = tf.math.floormod(key, tf.constant(table_size)[0])
    # No constant: whether the file is there would be folded into the graph.
    nothing = tf.strings.substr(client_id, 0, 0)
    records = record_dataset(
        tf.strings.join([path, nothing]),
        offset=home * _SLOT_BYTES,
        buffer_size=_PROBE_LENGTH * _SLOT_BYTES,
    )
    # A reader that fails cannot say whose place it was looking for. So its
    # error ends the slots, and what is then missing is reported by name.
    missing = tf.data.Dataset.from_tensors(unreadable).repeat(_PROBE_LENGTH)
    records = records.ignore_errors().concatenate(missing).take(_PROBE_LENGTH)
    slots = tf.io.decode_raw(
        records.batch(_PROBE_LENGTH).get_single_element(),
        tf.int64,
        little_endian=True,
    )
    match = tf.equal(slots[:, 0], key)
    is_readable = tf.reduce_all(tf.not_equal(slots[:, 0], _UNREADABLE_KEY))
    readable = tf.debugging.Assert(
        is_readable,
        [
            f'{path} is missing or damaged where the place of a client should '
            'be; copy or write the corpus again.'
        ],
    )
    check = tf.debugging.Assert(
        # One message at a time: the table was read, and the key is not there.
        tf.logical_or(~is_readable, tf.reduce_any(match)),
        [
            'a client of this round is not in the corpus '
            f'{os.path.dirname(path)}.'
        ],
    )
    # In eager mode the assertions have already run and are no ops.
    checks = [op for op in (readable, check) if op is not None]
    with tf.control_dependencies(checks):
      slot = tf.gather(slots, tf.argmax(tf.cast(match, tf.int32)))
    shard = tf.bitwise.right_shift(slot[2], tf.constant(32, tf.int64))
    count = tf.bitwise.bitwise_and(
        slot[2], tf.constant(MAX_UTTERANCES, tf.int64)
    )
    return shard, slot[1], count

  return lookup


def record_dataset(
    path: tf.Tensor, *, offset: tf.Tensor, buffer_size: int
) -> tf.data.Dataset:
  """Returns the TFRecords (string []) of a file from a byte offset on.

  Seeks to the offset instead of reading through the file. A file that is
  missing gives no records; a damaged one an error where it is damaged.

  TensorFlow 2.14 forgets the offset when tf.data rewrites the graph of a
  dataset before it is iterated over, so this one's options forbid that, and
  with it those of any dataset built on it.

  Args:
    path: string [].
    offset: int64 [], the beginning of a record.
    buffer_size: Bytes read at a time.
  """
  # A reader of TensorFlow 2.14 whose file is missing fails at each attempt,
  # without end where errors are ignored.
  pattern = tf.strings.regex_replace(path, r'([*?\[\]\\])', r'\\\1')
  files = tf.io.matching_files(pattern)
  variant = tf.raw_ops.TFRecordDatasetV2(
      filenames=files,
      compression_type='',
      buffer_size=buffer_size,
      byte_offsets=tf.fill([tf.size(files)], offset),
  )
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  options.autotune.enabled = False
  return tf.data.experimental.from_variant(
      variant, tf.TensorSpec([], tf.string)
  ).with_options(options)


def _frame_records(payloads: np.ndarray) -> bytes:
  """Rows of int64 as consecutive TFRecords."""
  data = np.ascontiguousarray(payloads.astype('<i8', copy=False)).view(np.uint8)
  length = np.frombuffer(struct.pack('<Q', data.shape[1]), np.uint8)
  records = np.empty([len(data), data.shape[1] + 16], np.uint8)
  records[:, :8] = length
  records[:, 8:12] = _masked_crc32c(length[np.newaxis])
  records[:, 12:-4] = data
  records[:, -4:] = _masked_crc32c(data)
  return records.tobytes()


def _masked_crc32c(rows: np.ndarray) -> np.ndarray:
  """TFRecord's masked CRC-32C of each row: uint8 [n, k] to uint8 [n, 4]."""
  table = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    odd = (table >> 1) ^ np.uint32(0x82F63B78)
    table = np.where(table & 1, odd, table >> 1)
  crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
  for column in rows.T:
    crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
  crc = ~crc
  masked = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
  return masked.astype('<u4').view(np.uint8).reshape(-1, 4)
