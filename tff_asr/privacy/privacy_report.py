"""Privacy report: what rounds guarantee, and what the guarantee assumes.

    >>> rounds = accounting.RoundGroup(
    ...     sampling=accounting.Sampling(
    ...         kind='poisson', cohort_size=10, population=1000),
    ...     noise_multiplier=1.0, count=100)
    >>> report = PrivacyReport(rounds=(rounds,), delta=1e-6, accountant='rdp')
    >>> print(report)
    Privacy report: (1.51, 1e-06)-differential privacy
    Epsilon: 1.51 by RDP at delta 1e-06
    Privacy unit: client; neighbouring relation: add or remove one client
      rounds              100; Poisson: each of 1,000 clients joins a round
                          independently with probability 0.01, 10 expected
      noise multiplier    1 (on the sum, over the clip; 0.1 on the mean)
      noise / C           not known: sqrt(D) x 0.1 a round, for D trained
                          parameters

The first three entries are the verdict. A report of a run (`of_ledger`) is
built from the rounds that its ledger charged, so it states what ran, and with
`TrainingDetails` it states all that the guarantee assumes. `plan` finds noise,
epsilon or rounds from the other two; `extrapolate` grows cohort and population
at the same noise on the mean, as https://arxiv.org/abs/2310.00098 does.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import decimal
import functools
import itertools
import json
import math
import textwrap
from typing import Any, NamedTuple, Optional

import dp_accounting

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import ledger

# At epsilon 10 the odds of a correct guess grow 22,000-fold: it hides little.
MAX_USEFUL_EPSILON = 10.0
ASSUMED = 'WER assumed, not measured'

# Three digits, as tables print them; rounding down would promise too much.
_ROUND_UP = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
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
    'has twice the privacy loss, and where each recording has an id of its own '
    'the guarantee is per recording',
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
        'and {most} in all; nothing else is assumed about sampling'
    ),
    'cyclic': (
        'cyclic Poisson: in one of every {min_sep:,} rounds, {most} in all, '
        'each of {population:,} {unit}s joins independently with probability '
        '{prob:.4g}, {cohort_size:,} expected'
    ),
}

# By `ledger.RELEASES`.
_RELEASES = {
    'evaluation': 'noised word error rates of {unit}s',
    'counts': 'noised counts of the words of {unit}s for a language model',
}

# Stopping by results is a release of its own, which no accountant counts.
_SETTLED = (
    'the number of rounds was settled before the first, by NUM_ROUNDS, '
    'NUM_STEPS or TARGET_EPSILON; epsilon understates the loss if the run was '
    'stopped or extended because of its results'
)
_NOT_COVERED = (
    'choosing hyperparameters by looking at private data, and other runs on '
    'the same data that this one did not start from',
    # Decisions of the program that depend on private data without noise.
    'a run ends when too many clients of a round fail (MAX_FAILED_SHARE), when '
    'a client hangs (CLIENT_TIMEOUT_SEC) or runs out of memory, or when a '
    'recording of pre-training cannot be read; it does not start when a '
    'private transcript has a character that is not a token, private '
    'utterances are too long on average, a private speaker is in the public '
    'data, or a private recording of pre-training occurs twice',
)
# The same where devices add the noise.
_DROP_OUT = (
    'a device that drops out adds no noise, which the variance of the released '
    'sum reveals: whether it does must not depend on its data'
)
# Of rounds in which the server adds the noise.
_TRUSTED_SERVER = (
    'the server sees the updates before noise is added; the guarantee holds '
    'against those who see only the trained models'
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
    public_model: `name`, `licence`, `source` and `sha256` of the public model
      that training started from; None if there is none.
    public_check: What a check of the public data found, as a part of a
      sentence; '' if there was none.
    tokens: Source of the characters or sentence pieces that the model writes,
      as a part of a sentence; '' for a model without text output.
    layer_noise: (noise norm) / clip of a round's mean by layer, before noise is
      correlated; {}: not known.
    has_layer_clips: Whether that is over the layer's own clip, and not over C.
  """

  l2_norm_clip: Optional[float] = None
  adaptive_layers: int = 0
  public_inputs: tuple[str, ...] = ()
  public_model: Optional[Mapping[str, str]] = None
  public_check: str = ''
  tokens: str = ''
  layer_noise: Mapping[str, float] = dataclasses.field(default_factory=dict)
  has_layer_clips: bool = False

  @classmethod
  def of_fields(cls, fields: Mapping[str, Any]) -> Optional['TrainingDetails']:
    """Returns the details that `PrivacyReport.fields` has; None without any."""
    names = [field.name for field in dataclasses.fields(cls)]
    if 'l2_norm_clip' not in fields:
      return None
    found = cls(**{name: fields[name] for name in names if name in fields})
    # JSON has neither infinity nor tuples.
    clip = found.l2_norm_clip
    return dataclasses.replace(
        found,
        l2_norm_clip=None if clip is None else float(clip),
        public_inputs=tuple(found.public_inputs),
    )


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
    releases: As in `ledger.Contents`.
    details: Facts about training; None for a plan or an earlier run.
    other_units: Reports of other units that the same model cost.
    later: As in `ledger.Contents`.
    unread: As in `ledger.Contents`.
  """

  rounds: tuple[accounting.RoundGroup, ...]
  delta: float
  accountant: Optional[str] = None
  privacy_unit: str = 'client'
  invalidations: tuple[str, ...] = ()
  inherited: int = 0
  notes: tuple[ledger.Note, ...] = ()
  releases: Mapping[str, tuple[accounting.RoundGroup, ...]] = (
      dataclasses.field(default_factory=dict)
  )
  details: Optional[TrainingDetails] = None
  other_units: tuple['PrivacyReport', ...] = ()
  later: int = 0
  unread: tuple[str, ...] = ()

  def __post_init__(self):
    if not self.rounds:
      raise ValueError('rounds must have at least one group, found none.')
    accounting.check_delta(self.delta)
    if self.accountant is not None:
      checks.one_of(accounting.ACCOUNTANTS, accountant=self.accountant)

  @property
  def num_rounds(self) -> int:
    return _num_rounds(self.rounds)

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
    # A group of no rounds has released nothing, so its noise does not matter.
    return self.is_clipped and not any(
        group.count and group.noise_multiplier == 0 for group in self.rounds
    )

  @functools.cached_property
  def epsilon_rdp(self) -> Optional[float]:
    """Epsilon by RDP, whether or not it is invalid; None if not asked for."""
    if self.accountant == 'pld':
      return None
    if not self.is_noised:
      # Nothing is released before the first round.
      return math.inf if self.num_rounds else 0.0
    return accounting.epsilon(self.rounds, delta=self.delta)

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
    # What invalidates a run, such as a known key, undoes all of its noise.
    if self.invalidations:
      return math.inf
    # Both are upper bounds, so the smaller one also holds.
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
    # By reasons, not epsilon alone: delta may be too large at any epsilon.
    return not self.reasons

  @property
  def verdict(self) -> str:
    """The guarantee, or why there is none."""
    if self.reasons:
      return f'NOT PRIVATE: {"; ".join(self.reasons)}'
    # Epsilon 0 would read like a guarantee of a trained model.
    if not self.num_rounds:
      return 'no round is released yet, nothing is spent'
    epsilon = format_epsilon(self.epsilon)
    return f'({epsilon}, {self.delta:g})-differential privacy'

  @property
  def epsilon_words(self) -> str:
    """Epsilon by each accountant, the one that leads first, and delta."""
    bounds = ', '.join(
        f'{format_epsilon(bound)} by {name}'
        for name, bound in (
            ('PLD', self.epsilon_pld), ('RDP', self.epsilon_rdp)
        )
        if bound is not None
    )
    # Epsilon needs its delta on the same line, or it means nothing.
    words = f'{bounds} at delta {self.delta:g}'
    if self.invalidations:
      words = f'infinite; {words} if nothing invalidated it'
    return words

  @functools.cached_property
  def noise_over_clip(self) -> list[Optional[float]]:
    """(noise norm) / C of a round's mean, of each group that trained a model.

    None: not known. Equal values are listed once.
    """
    return list(dict.fromkeys(
        group.noise_over_clip for group in self.training_rounds
    ))

  @functools.cached_property
  def rounds_over_noise(self) -> Optional[float]:
    """C over the norm of the noise of the mean update of all rounds.

    It is sqrt(rounds) / (noise / C) where all rounds have the same, independent
    noise. Rounds that released no model do not count. Infinite without noise;
    None: not known, or no round.
    """
    groups = self.training_rounds
    # Groups have independent noise, so their variances add up.
    norms = [group.noise_of_sum for group in groups]
    if not groups or None in norms:
      return None
    noise = math.hypot(*norms)
    return _num_rounds(groups) / noise if noise else math.inf

  @functools.cached_property
  def training_rounds(self) -> list[accounting.RoundGroup]:
    """The rounds that released a model."""
    released = itertools.chain(*self.releases.values())
    return [each for each in _without(self.rounds, released) if each.count]

  @property
  def not_covered(self) -> list[str]:
    """What reveals private data and is not in epsilon."""
    is_by_devices = bool(_secure_rounds(self.rounds))
    return [*_NOT_COVERED, *([_DROP_OUT] if is_by_devices else [])]

  @property
  def fields(self) -> dict[str, Any]:
    """The report by name, for JSON; infinity is the string 'inf'."""
    fields = {
        'private': self.private,
        'verdict': self.verdict,
        'reasons': list(self.reasons),
        'epsilon': json_number(self.epsilon),
        'delta': self.delta,
        'epsilon_rdp': json_number(self.epsilon_rdp),
        'epsilon_pld': json_number(self.epsilon_pld),
        'privacy_unit': self.privacy_unit,
        'neighbouring_relation': self.neighbouring_relation.name.lower(),
        'rounds': self.num_rounds,
        'inherited_rounds': self.inherited,
        'later_rounds': self.later,
        'groups': [_group_fields(group) for group in self.rounds],
        'rounds_over_noise': json_number(self.rounds_over_noise),
        'warnings': _warnings(self),
        'releases': {
            name: _num_rounds(groups) for name, groups in self.releases.items()
        },
        'other_units': [other.fields for other in self.other_units],
    }
    # A plan has no training whose assumptions could be stated.
    if self.details is not None:
      fields |= dataclasses.asdict(self.details)
      fields |= {
          'l2_norm_clip': json_number(self.details.l2_norm_clip),
          'public_inputs': list(self.details.public_inputs),
          'layer_noise': dict(self.details.layer_noise),
          'assumptions': [_SETTLED],
          'not_covered': self.not_covered,
      }
    return fields

  @property
  def summary(self) -> str:
    """Verdict, and epsilon by each accountant, and warnings, a line each."""
    noise = (
        'Noise / C a round: '
        + ', '.join(map(_noise_number, self.noise_over_clip))
        + f'; {_run_noise_words(self)}: '
        + _noise_number(self.rounds_over_noise)
    )
    return '\n'.join([
        f'Privacy of each {self.privacy_unit}: {self.verdict}',
        f'Epsilon: {self.epsilon_words}',
        *([noise] if any(each != 0 for each in self.noise_over_clip) else []),
        *_warnings(self),
        *(other.summary for other in self.other_units),
    ])

  def __str__(self) -> str:
    relation = _RELATIONS[self.neighbouring_relation]
    lines = []
    for text in (
        f'Privacy report: {self.verdict}',
        f'Epsilon: {self.epsilon_words}',
        f'Privacy unit: {self.privacy_unit}; neighbouring relation: '
        + relation.format(unit=self.privacy_unit),
        *_warnings(self),
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
          # A path or an option that is cut could not be copied.
          break_long_words=False,
          break_on_hyphens=False,
      )
    for other in self.other_units:
      lines += ['', str(other)]
    return '\n'.join(lines)

  @functools.cached_property
  def _pld(self) -> tuple[Optional[float], str]:
    """Epsilon by PLD, or None and why there is none."""
    if self.accountant == 'rdp':
      return None, ''
    if not self.is_noised:
      return None, 'without clip and noise there is no bound'
    if self.accountant == 'pld':
      # Asked for, so an obstacle is an error; otherwise it becomes a row.
      return accounting.epsilon(
          self.rounds, delta=self.delta, accountant='pld'
      ), ''
    return accounting.epsilon_by_pld(self.rounds, delta=self.delta)


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
      releases=contents.releases,
      later=contents.later,
      unread=contents.unread,
      details=details,
      # Without details: these are facts about this run's training only.
      other_units=tuple(
          of_ledger(other, accountant=accountant)
          for other in contents.other_units
      ),
  )


class Outlook(NamedTuple):
  """What a release makes of the verdict, known before it is charged.

  Attributes:
    before: The report without the release; None if nothing is charged yet.
    after: The report with it.
  """

  before: Optional[PrivacyReport]
  after: PrivacyReport

  @property
  def words(self) -> str:
    """As 'epsilon 4.94 -> 20.2 at delta 1e-05: NOT PRIVATE: ...'."""
    after = self.after
    change = format_epsilon(after.epsilon)
    if self.before is not None:
      at = f' (at delta {self.before.delta:g})'
      change = (
          format_epsilon(self.before.epsilon)
          + (at if self.before.delta != after.delta else '')
          + f' -> {change}'
      )
    verdict = 'private' if after.private else after.verdict
    return f'epsilon {change} at delta {after.delta:g}: {verdict}'

  @property
  def fields(self) -> dict[str, Any]:
    """The change by name, for JSON; infinity is the string 'inf'."""
    before = self.before
    return {
        'private': self.after.private,
        'verdict': self.after.verdict,
        'delta': self.after.delta,
        'total_epsilon': json_number(self.after.epsilon),
        'private_before': before and before.private,
        'epsilon_before': before and json_number(before.epsilon),
        'delta_before': before and before.delta,
    }

  def check(self, *, allows_not_private: bool) -> None:
    """Raises ValueError if the release would end a guarantee.

    Args:
      allows_not_private: Whether the user has said that it may.
    """
    if allows_not_private or self.after.private:
      return
    if self.before is not None and self.before.private:
      raise ValueError(
          f'{self.words}; nothing is charged yet. Lower EPSILON, or set DELTA '
          'well below 1 / population; ALLOW_NOT_PRIVATE (--allow_not_private) '
          'releases it nevertheless, and the run is NOT PRIVATE from then on.'
      )


def outlook(
    charged: Sequence[accounting.RoundGroup],
    after: Sequence[accounting.RoundGroup],
    *,
    delta: float,
    delta_before: Optional[float] = None,
    invalidations: Sequence[str] = (),
) -> Outlook:
  """Returns what a release makes of the verdict.

  Args:
    charged: What is charged without it; may be empty.
    after: All that is charged with it.
    delta: Of the report with it.
    delta_before: Of the report without it; None: the same.
    invalidations: As in `ledger.Contents`.
  """
  of = lambda rounds, delta: PrivacyReport(
      rounds=tuple(rounds), delta=delta, invalidations=tuple(invalidations)
  )
  return Outlook(
      of(charged, delta_before or delta) if charged else None, of(after, delta)
  )


def plan(
    *,
    cohort_size: int,
    population: int,
    noise_multiplier: Optional[float] = None,
    target_epsilon: Optional[float] = None,
    rounds: Optional[int] = None,
    delta: Optional[float] = None,
    sampling: str = 'poisson',
    accountant: Optional[str] = 'rdp',
) -> PrivacyReport:
  """Finds the third of noise, epsilon and rounds from the other two.

  Args:
    cohort_size: Clients per round, expected ones under Poisson sampling.
    population: All private clients.
    noise_multiplier: Noise on the sum over the clip.
    target_epsilon: Epsilon not to be exceeded.
    rounds: Number of rounds.
    delta: In (0, 1); None: 1 / (10 population).
    sampling: See `accounting`.
    accountant: 'rdp' or 'pld'; None: the search is by PLD where it takes the
      sampling, and the report has both.

  Returns:
    A report with an epsilon of at most `target_epsilon`.

  Raises:
    ValueError: Not exactly two of the three are given, or an argument is out of
      range.
  """
  how = accounting.Sampling(
      kind=sampling, cohort_size=cohort_size, population=population
  )
  given = {
      'noise': noise_multiplier,
      'target_epsilon': target_epsilon,
      'rounds': rounds,
  }
  found = [name for name, value in given.items() if value is not None]
  if len(found) != 2:
    raise ValueError(
        f'two of {", ".join(given)} must be given, the third is found; found '
        f'{", ".join(found) or "none of them"}.'
    )
  if delta is None:
    delta = accounting.default_delta(population)
  target = dict(sampling=how, delta=delta, accountant=accountant)
  if noise_multiplier is None:
    noise_multiplier = calibration.noise_multiplier_for_epsilon(
        target_epsilon, rounds=rounds, **target
    )
  elif rounds is None:
    rounds = calibration.rounds_for_epsilon(
        target_epsilon, noise_multiplier=noise_multiplier, **target
    )
  # Here, so that the message has the name of the flag.
  checks.non_negative_int(rounds=rounds)
  group = accounting.RoundGroup(
      sampling=how, noise_multiplier=noise_multiplier, count=rounds
  )
  return PrivacyReport(rounds=(group,), delta=delta, accountant=accountant)


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
      # A cohort cannot have more clients than there are.
      if population is None or population >= cohort_size
  ]
  # An empty table would look like a result.
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
  # One report stays an object, as in privacy_report.json.
  return json.dumps(rows if len(rows) > 1 else rows[0], indent=1)


def plan_table(reports: Sequence[PrivacyReport]) -> str:
  """Returns a plan and its extrapolations as a table in Markdown."""
  lines = [
      '| cohort | population | q | rounds | noise on mean | noise multiplier '
      '| epsilon | |',
      '|---|---|---|---|---|---|---|---|',
  ]
  first = reports[0]
  for report in reports:
    (group,) = report.rounds
    remark = 'as given' if report is first else ASSUMED
    if report is not first and not report.private:
      remark += '; NOT PRIVATE'
    lines.append(
        f'| {group.sampling.cohort_size:,} | {group.sampling.population:,} '
        f'| {group.sampling.sampling_prob:.3g} | {group.count:,} '
        f'| {_noise_on_mean(group):.4g} | {group.noise_multiplier:.4g} '
        f'| {format_epsilon(report.epsilon)} | {remark} |'
    )
  relation = first.neighbouring_relation.name.lower()
  lines.append(
      f'Epsilon at delta {first.delta:g}; privacy unit: {first.privacy_unit}; '
      f'neighbouring relation: {relation}.'
  )
  lines += [f'As given: NOT PRIVATE: {reason}' for reason in first.reasons]
  return '\n'.join([*lines, *_warnings(first)])


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
  return accounting.default_delta(_population(rounds))


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
  if math.isinf(value):
    return 'infinite'
  # Of the shortest decimal, so that a value of three digits keeps them.
  rounded = _ROUND_UP.create_decimal(repr(float(value)))
  return f'{float(rounded):.3g}'


def json_number(value: Optional[float]) -> float | str | None:
  """The number, or 'inf': JSON has no infinity."""
  return 'inf' if value is not None and math.isinf(value) else value


def _population(rounds: Iterable[accounting.RoundGroup]) -> int:
  """The largest population of the rounds."""
  populations = [group.sampling.population for group in rounds]
  if not populations:
    raise ValueError('there are no rounds to account for.')
  # The largest gives the smallest limit of delta.
  return max(populations)


def _num_rounds(groups: Iterable[accounting.RoundGroup]) -> int:
  return sum(group.count for group in groups)


def _without(
    rounds: Iterable[accounting.RoundGroup],
    removed: Iterable[accounting.RoundGroup],
) -> list[accounting.RoundGroup]:
  """The rounds that are left without some of them."""
  counts = collections.Counter()
  for group in removed:
    counts[dataclasses.replace(group, count=0)] += group.count
  left = []
  # Group by group: two sequences of correlated noise are no longer sequence.
  for group in rounds:
    kind = dataclasses.replace(group, count=0)
    count = min(group.count, counts[kind])
    counts[kind] -= count
    left.append(dataclasses.replace(group, count=group.count - count))
  return left


def _noise_on_mean(group: accounting.RoundGroup) -> float:
  return group.noise_multiplier / group.sampling.cohort_size


def _secure_rounds(
    rounds: Iterable[accounting.RoundGroup],
) -> list[accounting.RoundGroup]:
  """The groups in which clients added the noise."""
  return [group for group in rounds if group.secure_sum is not None]


def _warnings(report: PrivacyReport) -> list[str]:
  """What a reader must know of a ledger, a sentence each."""
  warnings = [
      f'WARNING: what {each} charged after this run began is not counted, '
      'because this ledger is not there any more: put it back.'
      for each in report.unread
  ]
  # Charged rounds before the first note of each kind.
  # Reversed, so that the first note of a kind replaces later ones.
  before = {note.what: note.rounds_before for note in reversed(report.notes)}
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
      'noise_over_clip': group.noise_over_clip,
      'rounds': group.count,
  }
  # Only then does one client move several rounds together.
  if group.sampling.min_sep is not None:
    fields['sensitivity'] = group.sensitivity
  if group.secure_sum is not None:
    fields['secure_sum'] = dataclasses.asdict(group.secure_sum)
  return fields


def _round_entries(report: PrivacyReport) -> list[tuple[str, str]]:
  """Entries on rounds, noise and accounting."""
  entries = []
  for group in report.rounds:
    entries += _group_entries(group, report.privacy_unit)
  if report.rounds_over_noise is not None:
    entries.append((
        'noise of the run',
        f'{_run_noise_words(report)} is {report.rounds_over_noise:.3g}',
    ))
  for release, groups in report.releases.items():
    words = _RELEASES[release].format(unit=report.privacy_unit)
    epsilon = accounting.leading_epsilon(
        _without(report.rounds, groups), delta=report.delta
    )
    entries.append((
        'other releases',
        f'{_num_rounds(groups):,} of these rounds released {words}, and no '
        'model; without them epsilon would be '
        + format_epsilon(epsilon),
    ))
  num_inherited = report.inherited
  if num_inherited:
    every = num_inherited == report.num_rounds
    entries.append((
        'inherited rounds',
        ('all' if every else f'{num_inherited:,}')
        + ' of these rounds belong to runs that this one started from'
        + (
            f', {report.later:,} of them charged after it began'
            if report.later else ''
        )
        + ('; data used after them are taken as public' if every else '')
        + '; what those runs charge after this report was written is counted '
        'when it is printed again (bin/compute_epsilon.py --run)',
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
  return entries


def _group_entries(
    group: accounting.RoundGroup, unit: str
) -> list[tuple[str, str]]:
  """Entries on the sampling and the noise of a group of rounds."""
  sampling = group.sampling
  # Rounded up: the first of these rounds counts, too.
  most = -(-group.count // (sampling.min_sep or 1))
  drawn = _SAMPLING[sampling.kind].format(
      **dataclasses.asdict(sampling),
      prob=sampling.sampling_prob,
      most='once' if most == 1 else f'{most} times',
      unit=unit,
  )
  words = (
      f'{group.noise_multiplier:.6g} (on the sum, over the clip; '
      f'{_noise_on_mean(group):.3g} on the mean)'
  )
  if group.strategy is not None:
    kind = 'banded' if group.strategy.num_bands else 'BLT'
    num_buffers = group.strategy.num_buffers
    buffers = f'{num_buffers} buffer{"" if num_buffers == 1 else "s"}'
    each_time = ' each time it joins' if sampling.kind == 'cyclic' else ''
    words += (
        f', of which later rounds take back a part ({kind}, {buffers}). Until '
        "the run has ended, the server's file of buffers (secrets.safetensors) "
        'is as sensitive as the updates: with the released models it reveals '
        f'sums of earlier rounds without noise. One {unit} moves all rounds '
        f'together by {group.sensitivity:.4g} clips{each_time}'
    )
  if group.secure_sum is not None:
    words += (
        f', of the noise of {group.secure_sum.min_clients:,} of '
        f'{group.secure_sum.num_clients:,} devices; the others may drop out, '
        'and add to it if they do not'
    )
  return [
      ('rounds', f'{group.count:,}; {drawn}'),
      ('noise multiplier', words),
      ('noise / C', _noise_words(group)),
  ]


def _noise_words(group: accounting.RoundGroup) -> str:
  """The norm of the noise on a round's mean over the clip, in words."""
  if group.noise_over_clip is None:
    return (
        f'not known: sqrt(D) x {_noise_on_mean(group):.3g} a round, for D '
        'trained parameters'
    )
  words = (
      f'{group.noise_over_clip:.3g} a round, the norm of the noise on the mean '
      'of the updates over the clip'
  )
  if group.strategy is not None:
    fresh = group.noise_norm / group.sampling.cohort_size
    words += (
        ' (root mean square over the rounds: noise that is taken back later is '
        f'in it; {fresh:.3g} without correlation)'
    )
  if group.secure_sum is not None:
    words += ', if no device drops out'
  return words


