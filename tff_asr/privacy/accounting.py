"""Epsilon of rounds, from their sampling, noise and number.

    >>> rounds = RoundGroup(
    ...     sampling=Sampling(
    ...         kind='poisson', cohort_size=1000, population=100_000),
    ...     noise_multiplier=1.0, count=1000)
    >>> event = compose([rounds])
    >>> round(epsilon(event, delta=1e-6), 2)
    2.44
    >>> round(epsilon(event, delta=1e-6, accountant='pld'), 2)
    2.12

A round adds Gaussian noise of standard deviation z * C to the sum of the
cohort's updates, each clipped to an L2 norm of at most C; z is the noise
multiplier. `compose` builds the dp_accounting event that the cohorts' sampling
gives; docs/privacy.md ("Sampling, neighbours, events") has the table of events
and neighbouring relations, and the proofs.

Both accountants, from dp_accounting, give upper bounds up to float64 rounding
(docs/privacy.md, "Accuracy"). `rdp` is Renyi DP. `pld` is privacy loss
distributions: usually tighter, but not available for all events.
"""

import collections
from collections.abc import Callable, Iterable, Sequence
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
# Relations that events imply; a Gaussian alone fits all of them.
_RELATIONS = {
    dp_accounting.PoissonSampledDpEvent: _ADD_OR_REMOVE_ONE,
    dp_accounting.SampledWithoutReplacementDpEvent: _REPLACE_ONE,
}

