"""Your own corpus: folders of words, as in Speech Commands, to shards.

    python examples/corpus/spoken_words.py --source_dir=words \\
        --output_dir=data/words --splits=train

The layout is SPLIT/WORD/SPEAKER_*.wav (https://arxiv.org/abs/1804.03209).
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import os
import pathlib

from data_tools import conversion
from data_tools import utterances


def list_utterances(source_dir: str, *, split: str) -> utterances.Listing:
  """Lists a split: who says which word in which file."""
  listed, problems = [], []
  for path in sorted(pathlib.Path(source_dir, split).glob('*/*.wav')):
    word = path.parent.name
    speaker, _, number = path.stem.partition('_')
    utterance_id = f'{word}-{number}'
    if number:
      listed.append(
          utterances.Utterance(speaker, utterance_id, word, str(path))
      )
    else:
      problems.append(
          utterances.Problem('', utterance_id, 'has no speaker', str(path))
      )
  return utterances.Listing(listed, problems)


CORPUS = conversion.Corpus(
    name='Spoken words',
    namespace='spoken words',
    list_utterances=list_utterances,
    holds_split=lambda folder, split: os.path.isdir(
        os.path.join(folder, split)
    ),
    default_splits=('train',),
)

if __name__ == '__main__':
  conversion.main(lambda: CORPUS)
