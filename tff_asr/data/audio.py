"""Audio files to 16 kHz mono int16, and to the bytes that a record stores.

    waveform = audio.read('clip.mp3')

`read` decodes what libsndfile recognises by content: WAV (also with mu-law,
A-law and GSM 6.10), FLAC, MP3, Ogg, NIST sphere, AIFF, CAF, AU, W64 and more.
If the program ffmpeg is installed, it decodes m4a, webm, AMR and WMA. Audio
that is already 16 kHz mono int16 is returned bit for bit. Otherwise channels
are averaged, other rates are resampled by soxr (high quality), and samples are
rounded to int16 and clipped, in this order. A file that is shorter than its own
header says raises an error; MP3 and FLAC files without a length are read to
their end.

`encode` returns the bytes that a record stores, without loss:

| encoding | content             | bytes a second   |
|----------|---------------------|------------------|
| `pcm`    | little-endian int16 | 32,000           |
| `flac`   | a FLAC file         | 13,000 to 20,000 |

TensorFlow is not imported, so that processes that encode audio start fast.

  N: samples.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import threading
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from tff_asr import checks
from tff_asr import files
from tff_asr.features import log_mel

SAMPLE_RATE_HZ = log_mel.SAMPLE_RATE_HZ
ENCODINGS = ('pcm', 'flac')
NO_CHANNEL = 'has no such channel'

# libsndfile returns these as int16 without rounding.
# 8-bit formats and mu-law and A-law codes decode to 16 bits or fewer.
_EXACT_SUBTYPES = ('PCM_16', 'PCM_S8', 'PCM_U8', 'ULAW', 'ALAW')
# libsndfile's length of an MP3 file may count the encoder's padding.
_MP3_TOLERANCE = 3 * 1152
# The length in the header of a file that was written to a pipe, and the number
# of frames that libsndfile makes of it.
_UNKNOWN_LENGTH = 0x7FFFF000
_UNKNOWN_FRAMES = 2**63 - 1
# A minute at 16 kHz: bounds the memory for files of unknown length.
_BLOCK_FRAMES = 2**20
# One of these stands in the first frame of an MP3 file that states its length.
# The frame follows the ID3 tag, which has a header of 10 bytes.
_MP3_LENGTHS = (b'Xing', b'Info', b'VBRI')
_MP3_BEGIN = re.compile(rb'ID3|\xff[\xe0-\xff]')
_MP3_FRAME_BYTES = 1441
_ID3_BYTES = 10
_MP3_MESSAGE = re.compile(rb'Note: |Warning: |\[src/libmpg123|\s*$')
# Standard error is the whole process's: one thread redirects it at a time.
_stderr_lock = threading.Lock()
# Raw GSM 6.10 has frames of 33 bytes, each starting with the same four bits.
_GSM_BYTES, _GSM_MAGIC = 33, 0xD
_DECLARED_BYTES = re.compile(
    r'^\s*(?:data|SSND)\s*: (\d+) \(should be (\d+)\)', re.MULTILINE
)
_DECLARED_SAMPLES = re.compile(rb'^sample_count -i (\d+)', re.MULTILINE)
# Ten hours at 16 kHz in int16 and float64 are 6 GB: longer recordings, or
# headers that claim more, would fill the memory.
_MAX_SEC = 10 * 3600.0
_MAX_SAMPLES = int(_MAX_SEC) * SAMPLE_RATE_HZ
# Most samples of a file for each sample at 16 kHz: two channels of 192 kHz.
_MAX_RATIO = 24
# Size of a NIST sphere header.
_SPHERE_BYTES = 1024
# Manifests round the times of parts, so a part may end this much too late.
_PART_TOLERANCE_SEC = 0.1
# Formats that ffmpeg may decode. None can refer to other files or addresses.
_FFMPEG_FORMATS = '3gp,aac,ac3,amr,asf,caf,m4a,matroska,mov,mp3,mp4,webm'
# Longer means that ffmpeg hangs: it decodes hours of audio in minutes.
_FFMPEG_SEC = 600
# What libsndfile's log says of an Ogg file without its last page.
_OGG_TRUNCATED = ('File ended unexpectedly', 'lacks an end-of-stream bit')


class AudioError(ValueError):
  """An audio file that cannot be used.

  Attributes:
    reason: The kind of defect in a few words, the same for all such files.
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
    channels: Sequence[int] | None = None,
    sample_rate_hz: int | None = None,
    max_sec: float = _MAX_SEC,
    conversions: collections.Counter[str] | None = None,
) -> np.ndarray:
  """Reads one audio file, or a part of it.

  Args:
    source: A path, or the bytes of a file.
    name: The file's name in error messages; by default the path.
    start_sec: Where the part starts; None reads the whole file.
    duration_sec: The part's length; None reads to the end of the file.
    channels: The channels to average, from 0; None averages all.
    sample_rate_hz: The rate that the file must have; None accepts any.
    max_sec: A longer file is refused before it is decoded; at most 10 hours.
    conversions: Counts each kind of conversion; a kind completes the sentence
      '3 ...'.

  Returns:
    int16 [N], 16 kHz mono, N at least 1.

  Raises:
    AudioError: If the file is missing, empty, not audio, damaged, truncated,
      without samples, longer than max_sec, or contains samples that are not
      finite; if its channels together have more samples than 10 hours at 16 kHz
      (or 24 times max_sec); if it ends more than 0.1 s before the part does; or
      if it lacks a channel or has another rate. The message names the file.
  """
  if name is None:
    name = 'audio' if isinstance(source, bytes) else os.fspath(source)
  samples, rate_hz, kind = _decode_source(
      source,
      name=name,
      is_part=start_sec is not None,
      decode=functools.partial(
          _decode,
          name=name,
          start_sec=start_sec,
          duration_sec=duration_sec,
          max_sec=max_sec,
      ),
  )
  # Checked after decoding: only then is the rate known for all formats.
  if sample_rate_hz not in (None, rate_hz):
    raise AudioError(
        name, 'has another sampling rate', f'{rate_hz} Hz, not {sample_rate_hz}'
    )
  if channels is not None:
    samples = _take_channels(name, samples, channels)
  if not np.all(np.isfinite(samples)):
    raise AudioError(name, 'has samples that are not finite', kind)
  waveform, steps = _convert(samples, rate_hz=rate_hz, kind=kind)
  if not waveform.size:
    raise AudioError(name, 'has no samples', kind)
  if conversions is not None:
    conversions.update(steps)
  return waveform


