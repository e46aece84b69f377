"""Conversion of a corpus to folders of shards: flags, parts and messages.

A corpus module (`librispeech`, `common_voice`) lists the utterances of a split.
This module splits its speakers into parts (`speaker_splits`), writes each part
as a folder (`shards`) and prints a summary. Errors become one line and exit
code 1 in `launch.run`.
"""

from collections.abc import (
    Callable, Collection, Iterable, Iterator, Mapping, Sequence
)
import dataclasses
import functools
import os
import shlex
import sys
from typing import NamedTuple

from absl import flags
import numpy as np

from data_tools import archives
from data_tools import parallel_encoding
from data_tools import shards
from data_tools import speaker_splits
from data_tools import text
from data_tools import utterances as utterances_lib
from tff_asr import checks
from tff_asr import files
from tff_asr import launch
from tff_asr import rounding
from tff_asr.data import audio
from tff_asr.data import index
from tff_asr.data import split_summary

_AFTER_INTERRUPT = 'the same command continues after the last finished shard.'

CORPUS_GIN = 'corpus.gin'

ListUtterances = Callable[..., utterances_lib.Listing]
Spell = Callable[
    [Mapping[str, utterances_lib.Listing]],
    tuple[str, dict[str, utterances_lib.Listing]],
]
# Settings of gin/programs, and the parts or splits that they may name.
_FOLDERS = {
    'TRAIN_DIR': ('public', 'train'),
    'PRIVATE_DIR': ('private', 'train'),
    'DEV_DIR': ('dev', 'validation'),
    'TEST_DIR': ('test',),
}
# Cohort sizes of gin/experiments/own_recordings{,_whisper}.gin, and of
# quickstart_federated_dp.gin; docs/own_recordings.md has one for few speakers.
_COHORT_SIZE, _PRIVATE_COHORT_SIZE, _SMALL_COHORT_SIZE = 4, 1000, 15
# Up to so many speakers, each is checked for a recording that can be decoded,
# of so many of theirs.
_FEW_SPEAKERS, _MAX_DECODED = 100, 8
# Characters of an example that is printed.
_MAX_EXAMPLE = 140

