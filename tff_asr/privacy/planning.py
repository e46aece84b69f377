"""Plans of private training: what a cohort and a number of rounds would give.

A round adds noise to the sum of S clipped updates of D parameters. On the mean,
and over the clip C, its norm is sqrt(D) z / S. The mean of the clipped updates
has a norm of `signal` clips: far less than one, because people's updates point
in many directions. A run of T rounds has the signal to noise

    sqrt(T) signal / (sqrt(D) z / S),

and the share of the gain of the same training without privacy that it reaches
follows this number along a curve (`fit_curve`) through measured runs:

    >>> goal = Goal(num_people=12_000, num_parameters=628_448, epsilon=4.94,
    ...             delta=1e-5, signal=0.22)
    >>> run = goal.run(cohort_size=3000, num_rounds=20)
    >>> print(f'{run.noise_multiplier:.2f} {run.signal_to_noise:.1f}')
    1.36 2.7
    >>> print(expectation(run.signal_to_noise).partition(' (')[0])
    expect about four fifths of what training without privacy would gain

Noise is found by PLD, which takes Poisson sampling and full participation. It
is exact; the signal is measured on public people (`programs.update_signal`),
and the curve is an estimate that no proof backs. docs/planning.md has both.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple, Optional

import numpy as np
from scipy import optimize

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration

# Standard error of a measured share: the WERs of two runs differ by 1.2 points
# more or less on the same speakers, of a gain of 15.1.
_MEASUREMENT_ERROR = 1.2 / 15.1
# Of two rows that differ by less, the cheaper one is recommended.
_SAME_SHARE = 0.02
_MAX_PEOPLE = 10**9
_WORDS = {
    0.1: 'a tenth', 0.2: 'a fifth', 0.25: 'a quarter', 1 / 3: 'a third',
    0.4: 'two fifths', 0.5: 'half', 0.6: 'three fifths', 2 / 3: 'two thirds',
    0.75: 'three quarters', 0.8: 'four fifths', 0.9: 'nine tenths', 1.0: 'all',
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
  """Rounds of one cohort size and noise.

  Attributes:
    cohort_size: S, expected clients of a round.
    num_rounds: T.
    noise_multiplier: z.
    num_parameters: D, of those that are trained.
    signal: Norm of the mean clipped update over C.
  """

  cohort_size: int
  num_rounds: int
  noise_multiplier: float
  num_parameters: int
  signal: float

  @property
  def noise(self) -> float:
    """Norm of a round's noise on the mean over C."""
    return (
        math.sqrt(self.num_parameters)
        * self.noise_multiplier
        / self.cohort_size
    )

  @property
  def signal_to_noise(self) -> float:
    """Of the whole run; infinite without noise."""
    if not self.noise:
      return math.inf
    return math.sqrt(self.num_rounds) * self.signal / self.noise

  @property
  def num_visits(self) -> int:
    """Client updates of all rounds, which are the run's time."""
    return self.cohort_size * self.num_rounds


class MeasuredRun(NamedTuple):
  """A run, and the share of the gain without privacy that it reached.

  Attributes:
    run: Its noise, and its signal as `squared_norm_of_mean` estimates it.
    num_drawn: Clients a round that a simulation drew for its mean.
    share: Of the gain.
  """

  run: PlannedRun
  num_drawn: int
  share: float

  @property
  def signal_to_noise(self) -> float:
    """Of the run, with the noise of drawing few clients on their mean."""
    noise = math.hypot(self.run.noise, 1 / math.sqrt(self.num_drawn))
    return math.sqrt(self.run.num_rounds) * self.run.signal / noise


def _measured(
    cohort_size: int,
    num_rounds: int,
    noise_multiplier: float,
    signal: float,
    num_drawn: int,
    share: float,
) -> MeasuredRun:
  """A run of the quickstart's model."""
  run = PlannedRun(
      cohort_size=cohort_size,
      num_rounds=num_rounds,
      noise_multiplier=noise_multiplier,
      num_parameters=628_448,
      signal=signal,
  )
  return MeasuredRun(run, num_drawn, share)


