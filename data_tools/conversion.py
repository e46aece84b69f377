"""What the programs that convert a corpus share: flags, partition, messages.

A corpus module lists the utterances of a split; this one deals its speakers
into parts, writes each part as a folder and says what it did. Errors become one
line and exit code 1 in `launch.run`.
"""

from collections.abc import Callable, Sequence
import os
from typing import Any

from absl import flags

from data_tools import shards
from data_tools import speaker_splits
from data_tools import summaries
from tff_asr import checks
from tff_asr.data import schema

# A split that was not whole was removed.
AFTER_INTERRUPT = 'the same command writes the splits that are missing.'

ListUtterances = Callable[..., Sequence[shards.Utterance]]

_SOURCE_DIR = flags.DEFINE_string(
    'source_dir', None, 'The corpus as its publisher ships it.'
)
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Where to write one folder a split (and part).'
)
_SPLITS = flags.DEFINE_list('splits', None, 'Splits to convert.')
_ENCODING = flags.DEFINE_enum(
    'encoding', 'pcm', schema.ENCODINGS, 'How audio is stored.'
)
_PARTITION = flags.DEFINE_string(
    'partition',
    '',
    'Deals the speakers of each split into parts, as'
    ' public=24,private=rest,test=10%,dev=@FILE; writes SPLIT.PART folders.',
)
_PARTITION_SEED = flags.DEFINE_integer(
    'partition_seed', 1, 'Which speakers go where.', lower_bound=0
)
_STRICT = flags.DEFINE_bool(
    'strict',
    True,
    'Stop at the first broken utterance; --nostrict leaves them out and lists'
    ' them in dropped.tsv.',
)
_OVERWRITE = flags.DEFINE_bool(
    'overwrite', False, 'Replace another corpus in the output folder.'
)


def convert(
    list_utterances: ListUtterances,
    *,
    corpus: str,
    source_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    splits: Sequence[str],
    encoding: str = 'pcm',
    partition: str = '',
    partition_seed: int = 1,
    strict: bool = True,
    overwrite: bool = False,
) -> dict[str, dict[str, Any]]:
  """Converts splits of a corpus to folders of shards.

  Args:
    list_utterances: `list_utterances(source_dir, split=split)` of a corpus.
    corpus: Its name, for the record.
    source_dir: The corpus as its publisher ships it.
    output_dir: Gets a folder SPLIT a split, or SPLIT.PART with a partition.
    splits: The splits, at least one.
    encoding: 'pcm' or 'flac'.
    partition: Empty, or as `speaker_splits.partition` takes it.
    partition_seed: Its seed.
    strict: As `shards.write_split` takes it.
    overwrite: As `shards.write_split` takes it.

  Returns:
    The summary (see `shards.write_split`) of each folder, by folder name.

  Raises:
    ValueError: If a source, the partition or an utterance is not as it should
      be. Every split is listed and dealt before anything is written.
  """
  if not splits:
    raise ValueError('splits must name at least one split, found none.')
  folders: dict[str, tuple[dict[str, Any], Sequence[shards.Utterance]]] = {}
  for split in splits:
    utterances = list_utterances(source_dir, split=split)
    origin = {'corpus': corpus, 'split': split}
    if not partition:
      folders[split] = origin, utterances
      continue
    parts = speaker_splits.partition(
        {u.client_id for u in utterances}, spec=partition, seed=partition_seed
    )
    for part, speakers in parts.items():
      chosen = frozenset(speakers)
      folders[f'{split}.{part}'] = (
          dict(
              origin,
              part=part,
              partition=partition,
              partition_seed=partition_seed,
          ),
          [u for u in utterances if u.client_id in chosen],
      )
  return {
      folder: shards.write_split(
          utterances,
          os.path.join(output_dir, folder),
          origin=origin,
          encoding=encoding,
          strict=strict,
          overwrite=overwrite,
      )
      for folder, (origin, utterances) in folders.items()
  }


def run(
    argv: Sequence[str],
    *,
    list_utterances: ListUtterances,
    corpus: str,
    default_splits: Sequence[str],
) -> None:
  """The main function of a corpus' program."""
  if len(argv) > 1:
    raise ValueError(f'Unknown argument {argv[1]!r}; see --help.')
  checks.raise_together([
      ValueError(f'--{flag.name} is needed; see --help.')
      for flag in (_SOURCE_DIR, _OUTPUT_DIR)
      if not flag.value
  ])
  checks.output_folders(output_dir=_OUTPUT_DIR.value)
  written = convert(
      list_utterances,
      corpus=corpus,
      source_dir=_SOURCE_DIR.value,
      output_dir=_OUTPUT_DIR.value,
      splits=_SPLITS.value or default_splits,
      encoding=_ENCODING.value,
      partition=_PARTITION.value,
      partition_seed=_PARTITION_SEED.value,
      strict=_STRICT.value,
      overwrite=_OVERWRITE.value,
  )
  for folder, summary in written.items():
    print(summaries.describe(folder, summary))
