"""Privacy ledger: an append-only file of charged rounds and of what they miss.

A run may release (save, evaluate, show) a round's model only after `append` has
returned; by then the round is on disk. So the file never lags behind what has
been seen. After a crash it may be ahead of the saved program state. Lines are
JSON, the first one a header:

    {"kind": "header", "format_version": 3, "run_id": ..., "unit": "speaker",
     "private": true, "voids": [], "inherited": 0, "parents": [],
     "previous": "", "hash": ...}
    {"kind": "round", "index": 0, "round_num": 1, "event": {"sampling":
     {"kind": "poisson", "cohort_size": 10, "population": 1000},
     "noise_multipliers": [1.0], "sampler_epsilon": 1e-11}, "configuration":
     DIGEST, "identity": DIGEST, "result": DIGEST, "previous": HASH, "hash":
     HASH}
    {"kind": "note", "index": 1, "what": "copied", "previous": HASH,
     "hash": HASH}

A note says from where on the charged rounds do not tell all (`NOTES`).
A line's hash is SHA-256 over its canonical JSON (sorted keys, a newline)
without the hash itself, and each line holds the hash of the line before. The
program state holds the head, (number of entries, last hash): a ledger that was
deleted, edited, shortened or reordered since is refused. Text after the last
newline is a line that a crash cut short. It does not count, because `append`
had not returned. The file names no member of a cohort. With
correlated noise `sampling` also has "min_sep", and `event` "strategy":
{"output_scale": [..], "buf_decay": [..]} (`strategies.Toeplitz`); with noise
that clients add, `event` has "secure_sum" (`accounting.SecureSum`).

Rounds charged twice, or not:

- The identity of a round is a digest of everything that decides its noisy sum:
  keys, counters, state, configuration. The ledger may be ahead of the state
  from which a run resumes. A run that then repeats a round with the same bits
  releases nothing new: the round is found among the lines ahead of the state,
  and is not charged again.
- The same round with another result (other data, code or rounding) would put
  the same noise on two sums: `NoiseReuseError`; repeat it with a new key.
- A different round there (another configuration, a new key) is charged in
  addition; what is in the ledger stays charged.

Parents: a run that starts from another run's model inherits the entries of its
ledger, if both protect the same unit. Costs of different units (speakers and
examples) hold for different data and are never added up: a recording is not a
speaker. The ledger of another unit is copied whole,

    ledger.jsonl           of the run's unit; its header has the others' heads
    ledger.example.jsonl   of examples, as it was with the model,

and a chain of runs ends with one whole ledger for each unit.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import copy
import dataclasses
import functools
import hashlib
import json
import os
import re
import secrets
from typing import Any, NamedTuple, Optional

from absl import logging
import numpy as np

from tff_asr import checks
from tff_asr import files
from tff_asr.privacy import accounting
from tff_asr.privacy import keys
from tff_asr.privacy import strategies

# What a note may say of the rounds from its place on.
NOTES = (
    'copied',  # The folder is a copy or was restored; the other may go on.
    'exact_metrics',  # Metrics without noise are shown.
    'length_changed',  # Where the run ends was set anew when it was resumed.
)

_FORMAT_VERSION = 3
_MAX_BYTES = 2**31
_IDENTITY_SUFFIX = '.place'
_IDENTITY_TEXT = (
    'When this file was written tells the ledger beside it from a copy: a copy'
    ' draws new keys.\n'
)


class LedgerError(ValueError):
  """The ledger on disk is not the one that the program state belongs to."""


class NoiseReuseError(LedgerError):
  """A charged round came out differently when repeated with the same noise."""


class Head(NamedTuple):
  """The end of a ledger: its entries after the header, the last line's hash."""

  count: int
  digest: str


