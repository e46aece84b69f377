"""Utterances of a corpus, and their encoding.

`encode` reads an utterance's audio, converts and encodes it. A long recording
is cut at silences into records of bounded length: stretches of voice that
follow each other are joined, with the silence between them, as long as the
record stays within the bound; silence between records is left out. A stretch
longer than the bound is cut into equal parts.

Loads no TensorFlow, so that processes that encode start fast.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import hashlib
import math
import types
from typing import Any, NamedTuple

import numpy as np

from tff_asr import files
from tff_asr.data import audio
from tff_asr.features import log_mel

Interval = tuple[int, int]
# As `tff_asr.data.speakers` takes them; that module loads TensorFlow.
Attributes = Mapping[str, Mapping[str, frozenset[str]]]


@dataclasses.dataclass(frozen=True)
class Cutting:
  """Rules for cutting a long recording into records.

  Attributes:
    max_sec: Records are at most this long.
    activity_path: A JSON file; its `voice_activity` lists [start, end] in
      seconds. None cuts without it.
  """

  max_sec: float
  activity_path: str | None = None


@dataclasses.dataclass(frozen=True)
class Clip:
  """Part of a recording.

  Attributes:
    path: The audio file.
    start_sec: Where the part begins; None: the whole file.
    duration_sec: Its length; None: to the end.
    channels: The channels to average, from 0; None averages all.
    sample_rate_hz: The file's rate, if stated; see `audio.read`.
  """

  path: str
  start_sec: float | None = None
  duration_sec: float | None = None
  channels: tuple[int, ...] | None = None
  sample_rate_hz: int | None = None

  def read(self, conversions: collections.Counter[str]) -> np.ndarray:
    """As `audio.read`: int16 [N] at 16 kHz, or `audio.AudioError`."""
    return audio.read(
        self.path,
        start_sec=self.start_sec,
        duration_sec=self.duration_sec,
        channels=self.channels,
        sample_rate_hz=self.sample_rate_hz,
        conversions=conversions,
    )


@dataclasses.dataclass(frozen=True)
class Utterance:
  """One utterance to write.

  Attributes:
    client_id: The speaker.
    utterance_id: Unique within the client.
    transcript: Transcript in the characters of the tokens; None where the
      corpus has none.
    audio: The audio file's path, part of a recording, or a function that
      returns int16 [N] at 16 kHz mono and may raise `audio.AudioError`.
      A `functools.partial` of a module's function runs in other processes.
    changes: Kinds of changes that were made to the transcript, each completing
      the sentence '3 transcripts ...'.
    cutting: Cuts the recording into several records, ID-0000 and so on.
  """

  client_id: str
  utterance_id: str
  transcript: str | None
  audio: str | Clip | Callable[[], np.ndarray]
  changes: Sequence[str] = ()
  cutting: Cutting | None = None


class Problem(NamedTuple):
  """A reason why something is left out.

  Attributes:
    client_id: Its speaker; '' if that is not known.
    utterance_id: What is left out.
    reason: The kind of problem in few words, the same for all such.
    detail: One line that names file and cause.
  """

  client_id: str
  utterance_id: str
  reason: str
  detail: str


class Listing(NamedTuple):
  """Contents of a split of a corpus.

  Attributes:
    utterances: What to write.
    problems: What there is besides and cannot be written.
    attributes: What the corpus says of its speakers; also of others, maybe.
    examples: A change of a transcript by its kind, for messages.
  """

  utterances: Sequence[Utterance]
  problems: Sequence[Problem] = ()
  attributes: Attributes = types.MappingProxyType({})
  examples: Mapping[str, str] = types.MappingProxyType({})


class Encoded(NamedTuple):
  """One record's part of an utterance.

  Attributes:
    suffix: What its id has after the utterance's; '' if it is not cut.
    content: As `audio.encode` gives it.
    num_samples: Length of its waveform.
    fingerprint: 63 bits, equal for equal samples; `SILENCE` if all samples are
      the same, because such records are equal without being copies.
  """

  suffix: str
  content: bytes
  num_samples: int
  fingerprint: int


class Outcome(NamedTuple):
  """What encoding an utterance returned.

  Attributes:
    records: Empty if it is left out.
    reason: Why it is left out; '' if it is not.
    detail: The same as one line that names the file.
    changes: How often each kind of change was made to it.
  """

  records: Sequence[Encoded] = ()
  reason: str = ''
  detail: str = ''
  changes: Mapping[str, int] = {}


SILENCE = -1

CRASHED = Outcome(
    reason='crashes its decoder',
    detail='its decoder crashed; check the file with another program.',
)
"""The outcome of an utterance if its decoder crashed the process."""


def gather_attributes(
    names: Sequence[str], rows: Iterable[tuple[str, Mapping[str, str]]]
) -> Attributes:
  """Gathers the attributes of speakers from rows.

  Args:
    names: The attributes that the corpus has, also if no row says one.
    rows: Clients, and values by attribute; an empty one says nothing. Tabs,
      line ends and other control characters become spaces, runs of them one.
  """
  stated = {name: collections.defaultdict(frozenset) for name in names}
  for client_id, values in rows:
    for name in names:
      characters = values.get(name, '')
      printable = (c if c.isprintable() else ' ' for c in characters)
      value = ' '.join(''.join(printable).split())
      if value:
        stated[name][client_id] |= {value}
  return {name: dict(by_client) for name, by_client in stated.items()}


def encode(
    utterance: Utterance,
    *,
    encoding: str,
    max_utterance_sec: float | None = None,
) -> Outcome:
  """Reads, converts and encodes one utterance, or gives the reason not to.

  Args:
    utterance: What to read.
    encoding: One of `audio.ENCODINGS`.
    max_utterance_sec: What is longer is left out; None sets no limit.
  """
  name = f'utterance {utterance.utterance_id} of client {utterance.client_id}'
  changes = collections.Counter()
  try:
    if utterance.transcript is not None and not utterance.transcript.strip():
      raise audio.AudioError(name, 'has an empty transcript', 'no letters')
    if callable(utterance.audio):
      waveform = utterance.audio()
    elif isinstance(utterance.audio, Clip):
      waveform = utterance.audio.read(changes)
    else:
      waveform = audio.read(utterance.audio, conversions=changes)
    pieces = [('', waveform)]
    if utterance.cutting is not None:
      pieces = _pieces(utterance.cutting, waveform, changes=changes)
      if not pieces:
        raise audio.AudioError(name, 'has no voice', 'by its JSON file')
    seconds = len(waveform) / audio.SAMPLE_RATE_HZ
    if max_utterance_sec is not None and utterance.cutting is None:
      if seconds > max_utterance_sec:
        raise audio.AudioError(
            name, f'is longer than {max_utterance_sec:g} s', f'{seconds:.1f} s'
        )
    # Its text would be learnt from nothing.
    if utterance.transcript and np.all(waveform == waveform[0]):
      raise audio.AudioError(name, 'is silent', f'{seconds:.1f} s of it')
  except audio.AudioError as e:
    return Outcome(reason=e.reason, detail=str(e))
  changes.update(f'transcripts {kind}' for kind in utterance.changes)
  return Outcome(
      records=[
          Encoded(
              suffix,
              audio.encode(piece, encoding=encoding),
              len(piece),
              _fingerprint(piece),
          )
          for suffix, piece in pieces
      ],
      changes=changes,
  )


def _fingerprint(waveform: np.ndarray) -> int:
  """`Encoded.fingerprint` of int16 [N], N at least 1."""
  # Constant audio has no content by which to know it again.
  if np.all(waveform == waveform[0]):
    return SILENCE
  # Little-endian, so that all machines agree.
  samples = waveform.astype('<i2', copy=False).tobytes()
  # 63 bits fit int64; two of 10^6 recordings agree with chance 10^-7.
  return int.from_bytes(hashlib.sha256(samples).digest()[:8]) >> 1


def parse_activity(metadata: Mapping[str, Any]) -> list[Interval] | None:
  """Returns the stretches of voice of a recording, in samples.

  Args:
    metadata: A Libri-Light JSON file's content; `voice_activity` is a list of
      [start, end] in seconds.

  Returns:
    Intervals in order of time; None if there is no `voice_activity`.

  Raises:
    ValueError: If it is not an object, or `voice_activity` is not a list of
      pairs of finite numbers in order.
  """
  if not isinstance(metadata, Mapping):
    raise ValueError(f'it must hold an object, found {type(metadata).__name__}')
  stretches = metadata.get('voice_activity')
  if stretches is None:
    return None
  try:
    intervals = [
        (round(start * audio.SAMPLE_RATE_HZ), round(end * audio.SAMPLE_RATE_HZ))
        for start, end in stretches
    ]
  except (TypeError, ValueError, OverflowError) as e:
    raise ValueError(f'voice_activity must list [start, end] ({e})') from e
  before = 0
  for start, end in intervals:
    if not before <= start <= end:
      raise ValueError(
          f'voice_activity must be in order of time, found {start} to {end}'
          f' samples after {before}'
      )
    before = end
  return intervals


def cut(
    num_samples: int,
    *,
    max_samples: int,
    activity: Sequence[Interval] | None,
) -> list[Interval]:
  """Returns the records of a recording as [start, end) in samples.

  Args:
    num_samples: Its length.
    max_samples: Most samples of a record, at least 1.
    activity: Its stretches of voice, in order; None for one from end to end.
  """
  if activity is None:
    activity = [(0, num_samples)]
  records: list[Interval] = []
  current: Interval | None = None
  for start, end in activity:
    # JSON rounds times, so the last one may lie beyond the end.
    start, end = min(start, num_samples), min(end, num_samples)
    if end == start:
      continue
    if current is not None and end - current[0] <= max_samples:
      current = current[0], end
      continue
    if current is not None:
      records.extend(_split(*current, max_samples))
    current = start, end
  if current is not None:
    records.extend(_split(*current, max_samples))
  return records


def _pieces(
    how: Cutting,
    waveform: np.ndarray,
    *,
    changes: collections.Counter[str],
) -> list[tuple[str, np.ndarray]]:
  """Suffixes and pieces of a recording."""
  activity = None
  if how.activity_path is not None:
    try:
      content = files.parse_json(files.read(how.activity_path))
      activity = parse_activity(content)
    except (OSError, ValueError) as e:
      raise audio.AudioError(
          how.activity_path, 'has no readable JSON file', str(e)
      ) from e
  if activity is None:
    changes['files without voice activity were cut at equal lengths'] += 1
  max_samples = log_mel.samples_of_seconds(how.max_sec)
  bounds = cut(
      len(waveform), max_samples=max_samples, activity=activity
  )
  left = len(waveform) - sum(end - start for start, end in bounds)
  if left:
    kind = 'seconds without voice were left out'
    changes[kind] += left / audio.SAMPLE_RATE_HZ
  return [
      (f'-{i:04d}', waveform[start:end])
      for i, (start, end) in enumerate(bounds)
  ]


def _split(start: int, end: int, max_samples: int) -> list[Interval]:
  """Equal parts of at most max_samples."""
  # The fewest parts within the bound.
  count = math.ceil((end - start) / max_samples)
  edges = [start + (end - start) * i // count for i in range(count + 1)]
  return list(zip(edges, edges[1:]))
