"""Privacy statement of a run: what is guaranteed, to whom, against what.

It is built from the rounds that the ledger charged (or that a plan intends), so
it states what ran. If no guarantee is worth the name, it says NOT PRIVATE, and
why.
"""

import collections
from collections.abc import Iterable, Sequence
import dataclasses
import math
import textwrap
from typing import Any, Optional

import dp_accounting

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import calibration
from tff_asr.privacy import ledger

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
        'places in cohorts'
    ),
}
_UNITS = {
    'speaker': 'all recordings of one client; a person who is there under two '
    'ids has twice the privacy loss',
    'example': 'one recording; a speaker with several of them is protected '
    'less, and the server sees all recordings',
}
_SAMPLING = {
    'poisson': (
        'Poisson: each of {population:,} {unit}s joins a round independently '
        'with probability {prob:.4g}, {cohort_size:,} expected'
    ),
    'fixed_size': (
        'fixed size: {cohort_size:,} of {population:,} {unit}s a round, drawn '
        'without replacement'
    ),
    'full': 'everyone: all {population:,} {unit}s in each round',
    'min_sep': (
        '{cohort_size:,} of {population:,} {unit}s a round, each {unit} at '
        'most once in any {min_sep:,} rounds in a row, {most} times in '
        'all; nothing else is assumed about sampling'
    ),
    'cyclic': (
        'cyclic Poisson: in every {min_sep:,}th round, {most} times in '
        'all, each of {population:,} {unit}s joins independently with '
        'probability {prob:.4g}, {cohort_size:,} expected'
    ),
}

