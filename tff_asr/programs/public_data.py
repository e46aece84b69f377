"""Public data of a run, checked against the data that it promises to protect.

A guarantee assumes that the seed model, the dev set and the layer scores are
public. It is void for a speaker if the seed model was trained on that speaker
without noise, or if error rates of that speaker are published with the dev set.
A run with such a private speaker is refused. With
`on_shared_data='not_private'` it trains, and its report says NOT PRIVATE and
why.

Speakers are compared by id, within the namespace of their corpus: LibriSpeech
and Libri-Light number the same readers of LibriVox; an AN4 speaker of the same
id is someone else. One person with two ids is not found.

`trained_on.json` in a run's folder lists all people whom the run, or a command
with its model, has touched, each corpus with its role (`ROLES`): private ones
are protected by the run's ledger, the others are public. Every command compares
its people with the list, and then adds them; docs/privacy.md ("What is public")
has the table. Later runs inherit what their model depends on: those who trained
it or chose its weights, and those whom its ledger protects. The file names no
speaker: a later run reads the ids from the corpora, if they still exist with
the same clients, which a digest shows. The digest confirms a guess at the whole
list of clients, so only the file's owner may read it.
"""

from collections.abc import Iterable, Mapping, Sequence
import hashlib
import json
import os
from typing import Any, NamedTuple, Optional

from absl import logging
import tensorflow_federated as tff

from tff_asr import files
from tff_asr.data import client_data as client_data_lib
from tff_asr.data import index
from tff_asr.storage import run_dir

FILE = 'trained_on.json'
REFUSE = 'refuse'
NOT_PRIVATE = 'not_private'
ACTIONS = (REFUSE, NOT_PRIVATE)


# What was done with people: they trained the model or, as a dev set, chose its
# weights (`selected`); exact error rates of a dev or test set were shown, or a
# language model has their words (`tuning`); or they were evaluated, or their
# words counted, under the run's ledger.
ROLES = (
    'trained', 'selected', 'dev', 'tuning', 'test', 'evaluated', 'counted'
)
# Exact figures of these are shown with this run; its model does not depend on
# them, and so runs that start from it do not either.
_SHOWN = ('dev', 'tuning', 'test')
_PROTECTED = ('evaluated', 'counted')


class Source(NamedTuple):
  """A corpus, and what a run or a command with its model did with its people.

  Attributes:
    is_private: Whether the run's ledger protects its speakers.
    folder: The corpus, absolute; '' for data that are not on disk.
    speakers_sha256: Digest of the list of its namespace and speakers.
    role: One of `ROLES`.
  """

  is_private: bool
  folder: str
  speakers_sha256: str
  role: str = 'trained'


class _Speakers(NamedTuple):
  """Speakers by namespace and id; unless `is_complete`, there may be more."""

  ids: frozenset[tuple[str, str]]
  is_complete: bool = True


class OverlapFindings(NamedTuple):
  """Findings of the check of a run.

  Attributes:
    invalidations: Reasons for which no guarantee holds, as in
      `ledger.Contents`.
    unchecked: What could not be compared completely.
    sources: The people of the run and those that it inherits.
  """

  invalidations: tuple[str, ...]
  unchecked: tuple[str, ...]
  sources: tuple[Source, ...]

  @property
  def words(self) -> str:
    """The findings in words, to continue a list of what is public."""
    if self.invalidations:
      return f'but {"; ".join(self.invalidations)}'
    if self.unchecked:
      return (
          'taken to be so; the ids of their speakers could not be compared: '
          + ', '.join(self.unchecked)
      )
    return 'by their ids, no private speaker is among them'


