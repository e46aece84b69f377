"""Recordings of your own, listed in a manifest, to shards.

    python -m data_tools.manifest --manifest=recordings.tsv --output_dir=data

--manifest is one of

    FILE.tsv, .csv      a header and a row for each utterance, columns audio,
                        speaker, text, and maybe channel (from 0), offset,
                        duration or end (seconds), sampling_rate, id, gender,
                        age, accent
    FILE.jsonl, .json   the same as a JSON object on each line, as NeMo's, or as
                        a list of objects
    FILE.jsonl          lhotse's cut sets: an utterance for each supervision
    FOLDER              of Kaldi (wav.scp with plain paths, text, utt2spk, maybe
                        segments), or as Hugging Face's `datasets` saves it

each also compressed (.gz). Paths of audio are relative to the manifest, or to
--source_dir. Without NAME=FILE the speakers are divided: a tenth, at least one,
to dev, as many to test, the rest to train. corpus.gin, next to the shards, sets
their folders and alphabet for a training run.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import collections
from collections.abc import (
    Callable, Collection, Iterable, Iterator, Mapping, Sequence
)
import dataclasses
import functools
import math
import os
import re
import string
import unicodedata
from urllib import parse

from absl import flags
from absl import logging

from data_tools import conversion
from data_tools import hugging_face
from data_tools import text
from data_tools import text_files
from data_tools import utterances
from tff_asr.text import tokenizer

_MANIFEST = flags.DEFINE_list(
    'manifest',
    None,
    'What lists the recordings, or NAME=FILE for each split. Required.',
)
_TEXT = flags.DEFINE_enum(
    'text',
    'normalise',
    ['normalise', 'keep'],
    'Whether transcripts become lower-case letters without punctuation, or'
    ' stay as they are.',
)
_ALPHABET = flags.DEFINE_string(
    'alphabet',
    None,
    'The characters to keep (--text=normalise: the letters); by default those'
    ' of the first part, or first manifest.',
)

_CASING = flags.DEFINE_enum(
    'casing',
    'default',
    ['default', *text.LOWER_CASE],
    'With --text=normalise: language for lower-casing transcripts, if it has'
    ' its own rule (in Turkish and Azeri I becomes ı).',
)

_MERGE_SPEAKERS = flags.DEFINE_bool(
    'merge_speakers',
    False,
    'Whether speakers with names that differ only in case, spaces or the form'
    ' of a number (7, 007, 7.0) are one person.',
)

# What is looked for, and the names it has in manifests, the first one first.
_NAMES = {
    'audio': ('audio', 'audio_filepath', 'path', 'file', 'wav'),
    'speaker': ('speaker', 'speaker_id', 'client_id', 'spk'),
    'text': ('text', 'sentence', 'transcript', 'transcription'),
    'channel': ('channel', 'channel_selector'),
    'offset': ('offset', 'start', 'start_time'),
    'duration': ('duration',),
    'end': ('end', 'end_time'),
    'sampling_rate': ('sampling_rate', 'sample_rate'),
    'id': ('id', 'utterance_id', 'utt_id'),
}
_NEEDED = ('audio', 'speaker', 'text')
_ATTRIBUTES = ('gender', 'age', 'accent')
_NUMBERS = ('channel', 'offset', 'duration', 'end', 'sampling_rate')
# As tables of countries with a decimal comma write them.
_DECIMAL_COMMA = re.compile(r'\s*-?\d+,\d+\s*')
_NUMBER = re.compile(r'0*(\d+)(?:[.,]0+)?')
_TABLES = ('.tsv', '.csv')
_JSON_LINES = ('.jsonl', '.json')
# As training takes them (gin/data/pipeline.gin).
_MAX_UTTERANCE_SEC = 30.0
_MAX_CHANNELS = 1024
_SIDES = {'A': 0, 'B': 1}
# Above this, two speakers' parts of a file are one part.
_MAX_SHARED = 0.5
# Tables round times.
_TIME_TOLERANCE_SEC = 0.1
# A row's name in messages ('line 3') and its values by `_NAMES`; None: it is
# not a valid row.
Row = tuple[str, Mapping[str, object] | None]
# A file's path, and a row if it is an Arrow file of recordings.
Recording = tuple[str, int | None]


_BAD_CHANNEL = 'has an unusable channel (a number from 0, or a list as [0, 1])'
_MAX_SHOWN = 40
_FOREIGN = 'has no letter of the alphabet'
_SHARED = 'has the same audio as another speaker'


class _Unusable(ValueError):
  """A row that cannot be used.

  Its arguments are the reason in a few words, and what was found instead of
  what, if that helps.
  """


def list_utterances(
    path: str,
    *,
    audio_dir: str | None = None,
    others: dict[Recording, list[tuple[str, utterances.Clip]]] | None = None,
    spellings: dict[str, list[str]] | None = None,
    merges_speakers: bool = False,
) -> utterances.Listing:
  """Lists a manifest; transcripts stay as they are.

  Problems are: rows without speaker, audio or text, lines that cannot be read,
  parts, times and channels that make no sense, and rows of several speakers
  that have the same audio. Logs a warning where names of speakers differ only
  in case, spaces or the form of a number.

  Args:
    path: The manifest, a file or folder.
    audio_dir: The folder of the audio; by default that of the manifest.
    others: Speakers and clips of other manifests, by recording; gets those of
      this one.
    spellings: The names of speakers in other manifests, by what they have in
      common; gets those of this one.
    merges_speakers: Whether such speakers are one person, by the first name.

  Raises:
    ValueError: If the manifest is missing, of no known format or without a
      needed column, or names a file outside of `audio_dir` or a command.
  """
  problems: list[utterances.Problem] = []
  if os.path.isdir(path):
    is_kaldi = os.path.exists(os.path.join(path, 'wav.scp'))
    rows = _kaldi_rows(path) if is_kaldi else _arrow_rows(path)
    folder = path
  else:
    rows = _file_rows(path, problems)
    folder = os.path.dirname(path)
  root = os.path.realpath(audio_dir or folder or '.')
  locate = functools.partial(
      _locate, root=root, real=functools.cache(os.path.realpath)
  )
  spellings = {} if spellings is None else spellings
  listed, row_names, speakers = [], [], []
  for row_name, row in rows:
    # An unreadable line has no values, and becomes a problem.
    row = row or {}
    speaker = _word(row.get('speaker'))
    names = spellings.setdefault(_common_name(speaker), [])
    if speaker not in names:
      names.append(speaker)
    speaker = names[0] if merges_speakers else speaker
    try:
      listed.append(_utterance(row, speaker, locate=locate, root=root))
      row_names.append(row_name)
      speakers.append((speaker, {n: _word(row.get(n)) for n in _ATTRIBUTES}))
    except _Unusable as e:
      name = _word(row.get('id')) or row_name
      reason, *found = e.args
      detail = f'{path}, {row_name}: {": ".join([reason, *found])}.'
      problems.append(utterances.Problem(speaker, name, reason, detail))
    except ValueError as e:
      raise ValueError(f'{path}, {row_name}: {e}') from e
  if not merges_speakers:
    _warn_of_spellings(spellings, {name for name, _ in speakers}, path=path)
  _check_channels(listed, path=path)
  others = {} if others is None else others
  for utterance in listed:
    # Also across manifests: a call may be listed once for each speaker.
    others.setdefault(_recording(utterance.audio), []).append(
        (utterance.client_id, utterance.audio)
    )
  kept, shared = _leave_out_shared(listed, row_names, others=others, path=path)
  attributes = [
      name for name in _ATTRIBUTES if any(found[name] for _, found in speakers)
  ]
  return utterances.Listing(
      kept,
      problems + shared,
      utterances.gather_attributes(attributes, speakers),
  )


def _check_channels(
    listed: Sequence[utterances.Utterance], *, path: str
) -> None:
  """Raises ValueError for channels that seem to be counted from 1."""
  channels = {c for u in listed for c in u.audio.channels or ()}
  if len(channels) > 1 and channels == set(range(1, len(channels) + 1)):
    raise ValueError(
        f'{path} has channels 1 to {len(channels)} and no 0; channels count'
        ' from 0, so subtract 1.'
    )
  if channels and 0 not in channels:
    logging.warning(
        '%s has no channel 0, but %s; channels count from 0.',
        path, ', '.join(map(str, sorted(channels))),
    )


def _leave_out_shared(
    listed: Sequence[utterances.Utterance],
    row_names: Sequence[str],
    *,
    others: Mapping[Recording, Sequence[tuple[str, utterances.Clip]]],
    path: str,
) -> tuple[list[utterances.Utterance], list[utterances.Problem]]:
  """Divides utterances into those to keep and those of two speakers.

  Args:
    listed: The utterances of a manifest.
    row_names: The row of each.
    others: Speakers and clips of all manifests, by recording.
    path: The manifest.
  """
  kept, problems, num_overlaps = [], [], 0
  for utterance, row_name in zip(listed, row_names, strict=True):
    clip = utterance.audio
    shares = {
        speaker: share
        for speaker, other in others[_recording(clip)]
        if speaker != utterance.client_id
        and (share := _shared_part(clip, other)) > 0
    }
    # The speaker with whom it overlaps most.
    other = max(shares, key=shares.get, default=None)
    if other is None or shares[other] < _MAX_SHARED:
      num_overlaps += other is not None
      kept.append(utterance)
      continue
    # Either speaker's update would contain the other's voice.
    problems.append(utterances.Problem(
        utterance.client_id,
        utterance.utterance_id,
        _SHARED,
        f'{path}, {row_name}: {_SHARED}, {other!r}; give each a channel (from '
        '0), or an offset and a duration.',
    ))
  if num_overlaps:
    logging.warning(
        '%s: %d utterances overlap with those of another speaker in the same '
        'file and channel: each has both voices.', path, num_overlaps,
    )
  return kept, problems


def _recording(clip: utterances.Clip) -> Recording:
  """The recording that a clip is part of: a file, or a row of one."""
  row = clip.row if isinstance(clip, hugging_face.ArrowClip) else None
  return clip.path, row


def _shared_part(one: utterances.Clip, two: utterances.Clip) -> float:
  """Overlap of two parts of a recording over their union, in [0, 1]."""
  if None not in (one.channels, two.channels) and (
      set(one.channels).isdisjoint(two.channels)
  ):
    return 0.0
  if (one.start_sec, one.duration_sec) == (two.start_sec, two.duration_sec):
    return 1.0
  begins, ends = zip(*(
      (
          each.start_sec or 0.0,
          math.inf
          if each.duration_sec is None
          else (each.start_sec or 0.0) + each.duration_sec,
      )
      for each in (one, two)
  ))
  common = min(ends) - max(begins)
  if common <= 0:
    return 0.0
  # How long a file is without its duration is not known here.
  return common / (max(ends) - min(begins)) if math.inf not in ends else 1e-9


def _common_name(speaker: str) -> str:
  """What the spellings of a speaker's name have in common."""
  # Composed and decomposed letters look the same.
  plain = unicodedata.normalize('NFKC', speaker).casefold()
  # Spreadsheets write 7 for 007, and 7.0 where another row has no speaker.
  return ' '.join(_NUMBER.sub(r'\1', w) if _NUMBER.fullmatch(w) else w
                  for w in plain.split())