# What of a run's control looks at private data without noise.
_UNCOVERED_CONTROL = (
    'a run ends when more clients of a round fail than may '
    '(MAX_FAILED_SHARE), one hangs (CLIENT_TIMEOUT_SEC) or lacks memory, or a '
    'recording of pre-training cannot be read; it does not begin when a '
    'private transcript has a character that is no token, private utterances '
    'are too long on average, a private speaker is in the public data, or a '
    'private recording of pre-training is there twice'
)
# The same where devices add the noise.
_UNCOVERED_DROP_OUT = (
    'a device that drops out brings no noise, which the variance of what is '
    'released tells: whether one does must not depend on its data'
)
# What the number of rounds must not follow: epsilon is of so many.
_SETTLED = (
    'the number of rounds was settled before the first, by NUM_ROUNDS, '
    'NUM_STEPS or TARGET_EPSILON; of a run that was ended or prolonged by how '
    'its models looked epsilon says too little'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
  """A privacy statement.

  Attributes:
    private: False if the statement says NOT PRIVATE.
    reasons: Why it is not private; empty if it is.
    epsilon: The smallest bound on epsilon that the accountants gave; infinite
      if it is void.
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


def delta_or_default(
    delta: Optional[float], rounds: Iterable[accounting.RoundGroup]
) -> float:
  """Returns delta; where none is given, 1 / (10 * population).

  Args:
    delta: In (0, 1), or None.
    rounds: At least one group; the largest population counts.
  """
  return 0.1 / _population(rounds) if delta is None else delta


def build(
    rounds: Sequence[accounting.RoundGroup],
    *,
    delta: Optional[float],
    l2_norm_clip: Optional[float],
    unit: str = 'speaker',
    invalidations: Sequence[str] = (),
    inherited: int = 0,
    adaptive_layers: int = 0,
    apart: Sequence[str] = (),
    notes: Sequence[ledger.Note] = (),
    inputs: Sequence[str] = (),
    public: str = '',
    tokens: str = '',
) -> Statement:
  """Builds the statement of the given rounds.

  Args:
    rounds: What was charged, as in `ledger.Contents`; at least one group, its
      count may be 0 (nothing released yet).
    delta: In (0, 1), or None (`delta_or_default`); at 1 / population or above
      nothing is private.
    l2_norm_clip: The clip C of a client's whole update; infinite without one.
      None: all rounds are of earlier runs, whose clip is not known here.
    unit: What one client is.
    invalidations: Reasons, as sentences without a full stop, for which no
      guarantee holds whatever was charged.
    inherited: How many of the rounds are of runs that this one started from.
    adaptive_layers: Number of layers whose clips adapt; if there are any, C is
      that of the next round.
    apart: Units of the seed model's other guarantees, for other data.
    notes: What the ledger says that the rounds do not tell.
    inputs: What training also takes to be public, such as 'the dev set'.
    public: What a check of the data that are called public found, as a part of
      a sentence; empty if there was none.
    tokens: Where the characters or sentence pieces that the model writes come
      from, as a part of a sentence; empty for a model that writes none.

  Raises:
    ValueError: If an argument is out of range or `rounds` is empty.
  """
  if not rounds:
    raise ValueError('rounds must have at least one group, found none.')
  if l2_norm_clip is not None:
    checks.positive(l2_norm_clip=l2_norm_clip)
  delta = delta_or_default(delta, rounds)
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
      rounds, clipped=clipped, epsilon=epsilon, delta=delta,
      invalidations=invalidations,
  )
  if invalidations:
    epsilon = math.inf
  scale = None
  if num_rounds and not noise_free:
    scale = calibration.smallest_scale(
        rounds, target_epsilon=MAX_USEFUL_EPSILON, delta=delta
    )
  secure = _secure_rounds(rounds)
  uncovered = [_UNCOVERED_CONTROL, *([_UNCOVERED_DROP_OUT] if secure else [])]
  if_valid = ', if that were not so' if invalidations else ''
  relation = accounting.neighbouring(rounds)
  if not num_rounds:
    verdict = 'No round was released yet: nothing is spent.'
    if reasons:
      verdict += f' It will be NOT PRIVATE: {"; ".join(reasons)}.'
  elif reasons:
    verdict = f'NOT PRIVATE: {"; ".join(reasons)}.'
  else:
    verdict = f'({number(epsilon)}, {delta:g})-differential privacy.'
  warnings = note_words(notes)
  sampler_epsilon = sum(group.count * group.sampler_epsilon for group in rounds)
  exact_metrics = any(note.what == 'exact_metrics' for note in notes)
  entries = [
      ('model', _model_words(rounds)),
      ('unit', f'{unit}: {_UNITS.get(unit, "one client")}'),
      ('neighbours', _RELATIONS[relation].format(unit=unit)),
      ('public', ', '.join(
          [*inputs, f'the number of {unit}s', 'all hyperparameters']
      ) + (', but for what is charged of earlier runs'
           if inherited or apart else '')
       + (f'; {public}' if public else '')),
      *([('tokens', tokens)] if tokens else []),
      *(entry for group in rounds for entry in _round_entries(group, unit)),
      *_earlier_entries(inherited, num_rounds, apart),
      ('clip', _clip_words(l2_norm_clip, adaptive_layers, unit=unit)),
      ('delta', f'{delta:g}'),
      ('epsilon (RDP)', number(by_rdp) + if_valid),
      ('epsilon (PLD)', f'not computed: {obstacle}'
       if by_pld is None else number(by_pld) + if_valid),
      ('accuracy', 'epsilons are upper bounds up to rounding in float64, '
       f'which is less than {accounting.EPSILON_ERROR:g} (measured)'),
      ('at larger scale', _scale_words(
          scale, rounds, unit=unit, noise_free=noise_free
      ) + if_valid),
      ('assumed', _SETTLED),
      ('not counted', 'choosing hyperparameters by looking at private data, '
       'and other runs on the same data that this one did not start from, '
       'are not charged'),
      ('control', 'rounds, stopping, evaluation and learning rate follow the '
       'settings, the ledger and the released (noised) models only. NOT '
       f'COVERED: {"; ".join(uncovered)}'),
      ('noise', 'none, or not in all rounds' if noise_free else
       'whole steps of a public grid, as are the sums, so that no rounding '
       'tells more; drawn by ChaCha20 under a key of 256 bits; that it is '
       + ('a sum of discrete Gaussians' if secure
          else 'computed with some 28 digits') + ' adds at most '
       f'{sampler_epsilon:.1g} to epsilon, which is counted'),
      ('metrics', 'those named not_private/... (losses, norms, counts, times) '
       'are exact and NOT COVERED; they were shown'
       if exact_metrics else 'only such as follow from the settings, the '
       'ledger and the released models were shown'),
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
      'model': 'distributed, secure sums (simulated)' if secure
      else 'central, trusted server',
      'unit': unit,
      'neighbouring': relation.name.lower(),
      'rounds': num_rounds,
      'groups': [
          {
              **group.sampling.fields,
              'sampling_probability': group.sampling.sampling_prob,
              'noise_multiplier': group.noise_multiplier,
              'rounds': group.count,
              **({} if group.sampling.min_sep is None else {
                  'sensitivity': group.sensitivity,
              }),
              **({} if group.secure_sum is None else {
                  'secure_sum': dataclasses.asdict(group.secure_sum),
              }),
          }
          for group in rounds
      ],
      'l2_norm_clip': json_number(l2_norm_clip),
      'adaptive_layers': adaptive_layers,
      'delta': delta,
      'epsilon': json_number(epsilon),
      'epsilon_rdp': json_number(by_rdp),
      'epsilon_pld': json_number(by_pld),
      'invalidations': list(invalidations),
      'inputs': list(inputs),
      'public': public,
      'tokens': tokens,
      'data_dependent_control': uncovered,
      'assumed': [_SETTLED],
      'inherited_rounds': inherited,
      'exact_metrics_shown': exact_metrics,
      'sampler_epsilon': sampler_epsilon,
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
    delta: float,
    clipped: bool = True,
    invalidations: Sequence[str] = (),
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
  if too_large := large_delta(delta, rounds):
    reasons.append(too_large)
  return [*reasons, *invalidations]


def large_delta(
    delta: float, rounds: Iterable[accounting.RoundGroup]
) -> str:
  """Returns why a delta is worth nothing for these rounds; empty if it is.

  A mechanism that publishes all data of one client, drawn at random from the
  population, is (0, 1 / population)-private.
  """
  limit = 1 / _population(rounds)
  if delta < limit:
    return ''
  return (
      f'delta is {delta:g}, not below 1 / population ({limit:.2g}): to publish '
      'all data of one client drawn at random would keep that promise'
  )


def note_words(notes: Sequence[ledger.Note]) -> list[str]:
  """Returns what the notes of a ledger mean for a reader, a sentence each."""
  words = []
  before = collections.defaultdict(list)  # Charged rounds, by kind.
  for note in notes:
    before[note.what].append(note.rounds_before)
  if copied := before['copied']:
    words.append(
        'WARNING: the run folder is a copy or was restored (noticed after '
        f'{" and ".join(f"{count:,}" for count in copied)} charged rounds). '
        'Rounds that went on elsewhere, or that a backup undid, are not '
        'counted here.'
    )
  if exact := before['exact_metrics']:
    words.append(
        'WARNING: exact metrics of training were shown (EXACT_METRICS, from '
        f'round {exact[0] + 1:,} of the ledger on). Nothing covers them: keep '
        'them to yourself.'
    )
  if changed := before['length_changed']:
    words.append(
        'WARNING: where the run ends (NUM_ROUNDS, NUM_STEPS, TARGET_EPSILON) '
        f'was set anew, first after {changed[0]:,} charged rounds. If that '
        'followed how its models looked, epsilon says too little.'
    )
  return words


def number(value: float) -> str:
  """Epsilon for reading, rounded up in its third digit: never understated."""
  if value == 0 or math.isinf(value):
    return 'infinite' if value else '0'
  # At least 1e-307, as a smaller one would be 0.
  digit = 10.0 ** max(-307, math.floor(math.log10(value)) - 2)
  rounded = math.ceil(value / digit * (1 - 1e-12)) * digit
  return f'{rounded:.3g}'


def json_number(value: Optional[float]) -> float | str | None:
  """The number, or 'inf': JSON has no infinity."""
  return 'inf' if value is not None and math.isinf(value) else value


def _population(rounds: Iterable[accounting.RoundGroup]) -> int:
  """The largest population of the rounds."""
  return max(group.sampling.population for group in rounds)


def _epsilons(
    rounds: Sequence[accounting.RoundGroup],
    *,
    delta: float,
    bounded: bool,
) -> tuple[float, Optional[float], str]:
  """Epsilon by RDP and by PLD, and why there is none by PLD."""
  if not bounded:
    released = any(group.count for group in rounds)
    obstacle = 'without clip and noise there is no bound'
    return math.inf if released else 0.0, None, obstacle
  event = accounting.compose(rounds)
  return (
      accounting.epsilon(event, delta=delta),
      *accounting.epsilon_by_pld(event, delta=delta),
  )


def _secure_rounds(
    rounds: Sequence[accounting.RoundGroup],
) -> list[accounting.RoundGroup]:
  """The groups whose noise clients added."""
  return [group for group in rounds if group.secure_sum is not None]


def _model_words(rounds: Sequence[accounting.RoundGroup]) -> str:
  """Who sees what, and against whom the guarantee is."""
  trusted = (
      'the server sees the updates before noise is added; the guarantee is '
      'against those who see only the trained models'
  )
  secure = _secure_rounds(rounds)
  if not secure:
    return f'central differential privacy with a trusted server: {trusted}'
  bits = max(group.secure_sum.bits for group in secure)
  words = (
      'distributed differential privacy: each device clips its update and adds '
      'a share of the noise; the server sees who takes part, who drops out '
      f'and, of the updates, their noised sum alone, {bits} bits an element, '
      'by a secure protocol; noise of devices that collude with it does not '
      'count. '
      'SIMULATED: here one process has all updates and draws all noise. '
  )
  if any(group.sampling.kind == 'fixed_size' for group in secure):
    words += (
        'The guarantee is against those who see only the trained models: the '
        'server knows whom sampling took'
    )
  else:
    words += 'The guarantee is against the server, too'
  if any(group.secure_sum is None and group.count for group in rounds):
    words += f'. In other rounds, {trusted}'
  return words


def _round_entries(
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
  on_mean = group.noise_multiplier / sampling.cohort_size
  words = (
      f'{group.noise_multiplier:g} (on the sum, over the clip; {on_mean:.3g} '
      'on the mean)'
  )
  if group.strategy is not None:
    words += (
        f', before later rounds take back a part of it '
        f'({"banded" if group.strategy.num_bands else "BLT"}, '
        f'{group.strategy.num_buffers} buffers). Until the run has ended, the '
        "server's file of buffers (secrets.safetensors) is as sensitive as the "
        'updates: with what was released it tells sums of earlier rounds '
        'without noise.'
        f' One {unit} '
        f'moves all rounds together by {group.sensitivity:.4g} clips'
        + (' each time it joins' if sampling.kind == 'cyclic' else '')
    )
  if group.secure_sum is not None:
    words += (
        f', of the noise of {group.secure_sum.min_clients:,} of '
        f'{group.secure_sum.num_clients:,} devices; the others may drop out, '
        'and add to it if they do not'
    )
  return [('rounds', f'{group.count:,}; {drawn}'), ('noise multiplier', words)]


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


def _clip_words(
    l2_norm_clip: Optional[float], adaptive_layers: int, *, unit: str
) -> str:
  """The clip, in words."""
  if l2_norm_clip is None:
    return 'that of the runs that are counted'
  if math.isinf(l2_norm_clip):
    return 'none'
  words = f'{l2_norm_clip:g} (L2 norm of what one {unit} adds to a sum)'
  if adaptive_layers:
    words += (
        f' after the last round; {adaptive_layers:,} clips follow a quantile '
        'of the norms, whose estimate is paid for by the noise multiplier'
    )
  return words


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
