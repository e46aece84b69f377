"""Privacy ledger: an append-only file of the rounds that a run charged.

A run releases (saves, evaluates, shows) a round's model only after `append` has
returned; by then the round is on disk. After a crash the ledger may therefore
be ahead of the saved state, never behind it.

    >>> cost = accounting.RoundGroup(
    ...     sampling=accounting.Sampling(
    ...         kind='poisson', cohort_size=10, population=1000),
    ...     noise_multiplier=1.0)
    >>> with create('ledger.jsonl') as opened:
    ...   opened.append(Round(round_num=0, cost=cost, identity='0' * 64))
    True
    >>> [group.count for group in read('ledger.jsonl').rounds]
    [1]

Lines are JSON. Fields of each line:

  kind           'header', the first line; 'round'; 'note'
  privacy_unit   what one client is, 'speaker' or 'example'. Costs of different
                 units hold for different data and are never added up
  previous       `hash` of the line before, '' in the header
  hash           SHA-256 of the line without it, as canonical JSON

The header also has `format_version`; `run_id`, random; `invalidations`, by
privacy unit, why no guarantee holds (`Contents`); `parents`, the run_id
of each run that this one started from, by the path of its ledger; and
`inherited`, how many of the next lines come from them. A round has the fields
of `Round` that are not None; a note has `what`, one of `NOTES`.

A run and the runs that it started from have one account. Parents may charge
more after the run began (an evaluation, counts, more rounds): whoever reads the
ledger also reads the parents' ledgers as they are now, and counts what is new.

Saved states and models hold the last hash, so a ledger that was edited,
reordered or cut short is refused. docs/privacy.md ("Ledger") says what is
charged when a round is repeated.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import copy
import dataclasses
import hashlib
import json
import os
import secrets
import types
from typing import Any, NamedTuple, Optional, TypeAlias

from absl import logging
import numpy as np

from tff_asr import checks
from tff_asr import files
from tff_asr.privacy import accounting
from tff_asr.privacy import keys
from tff_asr.privacy import strategies

# What a note may say about the rounds after it.
NOTES = (
    'copied',  # The folder is a copy; the original may continue as well.
    'exact_metrics',  # Metrics without noise are shown.
    'length_changed',  # The end of the run was changed when it was resumed.
)

# What a round may release in place of a model.
RELEASES = (
    'evaluation',  # Word error rates of people (`programs.private_evaluation`).
    'counts',  # Counts for a language model (`programs.count_release`).
)

_FORMAT_VERSION = 5
_MAX_BYTES = 2**31


class LedgerError(ValueError):
  """The ledger on disk is not the one that the saved state belongs to."""


class NoiseReuseError(LedgerError):
  """A charged round had another result when repeated with the same noise."""


class Head(NamedTuple):
  """The end of a ledger: its entries after the header, the last line's hash."""

  count: int
  digest: str


