"""LibriSpeech (https://www.openslr.org/12), or one of its layout, to shards.

    python -m data_tools.librispeech --source_dir=LibriSpeech \\
        --output_dir=data/librispeech --splits=train-clean-100,dev-clean \\
        --partition=public=20%,private=rest

The layout is SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER-UTTERANCE.flac (or any other
audio that libsndfile reads) next to SPEAKER-CHAPTER.trans.txt; --source_dir may
also hold the published SPLIT.tar.gz. A client is a speaker; transcripts become
lower case. SPEAKERS.TXT next to the splits, if present, lists genders.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Iterator, Sequence
import os

from data_tools import archives
from data_tools import conversion
from data_tools import text
from data_tools import text_files
from data_tools import utterances

_TRANSCRIPT_SUFFIX = '.trans.txt'
_SPEAKERS_FILE = 'SPEAKERS.TXT'
_GENDERS = {'F': 'female', 'M': 'male'}


def list_utterances(
    source_dir: str, *, split: str
) -> utterances.Listing:
  """Lists a split.

  Problems are: a transcript without audio, audio without a transcript or with
  two files, an utterance that occurs twice or is in another speaker's folder,
  characters outside the tokens, and a line of SPEAKERS.TXT without a gender.

  Args:
    source_dir: The folder that holds the split's folder.
    split: Such as 'dev-clean'.

  Raises:
    ValueError: If the split's folder is missing or has no transcripts.
  """
  split_dir = os.path.join(source_dir, split)
  if not os.path.isdir(split_dir):
    found = ', '.join(archives.subfolders(source_dir)) or 'no folders'
    raise ValueError(
        f'{source_dir} holds no split {split!r}, but {found}; set --splits.'
    )
  listed: list[utterances.Utterance] = []
  problems: list[utterances.Problem] = []
  for speaker in archives.subfolders(split_dir):
    for chapter in archives.subfolders(os.path.join(split_dir, speaker)):
      folder = os.path.join(split_dir, speaker, chapter)
      _list_chapter(folder, speaker, listed=listed, problems=problems)
  if not listed and not problems:
    raise ValueError(
        f'{split_dir} holds no transcripts'
        f' (SPEAKER/CHAPTER/*{_TRANSCRIPT_SUFFIX}); check --source_dir.'
    )
  path = os.path.join(source_dir, _SPEAKERS_FILE)
  genders = {}
  if os.path.isfile(path):
    genders = utterances.gather_attributes(
        ['gender'], _read_speakers(path, problems=problems)
    )
  return utterances.Listing(listed, problems, genders)


def _list_chapter(
    folder: str,
    speaker: str,
    *,
    listed: list[utterances.Utterance],
    problems: list[utterances.Problem],
) -> None:
  """Adds the utterances and problems of one chapter."""

  def refuse(utterance_id: str, reason: str, detail: str) -> None:
    problems.append(
        utterances.Problem(speaker, utterance_id, reason, detail)
    )

  texts: dict[str, str] = {}
  audio_names: dict[str, str] = {}
  for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    if name.endswith(_TRANSCRIPT_SUFFIX):
      for utterance_id, spoken in _read_lines(path):
        if utterance_id in texts:
          reason = 'occurs twice'
        # An id begins with its speaker.
        elif utterance_id.split('-')[0] != speaker:
          reason = f'is not of speaker {speaker}'
        else:
          texts[utterance_id] = spoken
          continue
        detail = f'{path}: utterance {utterance_id} {reason}.'
        refuse(utterance_id, reason.replace(f' {speaker}', ''), detail)
    # By exclusion: any format that libsndfile reads is audio.
    elif not name.startswith('.') and not name.endswith('.txt'):
      stem = os.path.splitext(name)[0]
      if stem in audio_names:
        detail = f'{path}: {audio_names[stem]} is the same utterance.'
        refuse(stem, 'has two audio files', detail)
      else:
        audio_names[stem] = name
  for stem in sorted(audio_names.keys() - texts.keys()):
    path = os.path.join(folder, audio_names[stem])
    detail = f'{path} has no transcript in *{_TRANSCRIPT_SUFFIX} next to it.'
    refuse(stem, 'has no transcript', detail)
  for stem, spoken in sorted(texts.items()):
    if stem not in audio_names:
      detail = f'{folder}: utterance {stem} has a transcript but no audio file.'
      refuse(stem, 'has no audio file', detail)
      continue
    try:
      transcript = text.normalize_english(spoken, name=stem)
    except text.TranscriptError as e:
      refuse(stem, e.reason, str(e))
      continue
    listed.append(
        utterances.Utterance(
            client_id=speaker,
            utterance_id=stem,
            transcript=transcript,
            audio=os.path.join(folder, audio_names[stem]),
        )
    )


def _read_speakers(
    path: str, *, problems: list[utterances.Problem]
) -> Iterator[tuple[str, dict[str, str]]]:
  """Speakers and genders; a line has 'ID | F or M | ...' or is a comment."""
  # Names come after these two and may hold any bytes, even invalid UTF-8.
  with open(path, encoding='utf-8', errors='replace') as f:
    for number, line in enumerate(f, 1):
      if not line.strip() or line.startswith(';'):
        continue
      speaker, *fields = (field.strip() for field in line.split('|'))
      if not fields or (fields[0] and fields[0] not in _GENDERS):
        problems.append(
            utterances.Problem(
                '',
                f'line {number}',
                text_files.UNREADABLE,
                f'{path}, line {number}: must begin as "19 | F |" or as'
                ' "19 | M |".',
            )
        )
      else:
        yield speaker, {'gender': _GENDERS.get(fields[0], '')}


def _read_lines(path: str) -> Sequence[tuple[str, str]]:
  """Ids and texts of one transcript file."""
  parts = [
      line.strip().partition(' ') for _, line in text_files.read_lines(path)
  ]
  return [(name, spoken) for name, _, spoken in parts if name]


CORPUS = conversion.Corpus(
    name='LibriSpeech',
    # Shared with Libri-Light: both have readers of LibriVox.
    namespace='LibriVox',
    list_utterances=list_utterances,
    holds_split=lambda folder, split: os.path.isdir(
        os.path.join(folder, split)
    ),
    default_splits=('dev-clean',),
)

if __name__ == '__main__':
  conversion.main(lambda: CORPUS)