_Decoded = tuple[np.ndarray, int, str]
_Decode = Callable[[BinaryIO | str], _Decoded]


def _decode_source(
    source: str | os.PathLike[str] | bytes,
    *,
    name: str,
    is_part: bool,
    decode: _Decode,
) -> _Decoded:
  """Decodes a source by its content, or else by its suffix or by ffmpeg."""
  with _open(source, name=name, is_part=is_part) as file:
    try:
      return decode(file)
    except soundfile.SoundFileError as e:
      return _decode_otherwise(source, name=name, error=e, part=decode)


def _take_channels(
    name: str, samples: np.ndarray, channels: Sequence[int]
) -> np.ndarray:
  """Some columns of samples [N, channels]."""
  # NumPy would raise IndexError, which does not name the file.
  if max(channels) >= samples.shape[1]:
    raise AudioError(
        name,
        NO_CHANNEL,
        f'{max(channels)} of {samples.shape[1]}, counted from 0',
    )
  return samples[:, list(channels)]


@contextlib.contextmanager
def _open(
    source: str | os.PathLike[str] | bytes, *, name: str, is_part: bool
) -> Iterator[BinaryIO]:
  """Opens a source; raises AudioError if it is missing or empty."""
  with contextlib.ExitStack() as stack:
    try:
      if isinstance(source, bytes):
        file, size = io.BytesIO(source), len(source)
      elif is_part:  # The file may be long: do not read all of it.
        file = stack.enter_context(files.open_regular(source))
        size = os.fstat(file.fileno()).st_size
      else:
        content = files.read(source, max_bytes=8 * _MAX_SAMPLES)
        file, size = io.BytesIO(content), len(content)
    except OSError as e:
      raise AudioError(name, 'cannot be opened', e.strerror or str(e)) from e
    except ValueError as e:
      raise AudioError(name, 'is not readable audio', str(e)) from e
    if not size:
      raise AudioError(name, 'is empty', '0 bytes')
    yield file