class OverlapCounts(NamedTuple):
  """How many evaluated speakers are private in a model's training.

  Attributes:
    private_speakers: Number of speakers that the ledger protects.
    is_checked: False if some ids could not be compared.
  """

  private_speakers: int
  is_checked: bool

  @property
  def words(self) -> str:
    """A warning, or ''."""
    if self.private_speakers:
      return (
          f'NOT PRIVATE: {self.private_speakers:,} of these speakers are '
          'private in the training of this model. These error rates are exact, '
          "and the model's guarantee does not cover them."
      )
    return '' if self.is_checked else (
        'Whether these speakers are private in the training of this model '
        'could not be checked: a corpus is missing, or has other clients now.'
    )


def check_overlap(
    *,
    train_data: tff.simulation.datasets.ClientData,
    dev_data: Optional[tff.simulation.datasets.ClientData],
    selects_on_dev: bool,
    parent_runs: Mapping[str, str],
    is_protected: bool,
    on_shared_data: str,
) -> OverlapFindings:
  """Compares what a run calls public with what it, or its parents, protect.

  Args:
    train_data: The data that the run trains on.
    dev_data: Its dev set, or None.
    selects_on_dev: Whether the dev set decides which weights are exported.
    parent_runs: Folders of the runs that it builds on, by what it takes.
    is_protected: Whether noise under secret keys protects `train_data`.
    on_shared_data: One of `ACTIONS`.

  Raises:
    ValueError: They share speakers, and `on_shared_data` is not 'not_private'.
      The message counts them and names none. Or a file is damaged.
  """
  train = _speakers(train_data)
  dev = None if dev_data is None else _speakers(dev_data)
  sources = [source(train_data, is_private=is_protected)]
  if dev_data is not None:
    # Weights that the dev set selects reveal something of it.
    role = 'selected' if selects_on_dev else 'dev'
    sources.append(source(dev_data, is_private=False, role=role))
  # By owner; '' is this run. Each owner's private speakers are looked for in
  # what the others show.
  private = {'': train} if is_protected else {}
  public = {} if dev is None else {'the dev set': dev}
  if not is_protected:
    # Without noise this run exposes its speakers, also those that a parent
    # protects.
    public['the training data'] = train
  for label, run in parent_runs.items():
    found = [each for each in read(run) if each.role not in _SHOWN]
    sources += found
    private[label] = _read_speakers(each for each in found if each.is_private)
    public[label] = _read_speakers(
        each for each in found if not each.is_private
    )
  invalidations, unchecked = _compare(private, public)
  _report(invalidations, unchecked, on_shared_data=on_shared_data)
  if dev is not None and not is_protected:
    _warn_of_trained_dev_speakers(train, dev)
  return OverlapFindings(
      invalidations, unchecked, tuple(dict.fromkeys(sources))
  )


def _report(
    invalidations: Sequence[str],
    unchecked: Sequence[str],
    *,
    on_shared_data: str,
) -> None:
  """Logs what was found, or raises ValueError if it is to be refused."""
  if invalidations and on_shared_data == REFUSE:
    raise ValueError(
        f'{"; ".join(invalidations)}: take data without them (--partition of '
        'data_tools divides a corpus by speaker), or set ON_SHARED_DATA to '
        f'{NOT_PRIVATE!r} to train without a guarantee.'
    )
  for text in invalidations:
    logging.warning('NOT PRIVATE: %s.', text)
  if unchecked:
    logging.warning(
        'Taken to be public, but the ids of their speakers could not be '
        'compared (a corpus is missing, or has other clients now): %s.',
        ', '.join(unchecked),
    )


def _warn_of_trained_dev_speakers(train: _Speakers, dev: _Speakers) -> None:
  """Warns that the error rates are not those of new speakers."""
  if shared := train.ids & dev.ids:
    logging.warning(
        '%d of the %d dev speakers are also trained on: their word error rates '
        'are not those of unseen people. Divide the corpus by speaker '
        '(--partition of data_tools).',
        len(shared),
        len(dev.ids),
    )


