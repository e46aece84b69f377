"""Record format: one utterance on disk, and as an element of a dataset.

A record is a serialized `tf.train.Example` with five values:

| feature        | type  | content                                          |
|----------------|-------|--------------------------------------------------|
| `client_id`    | bytes | UTF-8                                            |
| `utterance_id` | bytes | UTF-8                                            |
| `transcript`   | bytes | UTF-8; may be empty or missing                   |
| `audio`        | bytes | the bytes that `audio.encode` returns; or the    |
|                |       | features of a front end, float16 [T, F]          |
| `num_samples`  | int64 | length of the audio, 16 kHz mono                 |

`pcm` is parsed with core TensorFlow ops, so every execution context reads it.
`flac` is about half the size. tensorflow-io decodes it in the graph, bit
exactly; TFF's native worker, which does not import tensorflow-io, cannot.

`data_tools.embed` replaces audio by features (`StoredFeatures`).

  n: records. N: samples. T: feature frames. F: features of a frame.
"""

import collections
from collections.abc import Callable, Mapping
import functools
from typing import NamedTuple, Optional

import tensorflow as tf

from tff_asr import checks
from tff_asr.data import audio as audio_lib
from tff_asr.features import log_mel

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


class StoredFeatures(NamedTuple):
  """The front end whose features records hold in place of audio.

  Attributes:
    identity: See `features.front_end.FrontEnd`, as the others.
    feature_dim: F.
    frame_shift: Samples.
    window: Samples.
  """

  identity: str
  feature_dim: int
  frame_shift: int
  window: int

  def num_frames(self, num_samples: tf.Tensor) -> tf.Tensor:
    """As `FrontEnd.num_frames`."""
    return log_mel.num_frames(
        num_samples, window=self.window, frame_shift=self.frame_shift
    )


def element_spec(
    stored: Optional[StoredFeatures] = None,
) -> collections.OrderedDict[str, tf.TensorSpec]:
  """Returns the type of one element of a client's dataset.

  Keys are sorted: `client_id`, `transcript`, `utterance_id` string [], and
  `waveform` int16 [N]; or, of stored features, `features` float16 [T, F].
  """
  content = (WAVEFORM, tf.TensorSpec([None], tf.int16))
  if stored is not None:
    content = (FEATURES, tf.TensorSpec([None, stored.feature_dim], tf.float16))
  return collections.OrderedDict(
      sorted([
          (CLIENT_ID, tf.TensorSpec([], tf.string)),
          (TRANSCRIPT, tf.TensorSpec([], tf.string)),
          (UTTERANCE_ID, tf.TensorSpec([], tf.string)),
          content,
      ])
  )


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
    missing feature raises InvalidArgumentError, except for a transcript, which
    is then empty.
  """
  # Several at once, which is faster than one by one.
  return tf.io.parse_example(
      serialized,
      {
          CLIENT_ID: tf.io.FixedLenFeature([], tf.string),
          UTTERANCE_ID: tf.io.FixedLenFeature([], tf.string),
          # Written by others, speech without text may not have it.
          TRANSCRIPT: tf.io.FixedLenFeature([], tf.string, default_value=''),
          AUDIO: tf.io.FixedLenFeature([], tf.string),
          NUM_SAMPLES: tf.io.FixedLenFeature([], tf.int64),
      },
  )


def build_decode_fn(
    encoding: str, *, stored: Optional[StoredFeatures] = None
) -> Callable[[Mapping[str, tf.Tensor], tf.Tensor], tf.Tensor]:
  """Returns a function that decodes the audio of records into one tensor.

  Args:
    encoding: One of `ENCODINGS`. 'flac' imports tensorflow-io.
    stored: Records hold these features, whatever the encoding; None: audio.

  Returns:
    A graph function from the features that `parse` returns (n at least 1) and
    `max_samples` int32 [], at least 1, to waveforms int16 [n, max_samples], 0
    past the end of each; or to float16 [n, T, F], T the frames of max_samples
    and at least 1. It raises InvalidArgumentError if audio or features do not
    have their `num_samples`.

  Raises:
    ValueError: If `encoding` is unknown.
  """
  if stored is not None:
    return functools.partial(_decode_features, stored=stored)
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


def _decode_features(
    features: Mapping[str, tf.Tensor],
    max_samples: tf.Tensor,
    *,
    stored: StoredFeatures,
) -> tf.Tensor:
  """Features of little-endian float16 bytes."""
  frame_bytes = 2 * stored.feature_dim
  check = _check_lengths(
      'bytes of features',
      tf.cast(tf.strings.length(features[AUDIO]), tf.int64),
      frame_bytes * stored.num_frames(features[NUM_SAMPLES]),
  )
  # At least one: `decode_raw` needs a positive length.
  frames = tf.maximum(
      stored.num_frames(tf.convert_to_tensor(max_samples)), 1
  )
  with tf.control_dependencies([check]):
    # As int16: no kernel pads float16.
    values = tf.io.decode_raw(
        features[AUDIO],
        tf.int16,
        little_endian=True,
        fixed_length=frame_bytes * frames,
    )
  values = tf.bitcast(values, tf.float16)
  return tf.reshape(values, [-1, frames, stored.feature_dim])


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
