"""Conversion of a corpus to folders of shards: flags, parts and messages.

A corpus module (`librispeech`, `common_voice`) lists the utterances of a split.
This module deals its speakers into parts (`speaker_splits`), writes each part
as a folder (`shards`) and prints a summary. Errors become one line and exit
code 1 in `launch.run`.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import os
import sys
from typing import Any

from absl import flags

from data_tools import archives
from data_tools import shards
from data_tools import speaker_splits
from data_tools import utterances as utterances_lib
from tff_asr import checks
from tff_asr import files
from tff_asr import launch
from tff_asr.data import audio
from tff_asr.data import summaries

_AFTER_INTERRUPT = 'the same command goes on after the last finished shard.'

ListUtterances = Callable[..., utterances_lib.Listing]

_SOURCE_DIR = flags.DEFINE_string(
    'source_dir', None, 'The corpus as published: a folder or an archive.'
)
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Where to write one folder a split (and part).'
)
_SPLITS = flags.DEFINE_list(
    'splits', None, 'Splits to convert; NAME=A+B writes two as one.'
)
_ENCODING = flags.DEFINE_enum(
    'encoding', 'pcm', audio.ENCODINGS, 'How audio is stored.'
)
_PARTITION = flags.DEFINE_string(
    'partition',
    '',
    'Deals the speakers of each split into parts, as public=10%,private=rest'
    ' (also 24, @FILE); writes SPLIT.PART folders.',
)
_PARTITION_SEED = flags.DEFINE_integer(
    'partition_seed', 1, 'Which speakers go where.', lower_bound=0
)
_IID = flags.DEFINE_bool(
    'iid',
    False,
    'Give each utterance to a random speaker of its part, for ablation; writes'
    ' SPLIT.iid folders.',
)
_NAMESPACE = flags.DEFINE_string(
    'namespace',
    None,
    'Whose ids the speaker ids are: in corpora of one namespace, equal ids are'
    " one speaker. By default the corpus'; a corpus of your own in another's"
    ' layout needs a name of its own.',
)
_ATTRIBUTES = flags.DEFINE_list(
    'attributes',
    None,
    'What to keep of what the corpus says of speakers, as gender,age; by'
    ' default all of it, empty for nothing.',
)
_MAX_UTTERANCE_SEC = flags.DEFINE_float(
    'max_utterance_sec', None, 'Leave out what is longer.', lower_bound=0.1
)
_STRICT = flags.DEFINE_bool(
    'strict',
    False,
    'Stop at the first broken utterance; else they are left out, counted and'
    ' listed in dropped.tsv.',
)
_OVERWRITE = flags.DEFINE_bool(
    'overwrite', False, 'Replace another corpus in the output folder.'
)
_MAX_SHARD_MB = flags.DEFINE_integer(
    'max_shard_mb', 256, 'A shard this large gets no further speaker.', 1
)
_WORKERS = flags.DEFINE_integer(
    'workers', None, 'Processes; by default one a core.', lower_bound=0
)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """A corpus that can be converted.

  Attributes:
    name: For the record.
    namespace: Whose ids its speaker ids are.
    list_utterances: `list_utterances(source_dir, split=split)` gives a
      `utterances.Listing`.
    holds_split: Whether a folder (str) holds a split (str).
    default_splits: Converted where none are named.
    is_named: Whether an archive's file name (str) says that it holds a split.
  """

  name: str
  namespace: str
  list_utterances: ListUtterances
  holds_split: Callable[[str, str], bool]
  default_splits: Sequence[str]
  is_named: Callable[[str, str], bool] = archives.is_named_after_split


@files.for_owner_only()
def convert(
    corpus: Corpus,
    *,
    source_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    splits: Sequence[str],
    partition: str = '',
    partition_seed: int = 1,
    is_iid: bool = False,
    namespace: str | None = None,
    attributes: Sequence[str] | None = None,
    **settings,
) -> dict[str, summaries.Summary]:
  """Converts splits of a corpus to folders of shards, for their owner alone.

  Args:
    corpus: What to convert.
    source_dir: The corpus as its publisher ships it: a folder or an archive.
    output_dir: Gets a folder SPLIT a split, or SPLIT.PART with a partition, or
      SPLIT.iid or SPLIT.PART.iid; and summary.json over all.
    splits: The splits, at least one; 'NAME=A+B' are two that become one of that
      name, in which a client of both is one.
    partition: Empty, or as `speaker_splits.partition` takes it.
    partition_seed: Its seed.
    is_iid: Whether to give each utterance to a random speaker of its part. Then
      nothing is known of a speaker.
    namespace: In place of the corpus' own.
    attributes: Which to keep of those that the corpus says of its speakers;
      None keeps all.
    **settings: encoding, strict, overwrite, num_workers and limits, as
      `shards.write_split` takes them.

  Returns:
    The summary (see `summaries.build`) of each folder, by folder name.

  Raises:
    ValueError: If a source, the partition or (strict) an utterance is not as it
      should be. Every split is listed and dealt before anything is written.
  """
  if is_iid and attributes:
    raise ValueError(
        f'attributes names {", ".join(attributes)}, but with iid a speaker has'
        " other speakers' utterances: leave one of them away."
    )
  scratch = archives.Scratch(os.path.join(output_dir, '.unpacked'))
  written = {}
  with scratch:
    folders: dict[str, tuple[dict[str, Any], utterances_lib.Listing]] = {}
    for split in splits:
      split, members = _parse(split)
      listing = _list(corpus, members, source_dir=source_dir, scratch=scratch)
      listing = listing._replace(
          attributes=_keep(listing.attributes, names=attributes)
      )
      origin = {'corpus': corpus.name, 'split': split}
      for part, chosen in _deal(listing, partition, seed=partition_seed):
        name, details = split, {}
        if part:
          name = f'{split}.{part}'
          details = {
              'part': part,
              'partition': partition,
              'partition_seed': partition_seed,
          }
        if is_iid:
          name, details['iid_seed'] = f'{name}.iid', partition_seed
          chosen = chosen._replace(
              utterances=speaker_splits.repartition(
                  chosen.utterances, seed=partition_seed
              ),
              attributes={},
          )
        folders[name] = origin | details, chosen
    for name, (origin, listing) in folders.items():
      written[name] = shards.write_split(
          listing.utterances,
          os.path.join(output_dir, name),
          origin=origin,
          namespace=corpus.namespace if namespace is None else namespace,
          problems=listing.problems,
          attributes=listing.attributes,
          **settings,
      )
      summaries.write_all(os.fspath(output_dir), {name: written[name]})
  return written


def _parse(split: str) -> tuple[str, Sequence[str]]:
  """A split's name and those that it is made of: 'train' or 'NAME=A+B'."""
  name, equals, members = split.partition('=')
  parts = members.split('+') if equals else [name]
  if not name or not all(parts) or len(set(parts)) < len(parts):
    raise ValueError(
        f'splits holds {split!r}; write a split as the corpus names it, or'
        ' NAME=A+B for several, each once, that become one.'
    )
  return name, parts