# A ledger's path, and the head kept with the model that it belongs to; a head
# of None accepts any whole chain.
Parent = tuple[str, Optional[Head]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
  """One round, as it is charged.

  Attributes:
    round_num: The run's number of the round.
    sampling: How its cohort was drawn.
    noise_multipliers: One for each Gaussian that the round added to sums over
      its cohort; `accounting.combine_gaussians` gives their joint cost.
    configuration: Digest of the configuration.
    identity: Digest by `round_identity`.
    result: Digest of all that the round released; '' if not known.
    sampler_epsilon: As in `accounting.RoundGroup`.
    strategy: Strategy of correlated noise; None: the round's noise is its own.
    secure_sum: Where clients added the noise.
  """

  round_num: int
  sampling: accounting.Sampling
  noise_multipliers: tuple[float, ...]
  configuration: str
  identity: str
  result: str = ''
  sampler_epsilon: float = 0.0
  strategy: Optional[strategies.Toeplitz] = None
  secure_sum: Optional[accounting.SecureSum] = None

  def __post_init__(self):
    accounting.check_noise(self.sampling, self.strategy, self.secure_sum)
    if self.strategy is not None:
      # Before the round is released: what is charged holds for so many.
      strategies.check_num_rounds(self.round_num + 1)
    checks.non_negative_int(round_num=self.round_num)
    _ = self.cost  # Checks its numbers.
    if not isinstance(self.configuration, str):
      raise ValueError(
          f'configuration must be a string, found {self.configuration!r}.'
      )
    for name in ('identity', 'result'):
      value = getattr(self, name)
      if (name, value) != ('result', '') and not (
          isinstance(value, str) and re.fullmatch('[0-9a-f]{64}', value)
      ):
        raise ValueError(f'{name} must be a SHA-256 digest, found {value!r}.')

  @functools.cached_property
  def cost(self) -> accounting.RoundGroup:
    """A group of this round alone."""
    return accounting.RoundGroup(
        sampling=self.sampling,
        noise_multiplier=accounting.combine_gaussians(self.noise_multipliers),
        sampler_epsilon=self.sampler_epsilon,
        strategy=self.strategy,
        secure_sum=self.secure_sum,
    )


class Note(NamedTuple):
  """A note: one of `NOTES`, and the rounds charged before it."""

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
  """Returns the digest of everything that decides a round's noisy sum.

  Args:
    noise_key: The noise's 256-bit key, int32 [8].
    noise_counter: The noise's counter in this round, at least 0.
    sampler_key: The cohort sampler's key, int32 [8].
    round_num: The sampler's round number, at least 0.
    configuration: Digest of the configuration.
    state_digest: Digest of the server state that clients and noise depend on.
  """
  checks.non_negative_int(noise_counter=noise_counter, round_num=round_num)
  parts = [
      keys.to_bytes(noise_key).hex(), noise_counter,
      keys.to_bytes(sampler_key).hex(), round_num, configuration, state_digest,
  ]
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Charges:
  """The sum of what rounds cost, in the order in which they are charged.

  Rounds of min_sep cohorts are charged by mechanisms, numbered from round 0
  of the sampler on. A mechanism continues while its rounds follow each other.
  If they do not (a round that is done again in other bits, lost secrets,
  another run), what it did so far stays charged, and another mechanism is
  charged up to the round's number: it may share the noise of rounds before
  with the one that ended, so both are charged with these.
  """

  def __init__(self):
    # Number of rounds of each cost; and each mechanism's cost with its number
    # of rounds, of which the last may be open.
    self._counts = collections.Counter()
    self._mechanisms = []
    self._is_open = False

  def add(self, cost: accounting.RoundGroup, *, round_num: int) -> None:
    """Adds a round: what one costs, and its number as in `Round`."""
    if cost.sampling.min_sep is None:
      self._counts[cost] += 1
      self._is_open = False
      return
    if self._is_open and self._mechanisms[-1] == (cost, round_num):
      self._mechanisms.pop()
    self._mechanisms.append((cost, round_num + 1))
    self._is_open = True

  def after(
      self, round_nums: Iterable[int], cost: accounting.RoundGroup
  ) -> list[accounting.RoundGroup]:
    """Returns what would be charged after further rounds; adds none of them."""
    planned = copy.deepcopy(self)
    for round_num in round_nums:
      planned.add(cost, round_num=round_num)
    return planned.rounds

  @property
  def rounds(self) -> list[accounting.RoundGroup]:
    """The charged rounds, for `accounting`; equal rounds are one group."""
    return [
        dataclasses.replace(cost, count=count)
        for cost, count in (*self._counts.items(), *self._mechanisms)
    ]


class Contents(NamedTuple):
  """The contents of a ledger's file.

  Attributes:
    run_id: Random name of the run.
    unit: What one client is.
    voids: Reasons, as sentences without a full stop, for which no guarantee
      holds whatever was charged. Not empty means NOT PRIVATE.
    inherited: How many of the rounds are of runs that this one started from.
    rounds: All charged rounds.
    notes: All notes, in order; also those of runs that this one started from.
    apart: Heads of the ledgers of other units beside this one, by unit.
  """

  run_id: str
  unit: str
  voids: tuple[str, ...]
  inherited: int
  rounds: list[accounting.RoundGroup]
  notes: tuple[Note, ...]
  apart: dict[str, Head]


class Ledger:
  """An open ledger; holds a lock on its file until `close`.

  Made by `create` and `resume`; a context manager.
  """

  def __init__(
      self, path: str, *, descriptor: int, chain: '_Chain', count: int
  ):
    self._path = path
    self._descriptor = descriptor
    self._chain = chain
    self._count = count  # entries that the program state knows of

  @property
  def head(self) -> Head:
    """The head as of the last round appended: save it with that round."""
    return self._chain.head(self._count)

  @property
  def contents(self) -> Contents:
    return self._chain.contents

  @property
  def charges(self) -> Charges:
    """The cost of all rounds in the file."""
    return self._chain.charges

  def append(self, charged: Round) -> bool:
    """Charges a round; when this returns the round is on disk.

    Args:
      charged: The round about to be released.

    Returns:
      True if it was charged; False if it is the identical round that the
      ledger already holds ahead of the program state.

    Raises:
      OSError: If it cannot be written; the file is then as before.
      NoiseReuseError: If the ledger holds this round with another result, or
        otherwise different: of data that grew meanwhile, for one.
    """
    entries = self._chain.entries
    for index in range(self._count, len(entries)):
      before = entries[index]
      if isinstance(before, str) or before.identity != charged.identity:
        continue
      if before != charged:
        raise NoiseReuseError(
            f'Round {charged.round_num} is in {self._path} already, but came '
            'out differently this time: draw a new noise key for it.'
        )
      self._count = index + 1
      return False
    ahead = len(self._rounds_ahead())
    if ahead:
      logging.warning(
          'The ledger is %d rounds ahead of the saved state. They stay charged,'
          ' and round %d, which differs from them, is charged in addition.',
          ahead, charged.round_num,
      )
    self._write(charged)
    self._count = len(entries)
    return True

  def note_once(self, what: str) -> None:
    """Appends a note, as `note`, unless the ledger has one of its kind."""
    if not any(note.what == what for note in self.contents.notes):
      self.note(what)

  def note(self, what: str) -> None:
    """Notes what the rounds from here on do not tell; then it is on disk.

    Args:
      what: One of `NOTES`.

    Raises:
      OSError: If it cannot be written; the file is then as before.
    """
    checks.one_of(NOTES, what=what)
    self._write(what)

  def _write(self, entry: '_Entry') -> None:
    """Appends an entry to the file and the chain."""
    line = self._chain.line_of(entry)
    _append(self._descriptor, line)
    self._chain.add(line, entry)

  def holds(self, identity: str) -> bool:
    """Tells if this round is charged already, ahead of the program state."""
    return any(
        charged.identity == identity for charged in self._rounds_ahead()
    )

  def _rounds_ahead(self) -> list[Round]:
    """Rounds in the file that the program state does not know of."""
    ahead = self._chain.entries[self._count :]
    return [entry for entry in ahead if isinstance(entry, Round)]

  @property
  def file_identity(self) -> int:
    """A number from 0 to 2^63 - 1 that tells this file from a copy of it.

    The file keeps this number when its folder is renamed. The number covers the
    inodes of the file and of a marker beside it, which is written once, and the
    time of the marker's last change of any kind. A backup that is written over
    both files changes that time.
    """
    marker = self._path + _IDENTITY_SUFFIX
    if not os.path.exists(marker):
      with open(marker, 'w', encoding='utf-8') as file:
        file.write(_IDENTITY_TEXT)
    status = os.stat(marker)
    inode = os.fstat(self._descriptor).st_ino
    parts = inode, status.st_ino, status.st_ctime_ns
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], 'big') >> 1

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
    voids: Sequence[str] = (),
    parent: Optional[Parent] = None,
) -> Ledger:
  """Starts the ledger of a new run; may replace one without own rounds.

  The ledger inherits the rounds that the parent has of its unit, and what voids
  them; ledgers of other units are copied beside it.

  Args:
    path: The file; its folder exists.
    unit: What one client is; None: as in the parent, or 'speaker'.
    voids: Reasons for which no guarantee holds, see `Contents`; those of the
      parent are added.
    parent: The ledger of the model that this run starts from, if there is one.

  Raises:
    LedgerError: If `path` holds rounds or something else or is in use, or a
      ledger of the parent is missing or was changed.
  """
  own, apart = _split(parent, unit=unit)
  before = None if own is None else _read(*own)
  descriptor = _open_locked(path, os.O_CREAT)
  try:
    if os.path.getsize(path):
      old = _read(path)
      charged = old.num_rounds() - old.contents.inherited
      if charged:
        raise LedgerError(
            f'The privacy ledger {path} already charges {charged} rounds: '
            'resume that run from its saved state, or take another directory.'
        )
    for other, (chain, data) in apart.items():
      files.write(_path_beside(path, other), data)
      apart[other] = chain.head(len(chain.entries))
    found = [] if before is None else list(before.header['voids'])
    found += [reason for reason in voids if reason not in found]
    inherited = [] if before is None else before.entries
    if unit is None:
      unit = 'speaker' if before is None else before.header['unit']
    chain = _Chain(_seal({
        'kind': 'header',
        'format_version': _FORMAT_VERSION,
        'run_id': secrets.token_hex(8),
        'unit': unit,
        'private': not found,
        'voids': found,
        'inherited': len(inherited),
        'parents': [] if before is None else [
            *before.header['parents'], before.header['run_id']
        ],
        **({'apart': apart} if apart else {}),
    }, previous=''))
    lines = [chain.header]
    for entry in inherited:
      lines.append(chain.line_of(entry))
      chain.add(lines[-1], entry)
    # In one step: a header without all inherited entries would be refused.
    files.write(path, b''.join(map(encode_line, lines)))
    replaced, descriptor = descriptor, _open_locked(path)
    os.close(replaced)
  except BaseException:
    os.close(descriptor)
    raise
  return Ledger(
      path, descriptor=descriptor, chain=chain, count=len(inherited)
  )


