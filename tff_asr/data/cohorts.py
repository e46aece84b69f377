"""Cohort sources: which clients take part in which round.

A source knows the private clients' ids and how a cohort is drawn from them; its
iterator yields the ids of one round after another. Cohorts are secret: they are
functions of a 256-bit key and the round number, never logged and never saved.

  poisson     each client on its own with probability cohort_size / population
  fixed_size  cohort_size clients, every such set equally likely
  full    all clients in each round
  min_sep    cohort_size clients of the group whose turn it is: clients
              b, 2 b, .. places apart in the order of ids are a group, and each
              of the b groups has every b-th round. So nobody takes part twice
              within b rounds, and everybody ceil(T / b) times in T rounds at
              most (for correlated noise)
  cyclic    each client of the group whose turn it is, on its own with
              probability b cohort_size / population (for banded noise)

Draws are 64-bit words of ChaCha20 (`chacha20`) under the key, with the round
number in the nonce: round t depends on (key, t) only, and no two rounds share a
word. A Poisson client joins if its word is below
2^64 times its probability (exact to 2^-64); a fixed-size cohort is the
cohort_size smallest words (equal words, of probability below population^2 /
2^64, go by id), of all clients or of the group. Groups are public, and follow
from ids alone, so that they outlive lost keys. One client more or less moves
others to another group, whose turn may come too soon: so the state of an
iterator knows the clients that its groups are of, and goes on with no others.
A cohort is in order of client id, whatever the order in which ids were given;
what a client does must not depend on its place in the list.

Differences from tff.program.ClientIdDataSource: seeded, restorable, Poisson.
"""

from collections.abc import Sequence
import hashlib
import json
from typing import NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import chacha20
from tff_asr.privacy import keys

# No noise has this stream, under whatever key.
_STREAM = 3
_FEDERATED_TYPE = tff.FederatedType(np.str_, tff.CLIENTS)


class CohortState(NamedTuple):
  """State of an iterator, from which it continues exactly.

  Attributes:
    key: The 256-bit key, int32 [8]. Secret.
    round_num: The round to be drawn next, int64 [].
    groups: Digest of all clients' ids, where groups have turns; else ''.
      Secret, since whoever knows all ids but one could try that one.
  """

  key: np.ndarray
  round_num: np.ndarray
  groups: str = ''


class CohortSource(tff.program.FederatedDataSource):
  """Draws cohorts of client ids as its `sampling` declares.

  Made by `poisson`, `fixed_size`, `full`, `min_sep` and
  `cyclic`.
  """

  def __init__(
      self,
      client_ids: Sequence[str],
      *,
      kind: str,
      cohort_size: int,
      key: np.ndarray | None,
      min_sep: int | None = None,
  ):
    self._client_ids = _sorted_ids(client_ids)
    self._sampling = accounting.Sampling(
        kind=kind,
        cohort_size=cohort_size,
        population=len(self._client_ids),
        min_sep=min_sep,
    )
    self._key = keys.draw() if key is None else keys.check(key)
    self._groups = ''
    if min_sep is not None:
      ids = json.dumps(self._client_ids).encode()
      self._groups = hashlib.sha256(ids).hexdigest()

  @property
  def federated_type(self) -> tff.FederatedType:
    """`{string}@CLIENTS`."""
    return _FEDERATED_TYPE

  @property
  def sampling(self) -> accounting.Sampling:
    """Rule of the draws, for the privacy accounting."""
    return self._sampling

  @property
  def client_ids(self) -> tuple[str, ...]:
    """All private clients, sorted."""
    return self._client_ids

  @property
  def groups(self) -> str:
    """`CohortState.groups` of these clients."""
    return self._groups

  def iterator(self, state: CohortState | None = None) -> 'CohortIterator':
    """Returns an iterator from round 0 on, or from where `state` was taken.

    The key in `state` replaces the source's own.

    Raises:
      ValueError: The state is not one, or its groups are of other clients.
    """
    if state is None:
      state = CohortState(self._key, np.int64(0), self._groups)
    return CohortIterator(self, state)


