"""The record format: what one utterance is on disk and in a client's dataset.

A record is a serialized `tf.train.Example` with five features:

| feature        | type  | content                                          |
|----------------|-------|--------------------------------------------------|
| `client_id`    | bytes | UTF-8                                            |
| `utterance_id` | bytes | UTF-8                                            |
| `transcript`   | bytes | UTF-8                                            |
| `audio`        | bytes | `pcm`: little-endian int16; `flac`: a FLAC file  |
| `num_samples`  | int64 | length of the decoded audio                      |

Audio is mono at 16 kHz in both encodings. `pcm` is parsed with core TensorFlow
ops only, so it serves every execution context. `flac` is about half the size
and is decoded in the graph, bit exactly, by tensorflow-io, which only a
process that has imported tensorflow-io can run (TFF's native worker cannot).

N: samples.
"""

import collections
from collections.abc import Callable
import io

import numpy as np
import soundfile
import tensorflow as tf

from tff_asr import checks

SAMPLE_RATE_HZ = 16000
ENCODINGS = ('pcm', 'flac')

CLIENT_ID = 'client_id'
UTTERANCE_ID = 'utterance_id'
TRANSCRIPT = 'transcript'
WAVEFORM = 'waveform'
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
    waveform: np.ndarray,
    encoding: str,
) -> bytes:
  """Returns one utterance as a serialized record.

  Args:
    client_id: Whose utterance it is, not empty.
    utterance_id: Its name, unique within the client, not empty.
    transcript: Its text.
    waveform: int16 [N], 16 kHz mono, N at least 1.
    encoding: 'pcm' or 'flac'; both give `waveform` back bit for bit.

  Raises:
    ValueError: If an id is empty, `waveform` is not int16 [N] with N >= 1, or
      `encoding` is unknown.
  """
  checks.one_of(ENCODINGS, encoding=encoding)
  for name, value in (('client_id', client_id), ('utterance_id', utterance_id)):
    if not value:
      raise ValueError(f'{name} must not be empty.')
  if waveform.dtype != np.int16 or waveform.ndim != 1 or not waveform.size:
    raise ValueError(
        f'waveform of utterance {utterance_id} must be int16 [N] with N at '
        f'least 1, found {waveform.dtype} {list(waveform.shape)}.'
    )
  if encoding == 'pcm':
    audio = waveform.astype('<i2', copy=False).tobytes()
  else:
    buffer = io.BytesIO()
    soundfile.write(
        buffer, waveform, SAMPLE_RATE_HZ, format='FLAC', subtype='PCM_16'
    )
    audio = buffer.getvalue()
  example = tf.train.Example(
      features=tf.train.Features(
          feature={
              CLIENT_ID: _bytes_feature(client_id.encode()),
              UTTERANCE_ID: _bytes_feature(utterance_id.encode()),
              TRANSCRIPT: _bytes_feature(transcript.encode()),
              AUDIO: _bytes_feature(audio),
              NUM_SAMPLES: tf.train.Feature(
                  int64_list=tf.train.Int64List(value=[len(waveform)])
              ),
          }
      )
  )
  return example.SerializeToString(deterministic=True)


def build_parse_fn(encoding: str) -> Callable[[tf.Tensor], Element]:
  """Returns the inverse of `serialize` as a graph function.

  Args:
    encoding: 'pcm' or 'flac'. 'flac' imports tensorflow-io.

  Returns:
    A function from a serialized record (string []) to an element of type
    `element_spec()`. In the graph it raises InvalidArgumentError if a feature
    is missing or the audio has not `num_samples` samples (the utterance is
    named).

  Raises:
    ValueError: If `encoding` is unknown.
  """
  checks.one_of(ENCODINGS, encoding=encoding)
  decode = _decode_pcm if encoding == 'pcm' else _build_decode_flac()

  def parse(serialized: tf.Tensor) -> Element:
    record = tf.io.parse_single_example(
        serialized,
        {
            CLIENT_ID: tf.io.FixedLenFeature([], tf.string),
            UTTERANCE_ID: tf.io.FixedLenFeature([], tf.string),
            TRANSCRIPT: tf.io.FixedLenFeature([], tf.string),
            AUDIO: tf.io.FixedLenFeature([], tf.string),
            NUM_SAMPLES: tf.io.FixedLenFeature([], tf.int64),
        },
    )
    waveform = decode(record[AUDIO])
    num_samples = tf.shape(waveform, out_type=tf.int64)[0]
    check = tf.debugging.Assert(
        tf.equal(num_samples, record[NUM_SAMPLES]),
        [
            tf.strings.join([
                'utterance ',
                record[UTTERANCE_ID],
                ' of client ',
                record[CLIENT_ID],
                ' should have ',
                tf.strings.as_string(record[NUM_SAMPLES]),
                f' samples, its {encoding} audio has ',
                tf.strings.as_string(num_samples),
                '; write the corpus again.',
            ])
        ],
    )
    # TFF traces without automatic control dependencies. In eager mode the
    # assertion has already run and there is no op.
    with tf.control_dependencies([] if check is None else [check]):
      waveform = tf.identity(waveform)
    return collections.OrderedDict([
        (CLIENT_ID, record[CLIENT_ID]),
        (TRANSCRIPT, record[TRANSCRIPT]),
        (UTTERANCE_ID, record[UTTERANCE_ID]),
        (WAVEFORM, waveform),
    ])

  return parse


def _decode_pcm(audio: tf.Tensor) -> tf.Tensor:
  """Little-endian int16 bytes to int16 [N]."""
  return tf.io.decode_raw(audio, tf.int16, little_endian=True)


def _build_decode_flac() -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns a function from a FLAC file's bytes to int16 [N]."""
  import tensorflow_io as tfio  # pylint: disable=g-import-not-at-top

  def decode(audio: tf.Tensor) -> tf.Tensor:
    return tfio.audio.decode_flac(audio, dtype=tf.int16)[:, 0]

  return decode


def _bytes_feature(value: bytes) -> tf.train.Feature:
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
