"""N-gram language model of text, as an ARPA file.

    python -m data_tools.ngram --input=data/an4/train.public --order=3 \\
        --output=public.arpa
    python -m data_tools.ngram --input=data/an4/train.public --order=3 \\
        --private_input=data/an4/train.private --run=runs/dp --epsilon=1 \\
        --output=private.arpa

The input are text files (a sentence a line), or folders of shards, of which the
transcripts are read; several are separated by commas. It must be public: a
model of private transcripts would reveal what people said. The private part of
a corpus is refused.

The second command also takes private transcripts, under differential privacy:
counts of the bigrams of public words get noise, once, and the ledger of the run
that protects these speakers is charged (`programs.count_release`).

The model is for bin/transcribe.py --lm and for KenLM. Its first line is a
comment with the name of the public text, its SHA-256, its number of sentences,
the order, and what private text cost. `kneser_ney` has the estimate.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import collections
from collections.abc import Iterator, Sequence
import hashlib
import itertools
import json
import os
from typing import Any

from absl import flags
import numpy as np
import tensorflow as tf

from data_tools import kneser_ney
from data_tools import text as text_lib
from data_tools import text_files
from tff_asr import files
from tff_asr.data import index
from tff_asr.data import schema

# Records that are parsed together.
_BATCH_SIZE = 256
_PRIVATE = 'private'
# Public words of which private bigrams are counted, the most frequent ones.
_MAX_WORDS = 4096


def transcripts(folder: str) -> Iterator[tuple[str, str]]:
  """Yields client ids and transcripts of a folder of shards.

  Those of a client come one after the other.

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
      for client_id, transcript in zip(
          batch[schema.CLIENT_ID].numpy(), batch[schema.TRANSCRIPT].numpy()
      ):
        yield client_id.decode(), transcript.decode()
  except tf.errors.DataLossError as e:
    raise ValueError(
        f'{folder} has a shard that is damaged: copy or write the corpus again.'
    ) from e


def read_public(
    paths: Sequence[str],
    *,
    normalises: bool,
    alphabet: str | None = None,
    language: str = '',
) -> tuple[str, list[str], list[str]]:
  """Reads public text.

  Args:
    paths: Text files and folders of shards.
    normalises: Whether lines of text files become what transcripts are, as by
      `data_tools.text.sentences`.
    alphabet: See there.
    language: See there.

  Returns:
    Its name, its sentences without empty ones, and a remark on each kind of
    change to the lines of a file.

  Raises:
    ValueError: Something cannot be read, or is the private part of a corpus.
  """
  names, sentences, remarks = [], [], []
  for path in paths:
    name = os.path.basename(os.path.normpath(path))
    if os.path.isdir(path):
      origin = index.read(path).corpus.origin
      if _PRIVATE in (origin.get('part'), name):
        raise ValueError(
            f'{path} is the private part of a corpus: a language model of it '
            'would reveal what its speakers said. Name public text here, and '
            'this with --private_input.'
        )
      names.append(_name_of(path))
      sentences += [text for _, text in transcripts(path) if text]
    else:
      names.append(name)
      found, changes = text_lib.sentences(
          [line for _, line in text_files.read_lines(path)],
          normalises=normalises,
          alphabet=alphabet,
          language=language,
      )
      sentences += found
      remarks += changes.remarks(name)
  return ', '.join(names), sentences, remarks


