"""CMU AN4 (http://www.speech.cs.cmu.edu/databases/an4) to shards.

    python -m data_tools.an4 --source_dir=an4 --output_dir=data/an4 \\
        --splits=train --partition=public=24,private=rest,test=10

The layout is etc/an4_SPLIT.{fileids,transcription} and wav/**/SPEAKER/*.sph;
--source_dir may also be the published an4_sphere.tar.gz. A client is a speaker,
the folder an utterance lies in; transcripts become lower case.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import os
import re

from data_tools import conversion
from data_tools import text
from data_tools import text_files
from data_tools import utterances

# The published files are .sph; some users convert them.
_SUFFIXES = ('.sph', '.wav', '.flac')
_LINE = re.compile(r'(?:<s>)?(?P<text>.*?)(?:</s>)?\s*\((?P<id>[^()]+)\)')


def list_utterances(
    source_dir: str, *, split: str
) -> utterances.Listing:
  """Lists a split.

  Problems are: an utterance without audio, without a transcript, with a
  transcript only, twice, or with characters outside the tokens, and lines that
  cannot be read.

  Args:
    source_dir: The folder that holds etc/ and wav/.
    split: 'train' or 'test'.

  Raises:
    ValueError: If a list is missing or empty.
  """
  problems: list[utterances.Problem] = []
  list_path = os.path.join(source_dir, 'etc', f'an4_{split}.fileids')
  text_path = os.path.join(source_dir, 'etc', f'an4_{split}.transcription')
  file_ids = [
      line.strip()
      for _, line in text_files.read_lines(list_path)
      if line.strip()
  ]
  if not file_ids:
    raise ValueError(f'{list_path} is empty; get the corpus again.')
  texts = _read_transcripts(text_path, problems)
  listed: list[utterances.Utterance] = []
  seen = set()
  for file_id in file_ids:
    parts = file_id.split('/')
    # The folder of a file is its speaker.
    speaker, utterance_id = ['', *parts][-2:]
    stem = os.path.join(source_dir, 'wav', *parts)
    path = _find_audio(stem)
    # The first reason that applies is reported.
    reason = transcript = None
    if not speaker:
      reason = text_files.UNREADABLE
      detail = f'{list_path}: {file_id!r} is not FOLDER/SPEAKER/NAME.'
    elif utterance_id in seen:
      reason = 'occurs twice'
      detail = f'{list_path}: utterance {utterance_id} {reason}.'
    elif utterance_id not in texts:
      reason = 'has no transcript'
      detail = f'{list_path}: utterance {utterance_id} {reason}.'
    elif path is None:
      reason = 'has no audio file'
      detail = f'{stem}{_SUFFIXES[0]} is listed but missing.'
    else:
      try:
        transcript = text.normalize_english(
            texts[utterance_id], name=utterance_id
        )
      except text.TranscriptError as e:
        reason, detail = e.reason, str(e)
    seen.add(utterance_id)
    if reason is not None:
      problems.append(
          utterances.Problem(speaker, utterance_id, reason, detail)
      )
    else:
      listed.append(
          utterances.Utterance(speaker, utterance_id, transcript, path)
      )
  # Sorted, so that dropped.tsv is the same each time.
  for utterance_id in sorted(texts.keys() - seen):
    detail = f'{list_path} does not list utterance {utterance_id}.'
    problems.append(
        utterances.Problem('', utterance_id, 'has no audio file', detail)
    )
  return utterances.Listing(listed, problems)


def _find_audio(stem: str) -> str | None:
  """The audio file of an utterance, if there is one."""
  for suffix in _SUFFIXES:
    if os.path.isfile(stem + suffix):
      return stem + suffix
  return None


def _read_transcripts(
    path: str, problems: list[utterances.Problem]
) -> dict[str, str]:
  """Utterance ids to texts; adds unreadable lines to `problems`."""
  texts: dict[str, str] = {}
  for _, line in text_files.read_lines(path):
    line = line.strip()
    match = _LINE.fullmatch(line)
    if not line:
      continue
    if not match:
      reason = text_files.UNREADABLE
      detail = f'{path}: cannot read {line!r}; it should end with (ID).'
      problems.append(utterances.Problem('', line, reason, detail))
    elif match['id'] in texts:
      detail = f'{path}: utterance {match["id"]} occurs twice.'
      problems.append(
          utterances.Problem('', match['id'], 'occurs twice', detail)
      )
    else:
      texts[match['id']] = match['text']
  return texts


CORPUS = conversion.Corpus(
    name='AN4',
    namespace='AN4',
    list_utterances=list_utterances,
    holds_split=lambda folder, split: os.path.isfile(
        os.path.join(folder, 'etc', f'an4_{split}.fileids')
    ),
    default_splits=('train',),
)

if __name__ == '__main__':
  conversion.main(lambda: CORPUS)
