"""Transcribes audio files and folders to text, JSON or SRT subtitles."""

import collections
from collections.abc import Iterator, Mapping, Sequence
import itertools
import json
import os
import sys
from typing import Optional

import numpy as np

from tff_asr import checks
from tff_asr import files
from tff_asr.data import audio
from tff_asr.programs import progress as progress_lib
from tff_asr.recognition import recognizer as recognizer_lib

FORMATS = ('text', 'json', 'srt')

# Files of folders that are read; other files, such as transcripts, are not.
_SUFFIXES = (
    '.3gp', '.aac', '.ac3', '.aif', '.aifc', '.aiff', '.amr', '.au', '.caf',
    '.flac', '.gsm', '.m4a', '.mkv', '.mov', '.mp3', '.mp4', '.oga', '.ogg',
    '.opus', '.rf64', '.snd', '.sph', '.w64', '.wav', '.webm', '.wma',
)
_EACH = 'each'
_ENDINGS = {'text': '.txt', 'json': '.json', 'srt': '.srt'}
# A subtitle ends at a pause, or before it is too long to read.
_PAUSE_SEC = 0.8
_MAX_CUE_SEC = 6.0
# Two lines of a subtitle.
_MAX_CUE_CHARACTERS = 80


def transcribe(
    paths: Sequence[str],
    *,
    recognizer: recognizer_lib.Recognize,
    output_format: str = 'text',
    output_dir: Optional[str] = None,
    channel: Optional[str] = None,
) -> Optional[str]:
  """Transcribes audio files.

  Args:
    paths: Files, and folders, in which files with an ending of audio are read.
    recognizer: Transcribes the waveforms; see `recognizer.Recognize`.
    output_format: 'text' (for several files one line each: path, tab and text),
      'json' (a list of objects: file, seconds, text, words with start_sec,
      end_sec and confidence, language if the decoder finds one, and
      alternatives with score if there are several)
      or 'srt'.
    output_dir: Receives one file per audio file, in the same subfolders;
      existing ones are replaced. None: the text is returned.
    channel: The channel to take, from '0', or 'each' for a transcript of each;
      None averages them, which one line on standard error says.

  Returns:
    The text, or None with an output_dir.

  Raises:
    ValueError: A path does not exist, a folder contains no audio, or an
      argument is wrong; nothing is transcribed.
    UnreadableError: Files could not be read; all others are transcribed.
  """
  checks.one_of(FORMATS, output_format=output_format)
  if channel not in (None, _EACH) and not channel.isdecimal():
    raise ValueError(
        f'channel must be a number from 0, or {_EACH}, found {channel!r}.'
    )
  stems = _find_audio(paths)
  if output_dir is not None:
    # Before transcribing, which may take hours.
    checks.output_folders(output_dir=output_dir)
    _check_stems(stems)
  elif output_format == 'srt' and (len(stems) > 1 or channel == _EACH):
    raise ValueError('each file and channel needs an SRT: give --output_dir.')
  # Collected: one unreadable file must not stop the others.
  errors, done, conversions = [], [], collections.Counter()
  with progress_lib.Progress(
      description='transcribe', total=len(stems), unit='file'
  ) as progress:
    waveforms = _waveforms(
        stems, errors, channel=channel, conversions=conversions
    )
    for recognition in recognizer(waveforms):
      progress.update()
      if output_dir is None:
        done.append(recognition)
        continue
      path = os.path.join(
          output_dir, stems[recognition.name] + _ENDINGS[output_format]
      )
      # The subfolders of the recordings are repeated in output_dir.
      os.makedirs(os.path.dirname(path), exist_ok=True)
      files.write_text(path, render([recognition], output_format=output_format))
  if averaged := sum(n for k, n in conversions.items() if 'averaged' in k):
    sys.stderr.write(
        f'The channels of {averaged} files were averaged; if they are people '
        f'of a call, --channel=0, 1 or {_EACH} keeps them apart.\n'
    )
  text = None
  if output_dir is None and (done or not errors):
    text = render(done, output_format=output_format, named=len(stems) > 1)
  if errors:
    raise UnreadableError(text, errors)
  return text


class UnreadableError(checks.Problems):
  """Files that could not be read; all others were transcribed.

  Attributes:
    text: The text that `transcribe` would have returned for the others.
  """

  def __init__(self, text: Optional[str], errors: Sequence[Exception]):
    super().__init__(*map(str, errors))
    self.text = text


def _find_audio(paths: Sequence[str]) -> dict[str, str]:
  """Lists files, and the audio files in folders, sorted within each folder.

  Hidden files in folders are left out.

  Returns:
    By path, the file's path without ending, relative to the folder given.

  Raises:
    ValueError: A path is missing, a folder contains no audio file, or a file is
      found twice.
  """
  errors, found = [], {}
  for path in paths:
    if os.path.isdir(path):
      folder = path
      inside = sorted(
          os.path.join(parent, name)
          for parent, _, names in os.walk(path)
          for name in names
          if name.lower().endswith(_SUFFIXES) and not name.startswith('.')
      )
      if not inside:
        errors.append(ValueError(f'{path} contains no audio file.'))
    else:
      folder, inside = os.path.dirname(path), [path]
      if not os.path.exists(path):
        errors.append(ValueError(f'{path} does not exist.'))
    for each in inside:
      # A folder may be given together with a file in it.
      if each in found:
        errors.append(ValueError(f'{each} is given more than once.'))
      found[each] = os.path.splitext(os.path.relpath(each, folder or '.'))[0]
  checks.raise_errors(errors)
  return found