# A ledger's path, and the head kept with the model that it belongs to; a head
# of None accepts any whole chain.
Parent: TypeAlias = tuple[str, Optional[Head]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
  """One round, as it is charged.

  Attributes:
    round_num: The run's number of the round.
    cost: A group of this round alone.
    configuration: Digest of the configuration.
    identity: Digest by `round_identity`.
    result: Digest of all that the round released; '' if not known.
    release: What it released, one of `RELEASES`; None: a model.
  """

  round_num: int
  cost: accounting.RoundGroup
  configuration: str = ''
  identity: str
  result: str = ''
  release: Optional[str] = None

  def __post_init__(self):
    checks.one_of((None, *RELEASES), release=self.release)
    if self.cost.strategy is not None:
      # The strategy's sensitivity is known for a limited number of rounds.
      strategies.check_num_rounds(self.round_num + 1)


class Note(NamedTuple):
  """A note: one of `NOTES`, and the rounds of its unit charged before it."""

  what: str
  rounds_before: int


def round_identity(
    *,
    noise_key: np.ndarray,
    noise_counter: int,
    sampler_key: np.ndarray,
    round_num: int,
    configuration: str,
    state_digest: str = '',
) -> str:
  """Returns the digest of everything that determines a round's noisy sum.

  Args:
    noise_key: The noise's 256-bit key, int32 [8].
    noise_counter: The noise's counter in this round, at least 0.
    sampler_key: The cohort sampler's key, int32 [8].
    round_num: The sampler's round number, at least 0.
    configuration: Digest of the configuration.
    state_digest: Digest of the server state that clients and noise depend on.
  """
  checks.non_negative_int(noise_counter=noise_counter, round_num=round_num)
  # As JSON: its delimiters keep the parts apart.
  parts = [
      keys.to_bytes(noise_key).hex(), noise_counter,
      keys.to_bytes(sampler_key).hex(), round_num, configuration, state_digest,
  ]
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Charges:
  """Adds up the cost of rounds, in the order in which they are charged.

  Rounds with a minimum separation are charged in sequences, each as one event
  and numbered from the sampler's round 0. A sequence continues while its rounds
  follow each other. If they do not (a round repeated with another result, lost
  secrets, another run), its rounds stay charged and a second sequence is
  charged up to the round's number. The second may share the noise of earlier
  rounds with the first, so both are charged for these rounds.
  """

  def __init__(self):
    # Number of rounds by cost, without a minimum separation.
    self._counts = collections.Counter()
    # Cost and number of rounds of each sequence; the last may continue.
    self._sequences = []
    self._is_open = False

  def add(self, cost: accounting.RoundGroup, *, round_num: int) -> None:
    """Adds one round of this cost; `round_num` as in `Round`."""
    if cost.sampling.min_sep is None:
      self._counts[cost] += 1
      # The last sequence's rounds no longer follow each other.
      self._is_open = False
      return
    # The sequence has rounds 0 to round_num - 1, so this is its next one.
    if self._is_open and self._sequences[-1] == (cost, round_num):
      self._sequences.pop()
    self._sequences.append((cost, round_num + 1))
    self._is_open = True

  def after(
      self, round_nums: Iterable[int], cost: accounting.RoundGroup
  ) -> list[accounting.RoundGroup]:
    """Returns what would be charged after further rounds, without adding them.
    """
    planned = copy.deepcopy(self)
    for round_num in round_nums:
      planned.add(cost, round_num=round_num)
    return planned.rounds

  @property
  def rounds(self) -> list[accounting.RoundGroup]:
    """The charged rounds, for `accounting`; equal rounds are one group."""
    return [
        dataclasses.replace(cost, count=count)
        for cost, count in (*self._counts.items(), *self._sequences)
    ]


class Contents(NamedTuple):
  """What a ledger charges for one privacy unit.

  Attributes:
    privacy_unit: What one client is, such as 'speaker' or 'example'.
    invalidations: Reasons, as sentences without a full stop, why no guarantee
      holds whatever was charged. Not empty means NOT PRIVATE.
    inherited: How many of the rounds belong to runs that this one started from.
    rounds: All charged rounds.
    notes: All notes, in order, including those of earlier runs.
    releases: Rounds that released something else than a model, by `RELEASES`;
      they are among `rounds`.
    other_units: The same of each other unit that has rounds.
    later: How many of the inherited rounds were charged after this run began.
    unread: Ledgers of runs that this one started from that are gone, so that
      what they charged after this run began is not counted.
  """

  privacy_unit: str
  invalidations: tuple[str, ...]
  inherited: int
  rounds: list[accounting.RoundGroup]
  notes: tuple[Note, ...]
  releases: Mapping[str, tuple[accounting.RoundGroup, ...]] = (
      types.MappingProxyType({})
  )
  other_units: tuple['Contents', ...] = ()
  later: int = 0
  unread: tuple[str, ...] = ()


class Inherited(NamedTuple):
  """What a run inherits from the ledger of the run that it starts from.

  Attributes:
    charges: Charges of the rounds.
    invalidations: Why they, and so the run, have no guarantee.
  """

  charges: Charges
  invalidations: tuple[str, ...]


class Ledger:
  """An open ledger, made by `create` and `resume`; a context manager.

  Only the run that holds the lock of the file's folder (`storage.run_dir`) may
  open it.
  """

  def __init__(self, path: str, *, chain: '_Chain', count: int):
    self._path = path
    # Opened once: a write goes to the end of this very file.
    self._descriptor = files.open_own(path, os.O_WRONLY | os.O_APPEND)
    self._chain = chain
    self._count = count  # Entries that the saved state includes.

  @property
  def head(self) -> Head:
    """The head as of the last round appended: save it with that round."""
    return self._chain.head(self._count)

  @property
  def contents(self) -> Contents:
    return self._chain.contents

  @property
  def charges(self) -> Charges:
    """The cost of all rounds of the run's own unit."""
    return self._chain.charges[self._chain.privacy_unit]

  def append(self, charged: Round) -> bool:
    """Charges a round; when this returns the round is on disk.

    Args:
      charged: The round about to be released.

    Returns:
      True if it was charged; False if the ledger already holds this identical
      round ahead of the saved state.

    Raises:
      OSError: The line cannot be written, and the round must not be released.
      NoiseReuseError: The ledger holds this round with another result or other
        fields, for example because the data changed.
    """
    entries = self._chain.entries
    # Only rounds ahead of the saved state can be run again.
    for index in range(self._count, len(entries)):
      before = entries[index].content
      if isinstance(before, str) or before.identity != charged.identity:
        continue
      if before != charged:
        # The same noise on two different sums would reveal their difference.
        raise NoiseReuseError(
            f'Round {charged.round_num} is in {self._path} already, but had '
            'another result this time: draw a new noise key for it.'
        )
      # The same bits were released before the crash: they reveal nothing more.
      self._count = index + 1
      return False
    # Other releases belong to no saved state.
    ahead = sum(not each.release for each in self._rounds_ahead())
    if ahead and not charged.release:
      logging.warning(
          'The ledger is %d rounds ahead of the saved state. They stay charged,'
          ' and round %d, which differs from them, is charged in addition.',
          ahead, charged.round_num,
      )
    self._write(charged)
    self._count = len(entries)
    return True

  def note(self, what: str) -> None:
    """Appends a note, unless there is one of its kind; on disk at the return.

    Args:
      what: One of `NOTES`.
    """
    checks.one_of(NOTES, what=what)
    if not any(note.what == what for note in self.contents.notes):
      self._write(what)

  def _write(self, content: 'Round | str') -> None:
    """Appends an entry of the run's own unit to the file and the chain."""
    entry = _Entry(self._chain.privacy_unit, content)
    line = self._chain.line_of(entry)
    # File first: what is charged in memory must be on disk.
    _append(self._descriptor, line)
    self._chain.add(line, entry)

  def holds(self, identity: str) -> bool:
    """Returns whether this round is charged already, ahead of the state."""
    return any(
        charged.identity == identity for charged in self._rounds_ahead()
    )

  def _rounds_ahead(self) -> list[Round]:
    """Rounds in the file that the saved state does not include."""
    ahead = self._chain.entries[self._count :]
    return [each.content for each in ahead if isinstance(each.content, Round)]

  @property
  def file_identity(self) -> int:
    """A number from 0 to 2^63 - 1 that distinguishes this file from a copy.

    It is the file's inode, which stays the same when the folder is renamed. A
    backup that overwrites the file in place has it, too.
    """
    # Fits int64, as which the saved state holds it.
    return os.fstat(self._descriptor).st_ino & (2**63 - 1)

  def close(self) -> None:
    """Closes the file."""
    if self._descriptor >= 0:
      os.close(self._descriptor)
      # The system may give the old number to another file.
      self._descriptor = -1

  def __enter__(self) -> 'Ledger':
    return self

  def __exit__(
      self,
      error_type: Optional[type[BaseException]],
      error: Optional[BaseException],
      traceback: Optional[types.TracebackType],
  ) -> None:
    self.close()


def create(
    path: str,
    *,
    privacy_unit: Optional[str] = None,
    invalidations: Sequence[str] = (),
    parents: Sequence[Parent] = (),
) -> Ledger:
  """Starts the ledger of a new run; replaces one that charged no rounds.

  The ledger inherits the parents' lines of all units, each once, and their
  invalidations.

  Args:
    path: The file; its folder exists.
    privacy_unit: What one client is. If None, the unit of the first parent, or
      'speaker'.
    invalidations: Reasons why no guarantee holds, see `Contents`.
    parents: The ledgers of the models that this run starts from.

  Raises:
    LedgerError: `path` charges rounds or is another file, or the ledger of a
      parent is missing or was changed.
  """
  # First: a damaged parent must leave no file behind.
  lines, chain = _inherit(
      parents, privacy_unit=privacy_unit, invalidations=invalidations
  )
  if os.path.exists(path):
    old = _read(path)
    # Inherited entries are copies; only the run's own rounds would be lost.
    charged = sum(
        isinstance(entry.content, Round)
        for entry in old.entries[old.header['inherited'] :]
    )
    if charged:
      raise LedgerError(
          f'The privacy ledger {path} already charges {charged} rounds: '
          'resume that run from its saved state, or take another directory.'
      )
  # In one step, so that no crash leaves a part of what is inherited.
  files.write(path, b''.join(map(_encode_line, lines)))
  return Ledger(path, chain=chain, count=len(chain.entries))


def resume(path: str, *, head: Head) -> Ledger:
  """Opens the ledger that belongs to a saved state.

  Args:
    path: The file.
    head: `Ledger.head` as it was saved with the state.

  Raises:
    LedgerError: The file is missing, edited, cut short, reordered, or belongs
      to another run.
  """
  # States hold NumPy scalars.
  head = Head(int(head.count), str(head.digest))
  if not os.path.exists(path):
    raise LedgerError(
        f'The privacy ledger {path} is missing, but the saved state includes '
        f'{head.count} entries of it: put the file back.'
    )
  chain = _read(path, head)
  data = _read_bytes(path)
  whole = data.rfind(b'\n') + 1
  if whole < len(data):
    # `append` had not returned, so nothing of the round was released.
    logging.warning(
        'The ledger ended in a line that a crash cut short; %d bytes are '
        'removed.', len(data) - whole
    )
    os.truncate(path, whole)
  return Ledger(path, chain=chain, count=head.count)


def read(path: str, *, head: Optional[Head] = None) -> Contents:
  """Reads a ledger file, whether or not it is open elsewhere.

  Checks the chain of hashes. Only `head` shows lines that are missing at the
  end.

  Raises:
    LedgerError: The file was edited, is not a ledger, or does not continue
      from `head`.
  """
  return _read(path, head).contents


def read_inherited(
    parents: Sequence[Parent], *, privacy_unit: str
) -> Inherited:
  """Returns what a run of this unit would inherit from its parents' ledgers.

  Raises:
    LedgerError: One of them is missing or was changed.
  """
  _, chain = _inherit(parents, privacy_unit=privacy_unit)
  return Inherited(
      chain.charges[privacy_unit], chain.invalidations(privacy_unit)
  )


_Line: TypeAlias = dict[str, Any]  # JSON


class _Entry(NamedTuple):
  """A line after the header: a round, or what a note says."""

  privacy_unit: str
  content: Round | str


class _Chain:
  """The lines of a ledger: the header, and entries with their hashes."""

  def __init__(self, header: _Line):
    self.header = header
    self.privacy_unit: str = header['privacy_unit']
    self.entries: list[_Entry] = []
    # Added up as rounds come, since a run reads them in each round.
    self.charges: dict[str, Charges] = collections.defaultdict(Charges)
    self._hashes = [header['hash']]
    # What parents charged after this run began: not in this file.
    self.later: list[_Entry] = []
    self.unread: list[str] = []

  def line_of(self, entry: _Entry) -> _Line:
    """The line of the next entry."""
    content = entry.content
    if isinstance(content, str):
      fields = {'kind': 'note', 'what': content}
    else:
      fields = {'kind': 'round', **_fields(content)}
    fields['privacy_unit'] = entry.privacy_unit
    return _seal(fields, previous=self._hashes[-1])

  def add(self, line: _Line, entry: _Entry) -> None:
    """Adds the line of an entry."""
    self._charge(entry)
    self.entries.append(entry)
    self._hashes.append(line['hash'])

  def add_later(self, entries: Iterable['_Entry']) -> None:
    """Adds what parents charged later, after all that is inherited."""
    for entry in entries:
      self._charge(entry)
      self.later.append(entry)

  def _charge(self, entry: '_Entry') -> None:
    unit, content = entry
    if isinstance(content, Round):
      self.charges[unit].add(content.cost, round_num=content.round_num)

  @property
  def account(self) -> list['_Entry']:
    """All entries of the run and of those that it started from, in order."""
    begin = self.header['inherited']
    return [*self.entries[:begin], *self.later, *self.entries[begin:]]

  def head(self, count: int) -> Head:
    """The head after this number of entries."""
    return Head(count, self._hashes[count])

  def invalidations(self, privacy_unit: str) -> tuple[str, ...]:
    return tuple(self.header['invalidations'].get(privacy_unit, ()))

  @property
  def contents(self) -> Contents:
    others = [
        self._contents(unit)
        for unit, charges in self.charges.items()
        if charges.rounds and unit != self.privacy_unit
    ]
    return self._contents(self.privacy_unit)._replace(
        other_units=tuple(others), unread=tuple(self.unread)
    )

  def _contents(self, privacy_unit: str) -> Contents:
    """What is charged for one unit."""
    num_rounds, inherited, later, notes = 0, 0, 0, []
    begin = self.header['inherited']
    end = begin + len(self.later)
    releases = collections.defaultdict(Charges)
    for index, (unit, content) in enumerate(self.account):
      if unit != privacy_unit:
        continue
      if isinstance(content, str):
        notes.append(Note(content, num_rounds))
        continue
      num_rounds += 1
      if content.release:
        releases[content.release].add(
            content.cost, round_num=content.round_num
        )
      # Inherited entries come first, then later ones of the same runs.
      inherited += index < end
      later += begin <= index < end
    return Contents(
        privacy_unit=privacy_unit,
        invalidations=self.invalidations(privacy_unit),
        inherited=inherited,
        rounds=self.charges[privacy_unit].rounds,
        notes=tuple(notes),
        releases={
            name: tuple(charges.rounds) for name, charges in releases.items()
        },
        later=later,
    )


def _inherit(
    parents: Sequence[Parent],
    *,
    privacy_unit: Optional[str],
    invalidations: Sequence[str] = (),
) -> tuple[list[_Line], _Chain]:
  """The lines and the chain of a new run's ledger."""
  chains = [_read(*parent) for parent in parents]
  if privacy_unit is None:
    privacy_unit = chains[0].privacy_unit if chains else 'speaker'
  reasons, ancestors, entries = collections.defaultdict(list), {}, []
  for (path, _), each in zip(parents, chains):
    for unit, texts in each.header['invalidations'].items():
      reasons[unit] += texts
    ancestors |= _ancestors(each.header)
    ancestors[os.path.abspath(path)] = each.header['run_id']
    # By content, since each run writes inherited entries with other hashes.
    known = set(entries)
    entries += [entry for entry in each.account if entry not in known]
  if invalidations:
    reasons[privacy_unit] += invalidations
  chain = _Chain(_seal({
      'kind': 'header',
      'format_version': _FORMAT_VERSION,
      # Random, so that runs of the same settings share no hash.
      'run_id': secrets.token_hex(8),
      'privacy_unit': privacy_unit,
      'invalidations': {
          unit: [*dict.fromkeys(texts)] for unit, texts in reasons.items()
      },
      'inherited': len(entries),
      'parents': ancestors,
  }, previous=''))
  lines = [chain.header]
  # Written again, since every hash depends on this run's header.
  for entry in entries:
    lines.append(chain.line_of(entry))
    chain.add(lines[-1], entry)
  return lines, chain


def _ancestors(header: _Line) -> Mapping[str, str]:
  """The run_id of each run that a run started from, by its ledger's path."""
  # Ledgers of older versions have no names of them.
  unknown = {'a run that this ledger does not name': ''}
  return header.get('parents', unknown if header['inherited'] else {})


def _read_later(chain: _Chain, entries: Sequence[_Entry]) -> None:
  """Adds what the runs that a run started from charged after it began.

  Args:
    chain: The run's ledger, with what it inherited.
    entries: All entries of its file.
  """
  known = set(entries)
  for path, run_id in _ancestors(chain.header).items():
    try:
      header, *lines = _read_lines(path)
      if header['run_id'] != run_id:
        raise LedgerError(f'{path} is the ledger of another run by now.')
      later = dict.fromkeys(map(_entry_of, lines))
    except (ValueError, KeyError, TypeError, OSError):
      chain.unread.append(path)
      continue
    chain.add_later(entry for entry in later if entry not in known)
    known.update(later)


def _read(path: str, head: Optional[Head] = None) -> _Chain:
  """Reads a ledger and checks its chain, the fields of each line, the head."""
  lines = _read_lines(path)
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
    chain = _Chain(header)
    entries = [_entry_of(line) for line in lines[1:]]
    begin = header['inherited']
    for line, entry in zip(lines[1 : begin + 1], entries):
      chain.add(line, entry)
    _read_later(chain, entries)
    for line, entry in zip(lines[begin + 1 :], entries[begin:]):
      chain.add(line, entry)
  except (ValueError, KeyError, TypeError) as error:
    raise LedgerError(
        f'The privacy ledger {path} is not well formed: {error}.'
    ) from None
  if head is not None:
    _check_head(path, chain, head)
  return chain


def _check_head(path: str, chain: _Chain, head: Head) -> None:
  """Raises LedgerError unless a ledger continues from a head."""
  found = len(chain.entries)
  if found < head.count:
    raise LedgerError(
        f'The privacy ledger {path} was shortened: it has {found} entries, '
        f'the saved state includes {head.count}. Put the whole file back.'
    )
  if chain.head(head.count) != head:
    raise LedgerError(
        f'The privacy ledger {path} is not the one of the saved state: '
        f'its first {head.count} entries were rewritten, or it belongs to '
        'another run or copy.'
    )


def _fields(charged: Round) -> dict[str, Any]:
  """The fields of a round, without those that are None."""
  return dataclasses.asdict(
      charged,
      dict_factory=lambda pairs: {
          name: value for name, value in pairs if value is not None
      },
  )


def _entry_of(line: _Line) -> _Entry:
  """The entry that a line holds."""
  unit = line['privacy_unit']
  if line['kind'] == 'note':
    checks.one_of(NOTES, what=line['what'])
    return _Entry(unit, line['what'])
  cost = dict(line['cost'])
  for name, build in (
      ('sampling', accounting.Sampling),
      ('strategy', strategies.Toeplitz),
      ('secure_sum', accounting.SecureSumParams),
  ):
    if name in cost:
      cost[name] = build(**cost[name])
  return _Entry(unit, Round(
      round_num=line['round_num'],
      cost=accounting.RoundGroup(**cost),
      configuration=line['configuration'],
      identity=line['identity'],
      result=line['result'],
      release=line.get('release'),
  ))


def _read_lines(path: str) -> list[_Line]:
  """Returns the complete lines of a file after checking their hashes."""
  if not os.path.exists(path):
    raise LedgerError(f'The privacy ledger {path} is missing: put it back.')
  lines, previous = [], ''
  # Text after the last newline is a line that a crash cut short.
  for number, raw in enumerate(_read_bytes(path).split(b'\n')[:-1], start=1):
    try:
      line = json.loads(raw)
      is_next = (
          isinstance(line, dict)
          and line['previous'] == previous
          and line['hash'] == _hash_line(line)
          # The hash covers the parsed line. So that no byte of the file can
          # change, the text must be the canonical one as well.
          and raw + b'\n' == _encode_line(line)
      )
    # json raises RecursionError if brackets are nested deeply.
    except (ValueError, KeyError, RecursionError):
      is_next = False
    if not is_next:
      raise LedgerError(
          f'The privacy ledger {path} was changed: line {number} does not '
          'follow from the line before it.'
      )
    previous = line['hash']
    lines.append(line)
  return lines


def _read_bytes(path: str) -> bytes:
  return files.read(path, max_bytes=_MAX_BYTES)


def _append(descriptor: int, line: _Line) -> None:
  """Appends a line and waits for the disk."""
  data = _encode_line(line)
  # os.write may write less than it was given.
  while data:
    data = data[os.write(descriptor, data) :]
  # The model may be released as soon as this function returns.
  os.fsync(descriptor)


def _seal(fields: Mapping[str, object], *, previous: str) -> _Line:
  """Returns the line with these fields that follows the hash `previous`."""
  line = {**fields, 'previous': previous}
  return {**line, 'hash': _hash_line(line)}


def _hash_line(line: _Line) -> str:
  """SHA-256, in hex, of a line without its own hash."""
  bare = {name: value for name, value in line.items() if name != 'hash'}
  return hashlib.sha256(_encode_line(bare)).hexdigest()


def _encode_line(line: _Line) -> bytes:
  """A line's canonical JSON."""
  # NaN is not JSON, and a line with NaN would differ from itself.
  text = json.dumps(line, sort_keys=True, allow_nan=False)
  return text.encode() + b'\n'
