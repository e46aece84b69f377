"""Audio files to 16 kHz mono int16, and to what a record stores.

Loads no TensorFlow, so that processes that encode audio start fast. `read`
reads what libsndfile reads, recognised by content and not by file name: WAV,
FLAC, MP3, Ogg, NIST sphere, AIFF and more. Audio that is already 16 kHz mono
int16 comes out bit for bit. Otherwise, in this order: channels are averaged,
other rates are resampled by soxr at its high quality, and samples are rounded
to int16 and clipped.

A file that ends before its own header says raises instead of giving a shorter
clip. An MP3 file without a length header is the exception: it does not say
how long it was.

`encode` gives what a record of 16 kHz mono audio stores. Both encodings give
the audio back bit for bit:

| encoding | content             | bytes a second   |
|----------|---------------------|------------------|
| `pcm`    | little-endian int16 | 32,000           |
| `flac`   | a FLAC file         | 13,000 to 20,000 |

  N: samples.
"""

import collections
import contextlib
import functools
import io
import os
import re

import numpy as np
import soundfile
import soxr

from tff_asr import checks
from tff_asr import files
from tff_asr.features import log_mel

SAMPLE_RATE_HZ = log_mel.SAMPLE_RATE_HZ
ENCODINGS = ('pcm', 'flac')

# libsndfile gives the file's own integers as int16, exactly.
_EXACT_SUBTYPES = ('PCM_16', 'PCM_S8', 'PCM_U8', 'ULAW', 'ALAW')
# libsndfile's length of an MP3 file may count the encoder's padding.
_MP3_TOLERANCE = 3 * 1152
# Programs that write to a pipe leave a length of "unknown" behind.
_UNKNOWN_LENGTH = 0x7FFFF000
_DECLARED_BYTES = re.compile(
    r'^\s*(?:data|SSND)\s*: (\d+) \(should be (\d+)\)', re.MULTILINE
)
_DECLARED_SAMPLES = re.compile(rb'^sample_count -i (\d+)', re.MULTILINE)
# Ten hours at 16 kHz in int16 and float64 are 6 GB: longer recordings, or
# headers that claim as much, would fill the memory.
_MAX_SEC = 10 * 3600.0
_MAX_SAMPLES = int(_MAX_SEC) * SAMPLE_RATE_HZ
# Samples of a shorter limit, for each at 16 kHz: two channels of 192 kHz.
_MAX_RATIO = 24
# NIST's header.
_SPHERE_BYTES = 1024
# Lists of parts round times.
_PART_TOLERANCE_SEC = 0.1
_OGG_TRUNCATED = ('File ended unexpectedly', 'lacks an end-of-stream bit')


class AudioError(ValueError):
  """An audio file that cannot be used.

  Attributes:
    reason: The kind of defect in few words, the same for all such files.
  """

  def __init__(self, name: str, reason: str, detail: str):
    super().__init__(f'{name}: {reason} ({detail}).')
    self.reason = reason


def read(
    source: str | os.PathLike[str] | bytes,
    *,
    name: str | None = None,
    start_sec: float | None = None,
    duration_sec: float | None = None,
    channel: int | None = None,
    max_sec: float = _MAX_SEC,
    conversions: collections.Counter[str] | None = None,
) -> np.ndarray:
  """Reads one audio file, or a part of it.

  Args:
    source: A path, or the bytes of a file.
    name: What errors call the file; by default the path.
    start_sec: Where the part begins; None reads the whole file.
    duration_sec: The part's length; None: to the end of the file.
    channel: The only channel to read, from 0; None averages all.
    max_sec: What is longer is refused before it is decoded; at most 10 hours.
    conversions: Counts each kind of conversion; a kind completes the sentence
      '3 ...'.

  Returns:
    int16 [N], 16 kHz mono, N at least 1.

  Raises:
    AudioError: If the file is missing, empty, not audio, damaged, truncated,
      without samples, longer than max_sec, of more samples in all of its
      channels than 10 hours at 16 kHz (or 24 times max_sec), or holds samples
      that are not finite; if it ends before the part does, by more than 0.1 s,
      or has no such channel. It names the file.
  """
  with contextlib.ExitStack() as stack:
    if isinstance(source, bytes):
      name, size = name or 'audio', len(source)
      file = io.BytesIO(source)
    else:
      name = name or os.fspath(source)
      try:
        if start_sec is None:
          data = files.read(source, max_bytes=8 * _MAX_SAMPLES)
          file, size = io.BytesIO(data), len(data)
        else:  # Of a long file, a small part.
          file = stack.enter_context(files.open_plain(source))
          size = os.fstat(file.fileno()).st_size
      except OSError as e:
        raise AudioError(name, 'cannot be opened', e.strerror or str(e)) from e
      except ValueError as e:
        raise AudioError(name, 'is not readable audio', str(e)) from e
    if not size:
      raise AudioError(name, 'is empty', '0 bytes')
    header = file.read(_SPHERE_BYTES)
    file.seek(0)
    try:
      f = stack.enter_context(soundfile.SoundFile(file))
      exact = f.subtype in _EXACT_SUBTYPES
      start, stop = _bounds(name, f, start_sec, duration_sec)
      frames = stop - start
      resampled = frames * SAMPLE_RATE_HZ // f.samplerate
      limit = log_mel.samples_of_seconds(max_sec)
      if resampled > limit or (
          frames * f.channels > min(_MAX_RATIO * limit, _MAX_SAMPLES)
      ):
        raise AudioError(name, 'is too long', f'{frames:,} samples')
      if start:
        f.seek(start)
      # float64 holds every integer format exactly.
      samples = f.read(
          -1 if start_sec is None else frames,
          dtype='int16' if exact else 'float64',
          always_2d=True,
      )
      kind = f'{f.format} {f.subtype}'
      _check_length(
          name, f, header=header, num_read=len(samples), expected=frames
      )
      rate_hz = f.samplerate
    except soundfile.SoundFileError as e:
      detail = str(e).rsplit('>: ', 1)[-1].rstrip('.')
      if 'not recognised' in detail:
        detail += ': convert it, as by `ffmpeg -i FILE FILE.wav`'
      raise AudioError(name, 'is not readable audio', detail) from e
  if channel is not None:
    if channel >= samples.shape[1]:
      raise AudioError(
          name, 'has no such channel', f'{channel} of {samples.shape[1]}'
      )
    samples = samples[:, [channel]]
  if not samples.size:
    raise AudioError(name, 'has no samples', kind)
  if not exact and not np.all(np.isfinite(samples)):
    raise AudioError(name, 'has samples that are not finite', kind)
  waveform, done = _convert(samples, rate_hz=rate_hz, kind=kind)
  if not waveform.size:
    raise AudioError(name, 'has no samples', 'less than one at 16 kHz')
  if conversions is not None:
    conversions.update(done)
  return waveform