class _ForwardFile(soundfile.SoundFile):
  """A file that is read without seeking.

  After each read soundfile seeks to the position that it has reached. That
  fails at the end of a FLAC file without a length.
  """

  def seekable(self) -> bool:
    return False


def _decode(
    file: BinaryIO | str,
    *,
    name: str,
    start_sec: float | None,
    duration_sec: float | None,
    max_sec: float,
) -> _Decoded:
  """Decodes a file, open or by its path, with libsndfile.

  Returns:
    int16 or float64 [N, channels], its rate and its format.

  Raises:
    AudioError: See `read`.
    soundfile.SoundFileError: libsndfile cannot decode it.
  """
  header = b''
  if not isinstance(file, str):
    # A NIST sphere file states its length there; see `_check_length`.
    # libsndfile does not tell this length: it gives what the file contains.
    header = file.read(_SPHERE_BYTES)
    file.seek(0)
  is_mp3 = isinstance(file, str) or _MP3_BEGIN.match(header)
  # Only for MP3: redirecting standard error serializes threads.
  quiet = _without_messages if is_mp3 else contextlib.nullcontext
  try:
    with quiet(), _ForwardFile(file) as f:
      start, stop = _bounds(name, f, start_sec, duration_sec)
      samples = _read_part(name, f, start, stop, max_sec=max_sec)
      if f.subtype.startswith('MPEG') and not _has_mp3_length(file):
        # libsndfile has guessed the length from the first frame.
        if stop == f.frames and (
            isinstance(file, str) or _num_unread(file) > _MP3_FRAME_BYTES
        ):
          raise soundfile.SoundFileRuntimeError(
              'MP3 of varying bit rate without its length'
          )
      # Without a stated length the decoded length cannot be checked.
      elif stop != _UNKNOWN_FRAMES:
        _check_length(
            name, f, header=header, num_read=len(samples), expected=stop - start
        )
      return samples, f.samplerate, f'{f.format} {f.subtype}'
  except (AudioError, soundfile.SoundFileError):
    raise
  except Exception as e:  # pylint: disable=broad-exception-caught
    # Any other error of a decoder is about this file, too.
    detail = ' '.join(str(e).split()) or type(e).__name__
    raise AudioError(name, 'is not readable audio', detail) from e


def _read_part(
    name: str, f: soundfile.SoundFile, start: int, stop: int, *, max_sec: float
) -> np.ndarray:
  """Frames from start to stop, int16 or float64 [N, channels]."""
  # float64 holds every integer format exactly.
  dtype = 'int16' if f.subtype in _EXACT_SUBTYPES else 'float64'
  max_frames = _max_frames(f, max_sec)
  # A header may claim any length: refused before memory is reserved for it.
  if stop != _UNKNOWN_FRAMES and stop - start > max_frames:
    raise AudioError(name, 'is too long', f'{stop - start:,} samples')
  # The base class's method: `_ForwardFile` says False to soundfile's read.
  # libsndfile's seeking fails in DWVW.
  skipped = start  # A file without seeking is decoded from its beginning.
  if soundfile.SoundFile.seekable(f) and not f.subtype.startswith('DWVW'):
    # A frame of MP3 needs up to 511 bytes of those before it, which are less
    # than a second.
    skipped = min(start, f.samplerate) if f.subtype.startswith('MPEG') else 0
    f.seek(start - skipped)
  if skipped:
    _read_frames(f, skipped, dtype=dtype)
  # One more shows that a file of unknown length is too long.
  samples = _read_frames(f, min(stop - start, max_frames + 1), dtype=dtype)
  if len(samples) > max_frames:
    raise AudioError(name, 'is too long', f'more than {max_frames:,} samples')
  return samples


def _max_frames(f: soundfile.SoundFile, max_sec: float) -> int:
  """The most frames of a file that are decoded."""
  # Two limits: the duration, and the samples that are held in memory before
  # channels are averaged and the rate is lowered.
  # Rounded as everywhere: 2.01 s are 32160 samples, not 32159.
  limit = log_mel.samples_of_seconds(max_sec)
  return min(
      limit * f.samplerate // SAMPLE_RATE_HZ,
      min(_MAX_RATIO * limit, _MAX_SAMPLES) // f.channels,
  )


