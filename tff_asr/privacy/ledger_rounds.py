"""The rounds of a privacy ledger: their identity, their lines, their cost."""

import collections
from collections.abc import Sequence
import dataclasses
import hashlib
import json
import re
from typing import Any

import numpy as np

from tff_asr import checks
from tff_asr.privacy import accounting
from tff_asr.privacy import hash_chain
from tff_asr.privacy import keys
from tff_asr.privacy import noise as noise_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
  """One round, as it is charged.

  Attributes:
    round_num: The run's number of the round.
    sampling: How its cohort was drawn.
    noise_multipliers: One for each Gaussian that the round added to sums over
      its cohort; together they cost as `noise.combine_gaussians` says.
    configuration: Digest of the configuration.
    identity: Digest by `round_identity`.
    result: Digest of the model that the round released; '' if not known.
  """

  round_num: int
  sampling: accounting.Sampling
  noise_multipliers: tuple[float, ...]
  configuration: str
  identity: str
  result: str = ''

  def __post_init__(self):
    checks.non_negative_int(round_num=self.round_num)
    noise_lib.combine_gaussians(self.noise_multipliers)
    if not isinstance(self.configuration, str):
      raise ValueError(
          f'configuration must be a string, found {self.configuration!r}.'
      )
    if self.result and not _is_digest(self.result):
      raise ValueError(f'result must be a digest, found {self.result!r}.')
    if not _is_digest(self.identity):
      raise ValueError(
          'identity must be a digest by round_identity, found '
          f'{self.identity!r}.'
      )


def round_identity(
    *,
    noise_key: np.ndarray,
    noise_counter: int,
    sampler_key: np.ndarray,
    round_num: int,
    configuration: str,
    state_digest: str = '',
) -> str:
  """Returns the digest of everything that decides a round's noisy sum.

  Args:
    noise_key: The noise's 128-bit key, int32 [4].
    noise_counter: The noise's counter in this round, at least 0.
    sampler_key: The cohort sampler's key, int32 [4].
    round_num: The sampler's round number, at least 0.
    configuration: Digest of the configuration.
    state_digest: Digest of the server state that clients and noise depend on.
  """
  checks.non_negative_int(noise_counter=noise_counter, round_num=round_num)
  parts = [
      keys.to_bytes(noise_key).hex(), noise_counter,
      keys.to_bytes(sampler_key).hex(), round_num, configuration, state_digest,
  ]
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def to_line(charged: Round, *, after: int, hash_: str) -> hash_chain.Line:
  """Returns the line of a round after `after` rounds and the hash `hash_`."""
  return hash_chain.seal({
      'kind': 'round',
      'index': after,
      'round_num': charged.round_num,
      'event': {
          'sampling': dataclasses.asdict(charged.sampling),
          'noise_multipliers': [float(z) for z in charged.noise_multipliers],
      },
      'configuration': charged.configuration,
      'identity': charged.identity,
      'result': charged.result,
  }, previous=hash_)


def from_line(line: hash_chain.Line, *, index: int) -> Round:
  """Returns the round of a line.

  Raises:
    ValueError, KeyError, TypeError: It is not the line of a round at `index`.
  """
  charged = Round(
      round_num=line['round_num'],
      sampling=accounting.Sampling(**line['event']['sampling']),
      noise_multipliers=tuple(line['event']['noise_multipliers']),
      configuration=line['configuration'],
      identity=line['identity'],
      result=line['result'],
  )
  if line != to_line(charged, after=index, hash_=line['previous']):
    raise ValueError(f'round {index} has other fields than expected')
  return charged


class Charges:
  """Adds up what rounds cost, in the order in which they are charged.

  Rounds of `pass` sampling cost by trees. A tree goes on while the rounds of
  its pass follow each other; where they do not (a roll-back, another run), the
  tree before counts as a whole one and a new tree begins that counts from the
  start of its pass: so a client that took part again after a roll-back is
  charged again, with all nodes above it.
  """

  def __init__(self, lines: Sequence[hash_chain.Line] = ()):
    self._counts = collections.Counter()
    # By (sampling, noise): (rounds of ended trees, last round's number).
    self._trees = {}
    self._open = None
    for line in lines:
      self.add(line)

  def add(self, line: hash_chain.Line) -> None:
    """Adds the round of a line."""
    self.add_round(
        sampling=accounting.Sampling(**line['event']['sampling']),
        noise_multipliers=line['event']['noise_multipliers'],
        round_num=line['round_num'],
    )

  def add_round(
      self,
      *,
      sampling: accounting.Sampling,
      noise_multipliers: Sequence[float],
      round_num: int,
  ) -> None:
    """Adds a round; see `Round`."""
    key = sampling, noise_lib.combine_gaussians(noise_multipliers)
    if sampling.kind != 'pass':
      self._counts[key] += 1
      self._open = None
      return
    position = round_num % sampling.rounds_per_pass
    ended = 0
    if key in self._trees:
      ended, last = self._trees[key]
      # Not by the position alone: a roll-back may be by a whole pass.
      goes_on = self._open == key and round_num == last + 1 and position > 0
      if not goes_on:
        ended += sampling.rounds_per_pass
    self._trees[key] = ended, round_num
    self._open = key
    self._counts[key] = ended + position + 1

  @property
  def rounds(self) -> list[accounting.RoundGroup]:
    """What was charged, for `accounting`; equal rounds are one group."""
    return [
        accounting.RoundGroup(
            sampling=sampling, noise_multiplier=noise, count=count
        )
        for (sampling, noise), count in self._counts.items()
    ]


def _is_digest(value: Any) -> bool:
  return isinstance(value, str) and bool(re.fullmatch('[0-9a-f]{64}', value))