def _run_noise_words(report: PrivacyReport) -> str:
  """Says what `rounds_over_noise` is in this report."""
  groups = report.training_rounds
  if len(groups) == 1 and groups[0].strategy is None:
    return 'sqrt(rounds) / (noise / C)'
  return 'C over the noise of the mean update of all rounds'


def _noise_number(value: Optional[float]) -> str:
  return 'not known' if value is None else f'{value:.3g}'


def _layer_noise_words(details: TrainingDetails) -> str:
  """The noise of layers over their clips, in words."""
  noise = details.layer_noise
  if not noise:
    return 'not known'
  least, most = min(noise, key=noise.get), max(noise, key=noise.get)
  clip = 'its own clip C_h' if details.has_layer_clips else (
      'C: all layers are clipped as one'
  )
  # float32 rounds.
  if noise[most] <= noise[least] * (1 + 1e-5):
    return (
        f'{noise[most]:.3g} a round for each of {len(noise):,} layers, over '
        f'{clip}'
    )
  return (
      f'a round, for {len(noise):,} layers: {noise[least]:.3g} ({least}) to '
      f'{noise[most]:.3g} ({most}), each over {clip}'
  )


def _training_entries(
    report: PrivacyReport, details: TrainingDetails
) -> list[tuple[str, str]]:
  """Entries on what a run's guarantee assumes and does not cover."""
  unit = report.privacy_unit
  public = [*details.public_inputs, f'the number of {unit}s',
            'all hyperparameters']
  if details.public_model is not None:
    public.insert(0, _public_model_words(details.public_model))
  public_words = ', '.join(public)
  if report.inherited or report.other_units:
    public_words += ', except what earlier runs are charged for'
  if details.public_check:
    public_words += f'; {details.public_check}'
  return [
      ('clip', _clip_words(details, unit=unit)),
      ('noise by layer', _layer_noise_words(details)),
      ('trust model', _trust_words(report.rounds)),
      ('unit covers', _UNITS.get(unit, 'one client')),
      ('taken as public', public_words),
      *([('tokens', details.tokens)] if details.tokens else []),
      ('assumptions', _SETTLED),
      ('NOT COVERED', '; '.join(report.not_covered)),
  ]


