"""The privacy statement of a run: what is guaranteed, to whom, against what.

It is built from the rounds that the ledger charged (or that a plan intends),
so that the guarantee that is printed is the guarantee of what ran, and it says
NOT PRIVATE in plain words where there is none worth the name.
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
from tff_asr.privacy import statement_words as words_lib

MAX_USEFUL_EPSILON = 10.0

_WIDTH = 80
_LABEL_WIDTH = 18


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
    target_epsilon: float = MAX_USEFUL_EPSILON,
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
      None: that of earlier runs, of which all rounds are.
    unit: What one client is.
    fixed_seeds: Names of the keys that a seed fixed, such as 'NOISE_SEED'.
    target_epsilon: The epsilon that the grown run beside it has to reach.
    data_dependent: What of the run's control looked at clients' data without
      noise, such as 'failed clients were left out'.
    inherited: How many of the rounds are of runs that this one started from.
    adaptive_layers: Layers whose clips adapt; then C is that of the round to
      come.
    apart: Units of other guarantees, of other data, that the seed model has.

  Raises:
    ValueError: If an argument is out of range or `rounds` is empty.
  """
  if not rounds:
    raise ValueError('rounds must have at least one group, found none.')
  checks.positive(target_epsilon=target_epsilon)
  if l2_norm_clip is not None:
    checks.positive(l2_norm_clip=l2_norm_clip)
  accounting.check_delta(delta)
  # Noise needs a finite clip, so an unknown one is finite where there is noise.
  clipped = l2_norm_clip is None or math.isfinite(l2_norm_clip)
  event = accounting.compose(rounds)
  num_rounds = sum(group.count for group in rounds)
  noise_free = not clipped or any(
      group.count and group.noise_multiplier == 0 for group in rounds
  )
  by_rdp, by_pld = math.inf, None
  obstacle = 'without clip and noise there is no bound'
  if not noise_free:
    by_rdp = accounting.epsilon(event, delta=delta)
    obstacle = accounting.pld_obstacle(event, delta=delta)
    if not obstacle:
      by_pld = accounting.epsilon(event, delta=delta, accountant='pld')
  elif not num_rounds:
    by_rdp = 0.0
  epsilon = by_rdp if by_pld is None else min(by_rdp, by_pld)
  reasons = why_not_private(
      rounds, clipped=clipped, epsilon=epsilon, fixed_seeds=fixed_seeds
  )
  population = max(group.sampling.population for group in rounds)
  scale, scale_words = _scale(
      rounds, target_epsilon=target_epsilon, delta=delta,
      noise_free=noise_free, unit=unit,
  )
  relation = accounting.neighbouring(rounds)
  if_secret = ', if the keys were secret' if fixed_seeds else ''

  entries = [
      ('model', 'central differential privacy with a trusted server: the '
       'server sees the updates before noise is added; what is stated here is '
       'of those who see only the trained models'),
      ('unit', f'{unit}: {words_lib.UNIT_WORDS.get(unit, "one client")}'),
      ('neighbours', words_lib.RELATION_WORDS[relation].format(unit=unit)),
      ('public', f'{words_lib.seed_words(inherited, apart)}, the dev set, the '
       f'number of {unit}s, all hyperparameters'),
      *words_lib.round_entries(rounds, unit=unit),
      *words_lib.inherited_entry(inherited, of=num_rounds),
      *words_lib.apart_entry(apart),
      ('clip', words_lib.clip_words(l2_norm_clip, adaptive_layers)),
      ('delta', f'{delta:g}'),
      ('epsilon (RDP)', number(by_rdp) + if_secret),
      ('epsilon (PLD)', f'not computed: {obstacle}'
       if by_pld is None else number(by_pld) + if_secret),
      ('at larger scale', scale_words),
      ('not counted', 'choosing hyperparameters by looking at private data, '
       'and other runs on the same data that this one did not start from, are '
       'not charged'),
      ('control', words_lib.control_words(data_dependent)),
      ('noise', 'drawn in float32: the guarantee is that of real-valued noise, '
       'not of its rounding'),
      ('metrics', 'per-round figures named not_private/... (loss, norms, '
       'counts) are exact in this simulation and not private; the guarantee is '
       'of the models'),
  ]
  notes = []
  if delta > 1 / population:
    notes.append(
        f'WARNING: delta {delta:g} is above 1 / population '
        f'({1 / population:.2g}): it would allow to publish one {unit} '
        'outright. Lower delta.'
    )
  if not num_rounds:
    verdict = 'No round was released yet: nothing is spent.'
  elif reasons:
    verdict = 'NOT PRIVATE: ' + '; '.join(reasons) + '.'
  else:
    verdict = f'({number(epsilon)}, {delta:g})-differential privacy.'
  if reasons and not num_rounds:
    verdict += ' It will be NOT PRIVATE: ' + '; '.join(reasons) + '.'
  lines = ['Privacy statement', *textwrap.wrap(verdict, _WIDTH)]
  for note in notes:
    lines.extend(textwrap.wrap(note, _WIDTH))
  for label, text in entries:
    lines.extend(_entry(label, text))
  fields = {
      'private': not reasons,
      'verdict': verdict,
      'reasons': list(reasons),
      'warnings': notes,
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
      'l2_norm_clip': (
          None if l2_norm_clip is None else json_number(l2_norm_clip)
      ),
      'adaptive_layers': adaptive_layers,
      'delta': delta,
      'epsilon': json_number(epsilon),
      'epsilon_rdp': json_number(by_rdp),
      'epsilon_pld': None if by_pld is None else json_number(by_pld),
      'fixed_seeds': list(fixed_seeds),
      'tuning_charged': False,
      'data_dependent_control': list(data_dependent),
      'inherited_rounds': inherited,
      'metrics_private': False,
      'scale_for_target_epsilon': scale,
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


def _scale(
    rounds: Sequence[accounting.RoundGroup],
    *,
    target_epsilon: float,
    delta: float,
    noise_free: bool,
    unit: str,
) -> tuple[dict[str, Any] | None, str]:
  """The smallest run with this noise on the mean that reaches the target."""
  if noise_free:
    return None, (
        f'without clip and noise no number of {unit}s gives epsilon '
        f'{target_epsilon:g}'
    )
  if not any(group.count for group in rounds):
    return None, 'depends on the number of rounds; none was released yet'
  found = calibration.smallest_scale(
      rounds, target_epsilon=target_epsilon, delta=delta
  )
  sampling = rounds[-1].sampling
  if found.cohort_size == sampling.cohort_size:
    words = f'this run is within epsilon {target_epsilon:g} as it is'
  else:
    words = (
        f'the same noise on the mean would give epsilon {target_epsilon:g} '
        f'with {found.cohort_size:,} of {found.population:,} {unit}s a round '
        f'at the least (noise multiplier {found.noise_multiplier:.4g}; WER '
        'assumed, not measured)'
    )
  return {
      'target_epsilon': target_epsilon, **dataclasses.asdict(found),
      'word_error_rate': 'assumed, not measured',
  }, words


def _entry(label: str, text: str) -> list[str]:
  """A label and its text, wrapped beside it."""
  return textwrap.wrap(
      text,
      _WIDTH,
      initial_indent='  ' + label.ljust(_LABEL_WIDTH),
      subsequent_indent=' ' * (_LABEL_WIDTH + 2),
      break_long_words=False,
      break_on_hyphens=False,
  )


def number(value: float) -> str:
  """Epsilon for reading, rounded up in its third digit: never understated."""
  if value == 0 or math.isinf(value):
    return 'infinite' if value else '0'
  digit = 10.0 ** (math.floor(math.log10(value)) - 2)
  rounded = math.ceil(value / digit * (1 - 1e-12)) * digit
  return f'{rounded:.3g}'


def json_number(value: float) -> float | str:
  """JSON has no infinity."""
  return 'inf' if math.isinf(value) else value
