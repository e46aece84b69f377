"""Privacy report: what rounds guarantee, and what the guarantee assumes.

    >>> rounds = accounting.RoundGroup(
    ...     sampling=accounting.Sampling(
    ...         kind='poisson', cohort_size=10, population=1000),
    ...     noise_multiplier=1.0, count=100)
    >>> report = PrivacyReport(rounds=(rounds,), delta=1e-6, accountant='rdp')
    >>> print(report)
    Privacy report: (1.51, 1e-06)-differential privacy
    Epsilon: 1.51 by RDP (order 8.9) at delta 1e-06
    Privacy unit: client; neighbouring relation: add or remove one client
      rounds              100; Poisson: each of 1,000 clients joins a round
                          independently with probability 0.01, 10 expected
      noise multiplier    1 (on the sum, over the clip; 0.1 on the mean)

The first three entries are the verdict. A report of a run (`of_ledger`) is
built from the rounds that its ledger charged, so it states what ran, and with
`TrainingDetails` it states all that the guarantee assumes. `plan` finds noise,
epsilon or rounds from the other two; `extrapolate` grows cohort and population
at the same noise on the mean, as https://arxiv.org/abs/2310.00098 does.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import itertools
import json
import math
import textwrap
from typing import Any, Optional

import dp_accounting

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import ledger

MAX_USEFUL_EPSILON = 10.0
ASSUMED = 'WER assumed, not measured'

_WIDTH = 80
_LABEL_WIDTH = 20

_RELATIONS = {
    dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE: (
        'add or remove one {unit}'
    ),
    dp_accounting.NeighboringRelation.REPLACE_ONE: (
        'replace one {unit} with another (moves a sum by up to twice the clip)'
    ),
    dp_accounting.NeighboringRelation.REPLACE_SPECIAL: (
        "zero-out: one {unit}'s updates are replaced by zeros, participation "
        'is unchanged'
    ),
}
_UNITS = {
    'speaker': 'all recordings of one client; a person who has two client ids '
    'has twice the privacy loss',
    'example': 'one recording; a speaker with several recordings is protected '
    'less, and the server sees all recordings',
}
_SAMPLING = {
    'poisson': (
        'Poisson: each of {population:,} {unit}s joins a round independently '
        'with probability {prob:.4g}, {cohort_size:,} expected'
    ),
    'fixed_size': (
        'fixed size: {cohort_size:,} of {population:,} {unit}s per round, '
        'without replacement'
    ),
    'full': 'full participation: all {population:,} {unit}s in each round',
    'min_sep': (
        'minimum separation: {cohort_size:,} of {population:,} {unit}s per '
        'round, each {unit} at most once in any {min_sep:,} consecutive rounds '
        'and {most} times in all; nothing else is assumed about sampling'
    ),
    'cyclic': (
        'cyclic Poisson: in every {min_sep:,}th round, {most} times in all, '
        'each of {population:,} {unit}s joins independently with probability '
        '{prob:.4g}, {cohort_size:,} expected'
    ),
}

# Decisions of the program that depend on private data without noise.
_CONTROL = (
    'a run ends when too many clients of a round fail (MAX_FAILED_SHARE), when '
    'a client hangs (CLIENT_TIMEOUT_SEC) or runs out of memory, or when a '
    'recording of pre-training cannot be read; it does not start when a '
    'private transcript has a character that is not a token, private '
    'utterances are too long on average, a private speaker is in the public '
    'data, or a private recording of pre-training occurs twice'
)
# The same where devices add the noise.
_DROP_OUT = (
    'a device that drops out adds no noise, which the variance of the released '
    'sum reveals: whether it does must not depend on its data'
)
_SETTLED = (
    'the number of rounds was settled before the first, by NUM_ROUNDS, '
    'NUM_STEPS or TARGET_EPSILON; epsilon understates the loss if the run was '
    'stopped or extended because of its results'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingDetails:
  """What a report states about a run's training besides its rounds.

  Attributes:
    l2_norm_clip: Clip C of a client's whole update; infinite without one. None:
      all rounds are inherited, and their clip is not known.
    adaptive_layers: Number of layers with adaptive clips. If there are any, C
      is that of the next round.
    public_inputs: What training also takes as public, such as 'the dev set'.
    public_check: What a check of the public data found, as a part of a
      sentence; '' if there was none.
    tokens: Source of the characters or sentence pieces that the model writes,
      as a part of a sentence; '' for a model without text output.
  """

  l2_norm_clip: Optional[float] = None
  adaptive_layers: int = 0
  public_inputs: tuple[str, ...] = ()
  public_check: str = ''
  tokens: str = ''

  def __post_init__(self):
    if self.l2_norm_clip is not None:
      checks.positive(l2_norm_clip=self.l2_norm_clip)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyReport:
  """The guarantee of rounds. `str` renders it in lines of up to 80 columns.

  Attributes:
    rounds: At least one group; its count may be 0 (nothing is released yet).
    delta: In (0, 1); at 1 / population or above nothing is private.
    accountant: 'rdp' or 'pld'; None: both, and the smaller bound counts.
    privacy_unit: What one client is.
    invalidations: As in `ledger.Contents`.
    inherited: How many rounds belong to runs that this one started from.
    notes: What the ledger notes about the rounds.
    details: Facts about training; None for a plan or an earlier run.
    other_units: Reports of other units that the same model cost.
    solved_for: What `plan` found: 'epsilon', 'noise_multiplier' or 'rounds'.
  """

  rounds: tuple[accounting.RoundGroup, ...]
  delta: float
  accountant: Optional[str] = None
  privacy_unit: str = 'client'
  invalidations: tuple[str, ...] = ()
  inherited: int = 0
  notes: tuple[ledger.Note, ...] = ()
  details: Optional[TrainingDetails] = None
  other_units: tuple['PrivacyReport', ...] = ()
  solved_for: str = 'epsilon'

  def __post_init__(self):
    if not self.rounds:
      raise ValueError('rounds must have at least one group, found none.')
    accounting.check_delta(self.delta)
    if self.accountant is not None:
      checks.one_of(accounting.ACCOUNTANTS, accountant=self.accountant)

  @property
  def num_rounds(self) -> int:
    return sum(group.count for group in self.rounds)

  @property
  def neighbouring_relation(self) -> dp_accounting.NeighboringRelation:
    return accounting.neighboring_relation(self.rounds)

  @property
  def is_clipped(self) -> bool:
    # Noise needs a finite clip, so an unknown clip is finite if there is noise.
    clip = self.details and self.details.l2_norm_clip
    return clip is None or math.isfinite(clip)

  @property
  def is_noised(self) -> bool:
    """Whether every update is clipped and every released sum is noised."""
    return self.is_clipped and not any(
        group.count and group.noise_multiplier == 0 for group in self.rounds
    )

  @property
  def epsilon_rdp(self) -> Optional[float]:
    """Epsilon by RDP, whether or not it is invalid; None if not asked for."""
    return self._rdp[0]

  @property
  def order(self) -> Optional[float]:
    """The Renyi order of `epsilon_rdp`; None without a bound."""
    return self._rdp[1]

  @property
  def epsilon_pld(self) -> Optional[float]:
    """Epsilon by PLD, whether or not it is invalid; None if not computed."""
    return self._pld[0]

  @property
  def pld_obstacle(self) -> str:
    """Why there is no epsilon by PLD; '' if there is, or by choice."""
    return self._pld[1]

  @functools.cached_property
  def epsilon(self) -> float:
    """The smallest bound on epsilon; infinite if it is invalid."""
    if self.invalidations:
      return math.inf
    bounds = (self.epsilon_rdp, self.epsilon_pld)
    return min(bound for bound in bounds if bound is not None)

  @functools.cached_property
  def reasons(self) -> tuple[str, ...]:
    """Why the rounds are not private; empty if they are."""
    return tuple(why_not_private(
        self.rounds,
        epsilon=self.epsilon,
        delta=self.delta,
        is_clipped=self.is_clipped,
        invalidations=self.invalidations,
    ))

  @property
  def private(self) -> bool:
    return not self.reasons

  @property
  def verdict(self) -> str:
    """The guarantee, or why there is none."""
    if self.reasons:
      return f'NOT PRIVATE: {"; ".join(self.reasons)}'
    if not self.num_rounds:
      return 'no round is released yet, nothing is spent'
    epsilon = format_epsilon(self.epsilon)
    return f'({epsilon}, {self.delta:g})-differential privacy'

  @functools.cached_property
  def scale(self) -> Optional[calibration.ScaledRun]:
    """The smallest run with this noise on the mean that is private.

    None without noise or rounds.
    """
    if not self.num_rounds or not self.is_noised:
      return None
    return calibration.smallest_scaled_run(
        self.rounds, target_epsilon=MAX_USEFUL_EPSILON, delta=self.delta
    )

  @property
  def sampler_epsilon(self) -> float:
    """What inexact sampling of noise adds to epsilon in all rounds."""
    return sum(group.count * group.sampler_epsilon for group in self.rounds)

  @property
  def fields(self) -> dict[str, Any]:
    """The report by name, for JSON; infinity is the string 'inf'."""
    details = self.details or TrainingDetails()
    fields = {
        'private': self.private,
        'verdict': self.verdict,
        'reasons': list(self.reasons),
        'epsilon': _json_number(self.epsilon),
        'delta': self.delta,
        'epsilon_rdp': _json_number(self.epsilon_rdp),
        'order': self.order,
        'epsilon_pld': _json_number(self.epsilon_pld),
        'privacy_unit': self.privacy_unit,
        'neighbouring_relation': self.neighbouring_relation.name.lower(),
        'solved_for': self.solved_for,
        'rounds': self.num_rounds,
        'inherited_rounds': self.inherited,
        'groups': [_group_fields(group) for group in self.rounds],
        'sampler_epsilon': self.sampler_epsilon,
        'invalidations': list(self.invalidations),
        'warnings': _warnings(self.notes),
        'other_units': [other.fields for other in self.other_units],
    }
    if self.details is None:
      return fields
    scale = self.scale
    return fields | {
        'trust_model': 'distributed, secure sums (simulated)'
        if _secure_rounds(self.rounds) else 'central, trusted server',
        'l2_norm_clip': _json_number(details.l2_norm_clip),
        'adaptive_layers': details.adaptive_layers,
        'public_inputs': list(details.public_inputs),
        'public_check': details.public_check,
        'tokens': details.tokens,
        'exact_metrics_shown': _shows_exact_metrics(self.notes),
        'data_dependent_control': _control(self.rounds),
        'assumptions': [_SETTLED],
        'scale_for_target_epsilon': scale and {
            'target_epsilon': MAX_USEFUL_EPSILON,
            **dataclasses.asdict(scale),
            'word_error_rate': 'assumed, not measured',
        },
    }

  def __str__(self) -> str:
    relation = _RELATIONS[self.neighbouring_relation]
    lines = []
    for text in (
        f'Privacy report: {self.verdict}',
        f'Epsilon: {_epsilon_words(self)}',
        f'Privacy unit: {self.privacy_unit}; neighbouring relation: '
        + relation.format(unit=self.privacy_unit),
        *_warnings(self.notes),
    ):
      lines += textwrap.wrap(text, _WIDTH)
    entries = _round_entries(self)
    if self.details is not None:
      entries += _training_entries(self, self.details)
    for label, text in entries:
      lines += textwrap.wrap(
          text,
          _WIDTH,
          initial_indent='  ' + label.ljust(_LABEL_WIDTH),
          subsequent_indent=' ' * (_LABEL_WIDTH + 2),
          break_long_words=False,
          break_on_hyphens=False,
      )
    for other in self.other_units:
      lines += ['', str(other)]
    return '\n'.join(lines)

  @functools.cached_property
  def _rdp(self) -> tuple[Optional[float], Optional[float]]:
    """Epsilon by RDP and its order."""
    if self.accountant == 'pld':
      return None, None
    if not self.is_noised:
      # Nothing is released before the first round.
      return math.inf if self.num_rounds else 0.0, None
    return accounting.epsilon_and_order(
        accounting.compose(self.rounds), delta=self.delta
    )

  @functools.cached_property
  def _pld(self) -> tuple[Optional[float], str]:
    """Epsilon by PLD, or None and why there is none."""
    if self.accountant == 'rdp':
      return None, ''
    if not self.is_noised:
      return None, 'without clip and noise there is no bound'
    event = accounting.compose(self.rounds)
    if self.accountant == 'pld':
      return accounting.epsilon(
          event, delta=self.delta, accountant='pld'
      ), ''
    return accounting.epsilon_by_pld(event, delta=self.delta)


def of_ledger(
    contents: ledger.Contents,
    *,
    delta: Optional[float] = None,
    accountant: Optional[str] = None,
    details: Optional[TrainingDetails] = None,
) -> PrivacyReport:
  """Returns the report of all rounds that a ledger charges, of every unit.

  Args:
    contents: Contents of the ledger; at least one round of the run's own unit.
    delta: In (0, 1); None: 1 / (10 population). Other units have their own
      populations, so they always take that default.
    accountant: As in `PrivacyReport`.
    details: Facts about the run's training.

  Raises:
    ValueError: There are no rounds, or delta is out of range.
  """
  return PrivacyReport(
      rounds=tuple(contents.rounds),
      delta=delta_or_default(delta, contents.rounds),
      accountant=accountant,
      privacy_unit=contents.privacy_unit,
      invalidations=contents.invalidations,
      inherited=contents.inherited,
      notes=contents.notes,
      details=details,
      other_units=tuple(
          of_ledger(other, accountant=accountant)
          for other in contents.other_units
      ),
  )


def plan(
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
) -> PrivacyReport:
  """Finds the third of noise, epsilon and rounds from the other two.

  Args:
    cohort_size: Clients per round, expected ones under Poisson sampling.
    population: All private clients.
    noise_multiplier: Noise on the sum over the clip.
    sigma_mean: The same noise on the mean; give at most one of the two.
    target_epsilon: Epsilon not to be exceeded.
    rounds: Number of rounds.
    delta: In (0, 1); None: 1 / (10 population).
    sampling: See `accounting`.
    accountant: 'rdp' or 'pld'.

  Returns:
    A report with an epsilon of at most `target_epsilon`.

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
  # A group without noise: only its population is read.
  delta = delta_or_default(
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
  return PrivacyReport(
      rounds=(group,), delta=delta, accountant=accountant,
      solved_for=solved_for,
  )


def extrapolate(
    report: PrivacyReport,
    *,
    cohort_sizes: Sequence[int] = (),
    populations: Sequence[int] = (),
) -> list[PrivacyReport]:
  """Returns reports of a grown cohort and population, noise on the mean kept.

  Args:
    report: Report of one group of rounds.
    cohort_sizes: Cohorts; empty keeps the report's.
    populations: Populations, combined with each cohort that is not larger;
      empty grows the population with the cohort (q kept).

  Returns:
    The reports; none if neither cohorts nor populations are given.

  Raises:
    ValueError: `report` has several groups, or no combination is possible.
  """
  if not cohort_sizes and not populations:
    return []
  if len(report.rounds) != 1:
    raise ValueError(
        'only rounds that are all the same can be extrapolated, found '
        f'{len(report.rounds)} kinds of rounds.'
    )
  (group,) = report.rounds
  checks.positive_int(
      **{f'cohort size {size}': size for size in cohort_sizes},
      **{f'population {size}': size for size in populations},
  )
  grown = [
      dataclasses.replace(
          report,
          rounds=(calibration.scale_cohort(
              group, cohort_size=cohort_size, population=population
          ),),
          # The rounds of other units do not grow.
          other_units=(),
      )
      for cohort_size, population in itertools.product(
          cohort_sizes or [group.sampling.cohort_size], populations or [None]
      )
      if population is None or population >= cohort_size
  ]
  if not grown:
    raise ValueError(
        f'no population of {list(populations)} holds a cohort of '
        f'{list(cohort_sizes)}.'
    )
  return grown


def to_json(reports: Sequence[PrivacyReport]) -> str:
  """Returns one report as a JSON object, or several as a list.

  Args:
    reports: One report, or a plan and its extrapolations.
  """
  rows = [report.fields for report in reports]
  # The first is the plan itself; the others are extrapolated.
  for row in rows[1:]:
    row['word_error_rate'] = ASSUMED
  return json.dumps(rows if len(rows) > 1 else rows[0], indent=1)


def to_table(reports: Sequence[PrivacyReport]) -> str:
  """Returns a plan and its extrapolations as a table in Markdown."""
  lines = [
      '| cohort | population | q | rounds | noise on mean | noise multiplier '
      '| epsilon | order | |',
      '|---|---|---|---|---|---|---|---|---|',
  ]
  first = reports[0]
  for report in reports:
    (group,) = report.rounds
    order = '' if report.order is None else f'{report.order:g}'
    remark = 'as given' if report is first else ASSUMED
    if report is not first and not report.private:
      remark += '; NOT PRIVATE'
    lines.append(
        f'| {group.sampling.cohort_size:,} | {group.sampling.population:,} '
        f'| {group.sampling.sampling_prob:.3g} | {group.count:,} '
        f'| {_noise_on_mean(group):.4g} | {group.noise_multiplier:.4g} '
        f'| {format_epsilon(report.epsilon)} | {order} | {remark} |'
    )
  relation = first.neighbouring_relation.name.lower()
  lines.append(
      f'Epsilon at delta {first.delta:g}; privacy unit: {first.privacy_unit}; '
      f'neighbouring relation: {relation}.'
  )
  lines += [f'As given: NOT PRIVATE: {reason}' for reason in first.reasons]
  return '\n'.join([*lines, *_warnings(first.notes)])


def delta_or_default(
    delta: Optional[float], rounds: Iterable[accounting.RoundGroup]
) -> float:
  """Returns delta, or 1 / (10 * population) if it is None.

  Args:
    delta: In (0, 1), or None.
    rounds: The largest of their populations counts.

  Raises:
    ValueError: Delta is None and there are no rounds.
  """
  if delta is not None:
    return delta
  return 0.1 / _population(rounds)


def why_not_private(
    rounds: Sequence[accounting.RoundGroup],
    *,
    epsilon: float,
    delta: float,
    is_clipped: bool = True,
    invalidations: Sequence[str] = (),
) -> list[str]:
  """Returns why rounds of this epsilon are not private; empty if they are."""
  reasons = []
  if any(group.noise_multiplier == 0 for group in rounds):
    reasons.append('no noise is added, or not to all layers')
  if not is_clipped:
    reasons.append('updates are not clipped')
  # Otherwise epsilon is infinite for the reasons already given.
  if not reasons and not invalidations and epsilon > MAX_USEFUL_EPSILON:
    reasons.append(
        f'epsilon is {format_epsilon(epsilon)}, above {MAX_USEFUL_EPSILON:g}'
    )
  limit = 1 / _population(rounds)
  if delta >= limit:
    # A mechanism that publishes all data of one client, drawn at random, is
    # (0, 1 / population)-private.
    reasons.append(
        f'delta is {delta:g}, not below 1 / population ({limit:.2g}): '
        'publishing all data of one random client would satisfy it'
    )
  return [*reasons, *invalidations]


def format_epsilon(value: float) -> str:
  """Returns epsilon rounded up in its third digit: it is never understated."""
  if value == 0 or math.isinf(value):
    return 'infinite' if value else '0'
  # At least 1e-307: a smaller power of ten would be 0.
  digit = 10.0 ** max(-307, math.floor(math.log10(value)) - 2)
  # Without the factor, the rounding of the quotient could raise a value that
  # has three digits already.
  rounded = math.ceil(value / digit * (1 - 1e-12)) * digit
  return f'{rounded:.3g}'


def _json_number(value: Optional[float]) -> float | str | None:
  """The number, or 'inf': JSON has no infinity."""
  return 'inf' if value is not None and math.isinf(value) else value


def _population(rounds: Iterable[accounting.RoundGroup]) -> int:
  """The largest population of the rounds."""
  populations = [group.sampling.population for group in rounds]
  if not populations:
    raise ValueError('there are no rounds to account for.')
  return max(populations)


def _noise_on_mean(group: accounting.RoundGroup) -> float:
  return group.noise_multiplier / group.sampling.cohort_size


def _secure_rounds(
    rounds: Iterable[accounting.RoundGroup],
) -> list[accounting.RoundGroup]:
  """The groups in which clients added the noise."""
  return [group for group in rounds if group.secure_sum is not None]


def _control(rounds: Iterable[accounting.RoundGroup]) -> list[str]:
  """Control by private data that the guarantee does not cover."""
  return [_CONTROL, *([_DROP_OUT] if _secure_rounds(rounds) else [])]


def _shows_exact_metrics(notes: Iterable[ledger.Note]) -> bool:
  return any(note.what == 'exact_metrics' for note in notes)


def _warnings(notes: Iterable[ledger.Note]) -> list[str]:
  """What the notes of a ledger mean for a reader, a sentence each."""
  warnings = []
  # Charged rounds before the first note of each kind.
  before = {note.what: note.rounds_before for note in reversed([*notes])}
  if 'copied' in before:
    warnings.append(
        'WARNING: the run folder is a copy or was restored (noticed after '
        f'{before["copied"]:,} charged rounds). Rounds that the original or '
        'the backup does not share are not counted here.'
    )
  if 'exact_metrics' in before:
    warnings.append(
        'WARNING: exact metrics of training were shown (EXACT_METRICS, from '
        f'round {before["exact_metrics"] + 1:,} of the ledger on). The '
        'guarantee does not cover them: do not publish them.'
    )
  if 'length_changed' in before:
    warnings.append(
        'WARNING: the end of the run (NUM_ROUNDS, NUM_STEPS, TARGET_EPSILON) '
        f'was changed, first after {before["length_changed"]:,} charged '
        'rounds. If that was because of its results, epsilon understates the '
        'loss.'
    )
  return warnings


def _group_fields(group: accounting.RoundGroup) -> dict[str, Any]:
  """A group of rounds, for JSON."""
  fields = {
      **group.sampling.fields,
      'sampling_prob': group.sampling.sampling_prob,
      'noise_multiplier': group.noise_multiplier,
      'sigma_mean': _noise_on_mean(group),
      'rounds': group.count,
  }
  if group.sampling.min_sep is not None:
    fields['sensitivity'] = group.sensitivity
  if group.secure_sum is not None:
    fields['secure_sum'] = dataclasses.asdict(group.secure_sum)
  return fields


def _epsilon_words(report: PrivacyReport) -> str:
  """Epsilon by each accountant, and delta."""
  bounds = []
  if report.epsilon_rdp is not None:
    is_bound = 0 < report.epsilon_rdp < math.inf
    order = f' (order {report.order:g})' if is_bound else ''
    bounds.append(f'{format_epsilon(report.epsilon_rdp)} by RDP{order}')
  if report.epsilon_pld is not None:
    bounds.append(f'{format_epsilon(report.epsilon_pld)} by PLD')
  words = f'{", ".join(bounds)} at delta {report.delta:g}'
  if report.invalidations:
    words = f'infinite; {words} if nothing invalidated it'
  return words


def _round_entries(report: PrivacyReport) -> list[tuple[str, str]]:
  """Entries on rounds, noise and accounting."""
  entries = []
  for group in report.rounds:
    entries += _group_entries(group, report.privacy_unit)
  num_inherited = report.inherited
  if num_inherited:
    every = num_inherited == report.num_rounds
    entries.append((
        'inherited rounds',
        ('all' if every else f'{num_inherited:,}')
        + ' of these rounds belong to runs that this one started from'
        + ('; data used after them are taken as public' if every else ''),
    ))
  if report.other_units:
    names = ' and each '.join(
        other.privacy_unit for other in report.other_units
    )
    entries.append((
        'other units',
        f'the seed model was trained on other data, where each {names} is '
        'protected: see the next report. Neither guarantee holds for the data '
        'of the other, and they are not added up; a person in both has both '
        'losses',
    ))
  if report.pld_obstacle:
    entries.append(('epsilon by PLD', f'not computed: {report.pld_obstacle}'))
  if report.solved_for != 'epsilon':
    entries.append(('found', report.solved_for))
  return entries


def _group_entries(
    group: accounting.RoundGroup, unit: str
) -> list[tuple[str, str]]:
  """Entries on the sampling and the noise of a group of rounds."""
  sampling = group.sampling
  drawn = _SAMPLING[sampling.kind].format(
      **dataclasses.asdict(sampling),
      prob=sampling.sampling_prob,
      most=-(-group.count // (sampling.min_sep or 1)),
      unit=unit,
  )
  words = (
      f'{group.noise_multiplier:.6g} (on the sum, over the clip; '
      f'{_noise_on_mean(group):.3g} on the mean)'
  )
  if group.strategy is not None:
    kind = 'banded' if group.strategy.num_bands else 'BLT'
    each_time = ' each time it joins' if sampling.kind == 'cyclic' else ''
    words += (
        f', of which later rounds take back a part ({kind}, '
        f'{group.strategy.num_buffers} buffers). Until the run has ended, the '
        "server's file of buffers (secrets.safetensors) is as sensitive as the "
        'updates: with the released models it reveals sums of earlier rounds '
        f'without noise. One {unit} moves all rounds together by '
        f'{group.sensitivity:.4g} clips{each_time}'
    )
  if group.secure_sum is not None:
    words += (
        f', of the noise of {group.secure_sum.min_clients:,} of '
        f'{group.secure_sum.num_clients:,} devices; the others may drop out, '
        'and add to it if they do not'
    )
  return [('rounds', f'{group.count:,}; {drawn}'), ('noise multiplier', words)]


def _training_entries(
    report: PrivacyReport, details: TrainingDetails
) -> list[tuple[str, str]]:
  """Entries on what a run's guarantee assumes and does not cover."""
  unit = report.privacy_unit
  public = [*details.public_inputs, f'the number of {unit}s',
            'all hyperparameters']
  public_words = ', '.join(public)
  if report.inherited or report.other_units:
    public_words += ', except what earlier runs are charged for'
  if details.public_check:
    public_words += f'; {details.public_check}'
  return [
      ('clip', _clip_words(details, unit=unit)),
      ('trust model', _trust_words(report.rounds)),
      ('unit covers', _UNITS.get(unit, 'one client')),
      ('taken as public', public_words),
      *([('tokens', details.tokens)] if details.tokens else []),
      ('accuracy', 'epsilons are upper bounds up to float64 rounding, measured '
       f'to be below {accounting.EPSILON_ERROR:g}'),
      ('larger cohorts', _scale_words(report)),
      ('assumptions', _SETTLED),
      ('not counted', 'choosing hyperparameters by looking at private data, '
       'and other runs on the same data that this one did not start from'),
      ('control', 'rounds, stopping, evaluation and learning rate depend only '
       'on the settings, the ledger and the released (noised) models. NOT '
       f'COVERED: {"; ".join(_control(report.rounds))}'),
      ('noise', _noise_words(report)),
      ('metrics', 'those named not_private/... (losses, norms, counts, times) '
       'are exact and NOT COVERED; they were shown'
       if _shows_exact_metrics(report.notes) else 'only metrics that follow '
       'from the settings, the ledger and the released models were shown'),
  ]


def _trust_words(rounds: Iterable[accounting.RoundGroup]) -> str:
  """Which party sees what, and which parties the guarantee covers."""
  trusted = (
      'the server sees the updates before noise is added; the guarantee holds '
      'against those who see only the trained models'
  )
  secure = _secure_rounds(rounds)
  if not secure:
    return f'central differential privacy with a trusted server: {trusted}'
  bits = max(group.secure_sum.bits for group in secure)
  words = (
      'distributed differential privacy with secure aggregation: each device '
      'clips its update and adds a share of the noise; the server sees who '
      'takes part, who drops out and, of the updates, only their noised sum, '
      f'{bits} bits per element; noise of devices that collude with it does '
      'not count. '
      'SIMULATED: here one process has all updates and draws all noise. '
  )
  if any(group.sampling.kind == 'fixed_size' for group in secure):
    words += (
        'The guarantee holds against those who see only the trained models: '
        'the server knows which clients were sampled'
    )
  else:
    words += 'The guarantee also holds against the server'
  if any(group.secure_sum is None and group.count for group in rounds):
    words += f'. In other rounds, {trusted}'
  return words


def _clip_words(details: TrainingDetails, *, unit: str) -> str:
  """The clip, in words."""
  if details.l2_norm_clip is None:
    return 'that of the inherited rounds'
  if math.isinf(details.l2_norm_clip):
    return 'none'
  words = (
      f'{details.l2_norm_clip:g} (L2 norm of what one {unit} adds to a sum)'
  )
  if details.adaptive_layers:
    words += (
        f' after the last round; {details.adaptive_layers:,} clips follow a '
        'quantile of the norms, whose estimate the noise multiplier accounts '
        'for'
    )
  return words


def _scale_words(report: PrivacyReport) -> str:
  """The smallest run with this noise on the mean that reaches the target."""
  unit = report.privacy_unit
  if not report.is_noised:
    return (
        f'without clip and noise no number of {unit}s gives epsilon '
        f'{MAX_USEFUL_EPSILON:g}'
    )
  scale = report.scale
  if scale is None:
    return 'depends on the number of rounds; none is released yet'
  last = [group for group in report.rounds if group.count][-1]
  if scale.cohort_size == last.sampling.cohort_size:
    return f'not needed: this run is within epsilon {MAX_USEFUL_EPSILON:g}'
  return (
      f'the same noise on the mean would give epsilon {MAX_USEFUL_EPSILON:g} '
      f'with at least {scale.cohort_size:,} of {scale.population:,} {unit}s '
      f'per round (noise multiplier {scale.noise_multiplier:.4g}; {ASSUMED})'
  )


def _noise_words(report: PrivacyReport) -> str:
  """How noise is drawn."""
  if not report.is_noised:
    return 'none, or not in all rounds'
  inexact = (
      'a sum of discrete Gaussians'
      if _secure_rounds(report.rounds)
      else 'computed with some 28 digits'
  )
  return (
      'noise and sums are integer multiples of a public grid step, so rounding '
      'reveals nothing; drawn by ChaCha20 under a 256-bit key. That it is '
      f'{inexact} adds at most {report.sampler_epsilon:.1g} to epsilon, which '
      'is counted'
  )
