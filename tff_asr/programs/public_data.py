"""Public data of a run, checked against the data that it promises to protect.

A guarantee takes the seed model, the dev set and the scores of layers to be
public. It is worth nothing to a speaker whose recordings trained that seed
model without noise, or are in the dev set that is shown exactly. So a run is
refused if digests (`data.digests`) show that some are, or says NOT PRIVATE and
why, if it is told to go on. A speaker is found by id or by any recording. Where
the ledger protects examples, recordings count and other recordings of the same
speakers do not.

A run's folder has the digests of whom its model heard, with those of the runs
that it started from:

    exposed    trained on without a guarantee, or decided on the weights
    speaker    trained on privately, all recordings of a speaker as the unit
    example    trained on privately, a recording as the unit

They lie beside the model and never in it: without the salt they tell nothing,
but whoever gets a model needs none of them. What has no digests under this
user's salt is not checked, and the statement says so.
"""

from collections.abc import Iterable, Iterator, Mapping
import os
from typing import Any, NamedTuple, Optional

from absl import logging
import dp_accounting

from tff_asr.data import digests as digests_lib
from tff_asr.storage import run_dir

FILE = 'heard.digests'
REFUSE = 'refuse'
NOT_PRIVATE = 'not_private'
ACTIONS = (REFUSE, NOT_PRIVATE)

_EXPOSED = 'exposed'
_UNITS = ('speaker', 'example')

Heard = Mapping[str, digests_lib.Digests]
"""Digests of whom a model heard, by 'exposed', 'speaker' and 'example'."""


class Check(NamedTuple):
  """Findings of the check of a run.

  Attributes:
    voids: Reasons for which no guarantee holds, as `ledger.Contents.voids`.
    unchecked: What could not be compared, or not as a whole.
    heard: Whom the run's model hears.
  """

  voids: tuple[str, ...]
  unchecked: tuple[str, ...]
  heard: Heard

  @property
  def words(self) -> str:
    """The findings in words, to go on after a list of what is public."""
    if self.voids:
      return f'but {"; ".join(self.voids)}'
    if self.unchecked:
      return (
          'taken to be so and not checked, for want of digests under one salt: '
          + ', '.join(self.unchecked)
      )
    return 'their digests have no private speaker or recording among them'


class Figures(NamedTuple):
  """Count of the people in some figures who are private in a model's training.

  Attributes:
    private_speakers: Speakers whom the ledger protects.
    private_recordings: Recordings that it protects, of those or alone.
    is_checked: False if some data have no digests under one salt.
  """

  private_speakers: int
  private_recordings: int
  is_checked: bool

  @property
  def words(self) -> str:
    """A warning; empty if there is nothing to warn of."""
    if not self.private_speakers and not self.private_recordings:
      return '' if self.is_checked else (
          'Whether these speakers are private in the training of this model '
          'was not checked, for want of digests under one salt.'
      )
    return (
        f'NOT PRIVATE: {self.private_speakers:,} of these speakers and '
        f'{self.private_recordings:,} of these recordings are private in the '
        "training of this model. Figures of them are exact, and the model's "
        'guarantee does not cover them.'
    )


def check(training: Any, process_state: Any) -> Check:
  """Compares what a run calls public with what it, or its seed, protects.

  Args:
    training: A `training_loop.TrainingRun`.
    process_state: Its process's first state, which tells whether there is
      noise.

  Raises:
    ValueError: They share speakers or recordings, and `on_shared_data` is not
      'not_private'; the message counts them and names nobody. Or a file of
      digests is damaged.
  """
  own = _digests(training.client_data)
  is_protected = _is_protected(training, process_state)
  sources = {
      label: read(run) for label, run in _sources(training).items()
  }
  dev = None
  if training.evaluator is not None:
    dev = _digests(getattr(training.evaluator, 'client_data', None))
  voids, unchecked = [], []
  for private, unit, whose, label, other in _pairs(
      own if is_protected else None,
      unit=training.PRIVACY_UNIT,
      sources=sources,
      others={'the dev set': dev}
      | ({} if is_protected else {'the training data': own}),
  ):
    found = digests_lib.shared(private, other)
    if void := _void(found, unit=unit, whose=whose, label=label):
      voids.append(void)
    if not found.is_known:
      unchecked.append(label)
  if voids and training.on_shared_data == REFUSE:
    raise ValueError(
        f'{"; ".join(voids)}: take data without them (--partition of data_tools'
        f' divides a corpus by speaker), or set ON_SHARED_DATA to'
        f' {NOT_PRIVATE!r} to train without a guarantee.'
    )
  unchecked = tuple(dict.fromkeys(unchecked))
  for text in voids:
    logging.warning('NOT PRIVATE: %s.', text)
  if unchecked:
    logging.warning(
        'Taken to be public without a check, for want of digests under one '
        'salt: %s.', ', '.join(unchecked)
    )
  if is_protected and training.PRIVACY_UNIT == 'speaker':
    _warn_of_twins(digests_lib.num_twins(own))
  if dev is not None and not is_protected:
    _warn_of_heard_speakers(digests_lib.shared(dev, own))
  decides = dev is not None and getattr(training, 'patience', None) is not None
  return Check(
      tuple(voids),
      unchecked,
      _union([
          *sources.values(),
          {training.PRIVACY_UNIT if is_protected else _EXPOSED: own},
          {_EXPOSED: dev} if decides else {},
      ]),
  )


