"""Record format: one utterance on disk and in a client's dataset.

A record is a serialized `tf.train.Example` with five features:

| feature        | type  | content                                          |
|----------------|-------|--------------------------------------------------|
| `client_id`    | bytes | UTF-8                                            |
| `utterance_id` | bytes | UTF-8                                            |
| `transcript`   | bytes | UTF-8                                            |
| `audio`        | bytes | as `audio.encode` gives                          |
| `num_samples`  | int64 | length of the audio, 16 kHz mono                 |

`pcm` and `log_mel` are parsed with core TensorFlow ops only, so they serve
every execution context. `flac` is about half the size and is decoded in the
graph, bit exactly, by tensorflow-io, which only a process that has imported
tensorflow-io can run (TFF's native worker cannot).

  N: samples. T: feature frames. F: mel bins.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple

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


def element_spec(
    encoding: str = 'pcm',
) -> collections.OrderedDict[str, tf.TensorSpec]:
  """Returns the type of one element of a client's dataset.

  Keys are sorted: `client_id`, `transcript`, `utterance_id` string [] and, with
  `log_mel`, `features` float32 [T, F], else `waveform` int16 [N].
  """
  if encoding == 'log_mel':
    audio = (FEATURES, tf.TensorSpec([None, log_mel.NUM_MEL_BINS], tf.float32))
  else:
    audio = (WAVEFORM, tf.TensorSpec([None], tf.int16))
  return collections.OrderedDict(
      sorted([
          (CLIENT_ID, tf.TensorSpec([], tf.string)),
          (TRANSCRIPT, tf.TensorSpec([], tf.string)),
          (UTTERANCE_ID, tf.TensorSpec([], tf.string)),
          audio,
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
    client_id: Whose utterance it is, not empty.
    utterance_id: Its name, unique within the client, not empty.
    transcript: Its text.
    audio: As `audio.encode` gives it.
    num_samples: The length of its waveform, at least 1.

  Raises:
    ValueError: If an id is empty or `num_samples` is not positive.
  """
  for name, value in (('client_id', client_id), ('utterance_id', utterance_id)):
    if not value:
      raise ValueError(f'{name} must not be empty.')
  checks.positive_int(num_samples=num_samples)
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
  return example.SerializeToString(deterministic=True)


def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
  """Takes records apart, audio still encoded.

  Args:
    serialized: string [n].

  Returns:
    The features of a record by name: string [n], `num_samples` int64 [n]. In
    the graph, a missing one raises InvalidArgumentError.
  """
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
) -> Callable[[dict[str, tf.Tensor]], Element]:
  """Returns what makes an element of one record that `parse` took apart.

  Args:
    encoding: One of `ENCODINGS`. 'flac' imports tensorflow-io.

  Returns:
    A graph function from features (scalars) to an element of type
    `element_spec(encoding)`. It raises InvalidArgumentError, which names the
    utterance, if the length of the audio is not `num_samples`.

  Raises:
    ValueError: If `encoding` is unknown.
  """
  form = _form(encoding)

  def to_element(record: dict[str, tf.Tensor]) -> Element:
    decoded = form.decode(record[AUDIO])
    checked = _check_lengths(
        form,
        tf.shape(decoded, out_type=tf.int64)[:1],
        record[NUM_SAMPLES][tf.newaxis],
    )
    with tf.control_dependencies(checked):
      decoded = tf.identity(decoded)
    element = {form.name: decoded}
    for key in (CLIENT_ID, TRANSCRIPT, UTTERANCE_ID):
      element[key] = record[key]
    return collections.OrderedDict(sorted(element.items()))

  return to_element


