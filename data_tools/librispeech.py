"""LibriSpeech (https://www.openslr.org/12), or what has its layout, to shards.

    python -m data_tools.librispeech --source_dir=LibriSpeech \\
        --output_dir=data/librispeech --splits=train-clean-100,dev-clean \\
        --partition=public=20%,private=rest

The layout is SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER-UTTERANCE.flac (or any other
audio that libsndfile reads) beside SPEAKER-CHAPTER.trans.txt. A client is a
speaker; transcripts become lower case.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Sequence
import os

from absl import flags

from data_tools import conversion
from data_tools import shards
from data_tools import transcripts

DEFAULT_SPLITS = ('dev-clean',)

_TRANSCRIPT_SUFFIX = '.trans.txt'


def list_utterances(
    source_dir: str | os.PathLike[str], *, split: str
) -> list[shards.Utterance]:
  """Returns the utterances of a split, sorted by utterance id.

  Args:
    source_dir: The folder that holds the split's folder.
    split: Such as 'dev-clean'.

  Raises:
    ValueError: If a folder is missing, a split has no transcripts, a transcript
      has no audio, more than one audio file or characters outside the tokens,
      audio has no transcript, or a file lies with another speaker. It names the
      file or utterance.
  """
  source_dir = os.fspath(source_dir)
  if not os.path.isdir(source_dir):
    raise ValueError(f'{source_dir} is not a folder; set --source_dir.')
  split_dir = os.path.join(source_dir, split)
  if not os.path.isdir(split_dir):
    found = ', '.join(_folders(source_dir)) or 'no folders'
    raise ValueError(
        f'{source_dir} holds no split {split!r}, but {found}; set --splits.'
    )
  utterances = []
  for speaker in _folders(split_dir):
    for chapter in _folders(os.path.join(split_dir, speaker)):
      utterances.extend(
          _list_chapter(
              os.path.join(split_dir, speaker, chapter), speaker=speaker
          )
      )
  if not utterances:
    raise ValueError(
        f'{split_dir} holds no transcripts'
        f' (SPEAKER/CHAPTER/*{_TRANSCRIPT_SUFFIX}); check --source_dir.'
    )
  return sorted(utterances, key=lambda u: u.utterance_id)


def _list_chapter(folder: str, *, speaker: str) -> list[shards.Utterance]:
  """The utterances of one chapter."""
  texts: dict[str, str] = {}
  audio_names: dict[str, str] = {}
  for name in sorted(os.listdir(folder)):
    path = os.path.join(folder, name)
    if name.endswith(_TRANSCRIPT_SUFFIX):
      texts.update(_read_transcripts(path, speaker=speaker))
    elif not name.startswith('.') and not name.endswith('.txt'):
      stem = os.path.splitext(name)[0]
      if stem in audio_names:
        raise ValueError(
            f'{path}: {audio_names[stem]} beside it is the same utterance; keep'
            ' one.'
        )
      audio_names[stem] = name
  for stem in audio_names.keys() - texts.keys():
    raise ValueError(
        f'{os.path.join(folder, audio_names[stem])} has no transcript in'
        f' *{_TRANSCRIPT_SUFFIX} beside it.'
    )
  for stem in texts.keys() - audio_names.keys():
    raise ValueError(
        f'{folder}: utterance {stem} has a transcript but no audio file.'
    )
  return [
      shards.Utterance(
          client_id=speaker,
          utterance_id=stem,
          transcript=text,
          audio=os.path.join(folder, audio_names[stem]),
      )
      for stem, text in texts.items()
  ]


def _read_transcripts(path: str, *, speaker: str) -> dict[str, str]:
  """Utterance ids to normalized texts of one transcript file."""
  texts: dict[str, str] = {}
  for line in transcripts.read_lines(path):
    utterance_id, _, text = line.partition(' ')
    if not utterance_id:
      continue
    if utterance_id in texts:
      raise ValueError(f'{path}: utterance {utterance_id} occurs twice.')
    if utterance_id.split('-')[0] != speaker:
      raise ValueError(
          f'{path}: utterance {utterance_id} is not of speaker {speaker}.'
      )
    texts[utterance_id] = transcripts.normalize(text, name=utterance_id)
  return texts


def _folders(folder: str) -> Sequence[str]:
  """The names of the folders in a folder, sorted."""
  with os.scandir(folder) as entries:
    return sorted(
        e.name for e in entries if e.is_dir() and not e.name.startswith('.')
    )


def main(argv: Sequence[str]) -> None:
  conversion.run(
      argv,
      list_utterances=list_utterances,
      corpus='LibriSpeech',
      default_splits=DEFAULT_SPLITS,
  )


if __name__ == '__main__':
  flags.adopt_module_key_flags(conversion)
  launch.run(main, after_interrupt=conversion.AFTER_INTERRUPT)