def encode(waveform: np.ndarray, *, encoding: str) -> bytes:
  """Returns the bytes that a record stores of a waveform.

  Args:
    waveform: int16 [N], 16 kHz mono, N at least 1.
    encoding: One of `ENCODINGS`.

  Raises:
    ValueError: If `waveform` is not int16 [N] with N at least 1, or `encoding`
      is unknown.
  """
  checks.one_of(ENCODINGS, encoding=encoding)
  if waveform.dtype != np.int16 or waveform.ndim != 1 or not waveform.size:
    raise ValueError(
        'waveform must be int16 [N] with N at least 1, found'
        f' {waveform.dtype} {list(waveform.shape)}.'
    )
  if encoding == 'pcm':
    return waveform.astype('<i2', copy=False).tobytes()
  buffer = io.BytesIO()
  soundfile.write(
      buffer, waveform, SAMPLE_RATE_HZ, format='FLAC', subtype='PCM_16'
  )
  return buffer.getvalue()


def _convert(
    samples: np.ndarray, *, rate_hz: int, kind: str
) -> tuple[np.ndarray, list[str]]:
  """int16 or float64 [N, channels] to int16 [N] at 16 kHz, and what it took."""
  exact = samples.dtype == np.int16
  num_channels = samples.shape[1]
  if exact and num_channels == 1 and rate_hz == SAMPLE_RATE_HZ:
    return samples[:, 0], []
  done = [] if exact else [f'files in {kind} were rounded to 16 bits']
  waveform = samples.astype(np.float64) / (2**15 if exact else 1)
  if num_channels > 1:
    done.append(f'files of {num_channels} channels were averaged to one')
  waveform = waveform.mean(axis=1)
  if rate_hz != SAMPLE_RATE_HZ:
    done.append(f'files of {rate_hz} Hz were resampled to {SAMPLE_RATE_HZ} Hz')
    waveform = soxr.resample(
        waveform.astype(np.float32), rate_hz, SAMPLE_RATE_HZ, quality='HQ'
    )
  rounded = np.clip(np.rint(waveform * 2**15), -(2**15), 2**15 - 1)
  return rounded.astype(np.int16), done


def _bounds(
    name: str,
    f: soundfile.SoundFile,
    start_sec: float | None,
    duration_sec: float | None,
) -> tuple[int, int]:
  """Where a part begins and ends in the samples of a file."""
  if start_sec is None:
    return 0, f.frames
  start, stop = round(start_sec * f.samplerate), f.frames
  if duration_sec is not None:
    stop = round((start_sec + duration_sec) * f.samplerate)
  tolerance = round(_PART_TOLERANCE_SEC * f.samplerate)
  if stop > f.frames + tolerance or start >= min(stop, f.frames):
    raise AudioError(
        name,
        'ends before a part of it',
        f'{f.frames / f.samplerate:.2f} s, the part from {start_sec:.2f} s to '
        f'{stop / f.samplerate:.2f} s',
    )
  return start, min(stop, f.frames)


def _check_length(
    name: str,
    f: soundfile.SoundFile,
    *,
    header: bytes,
    num_read: int,
    expected: int,
) -> None:
  """Raises AudioError if the file is shorter than its header says."""
  truncated = functools.partial(AudioError, name, 'is truncated')
  tolerance = _MP3_TOLERANCE if f.subtype.startswith('MPEG') else 0
  if num_read < expected - tolerance:
    raise truncated(f'{num_read} of {expected} samples')
  info = f.extra_info
  for declared, actual in _DECLARED_BYTES.findall(info):
    if int(actual) < int(declared) < _UNKNOWN_LENGTH:
      raise truncated(f'{actual} of {declared} bytes')
  if any(sign in info for sign in _OGG_TRUNCATED):
    raise truncated('the stream does not end')
  if f.format == 'NIST':
    match = _DECLARED_SAMPLES.search(header)
    if match and f.frames < int(match.group(1)):
      raise truncated(f'{f.frames} of {int(match.group(1))} samples')