def resume(path: str, *, head: Head) -> Ledger:
  """Opens the ledger that belongs to a saved program state.

  Args:
    path: The file.
    head: `Ledger.head` as it was saved with the state.

  Raises:
    LedgerError: If the file is missing, edited, shortened, reordered or of
      another run, or is in use; or if a ledger of another unit beside it is
      missing or was changed.
  """
  head = Head(int(head.count), str(head.digest))
  if not os.path.exists(path):
    raise LedgerError(
        f'The privacy ledger {path} is missing, but the saved state knows '
        f'{head.count} entries of it: put the file back.'
    )
  descriptor = _open_locked(path)
  try:
    chain = _read(path, head)
    _read_apart(path, chain)
    whole = _bytes_of(path).rfind(b'\n') + 1
    torn = os.fstat(descriptor).st_size - whole
    if torn > 0:
      logging.warning(
          'The ledger ended in a line that a crash cut short; nothing of it '
          'was released, %d bytes are removed.', torn
      )
      os.ftruncate(descriptor, whole)
      os.fsync(descriptor)
  except BaseException:
    os.close(descriptor)
    raise
  return Ledger(path, descriptor=descriptor, chain=chain, count=head.count)


def read(path: str, *, head: Optional[Head] = None) -> Contents:
  """Reads a ledger file, open elsewhere or not.

  Its chain is checked; lines missing at its end show only against a head.

  Raises:
    LedgerError: If the file was edited, is no ledger, or is not the one of
      `head`.
  """
  return _read(path, head).contents