def render(
    recognitions: Sequence[recognizer_lib.Recognition],
    *,
    output_format: str,
    named: bool = False,
) -> str:
  """Renders transcripts, as text that ends with a newline.

  Args:
    recognitions: The transcripts of one or several files.
    output_format: As in `transcribe`; SRT takes one file.
    named: Whether lines of text begin with the file's path.
  """
  checks.one_of(FORMATS, output_format=output_format)
  if output_format == 'json':
    values = [
        {
            'file': each.name,
            'seconds': round(each.seconds, 3),
            'text': each.text,
            'words': [
                {
                    'text': word.text,
                    'start_sec': round(word.start_sec, 3),
                    'end_sec': round(word.end_sec, 3),
                    'confidence': round(word.confidence, 3),
                }
                for word in each.words
            ],
        }
        | ({'language': each.language} if each.language else {})
        | _alternatives(each)
        for each in recognitions
    ]
    # Letters as they are: transcripts are read by people, too.
    return json.dumps(values, indent=1, ensure_ascii=False) + '\n'
  if output_format == 'srt':
    # Times start at 0 in each recording.
    (only,) = recognitions
    return _srt(only.words)
  return ''.join(
      f'{each.name}\t{each.text}\n' if named else f'{each.text}\n'
      for each in recognitions
  )


def _alternatives(
    recognition: recognizer_lib.Recognition,
) -> dict[str, list[dict[str, str | float]]]:
  """Returns the field of alternatives, if there are several."""
  if len(recognition.alternatives) < 2:
    return {}
  return {
      'alternatives': [
          {'text': each.text, 'score': round(each.score, 3)}
          for each in recognition.alternatives
      ]
  }


def _waveforms(
    stems: dict[str, str],
    errors: list[Exception],
    *,
    channel: Optional[str],
    conversions: collections.Counter[str],
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields names and waveforms.

  Args:
    stems: See `_find_audio`; receives those of channels.
    errors: Receives those of other files.
    channel: See `transcribe`.
    conversions: See `audio.read`.
  """
  for path in [*stems]:
    try:
      if channel is None:
        yield path, audio.read(path, conversions=conversions)
        continue
      for number in itertools.count() if channel == _EACH else [int(channel)]:
        waveform = audio.read(path, channels=[number])
        suffix = f'-channel-{number}' if channel == _EACH else ''
        stems[path + suffix] = stems[path] + suffix
        yield path + suffix, waveform
    except audio.AudioError as e:
      # Each channel was read, up to the one that does not exist.
      if channel != _EACH or e.reason != audio.NO_CHANNEL or not number:
        errors.append(e)


def _check_stems(stems: Mapping[str, str]) -> None:
  """Raises ValueError if two files would be written to one transcript."""
  by_stem = {}
  for path, stem in stems.items():
    other = by_stem.setdefault(stem, path)
    if other != path:
      raise ValueError(
          f'{other} and {path} would both be written as {stem}: give them in '
          'separate calls.'
      )


def _srt(words: Sequence[recognizer_lib.Word]) -> str:
  """Formats words as numbered subtitles."""
  cues = []
  for word in words:
    if cues and _belongs_to(cues[-1], word):
      cues[-1].append(word)
    else:
      cues.append([word])
  blocks = [
      f'{number}\n{_time(cue[0].start_sec)} --> {_time(cue[-1].end_sec)}\n'
      f'{" ".join(word.text for word in cue)}\n'
      for number, cue in enumerate(cues, 1)
  ]
  return '\n'.join(blocks)


def _belongs_to(
    cue: Sequence[recognizer_lib.Word], word: recognizer_lib.Word
) -> bool:
  """Returns whether a word belongs to the last subtitle."""
  characters = sum(len(each.text) + 1 for each in cue) + len(word.text)
  return (
      word.start_sec - cue[-1].end_sec <= _PAUSE_SEC
      and word.end_sec - cue[0].start_sec <= _MAX_CUE_SEC
      and characters <= _MAX_CUE_CHARACTERS
  )


def _time(seconds: float) -> str:
  """Formats a time as SRT does: 01:02:03,456."""
  # Rounded first, so that 59.9996 s carries over to the next minute.
  milliseconds = round(1000 * seconds)
  minutes, milliseconds = divmod(milliseconds, 60_000)
  hours, minutes = divmod(minutes, 60)
  return (
      f'{hours:02}:{minutes:02}:{milliseconds // 1000:02},'
      f'{milliseconds % 1000:03}'
  )