def _warn_of_spellings(
    spellings: Mapping[str, Sequence[str]],
    speakers: Collection[str],
    *,
    path: str,
) -> None:
  """Warns of speakers who may be one person, written in two ways."""
  alike = [
      sorted(names)
      for names in spellings.values()
      if len(names) > 1 and not speakers.isdisjoint(names)
  ]
  if alike:
    shown = '; '.join(', '.join(map(repr, each)) for each in sorted(alike)[:5])
    logging.warning(
        '%s: speakers with names that differ only in case, spaces or the form'
        ' of a number count as different people: %s%s. --merge_speakers makes'
        ' each of them one.',
        path, shown, ' and others' if len(alike) > 5 else '',
    )


def convert_transcripts(
    listings: Mapping[str, utterances.Listing],
    *,
    keeps: bool,
    alphabet: str | None = None,
    language: str = '',
) -> tuple[str, dict[str, utterances.Listing]]:
  """Puts transcripts into the characters of one alphabet.

  Args:
    listings: Listings of all parts, by name; the first decides the alphabet.
    keeps: Whether transcripts stay as they are, except for white space; those
      with other characters become problems. Otherwise they become lower case
      without punctuation, and letters outside the alphabet are transliterated
      or dropped (`text.normalize_written`).
    alphabet: The characters; None for those of the first part.
    language: The language of a special lower case (`text.LOWER_CASE`), or ''.

  Returns:
    The characters, sorted, and the listings, with an example of each change.
  """
  first = [u.transcript for u in next(iter(listings.values())).utterances]
  if keeps:
    found = set(alphabet or ''.join(map(text.tidy, first)))
    # Control characters would steer the terminals that show transcripts.
    characters = ''.join(
        sorted(c for c in found if unicodedata.category(c) != 'Cc')
    )
    convert = functools.partial(_keep_transcript, characters=characters)
  else:
    letters = text.letters_of(
        [alphabet] if alphabet else list(text.cleaned(first)), language=language
    )
    if not alphabet:
      _warn_of_missing(letters, part=next(iter(listings)))
    if 'ı' in letters and not text.LOWER_CASE.get(language):
      logging.warning(
          'transcripts have the letter ı: --casing=tr or --casing=az makes it '
          'of I, which otherwise becomes i.'
      )
    characters = ''.join(sorted(tokenizer.PUNCTUATION + letters))
    convert = functools.partial(
        _normalise_transcript, letters=letters, language=language
    )
  converted = {}
  for name, listing in listings.items():
    outcomes = [convert(utterance) for utterance in listing.utterances]
    changes = text.Changes()
    for before, after in zip(listing.utterances, outcomes):
      if isinstance(after, utterances.Utterance):
        kinds = [f'transcripts {kind}' for kind in after.changes]
        changes.add(kinds, before.transcript, after.transcript)
    converted[name] = listing._replace(
        examples=changes.examples,
        utterances=[o for o in outcomes if isinstance(o, utterances.Utterance)],
        problems=[
            *listing.problems,
            *(o for o in outcomes if isinstance(o, utterances.Problem)),
        ],
    )
  return characters, converted


