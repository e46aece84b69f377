"""One utterance's audio to what its records store. Loads no TensorFlow."""

import collections
from collections.abc import Mapping, Sequence
import json
from typing import NamedTuple

import numpy as np

from data_tools import cutting
from data_tools import utterances
from tff_asr.data import audio
from tff_asr.data import encodings


class Encoded(NamedTuple):
  """One record's part of an utterance.

  Attributes:
    suffix: What its id has after the utterance's; '' if it is not cut.
    content: As `encodings.encode` gives it.
    num_samples: Length of its waveform.
  """

  suffix: str
  content: bytes
  num_samples: int


class Outcome(NamedTuple):
  """What became of an utterance.

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


# What an utterance gives whose decoding ends the process, by function.
CRASHED = {
    'encode': Outcome(
        reason='ends the program that decodes it',
        detail='its decoder crashed; check the file with another program.',
    ),
    'measure': 0.0,
}


def encode(
    utterance: utterances.Utterance,
    *,
    encoding: str,
    max_utterance_sec: float | None = None,
) -> Outcome:
  """Reads, converts and encodes one utterance; what cannot be used is told.

  Args:
    utterance: What to read.
    encoding: One of `encodings.ENCODINGS`.
    max_utterance_sec: What is longer is left out; None sets no limit.
  """
  name = f'utterance {utterance.utterance_id} of client {utterance.client_id}'
  conversions = audio.Conversions()
  try:
    if utterance.transcript is not None and not utterance.transcript.strip():
      raise audio.AudioError(name, 'has an empty transcript', 'no letters')
    if callable(utterance.audio):
      waveform = utterance.audio()
    else:
      waveform = audio.read(utterance.audio, conversions=conversions)
    pieces = [('', waveform)]
    if utterance.cutting is not None:
      pieces = _cut(utterance.cutting, waveform, conversions=conversions)
      if not pieces:
        raise audio.AudioError(name, 'has no voice', 'by its JSON file')
    seconds = len(waveform) / audio.SAMPLE_RATE_HZ
    if max_utterance_sec is not None and utterance.cutting is None:
      if seconds > max_utterance_sec:
        raise audio.AudioError(
            name, f'is longer than {max_utterance_sec:g} s', f'{seconds:.1f} s'
        )
  except audio.AudioError as e:
    return Outcome(reason=e.reason, detail=str(e))
  changes = collections.Counter(conversions.counts())
  changes.update(f'transcripts {kind}' for kind in utterance.changes)
  return Outcome(
      records=[
          Encoded(
              suffix, encodings.encode(piece, encoding=encoding), len(piece)
          )
          for suffix, piece in pieces
      ],
      changes=changes,
  )


def measure(utterance: utterances.Utterance) -> float:
  """Returns an utterance's seconds by its header; 0 if it cannot be read."""
  if callable(utterance.audio):
    return len(utterance.audio()) / audio.SAMPLE_RATE_HZ
  return audio.duration_sec(utterance.audio)


def _cut(
    how: utterances.Cutting,
    waveform: np.ndarray,
    *,
    conversions: audio.Conversions,
) -> list[tuple[str, np.ndarray]]:
  """Suffixes and pieces of a recording."""
  activity = None
  if how.activity_path is not None:
    try:
      with open(how.activity_path, encoding='utf-8') as f:
        activity = cutting.parse_activity(json.load(f))
    except (OSError, ValueError) as e:
      raise audio.AudioError(
          how.activity_path, 'has no readable JSON file', str(e)
      ) from e
  if activity is None:
    conversions.add('without voice activity were cut at equal lengths')
  max_samples = int(how.max_sec * audio.SAMPLE_RATE_HZ)
  bounds = cutting.cut(
      len(waveform), max_samples=max_samples, activity=activity
  )
  left = len(waveform) - sum(end - start for start, end in bounds)
  conversions.add_seconds('without voice were left away', left)
  return [
      (f'-{i:04d}', waveform[start:end])
      for i, (start, end) in enumerate(bounds)
  ]
