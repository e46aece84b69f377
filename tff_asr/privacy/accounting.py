"""Epsilon of rounds, from their sampling, noise and number.

    >>> rounds = RoundGroup(
    ...     sampling=Sampling(
    ...         kind='poisson', cohort_size=1000, population=100_000),
    ...     noise_multiplier=1.0, count=1000)
    >>> round(epsilon([rounds], delta=1e-6), 2)
    2.44
    >>> round(epsilon([rounds], delta=1e-6, accountant='pld'), 2)
    2.12

A round adds Gaussian noise of standard deviation z * C to the sum of the
cohort's updates, each clipped to an L2 norm of at most C; z is the noise
multiplier. `compose` builds the dp_accounting event that the cohorts' sampling
gives; docs/privacy.md ("Sampling, neighbours, events") has the table of events
and neighbouring relations, docs/proofs.md the proofs.

Both accountants, from dp_accounting, give upper bounds up to float64 rounding
(docs/proofs.md, "Accuracy of the accountants"). `rdp` is Renyi DP. `pld` is
privacy loss distributions: usually tighter, but not available for all events.
"""

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import math
from typing import Any, Optional
import warnings

import dp_accounting
from dp_accounting import pld
from dp_accounting import rdp
import numpy as np

from tff_asr import checks
from tff_asr.privacy import strategies

# `cohorts` has a builder of the same name for each.
SAMPLING_KINDS = ('poisson', 'fixed_size', 'full', 'min_sep', 'cyclic')
MIN_SEP_KINDS = ('min_sep', 'cyclic')  # b rounds between participations
ACCOUNTANTS = ('rdp', 'pld')

_ADD_OR_REMOVE_ONE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
_REPLACE_SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
# The relation under which the event of each kind of sampling holds.
_OWN_RELATIONS = {
    'poisson': _ADD_OR_REMOVE_ONE,
    'fixed_size': _REPLACE_ONE,
    'full': _ADD_OR_REMOVE_ONE,
    'min_sep': _REPLACE_SPECIAL,
    'cyclic': _REPLACE_SPECIAL,
}