def _warn_of_missing(letters: str, *, part: str) -> None:
  """Warns of letters of a to z that a small corpus in them happens to lack."""
  missing = sorted(set(string.ascii_lowercase) - set(letters))
  # Other scripts have few of them, or none.
  if 0 < len(missing) <= len(string.ascii_lowercase) // 2:
    logging.warning(
        'no transcript of %s has %s, so the model will not write them: '
        '--alphabet names all letters of your language.',
        part, ', '.join(missing),
    )


def _keep_transcript(
    utterance: utterances.Utterance, *, characters: str
) -> utterances.Utterance | utterances.Problem:
  """Tidies white space; a problem if other characters are left."""
  transcript = text.tidy(utterance.transcript)
  outside = sorted(set(transcript) - set(characters))
  if not outside:
    return dataclasses.replace(utterance, transcript=transcript)
  reason = text.TranscriptError.reason
  return utterances.Problem(
      utterance.client_id,
      utterance.utterance_id,
      reason,
      f'utterance {utterance.utterance_id} {reason}: {outside}.',
  )


def _normalise_transcript(
    utterance: utterances.Utterance, *, letters: str, language: str
) -> utterances.Utterance | utterances.Problem:
  """Writes a transcript in the letters; a problem if nothing is left."""
  name = utterance.utterance_id
  try:
    transcript, changes = text.normalize_written(
        utterance.transcript, letters=letters, language=language
    )
  except text.BracketsError as e:
    return utterances.Problem(
        utterance.client_id,
        name,
        e.reason,
        f'utterance {name}: {e}; write sounds as [laughter], and what is said '
        'without brackets.',
    )
  # Without letters lost, an empty one is reported when it is encoded.
  if transcript or text.LOST_LETTERS not in changes:
    return dataclasses.replace(
        utterance, transcript=transcript, changes=changes
    )
  return utterances.Problem(
      utterance.client_id,
      name,
      _FOREIGN,
      f'utterance {name} {_FOREIGN}:'
      f' {utterance.transcript.strip()[:_MAX_SHOWN]!r}.',
  )