# dp_accounting's default orders.
ORDERS = tuple(float(order) for order in rdp.RdpAccountant().orders)
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
# No epsilon was measured further below the exact one (docs/privacy.md).
EPSILON_ERROR = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
  """The way to draw a round's cohort: `kind` as in the module's table.

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
class SecureSum:
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
    secure_sum: Optional[SecureSum] = None,
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
  with correlated noise; their group holds all rounds of one mechanism, from the
  first on. secure_sum is set if clients add the noise.
  """

  sampling: Sampling
  noise_multiplier: float
  count: int = 1
  sampler_epsilon: float = 0.0
  strategy: Optional[strategies.Toeplitz] = None
  secure_sum: Optional[SecureSum] = None

  def __post_init__(self):
    checks.in_range(
        0,
        _MAX_NUMBER,
        noise_multiplier=self.noise_multiplier,
        sampler_epsilon=self.sampler_epsilon,
    )
    checks.non_negative_int(count=self.count)
    checks.in_range(0, _MAX_ROUNDS, **{'count of rounds': self.count})
    # Without noise there is no guarantee, so any cohorts will do.
    if self.noise_multiplier:
      check_noise_fits_sampling(self.sampling, self.strategy, self.secure_sum)

  @property
  def sensitivity(self) -> float:
    """s of a mechanism's rounds, in clips; of cyclic cohorts |c|."""
    separation = self.sampling.min_sep
    if self.strategy is None:
      # A client takes part in at most ceil(count / separation) rounds.
      return math.sqrt(-(-self.count // separation))
    if self.sampling.kind == 'cyclic':
      separation = max(1, self.count)  # One participation.
    return self.strategy.sensitivity(self.count, min_sep=separation)


@dataclasses.dataclass(frozen=True)
class SamplerErrorDpEvent(dp_accounting.DpEvent):
  """Probabilities of all outputs are off by a factor within exp(+-epsilon / 2).

  It adds epsilon to that of all other events together, however they compose.
  Only `compose` makes it, at the top of its event.
  """

  epsilon: float


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
  """Returns the event of all rounds together; equal rounds are merged.

  Groups of min_sep cohorts are not: each is one mechanism.

  Args:
    rounds: The rounds of one run.

  Raises:
    ValueError: Kinds of sampling do not go together.
  """
  relation = neighboring_relation(rounds)
  counts = collections.Counter()
  events = []
  for group in rounds:
    if group.sampling.min_sep is None:
      # Rounds of one mechanism are a single event already; these are merged.
      counts[group.sampling, group.noise_multiplier] += group.count
    elif group.count:
      events.append(_mechanism_event(group))
  for (sampling, noise_multiplier), count in counts.items():
    if count:
      event = _round_event(sampling, noise_multiplier, relation)
      events.append(dp_accounting.SelfComposedDpEvent(event, count))
  if not events:
    return dp_accounting.NoOpDpEvent()
  event = events[0]
  if len(events) > 1:
    event = dp_accounting.ComposedDpEvent(events)
  # Errors of probabilities multiply, so their epsilons add up.
  error = sum(group.count * group.sampler_epsilon for group in rounds)
  if not error:
    return event
  return dp_accounting.ComposedDpEvent([event, SamplerErrorDpEvent(error)])


def epsilon(
    event: dp_accounting.DpEvent, *, delta: float, accountant: str = 'rdp'
) -> float:
  """Returns the epsilon of an event at delta.

  Args:
    event: Any event of dp_accounting. Its neighbouring relation follows from
      the events it is made of, as in the module's table.
    delta: In (0, 1).
    accountant: 'rdp' or 'pld'.

  Returns:
    Epsilon of at least 0; 0 for no rounds, infinity without noise.

  Raises:
    ValueError: PLD cannot account this event (see `pld_obstacle`), or an
      argument is out of range.
  """
  checks.one_of(ACCOUNTANTS, accountant=accountant)
  # RDP first: it checks delta, and PLD may not end if it is infinite.
  rdp_epsilon, _ = epsilon_and_order(event, delta=delta)
  if accountant == 'rdp' or math.isinf(rdp_epsilon):
    return rdp_epsilon
  by_pld, obstacle = epsilon_by_pld(event, delta=delta)
  if by_pld is None:
    raise ValueError(f'PLD cannot be used: {obstacle}. Use RDP.')
  return by_pld


def epsilon_by_pld(
    event: dp_accounting.DpEvent, *, delta: float
) -> tuple[Optional[float], str]:
  """Returns epsilon by PLD and '', or None and the obstacle.

  Args as those of `epsilon`; see `pld_obstacle`.
  """
  obstacle = pld_obstacle(event, delta=delta)
  if obstacle:
    return None, obstacle
  event, error = _split(event)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # SciPy's, about NumPy
      accounted = pld.PLDAccountant(_relation_of(event)).compose(event)
      by_pld = _charge_sampler(
          lambda delta: max(0.0, float(accounted.get_epsilon(delta))),
          error=error,
          delta=delta,
      )
  except ValueError as failure:  # Its check of rounding fails at a tiny q.
    return None, f'dp_accounting fails ({failure})'
  return by_pld, ''


def epsilon_and_order(
    event: dp_accounting.DpEvent,
    *,
    delta: float,
    orders: Sequence[float] = ORDERS,
) -> tuple[float, float]:
  """Returns the smallest RDP epsilon over the orders, and its order.

  Args:
    event: As for `epsilon`.
    delta: In (0, 1).
    orders: Renyi orders above 1.01; one order gives the epsilon that a
      published table states for it.
  """
  check_delta(delta)
  event, error = _split(event)
  # Without the sampler's error, which no accountant takes.
  values = _rdp_of(event, tuple(orders), _relation_of(event))
  find = lambda delta: rdp.compute_epsilon(orders, values, delta)
  _, order = find(delta)
  value = _charge_sampler(
      lambda delta: float(find(delta)[0]), error=error, delta=delta
  )
  return value, float(order)


def _charge_sampler(
    find: Callable[[float], float], *, error: float, delta: float
) -> float:
  """Epsilon at delta with what inexact noise adds to both.

  Noise ends: delta grows by less than num_draws 2^-300 exp(epsilon). As error
  is at least 4 num_draws 2^-93 23 (`noise.sampler_error_epsilon`), that is less
  than error 2^-213 exp(epsilon), which counts from epsilon 100 on. Where it
  would take half of delta, epsilon is infinite.

  Args:
    find: Epsilon without that, of a delta.
    error: What epsilon grows by; 0: noise is real-valued.
    delta: In (0, 1).
  """
  epsilon = find(delta) + error
  if not error or math.isinf(epsilon):
    return epsilon
  # As a logarithm: it may be beyond a float.
  tail = lambda: epsilon + math.log(error) - 213 * math.log(2)
  # Twice the tail must fit into half of delta.
  if tail() > math.log(delta) - math.log(4):
    return math.inf
  left_out = 2 * math.exp(tail())
  epsilon = find(delta - left_out) + error
  # The new epsilon has a larger tail: twice the old one must cover it.
  return epsilon if tail() <= math.log(max(left_out, 1e-300)) else math.inf


def pld_obstacle(event: dp_accounting.DpEvent, *, delta: float) -> str:
  """Returns why PLD accounting would fail or not end, or ''.

  It works for Poisson and full sampling with an RDP epsilon of at most 100,
  noise multipliers of at least 0.1 and a delta of at least 1e-9.
  """
  if delta < _PLD_MIN_DELTA:
    return f'at a delta below {_PLD_MIN_DELTA:g} its rounding shows'
  rdp_epsilon, _ = epsilon_and_order(event, delta=delta)
  event, error = _split(event)
  parts = [part for part, _ in _leaves(event)]
  if not pld.PLDAccountant(_relation_of(event)).supports(event):
    found = ', '.join(sorted({type(part).__name__ for part in parts}))
    return f'it takes Poisson sampling and full participation, found {found}'
  if error and math.isinf(rdp_epsilon):
    return 'RDP gives none either: above about 150 the ends of the noise count'
  # Not `>`, which lets NaN pass.
  if not rdp_epsilon <= _PLD_MAX_RDP_EPSILON:
    return (
        f'RDP gives epsilon {rdp_epsilon:.4g}, and above '
        f'{_PLD_MAX_RDP_EPSILON:g} it may not end'
    )
  if min(map(_noise_of, parts), default=math.inf) < _PLD_MIN_NOISE_MULTIPLIER:
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


def _split(
    event: dp_accounting.DpEvent,
) -> tuple[dp_accounting.DpEvent, float]:
  """An event of `compose` without the sampler's error, and the error."""
  if isinstance(event, dp_accounting.ComposedDpEvent) and isinstance(
      event.events[-1], SamplerErrorDpEvent
  ):
    event, error = event.events
    return event, error.epsilon
  return event, 0.0


def _round_event(
    sampling: Sampling,
    noise_multiplier: float,
    relation: dp_accounting.NeighboringRelation,
) -> dp_accounting.DpEvent:
  """The event of one round under the relation of all rounds."""
  if noise_multiplier < MIN_NOISE_MULTIPLIER:
    return dp_accounting.NonPrivateDpEvent()
  # Replacing one client moves the sum by up to two clips.
  sensitivity = 2.0 if relation is _REPLACE_ONE else 1.0  # in clips
  gaussian = dp_accounting.GaussianDpEvent(noise_multiplier / sensitivity)
  if sampling.kind == 'full':
    return gaussian
  if sampling.kind == 'fixed_size':
    return dp_accounting.SampledWithoutReplacementDpEvent(
        sampling.population, sampling.cohort_size, gaussian
    )
  return dp_accounting.PoissonSampledDpEvent(sampling.sampling_prob, gaussian)


def _mechanism_event(group: RoundGroup) -> dp_accounting.DpEvent:
  """The event of all rounds of one mechanism with correlated noise."""
  if group.noise_multiplier < MIN_NOISE_MULTIPLIER:
    return dp_accounting.NonPrivateDpEvent()
  event = dp_accounting.GaussianDpEvent(
      group.noise_multiplier / group.sensitivity
  )
  sampling = group.sampling
  if sampling.kind != 'cyclic':
    return event
  # One event for each of a client's turns, ceil(count / min_sep) of them.
  return dp_accounting.SelfComposedDpEvent(
      dp_accounting.PoissonSampledDpEvent(sampling.sampling_prob, event),
      -(-group.count // sampling.min_sep),
  )


def _relation_of(
    event: dp_accounting.DpEvent,
) -> dp_accounting.NeighboringRelation:
  """The one relation under which all parts of an event can be accounted."""
  parts = set()
  for part, _ in _leaves(event):
    parts.add(type(part))
  relations = {_RELATIONS[part] for part in parts if part in _RELATIONS}
  if len(relations) > 1:
    names = ' and '.join(sorted(relation.name for relation in relations))
    raise ValueError(f'Events under {names} cannot be composed.')
  return relations.pop() if relations else _ADD_OR_REMOVE_ONE


def _leaves(
    event: dp_accounting.DpEvent, count: int = 1
) -> Iterable[tuple[dp_accounting.DpEvent, int]]:
  """The events that a composition is made of, each with its count."""
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    yield from _leaves(event.event, count * event.count)
  elif isinstance(event, dp_accounting.ComposedDpEvent):
    for part in event.events:
      yield from _leaves(part, count)
  else:
    yield event, count


def _rdp_of(
    event: dp_accounting.DpEvent,
    orders: tuple[float, ...],
    relation: dp_accounting.NeighboringRelation,
) -> np.ndarray:
  """Renyi divergence of an event at each order."""
  total = np.zeros(len(orders))
  for part, count in _leaves(event):
    if not count:
      continue
    # The accountant would divide by zero.
    if _noise_of(part) < MIN_NOISE_MULTIPLIER:
      return np.full(len(orders), np.inf)
    if isinstance(
        getattr(part, 'event', None), dp_accounting.GaussianDpEvent
    ):
      total += count * _sampled_rdp(part, orders, relation)
    else:
      total += rdp.RdpAccountant(list(orders), relation).compose(
          part, count
      ).rdp
  return total


# Cached: a run computes epsilon after each round.
@functools.lru_cache(maxsize=4096)
def _sampled_rdp(
    event: dp_accounting.DpEvent,
    orders: tuple[float, ...],
    relation: dp_accounting.NeighboringRelation,
) -> np.ndarray:
  """Renyi divergence of one sampled Gaussian, at most that of the whole."""
  with np.errstate(all='ignore'):
    values = rdp.RdpAccountant(list(orders), relation).compose(event).rdp
  # An upper bound: the Gaussian without amplification by sampling.
  whole = np.array(orders) / (2 * event.event.noise_multiplier**2)
  # NaN and values of 0 or less come from cancelled digits.
  values = np.where(values > 0, np.minimum(values, whole), whole)
  # The cache returns this very array again.
  values.flags.writeable = False
  return values


def _noise_of(event: dp_accounting.DpEvent) -> float:
  """The noise multiplier of an event, sampled or not; infinite without one."""
  return getattr(
      getattr(event, 'event', event), 'noise_multiplier', math.inf
  )