# docs/planning.md says where they are from.
MEASURED_RUNS = (
    _measured(1000, 20, 0.800, 0.049, 400, 0.16),
    _measured(1000, 20, 0.800, 0.133, 160, 0.36),
    _measured(12_000, 20, 4.03, 0.049, 400, 0.41),
    _measured(1000, 20, 0.800, 0.185, 80, 0.54),
    _measured(3000, 20, 1.355, 0.185, 80, 0.74),
    _measured(12_000, 20, 4.03, 0.185, 80, 0.86),
    _measured(1000, 20, 1.848, 0.185, 80, 0.18),
    _measured(12_000, 20, 16.7, 0.185, 80, 0.28),
)


class Curve(NamedTuple):
  """Share of the gain by signal to noise r: r^p / (r^p + m^p).

  Attributes:
    middle: m, at which the share is a half.
    power: p.
    error: What to add and subtract: two standard errors of what one more run
      would show, of the curve and of the measurement.
    lowest: Smallest measured signal to noise.
    highest: Largest one. Outside, the curve is an extrapolation.
  """

  middle: float
  power: float
  error: float
  lowest: float
  highest: float

  def share(self, signal_to_noise: float) -> float:
    """Returns the share; 0 without a signal, 1 without noise."""
    if not signal_to_noise:
      return 0.0
    return 1 / (1 + (self.middle / signal_to_noise) ** self.power)

  def signal_to_noise(self, share: float) -> float:
    """Returns the signal to noise of a share in (0, 1)."""
    return self.middle * (share / (1 - share)) ** (1 / self.power)


