"""Cohorts: which clients take part in which round.

    >>> source = poisson(['ann', 'bob', 'cai'], cohort_size=2)
    >>> cohort, state = source.draw(source.initial_state())
    >>> int(state.round_num)
    1

Kinds of sampling, as accounting names them (`accounting.Sampling`):

  poisson     each client joins independently, with probability cohort_size /
              population
  fixed_size  cohort_size clients, every such set equally likely
  full        all clients in each round
  min_sep     cohort_size clients of one sampling group: b such groups take
              turns, so no client takes part twice within b rounds (for
              correlated noise)
  cyclic      each client of one sampling group joins independently, with
              probability b cohort_size / population; b such groups take turns
              (for banded noise)

Cohorts are secret: they are functions of a 256-bit key and the round number,
never logged and never saved. A cohort is sorted by client id; what a client
does must not depend on its place in the list.
"""

from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import json
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.data import client_ids as client_ids_lib
from tff_asr.privacy import accounting
from tff_asr.privacy import chacha20
from tff_asr.privacy import keys

# No noise uses this stream, under any key.
_STREAM = 3


class CohortState(NamedTuple):
  """Where the draws of a run stand.

  Attributes:
    key: The 256-bit key, int32 [8]. Secret.
    round_num: The round to be drawn next, int64 [].
    groups: Digest of all clients' ids, where groups take turns; else ''.
      Secret, because it confirms a guess at the whole list.
  """

  key: np.ndarray
  round_num: np.ndarray
  groups: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CohortSampler:
  """Draws the cohort of each round, as `sampling` declares.

  Made by `poisson`, `fixed_size`, `full`, `min_sep` and `cyclic`.

  Attributes:
    client_ids: All private clients, sorted.
    sampling: Rule of the draws, for the privacy accounting.
    key: The key that draws begin with, int32 [8]. Secret.
  """

  client_ids: client_ids_lib.ClientIds
  sampling: accounting.Sampling
  key: np.ndarray

  def initial_state(self) -> CohortState:
    """Returns the state before round 0."""
    return CohortState(np.array(self.key), np.int64(0), self._groups)

  def draw(self, state: CohortState) -> tuple[list[str], CohortState]:
    """Returns the ids of a round's cohort, sorted, and the next state.

    Args:
      state: Decides the cohort; its key replaces that of `initial_state`.

    Raises:
      ValueError: The state is not valid, or its groups are of other clients.
    """
    round_num = np.asarray(state.round_num)
    if round_num.shape or round_num.dtype.kind not in 'iu' or round_num < 0:
      raise ValueError(
          'round_num must be an integer of at least 0, found '
          f'{state.round_num!r}.'
      )
    # str: a restored state may hold a NumPy string.
    if str(state.groups) != self._groups:
      raise ValueError(
          'the private clients are others than those the run began with, so '
          'that some would take part again within MIN_SEP rounds: put the data '
          'back, or start another run from the model (INIT_FROM_RUN).'
      )
    chosen = draw_indices(
        self.sampling, key=keys.check(state.key), round_num=int(round_num)
    )
    return (
        [self.client_ids[i] for i in chosen],
        state._replace(round_num=np.int64(round_num + 1)),
    )

  @functools.cached_property
  def _groups(self) -> str:
    """`CohortState.groups` of these clients."""
    if self.sampling.min_sep is None:
      return ''
    # Sampling groups follow from all ids: with one more or less, clients move
    # to other groups, and may take part again too soon.
    content = json.dumps(self.client_ids.tolist())
    return hashlib.sha256(content.encode()).hexdigest()


def poisson(
    client_ids: Sequence[str],
    *,
    cohort_size: int,
    key: np.ndarray | None = None,
) -> CohortSampler:
  """Each client joins independently, cohort_size of them expected.

  Args:
    client_ids: The private clients, no two the same.
    cohort_size: Expected clients a round, in [1, number of clients].
    key: 256-bit key, int32 [8]; None draws one from the operating system.

  Raises:
    ValueError: If ids repeat, or cohort_size is out of range.
  """
  return _build(
      client_ids, kind='poisson', cohort_size=cohort_size, key=key
  )


