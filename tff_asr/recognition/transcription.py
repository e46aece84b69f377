"""Transcribes audio files and folders to text, JSON or SRT subtitles."""

from collections.abc import Iterator, Sequence
import json
import os
from typing import NamedTuple, Optional

from absl import logging
import numpy as np

from tff_asr import checks
from tff_asr import files
from tff_asr.data import audio
from tff_asr.programs import progress as progress_lib
from tff_asr.recognition import recognizer as recognizer_lib

FORMATS = ('text', 'json', 'srt')

# A file in a folder that has one of these and cannot be read is an error.
_SUFFIXES = (
    '.aac', '.aif', '.aiff', '.amr', '.au', '.caf', '.flac', '.gsm', '.m4a',
    '.mp3', '.oga', '.ogg', '.opus', '.snd', '.sph', '.w64', '.wav', '.webm',
    '.wma',
)
_ENDINGS = {'text': '.txt', 'json': '.json', 'srt': '.srt'}
# A subtitle ends at a pause, or before it is too long to read.
_PAUSE_SEC = 0.8
_MAX_CUE_SEC = 6.0
_MAX_CUE_CHARACTERS = 80


class Source(NamedTuple):
  """A file to transcribe.

  Attributes:
    path: Its path.
    stem: Its path without ending, relative to the folder given.
    is_given: Whether the file was given, and not its folder.
  """

  path: str
  stem: str
  is_given: bool


def transcribe(
    paths: Sequence[str],
    *,
    recognizer: recognizer_lib.Recognizer,
    output_format: str = 'text',
    output_dir: Optional[str] = None,
) -> Optional[str]:
  """Transcribes audio files.

  Args:
    paths: Files, and folders of audio files, which are recognised by content
      (`data.audio`); a warning names the others.
    recognizer: The model.
    output_format: 'text' (for several files one line each: path, tab and text),
      'json' (a list of objects: file, seconds, text, and words with start_sec
      and end_sec) or 'srt'.
    output_dir: Receives one file per audio file, in the same subfolders;
      existing ones are replaced. None: the text is returned.

  Returns:
    The text, or None with an output_dir.

  Raises:
    ValueError: A path does not exist, a folder contains no audio, or an
      argument is wrong; nothing is transcribed.
    UnreadableError: Files could not be read; all others are transcribed.
  """
  checks.one_of(FORMATS, output_format=output_format)
  sources = find(paths)
  if output_dir is not None:
    checks.output_folders(output_dir=output_dir)
    _check_stems(sources)
  elif output_format == 'srt' and len(sources) > 1:
    raise ValueError(
        f'{len(sources)} files need one SRT each: give an --output_dir.'
    )
  # Collected: one unreadable file must not stop the others.
  errors, others = [], []
  stems = {source.path: source.stem for source in sources}
  done = []
  with progress_lib.Progress(
      description='transcribe', total=len(sources), unit='file'
  ) as progress:
    for recognition in recognizer(_waveforms(sources, errors, others)):
      progress.update()
      if output_dir is None:
        done.append(recognition)
      else:
        path = os.path.join(
            output_dir, stems[recognition.name] + _ENDINGS[output_format]
        )
        # The subfolders of the recordings are repeated in output_dir.
        os.makedirs(os.path.dirname(path), exist_ok=True)
        files.write_text(
            path, render([recognition], output_format=output_format)
        )
  _report_others(others, num_files=len(sources))
  text = None
  if output_dir is None and (done or not errors):
    text = render(done, output_format=output_format, named=len(sources) > 1)
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


def find(paths: Sequence[str]) -> list[Source]:
  """Lists files, and the files in folders, sorted within each folder.

  Hidden files in folders are left out.

  Raises:
    ValueError: A path is missing, a folder is empty, or a file is found twice.
  """
  errors, found = [], {}
  for path in paths:
    if os.path.isdir(path):
      inside = sorted(
          os.path.join(folder, name)
          for folder, _, names in os.walk(path)
          for name in names
          if not name.startswith('.')
      )
      sources = [
          Source(each, _stem(os.path.relpath(each, path)), False)
          for each in inside
      ]
      if not sources:
        errors.append(ValueError(f'{path} contains no file.'))
    elif os.path.exists(path):
      stem = os.path.splitext(os.path.basename(path))[0]
      sources = [Source(path, stem, True)]
    else:
      sources = []
      errors.append(ValueError(f'{path} does not exist.'))
    for source in sources:
      # A folder may be given together with a file in it.
      if found.setdefault(source.path, source) is not source:
        errors.append(ValueError(f'{source.path} is given more than once.'))
  checks.raise_errors(errors)
  return list(found.values())


def _stem(name: str) -> str:
  """Removes the ending of an audio file; other files keep theirs."""
  stem, ending = os.path.splitext(name)
  return stem if ending.lower() in _SUFFIXES else name


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
                }
                for word in each.words
            ],
        }
        for each in recognitions
    ]
    return json.dumps(values, indent=1, ensure_ascii=False) + '\n'
  if output_format == 'srt':
    (only,) = recognitions
    return _srt(only.words)
  return ''.join(
      f'{each.name}\t{each.text}\n' if named else f'{each.text}\n'
      for each in recognitions
  )


def _waveforms(
    sources: Sequence[Source], errors: list[Exception], others: list[str]
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields names and waveforms of the files that can be read.

  Args:
    sources: All files.
    errors: Receives the errors of files that were given, or are named as audio.
    others: Receives the paths of other files, which contain no audio.
  """
  for source in sources:
    try:
      yield source.path, audio.read(source.path)
    except audio.AudioError as e:
      # A file that the user names, or that claims to be audio, must not be
      # skipped in silence.
      if source.is_given or source.path.lower().endswith(_SUFFIXES):
        errors.append(e)
      else:
        others.append(source.path)


def _report_others(paths: Sequence[str], *, num_files: int) -> None:
  """Warns of files without audio; ValueError if there are no other files."""
  if not paths:
    return
  shown = ', '.join(paths[:5]) + (', ...' if len(paths) > 5 else '')
  if len(paths) == num_files:
    raise ValueError(f'No audio in {shown}.')
  logging.warning(
      'Left out %d of %d files in folders, which contain no audio: %s.',
      len(paths), num_files, shown,
  )


def _check_stems(sources: Sequence[Source]) -> None:
  """Raises ValueError if two files would be written to one transcript."""
  by_stem = {}
  for source in sources:
    other = by_stem.setdefault(source.stem, source)
    if other is not source:
      raise ValueError(
          f'{other.path} and {source.path} would both be written as '
          f'{source.stem}: give them in separate calls.'
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