@functools.cache
def fit_curve(measured: tuple[MeasuredRun, ...] = MEASURED_RUNS) -> Curve:
  """Returns the curve of the least squares of shares, all with equal weights.

  Args:
    measured: At least three runs, of different signal to noise.
  """
  ratios = np.array([each.signal_to_noise for each in measured])
  shares = np.array([each.share for each in measured])
  # Logarithms keep both constants positive.
  share_at = lambda r, middle, power: 1 / (
      1 + np.exp(np.exp(power) * (middle - np.log(r)))
  )
  constants, _ = optimize.curve_fit(share_at, ratios, shares, p0=(0.0, 0.0))
  residuals = shares - share_at(ratios, *constants)
  # Two degrees of freedom are spent on the constants.
  stddev = math.sqrt(np.sum(residuals**2) / (len(measured) - 2))
  middle, power = np.exp(constants)
  return Curve(
      float(middle),
      float(power),
      2 * math.hypot(stddev, _MEASUREMENT_ERROR),
      float(ratios.min()),
      float(ratios.max()),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
  """What a run is planned for.

  Attributes:
    num_people: N, the number of private people, which is public.
    num_parameters: D, of those that are trained.
    signal: Norm of the mean clipped update over C, for as many utterances as
      each person has.
    epsilon: Not to be exceeded.
    delta: In (0, 1); None: 1 / (10 N).
    signal_error: Relative standard error of the signal.
    clients_per_sec: Client updates a second; None: unknown.
    max_hours: Longest training; None: any.
  """

  num_people: int
  num_parameters: int
  signal: float
  epsilon: float
  delta: Optional[float] = None
  signal_error: float = 0.0
  clients_per_sec: Optional[float] = None
  max_hours: Optional[float] = None

  def __post_init__(self):
    checks.positive_int(
        num_people=self.num_people, num_parameters=self.num_parameters
    )
    checks.positive(epsilon=self.epsilon)
    checks.in_range(0, 1, signal=self.signal)
    if self.delta is not None:
      accounting.check_delta(self.delta)
    for name in ('clients_per_sec', 'max_hours'):
      if getattr(self, name) is not None:
        checks.positive(**{name: getattr(self, name)})
    if self.max_hours is not None and self.clients_per_sec is None:
      raise ValueError(
          '--max_hours needs the speed of this machine: give '
          '--clients_per_second, or --run, which measures it.'
      )

  @property
  def used_delta(self) -> float:
    """Delta, or the default."""
    if self.delta is None:
      return accounting.default_delta(self.num_people)
    return self.delta

  def run(self, *, cohort_size: int, num_rounds: int) -> PlannedRun:
    """Returns a run with the smallest noise that keeps epsilon.

    Args:
      cohort_size: At most the number of people. All of them: full
        participation, which sampling does not amplify.
      num_rounds: At least 1.

    Raises:
      ValueError: An argument is out of range, or no noise suffices.
    """
    return PlannedRun(
        cohort_size=cohort_size,
        num_rounds=num_rounds,
        noise_multiplier=_noise_multiplier(
            accounting.Sampling(
                kind='full' if cohort_size == self.num_people else 'poisson',
                cohort_size=cohort_size,
                population=self.num_people,
            ),
            num_rounds,
            self.epsilon,
            self.used_delta,
        ),
        num_parameters=self.num_parameters,
        signal=self.signal,
    )

  def hours(self, run: PlannedRun) -> Optional[float]:
    """Returns the hours of the clients' work; None if unknown."""
    if self.clients_per_sec is None:
      return None
    return run.num_visits / self.clients_per_sec / 3600

  def plan(
      self,
      *,
      cohort_sizes: Sequence[int] = (),
      rounds: Sequence[int] = (),
      share: Optional[float] = None,
  ) -> 'Plan':
    """Returns a run for each cohort and number of rounds that fit.

    Args:
      cohort_sizes: Larger ones than the number of people are left out; none:
        300, 1,000, 3,000 and so on, and everyone.
      rounds: None: `ROUNDS`.
      share: Of the gain, to find the people who are needed for it; None: a
        half, if private training will not help.

    Raises:
      ValueError: No run is within the hours, or as `run`.
    """
    sizes = cohort_sizes or [*_default_sizes(self.num_people), self.num_people]
    pairs = [
        (size, number)
        for size in sorted({*sizes})
        for number in sorted({*(rounds or ROUNDS)})
        if size <= self.num_people
        and (self.max_visits is None or size * number <= self.max_visits)
    ]
    if not pairs:
      raise ValueError(
          'no cohort and number of rounds is within --num_people and '
          '--max_hours: name smaller --cohort_sizes or --rounds, or more hours.'
      )
    runs = [
        self.run(cohort_size=size, num_rounds=number) for size, number in pairs
    ]
    runs.sort(key=lambda run: run.num_visits)
    best = _best(runs)
    if share is None and not helps(best.signal_to_noise):
      share = 0.5
    return Plan(
        goal=self,
        runs=tuple(runs),
        best=best,
        share=share,
        people=share and self.people_for(share, num_rounds=best.num_rounds),
    )

  @property
  def max_visits(self) -> Optional[float]:
    """Client updates within the hours; None: any number."""
    if self.max_hours is None:
      return None
    return self.max_hours * 3600 * self.clients_per_sec

  def people_for(self, share: float, *, num_rounds: int) -> Optional[int]:
    """Returns how many people a share of the gain needs, to two digits.

    Each round takes as many of them as the hours allow; without a limit,
    everyone. Epsilon stays, and delta where it is given.

    Args:
      share: In (0, 1).
      num_rounds: Rounds.

    Returns:
      The number; None if 10^9 do not suffice.
    """
    checks.positive(share=share)
    checks.below_one(share=share)
    needed = math.log(fit_curve().signal_to_noise(share))

    @functools.cache
    def excess(log_people: float) -> float:
      num_people = round(math.exp(log_people))
      cohort_size = num_people
      if self.max_visits is not None:
        cohort_size = min(num_people, max(1, self.max_visits // num_rounds))
      run = dataclasses.replace(self, num_people=num_people).run(
          cohort_size=int(cohort_size), num_rounds=num_rounds
      )
      return math.log(max(run.signal_to_noise, 1e-30)) - needed

    high = 0.0
    while excess(high) < 0:
      high += math.log(8)
      if high > math.log(_MAX_PEOPLE):
        return None
    found = high
    if high:
      found = optimize.brentq(excess, high - math.log(8), high, xtol=0.01)
    # Rounded up, as fewer people would not reach it.
    number = math.ceil(math.exp(found))
    digit = 10 ** max(0, len(str(number)) - 2)
    return -(-number // digit) * digit


# Fewer are not among the measured runs, and 100 cost more than they gain.
ROUNDS = (20, 40, 100)


def _default_sizes(num_people: int) -> list[int]:
  """300, 1,000, 3,000 and so on below the number of people."""
  # Noise hides smaller cohorts; of few people, a tenth.
  least = max(min(300, num_people / 10), num_people / 1000)
  sizes = [first * 10**power for power in range(9) for first in (1, 3)]
  return [size for size in sizes if least <= size < num_people]


def _best(runs: Sequence[PlannedRun]) -> PlannedRun:
  """Of runs by their visits, the first that is about as good as any."""
  curve = fit_curve()
  shares = [curve.share(run.signal_to_noise) for run in runs]
  return next(
      run
      for run, share in zip(runs, shares)
      if share >= max(shares) - _SAME_SHARE
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """Runs that fit a goal, and one of them.

  Attributes:
    goal: The goal.
    runs: By the number of their visits.
    best: The one with the fewest visits among those about as good as any.
    share: A share of the gain, or None.
    people: How many it needs; None if not asked for, or if none suffice.
  """

  goal: Goal
  runs: tuple[PlannedRun, ...]
  best: PlannedRun
  share: Optional[float]
  people: Optional[int]

  def table(self) -> list[list[str]]:
    """Returns a row for each run."""
    return [
        [
            'people', 'cohort', 'rounds', 'z', 'noise / C', 'signal / C',
            'signal to noise', 'hours', 'share of the gain', '',
        ],
        *(
            [
                f'{self.goal.num_people:,}', f'{run.cohort_size:,}',
                f'{run.num_rounds:,}', f'{run.noise_multiplier:.3f}',
                f'{run.noise:.2g}', f'{run.signal:.3f}',
                f'{run.signal_to_noise:.2f}',
                '-' if hours is None else f'{hours:.2g}',
                f'{fit_curve().share(run.signal_to_noise):.0%}',
                'recommended' if run is self.best else '',
            ]
            for run, hours in zip(self.runs, map(self.goal.hours, self.runs))
        ),
    ]

  @property
  def words(self) -> str:
    """What to expect of the best run, and who would be needed."""
    goal, best = self.goal, self.best
    text = (
        f'Epsilon {goal.epsilon:g} by PLD at delta {goal.used_delta:.3g}, '
        f'{goal.num_people:,} people. With {best.num_rounds:,} rounds of '
        f'{best.cohort_size:,}, '
        + expectation(best.signal_to_noise, signal_error=goal.signal_error)
    )
    if self.share is None:
      return f'{text}.'
    limit = ', all of them in each round,'
    if goal.max_hours is not None:
      limit = f' and {goal.max_hours:g} hours'
    if self.people is None:
      return f'{text}; no number of people{limit} would gain {self.share:.0%}.'
    return (
        f'{text}; {self.people:,} people{limit} would gain {self.share:.0%}.'
    )

  @property
  def fields(self) -> dict[str, Any]:
    """The plan by name, for JSON."""
    curve = fit_curve()
    return {
        'goal': dataclasses.asdict(self.goal) | {'delta': self.goal.used_delta},
        'runs': [
            {
                **dataclasses.asdict(run),
                'noise': run.noise,
                'signal_to_noise': run.signal_to_noise,
                'hours': self.goal.hours(run),
                'share': curve.share(run.signal_to_noise),
                'recommended': run is self.best,
            }
            for run in self.runs
        ],
        'curve': curve._asdict(),
        'share': self.share,
        'people': self.people,
        'words': self.words,
    }


def helps(signal_to_noise: float) -> bool:
  """Whether the share of the gain is above the error of the forecast."""
  curve = fit_curve()
  return curve.share(signal_to_noise) > curve.error


def expectation(signal_to_noise: float, *, signal_error: float = 0.0) -> str:
  """Returns what to expect of a run, with its range, as a part of a sentence.

  Args:
    signal_to_noise: Of the run.
    signal_error: Relative standard error of the signal.
  """
  curve = fit_curve()
  share = curve.share(signal_to_noise)
  # How the share moves with the logarithm of the signal.
  slope = curve.power * share * (1 - share)
  error = math.hypot(curve.error, 2 * slope * min(signal_error, 10.0))
  low, high = (min(1.0, max(0.0, share + sign * error)) for sign in (-1, 1))
  forecast = f'{share:.0%}, {low:.0%} to {high:.0%}'
  if not curve.lowest <= signal_to_noise <= curve.highest:
    forecast += (
        ', extrapolated from runs of a signal to noise of '
        f'{curve.lowest:.2g} to {curve.highest:.2g}'
    )
  if not helps(signal_to_noise):
    return (
        f'at this size private training will not help (share of the gain: '
        f'{forecast})'
    )
  words = _WORDS[min(_WORDS, key=lambda each: abs(each - share))]
  return (
      f'expect about {words} of what training without privacy would gain '
      f'({forecast})'
  )


def squared_norm_of_mean(vectors: np.ndarray) -> tuple[float, float]:
  """Estimates the squared norm of a distribution's mean, without bias.

  The squared norm of the average of n vectors is too large by their variance
  over n. The mean product of two different vectors,

      (|sum_i x_i|^2 - sum_i |x_i|^2) / (n (n - 1)),

  is not; with a mean near zero it may be negative.

  Args:
    vectors: float [n, D], independent, n at least 2.

  Returns:
    The estimate and its standard error by the jackknife over vectors; infinite
    with two.
  """
  count = len(vectors)
  if count < 2:
    raise ValueError(f'the mean of {count} vectors has no error: need two.')
  total = np.sum(vectors, axis=0, dtype=np.float64)
  squares = np.array([np.sum(np.square(x, dtype=np.float64)) for x in vectors])
  # The sum over pairs of x_i x_j, and the part of it that has vector i.
  products = np.array([np.dot(x, total) for x in vectors]) - squares
  pairs = np.sum(products)
  estimate = float(pairs / (count * (count - 1)))
  if count == 2:
    return estimate, math.inf
  left_out = (pairs - 2 * products) / ((count - 1) * (count - 2))
  return estimate, float(math.sqrt((count - 1) * np.var(left_out)))


class SignalLaw(NamedTuple):
  """The signal by utterances u a person: a sqrt(u), at most 1.

  Attributes:
    of_one: a.
    relative_error: Its standard error over a.
  """

  of_one: float
  relative_error: float

  def signal(self, num_utterances: float) -> float:
    return min(1.0, self.of_one * math.sqrt(num_utterances))


def fit_law(
    num_utterances: Sequence[int],
    *,
    squares: Sequence[float],
    errors: Sequence[float],
) -> SignalLaw:
  """Returns the law of the least squares of `squared_norm_of_mean`.

  Each is weighed by its error. As all are of the same people, their errors are
  taken to move together.

  Args:
    num_utterances: u, at least one.
    squares: Squared norms at each u.
    errors: Their standard errors.
  """
  u, squares, errors = map(np.asarray, (num_utterances, squares, errors))
  known = np.isfinite(errors) & (errors > 0)
  weights = np.where(known, 1 / np.where(known, errors, 1) ** 2, 0)
  if not known.any():
    weights = np.ones(len(u))
  norm = np.sum(weights * u**2)
  # An estimate below zero says that there is no signal to be seen.
  square = max(0.0, float(np.sum(weights * u * squares) / norm))
  if not known.all() or not square:
    return SignalLaw(math.sqrt(square), math.inf)
  error = float(np.sum(weights * u * errors) / norm)
  return SignalLaw(math.sqrt(square), error / (2 * square))


@functools.cache
def _noise_multiplier(
    sampling: accounting.Sampling, rounds: int, epsilon: float, delta: float
) -> float:
  """The smallest noise of rounds, by PLD."""
  return calibration.noise_multiplier_for_epsilon(
      epsilon, sampling=sampling, rounds=rounds, delta=delta, accountant='pld'
  )