def _memory_file() -> BinaryIO:
  """A file in memory with a descriptor; no folder has its name."""
  return open(os.memfd_create('tff_asr'), 'w+b')


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
  """Drops the messages of libmpg123, which do not name the file.

  libmpg123 writes to the process's standard error. Other messages that arrive
  there meanwhile are written afterwards.
  """
  # Not a pipe, which would block when it is full.
  with _stderr_lock, _memory_file() as held:
    stderr = os.dup(2)
    os.dup2(held.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)
      held.seek(0)
      for line in held:
        if not _MP3_MESSAGE.match(line):
          os.write(2, line)


def _decode_otherwise(
    source: str | os.PathLike[str] | bytes,
    *,
    name: str,
    error: soundfile.SoundFileError,
    part: Callable[..., tuple[np.ndarray, int, str]],
) -> tuple[np.ndarray, int, str]:
  """Decodes a file that `_decode` failed on: by its suffix, or by ffmpeg.

  Args:
    source: A path or bytes.
    name: See `read`.
    error: The error of `_decode`.
    part: `_decode` with all arguments but the file.

  Returns:
    As `_decode`.

  Raises:
    AudioError: These cannot decode it either.
  """
  # Given a path, libsndfile also uses the suffix to choose a decoder.
  if not isinstance(source, bytes) and _has_true_suffix(os.fspath(source)):
    try:
      return part(os.fspath(source))
    except soundfile.SoundFileError as e:
      error = e
  detail = str(error).rsplit('>: ', 1)[-1].rstrip('.')
  decoded = _run_ffmpeg(source)
  if decoded is None:
    detail += (
        ': install ffmpeg, which this program then uses, or convert the file, '
        'as by `ffmpeg -i FILE FILE.wav`'
    )
    raise AudioError(name, 'is not readable audio', detail) from error
  content, message = decoded
  try:
    found = part(io.BytesIO(content))
  except soundfile.SoundFileError as e:
    detail = message or detail
    raise AudioError(name, 'is not readable audio', detail) from e
  if message:  # ffmpeg also returns the part before an error.
    raise AudioError(name, 'is truncated or damaged', message)
  return found


def _has_true_suffix(path: str) -> bool:
  """Whether libsndfile can rely on a file's suffix.

  It can for MP3 files with other bytes before the first frame, and for raw GSM
  6.10 files in which each frame starts with the right bits.
  """
  suffix = os.path.splitext(path)[1].lower()
  if suffix != '.gsm':
    return suffix == '.mp3'
  frames = np.frombuffer(files.read(path, max_bytes=8 * _MAX_SAMPLES), np.uint8)
  # Headerless: without this check, any file named .gsm would be noise.
  return len(frames) % _GSM_BYTES == 0 and bool(
      np.all(frames[::_GSM_BYTES] >> 4 == _GSM_MAGIC)
  )


def _run_ffmpeg(
    source: str | os.PathLike[str] | bytes,
) -> tuple[bytes, str] | None:
  """A file as WAV by ffmpeg, and its last message; None if not installed."""
  # Searched at each call: it may be installed while a program runs.
  program = shutil.which('ffmpeg')
  if program is None:
    return None
  with contextlib.ExitStack() as stack:
    inherited = []
    if isinstance(source, bytes):
      # Not a pipe: the index of an MP4 file may stand at its end. Not on a disk
      # either: the demo keeps nothing.
      file = stack.enter_context(_memory_file())
      file.write(source)
      file.flush()
      inherited = [file.fileno()]
      path = f'/proc/self/fd/{file.fileno()}'
    else:
      path = os.path.abspath(source)
    try:
      finished = subprocess.run(
          [
              program, '-nostdin', '-v', 'error',
              # The file may come from anywhere: ffmpeg must not open network
              # addresses that are named in it.
              '-protocol_whitelist', 'file',
              '-format_whitelist', _FFMPEG_FORMATS,
              '-i', f'file:{path}',
              # All audio tracks: ffmpeg refuses to write several as WAV.
              '-map', '0:a', '-t', str(_MAX_SEC + 1), '-f', 'wav', '-',
          ],
          # ffmpeg reads commands from a terminal.
          stdin=subprocess.DEVNULL,
          capture_output=True,
          pass_fds=inherited,
          timeout=_FFMPEG_SEC,
          check=False,
      )
    except subprocess.TimeoutExpired:
      return b'', f'ffmpeg did not end in {_FFMPEG_SEC} s'
  # The last line is the error that ended it. Callers name the file.
  message = finished.stderr.decode(errors='replace')
  lines = re.sub(f'(file:)?{re.escape(path)}', '', message).strip().splitlines()
  return finished.stdout, f'ffmpeg: {lines[-1].strip(": ")}' if lines else ''


