"""The privacy ledger: an append-only file with one line a round.

A run may release (save, evaluate, show) a round's model only after `append`
has returned, which is after the round is on disk. So the file never lags
behind what has been seen; after a crash it may be ahead of the saved program
state. Lines are JSON, the first one a header:

    {"kind": "header", "format_version": 1, "run_id": ..., "unit": "speaker",
     "private": true, "fixed_seeds": [], "previous": "", "hash": ...}
    {"kind": "round", "index": 0, "round_num": 1, "event": {"sampling":
     {"kind": "poisson", "cohort_size": 10, "population": 1000},
     "noise_multipliers": [1.0]}, "configuration": DIGEST, "identity": DIGEST,
     "previous": HASH, "hash": HASH}

The lines are chained by their hashes (`hash_chain`), and the program state
holds the head, (number of rounds, last hash): a ledger that was deleted,
edited, shortened or reordered since is refused. It names no member of a
cohort.

Rounds charged twice, or not:
- The identity of a round is a digest of all that decides its noisy sum: keys,
  counters, state, configuration. Resuming from a state that the ledger is
  ahead of and repeating the very same round releases nothing new: it is
  recognized among the lines ahead of that state and not charged again.
- A different round there (another configuration, a new key) is charged in
  addition; what is in the ledger stays charged.
"""

import collections
from collections.abc import Sequence
import dataclasses
import hashlib
import json
import os
import re
import secrets
from typing import Any, NamedTuple

from absl import logging
import dp_accounting
import numpy as np

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import hash_chain
from tff_asr.privacy import keys

_FORMAT_VERSION = 1


class LedgerError(ValueError):
  """The ledger on disk is not the one that the program state belongs to."""


class Head(NamedTuple):
  """What the program state keeps: rounds charged and the last line's hash."""

  count: int
  digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
  """One round, as it is charged.

  Attributes:
    round_num: The run's number of the round.
    sampling: How its cohort was drawn.
    noise_multipliers: One for each Gaussian that the round added to sums over
      its cohort; together they cost as `accounting.combine_gaussians` says.
    configuration: Digest of the configuration.
    identity: Digest by `round_identity`.
  """

  round_num: int
  sampling: accounting.Sampling
  noise_multipliers: tuple[float, ...]
  configuration: str
  identity: str

  def __post_init__(self):
    checks.non_negative_int(round_num=self.round_num)
    accounting.combine_gaussians(self.noise_multipliers)
    if not isinstance(self.configuration, str):
      raise ValueError(
          f'configuration must be a string, found {self.configuration!r}.'
      )
    if not _is_digest(self.identity):
      raise ValueError(
          'identity must be a digest by round_identity, found '
          f'{self.identity!r}.'
      )


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
    noise_key: The noise's 128-bit key, int32 [4].
    noise_counter: The noise's counter in this round, at least 0.
    sampler_key: The cohort sampler's key, int32 [4].
    round_num: The sampler's round number, at least 0.
    configuration: Digest of the configuration.
    state_digest: Digest of the server state, for runs that could reach the
      same counter with another state under one configuration.
  """
  checks.non_negative_int(noise_counter=noise_counter, round_num=round_num)
  parts = [
      keys.to_bytes(noise_key).hex(), noise_counter,
      keys.to_bytes(sampler_key).hex(), round_num, configuration, state_digest,
  ]
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Contents(NamedTuple):
  """What a ledger says; fixed_seeds not empty means NOT PRIVATE."""

  run_id: str
  unit: str
  fixed_seeds: tuple[str, ...]
  rounds: list[accounting.Rounds]


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
    self._counts = _count(lines)

  @property
  def head(self) -> Head:
    """The head as of the last round appended: save it with that round."""
    return Head(self._position, self._lines[self._position]['hash'])

  @property
  def contents(self) -> Contents:
    return _contents(self._lines[0], self._counts)

  def append(self, charged: Round) -> bool:
    """Charges a round; when this returns the round is on disk.

    Args:
      charged: The round about to be released.

    Returns:
      True if it was charged; False if it is the identical round that the
      ledger already holds ahead of the program state.

    Raises:
      OSError: If it cannot be written; the file is then as before.
      LedgerError: If a round of the same identity differs otherwise.
    """
    ahead = self._lines[self._position + 1 :]
    for line in ahead:
      if line['identity'] == charged.identity:
        if line != _line(charged, after=line['index'], hash_=line['previous']):
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
    line = _line(charged, after=index, hash_=self._lines[-1]['hash'])
    hash_chain.append(self._descriptor, line)
    self._lines.append(line)
    self._position = index + 1
    self._counts += _count([line])
    return True

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
    path: str, *, unit: str = 'speaker', fixed_seeds: Sequence[str] = ()
) -> Ledger:
  """Starts the ledger of a new run, in place of one without any rounds.

  Args:
    path: The file; its folder exists.
    unit: What is protected: one client of this kind.
    fixed_seeds: Names of the keys that a seed fixed, such as 'NOISE_SEED'.

  Raises:
    LedgerError: If `path` holds rounds or something else, or is in use.
  """
  descriptor = _open_locked(path, new=True)
  try:
    if os.path.getsize(path) and not _is_torn_header(path):
      charged = len(_read(path)) - 1
      if charged:
        raise LedgerError(
            f'The privacy ledger {path} already charges {charged} rounds: '
            'resume that run from its saved state, or take another directory.'
        )
    header = hash_chain.seal({
        'kind': 'header',
        'format_version': _FORMAT_VERSION,
        'run_id': secrets.token_hex(8),
        'unit': unit,
        'private': not fixed_seeds,
        'fixed_seeds': list(fixed_seeds),
    }, previous='')
    os.ftruncate(descriptor, 0)
    hash_chain.append(descriptor, header)
    hash_chain.sync_folder(path)
  except BaseException:
    os.close(descriptor)
    raise
  return Ledger(path, descriptor=descriptor, lines=[header], position=0)


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
    lines = _read(path)
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
    hash_chain.cut_torn_line(descriptor, lines)
  except BaseException:
    os.close(descriptor)
    raise
  return Ledger(path, descriptor=descriptor, lines=lines, position=head.count)


def read(path: str) -> Contents:
  """Reads a ledger file, open elsewhere or not.

  Its chain is checked; lines missing at its end show only against the head.

  Raises:
    LedgerError: If the file was edited or is no ledger.
  """
  lines = _read(path)
  return _contents(lines[0], _count(lines))


def to_event(contents: Contents) -> dp_accounting.DpEvent:
  """Returns the event of all charged rounds, for `accounting.epsilon`."""
  return accounting.compose(contents.rounds)


def _contents(
    header: hash_chain.Line, counts: collections.Counter
) -> Contents:
  """The header's fields and the rounds."""
  return Contents(
      run_id=header['run_id'],
      unit=header['unit'],
      fixed_seeds=tuple(header['fixed_seeds']),
      rounds=[
          accounting.Rounds(
              sampling=sampling, noise_multiplier=noise, count=count
          )
          for (sampling, noise), count in counts.items()
      ],
  )


