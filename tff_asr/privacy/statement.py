"""Privacy statement of a run: what is guaranteed, to whom, against what.

It is built from the rounds that the ledger charged (or that a plan intends), so
it states what ran. If no guarantee is worth the name, it says NOT PRIVATE, and
why.
"""

from collections.abc import Sequence
import dataclasses
import math
import textwrap
from typing import Any, Optional

import dp_accounting

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration

MAX_USEFUL_EPSILON = 10.0

_WIDTH = 80
_LABEL_WIDTH = 18

_RELATIONS = {
    dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE: (
        'add or remove one {unit}'
    ),
    dp_accounting.NeighboringRelation.REPLACE_ONE: (
        'replace one {unit} by another (the sum may move by twice the clip)'
    ),
    dp_accounting.NeighboringRelation.REPLACE_SPECIAL: (
        'replace one {unit} by nobody, whose update is zeros and who keeps the '
        'place in the pass'
    ),
}
_UNITS = {
    'speaker': 'all recordings of one client',
    'example': 'one recording; a speaker with several of them is protected '
    'less, and the server sees all recordings',
}
_SAMPLING = {
    'poisson': (
        'Poisson: each of {population:,} {unit}s joins a round independently '
        'with probability {prob:.4g}, {cohort_size:,} expected'
    ),
    'fixed': (
        'fixed size: {cohort_size:,} of {population:,} {unit}s a round, drawn '
        'without replacement'
    ),
    'full': 'everyone: all {population:,} {unit}s in each round',
    'pass': (
        'shuffled passes over {population:,} {unit}s, the next {cohort_size:,} '
        'a round; each {unit} is in a tree of {rounds_per_pass:,} rounds at '
        'most once, and nothing is assumed about sampling (DP-FTRL)'
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
  """A privacy statement.

  Attributes:
    private: False if the statement says NOT PRIVATE.
    reasons: Why it is not private; empty if it is.
    epsilon: The smallest bound on epsilon that the accountants gave.
    lines: The statement as text, lines of at most 80 columns.
    fields: The same by name, for JSON; infinity is the string 'inf'.
  """

  private: bool
  reasons: tuple[str, ...]
  epsilon: float
  lines: tuple[str, ...]
  fields: dict[str, Any]

  def __str__(self) -> str:
    return '\n'.join(self.lines)


def default_delta(population: int) -> float:
  """Returns the delta to use where none is given: 1 / (10 * population)."""
  checks.positive_int(population=population)
  return 0.1 / population


def build(
    rounds: Sequence[accounting.RoundGroup],
    *,
    delta: float,
    l2_norm_clip: Optional[float],
    unit: str = 'speaker',
    fixed_seeds: Sequence[str] = (),
    data_dependent: Sequence[str] = (),
    inherited: int = 0,
    adaptive_layers: int = 0,
    apart: Sequence[str] = (),
) -> Statement:
  """Builds the statement of the given rounds.

  Args:
    rounds: What was charged, as in `ledger.Contents`; at least one group, its
      count may be 0 (nothing released yet).
    delta: In (0, 1); should be at most 1 / population.
    l2_norm_clip: The clip C of a client's whole update; infinite without one.
      None: all rounds are of earlier runs, whose clip is not known here.
    unit: What one client is.
    fixed_seeds: Names of the keys that a seed fixed, such as 'NOISE_SEED'.
    data_dependent: Decisions of the run that looked at clients' data without
      noise, such as 'failed clients were left out'.
    inherited: How many of the rounds are of runs that this one started from.
    adaptive_layers: Number of layers whose clips adapt; if there are any, C is
      that of the next round.
    apart: Units of the seed model's other guarantees, for other data.

  Raises:
    ValueError: If an argument is out of range or `rounds` is empty.
  """
  if not rounds:
    raise ValueError('rounds must have at least one group, found none.')
  if l2_norm_clip is not None:
    checks.positive(l2_norm_clip=l2_norm_clip)
  accounting.check_delta(delta)
  # Noise needs a finite clip, so an unknown clip is finite if there is noise.
  clipped = l2_norm_clip is None or math.isfinite(l2_norm_clip)
  num_rounds = sum(group.count for group in rounds)
  noise_free = not clipped or any(
      group.count and group.noise_multiplier == 0 for group in rounds
  )
  by_rdp, by_pld, obstacle = _epsilons(
      rounds, delta=delta, bounded=not noise_free
  )
  epsilon = min(by_rdp, math.inf if by_pld is None else by_pld)
  reasons = why_not_private(
      rounds, clipped=clipped, epsilon=epsilon, fixed_seeds=fixed_seeds
  )
  scale = None
  if num_rounds and not noise_free:
    scale = calibration.smallest_scale(
        rounds, target_epsilon=MAX_USEFUL_EPSILON, delta=delta
    )
  if_secret = ', if the keys were secret' if fixed_seeds else ''
  relation = accounting.neighbouring(rounds)
  if not num_rounds:
    verdict = 'No round was released yet: nothing is spent.'
    if reasons:
      verdict += f' It will be NOT PRIVATE: {"; ".join(reasons)}.'
  elif reasons:
    verdict = f'NOT PRIVATE: {"; ".join(reasons)}.'
  else:
    verdict = f'({number(epsilon)}, {delta:g})-differential privacy.'
  population = max(group.sampling.population for group in rounds)
  warnings = []
  if delta > 1 / population:
    warnings.append(
        f'WARNING: delta {delta:g} is above 1 / population '
        f'({1 / population:.2g}): such a guarantee allows publishing one {unit}'
        ' outright. Lower delta.'
    )
  entries = [
      ('model', 'central differential privacy with a trusted server: the '
       'server sees the updates before noise is added; the guarantee is '
       'against those who see only the trained models'),
      ('unit', f'{unit}: {_UNITS.get(unit, "one client")}'),
      ('neighbours', _RELATIONS[relation].format(unit=unit)),
      ('public', 'the seed model'
       + (', but for what is charged of it' if inherited or apart else '')
       + f', the dev set, the number of {unit}s, all hyperparameters'),
      *(entry for group in rounds for entry in _round_entries(group, unit)),
      *_earlier_entries(inherited, num_rounds, apart),
      ('clip', _clip_words(l2_norm_clip, adaptive_layers)),
      ('delta', f'{delta:g}'),
      ('epsilon (RDP)', number(by_rdp) + if_secret),
      ('epsilon (PLD)', f'not computed: {obstacle}'
       if by_pld is None else number(by_pld) + if_secret),
      ('at larger scale', _scale_words(
          scale, rounds, unit=unit, noise_free=noise_free
      )),
      ('not counted', 'choosing hyperparameters by looking at private data, '
       'and other runs on the same data that this one did not start from, are '
       'not charged'),
      ('control', _control_words(data_dependent)),
      ('noise', 'drawn in float32: the guarantee is that of real-valued noise, '
       'not of its rounding'),
      ('metrics', 'per-round figures named not_private/... (loss, norms, '
       'counts) are exact in this simulation and not private; the guarantee is '
       'of the models'),
  ]
  lines = ['Privacy statement']
  for text in (verdict, *warnings):
    lines += textwrap.wrap(text, _WIDTH)
  for label, text in entries:
    lines += textwrap.wrap(
        text,
        _WIDTH,
        initial_indent='  ' + label.ljust(_LABEL_WIDTH),
        subsequent_indent=' ' * (_LABEL_WIDTH + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
  fields = {
      'private': not reasons,
      'verdict': verdict,
      'reasons': reasons,
      'warnings': warnings,
      'model': 'central, trusted server',
      'unit': unit,
      'neighbouring': relation.name.lower(),
      'rounds': num_rounds,
      'groups': [
          {
              **dataclasses.asdict(group.sampling),
              'sampling_probability': group.sampling.sampling_prob,
              'noise_multiplier': group.noise_multiplier,
              'rounds': group.count,
          }
          for group in rounds
      ],
      'l2_norm_clip': json_number(l2_norm_clip),
      'adaptive_layers': adaptive_layers,
      'delta': delta,
      'epsilon': json_number(epsilon),
      'epsilon_rdp': json_number(by_rdp),
      'epsilon_pld': json_number(by_pld),
      'fixed_seeds': list(fixed_seeds),
      'tuning_charged': False,
      'data_dependent_control': list(data_dependent),
      'inherited_rounds': inherited,
      'metrics_private': False,
      'scale_for_target_epsilon': scale and {
          'target_epsilon': MAX_USEFUL_EPSILON,
          **dataclasses.asdict(scale),
          'word_error_rate': 'assumed, not measured',
      },
  }
  return Statement(
      private=not reasons,
      reasons=tuple(reasons),
      epsilon=epsilon,
      lines=tuple(lines),
      fields=fields,
  )


def why_not_private(
    rounds: Sequence[accounting.RoundGroup],
    *,
    epsilon: float,
    clipped: bool = True,
    fixed_seeds: Sequence[str] = (),
) -> list[str]:
  """Returns why rounds of this epsilon are not private; empty if they are."""
  reasons = []
  if any(group.noise_multiplier == 0 for group in rounds):
    reasons.append('no noise is added, or not to all layers')
  if not clipped:
    reasons.append('updates are not clipped')
  if not reasons and epsilon > MAX_USEFUL_EPSILON:
    reasons.append(
        f'epsilon is {number(epsilon)}, above {MAX_USEFUL_EPSILON:g}'
    )
  for name in fixed_seeds:
    reasons.append(f'{name} fixes a key, so anyone can compute what it draws')
  return reasons


def number(value: float) -> str:
  """Epsilon for reading, rounded up in its third digit: never understated."""
  if value == 0 or math.isinf(value):
    return 'infinite' if value else '0'
  digit = 10.0 ** (math.floor(math.log10(value)) - 2)
  rounded = math.ceil(value / digit * (1 - 1e-12)) * digit
  return f'{rounded:.3g}'


def json_number(value: Optional[float]) -> float | str | None:
  """The number, or 'inf': JSON has no infinity."""
  return 'inf' if value is not None and math.isinf(value) else value


def _epsilons(
    rounds: Sequence[accounting.RoundGroup], *, delta: float, bounded: bool
) -> tuple[float, Optional[float], str]:
  """Epsilon by RDP and by PLD, and why there is none by PLD."""
  if not bounded:
    released = any(group.count for group in rounds)
    obstacle = 'without clip and noise there is no bound'
    return math.inf if released else 0.0, None, obstacle
  event = accounting.compose(rounds)
  by_rdp = accounting.epsilon(event, delta=delta)
  obstacle = accounting.pld_obstacle(event, delta=delta)
  if obstacle:
    return by_rdp, None, obstacle
  by_pld = accounting.epsilon(event, delta=delta, accountant='pld')
  return by_rdp, by_pld, ''


def _round_entries(
    group: accounting.RoundGroup, unit: str
) -> list[tuple[str, str]]:
  """Entries on the sampling and the noise of a group of rounds."""
  sampling = group.sampling
  drawn = _SAMPLING[sampling.kind].format(
      **dataclasses.asdict(sampling),
      prob=sampling.sampling_prob,
      rounds_per_pass=sampling.rounds_per_pass,
      unit=unit,
  )
  place = 'each node of the tree' if sampling.kind == 'pass' else 'the sum'
  on_mean = group.noise_multiplier / sampling.cohort_size
  return [
      ('rounds', f'{group.count:,}; {drawn}'),
      ('noise multiplier', f'{group.noise_multiplier:g} (on {place}, over the '
       f'clip; {on_mean:.3g} on the mean)'),
  ]


def _earlier_entries(
    inherited: int, num_rounds: int, apart: Sequence[str]
) -> list[tuple[str, str]]:
  """Entries on the cost of earlier runs, of this unit and of others."""
  entries = []
  if inherited:
    which = f'{inherited:,} of these rounds are'
    public = ''
    if inherited == num_rounds:
      which = 'all of these rounds are'
      public = '; data that came after them are taken to be public'
    entries.append((
        'counted before',
        f'{which} of the runs whose model this one started from{public}',
    ))
  if apart:
    entries.append((
        'stated apart',
        'the seed model was trained on other data, where each '
        f'{" and each ".join(apart)} is protected: the next statement. Neither '
        'holds for the data of the other, and they are not added up; whoever '
        'is in both has spent both',
    ))
  return entries


def _clip_words(l2_norm_clip: Optional[float], adaptive_layers: int) -> str:
  """The clip of updates, in words."""
  if l2_norm_clip is None:
    return 'that of the runs that are counted'
  if math.isinf(l2_norm_clip):
    return 'none'
  words = f'{l2_norm_clip:g} (L2 norm of a client\'s update)'
  if adaptive_layers:
    words += (
        f' after the last round; {adaptive_layers:,} clips follow a quantile '
        'of the norms, whose estimate is paid for by the noise multiplier'
    )
  return words


def _control_words(data_dependent: Sequence[str]) -> str:
  """The control of the run, in words."""
  if data_dependent:
    return (
        'NOT COVERED, because it looked at private data without noise: '
        + '; '.join(data_dependent)
    )
  return (
      'rounds, stopping, evaluation and learning rate follow the settings, '
      'the ledger and the released (noised) models only; a run that ended '
      'because too many clients failed shows that by its end'
  )


def _scale_words(
    scale: Optional[calibration.Scale],
    rounds: Sequence[accounting.RoundGroup],
    *,
    unit: str,
    noise_free: bool,
) -> str:
  """The smallest run with this noise on the mean that reaches the target."""
  if noise_free:
    return (
        f'without clip and noise no number of {unit}s gives epsilon '
        f'{MAX_USEFUL_EPSILON:g}'
    )
  if scale is None:
    return 'depends on the number of rounds; none was released yet'
  last = [group for group in rounds if group.count][-1]
  if scale.cohort_size == last.sampling.cohort_size:
    return f'this run is within epsilon {MAX_USEFUL_EPSILON:g} as it is'
  return (
      f'the same noise on the mean would give epsilon {MAX_USEFUL_EPSILON:g} '
      f'with {scale.cohort_size:,} of {scale.population:,} {unit}s a round '
      f'at the least (noise multiplier {scale.noise_multiplier:.4g}; WER '
      'assumed, not measured)'
  )
