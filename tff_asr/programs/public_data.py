"""Public data of a run, checked against the data that it promises to protect.

A guarantee takes the seed model, the dev set and the scores of layers to be
public. It is worth nothing to a speaker who trained that seed model without
noise, or is in the dev set that is shown exactly. So a run is refused if some
private speaker is, or says NOT PRIVATE and why, if it is told to go on.

Speakers are compared by id, within the namespace of their corpus: LibriSpeech
and Libri-Light number the same readers of LibriVox; an AN4 speaker of the same
id is someone else. Nothing finds one person under two ids.

`trained_on.json` in a run's folder lists the corpora that its model, and the
runs that it started from, were trained on: with a guarantee (private), or
without one (exposed, as is a dev set that chose the weights). It names no
speaker: a later run reads the ids from the corpora, if they are still there and
have the same clients. The digest by which it tells that confirms a guess at
the whole list of clients. So the file is for its owner alone, and its size does
not depend on the clients.
"""

from collections.abc import Iterable
import hashlib
import json
import os
from typing import Any, NamedTuple

from absl import logging
import dp_accounting

from tff_asr import files
from tff_asr.data import index
from tff_asr.storage import run_dir

FILE = 'trained_on.json'
REFUSE = 'refuse'
NOT_PRIVATE = 'not_private'
ACTIONS = (REFUSE, NOT_PRIVATE)


class Source(NamedTuple):
  """A corpus that a model was trained on.

  Attributes:
    is_private: Whether the run's ledger protects its speakers.
    folder: The corpus, absolute; '' for data that are not on disk.
    speakers_sha256: Digest of the list of its namespace and speakers.
  """

  is_private: bool
  folder: str
  speakers_sha256: str


class _Speakers(NamedTuple):
  """Speakers by namespace and id; not `is_known`: there may be more."""

  ids: frozenset[tuple[str, str]]
  is_known: bool = True


class Check(NamedTuple):
  """Findings of the check of a run.

  Attributes:
    invalidations: Why no guarantee holds, as in `ledger.Contents`.
    unchecked: What could not be compared, or not as a whole.
    sources: What the run's model is trained on, with the runs before it.
  """

  invalidations: tuple[str, ...]
  unchecked: tuple[str, ...]
  sources: tuple[Source, ...]

  @property
  def words(self) -> str:
    """The findings in words, to go on after a list of what is public."""
    if self.invalidations:
      return f'but {"; ".join(self.invalidations)}'
    if self.unchecked:
      return (
          'taken to be so; the ids of their speakers could not be compared: '
          + ', '.join(self.unchecked)
      )
    return 'by their ids, no private speaker is among them'


class Figures(NamedTuple):
  """Count of evaluated speakers who are private in a model's training.

  Attributes:
    private_speakers: Speakers whom the ledger protects.
    is_checked: False if the ids of some could not be compared.
  """

  private_speakers: int
  is_checked: bool

  @property
  def words(self) -> str:
    """A warning; empty if there is nothing to warn of."""
    if self.private_speakers:
      return (
          f'NOT PRIVATE: {self.private_speakers:,} of these speakers are '
          'private in the training of this model. Figures of them are exact, '
          "and the model's guarantee does not cover them."
      )
    return '' if self.is_checked else (
        'Whether these speakers are private in the training of this model '
        'could not be checked: a corpus is not there, or has other clients now.'
    )


def check(training: Any, process_state: Any) -> Check:
  """Compares what a run calls public with what it, or its seed, protects.

  Args:
    training: A `training_loop.TrainingRun`.
    process_state: Its process's first state, which tells whether there is
      noise.

  Raises:
    ValueError: They share speakers, and `on_shared_data` is not 'not_private';
      the message counts them and names nobody. Or a file is damaged.
  """
  own, dev = _speakers(training.client_data), None
  is_protected = _is_protected(training, process_state)
  sources = [source(training.client_data, is_private=is_protected)]
  private = {'': own} if is_protected else {}
  public = {}
  if training.evaluator is not None:
    dev_data = getattr(training.evaluator, 'client_data', None)
    dev = public['the dev set'] = _speakers(dev_data)
    if getattr(training, 'patience', None) is not None:
      sources.append(source(dev_data, is_private=False))
  if not is_protected:
    public['the training data'] = own
  for label, run in _runs(training).items():
    found = read(run)
    sources += found
    private[label] = _read_speakers(each for each in found if each.is_private)
    public[label] = _read_speakers(
        each for each in found if not each.is_private
    )
  invalidations, unchecked = [], []
  for whose, protected in private.items():
    for label, shown in public.items():
      if label == whose:
        continue  # Compared when that model was trained.
      if count := len(protected.ids & shown.ids):
        invalidations.append(
            f'{label} has {count:,} of the {len(protected.ids):,} private '
            f'speakers{whose and f" of {whose}"}'
        )
      if not _is_known(protected, shown):
        unchecked.append(label)
  if invalidations and training.on_shared_data == REFUSE:
    raise ValueError(
        f'{"; ".join(invalidations)}: take data without them (--partition of '
        'data_tools divides a corpus by speaker), or set ON_SHARED_DATA to '
        f'{NOT_PRIVATE!r} to train without a guarantee.'
    )
  for text in invalidations:
    logging.warning('NOT PRIVATE: %s.', text)
  unchecked = tuple(dict.fromkeys(unchecked))
  if unchecked:
    logging.warning(
        'Taken to be public, but the ids of their speakers could not be '
        'compared (a corpus is not there, or has other clients now): %s.',
        ', '.join(unchecked),
    )
  if dev is not None and not is_protected and (shared := own.ids & dev.ids):
    # Readers would take their error rates for those of unseen people.
    logging.warning(
        '%d of the %d dev speakers are also trained on: their word error rates '
        'are not those of unseen people. Divide the corpus by speaker '
        '(--partition of data_tools).',
        len(shared),
        len(dev.ids),
    )
  return Check(tuple(invalidations), unchecked, tuple(dict.fromkeys(sources)))


