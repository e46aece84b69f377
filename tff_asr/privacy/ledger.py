"""The privacy ledger: an append-only file with one line a round.

A run may release (save, evaluate, show) a round's model only after `append`
has returned, which is after the round is on disk. So the file never lags
behind what has been seen; after a crash it may be ahead of the saved program
state. Lines are JSON, the first one a header:

    {"kind": "header", "format_version": 2, "run_id": ..., "unit": "speaker",
     "private": true, "fixed_seeds": [], "inherited": 0, "parents": [],
     "previous": "", "hash": ...}
    {"kind": "round", "index": 0, "round_num": 1, "event": {"sampling":
     {"kind": "poisson", "cohort_size": 10, "population": 1000},
     "noise_multipliers": [1.0]}, "configuration": DIGEST, "identity": DIGEST,
     "result": DIGEST, "previous": HASH, "hash": HASH}

The lines are chained by their hashes (`hash_chain`), and the program state
holds the head, (number of rounds, last hash): a ledger that was deleted,
edited, shortened or reordered since is refused. It names no member of a
cohort.

Rounds charged twice, or not:
- The identity of a round is a digest of all that decides its noisy sum: keys,
  counters, state, configuration. Resuming from a state that the ledger is
  ahead of and repeating the very same round, with the same bits as its result,
  releases nothing new: it is recognized among the lines ahead of that state
  and not charged again.
- The same round with another result (other data, code or rounding) would set
  the same noise on two sums: `NoiseReuseError`; repeat it with a new key.
- A different round there (another configuration, a new key) is charged in
  addition; what is in the ledger stays charged.
- A run that starts from another run's model starts from its ledger, whatever
  its clients: `inherited` rounds of `parents` (another unit: `ledger_apart`).
"""

from collections.abc import Mapping, Sequence
import copy
import os
import secrets
from typing import Any, NamedTuple, Optional

from absl import logging

from tff_asr.privacy import accounting
from tff_asr.privacy import hash_chain
from tff_asr.privacy import ledger_rounds
from tff_asr.privacy import file_identity

Round = ledger_rounds.Round
round_identity = ledger_rounds.round_identity

_FORMAT_VERSION = 2
_STARTS = (b'{"apart": ', b'{"fixed_seeds": ')


class LedgerError(ValueError):
  """The ledger on disk is not the one that the program state belongs to."""


class NoiseReuseError(LedgerError):
  """A round that is charged already came out differently, with its noise."""


class Head(NamedTuple):
  """What the program state keeps: rounds charged and the last line's hash."""

  count: int
  digest: str


class Contents(NamedTuple):
  """What a ledger says.

  Attributes:
    run_id: Random name of the run.
    unit: What one client is.
    fixed_seeds: Not empty means NOT PRIVATE.
    inherited: How many of the rounds are of runs that this one started from.
    rounds: All charged rounds.
    apart: Heads of the ledgers of other units that its model cost, by unit.
  """

  run_id: str
  unit: str
  fixed_seeds: tuple[str, ...]
  inherited: int
  rounds: list[accounting.RoundGroup]
  apart: dict[str, Head]


