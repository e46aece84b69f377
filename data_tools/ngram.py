"""N-gram language model of public text, as an ARPA file.

    python -m data_tools.ngram --input=data/an4/train.public --order=3 \\
        --output=public.arpa

The input are text files (a sentence a line), or folders of shards, of which the
transcripts are read; several are separated by commas. The text must be public:
a model of private transcripts reveals what people said, which no epsilon of a
run covers. The private part of a corpus is refused.

The model is for bin/transcribe.py --lm and for KenLM. Its first line is a
comment with the name of the text, its SHA-256, its number of sentences, and the
order. `kneser_ney` has the estimate.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

from collections.abc import Iterator, Sequence
import hashlib
import json
import os

from absl import flags
import tensorflow as tf

from data_tools import kneser_ney
from data_tools import text
from data_tools import text_files
from tff_asr import files
from tff_asr.data import index
from tff_asr.data import schema

# Records that are parsed together.
_BATCH_SIZE = 256
_PRIVATE = 'private'


def transcripts(folder: str) -> Iterator[str]:
  """Yields the transcripts of a folder of shards, in the order of its records.

  Args:
    folder: As data_tools writes it, of audio or of features.

  Raises:
    ValueError: It is not such a folder, or a shard is damaged.
  """
  corpus = index.read(folder).corpus
  records = tf.data.TFRecordDataset(
      [os.path.join(corpus.path, shard.name) for shard in corpus.shards]
  )
  try:
    for batch in records.batch(_BATCH_SIZE).map(schema.parse):
      for transcript in batch[schema.TRANSCRIPT].numpy():
        yield transcript.decode()
  except tf.errors.DataLossError as e:
    raise ValueError(
        f'{folder} has a shard that is damaged: copy or write the corpus again.'
    ) from e


def read_public(
    paths: Sequence[str], *, normalises: bool
) -> tuple[str, list[str]]:
  """Reads public text.

  Args:
    paths: Text files and folders of shards.
    normalises: Whether lines of text files become what transcripts are, as by
      `text.sentences`.

  Returns:
    Its name, and its sentences without empty ones.

  Raises:
    ValueError: Something cannot be read, or is the private part of a corpus.
  """
  names, sentences = [], []
  for path in paths:
    name = os.path.basename(os.path.normpath(path))
    if os.path.isdir(path):
      origin = index.read(path).corpus.origin
      if _PRIVATE in (origin.get('part'), name):
        raise ValueError(
            f'{path} is the private part of a corpus: a language model of it '
            'would reveal what its speakers said. Name public text.'
        )
      names.append(f'{origin.get("corpus", "")} {name}'.strip())
      sentences += filter(None, transcripts(path))
    else:
      names.append(name)
      sentences += text.sentences(
          [line for _, line in text_files.read_lines(path)],
          normalises=normalises,
      )
  return ', '.join(names), sentences


def _main(argv: Sequence[str]) -> None:
  del argv
  for flag in (_INPUT, _OUTPUT):
    if not flag.value:
      raise ValueError(f'--{flag.name} is needed; see --help.')
  try:
    prune = [int(each) for each in _PRUNE.value]
  except ValueError as e:
    raise ValueError(
        f'--prune takes numbers, as 0,0,1; found {",".join(_PRUNE.value)}.'
    ) from e
  name, sentences = read_public(
      _INPUT.value, normalises=_TEXT.value == 'normalise'
  )
  model = kneser_ney.estimate(
      [sentence.split() for sentence in sentences],
      order=_ORDER.value,
      prune=prune,
  )
  comment = json.dumps({
      'text': name,
      'text_sha256': hashlib.sha256('\n'.join(sentences).encode()).hexdigest(),
      'num_sentences': len(sentences),
      'order': _ORDER.value,
  })
  files.write_text(_OUTPUT.value, kneser_ney.arpa(model, comment=comment))
  kept = ', '.join(
      f'{int(ngrams.is_kept.sum()):,} of order {n}'
      for n, ngrams in enumerate(model.orders, start=1)
  )
  print(f'{len(sentences):,} sentences of {name}; n-grams: {kept}.')


if __name__ == '__main__':
  _INPUT = flags.DEFINE_list(
      'input', None, 'Text files (.gz too) and folders of shards. Required.'
  )
  _OUTPUT = flags.DEFINE_string(
      'output', None, 'The file to write, as public.arpa. Required.'
  )
  _ORDER = flags.DEFINE_integer(
      'order', 3, 'Words of the longest n-grams: 2 to 5.'
  )
  _PRUNE = flags.DEFINE_list(
      'prune',
      '0',
      'As for lmplz: 0,0,1 leaves out n-grams of 3 and more words that occur '
      'once.',
  )
  _TEXT = flags.DEFINE_enum(
      'text',
      'normalise',
      ['normalise', 'keep'],
      'As for data_tools.manifest: what becomes of lines of text files.',
  )
  launch.run(_main)