def read_apart(path: str) -> list[Contents]:
  """Reads the ledgers of other units beside a run's own.

  Args:
    path: The run's own ledger.

  Raises:
    LedgerError: One is missing or was changed.
  """
  return [
      chain.contents for chain, _ in _read_apart(path, _read(path)).values()
  ]


def widest(parents: Sequence[Parent]) -> Optional[Parent]:
  """Returns the ledger that holds what all of these charge, of every unit.

  Raises:
    LedgerError: None of them does, or one is missing or was changed.
  """
  contents = [_all_entries(*parent) for parent in parents]
  for parent, own in zip(parents, contents):
    if all(own >= other for other in contents):
      return parent
  if parents:
    raise LedgerError(
        f'{" and ".join(path for path, _ in parents)} each charge rounds that '
        'the other does not: take layer scores of a public run, of the seed '
        'model\'s run or of one that it started from.'
    )
  return None


class Inherited(NamedTuple):
  """What a run inherits from the ledgers of the run that it starts from.

  Attributes:
    charges: Charges of the rounds.
    voids: What voids them, and so the run.
  """

  charges: Charges
  voids: tuple[str, ...]


def read_inherited(parent: Optional[Parent], *, unit: str) -> Inherited:
  """Returns what a run of this unit would inherit from the parent's ledgers."""
  own, _ = _split(parent, unit=unit)
  if own is None:
    return Inherited(Charges(), ())
  chain = _read(*own)
  return Inherited(chain.charges, chain.contents.voids)