def _read_frames(
    f: soundfile.SoundFile, count: int, *, dtype: str
) -> np.ndarray:
  """Up to `count` frames [N, channels]; a file may have fewer than it says."""
  # A length that is not known must not decide how much memory is reserved.
  if f.frames != _UNKNOWN_FRAMES:
    return f.read(count, dtype=dtype, always_2d=True)
  blocks = []
  # In blocks: soundfile reserves memory for all frames that are asked for.
  while count > 0:
    blocks.append(
        f.read(min(count, _BLOCK_FRAMES), dtype=dtype, always_2d=True)
    )
    count = count - len(blocks[-1]) if len(blocks[-1]) else 0
  return np.concatenate(blocks)


def _has_mp3_length(file: BinaryIO | str) -> bool:
  """Whether an MP3 file states its length."""
  if isinstance(file, str):
    # Other bytes stand before its first frame, so look further.
    with files.open_regular(file) as opened:
      begin = opened.read(_BLOCK_FRAMES)
    return any(each in begin for each in _MP3_LENGTHS)
  position = file.tell()
  file.seek(0)
  tag = file.read(_ID3_BYTES)
  begin = 0
  if tag.startswith(b'ID3') and len(tag) == _ID3_BYTES:
    # The tag's size is four digits in base 128.
    size = functools.reduce(lambda total, byte: 128 * total + byte, tag[6:])
    begin = _ID3_BYTES + size
  file.seek(begin)
  frame = file.read(_MP3_FRAME_BYTES)
  file.seek(position)
  return any(each in frame for each in _MP3_LENGTHS)


def _num_unread(file: BinaryIO) -> int:
  """How many bytes of a file the decoder has not read."""
  position = file.tell()
  size = file.seek(0, os.SEEK_END)
  file.seek(position)
  return size - position


def encode(waveform: np.ndarray, *, encoding: str) -> bytes:
  """Returns the bytes that a record stores for a waveform.

      >>> encode(np.array([1, -2], np.int16), encoding='pcm')
      b'\\x01\\x00\\xfe\\xff'

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
  """Converts samples [N, channels] to int16 [N] at 16 kHz; names the steps."""
  exact = samples.dtype == np.int16
  num_channels = samples.shape[1]
  if exact and num_channels == 1 and rate_hz == SAMPLE_RATE_HZ:
    return samples[:, 0], []
  steps = [] if exact else [f'files in {kind} were rounded to 16 bits']
  # float64: sums of int16 samples are exact.
  waveform = samples.astype(np.float64) / (2**15 if exact else 1)
  if num_channels > 1:
    steps.append(f'files of {num_channels} channels were averaged to one')
  # Before resampling, which is the slower step.
  waveform = waveform.mean(axis=1)
  if rate_hz != SAMPLE_RATE_HZ:
    steps.append(f'files of {rate_hz} Hz were resampled to {SAMPLE_RATE_HZ} Hz')
    waveform = soxr.resample(
        waveform.astype(np.float32), rate_hz, SAMPLE_RATE_HZ, quality='HQ'
    )
  # Clipped, because resampling overshoots at loud edges, and a cast wraps.
  rounded = np.clip(np.rint(waveform * 2**15), -(2**15), 2**15 - 1)
  return rounded.astype(np.int16), steps


def _bounds(
    name: str,
    f: soundfile.SoundFile,
    start_sec: float | None,
    duration_sec: float | None,
) -> tuple[int, int]:
  """Where a part starts and stops, in frames of the file."""
  if start_sec is None:
    return 0, f.frames
  if f.frames == _UNKNOWN_FRAMES and duration_sec is None:
    return round(start_sec * f.samplerate), f.frames
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
  # Other formats state their length exactly.
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