class CohortIterator(tff.program.FederatedDataSourceIterator):
  """Yields the cohorts of a source, round after round."""

  def __init__(self, source: CohortSource, state: CohortState):
    round_num = np.asarray(state.round_num)
    if round_num.shape or round_num.dtype.kind not in 'iu' or round_num < 0:
      raise ValueError(
          'round_num must be an integer of at least 0, found '
          f'{state.round_num!r}.'
      )
    if str(state.groups) != source.groups:
      raise ValueError(
          'the private clients are others than those the run began with, so '
          'that some would take part again within MIN_SEP rounds: put '
          'the data back, or start another run from the model (INIT_FROM_RUN).'
      )
    self._source = source
    self._key = np.array(keys.check(state.key))
    self._round_num = int(round_num)

  @property
  def federated_type(self) -> tff.FederatedType:
    """`{string}@CLIENTS`."""
    return _FEDERATED_TYPE

  @property
  def state(self) -> CohortState:
    """State to save for `CohortSource.iterator`. Holds the key."""
    return CohortState(
        np.array(self._key), np.int64(self._round_num), self._source.groups
    )

  def select(self, k: Optional[int] = None) -> list[str]:
    """Returns the ids of the next round's cohort, sorted; may be empty.

    Args:
      k: None, or the declared cohort size: the sampling is the source's, since
        another one would not be the one that is accounted.

    Raises:
      ValueError: If `k` is another number.
    """
    sampling = self._source.sampling
    if k is not None and k != sampling.cohort_size:
      raise ValueError(
          f'The cohort size is {sampling.cohort_size} as declared to the '
          f'privacy accounting, found k={k!r}: leave k out.'
      )
    chosen = draw_indices(sampling, key=self._key, round_num=self._round_num)
    self._round_num += 1
    client_ids = self._source.client_ids
    return [client_ids[i] for i in chosen]

  def to_bytes(self) -> bytes:
    """Serializes source and state. Secret: holds the key."""
    sampling = self._source.sampling
    return json.dumps({
        'client_ids': self._source.client_ids,
        'kind': sampling.kind,
        'cohort_size': sampling.cohort_size,
        'min_sep': sampling.min_sep,
        'key': keys.to_bytes(self._key).hex(),
        'round_num': self._round_num,
    }).encode()

  @classmethod
  def from_bytes(cls, buffer: bytes) -> 'CohortIterator':
    """Deserializes what `to_bytes` wrote."""
    fields = json.loads(buffer)
    key = keys.from_bytes(bytes.fromhex(fields['key']))
    round_num = np.int64(fields.pop('round_num'))
    source = CohortSource(**fields | {'key': key})
    return source.iterator(CohortState(key, round_num, source.groups))

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, CohortIterator):
      return NotImplemented
    return self.to_bytes() == other.to_bytes()

  __hash__ = None  # It advances.


def poisson(
    client_ids: Sequence[str],
    *,
    cohort_size: int,
    key: np.ndarray | None = None,
) -> CohortSource:
  """Each client joins on its own, cohort_size of them expected.

  Args:
    client_ids: The private clients, no two the same.
    cohort_size: Expected clients a round, in [1, number of clients].
    key: 256-bit key, int32 [8]; None draws one from the operating system.

  Raises:
    ValueError: If ids repeat, or cohort_size is out of range.
  """
  return CohortSource(
      client_ids, kind='poisson', cohort_size=cohort_size, key=key
  )


def fixed_size(
    client_ids: Sequence[str],
    *,
    cohort_size: int,
    key: np.ndarray | None = None,
) -> CohortSource:
  """cohort_size clients a round, without replacement. Args as `poisson`."""
  return CohortSource(
      client_ids, kind='fixed_size', cohort_size=cohort_size, key=key
  )