def encode_line(line: Mapping[str, Any]) -> bytes:
  """Returns a line's canonical JSON: the one way in which it is written."""
  text = json.dumps(line, sort_keys=True, allow_nan=False)
  return text.encode() + b'\n'


def hash_line(line: Mapping[str, Any]) -> str:
  """Returns SHA-256, in hex, of a line without its own hash."""
  bare = {name: value for name, value in line.items() if name != 'hash'}
  return hashlib.sha256(encode_line(bare)).hexdigest()


_Line = dict[str, Any]
_Entry = Round | str  # a round, or what a note says


class _Chain:
  """The lines of a ledger: the header, and entries with their hashes."""

  def __init__(self, header: _Line):
    self.header = header
    self.entries = []
    self.notes = []
    self.charges = Charges()
    self._hashes = [header['hash']]

  def line_of(self, entry: _Entry) -> _Line:
    """The line of the next entry."""
    if isinstance(entry, str):
      fields = {'kind': 'note', 'what': entry}
    else:
      fields = {
          'kind': 'round',
          'round_num': entry.round_num,
          'event': {
              'sampling': entry.sampling.fields,
              'noise_multipliers': [float(z) for z in entry.noise_multipliers],
              'sampler_epsilon': float(entry.sampler_epsilon),
              **({} if entry.strategy is None else {'strategy': {
                  'output_scale': list(entry.strategy.output_scale),
                  'buf_decay': list(entry.strategy.buf_decay),
              }}),
              **({} if entry.secure_sum is None else {
                  'secure_sum': dataclasses.asdict(entry.secure_sum)
              }),
          },
          'configuration': entry.configuration,
          'identity': entry.identity,
          'result': entry.result,
      }
    return _seal(
        {**fields, 'index': len(self.entries)}, previous=self._hashes[-1]
    )

  def add(self, line: _Line, entry: _Entry) -> None:
    """Adds the line of an entry."""
    if isinstance(entry, str):
      self.notes.append(Note(entry, self.num_rounds()))
    else:
      self.charges.add(entry.cost, round_num=entry.round_num)
    self.entries.append(entry)
    self._hashes.append(line['hash'])

  def head(self, count: int) -> Head:
    """The head after so many entries."""
    return Head(count, self._hashes[count])

  def num_rounds(self, count: Optional[int] = None) -> int:
    """Rounds among the first entries, or among all."""
    if count is None:
      return len(self.entries) - len(self.notes)
    return sum(isinstance(entry, Round) for entry in self.entries[:count])

  @property
  def contents(self) -> Contents:
    header = self.header
    return Contents(
        run_id=header['run_id'],
        unit=header['unit'],
        voids=tuple(header['voids']),
        inherited=self.num_rounds(header['inherited']),
        rounds=self.charges.rounds,
        notes=tuple(self.notes),
        apart={u: Head(*h) for u, h in header.get('apart', {}).items()},
    )


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
  chain = _Chain(header)
  try:
    _ = chain.contents
    if not 0 <= header['inherited'] < len(lines) or not isinstance(
        header['parents'], list
    ):
      raise ValueError('it inherits entries that are not in it')
    for index, line in enumerate(lines[1:]):
      entry = _entry_of(line)
      if line != chain.line_of(entry):
        raise ValueError(f'entry {index} has other fields than expected')
      chain.add(line, entry)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise LedgerError(
        f'The privacy ledger {path} is not well formed: {error}.'
    ) from None
  if head is not None:
    _check_head(path, chain, head)
  return chain


def _check_head(path: str, chain: _Chain, head: Head) -> None:
  """Raises LedgerError unless a ledger goes on from a head."""
  found = len(chain.entries)
  if found < head.count:
    raise LedgerError(
        f'The privacy ledger {path} was shortened: it has {found} entries, '
        f'the saved state knows {head.count}. Put the whole file back.'
    )
  if head.count < 0 or chain.head(head.count) != head:
    raise LedgerError(
        f'The privacy ledger {path} is not the one of the saved state: '
        f'its first {head.count} entries were rewritten, or it belongs to '
        'another run or copy.'
    )


