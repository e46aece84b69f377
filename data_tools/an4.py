"""CMU AN4 (http://www.speech.cs.cmu.edu/databases/an4) to shards.

    python -m data_tools.an4 --source_dir=an4 --output_dir=data/an4 \\
        --splits=train --partition=public=24,private=rest,test=10

The layout is etc/an4_SPLIT.{fileids,transcription} and wav/**/SPEAKER/*.sph. A
client is a speaker, the folder an utterance lies in; transcripts become lower
case.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.begin(__name__)

from collections.abc import Sequence
import os
import re

from absl import flags

from data_tools import conversion
from data_tools import shards
from data_tools import transcripts

DEFAULT_SPLITS = ('train',)

_SPLITS = ('train', 'test')
_SUFFIXES = ('.sph', '.wav', '.flac')
_LINE = re.compile(r'(?:<s>)?(?P<text>.*?)(?:</s>)?\s*\((?P<id>[^()]+)\)')


def list_utterances(
    source_dir: str | os.PathLike[str], *, split: str
) -> list[shards.Utterance]:
  """Returns the utterances of a split, sorted by utterance id.

  Args:
    source_dir: The folder that holds etc/ and wav/.
    split: 'train' or 'test'.

  Raises:
    ValueError: If a folder, list or audio file is missing, the two lists do not
      name the same utterances, or a transcript has characters outside the
      tokens. It names the file or utterance.
  """
  source_dir = os.fspath(source_dir)
  if not os.path.isdir(source_dir):
    raise ValueError(f'{source_dir} is not a folder; set --source_dir.')
  if split not in _SPLITS:
    raise ValueError(f"split must be 'train' or 'test', found {split!r}.")
  list_path = os.path.join(source_dir, 'etc', f'an4_{split}.fileids')
  file_ids = [line for line in transcripts.read_lines(list_path) if line]
  if not file_ids:
    raise ValueError(f'{list_path} is empty; get the corpus again.')
  texts = _read_transcripts(
      os.path.join(source_dir, 'etc', f'an4_{split}.transcription')
  )
  utterances = []
  for file_id in file_ids:
    parts = file_id.split('/')
    if len(parts) < 2:
      raise ValueError(f'{list_path}: {file_id!r} is not FOLDER/SPEAKER/NAME.')
    speaker, utterance_id = parts[-2:]
    if utterance_id not in texts:
      raise ValueError(
          f'{list_path}: utterance {utterance_id} has no transcript.'
      )
    utterances.append(
        shards.Utterance(
            client_id=speaker,
            utterance_id=utterance_id,
            transcript=texts.pop(utterance_id),
            audio=_find_audio(os.path.join(source_dir, 'wav', *parts)),
        )
    )
  if texts:
    raise ValueError(
        f'{list_path} does not list utterance {next(iter(texts))}.'
    )
  return sorted(utterances, key=lambda u: u.utterance_id)


def _find_audio(stem: str) -> str:
  """The audio file of an utterance."""
  for suffix in _SUFFIXES:
    if os.path.isfile(stem + suffix):
      return stem + suffix
  raise ValueError(f'{stem}{_SUFFIXES[0]} is listed but missing.')


def _read_transcripts(path: str) -> dict[str, str]:
  """Utterance ids to normalized texts."""
  texts: dict[str, str] = {}
  for line in transcripts.read_lines(path):
    if not line:
      continue
    match = _LINE.fullmatch(line)
    if not match:
      raise ValueError(
          f'{path}: cannot read {line!r}; it should end with (ID).'
      )
    utterance_id = match['id']
    if utterance_id in texts:
      raise ValueError(f'{path}: utterance {utterance_id} occurs twice.')
    texts[utterance_id] = transcripts.normalize(
        match['text'], name=utterance_id
    )
  return texts


def main(argv: Sequence[str]) -> None:
  conversion.run(
      argv,
      list_utterances=list_utterances,
      corpus='AN4',
      default_splits=DEFAULT_SPLITS,
  )


if __name__ == '__main__':
  flags.adopt_module_key_flags(conversion)
  launch.run(main, after_interrupt=conversion.AFTER_INTERRUPT)
