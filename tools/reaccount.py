"""Epsilon of a privacy ledger by any dp-accounting, without TensorFlow.

    python3 -m venv accounting && accounting/bin/pip install dp-accounting
    accounting/bin/python tools/reaccount.py runs/private/ledger.jsonl
    accounting/bin/python tools/reaccount.py LEDGER --delta=1e-6

This file needs nothing else of the project, and runs on any Python that dp-
accounting does. It reads the ledger's lines (`tff_asr/privacy/ledger.py`),
checks their chain of hashes, composes the events of the charged rounds, and
prints epsilon by RDP, and by PLD where it can be had. So a ledger outlives the
versions that its run was pinned to; a later accountant may give a smaller
bound.

Each ledger's cost is one line of JSON. It does not know the run's saved state:
lines cut off at the ledger's end, and what a witness would tell, are found by
`tff-asr compute_epsilon --run`.
"""

import collections
import hashlib
import json
import math
import operator
import os
import sys
from typing import Any

from absl import app
from absl import flags
import dp_accounting
from dp_accounting import pld
from dp_accounting import rdp

_DELTA = flags.DEFINE_float('delta', None, 'By default 1 / (10 population).')

_FORMAT_VERSION = 3
# Below this noise accountants lose all digits, and above this epsilon PLD may
# not end.
_MIN_NOISE = 1e-8
_MIN_PLD_NOISE = 0.1
_MAX_PLD_EPSILON = 100.0
_Relation = dp_accounting.NeighboringRelation
_RELATIONS = {
    'poisson': _Relation.ADD_OR_REMOVE_ONE,
    'fixed': _Relation.REPLACE_ONE,
    'full': _Relation.ADD_OR_REMOVE_ONE,
    'separated': _Relation.REPLACE_SPECIAL,
    'cyclic': _Relation.REPLACE_SPECIAL,
}


class LedgerError(ValueError):
  """A file that is no whole ledger."""


_SEPARATED = {'separated', 'cyclic'}


def read(path: str) -> list[dict[str, Any]]:
  """The lines of a ledger, the header first, after checking their hashes.

  Raises:
    LedgerError: A line does not follow from the one before it, or the file is
      no ledger of this format.
  """
  lines, previous = [], ''
  with open(path, 'rb') as file:
    # What stands after the last newline was cut short, and does not count.
    raws = file.read().split(b'\n')[:-1]
  for number, raw in enumerate(raws, start=1):
    try:
      line = json.loads(raw)
      bare = {name: value for name, value in line.items() if name != 'hash'}
      text = json.dumps(bare, sort_keys=True, allow_nan=False) + '\n'
      digest = hashlib.sha256(text.encode()).hexdigest()
      is_next = (line['previous'], line['hash']) == (previous, digest)
    except (ValueError, KeyError, TypeError, AttributeError):
      is_next = False
    if not is_next:
      raise LedgerError(f'{path}: line {number} was changed.')
    previous = line['hash']
    lines.append(line)
  if not lines or lines[0].get('kind') != 'header':
    raise LedgerError(f'{path} is not a privacy ledger: it has no header.')
  version = lines[0].get('format_version')
  if version != _FORMAT_VERSION:
    raise LedgerError(
        f'{path} has format version {version!r}, not {_FORMAT_VERSION}.'
    )
  return lines