def write(run: str, heard: Heard) -> None:
  """Adds to whom the model in a run's folder heard."""
  path = os.path.join(run, FILE)
  before = _read(path) if os.path.exists(path) else {}
  digests_lib.write(path, _union([before, heard]))


def read(run: str) -> Heard:
  """Whom the model in a run's folder heard; unknown without the file.

  A run without a ledger has promised nothing to anybody.

  Raises:
    ValueError: The file is damaged, or another one.
  """
  path = os.path.join(run, FILE)
  if os.path.exists(path):
    return _read(path)
  heard = {_EXPOSED: digests_lib.UNKNOWN}
  if os.path.exists(os.path.join(run, run_dir.LEDGER)):
    heard |= dict.fromkeys(_UNITS, digests_lib.UNKNOWN)
  return _union([heard])


def _read(path: str) -> Heard:
  """Whom a file says that a model heard."""
  heard = digests_lib.read(path)
  # A kind that is missing, as all are in a corpus' file, is not nobody.
  if heard.keys() != {_EXPOSED, *_UNITS}:
    raise ValueError(
        f'{path} does not tell whom a model heard: put it back, or delete it, '
        'and that counts as not known.'
    )
  return heard


def of_figures(run: str, client_data: Any) -> Figures:
  """Counts the people of a data set who are private in a run's training.

  Args:
    run: The folder of the run whose model was evaluated.
    client_data: The data set.
  """
  heard, evaluated = read(run), _digests(client_data)
  by_unit = [digests_lib.shared(evaluated, heard[unit]) for unit in _UNITS]
  return Figures(
      by_unit[0].speakers,
      sum(found.recordings for found in by_unit),
      all(found.is_known for found in by_unit),
  )


def _pairs(
    own: Optional[digests_lib.Digests],
    *,
    unit: str,
    sources: Mapping[str, Heard],
    others: Mapping[str, Optional[digests_lib.Digests]],
) -> Iterator[
    tuple[digests_lib.Digests, str, str, str, digests_lib.Digests]
]:
  """Pairs to compare: private data, unit, whose; a label, public data."""
  private = [] if own is None else [(own, unit, '', None)]
  private += [
      (heard[each], each, f' of {label}', label)
      for label, heard in sources.items()
      for each in _UNITS
      if heard[each] != digests_lib.NOBODY
  ]
  public = others | {l: heard[_EXPOSED] for l, heard in sources.items()}
  for data, each, whose, source in private:
    for label, other in public.items():
      # What one model heard of both kinds was compared when it was trained.
      if other is not None and label != source:
        yield data, each, whose, label, other


def _void(
    found: digests_lib.Shared, *, unit: str, whose: str, label: str
) -> str:
  """Why there is no guarantee; empty if there is."""
  if unit == 'example':
    if not found.recordings:
      return ''
    return f'{label} has {found.recordings:,} of the private recordings{whose}'
  if not found.speakers:
    return ''
  return (
      f'{label} has {found.speakers:,} of the {found.num_speakers:,} private '
      f'speakers{whose} ({found.recordings:,} recordings)'
  )


def _sources(training: Any) -> dict[str, str]:
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
  if training.sampling is None or training.privacy.voids:
    return False
  event = dp_accounting.DpEvent.from_named_tuple(
      process_state.aggregator.dp_event
  )
  return event.noise_multiplier > 0


def _digests(client_data: Any) -> digests_lib.Digests:
  """Digests of data that have some; of others they are not known."""
  return getattr(client_data, 'digests', digests_lib.UNKNOWN)


def _union(heard: Iterable[Heard]) -> Heard:
  """Whom several models heard, all three kinds."""
  heard = list(heard)
  return {
      kind: digests_lib.union(
          *(each[kind] for each in heard if kind in each)
      )
      for kind in (_EXPOSED, *_UNITS)
  }


def _warn_of_twins(number: int) -> None:
  """Logs how many private speakers share a recording.

  The statement must not: the number follows from private data, exactly.
  """
  if number:
    logging.warning(
        '%d private speakers have a recording that another has, too: if one '
        'person is there under two ids, what is promised is half as much.',
        number,
    )


def _warn_of_heard_speakers(found: digests_lib.Shared) -> None:
  """Logs a warning if the dev speakers of a run without a guarantee train.

  Readers would mistake their word error rates for those of people whom the
  model never heard.
  """
  if found.speakers:
    logging.warning(
        '%d of the %d dev speakers train, too: word error rates are not of '
        'people whom the model never heard. Divide the corpus by speaker '
        '(--partition of data_tools).',
        found.speakers,
        found.num_speakers,
    )