class Ledger:
  """An open ledger; holds a lock on its file until `close`.

  Made by `create` and `resume`; a context manager.
  """

  def __init__(
      self,
      path: str,
      *,
      descriptor: int,
      lines: list[hash_chain.Line],
      position: int,
  ):
    self._path = path
    self._descriptor = descriptor
    self._lines = lines
    self._position = position  # rounds that the program state knows of
    self._charges = ledger_rounds.Charges(lines[1:])

  @property
  def head(self) -> Head:
    """The head as of the last round appended: save it with that round."""
    return Head(self._position, self._lines[self._position]['hash'])

  @property
  def contents(self) -> Contents:
    return _contents(self._lines[0], self._charges)

  def append(self, charged: Round) -> bool:
    """Charges a round; when this returns the round is on disk.

    Args:
      charged: The round about to be released.

    Returns:
      True if it was charged; False if it is the identical round that the
      ledger already holds ahead of the program state.

    Raises:
      OSError: If it cannot be written; the file is then as before.
      NoiseReuseError: If the ledger holds this round with another result.
      LedgerError: If a round of the same identity differs otherwise.
    """
    ahead = self._lines[self._position + 1 :]
    for line in ahead:
      if line['identity'] == charged.identity:
        again = ledger_rounds.to_line(
            charged, after=line['index'], hash_=line['previous']
        )
        if line['result'] != again['result']:
          raise NoiseReuseError(
              f'Round {charged.round_num} is in {self._path} already, but came '
              'out differently this time: draw a new noise key for it.'
          )
        if line != again:
          raise LedgerError(
              f'Round {charged.round_num} has the identity of a round in '
              f'{self._path} but is another one: its identity must cover its '
              'sampling and noise.'
          )
        self._position = line['index'] + 1
        return False
    if ahead:
      logging.warning(
          '%d rounds after the saved state stay charged in the ledger; round '
          '%d differs from them and is charged in addition.',
          len(ahead), charged.round_num,
      )
    index = len(self._lines) - 1
    line = ledger_rounds.to_line(
        charged, after=index, hash_=self._lines[-1]['hash']
    )
    hash_chain.append(self._descriptor, line)
    self._lines.append(line)
    self._position = index + 1
    self._charges.add(line)
    return True

  def holds(self, identity: str) -> bool:
    """Whether this round is charged already, ahead of the program state."""
    ahead = self._lines[self._position + 1 :]
    return any(line['identity'] == identity for line in ahead)

  def rounds_with(
      self,
      *,
      sampling: accounting.Sampling,
      noise_multipliers: Sequence[float],
      round_num: int,
  ) -> list[accounting.RoundGroup]:
    """What would be charged after one more round (see `Round`)."""
    charges = copy.deepcopy(self._charges)
    charges.add_round(
        sampling=sampling,
        noise_multipliers=noise_multipliers,
        round_num=round_num,
    )
    return charges.rounds

  @property
  def place(self) -> int:
    """What tells this file from a copy of it; see `file_identity.of`."""
    return file_identity.of(self._path, self._descriptor)

  def close(self) -> None:
    """Closes the file and frees its lock."""
    if self._descriptor >= 0:
      os.close(self._descriptor)
      self._descriptor = -1

  def __enter__(self) -> 'Ledger':
    return self

  def __exit__(self, *unused_error: Any) -> None:
    self.close()


def create(
    path: str,
    *,
    unit: Optional[str] = None,
    fixed_seeds: Sequence[str] = (),
    parent: Optional[str] = None,
    parent_head: Optional[Head] = None,
    apart: Mapping[str, Head] | None = None,
) -> Ledger:
  """Starts the ledger of a new run, in place of one without rounds of its own.

  Args:
    path: The file; its folder exists.
    unit: What is protected: one client of this kind; None: that of the parent,
      or 'speaker'.
    fixed_seeds: Names of the keys that a seed fixed, such as 'NOISE_SEED'.
    parent: Ledger of the run whose model this one starts from, whose rounds
      and fixed seeds it takes over; None: there is none.
    parent_head: Head of that ledger as kept with the model.
    apart: See `Contents`; None: there are none.

  Raises:
    LedgerError: If `path` holds rounds or something else or is in use, the
      parent is not the ledger of `parent_head`, or it charges rounds of another
      unit, which cannot be added to these.
  """
  inherited = [] if parent is None else _read(parent, head=parent_head)
  if unit is None:
    unit = inherited[0]['unit'] if inherited else 'speaker'
  if inherited[1:] and inherited[0]['unit'] != unit:
    raise LedgerError(
        f'The privacy ledger {parent} protects each {inherited[0]["unit"]}, '
        f'this run each {unit}: what they cost cannot be added up.'
    )
  descriptor = _open_locked(path, new=True)
  try:
    if os.path.getsize(path) and not hash_chain.is_torn_start(path, _STARTS):
      lines = _read(path)
      charged = len(lines) - 1 - lines[0]['inherited']
      if charged:
        raise LedgerError(
            f'The privacy ledger {path} already charges {charged} rounds: '
            'resume that run from its saved state, or take another directory.'
        )
    fixed = [name for line in inherited[:1] for name in line['fixed_seeds']]
    fixed += [name for name in fixed_seeds if name not in fixed]
    lines = [hash_chain.seal({
        'kind': 'header',
        'format_version': _FORMAT_VERSION,
        'run_id': secrets.token_hex(8),
        'unit': unit,
        'private': not fixed,
        'fixed_seeds': fixed,
        'inherited': len(inherited[1:]),
        'parents': [
            run_id
            for line in inherited[:1]
            for run_id in [*line['parents'], line['run_id']]
        ],
        **({'apart': apart} if apart else {}),
    }, previous='')]
    for index, line in enumerate(inherited[1:]):
      charged_round = ledger_rounds.from_line(line, index=index)
      lines.append(ledger_rounds.to_line(
          charged_round, after=index, hash_=lines[-1]['hash']
      ))
    os.ftruncate(descriptor, 0)
    hash_chain.append(descriptor, *lines)
    hash_chain.sync_folder(path)
  except BaseException:
    os.close(descriptor)
    raise
  return Ledger(
      path, descriptor=descriptor, lines=lines, position=len(inherited[1:])
  )