def compose(
    lines: list[dict[str, Any]],
) -> tuple[dp_accounting.DpEvent, _Relation, float, int]:
  """The event of all rounds, their relation, sampler's error and population.

  Raises:
    LedgerError: Rounds whose samplings have no relation in common.
  """
  counts = collections.Counter()
  mechanisms = []  # Of correlated noise: [key, rounds]; the last may be open.
  is_open, error, population = False, 0.0, 0
  kinds = set()
  for line in lines[1:]:
    if line['kind'] != 'round':
      continue
    event = line['event']
    sampling = tuple(
        event['sampling'][name]
        for name in ('kind', 'cohort_size', 'population')
    )
    noise = _combined(event['noise_multipliers'])
    key = sampling, noise, event['sampler_epsilon']
    kinds.add(sampling[0])
    population = max(population, sampling[2])
    if sampling[0] not in _SEPARATED:
      counts[key] += 1
      is_open = False
      continue
    # It goes on while rounds follow each other; else another one is charged
    # from round 0 on.
    strategy = event['strategy']
    key = (
        *key, event['sampling']['min_separation'],
        tuple(strategy['scales']), tuple(strategy['decays']),
    )
    if not (is_open and mechanisms[-1] == [key, line['round_num']]):
      mechanisms.append([key, 0])
    mechanisms[-1][1] = line['round_num'] + 1
    is_open = True
  others = kinds - {'full'} or kinds
  relations = {_RELATIONS[kind] for kind in others}
  if len(relations) > 1 or ('full' in kinds and kinds & _SEPARATED):
    raise LedgerError(f'rounds of {sorted(kinds)} sampling cannot be composed.')
  relation = _RELATIONS[others.pop()] if others else _RELATIONS['poisson']
  events = []
  for (sampling, noise, sampler_epsilon), count in counts.items():
    error += count * sampler_epsilon
    events += _events(sampling, noise, count, relation)
  for (how, noise, sampler_epsilon, separation, *strategy), count in mechanisms:
    error += count * sampler_epsilon
    if noise < _MIN_NOISE:
      events.append(dp_accounting.NonPrivateDpEvent())
      continue
    kind, cohort_size, size = how
    apart = count if kind == 'cyclic' else separation
    event = dp_accounting.GaussianDpEvent(
        noise / _sensitivity(count, apart, *strategy)
    )
    if kind == 'cyclic':
      event = dp_accounting.SelfComposedDpEvent(
          dp_accounting.PoissonSampledDpEvent(
              separation * cohort_size / size, event
          ),
          -(-count // separation),
      )
    events.append(event)
  return dp_accounting.ComposedDpEvent(events), relation, error, population


def _sensitivity(
    num_rounds: int,
    separation: int,
    scales: tuple[int, ...],
    decays: tuple[int, ...],
) -> float:
  """Norm of the sum of the strategy's columns 0, b, 2 b, ... (2405.13763)."""
  if not decays:  # Banded.
    column = [1.0, *(scale / 2**30 for scale in scales)]
    column = (column + [0.0] * num_rounds)[:num_rounds]
    for place in range(separation, num_rounds):
      column[place] += column[place - separation]
    return math.sqrt(sum(value**2 for value in column))
  column = [1.0]
  powers = [1.0] * len(scales)
  for _ in range(num_rounds - 1):
    column.append(sum(map(operator.mul, scales, powers)) / 2**30)
    powers = [p * decay / 2**30 for p, decay in zip(powers, decays)]
  for place in range(separation, num_rounds):
    column[place] += column[place - separation]
  return math.sqrt(sum(value**2 for value in column))


def _combined(multipliers: list[float]) -> float:
  """The noise multiplier of several Gaussians on one cohort."""
  if min(multipliers) <= 0:
    return 0.0
  return 1 / math.sqrt(sum(z**-2 for z in multipliers))


def _events(
    sampling: tuple[str, int, int],
    noise: float,
    count: int,
    relation: _Relation,
) -> list[dp_accounting.DpEvent]:
  """The events of equal rounds."""
  kind, cohort_size, population = sampling
  if noise < _MIN_NOISE:
    return [dp_accounting.NonPrivateDpEvent()]
  repeated = dp_accounting.SelfComposedDpEvent
  # A client that is replaced moves the sum by up to two clips.
  sensitivity = 2 if relation is _Relation.REPLACE_ONE else 1
  gaussian = dp_accounting.GaussianDpEvent(noise / sensitivity)
  if kind == 'fixed':
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        population, cohort_size, gaussian
    )
  elif kind == 'poisson':
    event = dp_accounting.PoissonSampledDpEvent(
        cohort_size / population, gaussian
    )
  else:
    event = gaussian
  return [repeated(event, count)]


def account(path: str, delta: float | None = None) -> dict[str, Any]:
  """What a ledger charges, as a dict for JSON.

  Args:
    path: The ledger.
    delta: In (0, 1); None: 1 / (10 population).

  Raises:
    LedgerError: The file is no whole ledger.
  """
  lines = read(path)
  header = lines[0]
  event, named, error, population = compose(lines)
  # To send zeros is to be absent, for a Gaussian with given cohorts or with
  # coins; accountants take sampled ones under one name only.
  relation = named
  if named is _Relation.REPLACE_SPECIAL:
    relation = _Relation.ADD_OR_REMOVE_ONE
  delta = delta if delta is not None else 1 / (10 * max(1, population))
  result = {
      'ledger': path,
      'unit': header['unit'],
      'rounds': sum(line['kind'] == 'round' for line in lines[1:]),
      'relation': named.name,
      'delta': delta,
      'rdp_epsilon': 0.0,
      'pld_epsilon': None,
      'not_private': header['voids'],
  }
  if event.events:
    epsilon = rdp.RdpAccountant(neighboring_relation=relation).compose(
        event
    ).get_epsilon(delta)
    result['rdp_epsilon'] = float(epsilon) + error
    accountant = pld.PLDAccountant(relation)
    if epsilon <= _MAX_PLD_EPSILON and accountant.supports(event) and (
        _least_noise(event) >= _MIN_PLD_NOISE
    ):
      result['pld_epsilon'] = (
          float(accountant.compose(event).get_epsilon(delta)) + error
      )
  return result


def _least_noise(event: Any) -> float:
  """The smallest noise multiplier in a composition."""
  inner = getattr(event, 'events', None) or [getattr(event, 'event', None)]
  noises = [_least_noise(each) for each in inner if each is not None]
  return min([getattr(event, 'noise_multiplier', math.inf), *noises])


def main(argv: list[str]) -> None:
  if len(argv) < 2:
    sys.exit('error: no LEDGER was given; see --help.')
  try:
    for path in argv[1:]:
      path = os.path.join(path, 'ledger.jsonl') if os.path.isdir(path) else path
      print(json.dumps(account(path, _DELTA.value)))
  except (OSError, LedgerError) as error:
    sys.exit(f'error: {error}')


if __name__ == '__main__':
  app.run(main)