def _utterance(
    row: Mapping[str, object],
    speaker: str,
    *,
    locate: Callable[[str], str],
    root: str,
) -> utterances.Utterance:
  """The utterance of a row; raises _Unusable for missing or bad values."""
  if not row:
    raise _Unusable(text_files.UNREADABLE)
  if row.get('refused'):
    raise _Unusable(row['refused'])
  if not speaker:
    raise _Unusable('has no speaker')
  if not isinstance(row.get('text'), str):
    raise _Unusable('has no transcript')
  source, name = row.get('audio'), _word(row.get('id'))
  start, duration = _part(row)
  channels = _channels(row.get('channel'))
  part = dict(
      start_sec=start,
      duration_sec=duration,
      channels=channels,
      sample_rate_hz=_rate(row),
  )
  if isinstance(source, str) and source:
    path = locate(source)
    source = utterances.Clip(path, **part)
    if not name:
      name = os.path.relpath(path, root)
      if start is not None:
        name += f'-{round(1000 * start)}'
      if channels is not None:
        name += f'-channel-{"-".join(map(str, channels))}'
  elif isinstance(source, utterances.Clip):
    source = dataclasses.replace(source, **part)
  else:
    raise _Unusable('has no audio file')
  return utterances.Utterance(speaker, name, row['text'], source)


