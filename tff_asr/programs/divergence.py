"""Ends or undoes a round after which the model is of no use any more.

What is looked at is what the server's optimizer reports of its step: the norms
of the aggregated update and of the new weights. Under DP both come from the
noised mean, after its round was charged, so that what the guard decides costs
no privacy. No loss is looked at: clients' losses are exact and private.

A round that is undone stays charged. The next one has a new noise key and,
where cohorts are drawn at random, another cohort (`private_rounds`).
"""

import math
from typing import Any, NamedTuple, Optional

from tff_asr import checks

ACTIONS = ('stop', 'roll_back')
# In a row; then the rounds before were no good either.
_MAX_ROLL_BACKS = 3
_NORMS = ('update_norm', 'weights_norm')


class DivergedError(ValueError):
  """The model diverged, and the run ends."""


class Norms(NamedTuple):
  """What a guard compares the next round with.

  Attributes:
    update_norm: Of the last good round's update; NaN before the first.
    weights_norm: Of the weights after it; NaN before the first.
    roll_backs: Rounds undone in a row.
    all_roll_backs: Rounds undone in the whole run.
  """

  update_norm: float = math.nan
  weights_norm: float = math.nan
  roll_backs: int = 0
  all_roll_backs: int = 0


class Guard:
  """Decides about each round."""

  def __init__(self, *, action: str, max_growth: Optional[float]):
    """Creates the guard.

    Args:
      action: 'stop' or 'roll_back'.
      max_growth: A norm above this many times that of the last good round is
        a divergence, too; above 1. None: only norms that are not finite are.

    Raises:
      ValueError: An argument is out of range.
    """
    check(action=action, max_growth=max_growth)
    self._action = action
    self._max_growth = max_growth

  def is_good(
      self, norms: Norms, metrics: dict[str, Any], *, round_num: int
  ) -> bool:
    """Whether to go on from a round; False: it is to be undone.

    Args:
      norms: Of the last good round.
      metrics: The finalizer's, of this round.
      round_num: Its number, for messages.

    Raises:
      DivergedError: The run is to end.
    """
    problem = self._find(norms, metrics)
    if problem is None:
      return True
    if self._action == 'roll_back' and norms.roll_backs < _MAX_ROLL_BACKS:
      return False
    raise DivergedError(
        f'round {round_num} diverged: {problem}. The state of the round before '
        'it is kept; lower SERVER_LEARNING_RATE or CLIENT_LEARNING_RATE with '
        'another output_dir'
        + (
            f' ({norms.roll_backs} roll-backs in a row did not help).'
            if norms.roll_backs
            else ", or set ON_DIVERGENCE = 'roll_back'."
        )
    )

  def _find(self, norms: Norms, metrics: dict[str, Any]) -> Optional[str]:
    """What is wrong with a round, or None."""
    for name in _NORMS:
      value, before = float(metrics[name]), getattr(norms, name)
      if not math.isfinite(value):
        return f'its {name} is {value}'
      if self._max_growth is not None and value > self._max_growth * before:
        return (
            f'its {name} is {value:.4g}, more than {self._max_growth:g} times '
            f'the {before:.4g} of the round before'
        )
    return None


def check(*, action: str, max_growth: Optional[float]) -> None:
  """Raises ValueError unless a guard can be made of these."""
  checks.one_of(ACTIONS, on_divergence=action)
  if max_growth is not None:
    checks.finite(max_norm_growth=max_growth)
    if max_growth <= 1:
      raise ValueError(
          f'max_norm_growth must be above 1, found {max_growth!r}.'
      )


def after_good(norms: Norms, metrics: dict[str, Any]) -> Norms:
  """What to compare the round after a good one with."""
  return norms._replace(
      roll_backs=0, **{name: float(metrics[name]) for name in _NORMS}
  )


def after_roll_back(norms: Norms) -> Norms:
  """What to compare the round after an undone one with."""
  return norms._replace(
      roll_backs=norms.roll_backs + 1,
      all_roll_backs=norms.all_roll_backs + 1,
  )