def resume(path: str, *, head: Head) -> Ledger:
  """Opens the ledger that belongs to a saved program state.

  Args:
    path: The file.
    head: `Ledger.head` as it was saved with the state.

  Raises:
    LedgerError: If the file is missing, edited, shortened, reordered or of
      another run, or is in use.
  """
  head = Head(int(head.count), str(head.digest))
  if not os.path.exists(path):
    raise LedgerError(
        f'The privacy ledger {path} is missing, but the saved state has '
        f'{head.count} charged rounds: put the file back.'
    )
  descriptor = _open_locked(path)
  try:
    lines = _read(path, head=head)
    for unit, other in lines[0].get('apart', {}).items():
      read(hash_chain.path_beside(path, unit), head=Head(*other))
    hash_chain.cut_torn_line(descriptor, lines)
  except BaseException:
    os.close(descriptor)
    raise
  return Ledger(path, descriptor=descriptor, lines=lines, position=head.count)


def read(path: str, *, head: Optional[Head] = None) -> Contents:
  """Reads a ledger file, open elsewhere or not.

  Its chain is checked; lines missing at its end show only against a head.

  Raises:
    LedgerError: If the file was edited, is no ledger, or is not the one of
      `head`.
  """
  lines = _read(path, head=head)
  return _contents(lines[0], ledger_rounds.Charges(lines[1:]))


def read_charges(
    path: str, *, head: Optional[Head] = None
) -> ledger_rounds.Charges:
  """As `read`: what a ledger's rounds cost, to add further ones to."""
  return ledger_rounds.Charges(_read(path, head=head)[1:])


def _contents(
    header: hash_chain.Line, charges: ledger_rounds.Charges
) -> Contents:
  """The header's fields and the rounds."""
  return Contents(
      run_id=header['run_id'],
      unit=header['unit'],
      fixed_seeds=tuple(header['fixed_seeds']),
      inherited=header['inherited'],
      rounds=charges.rounds,
      apart={u: Head(*h) for u, h in header.get('apart', {}).items()},
  )


def _read(
    path: str, *, head: Optional[Head] = None
) -> list[hash_chain.Line]:
  """Reads a ledger and checks its chain, the fields of each line, the head."""
  if not os.path.exists(path):
    raise LedgerError(f'The privacy ledger {path} is missing: put it back.')
  try:
    lines = hash_chain.read(path)
  except hash_chain.ChainError as error:
    raise LedgerError(f'The privacy ledger {error}') from None
  header = lines[0] if lines else {}
  if header.get('kind') != 'header':
    raise LedgerError(f'{path} is not a privacy ledger: it has no header.')
  if header.get('format_version') != _FORMAT_VERSION:
    raise LedgerError(
        f'The privacy ledger {path} has format version '
        f'{header.get("format_version")!r}; this program reads '
        f'{_FORMAT_VERSION}.'
    )
  try:
    _contents(header, ledger_rounds.Charges())
    if not 0 <= header['inherited'] < len(lines) or not isinstance(
        header['parents'], list
    ):
      raise ValueError('it inherits rounds that it has not')
    for index, line in enumerate(lines[1:]):
      ledger_rounds.from_line(line, index=index)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise LedgerError(
        f'The privacy ledger {path} is not well formed: {error}.'
    ) from None
  if head is None:
    return lines
  charged = len(lines) - 1
  if charged < head.count:
    raise LedgerError(
        f'The privacy ledger {path} was shortened: it charges {charged} '
        f'rounds, the saved state {head.count}. Put the whole file back.'
    )
  if head.count < 0 or lines[head.count]['hash'] != head.digest:
    raise LedgerError(
        f'The privacy ledger {path} is not the one of the saved state: its '
        f'first {head.count} rounds were rewritten, or it is of another run.'
    )
  return lines


def _open_locked(path: str, *, new: bool = False) -> int:
  """As `hash_chain.open_locked`, naming the ledger."""
  try:
    return hash_chain.open_locked(path, new=new)
  except hash_chain.ChainError as error:
    raise LedgerError(f'The privacy ledger {error}') from None