def _locate(path: str, *, root: str, real: Callable[[str], str]) -> str:
  """The real path of an audio file, which must be inside `root`."""
  folder, name = os.path.split(os.path.join(root, _existing(path, root=root)))
  try:
    found = os.path.join(real(folder), name)
    if os.path.islink(found) or name in ('', '.', '..'):
      found = os.path.realpath(found)
  except (OSError, ValueError) as e:
    raise _Unusable('has an unusable path', _shown(path)) from e
  # A manifest from elsewhere must not name /etc/passwd, nor through a link.
  if os.path.commonpath([found, root]) != root:
    raise ValueError(
        f'{path[:_MAX_SHOWN]!r} lies outside of {root}; set --source_dir to a'
        ' folder that holds all audio.'
    )
  return found


def _existing(path: str, *, root: str) -> str:
  """The path by which a file is there; `path` itself if there is none.

  Tables may have URLs of files, paths of Windows, and letters in the other one
  of Unicode's two forms.
  """
  if re.match(r'(?!file:)\w+://', path):
    raise _Unusable(
        'has audio at an address', f'{_shown(path)}; download it first'
    )
  if path.startswith('file:'):
    path = parse.unquote(parse.urlsplit(path).path)
  options = [path, parse.unquote(path)]
  options += [each.replace('\\', '/') for each in options]
  return next(
      (
          form
          for option in dict.fromkeys(options)
          for form in (
              option,
              unicodedata.normalize('NFC', option),
              unicodedata.normalize('NFD', option),
          )
          if os.path.exists(os.path.join(root, form))
      ),
      path,
  )


def _shown(value: object) -> str:
  """A value in messages."""
  return f'found {str(value)[:_MAX_SHOWN]!r}'


def _word(value: object) -> str:
  """An identifier or attribute as text, or ''."""
  # JSON may have ids as numbers, and NaN for none; True is an int in Python.
  is_one = isinstance(value, (str, int, float)) and not isinstance(value, bool)
  return str(value).strip() if is_one and value == value else ''


def _seconds(row: Mapping[str, object], name: str) -> float | None:
  """A time; None where there is none."""
  value = row.get(name)
  if value is None or value == '':
    return None
  seconds = _number(value)
  # NaN fails both comparisons.
  if not 0 <= seconds < math.inf or (name == 'duration' and not seconds):
    raise _Unusable(
        f'has an unusable {name}', f'{_shown(value)}, not seconds such as 1.5'
    )
  return seconds


def _number(value: object) -> float:
  """Parses a number; NaN for other values."""
  try:
    return math.nan if isinstance(value, bool) else float(value)
  except (TypeError, ValueError, OverflowError):
    return math.nan


def _part(row: Mapping[str, object]) -> tuple[float | None, float | None]:
  """Offset and length of a row's audio in its file; None: the whole file."""
  start, duration, end = (
      _seconds(row, name) for name in ('offset', 'duration', 'end')
  )
  if end is not None:
    start = start or 0.0
    if end <= start or (
        duration is not None
        and abs(end - start - duration) > _TIME_TOLERANCE_SEC
    ):
      raise _Unusable(
          'has an unusable end',
          f'{_shown(end)}, with offset {start} and duration {duration}',
      )
    duration = end - start
  # A duration alone only describes the file.
  return start, None if start is None else duration