def source(client_data: Any, *, is_private: bool) -> Source:
  """Returns data as a later run finds them."""
  corpus = getattr(client_data, 'corpus', None)
  if corpus is None:
    return Source(is_private, '', '')
  return Source(is_private, corpus.path, _digest(_speakers(client_data)))


def write(run: str, sources: Iterable[Source]) -> None:
  """Adds to what the model in a run's folder was trained on."""
  before = read(run) if os.path.exists(os.path.join(run, FILE)) else []
  entries = [each._asdict() for each in dict.fromkeys([*before, *sources])]
  text = json.dumps(entries, indent=1) + '\n'
  files.write(os.path.join(run, FILE), text.encode(), mode=0o600)


def read(run: str) -> list[Source]:
  """What the model in a run's folder was trained on; unknown without the file.

  A run without a ledger has promised nothing to anybody.

  Raises:
    ValueError: The file is damaged.
  """
  path = os.path.join(run, FILE)
  try:
    found = [Source(**each) for each in files.parse_json(files.read(path))]
    for each in found:
      if not isinstance(each.is_private, bool) or not isinstance(
          each.folder, str
      ):
        raise ValueError('an entry has a value of another kind')
  except FileNotFoundError:
    has_ledger = os.path.exists(os.path.join(run, run_dir.LEDGER))
    return [Source(False, '', '')] + [Source(True, '', '')] * has_ledger
  except (ValueError, TypeError) as e:
    raise ValueError(
        f'{path} is damaged ({e}): put it back, or delete it, and what the '
        'model was trained on counts as not known.'
    ) from None
  return found


def of_figures(run: str, client_data: Any) -> Figures:
  """Counts the people of a data set who are private in a run's training.

  Args:
    run: The folder of the run whose model was evaluated.
    client_data: The data set.
  """
  private = _read_speakers(each for each in read(run) if each.is_private)
  evaluated = _speakers(client_data)
  return Figures(
      len(private.ids & evaluated.ids), _is_known(private, evaluated)
  )


def _is_known(private: _Speakers, other: _Speakers) -> bool:
  """False if there may be more shared speakers than were found."""
  nobody = _Speakers(frozenset())
  return nobody in (private, other) or private.is_known and other.is_known


def _speakers(client_data: Any) -> _Speakers:
  """Speakers of data; of such as are not on disk they are not known."""
  corpus = getattr(client_data, 'corpus', None)
  if corpus is None:
    return _Speakers(frozenset(), is_known=False)
  return _of_corpus(corpus, client_data.client_ids)


def _of_corpus(corpus: index.Corpus, client_ids: Iterable[str]) -> _Speakers:
  """Speakers of a corpus."""
  namespace = str(corpus.origin.get('namespace', ''))
  return _Speakers(frozenset((namespace, each) for each in client_ids))


def _read_speakers(sources: Iterable[Source]) -> _Speakers:
  """Speakers of corpora on disk."""
  ids, is_known = frozenset(), True
  for each in sources:
    try:
      corpus, clients, _ = index.read(each.folder)
    except (ValueError, OSError):  # Gone, damaged, or not this user's.
      is_known = False
      continue
    found = _of_corpus(corpus, clients.client_ids)
    if _digest(found) == each.speakers_sha256:
      ids |= found.ids
    else:
      is_known = False
  return _Speakers(ids, is_known)


def _digest(speakers: _Speakers) -> str:
  """SHA-256 of a list of speakers, hexadecimal."""
  return hashlib.sha256(json.dumps(sorted(speakers.ids)).encode()).hexdigest()


def _runs(training: Any) -> dict[str, str]:
  """Folders of the runs that a run starts from, by what to call them."""
  runs = {
      'the seed model (INIT_FROM_RUN)': training.init_from_run,
      'the layer scores (SCORES_RUN)': training.scores_run,
  }
  found = {}
  for label, run in runs.items():
    if run is not None:
      found.setdefault(os.path.realpath(run), (label, run))
  return dict(found.values())


def _is_protected(training: Any, process_state: Any) -> bool:
  """True if noise under secret keys protects what a run trains on."""
  if training.sampling is None or training.privacy.invalidations:
    return False
  event = dp_accounting.DpEvent.from_named_tuple(
      process_state.aggregator.dp_event
  )
  return bool(event.noise_multiplier > 0)