def _count(lines: Sequence[hash_chain.Line]) -> collections.Counter:
  """How many of the lines charge each sampling and noise."""
  counts = collections.Counter()
  for line in lines:
    if line['kind'] == 'round':
      noise = accounting.combine_gaussians(line['event']['noise_multipliers'])
      counts[accounting.Sampling(**line['event']['sampling']), noise] += 1
  return counts


def _line(charged: Round, *, after: int, hash_: str) -> hash_chain.Line:
  """The line of a round that follows `after` rounds and a hash."""
  return hash_chain.seal({
      'kind': 'round',
      'index': after,
      'round_num': charged.round_num,
      'event': {
          'sampling': dataclasses.asdict(charged.sampling),
          'noise_multipliers': [float(z) for z in charged.noise_multipliers],
      },
      'configuration': charged.configuration,
      'identity': charged.identity,
  }, previous=hash_)


def _read(path: str) -> list[hash_chain.Line]:
  """Reads a ledger and checks its chain and the fields of each line."""
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
    _contents(header, collections.Counter())
    for index, line in enumerate(lines[1:]):
      charged = Round(
          round_num=line['round_num'],
          sampling=accounting.Sampling(**line['event']['sampling']),
          noise_multipliers=tuple(line['event']['noise_multipliers']),
          configuration=line['configuration'],
          identity=line['identity'],
      )
      if line != _line(charged, after=index, hash_=line['previous']):
        raise ValueError(f'round {index} has other fields than expected')
  except (ValueError, KeyError, TypeError) as error:
    raise LedgerError(
        f'The privacy ledger {path} is not well formed: {error}.'
    ) from None
  return lines


def _open_locked(path: str, *, new: bool = False) -> int:
  """As `hash_chain.open_locked`, naming the ledger."""
  try:
    return hash_chain.open_locked(path, new=new)
  except hash_chain.ChainError as error:
    raise LedgerError(f'The privacy ledger {error}') from None


def _is_torn_header(path: str) -> bool:
  """Whether the file is the beginning of a header and nothing else."""
  with open(path, 'rb') as file:
    data = file.read(1 << 16)
  start = b'{"fixed_seeds": '
  return b'\n' not in data and data[: len(start)] == start[: len(data)]


def _is_digest(value: Any) -> bool:
  return isinstance(value, str) and bool(re.fullmatch('[0-9a-f]{64}', value))