def _channels(value: object) -> tuple[int, ...] | None:
  """Channels from 0, of a number, a list, or either as text; None: all."""
  if isinstance(value, str):
    # Without brackets 1,0 may be a decimal number.
    values = [value.strip()] if value.strip() else []
    if values and value.strip()[0] + value.strip()[-1] == '[]':
      values = value.strip()[1:-1].split(',')
  elif value is None:
    values = []
  else:
    values = value if isinstance(value, (list, tuple)) else [value]
    if not values:
      raise _Unusable(_BAD_CHANNEL)
  if not values:
    return None
  numbers = list(map(_number, values))
  # Spreadsheets write 1.0.
  if not all(0 <= n < _MAX_CHANNELS and n == int(n) for n in numbers):
    raise _Unusable(_BAD_CHANNEL, _shown(value))
  return tuple(sorted(set(map(int, numbers))))


def _rate(row: Mapping[str, object]) -> int | None:
  """The sampling rate of a row in Hz, or None."""
  value = row.get('sampling_rate')
  if value is None or value == '':
    return None
  rate_hz = _number(value)
  if not 1 <= rate_hz < math.inf or rate_hz != int(rate_hz):
    raise _Unusable('has an unusable sampling rate', f'{_shown(value)}, not Hz')
  return int(rate_hz)


def _find_columns(names: Iterable[str]) -> dict[str, str]:
  """Maps each known column to its name in the manifest."""
  by_lower = {str(name).strip().lower(): name for name in names}
  found = {n: by_lower[n] for n in _ATTRIBUTES if n in by_lower}
  for key, options in _NAMES.items():
    for option in options:
      if option in by_lower:
        found.setdefault(key, by_lower[option])
  return found


def _columns(names: Iterable[str], *, path: str) -> dict[str, str]:
  """As `_find_columns`; raises ValueError for a missing column."""
  names = list(names)
  found = _find_columns(names)
  by_lower = [str(name).strip().lower() for name in names]
  missing = [key for key in _NEEDED if key not in found]
  if missing:
    raise ValueError(
        f'{path} has no {missing[0]} ({", ".join(_NAMES[missing[0]])}), but'
        f' {", ".join(by_lower)[:200] or "nothing"}; name it so.'
    )
  others = [str(n) for n in names if str(n).strip() and n not in found.values()]
  if others:
    logging.warning('%s: columns not used: %s.', path, ', '.join(others)[:200])
  return found


def _file_rows(
    path: str, problems: list[utterances.Problem]
) -> Iterator[Row]:
  """Rows of a table or of JSON lines."""
  suffix = os.path.splitext(path.removesuffix('.gz'))[1].lower()
  if suffix in _TABLES:
    table = text_files.read_table(path)
    problems += table.problems
    columns = _columns(table.header, path=path)
    for number, row in table.rows:
      values = {key: row[name] for key, name in columns.items()}
      for key in _NUMBERS:
        # Where commas divide columns, 1,500 may be more than a thousand.
        if table.delimiter != ',' and _DECIMAL_COMMA.fullmatch(
            values.get(key, '')
        ):
          values[key] = values[key].replace(',', '.')
      yield f'line {number}', values
    return
  if suffix not in _JSON_LINES:
    raise ValueError(
        f'{path} is not a supported manifest: a .tsv, .csv or'
        ' .jsonl file, or a folder of Kaldi or of Hugging Face; see --help.'
    )
  is_first = True
  for place, row in text_files.read_json_lines(path):
    if row is None:
      yield place, None
    elif 'supervisions' in row:
      yield from _lhotse_rows(place, row)
    else:
      # A later row may say what the first one does not.
      columns = _columns(row, path=path) if is_first else _find_columns(row)
      is_first = False
      yield place, {key: row[name] for key, name in columns.items()}