def _public_model_words(model: Mapping[str, str]) -> str:
  """Names a public model; the JSON has the whole digest."""
  return (
      f'public model {model["name"]} (licence {model["licence"]}, SHA-256 '
      f'{model["sha256"][:16]}...; its own training data are not covered)'
  )


def _trust_words(rounds: Iterable[accounting.RoundGroup]) -> str:
  """Which party sees what, and which parties the guarantee covers."""
  secure = _secure_rounds(rounds)
  if not secure:
    return f'central differential privacy, trusted server: {_TRUSTED_SERVER}'
  # The widest sums: a reader asks how much the server sees at most.
  bits = max(group.secure_sum.bits for group in secure)
  words = (
      'distributed differential privacy with secure aggregation: each device '
      'clips its update and adds a share of the noise; the server sees who '
      'takes part, who drops out and, of the updates, only their noised sum, '
      f'{bits} bits per element; noise of devices that collude with it does '
      'not count. '
      'SIMULATED: here one process has all updates and draws all noise. '
  )
  # Sampling amplifies privacy only against those who cannot see the cohort.
  if any(group.sampling.kind == 'fixed_size' for group in secure):
    words += (
        'The guarantee holds against those who see only the trained models: '
        'the server knows which clients were sampled'
    )
  else:
    words += 'The guarantee also holds against the server'
  if any(group.secure_sum is None and group.count for group in rounds):
    words += f'. In other rounds, {_TRUSTED_SERVER}'
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