_SOURCE_DIR = flags.DEFINE_string(
    'source_dir',
    None,
    'The corpus as published: a folder or an archive. Required; but of a'
    ' manifest, the folder of its audio, by default its own.',
)
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir',
    None,
    'Where to write one folder a split (and part). Required.',
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
    'Divides the speakers of each split into parts, as public=10%,private=rest'
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
    'Namespace of the speaker ids: in corpora of one namespace, equal ids are'
    " one speaker. By default that of the corpus; choose a different one for"
    " your own corpus in another's layout.",
)
_ATTRIBUTES = flags.DEFINE_list(
    'attributes',
    None,
    'Attributes of speakers to keep, such as gender,age; by default all that'
    ' the corpus has, empty for none.',
)
_MAX_UTTERANCE_SEC = flags.DEFINE_float(
    'max_utterance_sec', None, 'Leave out longer utterances.', lower_bound=0.1
)
_STRICT = flags.DEFINE_bool(
    'strict',
    False,
    'Stop at the first broken utterance; else they are left out, counted and'
    ' listed in dropped.tsv.',
)
_DROP_COPIES = flags.DEFINE_bool(
    'drop_copies',
    False,
    'Leave out recordings with the samples of another one, also of another'
    ' part (of dev or test, if that is one of them); else they are counted.'
    ' Private pre-training refuses a corpus that has some.',
)
_MAX_DROPPED = flags.DEFINE_float(
    'max_dropped',
    0.1,
    'Exit code 1 if a larger share of the utterances was left out.',
    lower_bound=0.0,
    upper_bound=1.0,
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
    name: Name of the corpus, for the record.
    namespace: Namespace of its speaker ids.
    list_utterances: `list_utterances(source_dir, split=split)` gives a
      `utterances.Listing`.
    holds_split: Whether a folder (str) holds a split (str).
    default_splits: Converted where none are named.
    is_named: Whether an archive's file name (str) says that it holds a split.
    default_partition: How a number of speakers is divided where no partition is
      given; None: not at all. A split named '' gives its parts their own names.
    convert_transcripts: Puts the transcripts of all parts into one alphabet;
      returns its characters, which corpus.gin sets for training, and the
      listings. None: transcripts are in the tokens of a language.
    alphabet_source: Where those characters come from; empty: from transcripts
      of the first part.
    source_dir: Where no source is given; None: it must be.
    max_utterance_sec: Where no limit is given.
    has_words: Whether a transcript, as listed, may have something to learn.
  """

  name: str
  namespace: str
  list_utterances: ListUtterances
  holds_split: Callable[[str, str], bool]
  default_splits: Sequence[str]
  is_named: Callable[[str, str], bool] = archives.is_named_after_split
  default_partition: Callable[[int], str] | None = None
  convert_transcripts: Spell | None = None
  alphabet_source: str = ''
  source_dir: str | None = None
  max_utterance_sec: float | None = None
  has_words: Callable[[str], bool] = lambda transcript: transcript.strip() != ''


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
) -> dict[str, split_summary.Summary]:
  """Converts splits of a corpus to folders of shards that only you can read.

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
    **settings: encoding, strict, drop_copies, overwrite, num_workers and
      limits, as `shards.write_split` takes them.

  Returns:
    The summary (see `split_summary.summarize`) of each folder, by folder name.
    If recordings of it are in other folders, too, `shared` counts them by
    these.

  Raises:
    ValueError: If a source, the partition or (strict) an utterance is not as it
      should be. Every split is listed and divided before anything is written.
      If a split has nothing left to write; the others are written.
  """
  if is_iid and attributes:
    raise ValueError(
        f'attributes names {", ".join(attributes)}, but with iid a speaker has'
        " other speakers' utterances: leave one of them away."
    )
  # Next to the output, where there is room for the corpus.
  scratch = archives.Scratch(os.path.join(output_dir, '.unpacked'))
  with scratch:
    # All are listed before anything is written: errors come early.
    parts: dict[str, _Part] = {}
    for split in splits:
      members = [split]
      if split not in corpus.default_splits:
        split, members = _parse(split)
      listing = _list(corpus, members, source_dir=source_dir, scratch=scratch)
      listing = listing._replace(
          attributes=_keep(listing.attributes, names=attributes)
      )
      spec, usable = partition, frozenset()
      if spec or corpus.default_partition is not None:
        usable = _usable_speakers(corpus, listing.utterances, **settings)
      if not spec and corpus.default_partition is not None:
        spec = corpus.default_partition(len(usable))
      parts |= _parts_of_split(
          corpus.name, split, listing,
          partition=spec, seed=partition_seed, usable=usable, is_iid=is_iid,
      )
    characters = None
    if corpus.convert_transcripts is not None:
      characters, converted = corpus.convert_transcripts(
          {name: part.listing for name, part in parts.items()}
      )
      parts = {
          name: part._replace(listing=converted[name])
          for name, part in parts.items()
      }
    written, empty = _write_parts(
        parts,
        os.fspath(output_dir),
        namespace=corpus.namespace if namespace is None else namespace,
        **settings,
    )
    for name, summary in written.items():
      listing = parts[name].listing
      # Of several for a reason, the first.
      first = {each.reason: each.detail for each in listing.problems[::-1]}
      if corpus.convert_transcripts is not None:
        summary['examples'] = {**first, **listing.examples}
    path = os.path.join(output_dir, CORPUS_GIN)
    if empty and os.path.exists(path):
      os.remove(path)  # Its folders are not what it was written for.
    checks.raise_errors(empty)
    if characters is not None:
      files.write_text(
          path,
          _gin(
              output_dir,
              list(written),
              characters=characters,
              source=corpus.alphabet_source or _collected(next(iter(parts))),
          ),
      )
  return written


def _usable_speakers(
    corpus: Corpus,
    utterances: Sequence[utterances_lib.Utterance],
    *,
    num_workers: int | None = None,
    max_utterance_sec: float | None = None,
    **unused_settings,
) -> frozenset[str]:
  """Returns the speakers who have something to write, as far as is known.

  A file must be there, and the transcript have words. With few speakers, of
  whom one may be all of a part, one recording of each is also decoded.
  """
  by_speaker: dict[str, list[utterances_lib.Utterance]] = {}
  for utterance in utterances:
    transcript, path = utterance.transcript, utterance.audio
    if isinstance(path, utterances_lib.Clip):
      path = path.path
    if (transcript is None or corpus.has_words(transcript)) and (
        callable(path) or os.path.exists(path)
    ):
      by_speaker.setdefault(utterance.client_id, []).append(utterance)
  if len(by_speaker) > _FEW_SPEAKERS:
    return frozenset(by_speaker)
  usable = set()
  for number in range(_MAX_DECODED):
    tried = [
        found[number]
        for speaker, found in by_speaker.items()
        if speaker not in usable and number < len(found)
    ]
    outcomes = parallel_encoding.encode(
        tried,
        num_workers=num_workers,
        task_size=1,
        encoding='pcm',
        max_utterance_sec=max_utterance_sec,
    )
    for utterance, outcome in zip(tried, outcomes, strict=True):
      if outcome.records:
        usable.add(utterance.client_id)
  return frozenset(usable)


class _Part(NamedTuple):
  """A part of a split: where it comes from, and its utterances."""

  origin: dict[str, str | int]
  listing: utterances_lib.Listing


def _parts_of_split(
    corpus: str,
    split: str,
    listing: utterances_lib.Listing,
    *,
    partition: str,
    seed: int,
    usable: Collection[str],
    is_iid: bool,
) -> dict[str, _Part]:
  """Divides the speakers of a split among its parts, by folder name."""
  parts = {}
  for part, chosen in _divide(listing, partition, seed=seed, usable=usable):
    name, origin = split, {'corpus': corpus, 'split': split}
    if part:
      name = f'{split}.{part}' if split else part
      origin |= {
          'part': part, 'partition': partition, 'partition_seed': seed
      }
    if is_iid:
      name, origin['iid_seed'] = f'{name}.iid', seed
      chosen = chosen._replace(
          utterances=speaker_splits.repartition(chosen.utterances, seed=seed),
          attributes={},
      )
    parts[name] = _Part(origin, chosen)
  return parts


def _write_parts(
    parts: Mapping[str, _Part], output_dir: str, *, namespace: str, **settings
) -> tuple[dict[str, split_summary.Summary], list[shards.EmptySplitError]]:
  """Writes the parts; returns their summaries, and errors of empty ones."""
  written, empty = {}, []
  known: dict[str, np.ndarray] = {}
  # Of recordings in two parts, the copy is the one that is evaluated on.
  for name in sorted(parts, key=_is_evaluated):
    origin, listing = parts[name]
    folder = os.path.join(output_dir, name)
    try:
      written[name] = shards.write_split(
          listing.utterances,
          folder,
          origin=origin,
          namespace=namespace,
          problems=listing.problems,
          attributes=listing.attributes,
          others=np.concatenate([np.array([], np.int64), *known.values()]),
          **settings,
      )
    except shards.EmptySplitError as e:
      empty.append(e)
      continue
    # Of the written folder, also if it was there already.
    own = shards.read_fingerprints(folder)
    # A recording in two parts is trained and evaluated on.
    shared = {o: int(np.isin(own, each).sum()) for o, each in known.items()}
    if any(shared.values()):
      written[name]['shared'] = {o: n for o, n in shared.items() if n}
    known[name] = own
    split_summary.merge(output_dir, {name: written[name]})
  return written, empty


def _is_evaluated(name: str) -> bool:
  """Whether models are evaluated on a split or part."""
  options = _FOLDERS['DEV_DIR'] + _FOLDERS['TEST_DIR']
  return name.rpartition('.')[2] in options


def _collected(part: str) -> str:
  """Describes where the characters of a part's transcripts come from."""
  source = f'collected from the transcripts of {part}'
  if part.rpartition('.')[2] == 'public':
    return source
  return (
      f'{source}: of private speakers, which characters they use depends on '
      'private data and is NOT COVERED (--alphabet names them instead)'
  )


def _gin(
    output_dir: str | os.PathLike[str],
    names: Sequence[str],
    *,
    characters: str,
    source: str,
) -> str:
  """Returns a gin file that sets the folders and the alphabet."""
  lines = [
      '# Data and alphabet of these recordings: a --gin_file after that of an',
      '# experiment. No epsilon covers which characters speakers use, unless',
      '# --alphabet named them.',
      'from __gin__ import dynamic_registration',
      '',
      'from tff_asr.text import tokenizer',
      '',
  ]
  for setting in _FOLDERS:
    name = _folder(setting, names)
    if name is not None:
      folder = os.path.abspath(os.path.join(output_dir, name))
      lines.append(f'{setting} = {folder!r}')
  return '\n'.join([
      *lines,
      f'CHARACTERS = {characters!r}',
      'TOKENIZER = @tokenizer.CharTokenizer()',
      'tokenizer.CharTokenizer:',
      '  characters = %CHARACTERS',
      '  boundary = %LABEL_BOUNDARY',
      f'  source = {source!r}',
      '',
  ])


def _folder(setting: str, names: Iterable[str]) -> str | None:
  """The first part or split that fits a setting, or None."""
  options = _FOLDERS[setting]
  return next(
      (name for name in names if name.rpartition('.')[2] in options), None
  )


def _hints(
    output_dir: str, written: Mapping[str, split_summary.Summary]
) -> list[str]:
  """What to change, and commands that train on these parts."""
  lost = f'transcripts {text.LOST_DIGITS}'
  hints = [
      f'{name}: {warning}.'
      for name in written
      if not _is_evaluated(name)
      and (warning := split_summary.unit_warning(
          index.read(os.path.join(output_dir, name)).clients
      ))
  ]
  if any(lost in summary['changed'] for summary in written.values()):
    hints.append(
        'Write numbers as words, and convert again with --overwrite: without'
        ' their digits, some transcripts are not what is said.'
    )
  return hints + _commands(output_dir, written)


def _commands(
    output_dir: str, written: Mapping[str, split_summary.Summary]
) -> list[str]:
  """Commands that train on the parts that were written."""
  names = {name.rpartition('.')[2] for name in written}
  if _folder('DEV_DIR', written) is None:
    return [f'To train, add a dev split: {CORPUS_GIN} names none.']
  command = functools.partial(
      _command, corpus_gin=os.path.join(output_dir, CORPUS_GIN)
  )
  private = _folder('PRIVATE_DIR', written)
  speakers = written[private]['num_clients'] if private else _COHORT_SIZE
  if {'public', 'private'} <= names:
    few = [
        f'COHORT_SIZE = {min(speakers, _SMALL_COHORT_SIZE)}',
        'NOISE_MULTIPLIER = 0.012',
        'TARGET_EPSILON = None',
    ]
    is_few = speakers < _PRIVATE_COHORT_SIZE
    return [
        'To train on the public speakers:',
        *command('train_central', 'runs/public', 'quickstart_seed'),
        'To train on the private ones from there'
        + (', with so few NOT PRIVATE' if is_few else '')
        + ' (docs/own_recordings.md):',
        *command(
            'train_federated',
            'runs/private',
            'quickstart_federated_dp',
            "INIT_FROM_RUN = 'runs/public'",
            *(few if is_few else []),
        ),
    ]
  return [
      'To train from a public model (docs/pretrained.md):',
      *command(
          'train_federated',
          'runs/own',
          'own_recordings_whisper',
          *(
              [f'COHORT_SIZE = {speakers}'] if speakers < _COHORT_SIZE else []
          ),
      ),
      'Without one, name gin/experiments/own_recordings.gin in its place.',
  ]


def _command(
    program: str, run: str, experiment: str, *params: str, corpus_gin: str
) -> list[str]:
  """Lines of a command that can be pasted into a shell."""
  arguments = [
      f'--gin_file=gin/experiments/{experiment}.gin',
      f'--gin_file={shlex.quote(corpus_gin)}',
      *(f'--gin_param="{param}"' for param in params),
  ]
  first = f'  python bin/{program}.py --output_dir={run}'
  return ' \\\n      '.join([first, *arguments]).split('\n')


def _parse(split: str) -> tuple[str, Sequence[str]]:
  """Parses 'train' or 'NAME=A+B' into a split's name and its members."""
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
  # Members of one split may lie in different archives.
  listings = []
  for name in splits:
    folder = scratch.find(
        source_dir,
        split=name,
        holds_split=corpus.holds_split,
        is_named=corpus.is_named,
    )
    listings.append(corpus.list_utterances(folder, split=name))
  return join(listings)


def join(
    listings: Sequence[utterances_lib.Listing],
) -> utterances_lib.Listing:
  """Utterances, problems and attributes of several listings together."""
  utterances: list[utterances_lib.Utterance] = []
  # Some problems concern the whole corpus: report each once.
  problems: dict[utterances_lib.Problem, None] = {}
  attributes: dict[str, dict[str, frozenset[str]]] = {}
  for listing in listings:
    utterances += listing.utterances
    problems.update(dict.fromkeys(listing.problems))
    for attribute, by_client in listing.attributes.items():
      joined = attributes.setdefault(attribute, {})
      for client_id, values in by_client.items():
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


def _divide(
    listing: utterances_lib.Listing,
    partition: str,
    *,
    seed: int,
    usable: Collection[str],
) -> Iterator[tuple[str, utterances_lib.Listing]]:
  """Names and listings of parts; without a partition one part, ''.

  Only `usable` speakers are dealt to parts: a part of others would be empty.
  """
  if not partition:
    yield '', listing
    return
  others = {u.client_id for u in listing.utterances} - usable
  parts = speaker_splits.partition(
      usable, spec=partition, seed=seed, others=others
  )
  dealt = usable.union(*parts.values())
  for number, (part, members) in enumerate(parts.items()):
    # A set: a part may have tens of thousands of speakers.
    chosen = frozenset(members)
    # What is of no speaker who was dealt is reported with the first part.
    is_here = lambda each, chosen=chosen, number=number: (
        each.client_id in chosen
        or (number == 0 and each.client_id not in dealt)
    )
    yield part, utterances_lib.Listing(
        [*filter(is_here, listing.utterances)],
        [*filter(is_here, listing.problems)],
        listing.attributes,
    )


def main(
    build: Callable[[], Corpus], *, flag_names: Sequence[str] = ()
) -> None:
  """The main function of a corpus' program.

  Args:
    build: Returns what to convert, once flags are parsed.
    flag_names: Names of the corpus' own flags, for --help.
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
  """Converts a corpus by the flags, and prints a summary."""
  source_dir = _SOURCE_DIR.value or corpus.source_dir
  checks.raise_errors([
      ValueError(f'--{name} is needed; see --help.')
      for name, value in (
          ('source_dir', source_dir), ('output_dir', _OUTPUT_DIR.value)
      )
      if not value
  ])
  checks.output_folders(output_dir=_OUTPUT_DIR.value)
  # A corpus may have a limit of its own.
  max_utterance_sec = _MAX_UTTERANCE_SEC.value
  if max_utterance_sec is None:
    max_utterance_sec = corpus.max_utterance_sec
  written = convert(
      corpus,
      source_dir=source_dir,
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
      max_utterance_sec=max_utterance_sec,
      strict=_STRICT.value,
      drop_copies=_DROP_COPIES.value,
      overwrite=_OVERWRITE.value,
  )
  print(split_summary.table(written))
  for folder, summary in written.items():
    for remark in split_summary.remarks(folder, summary):
      # Some kinds of changes and reasons have an example.
      print(remark, *(
          f'Such as: {example:.{_MAX_EXAMPLE}}'
          for kind, example in summary.get('examples', {}).items()
          if f': {kind}: ' in remark or f', {kind}: ' in remark
      ), sep='. ')
  if corpus.convert_transcripts is not None:
    print('\n'.join(_hints(_OUTPUT_DIR.value, written)))
  # At the end: what could be used is written in any case.
  num_dropped = sum(sum(s['dropped'].values()) for s in written.values())
  total = num_dropped + sum(s['num_utterances'] for s in written.values())
  if num_dropped > rounding.whole(_MAX_DROPPED.value * total):
    raise ValueError(
        f'{num_dropped:,} of {total:,} utterances were left out; the others are'
        f' in {_OUTPUT_DIR.value}. {split_summary.DROPPED_FILE} says why: fix'
        ' them, or pass a larger --max_dropped.'
    )