def fixed_size(
    client_ids: Sequence[str],
    *,
    cohort_size: int,
    key: np.ndarray | None = None,
) -> CohortSampler:
  """cohort_size clients a round, without replacement. Args as `poisson`."""
  return _build(
      client_ids, kind='fixed_size', cohort_size=cohort_size, key=key
  )


def full(
    client_ids: Sequence[str], *, key: np.ndarray | None = None
) -> CohortSampler:
  """All clients in each round; `key` is kept but decides nothing."""
  return _build(
      client_ids, kind='full', cohort_size=len(client_ids), key=key
  )


def min_sep(
    client_ids: Sequence[str],
    *,
    cohort_size: int,
    min_sep: int,
    key: np.ndarray | None = None,
) -> CohortSampler:
  """cohort_size clients a round, none twice within min_sep rounds.

  Clients b, 2 b, .. places apart in the order of ids are a sampling group, and
  each of the b groups has its turn once in b rounds. So a client takes part at
  most ceil(T / b) times in T rounds. These groups are public: they follow from
  ids alone, so that they outlive lost keys.

  Args:
    client_ids: As in `poisson`.
    cohort_size: Clients a round.
    min_sep: b, at least 1 and at most the number of clients over cohort_size:
      a client that takes part in round t does not in the b - 1 rounds before
      and after it.
    key: As in `poisson`.
  """
  return _build(
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
) -> CohortSampler:
  """As `min_sep`, but each client of a sampling group joins independently.

  cohort_size clients are expected; see `min_sep` for the args.
  """
  return _build(
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


def _build(
    client_ids: Sequence[str],
    *,
    kind: str,
    cohort_size: int,
    key: np.ndarray | None,
    min_sep: int | None = None,
) -> CohortSampler:
  """A sampler of a kind; draws a key if none is given."""
  client_ids = _sorted_ids(client_ids)
  return CohortSampler(
      client_ids=client_ids,
      sampling=accounting.Sampling(
          kind=kind,
          cohort_size=cohort_size,
          population=len(client_ids),
          min_sep=min_sep,
      ),
      key=keys.draw() if key is None else keys.check(key),
  )


def _sorted_ids(client_ids: Sequence[str]) -> client_ids_lib.ClientIds:
  """The ids in order; ValueError unless they are distinct strings."""
  # A string is a sequence of strings, its characters.
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
  return client_ids_lib.build(ordered)


def draw_indices(
    sampling: accounting.Sampling, *, key: np.ndarray, round_num: int
) -> np.ndarray:
  """Draws a round's cohort: a pure function of its arguments.

  Each client has a 64-bit word of ChaCha20 (`chacha20`) under the key, with the
  round number in the nonce, so no two rounds share a word. A Poisson client
  joins if its word is below 2^64 times its probability (exact to 2^-64). A
  fixed-size cohort is the cohort_size smallest words, of all clients or of the
  sampling group (equal words, of probability below population^2 / 2^64, go by
  id).

  Args:
    sampling: How.
    key: 256-bit key, int32 [8].
    round_num: The round.

  Returns:
    int64 [n], ascending indices into the sorted population.
  """
  population = sampling.population
  if sampling.cohort_size == population:  # Under Poisson, too: probability 1.
    return np.arange(population)
  # A word for each client of the population, also outside of the sampling
  # group: so a client's word depends on its number and the round only.
  words = chacha20.words64(
      key, release=round_num, stream=_STREAM, count=population
  )
  num_groups = sampling.min_sep or 1
  group = np.arange(round_num % num_groups, population, num_groups)
  if sampling.kind in ('poisson', 'cyclic'):
    threshold = (sampling.cohort_size * num_groups << 64) // population
    # A probability of 1 does not fit a word.
    if threshold >> 64:
      return group
    return group[words[group] < np.uint64(threshold)]
  # Stable, so that equal words go by id, as documented.
  order = np.argsort(words[group], kind='stable')
  # Sorted: the order of the words must not reach clients or logs.
  return np.sort(group[order[: sampling.cohort_size]])