def bigram_counts(
    folder: str, words: Sequence[str], *, vocabulary: Sequence[str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields each speaker's counts of bigrams.

  Args:
    folder: A folder of shards.
    words: W words whose bigrams are counted, with <unk>, <s> and </s>. <unk>
      stands for words outside of the vocabulary.
    vocabulary: Known words, a superset of `words`.

  Yields:
    Client id, indices int64 [n] in a table [W, W] of a word and the next one,
    and counts int64 [n].
  """
  columns = {word: i for i, word in enumerate(words)}
  unknown = columns[kneser_ney.UNKNOWN]
  # Other known words have no column.
  columns_of_all = dict.fromkeys(vocabulary) | columns
  by_client = itertools.groupby(transcripts(folder), key=lambda pair: pair[0])
  for client_id, spoken in by_client:
    counts = collections.Counter()
    for _, transcript in spoken:
      sentence = (kneser_ney.START, *transcript.split(), kneser_ney.END)
      numbers = [columns_of_all.get(word, unknown) for word in sentence]
      counts.update(
          first * len(words) + second
          for first, second in itertools.pairwise(numbers)
          if first is not None and second is not None
      )
    yield (
        client_id,
        np.fromiter(counts.keys(), np.int64),
        np.fromiter(counts.values(), np.int64),
    )


def add_private(
    model: kneser_ney.Model,
    sentences: Sequence[str],
    *,
    folder: str,
    public_folders: Sequence[str],
    run: str,
    epsilon: float,
    delta: float | None,
    allows_not_private: bool = False,
) -> tuple[kneser_ney.Model, dict[str, Any], str]:
  """Adds noised counts of private text to a model of public text.

  Args:
    model: The model.
    sentences: Its text.
    folder: The run's private data.
    public_folders: Folders of shards that the text is from.
    run: A finished run; its ledger is charged.
    epsilon: Of the counts alone.
    delta: As for `count_release.release`.
    allows_not_private: As for `count_release.release`.

  Returns:
    The model, what the ARPA file says about it, and the privacy report of run
    and counts together.

  Raises:
    ValueError: As `count_release.release`.
  """
  # Late: it takes seconds to load, and public text does not need it.
  # pylint: disable-next=g-import-not-at-top
  from tff_asr.programs import count_release

  frequencies = collections.Counter(' '.join(sentences).split())
  special = (kneser_ney.UNKNOWN, kneser_ney.START, kneser_ney.END)
  # <unk> may stand in the text.
  words = list(dict.fromkeys([
      *special, *(word for word, _ in frequencies.most_common(_MAX_WORDS))
  ]))
  released = count_release.release(
      run,
      bigram_counts(folder, words, vocabulary=model.vocabulary),
      corpus=folder,
      public_corpora=public_folders,
      num_elements=len(words) ** 2,
      epsilon=epsilon,
      delta=delta,
      allows_not_private=allows_not_private,
  )
  model = kneser_ney.with_bigram_counts(
      model,
      released.counts.reshape([len(words), len(words)]),
      words=words,
      stddev=released.stddev,
  )
  private = {
      'text': _name_of(folder),
      'epsilon': epsilon,
      'delta': released.delta,
      'ledger': list(released.head),
      # Of the run's models and these counts together.
      'verdict': released.report.verdict,
  }
  return model, private, str(released.report)


def _name_of(folder: str) -> str:
  """Name of a folder of shards, such as 'AN4 train.public'."""
  corpus = index.read(folder).corpus.origin.get('corpus', '')
  return f'{corpus} {os.path.basename(os.path.normpath(folder))}'.strip()


def _main(argv: Sequence[str]) -> None:
  del argv
  for flag in (_INPUT, _OUTPUT):
    if not flag.value:
      raise ValueError(f'--{flag.name} is needed; see --help.')
  private_flags = (_PRIVATE_INPUT, _RUN, _EPSILON)
  is_private = any(flag.value is not None for flag in private_flags)
  if is_private and not all(flag.value is not None for flag in private_flags):
    raise ValueError(
        'private text needs --private_input, --run and --epsilon; see --help.'
    )
  try:
    prune = [int(each) for each in _PRUNE.value]
  except ValueError as e:
    raise ValueError(
        f'--prune takes numbers, as 0,0,1; found {",".join(_PRUNE.value)}.'
    ) from e
  name, sentences, remarks = read_public(
      _INPUT.value,
      normalises=_TEXT.value == 'normalise',
      alphabet=_ALPHABET.value,
      language=_CASING.value,
  )
  model = kneser_ney.estimate(
      [sentence.split() for sentence in sentences],
      order=_ORDER.value,
      prune=prune,
  )
  facts = {
      'text': name,
      'text_sha256': hashlib.sha256('\n'.join(sentences).encode()).hexdigest(),
      'num_sentences': len(sentences),
      'order': _ORDER.value,
  }
  report = ''
  if is_private:
    model, facts['private'], report = add_private(
        model,
        sentences,
        folder=_PRIVATE_INPUT.value,
        public_folders=[*filter(os.path.isdir, _INPUT.value)],
        run=_RUN.value,
        epsilon=_EPSILON.value,
        delta=_DELTA.value,
        allows_not_private=_ALLOW_NOT_PRIVATE.value,
    )
  files.write_text(
      _OUTPUT.value, kneser_ney.arpa(model, comment=json.dumps(facts))
  )
  kept = ', '.join(
      f'{int(ngrams.is_kept.sum()):,}' for ngrams in model.orders
  )
  print(
      f'{len(sentences):,} sentences of {name}; n-grams of order 1 to '
      f'{len(model.orders)}: {kept}'
  )
  for remark in remarks:
    print(remark)
  if report:
    print(f'The models of {_RUN.value} and this one together:\n{report}')


if __name__ == '__main__':
  _INPUT = flags.DEFINE_list(
      'input',
      None,
      'Public text files (.gz too) and folders of shards. Required.',
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
  _ALPHABET = flags.DEFINE_string(
      'alphabet',
      None,
      'As for data_tools.manifest: the letters; by default those of each file.',
  )
  _CASING = flags.DEFINE_enum(
      'casing',
      'default',
      ['default', *text_lib.LOWER_CASE],
      'As for data_tools.manifest: language of lower-casing.',
  )
  _PRIVATE_INPUT = flags.DEFINE_string(
      'private_input', None, 'Folder of shards: the private data of --run.'
  )
  _RUN = flags.DEFINE_string(
      'run', None, 'Folder of a finished run. Its ledger is charged.'
  )
  _EPSILON = flags.DEFINE_float(
      'epsilon', None, 'Of the counts of --private_input alone.'
  )
  _DELTA = flags.DEFINE_float(
      'delta', None, "By default that of the run's privacy report, if it suits."
  )
  _ALLOW_NOT_PRIVATE = flags.DEFINE_bool(
      'allow_not_private', False, 'Even if --run is NOT PRIVATE afterwards.'
  )
  launch.run(_main)
