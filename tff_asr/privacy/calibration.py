"""Calibration: noise or rounds that keep epsilon at a target; larger cohorts.

This is the inverse of `accounting`. Each function searches over one quantity,
given the others, and returns a value that keeps epsilon within the target.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Optional

from scipy import optimize

from tff_asr import checks
from tff_asr.privacy import accounting

# Logarithms: searches run over many orders of magnitude.
_MIN_LOG_NOISE = math.log(accounting.MIN_NOISE_MULTIPLIER)
_MAX_LOG_NOISE = math.log(2.0**60)
_MAX_ROUNDS = 10**9


def noise_multiplier_for_epsilon(
    target_epsilon: float,
    *,
    sampling: accounting.Sampling,
    rounds: int,
    delta: float,
    accountant: Optional[str] = None,
    others: Sequence[accounting.RoundGroup] = (),
) -> float:
  """Returns the smallest noise multiplier that keeps epsilon within the target.

  Epsilon at the returned value is at most the target; it is the smallest such
  value within a relative 1e-6 (1e-3 with PLD, which searches on a coarser grid
  of losses).

  Args:
    target_epsilon: Above 0.
    sampling: How each cohort is drawn.
    rounds: Number of rounds, at least 1.
    delta: In (0, 1).
    accountant: 'rdp' or 'pld'. If None, 'pld' where it takes the sampling.
    others: Rounds of other noise that the target covers, too.

  Raises:
    ValueError: If an argument is out of range, PLD does not take the sampling,
      or no noise suffices, as where the others alone exceed the target.
  """
  checks.positive(target_epsilon=target_epsilon)
  checks.positive_int(rounds=rounds)
  accountant = accountant or _leading(sampling)
  find = functools.partial(
      _log_noise_for_epsilon,
      target_epsilon,
      sampling=sampling,
      rounds=rounds,
      others=others,
  )
  cost = functools.partial(_cost, target_epsilon, delta=delta)
  if accountant == 'pld' and sampling.kind != 'fixed_size':
    # RDP's solution is close by, and a few of its orders take milliseconds.
    log_noise = find(
        cost(accountant='rdp', orders=accounting.QUICK_ORDERS),
        start=0.0, step=math.log(2), tolerance=1e-2,
    )
    if log_noise is not None:
      log_noise = find(
          cost(accountant='pld'),
          # PLD is slower with less noise.
          start=log_noise, step=math.log(1.2), tolerance=1e-4,
      )
  else:
    log_noise = find(
        cost(accountant=accountant),
        start=0.0, step=math.log(2), tolerance=1e-7,
    )
  if log_noise is None:
    raise ValueError(
        f'No noise brings epsilon down to {target_epsilon} at delta {delta}: '
        f'{accountant} cannot show less.'
    )
  return math.exp(log_noise)


def _log_noise_for_epsilon(
    target_epsilon: float,
    cost: Callable[[Sequence[accounting.RoundGroup]], float],
    *,
    sampling: accounting.Sampling,
    rounds: int,
    others: Sequence[accounting.RoundGroup],
    **search: float,
) -> Optional[float]:
  """`_smallest_log_noise` at which a bound is within the target."""

  # Cached: the search for a bracket and the root finder repeat points.
  @functools.cache
  def excess(log_noise: float) -> float:
    return _log_ratio(
        cost([accounting.RoundGroup(
            sampling=sampling,
            noise_multiplier=math.exp(log_noise),
            count=rounds,
        ), *others]),
        target_epsilon,
    )

  return _smallest_log_noise(excess, **search)


def _smallest_log_noise(
    excess: Callable[[float], float],
    *,
    start: float,
    step: float,
    tolerance: float,
) -> Optional[float]:
  """Returns about the smallest noise at which a function is at most 0.

  Args:
    excess: Decreasing function of the logarithm of a noise multiplier.
    start: Where the search begins.
    step: From one point to the next, until the root lies between two.
    tolerance: How far above the root the result may be.

  Returns:
    The logarithm of the noise; None if the function is always above 0.
  """
  high = start
  while excess(high) > 0:
    high += step
    if high > _MAX_LOG_NOISE:
      return None
  low = high - step
  while excess(low) <= 0:
    low, high = low - step, low
    # Smaller noise counts as none in `accounting`.
    if low < _MIN_LOG_NOISE:
      return high
  found = optimize.brentq(excess, low, high, xtol=tolerance)
  # The root is approximate, on either side of the target.
  while excess(found) > 0:
    found += tolerance
  return found


def rounds_for_epsilon(
    target_epsilon: float,
    *,
    sampling: accounting.Sampling,
    noise_multiplier: float,
    delta: float,
    accountant: Optional[str] = None,
) -> int:
  """Returns the largest number of rounds that keeps epsilon within the target.

  Args:
    target_epsilon: Above 0.
    sampling: How each cohort is drawn.
    noise_multiplier: Noise on the sum over the clip.
    delta: In (0, 1).
    accountant: 'rdp' or 'pld'. If None, 'pld' where it takes the sampling.

  Returns:
    The number of rounds; 0 if one round costs more than the target. With PLD,
    a few may be missing of thousands, as its search has a coarser grid.

  Raises:
    ValueError: If an argument is out of range, PLD does not take the sampling,
      or more than 10^9 rounds would fit.
  """
  checks.positive(target_epsilon=target_epsilon)
  cost = _cost(
      target_epsilon,
      delta=delta,
      accountant=accountant or _leading(sampling),
  )

  def shortfall(count: int) -> float:
    excess = _log_ratio(
        cost([accounting.RoundGroup(
            sampling=sampling, noise_multiplier=noise_multiplier, count=count
        )]),
        target_epsilon,
    )
    return -excess or 1e-300  # An epsilon equal to the target is within it.

  found = _first(shortfall, start=1, limit=_MAX_ROUNDS)
  if found is None:
    raise ValueError(
        f'Epsilon is below {target_epsilon} even after {_MAX_ROUNDS} rounds: '
        'lower the noise or the target.'
    )
  return found - 1


def scale_cohort(
    group: accounting.RoundGroup,
    *,
    cohort_size: int,
    population: Optional[int] = None,
) -> accounting.RoundGroup:
  """Returns rounds of a larger cohort with the same noise on the mean.

  The paper extrapolates in this way (https://arxiv.org/abs/2310.00098, after
  McMahan et al. 2018): the noise on the sum grows with the cohort. It assumes,
  and does not measure, that the WER stays the same.

  Args:
    group: The rounds as they were done.
    cohort_size: The grown cohort.
    population: The grown population; None: it grows with the cohort.
  """
  sampling = group.sampling
  if population is None:
    # Rounded up, so that q does not grow.
    population = -(-sampling.population * cohort_size // sampling.cohort_size)
  return accounting.RoundGroup(
      sampling=dataclasses.replace(
          sampling, cohort_size=cohort_size, population=population
      ),
      strategy=group.strategy,
      secure_sum=group.secure_sum and dataclasses.replace(
          group.secure_sum,
          num_clients=cohort_size,
          # The same share may drop out.
          min_clients=math.ceil(
              cohort_size
              * group.secure_sum.min_clients
              / group.secure_sum.num_clients
          ),
      ),
      noise_multiplier=(
          group.noise_multiplier * cohort_size / sampling.cohort_size
      ),
      count=group.count,
      # It grows with the noise, at most in proportion.
      sampler_epsilon=group.sampler_epsilon * max(
          1.0, cohort_size / sampling.cohort_size
      ),
      noise_norm=group.noise_norm and (
          group.noise_norm * cohort_size / sampling.cohort_size
      ),
  )


def _leading(sampling: accounting.Sampling) -> str:
  """The accountant that leads for such rounds."""
  return 'rdp' if sampling.kind == 'fixed_size' else 'pld'


def _cost(
    target_epsilon: float,
    *,
    delta: float,
    accountant: str,
    orders: Optional[Sequence[float]] = None,
) -> Callable[[Sequence[accounting.RoundGroup]], float]:
  """A bound on the epsilon of rounds, exact near the target, for searches."""
  checks.one_of(accounting.ACCOUNTANTS, accountant=accountant)
  accounting.check_delta(delta)
  # The best order is about 2 log(1 / delta) / epsilon. Leave out orders far
  # above it: they are slow without replacement, and searches take many steps.
  highest = max(16, -3 * math.log(delta) / target_epsilon)
  orders = tuple(
      order for order in orders or accounting.ORDERS if order <= highest
  )

  def cost(rounds: Sequence[accounting.RoundGroup]) -> float:
    if accountant == 'pld':
      found, obstacle = accounting.epsilon_by_pld(
          rounds, delta=delta, step=accounting.search_step(target_epsilon)
      )
      if found is not None:
        return found
      if any(group.sampling.kind == 'fixed_size' for group in rounds):
        raise ValueError(f'PLD cannot be used: {obstacle}. Use RDP.')
    # PLD does not end at so little noise; RDP bounds the same epsilon.
    return accounting.rdp_epsilon_and_order(
        rounds, delta=delta, orders=orders
    )[0]

  return cost


def _log_ratio(value: float, target: float) -> float:
  """log(value / target), within +-30; at most 0 when within the target."""
  # Searches for a root take finite values only.
  return max(-30.0, min(math.log(value / target), 30.0)) if value > 0 else -30.0


def _first(
    falling: Callable[[int], float], *, start: int, limit: int
) -> int | None:
  """The first integer from start on at which a falling function is at most 0.

  None if there is none up to the limit.
  """
  value = functools.cache(falling)
  if value(start) <= 0:
    return start
  high = 2 * start
  while value(high) > 0:
    high *= 2
    if high > limit:
      return None
  # A step function: between two integers it is that of the upper one.
  found = math.ceil(optimize.brentq(
      lambda place: value(math.ceil(place)), high // 2, high, xtol=0.5
  ))
  while value(found) > 0:
    found += 1
  return found