def _lhotse_rows(place: str, cut: Mapping[str, object]) -> Iterator[Row]:
  """Rows of a lhotse cut: one for each supervision."""
  supervisions = cut['supervisions']
  recording = cut.get('recording')
  if not isinstance(supervisions, list) or not supervisions:
    yield place, {'refused': 'has no transcript'}
    return
  try:
    # Several sources would have to be mixed.
    (source,) = recording['sources']
    if source['type'] != 'file':
      raise _Unusable(f'has audio of the kind {str(source["type"])[:20]!r}')
    if recording.get('transforms'):
      raise _Unusable('is changed by lhotse as it is read')
    channels = source['channels']
    chosen = _lhotse_channels(cut.get('channel', channels), channels)
    start, length = _seconds(cut, 'start'), _seconds(cut, 'duration')
    common = {
        'audio': source['source'],
        'sampling_rate': recording.get('sampling_rate'),
    }
    first, last = start, start + length
  except _Unusable as e:
    yield place, {'refused': str(e)}
    return
  except (KeyError, TypeError, ValueError, AttributeError):
    # A mixed cut, or one without its recording.
    yield place, {'refused': 'has not one recording'}
    return
  for supervision in supervisions:
    try:
      begin = start + supervision['start']
      end = begin + supervision['duration']
      # Rounded, as lhotse does.
      if not first - 0.001 <= begin < end <= last + 0.001:
        raise _Unusable('has a supervision beyond its cut')
      channel = _lhotse_channels(supervision.get('channel', []), channels)
      if not set(channel) <= set(chosen):
        raise _Unusable('has a supervision beyond its cut')
      yield place, {
          **{key: supervision.get(key) for key in ('id', 'speaker', 'text')},
          **{key: supervision.get(key) for key in _ATTRIBUTES},
          **common,
          'channel': channel or chosen,
          'offset': max(0.0, begin),
          'duration': end - begin,
      }
    except _Unusable as e:
      yield place, {'refused': str(e)}
    except (KeyError, TypeError, ValueError, AttributeError):
      yield place, None


def _lhotse_channels(value: object, channels: Sequence[int]) -> list[int]:
  """Positions of one or several channels among a recording's channels.

  Raises:
    ValueError: It is none of them.
  """
  values = value if isinstance(value, list) else [value]
  return [channels.index(each) for each in values]


def _kaldi_rows(folder: str) -> Iterator[Row]:
  """Rows of a Kaldi data folder."""

  def read(name: str) -> dict[str, str]:
    path = os.path.join(folder, name)
    found = {}
    for number, line in text_files.read_lines(path):
      name, *rest = line.split(None, 1) or ['']
      value = rest[0].strip() if rest else ''
      if value and found.setdefault(name, value) != value:
        raise ValueError(
            f'{path}, line {number}: {name[:_MAX_SHOWN]} stands there a second'
            ' time, with another value; give each its own id.'
        )
    return found

  recordings, texts, speakers = map(read, ('wav.scp', 'text', 'utt2spk'))
  for name, place in recordings.items():
    if place.endswith('|') or '.ark:' in place:
      raise ValueError(
          f'{os.path.join(folder, "wav.scp")}: {name[:80]} is a command or part'
          ' of an archive, which is not run; write a plain path of an audio'
          ' file.'
      )
  # The sides of a call may be two recordings of one file.
  sides = {}
  if os.path.exists(os.path.join(folder, 'reco2file_and_channel')):
    sides = {
        name: _SIDES.get(value.split()[-1])
        for name, value in read('reco2file_and_channel').items()
    }
  # A file with several recordings holds the sides of a call.
  uses = collections.Counter(recordings.values())
  segments = {name: name for name in recordings}
  if os.path.exists(os.path.join(folder, 'segments')):
    segments = read('segments')
  for name in sorted(segments.keys() | texts.keys()):
    recording, *times = segments.get(name, '').split() or ['']
    channel = times[2] if len(times) > 2 and times[2] != '-1' else None
    if channel is None and uses[recordings.get(recording)] > 1:
      channel = sides.get(recording)
    row = {
        'id': name,
        'speaker': speakers.get(name),
        'text': texts.get(name),
        'audio': recordings.get(recording),
        'channel': channel,
    }
    try:
      if times:
        start, end = map(float, times[:2])
        row['offset'] = start
        # Kaldi's -1 is the end of the recording.
        row['duration'] = None if end == -1 else end - start
    except ValueError:
      row = {'id': name, 'refused': text_files.UNREADABLE}
    yield f'utterance {name}', row


def _arrow_rows(folder: str) -> Iterator[Row]:
  """Rows of a folder that Hugging Face's `datasets` saved."""
  for path, table in hugging_face.tables(folder):
    columns = _columns(table.column_names, path=path)
    clips = hugging_face.clips(path, table, columns.pop('audio'))
    rest = [table.column(name).to_pylist() for name in columns.values()]
    for number, (clip, *values) in enumerate(zip(clips, *rest)):
      place = f'{os.path.basename(path)}-{number:06d}'
      yield place, {'id': place} | dict(zip(columns, values)) | {'audio': clip}