def _list(
    corpus: Corpus,
    splits: Sequence[str],
    *,
    source_dir: str | os.PathLike[str],
    scratch: archives.Scratch,
) -> utterances_lib.Listing:
  """Utterances, problems and attributes of splits together."""
  utterances: list[utterances_lib.Utterance] = []
  # Some problems are those of the whole corpus: each is reported once.
  problems: dict[utterances_lib.Problem, None] = {}
  attributes: dict[str, dict[str, frozenset[str]]] = {}
  for name in splits:
    folder = scratch.find(
        source_dir,
        split=name,
        holds_split=corpus.holds_split,
        is_named=corpus.is_named,
    )
    listing = corpus.list_utterances(folder, split=name)
    utterances += listing.utterances
    problems.update(dict.fromkeys(listing.problems))
    for attribute, said in listing.attributes.items():
      joined = attributes.setdefault(attribute, {})
      for client_id, values in said.items():
        joined[client_id] = joined.get(client_id, frozenset()) | values
  return utterances_lib.Listing(utterances, list(problems), attributes)


def _keep(
    attributes: utterances_lib.Attributes, *, names: Sequence[str] | None
) -> utterances_lib.Attributes:
  """Some attributes, in the order of `names`; None keeps all."""
  if names is None:
    return attributes
  for name in names:
    if name not in attributes:
      found = ', '.join(attributes) or 'nothing'
      raise ValueError(
          f'attributes names {name!r}, but the corpus says {found} of its'
          ' speakers; name those to keep, or omit the flag to keep all.'
      )
  return {name: attributes[name] for name in names}


def _deal(
    listing: utterances_lib.Listing,
    partition: str,
    *,
    seed: int,
) -> Iterator[tuple[str, utterances_lib.Listing]]:
  """Names of parts and what they hold; without a partition one part, ''."""
  if not partition:
    yield '', listing
    return
  speakers = {u.client_id for u in listing.utterances}
  parts = speaker_splits.partition(speakers, spec=partition, seed=seed)
  for number, (part, members) in enumerate(parts.items()):
    chosen = frozenset(members)
    # A problem of no listed speaker is reported with the first part.
    yield part, utterances_lib.Listing(
        [u for u in listing.utterances if u.client_id in chosen],
        [
            problem
            for problem in listing.problems
            if problem.client_id in chosen
            or (number == 0 and problem.client_id not in speakers)
        ],
        listing.attributes,
    )


def main(
    build: Callable[[], Corpus], *, flag_names: Sequence[str] = ()
) -> None:
  """The main function of a corpus' program.

  Args:
    build: Returns what to convert, once flags are parsed.
    flag_names: Of the corpus' own flags, for --help.
  """
  for flag in [
      *flags.FLAGS.get_key_flags_for_module(__name__),
      *(flags.FLAGS[name] for name in flag_names),
  ]:
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
  launch.run(
      lambda _: _convert_by_flags(build()), after_interrupt=_AFTER_INTERRUPT
  )


def _convert_by_flags(corpus: Corpus) -> None:
  """Converts what the flags say, and prints what became of it."""
  checks.raise_together([
      ValueError(f'--{flag.name} is needed; see --help.')
      for flag in (_SOURCE_DIR, _OUTPUT_DIR)
      if not flag.value
  ])
  checks.output_folders(output_dir=_OUTPUT_DIR.value)
  written = convert(
      corpus,
      source_dir=_SOURCE_DIR.value,
      output_dir=_OUTPUT_DIR.value,
      splits=_SPLITS.value or corpus.default_splits,
      partition=_PARTITION.value,
      partition_seed=_PARTITION_SEED.value,
      is_iid=_IID.value,
      namespace=_NAMESPACE.value,
      attributes=_ATTRIBUTES.value,
      num_workers=_WORKERS.value,
      encoding=_ENCODING.value,
      max_shard_bytes=_MAX_SHARD_MB.value * 2**20,
      max_utterance_sec=_MAX_UTTERANCE_SEC.value,
      strict=_STRICT.value,
      overwrite=_OVERWRITE.value,
  )
  print(summaries.table(written))
  for folder, summary in written.items():
    for remark in summaries.remarks(folder, summary):
      print(remark)