def _compare(
    private: Mapping[str, _Speakers], public: Mapping[str, _Speakers]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """Returns `OverlapFindings.invalidations` and `OverlapFindings.unchecked`."""
  invalidations, unchecked = [], []
  for owner, protected in private.items():
    for label, shown in public.items():
      if label == owner:
        continue  # Compared when that model was trained.
      if count := len(protected.ids & shown.ids):
        invalidations.append(
            f'{label} has {count:,} of the {len(protected.ids):,} private '
            f'speakers{owner and f" of {owner}"}'
        )
      if not _is_compared(protected, shown):
        unchecked.append(label)
  # Each label once, in order: several owners may be compared with it.
  return tuple(invalidations), tuple(dict.fromkeys(unchecked))


def source(
    client_data: tff.simulation.datasets.ClientData,
    *,
    is_private: bool,
    role: str = 'trained',
) -> Source:
  """Returns the entry of trained_on.json for some data."""
  corpus = client_data_lib.corpus_of(client_data)
  if corpus is None:
    # In memory: a later run finds no ids, and calls them not compared.
    return Source(is_private, '', '', role)
  speakers = _digest(_speakers(client_data))
  return Source(is_private, corpus.path, speakers, role)


def write(run: str, sources: Iterable[Source]) -> None:
  """Adds to the people of a run."""
  # A resumed run may have more data: earlier entries stay.
  before = read(run) if os.path.exists(os.path.join(run, FILE)) else []
  entries = [each._asdict() for each in dict.fromkeys([*before, *sources])]
  text = json.dumps(entries, indent=1) + '\n'
  # Its digests confirm guesses of a list of clients.
  files.write(os.path.join(run, FILE), text.encode(), mode=0o600)


def check(
    run: str, client_data: tff.simulation.datasets.ClientData, *, role: str
) -> OverlapCounts:
  """Compares people with those of a finished run, before a command uses them.

  Args:
    run: The run's folder.
    client_data: The people.
    role: What the command does with them: 'evaluated' and 'counted' protect
      them, 'tuning' and 'test' show exact figures.

  Returns:
    How many are private in the run; above 0 for 'test' alone.

  Raises:
    ValueError: They are to be protected, and some are public in the run; or a
      language model is to depend on private ones.
  """
  own, protects = _speakers(client_data), role in _PROTECTED
  others = [each for each in read(run) if each.is_private != protects]
  shared = {
      name: own.ids & _read_speakers(s for s in others if s.role == name).ids
      for name in ROLES
  }
  roles = ', '.join(name for name, ids in shared.items() if ids)
  found = OverlapCounts(
      len(frozenset().union(*shared.values())),
      _is_compared(_read_speakers(others), own),
  )
  count = found.private_speakers
  if count and protects:
    raise ValueError(
        f'{count:,} of the {len(own.ids):,} people are public in '
        f'{run} ({roles}), and what is shown of them cannot be protected from '
        'now on: take people without them.'
    )
  if count and role == 'tuning':
    raise ValueError(
        f'{count:,} speakers are private in {run} ({roles}): a '
        'language model that depends on them would not be covered by its '
        'guarantee. Give other public data, or LM_WEIGHT, WORD_BONUS and '
        'LM_TEMPERATURE.'
    )
  if not found.is_checked and protects:
    _report((), [f'people of {run}'], on_shared_data=REFUSE)
  return found


def add(
    run: str, client_data: tff.simulation.datasets.ClientData, *, role: str
) -> OverlapCounts:
  """Compares people with those of a finished run, then adds them to these.

  See `check` for the arguments, the result and errors.
  """
  found = check(run, client_data, role=role)
  record(run, client_data, role=role)
  return found


def record(
    run: str, client_data: tff.simulation.datasets.ClientData, *, role: str
) -> None:
  """Adds people whom `check` has compared to those of a finished run."""
  # With `read`: an unknown list stays unknown.
  write(run, [
      *read(run), source(client_data, is_private=role in _PROTECTED, role=role)
  ])


def read(run: str) -> list[Source]:
  """Returns the people of a run.

  Without the file it is unknown; without a ledger, the run promised no privacy.

  Raises:
    ValueError: The file is damaged.
  """
  path = os.path.join(run, FILE)
  try:
    return files.read_json(
        path,
        _parse,
        remedy='put it back, or delete it, and what the model was trained on '
        'counts as not known',
    )
  except FileNotFoundError:
    # Two unknown sources in place of none: no data must pass as compared.
    has_ledger = os.path.exists(os.path.join(run, run_dir.LEDGER))
    return [Source(False, '', '')] + [Source(True, '', '')] * has_ledger


def _parse(entries: Sequence[Mapping[str, Any]]) -> list[Source]:
  """The entries of trained_on.json, also of older ones."""
  roles = {False: 'trained', True: 'evaluated'}
  found = []
  for entry in entries:
    fields = dict(entry)
    was_evaluated = fields.pop('is_evaluated', False)
    each = Source(**{'role': roles[was_evaluated], **fields})
    if (
        not isinstance(each.is_private, bool)
        or not isinstance(each.folder, str)
        or each.role not in ROLES
    ):
      raise ValueError('an entry has a value of another kind')
    found.append(each)
  # Older lists have no dev sets.
  is_old = found and not any('role' in each for each in entries)
  return [*found, *([Source(False, '', '', 'dev')] if is_old else [])]


def is_trained_on(
    run: str, client_data: tff.simulation.datasets.ClientData
) -> bool:
  """Whether a run trained privately on this very list of speakers.

  Args:
    run: The run's folder.
    client_data: The data set; False for data in memory.
  """
  digest = source(client_data, is_private=True).speakers_sha256
  return bool(digest) and any(
      each.is_private and each.role == 'trained'
      for each in read(run)
      if each.speakers_sha256 == digest
  )


def count_overlap(
    run: str, client_data: tff.simulation.datasets.ClientData
) -> OverlapCounts:
  """Counts the speakers of a data set who are private in a run's training.

  Args:
    run: The folder of the run with the evaluated model.
    client_data: The data set.
  """
  return check(run, client_data, role='test')


def _is_compared(private: _Speakers, other: _Speakers) -> bool:
  """False if there may be more shared speakers than were found."""
  # Complete and empty: it shares no speaker, whatever the other lacks.
  none = _Speakers(frozenset())
  return none in (private, other) or private.is_complete and other.is_complete


def _speakers(
    client_data: tff.simulation.datasets.ClientData,
) -> _Speakers:
  """Speakers of a data set; unknown for data in memory."""
  corpus = client_data_lib.corpus_of(client_data)
  if corpus is None:
    return _Speakers(frozenset(), is_complete=False)
  return _of_corpus(corpus, client_data.client_ids)


def _of_corpus(corpus: index.Corpus, client_ids: Iterable[str]) -> _Speakers:
  """Speakers of a corpus."""
  # Two corpora may number other people alike, or the same people.
  namespace = str(corpus.origin.get('namespace', ''))
  return _Speakers(frozenset((namespace, each) for each in client_ids))


def _read_speakers(sources: Iterable[Source]) -> _Speakers:
  """Speakers of corpora on disk."""
  ids, is_complete = frozenset(), True
  for each in sources:
    try:
      corpus, clients, _ = index.read(each.folder)
    except (ValueError, OSError):  # Gone, damaged, or not this user's.
      is_complete = False
      continue
    found = _of_corpus(corpus, clients.client_ids)
    # The corpus may have been written again with other clients.
    if _digest(found) == each.speakers_sha256:
      ids |= found.ids
    else:
      is_complete = False
  return _Speakers(ids, is_complete)


def _digest(speakers: _Speakers) -> str:
  """SHA-256 of a list of speakers, hexadecimal."""
  return hashlib.sha256(json.dumps(sorted(speakers.ids)).encode()).hexdigest()