def full(
    client_ids: Sequence[str], *, key: np.ndarray | None = None
) -> CohortSource:
  """All clients in each round; `key` is kept but decides nothing."""
  return CohortSource(
      client_ids, kind='full', cohort_size=len(client_ids), key=key
  )


def min_sep(
    client_ids: Sequence[str],
    *,
    cohort_size: int,
    min_sep: int,
    key: np.ndarray | None = None,
) -> CohortSource:
  """cohort_size clients a round, nobody twice within min_sep rounds.

  Other args as `poisson`.

  Args:
    min_sep: b, at least 1: who takes part in round t does not in the
      b - 1 rounds before and after it. At most the number of clients over
      cohort_size; then each takes part in nearly every b-th round.
  """
  return CohortSource(
      client_ids,
      kind='min_sep',
      cohort_size=cohort_size,
      min_sep=min_sep,
      key=key,
  )


def cyclic(
    client_ids: Sequence[str],
    *,
    cohort_size: int,
    min_sep: int,
    key: np.ndarray | None = None,
) -> CohortSource:
  """As `min_sep`, but each of a group joins on its own.

  cohort_size clients are expected; see `min_sep` for the args.
  """
  return CohortSource(
      client_ids,
      kind='cyclic',
      cohort_size=cohort_size,
      min_sep=min_sep,
      key=key,
  )


def largest_min_sep(
    *, client_data: tff.simulation.datasets.ClientData, cohort_size: int
) -> int:
  """Returns how many rounds apart all clients can be kept: N // cohort_size.

  Args:
    client_data: The N private clients; only the number of its `client_ids` is
      used.
    cohort_size: Clients in each round, at most N.

  Raises:
    ValueError: The cohort is not positive, or larger than the population.
  """
  checks.positive_int(cohort_size=cohort_size)
  found = len(client_data.client_ids) // cohort_size
  if not found:
    raise ValueError(
        f'COHORT_SIZE is {cohort_size}, but there are only '
        f'{len(client_data.client_ids)} private clients: lower it.'
    )
  return found


def _sorted_ids(client_ids: Sequence[str]) -> tuple[str, ...]:
  """The ids in order; ValueError unless they are distinct strings."""
  if isinstance(client_ids, (str, bytes)) or not len(client_ids):
    raise ValueError(
        'client_ids must be a sequence of at least one id, found '
        f'{client_ids!r}.'
    )
  for client_id in client_ids:
    if not isinstance(client_id, str) or not client_id:
      raise ValueError(
          f'client_ids must be non-empty strings, found {client_id!r}.'
      )
  ordered = sorted(client_ids)
  repeated = [a for a, b in zip(ordered, ordered[1:]) if a == b]
  if repeated:
    raise ValueError(
        f'client_ids repeat: {repeated[:3]} ({len(repeated)} repetitions). A '
        'client that counts twice would have twice the privacy loss.'
    )
  return tuple(ordered)


def draw_indices(
    sampling: accounting.Sampling, *, key: np.ndarray, round_num: int
) -> np.ndarray:
  """Draws a round's cohort.

  Args:
    sampling: How.
    key: 256-bit key, int32 [8].
    round_num: The round.

  Returns:
    int64 [n], ascending places in the order of the population.
  """
  population = sampling.population
  if sampling.cohort_size == population:  # under Poisson too: probability 1
    return np.arange(population)
  words = chacha20.words(
      key, release=round_num, stream=_STREAM, count=population
  )
  separation = sampling.min_sep or 1
  places = np.arange(round_num % separation, population, separation)
  if sampling.kind in ('poisson', 'cyclic'):
    threshold = (sampling.cohort_size * separation << 64) // population
    # A probability of 1 does not fit a word.
    if threshold >> 64:
      return places
    return places[words[places] < np.uint64(threshold)]
  order = np.argsort(words[places], kind='stable')
  return np.sort(places[order[: sampling.cohort_size]])
