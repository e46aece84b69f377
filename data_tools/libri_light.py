"""Libri-Light (https://github.com/facebookresearch/libri-light) to shards.

    python -m data_tools.libri_light --source_dir=libri_light \\
        --output_dir=data/libri_light --splits=small --max_sec=16

The layout is SPLIT/SPEAKER/**/NAME.flac, next to each NAME.json with the voice
activity; --source_dir may also hold the published SPLIT.tar. A client is a
speaker; there are no transcripts. A recording is cut at silences into records
of at most --max_sec seconds; one without voice activity is cut at equal
lengths.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import functools
import os

from absl import flags

from data_tools import conversion
from data_tools import utterances

_MAX_SEC = flags.DEFINE_float(
    'max_sec', 30.0, 'Records are at most this long.', lower_bound=0.1
)

_SUFFIXES = ('.flac', '.wav')


def list_utterances(
    source_dir: str, *, split: str, max_sec: float = 30.0
) -> utterances.Listing:
  """Lists a split; the only problem is JSON without audio.

  Args:
    source_dir: The folder that holds the split's folder.
    split: Such as 'small'.
    max_sec: Records are at most this long.

  Raises:
    ValueError: If the split's folder is missing or has no audio.
  """
  split_dir = os.path.join(source_dir, split)
  if not os.path.isdir(split_dir):
    raise ValueError(
        f'{split_dir} is not a folder; set --source_dir and --splits.'
    )
  listed: list[utterances.Utterance] = []
  problems: list[utterances.Problem] = []
  for folder, folders, names in os.walk(split_dir):
    folders.sort()
    relative = os.path.relpath(folder, split_dir)
    speaker = relative.split(os.sep)[0]
    # Chapters may have hundreds of files.
    present = frozenset(names)
    if relative == '.':
      continue
    for name in sorted(names):
      stem, suffix = os.path.splitext(name)
      utterance_id = os.path.join(relative, stem).replace(os.sep, '/')
      has_audio = any(stem + s in present for s in _SUFFIXES)
      if suffix in _SUFFIXES:
        activity = f'{stem}.json'
        listed.append(
            utterances.Utterance(
                client_id=speaker,
                utterance_id=utterance_id,
                # Pre-training needs no transcripts.
                transcript=None,
                audio=os.path.join(folder, name),
                cutting=utterances.Cutting(
                    max_sec=max_sec,
                    activity_path=os.path.join(folder, activity)
                    if activity in present
                    else None,
                ),
            )
        )
      elif suffix == '.json' and not has_audio:
        detail = f'{os.path.join(folder, name)} has no audio next to it.'
        problems.append(
            utterances.Problem(
                speaker, utterance_id, 'has no audio file', detail
            )
        )
  if not listed:
    raise ValueError(
        f'{split_dir} holds no audio (SPEAKER/**/NAME.flac); check'
        ' --source_dir and --splits.'
    )
  return utterances.Listing(listed, problems)


def corpus(max_sec: float) -> conversion.Corpus:
  """Returns Libri-Light, cut into records of at most `max_sec` seconds."""
  return conversion.Corpus(
      name='Libri-Light',
      namespace='LibriVox',
      list_utterances=functools.partial(list_utterances, max_sec=max_sec),
      holds_split=lambda folder, split: os.path.isdir(
          os.path.join(folder, split)
      ),
      default_splits=('small',),
  )


if __name__ == '__main__':
  conversion.main(lambda: corpus(_MAX_SEC.value), flag_names=('max_sec',))
