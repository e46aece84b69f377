"""The words of a privacy statement, of rounds, clips, and what is public."""

from collections.abc import Sequence
import math
from typing import Optional

import dp_accounting

from tff_asr.privacy import accounting

RELATION_WORDS = {
    dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE: (
        'add or remove one {unit}'
    ),
    dp_accounting.NeighboringRelation.REPLACE_ONE: (
        'replace one {unit} by another (the noise is weighed against a change '
        'of twice the clip)'
    ),
    dp_accounting.NeighboringRelation.REPLACE_SPECIAL: (
        'replace one {unit} by nobody, whose update is zeros and who keeps the '
        'place in the pass'
    ),
}
UNIT_WORDS = {
    'speaker': 'all recordings of one client',
    'example': 'one recording; a speaker with several of them is protected '
    'less, and the server sees all recordings',
}
_SAMPLING_WORDS = {
    'poisson': (
        'Poisson: each of {population:,} {unit}s joins a round on its own with '
        'probability {prob:.4g}, {cohort_size:,} expected'
    ),
    'fixed': (
        'fixed size: {cohort_size:,} of {population:,} {unit}s a round, drawn '
        'without replacement'
    ),
    'full': 'everyone: all {population:,} {unit}s in each round',
    'pass': (
        'shuffled passes over {population:,} {unit}s, the next {cohort_size:,} '
        'a round; each {unit} once in a tree of {rounds_per_pass:,} rounds at '
        'most, no assumption about sampling (DP-FTRL)'
    ),
}
_NOISE_PLACES = {
    'poisson': 'on the sum',
    'fixed': 'on the sum',
    'full': 'on the sum',
    'pass': 'on each node of the tree',
}


def seed_words(inherited: int, apart: Sequence[str]) -> str:
  """What of the seed model is taken to be public."""
  if inherited or apart:
    return 'the seed model, but for what is charged of it'
  return 'the seed model'


def apart_entry(apart: Sequence[str]) -> list[tuple[str, str]]:
  """Says that the seed model has guarantees of other units."""
  if not apart:
    return []
  others = ' and each '.join(apart)
  return [(
      'stated apart',
      f'the seed model was trained on other data, where each {others} is '
      'protected: the next statement. Neither holds for the data of the '
      'other, and they are not added up; whoever is in both has spent both',
  )]


def inherited_entry(inherited: int, *, of: int) -> list[tuple[str, str]]:
  """Says that rounds of earlier runs are counted."""
  if not inherited:
    return []
  if inherited == of:
    return [(
        'counted before',
        'all of these rounds, which are of the runs whose model this one '
        'started from; data that came after them are taken to be public',
    )]
  return [(
      'counted before',
      f'{inherited:,} of these rounds are of the runs whose model this one '
      'started from',
  )]


def clip_words(l2_norm_clip: Optional[float], adaptive_layers: int) -> str:
  """How updates are clipped."""
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


def control_words(data_dependent: Sequence[str]) -> str:
  """What decided how the run went on."""
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


def round_entries(
    rounds: Sequence[accounting.RoundGroup], *, unit: str
) -> list[tuple[str, str]]:
  """One pair of entries for each group of rounds."""
  entries = []
  for group in rounds:
    sampling = group.sampling
    words = _SAMPLING_WORDS[sampling.kind].format(
        population=sampling.population,
        cohort_size=sampling.cohort_size,
        prob=sampling.sampling_prob,
        rounds_per_pass=sampling.rounds_per_pass,
        unit=unit,
    )
    on_mean = group.noise_multiplier / sampling.cohort_size
    entries.append(('rounds', f'{group.count:,}; {words}'))
    entries.append((
        'noise multiplier',
        f'{group.noise_multiplier:g} ({_NOISE_PLACES[sampling.kind]}, over the '
        f'clip; {on_mean:.3g} on the mean)',
    ))
  return entries
