"""Faults of a round: clients that fail, and models that diverge.

A client that failed (its data could not be read, or its work raised) is not in
the sum. A client whose update is not finite counts as zeros. Both are as if the
client had sent zeros. The sum is always divided by the expected cohort, so
noise, sensitivity and accounting do not change.

Two norms from the server's step tell whether a federated round diverged: of the
aggregated update and of the new weights. Under DP both come from the noised
mean, after the round was charged, so the decision costs no privacy. Losses are
not used, because clients' losses are exact and private. An undone round stays
charged. The next one has a new noise key and, if cohorts are drawn at random,
another cohort (`training_loop`).
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple, Optional

from absl import logging
import tensorflow as tf
import tensorflow_federated as tff

from tff_asr import checks
from tff_asr.models import weights as weights_lib

ACTIONS = ('stop', 'roll_back')
# After so many in a row, the rounds before were probably no good either.
_MAX_ROLL_BACKS = 3
_NORMS = ('update_norm', 'weights_norm')


class TooManyFailuresError(ValueError):
  """More of a round's clients failed than the run may do without."""


class DivergedError(ValueError):
  """The model diverged, and the run ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultSettings:
  """Answers of a federated run to faults.

  Attributes:
    max_failed_share: Share of a round's clients that may fail, including those
      whose update is not finite. None: the execution context alone limits
      failures, and updates that are not finite have no limit.
    on_divergence: 'stop' ends the run when a round diverges; 'roll_back' undoes
      the round, which stays charged.
    max_norm_growth: A norm of more than this factor times that of the last good
      round is a divergence, too; above 1. None: only a norm that is not finite
      is one.
  """

  max_failed_share: Optional[float] = None
  on_divergence: str = 'stop'
  max_norm_growth: Optional[float] = None

  def check(self) -> None:
    """Raises ValueError for all that is wrong with the settings."""
    share, growth = self.max_failed_share, self.max_norm_growth
    checks.together(
        lambda: share is None or checks.in_range(0, 1, max_failed_share=share),
        lambda: checks.one_of(ACTIONS, on_divergence=self.on_divergence),
        lambda: growth is None or _check_growth(growth),
    )

  def count_failed(
      self,
      context: tff.framework.AsyncContext,
      metrics: Mapping[str, Any],
      *,
      cohort_size: int,
      round_num: int,
      shows_exact: bool,
  ) -> int:
    """Counts the clients that a round left out; logs them without names.

    Args:
      context: Ran the round.
      metrics: Of the client work.
      cohort_size: Clients that came.
      round_num: The round, for messages.
      shows_exact: Whether failures are logged; counts and causes are private.

    Returns:
      How many failed, without those whose update was not finite.

    Raises:
      TooManyFailuresError: More failed than may.
    """
    # The native context lists no failures: a failed client ends its round.
    failures = getattr(context, 'last_failures', {})
    non_finite = int(metrics['num_non_finite'])
    failed = len(failures) + non_finite
    if not failed:
      return 0
    share = self.max_failed_share
    is_too_much = share is not None and failed > share * cohort_size
    if not shows_exact:
      if is_too_much:
        raise too_many(round_num)
      return len(failures)
    reasons = []
    if failures:
      reasons.append(f'the first of them: {failures[min(failures)]}')
    if non_finite:
      reasons.append(f'{non_finite} with an update that is not finite')
    text = (
        f'{failed} of {cohort_size} clients of round {round_num} failed '
        f'({"; ".join(reasons)})'
    )
    if is_too_much:
      raise TooManyFailuresError(
          f'{text}, more than MAX_FAILED_SHARE = {share:g} allows: mend the '
          'data or lower CLIENT_LEARNING_RATE, or raise it.'
      )
    logging.warning('%s and were left out.', text)
    return len(failures)

  def after_round(
      self, norms: 'Norms', metrics: Mapping[str, Any], *, round_num: int
  ) -> tuple['Norms', bool]:
    """Decides about a round.

    Args:
      norms: Of the last good round.
      metrics: The finalizer's, of this round.
      round_num: Its number, for messages.

    Returns:
      The norms to compare the next round with; and whether this round is good.
      If not, it is to be undone.

    Raises:
      DivergedError: The run is to end.
    """
    problem = self._find(norms, metrics)
    if problem is None:
      found = {name: float(metrics[name]) for name in _NORMS}
      return norms._replace(roll_backs=0, **found), True
    if self.on_divergence == 'roll_back' and norms.roll_backs < _MAX_ROLL_BACKS:
      undone = norms._replace(
          roll_backs=norms.roll_backs + 1,
          all_roll_backs=norms.all_roll_backs + 1,
      )
      return undone, False
    remedy = ", or set ON_DIVERGENCE = 'roll_back'."
    if norms.roll_backs:
      remedy = f' ({norms.roll_backs} roll-backs in a row did not help).'
    raise DivergedError(
        f'round {round_num} diverged: {problem}. The state of the round before '
        'it is kept; lower SERVER_LEARNING_RATE or CLIENT_LEARNING_RATE with '
        f'another output_dir{remedy}'
    )

  def _find(
      self, norms: 'Norms', metrics: Mapping[str, Any]
  ) -> Optional[str]:
    """The first problem of a round, or None."""
    growth = self.max_norm_growth
    for name in _NORMS:
      value, before = float(metrics[name]), getattr(norms, name)
      if not math.isfinite(value):
        return f'its {name} is {value}'
      if growth is not None and value > growth * before:
        return (
            f'its {name} is {value:.4g}, more than {growth:g} times the '
            f'{before:.4g} of the round before'
        )
    return None


def _check_growth(max_norm_growth: float) -> None:
  """Raises ValueError for a factor that is not finite or not above 1."""
  checks.finite(max_norm_growth=max_norm_growth)
  if max_norm_growth <= 1:
    raise ValueError(
        f'max_norm_growth must be above 1, found {max_norm_growth!r}.'
    )


def too_many(round_num: int) -> TooManyFailuresError:
  """Returns the error that ends a run without telling what failed."""
  return TooManyFailuresError(
      f'more clients of round {round_num} failed than MAX_FAILED_SHARE allows. '
      'How many and why is private: EXACT_METRICS = True shows it, and the '
      'privacy statement will say so.'
  )


class Norms(NamedTuple):
  """Norms of the last good round, to compare the next one with.

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


def check_step(
    weights: weights_lib.Weights, *, loss: Optional[float] = None, number: int
) -> None:
  """Checks that a step left a model that further steps can mend.

  Args:
    weights: After the step.
    loss: Of the step's batch; None: it is private.
    number: Of the step, for the message.

  Raises:
    DivergedError: A weight or the loss is not finite.
  """
  norm = float(tf.linalg.global_norm(list(weights.values())))
  if not math.isfinite(norm):
    problem = f'the norm of the weights is {norm}'
  elif loss is not None and not math.isfinite(loss):
    problem = f'the training loss is {loss}'
  else:
    return
  raise DivergedError(
      f'{problem} at step {number}: training diverged. What was saved before '
      'is kept; lower the learning rate (or max_grad_norm, or the noise), with '
      'another output_dir.'
  )