def build_decode_all_fn(
    encoding: str,
) -> Callable[[dict[str, tf.Tensor], tf.Tensor], dict[str, tf.Tensor]]:
  """Returns what decodes the audio of many records into one tensor.

  Args:
    encoding: As for `build_decode_fn`.

  Returns:
    A graph function from features [n], as `parse` gives them, and how many
    samples or frames to keep of each, `most` int32 [], not negative, to
    `waveform` int16 [n, most] or `features` float32 [n, most, F], 0 past the
    end of each. It raises what the function of `build_decode_fn` does.

  Raises:
    ValueError: If `encoding` is unknown.
  """
  form = _form(encoding)
  spec = element_spec(encoding)[form.name]

  def decode_all(
      features: dict[str, tf.Tensor], most: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    audio = features[AUDIO]
    if form.unit_bytes is None:

      def decode(record):
        sound = form.decode(record)
        size = tf.shape(sound)[0]
        rest = tf.maximum(most - size, 0)
        return tf.pad(sound[:most], [[0, rest]]), tf.cast(size, tf.int64)

      decoded, found = tf.map_fn(
          decode,
          audio,
          fn_output_signature=(spec, tf.TensorSpec([], tf.int64)),
      )
    else:
      # The op has no output of no bytes.
      decoded = tf.io.decode_raw(
          audio,
          spec.dtype,
          little_endian=True,
          fixed_length=form.unit_bytes * tf.maximum(most, 1),
      )
      shape = [-1, tf.maximum(most, 1), *spec.shape[1:]]
      decoded = tf.reshape(decoded, shape)[:, :most]
      num_bytes = tf.cast(tf.strings.length(audio), tf.int64)
      found = -(-num_bytes // form.unit_bytes)
    checked = _check_lengths(form, found, features[NUM_SAMPLES])
    with tf.control_dependencies(checked):
      return {form.name: tf.identity(decoded)}

  return decode_all


class _Form(NamedTuple):
  """How an encoding's audio is read.

  Attributes:
    encoding: One of `ENCODINGS`.
    name: Of the element's audio.
    decode: Bytes to audio.
    count: From samples to the length of the audio.
    unit: Of that length.
    unit_bytes: Of the encoded audio; None if they vary.
  """

  encoding: str
  name: str
  decode: Callable[[tf.Tensor], tf.Tensor]
  count: Callable[[tf.Tensor], tf.Tensor]
  unit: str
  unit_bytes: int | None


def _form(encoding: str) -> _Form:
  """Of an encoding; 'flac' imports tensorflow-io."""
  checks.one_of(ENCODINGS, encoding=encoding)
  if encoding == 'flac':
    import tensorflow_io  # pylint: disable=g-import-not-at-top,unused-import
  return {
      form.encoding: form
      for form in (
          _Form('pcm', WAVEFORM, _decode_pcm, tf.identity, 'samples', 2),
          _Form('flac', WAVEFORM, _decode_flac, tf.identity, 'samples', None),
          _Form(
              'log_mel', FEATURES, _decode_log_mel, log_mel.num_frames,
              'frames', 4 * log_mel.NUM_MEL_BINS,
          ),
      )
  }[encoding]


def _check_lengths(
    form: _Form, found: tf.Tensor, num_samples: tf.Tensor
) -> list[tf.Operation]:
  """Asserts that audio has the lengths it should have, int64 [n]."""
  expected = form.count(num_samples)
  wrong = tf.not_equal(found, expected)
  # The first one, or, where all are right, any that is there.
  first = tf.argmax(tf.cast(tf.concat([wrong, [True]], axis=0), tf.int32))
  text = lambda lengths: tf.strings.as_string(
      tf.concat([lengths, [0]], axis=0)[first]
  )
  check = tf.debugging.Assert(
      ~tf.reduce_any(wrong),
      [
          tf.strings.join([
              'an utterance should have ',
              text(expected),
              f' {form.unit}, its {form.encoding} audio has ',
              text(found),
              '; write the corpus again.',
          ])
      ],
  )
  # TFF traces without automatic control dependencies. In eager mode the
  # assertion has already run and there is no op.
  return [] if check is None else [check]


def _decode_pcm(audio: tf.Tensor) -> tf.Tensor:
  """Little-endian int16 bytes to int16 [N]."""
  return tf.io.decode_raw(audio, tf.int16, little_endian=True)


def _decode_flac(audio: tf.Tensor) -> tf.Tensor:
  """A FLAC file's bytes to int16 [N]."""
  import tensorflow_io as tfio  # pylint: disable=g-import-not-at-top

  return tfio.audio.decode_flac(audio, dtype=tf.int16)[:, 0]


def _decode_log_mel(audio: tf.Tensor) -> tf.Tensor:
  """Little-endian float32 bytes to float32 [T, F]."""
  values = tf.io.decode_raw(audio, tf.float32, little_endian=True)
  return tf.reshape(values, [-1, log_mel.NUM_MEL_BINS])


def _bytes_feature(value: bytes) -> tf.train.Feature:
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