# dp_accounting's default orders.
ORDERS = tuple(float(order) for order in rdp.RdpAccountant().orders)
# Those that take milliseconds under Poisson sampling, and others seconds.
QUICK_ORDERS = tuple(order for order in ORDERS if order == int(order))
# Below this noise the accountants divide by zero or lose all digits, and some
# report 0. Epsilon is above 1e15, so it is reported as infinite.
MIN_NOISE_MULTIPLIER = 1e-8
# Larger numbers overflow in the accountants.
_MAX_NUMBER = 1e100
_MAX_ROUNDS = 1e12
# PLD's grid grows as 1 / z^2 and takes a minute a round below this.
_PLD_MIN_NOISE_MULTIPLIER = 0.1
_PLD_MAX_RDP_EPSILON = 100.0
# Its convolutions round to some 1e-16 a cell, which shows at smaller deltas.
_PLD_MIN_DELTA = 1e-9
# Steps of its grid of losses. A multiple of it has larger epsilons, which are
# upper bounds, too: by 1e-5 of themselves at ten times the step, a tenth the
# time (tests/privacy/accounting_test.py).
PLD_STEP = 1e-4
# No epsilon was measured further below the exact one (docs/proofs.md).
EPSILON_ERROR = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
  """The way to draw a round's cohort: `kind` as in the table of data.cohorts.

  cohort_size is the number of clients a round, or the expected number under
  Poisson sampling. population is the number of all private clients; it is
  public. min_sep is b for min_sep and cyclic cohorts, in which no client takes
  part twice within b rounds; None for others.
  """

  kind: str
  cohort_size: int
  population: int
  min_sep: Optional[int] = None

  def __post_init__(self):
    checks.one_of(SAMPLING_KINDS, kind=self.kind)
    sizes = dict(cohort_size=self.cohort_size, population=self.population)
    checks.positive_int(**sizes)
    checks.in_range(1, _MAX_NUMBER, **sizes)
    if self.cohort_size > self.population:
      raise ValueError(
          f'cohort_size is {self.cohort_size} but population is only '
          f'{self.population}: make the cohort smaller or add clients.'
      )
    if self.kind == 'full' and self.cohort_size != self.population:
      raise ValueError(
          'Full participation takes everyone, found cohort_size '
          f'{self.cohort_size} of population {self.population}.'
      )
    if (self.kind in MIN_SEP_KINDS) != (self.min_sep is not None):
      raise ValueError(
          'min_sep belongs to min_sep and cyclic cohorts alone, found '
          f'{self.min_sep} with {self.kind} cohorts.'
      )
    if self.min_sep is not None:
      checks.positive_int(min_sep=self.min_sep)
      if self.min_sep * self.cohort_size > self.population:
        raise ValueError(
            f'min_sep is {self.min_sep}, but {self.population} '
            f'clients make only {self.population // self.cohort_size} cohorts '
            f'of {self.cohort_size}: lower one of them.'
        )

  @property
  def sampling_prob(self) -> float:
    """A client's probability in a round; in its turn if they are cyclic."""
    # A cyclic client can be drawn in one round of min_sep only.
    turns = self.min_sep if self.kind == 'cyclic' else 1
    return turns * self.cohort_size / self.population

  @property
  def fields(self) -> dict[str, Any]:
    """The fields by name, without those of other kinds."""
    fields = dataclasses.asdict(self)
    return {k: value for k, value in fields.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecureSumParams:
  """A secure sum of updates to which the clients added the noise.

  Attributes:
    bits: Bits of an element of the sum.
    num_clients: Number of clients of each round.
    min_clients: The guarantee needs the noise of this many; others may drop
      out.
  """

  bits: int
  num_clients: int
  min_clients: int

  def __post_init__(self):
    checks.positive_int(**dataclasses.asdict(self))
    if self.min_clients > self.num_clients:
      raise ValueError(
          f'{self.min_clients} of {self.num_clients} clients cannot survive.'
      )


def check_noise_fits_sampling(
    sampling: Sampling,
    strategy: Optional[strategies.Toeplitz],
    secure_sum: Optional[SecureSumParams] = None,
) -> None:
  """Raises ValueError unless noise and cohorts go together."""
  if secure_sum is not None:
    if strategy is not None or sampling.kind not in ('min_sep', 'fixed_size'):
      raise ValueError(
          f'noise that clients add does not go with {sampling.kind} cohorts, '
          'nor with a strategy: how many came would change it. Take '
          '@cohorts.min_sep (gin/privacy/distributed.gin) or '
          '@cohorts.fixed_size.'
      )
    if secure_sum.num_clients != sampling.cohort_size:
      raise ValueError(
          f'the noise is made for {secure_sum.num_clients} clients a round, '
          f'the cohorts have {sampling.cohort_size}: set both by COHORT_SIZE.'
      )
    return
  if (sampling.kind in MIN_SEP_KINDS) != (strategy is not None):
    raise ValueError(
        f'{"independent" if strategy is None else "correlated"} noise does not '
        f'go with {sampling.kind} cohorts: gin/privacy/blt.gin and banded.gin '
        'set both correlated noise and cohorts that keep a separation, '
        'gin/privacy/adaptive_blt.gin and adaptive_banded.gin also clips that '
        'adapt.'
    )
  if sampling.kind == 'cyclic' and not (
      strategy.num_bands and strategy.num_bands <= sampling.min_sep
  ):
    raise ValueError(
        'cyclic cohorts need a banded strategy of at most MIN_SEP = '
        f'{sampling.min_sep} bands, found '
        f'{strategy.num_bands or "BLT"}: gin/privacy/banded.gin sets both.'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundGroup:
  """`count` rounds with the same sampling and noise multiplier (0: none).

  sampler_epsilon bounds how much inexact noise adds to a round's epsilon
  (`queries.sampler_epsilon`). strategy is set for min_sep and cyclic cohorts
  with correlated noise; their round group holds all rounds of one sequence
  (`ledger.Charges`), from the first on. secure_sum is set if clients add the
  noise. noise_norm, which costs nothing, is the root mean square norm of a
  round's noise on the sum over the clip C: sqrt(D) z if D elements have noise
  of z C each; with a strategy, the norm before correlation. None: not known.
  """

  sampling: Sampling
  noise_multiplier: float
  count: int = 1
  sampler_epsilon: float = 0.0
  strategy: Optional[strategies.Toeplitz] = None
  secure_sum: Optional[SecureSumParams] = None
  noise_norm: Optional[float] = None

  def __post_init__(self):
    checks.in_range(
        0,
        _MAX_NUMBER,
        noise_multiplier=self.noise_multiplier,
        sampler_epsilon=self.sampler_epsilon,
        noise_norm=self.noise_norm or 0.0,
    )
    checks.non_negative_int(count=self.count)
    checks.in_range(0, _MAX_ROUNDS, **{'count of rounds': self.count})
    # Without noise there is no guarantee, so any cohorts will do.
    if self.noise_multiplier:
      check_noise_fits_sampling(self.sampling, self.strategy, self.secure_sum)

  @property
  def sensitivity(self) -> float:
    """s of all rounds together, in clips; of cyclic cohorts |c|."""
    separation = self.sampling.min_sep
    if self.strategy is None:
      # A client takes part in at most ceil(count / separation) rounds.
      return math.sqrt(-(-self.count // separation))
    if self.sampling.kind == 'cyclic':
      separation = max(1, self.count)  # One participation.
    return self.strategy.sensitivity(self.count, min_sep=separation)

  @property
  def noise_over_clip(self) -> Optional[float]:
    """(noise norm) / C of a round's mean, root mean square over the rounds.

    sqrt(D) z / S for independent noise and a cohort size S; None: not known.
    """
    variance = 1.0
    if self.strategy is not None and self.count:
      # A round's noise has fresh draws and parts of all earlier ones.
      weights = self.strategy.inverse_coefficients(self.count)
      variance = np.cumsum(weights**2).mean()
    return self._on_mean(variance)

  @property
  def noise_of_sum(self) -> Optional[float]:
    """(noise norm) / C of the sum of all rounds' means; None: not known."""
    variance = self.count
    if self.strategy is not None and self.count:
      # A draw's weight in the sum: that in its round and in those after it.
      weights = self.strategy.inverse_coefficients(self.count)
      variance = (np.cumsum(weights) ** 2).sum()
    return self._on_mean(variance)

  def _on_mean(self, variance: float) -> Optional[float]:
    """(noise norm) / C of a mean with so many times the variance of a draw."""
    if self.noise_norm is None:
      return None
    return self.noise_norm * math.sqrt(variance) / self.sampling.cohort_size


def default_delta(population: int) -> float:
  """Returns 1 / (10 population).

  It is a tenth of the delta at which publishing one client's data is allowed.
  """
  return 0.1 / population


def neighboring_relation(
    rounds: Sequence[RoundGroup],
) -> dp_accounting.NeighboringRelation:
  """Returns the neighbouring relation that holds for all these rounds.

  Rounds with full participation fit add-or-remove-one and replace-one.

  Raises:
    ValueError: The rounds have no relation in common.
  """
  kinds = {group.sampling.kind for group in rounds if group.count}
  # Full participation fits two relations: the other kinds decide.
  others = kinds - {'full'} or kinds
  relations = {_OWN_RELATIONS[kind] for kind in others}
  if len(relations) > 1 or (
      'full' in kinds and not kinds.isdisjoint(MIN_SEP_KINDS)
  ):
    names = ' and '.join(
        f'{kind} ({_OWN_RELATIONS[kind].name})' for kind in sorted(kinds)
    )
    raise ValueError(
        f'Rounds of {names} sampling cannot be composed: use one sampling in '
        'a run.'
    )
  return _OWN_RELATIONS[others.pop()] if others else _ADD_OR_REMOVE_ONE


def compose(rounds: Sequence[RoundGroup]) -> dp_accounting.DpEvent:
  """Returns the event of all rounds together; equal events are merged.

  It leaves out the sampler's error, which no accountant takes; `epsilon` adds
  it.

  Args:
    rounds: The rounds of one run.

  Raises:
    ValueError: Kinds of sampling do not go together.
  """
  events = [
      dp_accounting.SelfComposedDpEvent(event, count)
      for event, count in _events(rounds).items()
  ]
  if not events:
    return dp_accounting.NoOpDpEvent()
  if len(events) == 1:
    return events[0]
  return dp_accounting.ComposedDpEvent(events)


def epsilon(
    rounds: Sequence[RoundGroup], *, delta: float, accountant: str = 'rdp'
) -> float:
  """Returns the epsilon of rounds at delta.

  Args:
    rounds: The rounds of one run.
    delta: In (0, 1).
    accountant: 'rdp' or 'pld'.

  Returns:
    Epsilon of at least 0; 0 for no rounds, infinity without noise.

  Raises:
    ValueError: PLD cannot account these rounds (see `pld_obstacle`), or an
      argument is out of range.
  """
  checks.one_of(ACCOUNTANTS, accountant=accountant)
  # RDP first: it checks delta, and PLD may not end if it is infinite.
  rdp_epsilon, _ = rdp_epsilon_and_order(rounds, delta=delta)
  if accountant == 'rdp' or math.isinf(rdp_epsilon):
    return rdp_epsilon
  by_pld, obstacle = epsilon_by_pld(rounds, delta=delta)
  if by_pld is None:
    raise ValueError(f'PLD cannot be used: {obstacle}. Use RDP.')
  return by_pld


def leading_epsilon(
    rounds: Sequence[RoundGroup],
    *,
    delta: float,
    target: Optional[float] = None,
) -> float:
  """Returns the smaller bound on epsilon: PLD's, where it takes the rounds.

  PLD's grid is coarser than that of a privacy report, so that this takes some
  20 to 200 ms; it is above the epsilon of the report by up to a thousandth.

  Args:
    rounds: As for `epsilon`.
    delta: In (0, 1).
    target: An epsilon to compare with. RDP's bound is returned if it suffices,
      which spares the time of PLD.
  """
  by_rdp = epsilon(rounds, delta=delta)
  if target is not None and by_rdp <= target:
    return by_rdp
  step = min(search_step(min(by_rdp, target or by_rdp)), 10 * PLD_STEP)
  by_pld, _ = epsilon_by_pld(rounds, delta=delta, step=step)
  return by_rdp if by_pld is None else min(by_rdp, by_pld)


def epsilon_by_pld(
    rounds: Sequence[RoundGroup], *, delta: float, step: float = PLD_STEP
) -> tuple[Optional[float], str]:
  """Returns epsilon by PLD and '', or None and the obstacle.

  Args:
    rounds: As for `epsilon`; see `pld_obstacle`.
    delta: In (0, 1).
    step: Of the grid of losses, a multiple of `PLD_STEP`.
  """
  obstacle = pld_obstacle(rounds, delta=delta)
  if obstacle:
    return None, obstacle
  accountant = pld.PLDAccountant(
      _accounted_relation(rounds), value_discretization_interval=step
  )
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # SciPy's, about NumPy
      found = accountant.compose(compose(rounds)).get_epsilon(delta)
  except ValueError as failure:  # Its check of rounding fails at a tiny q.
    return None, f'dp_accounting fails ({failure})'
  return _charge_sampler(max(0.0, float(found)), rounds, delta=delta), ''


def search_step(target_epsilon: float) -> float:
  """Returns PLD's step for comparisons with a target.

  Up to 30 times the usual one, which takes 10 to 30 times less time. About a
  ten-thousandth of the target is lost, and half a percent of it with thousands
  of rounds.
  """
  return PLD_STEP * int(min(30, max(1, 10 * target_epsilon)))


def rdp_epsilon_and_order(
    rounds: Sequence[RoundGroup],
    *,
    delta: float,
    orders: Sequence[float] = ORDERS,
) -> tuple[float, float]:
  """Returns the smallest RDP epsilon over the orders, and its order.

  Args:
    rounds: As for `epsilon`.
    delta: In (0, 1).
    orders: Renyi orders above 1.01; one order gives the epsilon that a
      published table states for it.
  """
  check_delta(delta)
  relation = _accounted_relation(rounds)
  total = np.zeros(len(orders))
  for event, count in _events(rounds).items():
    total += count * _rdp_of(event, tuple(orders), relation)
  found, order = rdp.compute_epsilon(orders, total, delta)
  return _charge_sampler(float(found), rounds, delta=delta), float(order)


def _charge_sampler(
    found: float, rounds: Iterable[RoundGroup], *, delta: float
) -> float:
  """Epsilon at delta with what inexact noise adds to both.

  Noise ends: delta grows by less than num_draws 2^-300 exp(epsilon). As error
  is at least 4 num_draws 2^-93 23 (`noise.sampler_error_epsilon`), that is less
  than error 2^-213 exp(epsilon), which is lost in the rounding of delta up to
  an epsilon of 100 and more. Where it is not, epsilon is infinite.
  """
  # Errors of probabilities multiply, so their epsilons add up.
  error = sum(group.count * group.sampler_epsilon for group in rounds)
  found += error
  # As logarithms: exp(epsilon) may be beyond a float. 2^-53 rounds float64.
  if error and found + math.log(error) - 213 * math.log(2) > (
      math.log(delta) - 53 * math.log(2)
  ):
    return math.inf
  return found


def pld_obstacle(rounds: Sequence[RoundGroup], *, delta: float) -> str:
  """Returns why PLD accounting would fail or not end, or ''.

  It works for Poisson and full sampling with an RDP epsilon of at most 100,
  noise multipliers of at least 0.1 and a delta of at least 1e-9.
  """
  if delta < _PLD_MIN_DELTA:
    return f'at a delta below {_PLD_MIN_DELTA:g} its rounding shows'
  events = _events(rounds)
  accountant = pld.PLDAccountant(_accounted_relation(rounds))
  if not accountant.supports(compose(rounds)):
    found = ', '.join(sorted({type(event).__name__ for event in events}))
    return f'it takes Poisson sampling and full participation, found {found}'
  for orders in (QUICK_ORDERS, ORDERS):
    rdp_epsilon, _ = rdp_epsilon_and_order(rounds, delta=delta, orders=orders)
    if rdp_epsilon <= _PLD_MAX_RDP_EPSILON:
      break  # Either is an upper bound.
  # Not `>`, which lets NaN pass.
  if not rdp_epsilon <= _PLD_MAX_RDP_EPSILON:
    return (
        f'RDP gives epsilon {rdp_epsilon:.4g}, and above '
        f'{_PLD_MAX_RDP_EPSILON:g} it may not end'
    )
  if any(_noise_of(event) < _PLD_MIN_NOISE_MULTIPLIER for event in events):
    return (
        f'at a noise multiplier below {_PLD_MIN_NOISE_MULTIPLIER:g} it may not '
        'end'
    )
  return ''


def check_delta(delta: float) -> None:
  """Raises ValueError unless delta is in (0, 1)."""
  checks.positive(delta=delta)
  if not delta < 1:
    raise ValueError(f'delta must be below 1, found {delta!r}.')


def _events(rounds: Sequence[RoundGroup]) -> dict[dp_accounting.DpEvent, int]:
  """The events of rounds, and how often each occurs."""
  relation = neighboring_relation(rounds)
  counts = collections.Counter()
  for group in rounds:
    if group.count:
      event, count = _event_of(group, relation)
      counts[event] += count
  return counts


def _event_of(
    group: RoundGroup, relation: dp_accounting.NeighboringRelation
) -> tuple[dp_accounting.DpEvent, int]:
  """An event and its count in a group, under the relation of all rounds."""
  sampling, count = group.sampling, group.count
  # Replacing one client moves the sum by up to two clips.
  sensitivity = 2.0 if relation is _REPLACE_ONE else 1.0  # in clips
  if sampling.min_sep is not None:
    # All rounds of a sequence are one event; of cyclic cohorts, there is one
    # for each of a client's turns.
    sensitivity = group.sensitivity
    count = -(-count // sampling.min_sep) if sampling.kind == 'cyclic' else 1
  noise_multiplier = group.noise_multiplier / sensitivity
  if noise_multiplier < MIN_NOISE_MULTIPLIER:
    return dp_accounting.NonPrivateDpEvent(), 1
  event = dp_accounting.GaussianDpEvent(noise_multiplier)
  if sampling.kind in ('poisson', 'cyclic'):
    event = dp_accounting.PoissonSampledDpEvent(sampling.sampling_prob, event)
  elif sampling.kind == 'fixed_size':
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        sampling.population, sampling.cohort_size, event
    )
  return event, count


def _accounted_relation(
    rounds: Sequence[RoundGroup],
) -> dp_accounting.NeighboringRelation:
  """The relation that accountants take for the events of rounds."""
  # Under zero-out, rounds have the events of adding or removing a client.
  relation = neighboring_relation(rounds)
  return relation if relation is _REPLACE_ONE else _ADD_OR_REMOVE_ONE


# Cached: a run computes epsilon after each round.
@functools.lru_cache(maxsize=4096)
def _rdp_of(
    event: dp_accounting.DpEvent,
    orders: tuple[float, ...],
    relation: dp_accounting.NeighboringRelation,
) -> np.ndarray:
  """Renyi divergence at each order, at most that without sampling."""
  # The accountant would raise without noise.
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    return np.full(len(orders), np.inf)
  with np.errstate(all='ignore'):
    values = rdp.RdpAccountant(list(orders), relation).compose(event).rdp
  # An upper bound: the Gaussian without amplification by sampling.
  whole = np.array(orders) / (2 * _noise_of(event) ** 2)
  # NaN and values of 0 or less come from cancelled digits.
  values = np.where(values > 0, np.minimum(values, whole), whole)
  # The cache returns this very array again.
  values.flags.writeable = False
  return values


def _noise_of(event: dp_accounting.DpEvent) -> float:
  """The noise multiplier of a Gaussian, sampled or not."""
  return getattr(event, 'event', event).noise_multiplier