def _default_partition(num_speakers: int) -> str:
  """Gives a tenth of the speakers, at least one, to dev and to test each.

  Raises:
    ValueError: They are too few for three parts.
  """
  if num_speakers < 3:
    raise ValueError(
        f'found {num_speakers} speaker{"s"[:num_speakers - 1]}, and three are'
        ' needed to divide them into train, dev and test; name the splits, as'
        ' --manifest=train=a.tsv,dev=b.tsv.'
    )
  # At least one speaker to evaluate on.
  share = max(1, num_speakers // 10)
  return f'train=rest,dev={share},test={share}'


def corpus(
    manifests: Sequence[str],
    *,
    audio_dir: str | None = None,
    keeps: bool = False,
    alphabet: str | None = None,
    language: str = '',
    merges_speakers: bool = False,
) -> conversion.Corpus:
  """Returns your recordings as a corpus.

  Args:
    manifests: Files or folders, which become one population; or NAME=FILE for
      each split.
    audio_dir: See `list_utterances`.
    keeps: See `convert_transcripts`.
    alphabet: See `convert_transcripts`.
    language: See `convert_transcripts`.
    merges_speakers: See `list_utterances`.

  Raises:
    ValueError: If only some manifests have a name, or two the same.
  """
  paths = _paths_by_split(manifests)
  others: dict[Recording, list[tuple[str, utterances.Clip]]] = {}
  spellings: dict[str, list[str]] = {}

  def list_split(unused_folder: str, *, split: str) -> utterances.Listing:
    if split not in paths:
      raise ValueError(
          f'splits names {split!r}, but --manifest {", ".join(paths)}.'
      )
    listings = [
        list_utterances(
            path,
            audio_dir=audio_dir,
            others=others,
            spellings=spellings,
            merges_speakers=merges_speakers,
        )
        for path in paths[split]
    ]
    listing = conversion.join(listings)
    if not listing.utterances:
      raise ValueError(
          f'{", ".join(paths[split])} lists nothing to read'
          + ''.join(f': {problem.detail}' for problem in listing.problems[:1])
      )
    return listing

  return conversion.Corpus(
      name='own recordings',
      namespace='own recordings',
      list_utterances=list_split,
      holds_split=lambda folder, split: True,
      default_splits=tuple(paths),
      default_partition=_default_partition if '' in paths else None,
      convert_transcripts=functools.partial(
          convert_transcripts, keeps=keeps, alphabet=alphabet, language=language
      ),
      alphabet_source='named by --alphabet' if alphabet else '',
      source_dir=audio_dir or '.',
      max_utterance_sec=_MAX_UTTERANCE_SEC,
      has_words=str.strip if keeps else _has_words,
  )


def _has_words(transcript: str) -> bool:
  """Whether a transcript has a letter outside of tags."""
  return bool(text.letters_of(list(text.cleaned([transcript]))))


def _paths_by_split(manifests: Sequence[str]) -> dict[str, list[str]]:
  """Paths of manifests by split; '' if they have no split."""
  paths: dict[str, list[str]] = {}
  for item in manifests:
    name, equals, path = item.partition('=')
    name, path = (name, path) if equals else ('', item)
    paths.setdefault(name, []).append(path)
  if not paths or ('' in paths and len(paths) > 1) or any(
      name and len(each) > 1 for name, each in paths.items()
  ):
    raise ValueError(
        f'--manifest is {",".join(manifests)!r}; give files or folders, or'
        ' NAME=FILE for each split.'
    )
  return paths


def _corpus_by_flags() -> conversion.Corpus:
  """The recordings named by the flags."""
  if not _MANIFEST.value:
    raise ValueError('--manifest is needed; see --help.')
  return corpus(
      _MANIFEST.value,
      audio_dir=flags.FLAGS.source_dir,
      keeps=_TEXT.value == 'keep',
      alphabet=_ALPHABET.value,
      language=_CASING.value,
      merges_speakers=_MERGE_SPEAKERS.value,
  )


if __name__ == '__main__':
  conversion.main(
      _corpus_by_flags,
      flag_names=('manifest', 'text', 'alphabet', 'casing', 'merge_speakers'),
  )
