"""Record format: one utterance on disk, and as an element of a dataset.

A record is a serialized `tf.train.Example` with five features:

| feature        | type  | content                                          |
|----------------|-------|--------------------------------------------------|
| `client_id`    | bytes | UTF-8                                            |
| `utterance_id` | bytes | UTF-8                                            |
| `transcript`   | bytes | UTF-8                                            |
| `audio`        | bytes | the bytes that `audio.encode` returns            |
| `num_samples`  | int64 | length of the audio, 16 kHz mono                 |

`pcm` is parsed with core TensorFlow ops, so every execution context reads it.
`flac` is about half the size. tensorflow-io decodes it in the graph, bit
exactly; TFF's native worker, which does not import tensorflow-io, cannot.

  n: records. N: samples.
"""

import collections
from collections.abc import Callable, Mapping

import tensorflow as tf

from tff_asr import checks
from tff_asr.data import audio as audio_lib

SAMPLE_RATE_HZ = audio_lib.SAMPLE_RATE_HZ
ENCODINGS = audio_lib.ENCODINGS

CLIENT_ID = 'client_id'
UTTERANCE_ID = 'utterance_id'
TRANSCRIPT = 'transcript'
WAVEFORM = 'waveform'
FEATURES = 'features'
AUDIO = 'audio'
NUM_SAMPLES = 'num_samples'

Element = collections.OrderedDict[str, tf.Tensor]


def element_spec() -> collections.OrderedDict[str, tf.TensorSpec]:
  """Returns the type of one element of a client's dataset.

  Keys are sorted: `client_id`, `transcript`, `utterance_id` string [], and
  `waveform` int16 [N].
  """
  return collections.OrderedDict([
      (CLIENT_ID, tf.TensorSpec([], tf.string)),
      (TRANSCRIPT, tf.TensorSpec([], tf.string)),
      (UTTERANCE_ID, tf.TensorSpec([], tf.string)),
      (WAVEFORM, tf.TensorSpec([None], tf.int16)),
  ])


def serialize(
    *,
    client_id: str,
    utterance_id: str,
    transcript: str,
    audio: bytes,
    num_samples: int,
) -> bytes:
  """Returns one utterance as a serialized record.

  Args:
    client_id: The speaker's id, not empty.
    utterance_id: The utterance's name, unique within the client, not empty.
    transcript: Its text.
    audio: The bytes that `audio.encode` returns.
    num_samples: The length of its waveform, at least 1.
  """
  example = tf.train.Example(
      features=tf.train.Features(
          feature={
              CLIENT_ID: _bytes_feature(client_id.encode()),
              UTTERANCE_ID: _bytes_feature(utterance_id.encode()),
              TRANSCRIPT: _bytes_feature(transcript.encode()),
              AUDIO: _bytes_feature(audio),
              NUM_SAMPLES: tf.train.Feature(
                  int64_list=tf.train.Int64List(value=[num_samples])
              ),
          }
      )
  )
  # The same bytes each time: shards are compared by their checksums.
  return example.SerializeToString(deterministic=True)


def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
  """Parses records; audio stays encoded.

  Args:
    serialized: string [n].

  Returns:
    The features by name: string [n], `num_samples` int64 [n]. In the graph, a
    missing feature raises InvalidArgumentError.
  """
  # Several at once, which is faster than one by one.
  return tf.io.parse_example(
      serialized,
      {
          CLIENT_ID: tf.io.FixedLenFeature([], tf.string),
          UTTERANCE_ID: tf.io.FixedLenFeature([], tf.string),
          TRANSCRIPT: tf.io.FixedLenFeature([], tf.string),
          AUDIO: tf.io.FixedLenFeature([], tf.string),
          NUM_SAMPLES: tf.io.FixedLenFeature([], tf.int64),
      },
  )


def build_decode_fn(
    encoding: str,
) -> Callable[[Mapping[str, tf.Tensor], tf.Tensor], tf.Tensor]:
  """Returns a function that decodes the audio of records into one tensor.

  Args:
    encoding: One of `ENCODINGS`. 'flac' imports tensorflow-io.

  Returns:
    A graph function from the features that `parse` returns (n at least 1) and
    `max_samples` int32 [], at least 1, to waveforms int16 [n, max_samples], 0
    past the end of each. It raises InvalidArgumentError if audio does not have
    its `num_samples`.

  Raises:
    ValueError: If `encoding` is unknown.
  """
  checks.one_of(ENCODINGS, encoding=encoding)
  if encoding == 'pcm':
    return _decode_pcm
  # Registers the ops of FLAC, which few corpora need.
  import tensorflow_io  # pylint: disable=g-import-not-at-top,unused-import

  return _decode_flac


def _decode_pcm(
    features: Mapping[str, tf.Tensor], max_samples: tf.Tensor
) -> tf.Tensor:
  """Waveforms of little-endian int16 bytes."""
  check = _check_lengths(
      'bytes of PCM',
      tf.cast(tf.strings.length(features[AUDIO]), tf.int64),
      2 * features[NUM_SAMPLES],
  )
  with tf.control_dependencies([check]):
    # A fixed length pads short audio with zeros and cuts what is longer.
    return tf.io.decode_raw(
        features[AUDIO],
        tf.int16,
        little_endian=True,
        fixed_length=2 * max_samples,
    )


def _decode_flac(
    features: Mapping[str, tf.Tensor], max_samples: tf.Tensor
) -> tf.Tensor:
  """Waveforms of FLAC files."""
  import tensorflow_io as tfio  # pylint: disable=g-import-not-at-top

  def decode(record: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    audio, num_samples = record
    # The first channel: records are mono.
    waveform = tfio.audio.decode_flac(audio, dtype=tf.int16)[:, 0]
    size = tf.shape(waveform)[:1]
    check = _check_lengths(
        'samples', tf.cast(size, tf.int64), num_samples[tf.newaxis]
    )
    with tf.control_dependencies([check]):
      # Padded here, because map_fn stacks results of one size.
      missing = tf.maximum(max_samples - size[0], 0)
      return tf.pad(waveform[:max_samples], [[0, missing]])

  return tf.map_fn(
      decode,
      (features[AUDIO], features[NUM_SAMPLES]),
      fn_output_signature=tf.TensorSpec([None], tf.int16),
  )


def _check_lengths(
    unit: str, found: tf.Tensor, expected: tf.Tensor
) -> tf.Operation:
  """Asserts that audio has the lengths it should have, int64 [n]."""
  # Not `!=`, which compares tensors by identity while TFF traces.
  wrong = tf.not_equal(found, expected)
  first = tf.argmax(tf.cast(wrong, tf.int32))
  return tf.debugging.Assert(
      ~tf.reduce_any(wrong),
      [
          tf.strings.join([
              'an utterance should have ',
              tf.strings.as_string(expected[first]),
              f' {unit}, it has ',
              tf.strings.as_string(found[first]),
              '; write the corpus again.',
          ])
      ],
  )


def _bytes_feature(value: bytes) -> tf.train.Feature:
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
