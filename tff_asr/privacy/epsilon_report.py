"""Epsilon of planned or charged rounds, as text or JSON.

Given two of noise, epsilon and rounds, it finds the third. A plan can be
extrapolated as in the paper (see `calibration.grow`): the cohort and the
population grow; the noise on the mean, the clip and the rounds stay.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import itertools
import json
import math
from typing import Any, Optional

import dp_accounting

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import ledger
from tff_asr.privacy import statement

FORMATS = ('text', 'json')
ASSUMED = 'WER assumed, not measured'
_NOT_PRIVATE = 'NOT PRIVATE: '


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """Epsilon of rounds.

  Attributes:
    epsilon: At least 0; infinite without noise or if it is void.
    order: The Renyi order of the bound; None with PLD.
    delta: In (0, 1).
    accountant: 'rdp' or 'pld'.
    rounds: What was accounted, at least one group.
    event: That of all rounds.
    solved_for: 'epsilon', 'noise_multiplier' or 'rounds'.
    invalidations: Reasons for which no guarantee holds.
    unit: What is protected, if known.
    apart: Results for other units that the same model cost; never added up.
    warnings: What else a reader must know, a sentence each.
  """

  epsilon: float
  order: Optional[float]
  delta: float
  accountant: str
  rounds: tuple[accounting.RoundGroup, ...]
  event: dp_accounting.DpEvent
  solved_for: str = 'epsilon'
  invalidations: tuple[str, ...] = ()
  unit: Optional[str] = None
  apart: tuple['Result', ...] = ()
  warnings: tuple[str, ...] = ()


def solve(
    *,
    cohort_size: int,
    population: int,
    noise_multiplier: Optional[float] = None,
    sigma_mean: Optional[float] = None,
    target_epsilon: Optional[float] = None,
    rounds: Optional[int] = None,
    delta: Optional[float] = None,
    sampling: str = 'poisson',
    accountant: str = 'rdp',
) -> Result:
  """Finds the third of noise, epsilon and rounds from the other two.

  Args:
    cohort_size: Clients a round, expected ones under Poisson sampling.
    population: All private clients.
    noise_multiplier: Noise on the sum over the clip.
    sigma_mean: The same noise on the mean; give at most one of the two.
    target_epsilon: Epsilon not to be exceeded.
    rounds: Number of rounds.
    delta: In (0, 1); None takes 1 / (10 population).
    sampling: See `accounting`.
    accountant: 'rdp' or 'pld'.

  Returns:
    The result; its epsilon is at most `target_epsilon`.

  Raises:
    ValueError: Not exactly two of the three are given, or an argument is out of
      range.
  """
  if noise_multiplier is not None and sigma_mean is not None:
    raise ValueError(
        'noise_multiplier and sigma_mean are the same noise (on the sum, on '
        'the mean): give one of them.'
    )
  how = accounting.Sampling(
      kind=sampling, cohort_size=cohort_size, population=population
  )
  if sigma_mean is not None:
    noise_multiplier = sigma_mean * cohort_size
  given = {
      'noise_multiplier (or sigma_mean)': noise_multiplier,
      'target_epsilon': target_epsilon,
      'rounds': rounds,
  }
  missing = [name for name, value in given.items() if value is None]
  if len(missing) != 1:
    found = [name for name in given if name not in missing]
    raise ValueError(
        f'two of {", ".join(given)} must be given, the third is found; found '
        f'{", ".join(found) or "none of them"}.'
    )
  delta = statement.delta_or_default(
      delta, [accounting.RoundGroup(sampling=how, noise_multiplier=0)]
  )
  solved_for = 'epsilon'
  if noise_multiplier is None:
    solved_for = 'noise_multiplier'
    noise_multiplier = calibration.noise_multiplier_for_epsilon(
        target_epsilon, sampling=how, rounds=rounds, delta=delta,
        accountant=accountant,
    )
  elif rounds is None:
    solved_for = 'rounds'
    rounds = calibration.rounds_for_epsilon(
        target_epsilon, sampling=how, noise_multiplier=noise_multiplier,
        delta=delta, accountant=accountant,
    )
  checks.non_negative_int(rounds=rounds)
  group = accounting.RoundGroup(
      sampling=how, noise_multiplier=noise_multiplier, count=rounds
  )
  return of_rounds(
      [group], delta=delta, accountant=accountant, solved_for=solved_for,
  )


def of_rounds(
    rounds: Sequence[accounting.RoundGroup],
    *,
    delta: Optional[float],
    accountant: str = 'rdp',
    solved_for: str = 'epsilon',
    invalidations: Sequence[str] = (),
    unit: Optional[str] = None,
    notes: Sequence[ledger.Note] = (),
) -> Result:
  """Returns the epsilon of rounds that may differ.

  Args as the attributes of `Result`; delta None takes 1 / (10 population).

  Raises:
    ValueError: There are no rounds, delta is out of range, or PLD does not take
      them.
  """
  if not rounds:
    raise ValueError('there are no rounds to account for.')
  delta = statement.delta_or_default(delta, rounds)
  event = accounting.compose(rounds)
  value = accounting.epsilon(event, delta=delta, accountant=accountant)
  order = None
  if accountant == 'rdp':
    _, order = accounting.epsilon_and_order(event, delta=delta)
  return Result(
      epsilon=math.inf if invalidations else value,
      order=order,
      delta=delta,
      accountant=accountant,
      rounds=tuple(rounds),
      event=event,
      solved_for=solved_for,
      invalidations=tuple(invalidations),
      unit=unit,
      warnings=tuple(statement.note_words(notes)),
  )


def of_ledger(
    contents: ledger.Contents,
    *,
    delta: Optional[float] = None,
    accountant: str = 'rdp',
) -> Result:
  """Returns the epsilon of all rounds that a ledger charges, at least one.

  Args:
    contents: Contents of the ledger.
    delta: In (0, 1); None takes 1 / (10 population).
    accountant: 'rdp' or 'pld'.

  Raises:
    ValueError: As `of_rounds`.
  """
  return of_rounds(
      contents.rounds,
      delta=delta,
      accountant=accountant,
      invalidations=contents.invalidations,
      unit=contents.privacy_unit,
      notes=contents.notes,
  )


def extrapolate(
    result: Result,
    *,
    cohort_sizes: Sequence[int] = (),
    populations: Sequence[int] = (),
) -> list[Result]:
  """Returns the results of a grown cohort and population, noise on mean kept.

  Args:
    result: Result of one group of rounds.
    cohort_sizes: Cohorts; empty keeps the result's.
    populations: Populations, combined with each cohort that is not larger;
      empty grows the population with the cohort (q kept).

  Returns:
    The results; none if neither cohorts nor populations are given.

  Raises:
    ValueError: `result` has several groups, or nothing is left to show.
  """
  if not cohort_sizes and not populations:
    return []
  if len(result.rounds) != 1:
    raise ValueError(
        'only rounds that are all the same can be extrapolated, found '
        f'{len(result.rounds)} kinds of rounds.'
    )
  (group,) = result.rounds
  checks.positive_int(
      **{f'cohort size {size}': size for size in cohort_sizes},
      **{f'population {size}': size for size in populations},
  )
  results = [
      of_rounds(
          [calibration.grow(
              group, cohort_size=cohort_size, population=population
          )],
          delta=result.delta,
          accountant=result.accountant,
          invalidations=result.invalidations,
          unit=result.unit,
      )
      for cohort_size, population in itertools.product(
          cohort_sizes or [group.sampling.cohort_size], populations or [None]
      )
      if population is None or population >= cohort_size
  ]
  if not results:
    raise ValueError(
        f'no population of {list(populations)} holds a cohort of '
        f'{list(cohort_sizes)}.'
    )
  return results


def parse_sizes(texts: Sequence[str]) -> list[int]:
  """Returns whole numbers as people write them: 204800, 204_800 or 2e5.

  Raises:
    ValueError: A text is none.
  """
  sizes = []
  for text in texts:
    try:
      value = float(text)
    except ValueError:
      value = math.nan
    if not value.is_integer():
      raise ValueError(f'{text!r} is not a whole number.')
    sizes.append(int(value))
  return sizes


def fields(result: Result) -> dict[str, Any]:
  """A result by name, for JSON; infinity is the string 'inf'.

  A value that differs between groups of rounds is None; the text shows each.
  """
  samplings = [group.sampling for group in result.rounds]
  noises = [group.noise_multiplier for group in result.rounds]
  reasons = statement.why_not_private(
      result.rounds,
      epsilon=result.epsilon,
      delta=result.delta,
      invalidations=result.invalidations,
  )
  return {
      'epsilon': statement.json_number(result.epsilon),
      'delta': result.delta,
      'noise_multiplier': _common(noises),
      'sigma_mean': _common(
          noise / sampling.cohort_size
          for noise, sampling in zip(noises, samplings)
      ),
      'sampling': _common(sampling.kind for sampling in samplings),
      'sampling_probability': _common(
          sampling.sampling_prob for sampling in samplings
      ),
      'cohort_size': _common(sampling.cohort_size for sampling in samplings),
      'population': _common(sampling.population for sampling in samplings),
      'rounds': sum(group.count for group in result.rounds),
      'accountant': result.accountant,
      'order': result.order,
      'neighbouring': accounting.neighbouring(result.rounds).name.lower(),
      'solved_for': result.solved_for,
      'private': not reasons,
      'reasons_not_private': reasons,
      'warnings': list(result.warnings),
      'different_rounds': len(result.rounds),
      **({'unit': result.unit} if result.unit else {}),
      **({'apart': list(map(fields, result.apart))} if result.apart else {}),
  }


def render(results: Sequence[Result], *, output_format: str = 'text') -> str:
  """Returns results as text or JSON.

  Args:
    results: One, or the rows of an extrapolation: the plan and then its grown
      versions.
    output_format: 'text' or 'json'. JSON is one object, or a list of them if
      there are several results.
  """
  checks.one_of(FORMATS, format=output_format)
  rows = [fields(result) for result in results]
  for row in rows[1:]:
    row['word_error_rate'] = ASSUMED
  if output_format == 'json':
    return json.dumps(rows if len(rows) > 1 else rows[0], indent=1)
  return _table(results, rows) if len(rows) > 1 else _text(results[0], rows[0])


def _common(values: Iterable[Any]) -> Any:
  """The value that all have, or None."""
  first, *others = set(values)
  return None if others else first


def _text(result: Result, row: dict[str, Any]) -> str:
  """One result, a line for each of its figures."""
  order = '' if result.order is None else f', order {result.order:g}'
  lines = [(
      'epsilon',
      f'{statement.number(result.epsilon)} at delta {result.delta:g} '
      f'({result.accountant.upper()}{order})',
  )]
  for group in result.rounds:
    sampling = group.sampling
    lines += [
        (
            'rounds',
            f'{group.count:,}, {sampling.kind}: {sampling.cohort_size:,} of '
            f'{sampling.population:,}, q = {sampling.sampling_prob:.4g}',
        ),
        (
            'noise multiplier',
            f'{group.noise_multiplier:.6g} on the sum, '
            f'{group.noise_multiplier / sampling.cohort_size:.4g} on the mean',
        ),
    ]
  lines.append(('neighbours', row['neighbouring']))
  if result.unit:
    lines.append(('unit', result.unit))
  for each in row.get('apart', ()):
    lines.append(('apart', f'{_in_short(each)}; not added up'))
  if result.solved_for != 'epsilon':
    lines.append(('found', result.solved_for))
  return '\n'.join([
      *(f'{label:<18}{text}' for label, text in lines),
      *map(_NOT_PRIVATE.__add__, row['reasons_not_private']),
      *row['warnings'],
  ])


def _in_short(row: dict[str, Any]) -> str:
  """Epsilon of another unit."""
  return (
      f'{row["unit"]}: epsilon {statement.number(float(row["epsilon"]))} at '
      f'delta {row["delta"]:g}'
  )


def _table(
    results: Sequence[Result], rows: Sequence[dict[str, Any]]
) -> str:
  """An extrapolation in Markdown."""
  lines = [
      '| cohort | population | q | rounds | noise on mean | noise multiplier '
      '| epsilon | order | |',
      '|---|---|---|---|---|---|---|---|---|',
  ]
  for row in rows:
    order = '' if row['order'] is None else f'{row["order"]:g}'
    remark = row.get('word_error_rate', 'as given')
    if row is not rows[0] and not row['private']:
      remark += '; NOT PRIVATE'
    lines.append(
        f'| {row["cohort_size"]:,} | {row["population"]:,} '
        f'| {row["sampling_probability"]:.3g} | {row["rounds"]:,} '
        f'| {row["sigma_mean"]:.4g} | {row["noise_multiplier"]:.4g} '
        f'| {statement.number(float(row["epsilon"]))} | {order} '
        f'| {remark} |'
    )
  first = rows[0]
  unit = f', unit: {first["unit"]}' if 'unit' in first else ''
  lines.append(
      f'Epsilon by {first["accountant"].upper()} at delta {first["delta"]:g}, '
      f'neighbours: {first["neighbouring"]}{unit}.'
  )
  for reason in first['reasons_not_private']:
    lines.append(f'As given: {_NOT_PRIVATE}{reason}')
  lines += first['warnings']
  return '\n'.join(lines)