def _entry_of(line: _Line) -> _Entry:
  """The entry that a line holds; its other fields are not looked at."""
  if line['kind'] == 'note':
    checks.one_of(NOTES, what=line['what'])
    return line['what']
  strategy = line['event'].get('strategy')
  secure_sum = line['event'].get('secure_sum')
  return Round(
      round_num=line['round_num'],
      sampling=accounting.Sampling(**line['event']['sampling']),
      noise_multipliers=tuple(line['event']['noise_multipliers']),
      sampler_epsilon=line['event']['sampler_epsilon'],
      strategy=strategy and strategies.Toeplitz(**strategy),
      secure_sum=secure_sum and accounting.SecureSum(**secure_sum),
      configuration=line['configuration'],
      identity=line['identity'],
      result=line['result'],
  )


def _read_lines(path: str) -> list[_Line]:
  """Returns the complete lines of a file after checking their hashes."""
  if not os.path.exists(path):
    raise LedgerError(f'The privacy ledger {path} is missing: put it back.')
  lines, previous = [], ''
  for number, raw in enumerate(_bytes_of(path).split(b'\n')[:-1], start=1):
    try:
      line = json.loads(raw)
      is_next = (
          isinstance(line, dict)
          and line['previous'] == previous
          and line['hash'] == hash_line(line)
          and raw + b'\n' == encode_line(line)
      )
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


def _read_apart(path: str, chain: _Chain) -> dict[str, tuple[_Chain, bytes]]:
  """The ledgers of other units beside one, by unit, and their files' bytes."""
  found = {}
  for unit, head in chain.contents.apart.items():
    other = _path_beside(path, unit)
    found[unit] = _read(other, head), _bytes_of(other)
  return found


def _all_entries(path: str, head: Optional[Head]) -> set[tuple[str, Any]]:
  """Rounds, notes and voids of a ledger and those beside it, with the unit."""
  chain = _read(path, head)
  chains = [chain, *(other for other, _ in _read_apart(path, chain).values())]
  return {
      (each.header['unit'], entry)
      for each in chains
      for entry in (*each.entries, *each.header['voids'])
  }


def _split(
    parent: Optional[Parent], *, unit: Optional[str]
) -> tuple[Optional[Parent], dict[str, tuple[_Chain, bytes]]]:
  """The parent's ledger of the run's unit, and those of other units."""
  if parent is None:
    return None, {}
  path, head = parent
  chain = _read(path, head)
  apart = _read_apart(path, chain)
  parent_unit = chain.header['unit']
  if unit in (None, parent_unit):
    return parent, apart
  own = None
  if unit in apart:
    apart.pop(unit)
    own = _path_beside(path, unit), chain.contents.apart[unit]
  if chain.entries:
    apart[parent_unit] = chain, _bytes_of(path)
  return own, apart


def _open_locked(path: str, flags: int = 0) -> int:
  """Returns a file descriptor for `_append`, with an exclusive lock."""
  while True:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o644)
    if not files.try_lock(descriptor):
      os.close(descriptor)
      raise LedgerError(f'The privacy ledger {path} is in use by another run.')
    # Between both, `create` may have put another file there.
    if os.path.exists(path) and os.path.samestat(
        os.fstat(descriptor), os.stat(path)
    ):
      return descriptor
    os.close(descriptor)


def _append(descriptor: int, line: _Line) -> None:
  """Appends a line and waits for the disk; on failure nothing is appended."""
  size = os.fstat(descriptor).st_size
  data = encode_line(line)
  try:
    while data:
      data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)
  except OSError:
    os.ftruncate(descriptor, size)
    raise


def _path_beside(path: str, unit: str) -> str:
  """The ledger of another unit beside one: a/b.jsonl to a/b.UNIT.jsonl."""
  stem, extension = os.path.splitext(path)
  return f'{stem}.{unit}{extension}'


def _bytes_of(path: str) -> bytes:
  return files.read(path, max_bytes=_MAX_BYTES)


def _seal(fields: Mapping[str, Any], *, previous: str) -> _Line:
  """Returns the line with these fields that follows the hash `previous`."""
  line = {**fields, 'previous': previous}
  return {**line, 'hash': hash_line(line)}
